"""The pages of costs, from ``cpu.json``, ``memory.json``, ``device.json`` and ``norms.json``."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from benchmarks import elsewhere
from examples.papers.record import fact

Result = dict[str, Any]
Results = dict[str, Result]

WRITTEN = "<!-- Written by `python -m benchmarks.table` from benchmarks/results. Do not edit. -->"

HEAD = """# What it costs

{written}

```{{index}} ! costs, ! benchmark, ! speed, ! performance, ! overhead
```

The time of this library divided by the time of the alternative, at the smallest and at the largest size.
Below 1, this library is faster.

{short}
This page has constraints on eigenvalues. [Bounded norms](costs_norms.md), [orthogonal
weights](costs_orthogonal.md), [recurrent networks](costs_networks.md) and [a GPU](costs_gpu.md) have pages.

## How it is measured

All times are from a CPU, in milliseconds, and in float32 where nothing else is said. The alternatives take
turns in one process, and a time is the median over the turns. In a turn, short calls are repeated for 20 ms
and averaged. Each result is checked before it is timed. Memory is the most that a call holds beyond the
least: the peak of torch and that of numpy, added up. `make bench` measures everything again and replaces
these numbers. `python -m benchmarks --only "bounded norm" --output FILE` measures one group. The machine is
named at the end of each page.
"""

ORTHOGONAL_HEAD = """# What orthogonal weights cost

{written}

```{{index}} ! orthogonal benchmark, ! orthogonal speed
```

[What it costs](costs.md#how-it-is-measured) says how times and memory are measured.
"""

NETWORKS_HEAD = """# What recurrent networks cost

{written}

```{{index}} ! RNN speed, ! LSTM speed, ! memory
```

[What it costs](costs.md#how-it-is-measured) says how times and memory are measured. [The
networks](networks.md) has a training step of every network.
"""

NORMS = """# What bounded norms cost

{written}

```{{index}} ! spectral_norm speed, ! convolution speed
```

A training step with {{py:class}}`~spectral_param.SpectralNorm` on each convolution and linear layer, beside
torch's `spectral_norm`, which [bounds no norm](bounds.md#one-step), and no bound at all. Convolutions see 8
images of 16 x 16 pixels, matrices 32 rows. The residual network has 12 convolutions of 64 to 256 channels;
its images shrink from 16 x 16 to 4 x 4, so that little of its time is left for anything but the norms. The
critic has 64 to 256 channels.

Times are milliseconds of processor time, medians over steps of the three ways in turn. Adam changes a new
kernel in each step by more than its norms differ from frequency to frequency, so that all frequencies have
to be proven again. Where norms differ more, a proof lasts for some steps. "Later" is after the first 100
steps, or fewer for large weights; "longest" is the longest of all steps but the first.

| | no bound | torch | this library | over torch | over torch, later | longest | registration |
|---|---:|---:|---:|---:|---:|---:|---:|
{rows}
{attack}## Where it was measured

{origins}
"""

ATTACK = """## Exactness

{reads} kernels that are made to fool what follows them from step to step: sudden changes, frequencies that
cross, equal peaks, rank one, zero and huge kernels. With `mode="equal"` and the bound 1, the largest norm at
all frequencies was at most 1 + {above:.1e} times that of the bound, and at least 1 - {below:.1e} times.

"""

DEVICE = """# What a GPU is asked for

{written}

```{{index}} ! GPU, ! CUDA, ! device
```

The library runs on the devices that PyTorch has. Speed on a GPU has not been measured: `python -m
benchmarks.device --device cuda` does that.

The table counts what a training step asks of a device. A launch is one operation, for which the host needs
some microseconds. A wait is a number that the host needs before it can go on. Both are counted on a stand-in
for a device, which the tests use. Its results are those of the CPU, to rounding.

Eigenvalues of matrices up to n = 3000 are computed on the host, after one copy of all matrices of a weight:
for a GPU, [a millisecond for each matrix](https://github.com/pytorch/pytorch/issues/183806) has been
reported. From n = 96 on, `SpectralRadiusNorm` tracks on the device, and the host waits twice for each
matrix. `SkewExponential` waits once for the norm that decides how often to square.

"""

FIGURE = """```{{eval-rst}}
.. plot::
   :filename-prefix: costs-{name}
   :include-source: false
   :alt: {alt} The table below has the numbers.

   from benchmarks import plot

   plot.{call}
```

"""

FOLDED = """<details>
<summary>Milliseconds</summary>

{tables}
</details>
"""

MEMORY = """## Memory of the recurrences, forward and backward

The largest memory in use, divided by the memory of all states (steps times batch times n numbers). Inputs and
parameters do not count. Gradients count; where the loss reads all states, so does the gradient of all states.

"""


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of times.

    Attributes:
        key: The beginning of the names of the cases, or of the title of a growth curve.
        caption: What stands above it.
        grows: Whether it is that of a growth curve.
        versus: For the summary: the name of the contender that ours is compared with, what the summary calls
            ours, and what it calls the other one.
        registration: Whether registration and memory have a table. Those of a new weight are like those of
            others.
    """

    key: str
    caption: str
    grows: bool = False
    versus: tuple[str, str, str] | None = None
    registration: bool = True


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        title: Its heading.
        text: What was measured.
        tables: Its tables, folded below a figure.
        call: The function of :mod:`benchmarks.plot` that draws the figure, with its arguments.
        alt: What the figure shows.
    """

    title: str
    text: str
    tables: tuple[Table, ...]
    call: str = ""
    alt: str = ""


ELSEWHERE = "training step of the networks, "  # Has a page of its own.
FRESH = "SpectralRadiusNorm on a new Linear, a training step"
STEP = "SpectralRadiusNorm, a training step"
PLAIN = "SpectralRadiusNorm beside the plain way, a training step"
ORTHOGONAL = "orthogonal weight, forward and backward"
NETWORKS = (
    "a small ENRNN, a training step: ",
    "training step on characters, ",
    "recurrence, forward and backward, ",
)

EIGENVALUES = (
    Section(
        "A layer of your size",
        """\
A training step with `SpectralRadiusNorm`: the product of an $n × n$ weight with 32 columns, backward, and a
step of SGD. In the figure, one eigenvalue of the weight is larger than the others, as it is after some
training. The eigenvalues of a new `Linear` have nearly the same modulus, so the first steps take longer: up
to the time of `solver="dense"`. A recurrent network evaluates the constraint once for all time steps, so
there the constraint is a smaller share of the time.
""",
        (
            Table(STEP, "One weight", grows=True),
            Table(
                f"{FRESH}, float32", "The weight of a new `Linear`, float32", grows=True, registration=False
            ),
            Table(
                f"{FRESH}, float64", "The weight of a new `Linear`, float64", grows=True, registration=False
            ),
            Table("training step with SpectralRadiusNorm, ", "A batch of weights"),
        ),
        f"growth({STEP!r})",
        "Milliseconds of a training step over n: solver auto, solver dense, unconstrained.",
    ),
    Section(
        "Beside the plain way",
        """\
The plain way is a parametrization that returns `T / torch.linalg.eigvals(T).abs().max()`. The small layers
are a `Linear` with bias and a step of SGD. For 720 units, only $ρ(T)$ is timed, forward and backward, on the
matrices that an ENRNN passed through in training.
""",
        (
            Table(
                PLAIN,
                "Small layers",
                grows=True,
                versus=("plain way", "`SpectralRadiusNorm`, layer", "plain way"),
            ),
            Table(
                "spectral radius, forward and backward, ",
                "The spectral radius in training",
                versus=(
                    "autograd through torch.linalg.eigvals",
                    "spectral radius alone, in training",
                    "plain way",
                ),
            ),
        ),
        f"growth({PLAIN!r})",
        "Milliseconds of a training step over n: ours and the plain way.",
    ),
    Section(
        "Beside torch: bounded norms",
        """\
A training step of a layer (SGD or Adam with a learning rate of 1e-3, eight vectors or images) with
`SpectralNorm(1.0)`, with PyTorch's `spectral_norm` (one power iteration a step), and without a constraint.
Eight steps are taken before the time is measured. The steps of SGD move the weight little here, and most of
them reuse the bound of the step before; with Adam, each step finds a new one. "A gap of 3 %" means that the
largest singular value starts 3 % above the next; torch's own start has no gap. "Norm" is the largest singular
value before the timed steps, in double precision; of a kernel, the norm of the layer on images of size 32.
In milliseconds:
""",
        (Table("bounded norm, a training step, ", ""),),
    ),
    Section(
        "Adversarial runs",
        """\
Sequences of matrices made to be hard to follow from step to step. "Tracked" is what `solver="auto"` does
from n = 96 on, "dense" a decomposition in each step. Milliseconds for the dominant eigenvalue and its
eigenvectors:
""",
        (Table("adversarial run, ", ""),),
    ),
)

ORTHOGONAL_WEIGHTS = (
    Section(
        "Beside torch and geotorch: orthogonal weights",
        """\
The weight alone, forward and backward: `ScaledCayley` and `SkewExponential` of this library. The layer is a
training step of a `Linear`, beside
`torch.nn.utils.parametrizations.orthogonal(layer, orthogonal_map="cayley")`.
""",
        (
            Table(
                ORTHOGONAL,
                "Weight alone",
                grows=True,
                versus=("torch, cayley", "`ScaledCayley`, weight alone", "torch's `orthogonal`"),
            ),
            Table(
                "ScaledCayley beside torch's, a training step",
                "Layer",
                grows=True,
                versus=("torch, orthogonal", "`ScaledCayley`, layer", "torch's `orthogonal`"),
            ),
        ),
        f"growth({ORTHOGONAL!r})",
        "Milliseconds over n of orthogonal weights by this library, geotorch and torch.",
    ),
    Section(
        "Weights of any shape",
        """\
A training step of a `Linear` with `ScaledCayley`, beside PyTorch's `orthogonal` with
`orthogonal_map="cayley"`, and beside the formula of the thin Cayley transform in ten lines, differentiated by
autograd. For batches of blocks: the exact transform beside the truncated series of PEFT's orthogonal
fine-tuning, whose result is not orthogonal. In milliseconds:
""",
        (
            Table("orthonormal weight, a training step, ", ""),
            Table("orthogonal blocks, forward and backward, ", "Batches of blocks"),
            Table("a very tall weight, a training step, ", "A very tall weight"),
        ),
    ),
    Section(
        "In other people's code",
        """\
A training step of modules of public packages, as they are and with our transform in place of theirs, which
changes one line: pyreft 0.1.0 `LoreftIntervention.rotate_layer`, spd-learn 0.2.1 `BiMap.weight`, and the
rotations of PEFT's orthogonal fine-tuning. "As it is" names the package's own code. "Largest |σ - 1|" says
how far singular values are from 1. Times in milliseconds, memory of a step in megabytes:
""",
        (Table(elsewhere.NAME, ""),),
    ),
)

RECURRENT = (
    Section(
        "Beside torch: recurrent networks",
        """\
ENRNN: whole training steps, optimizer included. "At its bound": the spectral radius of the short-term block
has reached its bound, from where on each step computes eigenvalues; before, a few products prove that none
are needed. ScoRNN: forward and backward, the computation of the recurrent matrix included. "Three products
per step" are the matrix products of the recurrence alone.
""",
        (
            Table(
                NETWORKS[0],
                "Small ENRNN",
                versus=("torch.nn.LSTM", "small ENRNN, training step", "`torch.nn.LSTM`"),
            ),
            Table(NETWORKS[1], "ENRNN on characters"),
            Table(
                NETWORKS[2],
                "ScoRNN",
                versus=("torch.nn.RNN", "ScoRNN, forward and backward", "`torch.nn.RNN`"),
            ),
            Table(NETWORKS[2], "ScoRNN, over the number of steps", grows=True),
        ),
        f"relative({NETWORKS!r})",
        "Times of our networks divided by those of torch's, one line for each setting.",
    ),
    Section(
        "Without activation",
        """\
A recurrence without activation is linear in its inputs, so that many steps are computed at a time. Forward
and backward, in milliseconds:
""",
        (
            Table(
                "recurrence without activation, forward and backward, ",
                "",
                versus=(
                    "torch.nn.RNN, with its activation",
                    "recurrence without activation",
                    "`torch.nn.RNN`, with activation",
                ),
            ),
        ),
    ),
)

SECTIONS = (*EIGENVALUES, *ORTHOGONAL_WEIGHTS, *RECURRENT)
OTHERS = Section("Other measurements", "Milliseconds:\n", (Table("", ""), Table("", "", grows=True)))


def curves(results: Results) -> dict[str, list[tuple[str, int, Result]]]:
    """Return the points of each growth curve: what grows, its value, the result.

    Args:
        results: What ``python -m benchmarks`` wrote.
    """
    found: dict[str, list[tuple[str, int, Result]]] = {}
    for result in results.values():
        if result["curve"]:
            title, label, x = result["curve"]
            found.setdefault(title, []).append((label, x, result))
    return {title: sorted(points, key=lambda point: point[1]) for title, points in found.items()}


def cases(results: Results, key: str) -> dict[str, Result]:
    """Return the results that are no points of a curve and whose names begin so, by the rest of the name.

    Args:
        results: What ``python -m benchmarks`` wrote.
        key: The beginning.
    """
    return {
        name.removeprefix(key): result
        for name, result in results.items()
        if name.startswith(key) and not result["curve"]
    }


def pages(results: Results, memory: Result, device: Result, norms: Results) -> dict[str, str]:
    """Return the pages, by the names of their files.

    Args:
        results: What ``python -m benchmarks`` wrote.
        memory: What ``python -m benchmarks.memory`` wrote.
        device: What ``python -m benchmarks.device`` wrote.
        norms: What ``python -m benchmarks.norms`` wrote.
    """
    results = {name: r for name, r in results.items() if not name.startswith(ELSEWHERE)}
    head = HEAD.format(written=WRITTEN, short=_short(results))
    eigenvalues, orthogonal, recurrent = (
        {section: results for section in sections}
        for sections in (EIGENVALUES, ORTHOGONAL_WEIGHTS, RECURRENT)
    )
    return {
        "costs.md": _page(head, {**eigenvalues, OTHERS: _others(results)}),
        "costs_orthogonal.md": _page(ORTHOGONAL_HEAD.format(written=WRITTEN), orthogonal),
        "costs_networks.md": _page(NETWORKS_HEAD.format(written=WRITTEN), recurrent, memory),
        "costs_norms.md": _norms(norms),
        "costs_gpu.md": _device(device),
    }


def _page(head: str, sections: dict[Section, Results], memory: Result | None = None) -> str:
    """Return a page of sections, each with the results to look in."""
    parts = [head, *(_section(section, results) for section, results in sections.items())]
    if memory:
        parts.append(_memory(memory))
    return "\n".join([*filter(None, parts), _origins(sections, memory)])


def _rows(table: Table, results: Results) -> dict[str, Result]:
    """Return the lines of a table: their labels and results."""
    if not table.grows:
        return cases(results, table.key)
    found = {}
    for title, points in curves(results).items():
        if title.startswith(table.key):
            rest = title.removeprefix(table.key)
            for label, x, result in points:
                size = f"n = {x}" if label == "n" else f"{x} {label}"
                found[f"{rest}, {size}" if rest else size] = result
    return found


def _short(results: Results) -> str:
    lines = ["| this library | alternative | smallest size | largest size |", "|---|---|---:|---:|"]
    for table in (table for section in SECTIONS for table in section.tables):
        if table.versus is None:
            continue
        rival, ours, theirs = table.versus
        ratios: dict[int, list[float]] = {}
        for label, result in _rows(table, results).items():
            rows = result["contenders"]
            if rival in rows:
                n = int(re.findall(r"n = (\d+)", label)[0])
                ratios.setdefault(n, []).append(next(iter(rows.values()))["median"] / rows[rival]["median"])
        if ratios:
            ends = [f"{_range(ratios[n])} (n = {n})" for n in dict.fromkeys((min(ratios), max(ratios)))]
            lines.append(f"| {ours} | {theirs} | {' | '.join([*ends, ''][:2])} |")
    return "\n".join([*lines, ""])


def _range(ratios: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{ratio:.2g}" for ratio in (min(ratios), max(ratios))))


def _section(section: Section, results: Results) -> str:
    tables = "\n".join(filter(None, (_table(table, results) for table in section.tables)))
    if not tables:
        return ""
    head = f"## {section.title}\n\n{section.text}\n"
    if not section.call:
        return head + tables
    name = "-".join(re.findall(r"\w+", section.title.lower()))
    figure = FIGURE.format(name=name, alt=section.alt, call=section.call)
    return head + figure + FOLDED.format(tables=tables)


def _table(table: Table, results: Results) -> str:
    rows = _rows(table, results)
    names = dict.fromkeys(name for result in rows.values() for name in result["contenders"])
    # What was checked at each step of some, at every eighth of others, is one column.
    facts = dict.fromkeys(fact.split(",")[0] for result in rows.values() for fact in result["facts"])
    if not rows:
        return ""
    lines = [f"{table.caption}:\n"] if table.caption else []
    columns = [name.replace("|", r"\|") for name in (*names, *facts)]
    lines.append(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    for label, result in rows.items():
        times = result["contenders"]
        cells = [milliseconds(times[name]["median"]) if name in times else "" for name in names]
        checked = {fact.split(",")[0]: _fact(value) for fact, value in result["facts"].items()}
        cells += [checked.get(fact, "") for fact in facts]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(_registration(rows) if table.registration else [])])


def _fact(value: float) -> str:
    return f"{value:.1e}" if abs(value) < 1e-2 else f"{value:.2f}"


def _registration(rows: dict[str, Result]) -> list[str]:
    """Return the lines of a table of registration and memory, where registration was measured."""
    names = dict.fromkeys(name for result in rows.values() for name in result["contenders"])
    columns = {}
    for key, unit, scale in (("registration", "registration", 1e3), ("bytes", "megabytes", 1e-6)):
        for name in names:
            found = {label: result["contenders"].get(name, {}).get(key) for label, result in rows.items()}
            if any(value is not None for value in found.values()):
                columns[f"{name}: {unit}"] = {
                    label: "" if value is None else f"{scale * value:.3g}" for label, value in found.items()
                }
    if not any(column.endswith(": registration") for column in columns):
        return []
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for label in rows:
        lines.append(f"| {label} | {' | '.join(cells[label] for cells in columns.values())} |")
    return ["Milliseconds to put the constraint on, and memory of a step:\n", *lines, ""]


def _memory(memory: Result) -> str:
    peaks = memory["peaks"]
    lines = [f"| | {' | '.join(peaks)} |\n|---|{'---:|' * len(peaks)}"]
    for way in next(iter(peaks.values())):
        lines.append(f"| {way} | {' | '.join(f'{peak[way]:.2f}' for peak in peaks.values())} |")
    return MEMORY + "\n".join([*lines, ""])


def _device(device: Result) -> str:
    lines = ["| a training step | launches | waits |", "|---|---:|---:|"]
    for name, row in device["steps"].items():
        lines.append(f"| {name} | {row['launches']} | {row['waits']} |")
    return DEVICE.format(written=WRITTEN) + "\n".join([*lines, ""])


def _norms(norms: Results) -> str:
    """Return the page of norms: its cases from the smallest to the largest of each kind."""

    def order(name: str) -> tuple[Any, ...]:
        sizes = [int(number) for number in re.findall(r"\d+", name)]
        return "default threads" in name, not name.startswith("Conv"), name[:6], sizes, name

    rows, found = [], {}
    for name in sorted(norms.keys() - {"attack"}, key=order):
        result = norms[name]
        times = result["contenders"]
        ours, torchs, _ = times.values()
        cells = [milliseconds(way["start"]) for way in reversed(times.values())]
        cells += [f"{ours[key] / torchs[key]:.2g}" for key in ("start", "later")]
        cells += [milliseconds(ours[key]) for key in ("most", "registration")]
        rows.append(f"| {name} | {' | '.join(cells)} |")
        found[origin(result)] = None
    attack = ""
    if "attack" in norms:
        reads, above, below = (norms["attack"][key] for key in ("reads", "above", "below"))
        attack = ATTACK.format(reads=f"{reads:,}", above=above, below=-below)
    return NORMS.format(
        written=WRITTEN,
        rows="\n".join([*rows, ""]),
        attack=attack,
        origins="\n".join(f"- {where}." for where in found),
    )


def _others(results: Results) -> Results:
    """Return the cases that no section names."""
    shown = {id(r) for s in SECTIONS for table in s.tables for r in _rows(table, results).values()}
    return {name: result for name, result in results.items() if id(result) not in shown}


def _origins(sections: dict[Section, Results], memory: Result | None) -> str:
    """Return where the numbers of each section were measured, and how often each contender."""
    found: dict[str, dict[str, None]] = {}
    for section, results in sections.items():
        for table in section.tables:
            for result in _rows(table, results).values():
                found.setdefault(origin(result), {})[table.caption or section.title] = None
    if memory:
        found.setdefault(origin(memory), {})["Memory of the recurrences"] = None
    lines = [f"- {'; '.join(titles)}: {where}." for where, titles in found.items()]
    return "\n".join(["## Where it was measured\n", *lines, ""])


def origin(result: Result) -> str:
    """Return on which machine and with which versions a result was measured.

    Args:
        result: One result.
    """
    repeats = f"{result['repeats']} repeats; " if "repeats" in result else ""
    return repeats + ", ".join(f"{name} {fact(name, value)}" for name, value in result["environment"].items())


def milliseconds(seconds: float) -> str:
    """Return a time as text, to three digits at least.

    Args:
        seconds: The time.
    """
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"
