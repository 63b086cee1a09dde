"""``python -m benchmarks.table``: write the pages of costs, networks and stable fits from the numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import dynamics_table, networks
from examples.papers.networks import BASELINES

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"

HEAD = """# What it costs

<!-- Written by `python -m benchmarks.table` from benchmarks/results/cpu.json. Do not edit. -->

Medians of several calls of each contender, all in turn in one process; the spread is that of the calls.
Before a case is timed its results are checked: against LAPACK in double precision, a reference, or the
constraint itself. The numbers are those of one machine on one day; the ratios hold more widely.
`make bench` measures them anew. All on a CPU; on a GPU nothing has been measured yet.
"""

NETWORKS_HEAD = """# The networks

<!-- Written by `python -m benchmarks.table` from benchmarks/results/cpu.json. Do not edit. -->

All of {{py:mod}}`spectral_param.nn` have the interface of `torch.nn.RNN`, so one is swapped for another by
its name; [Recurrent networks](rnn.md) shows how. $n$ is the number of hidden units. ENRNN has $q = 3n/5$ of
them in the orthogonal block and $s = 2n/5$ in the other one, EUNN is `EUNN(..., layers=2)`, its authors'
default (ours is all $n$ layers, with $n^2$ parameters and more to compute), and ORNN and SpectralRNN have
$k = n$ reflections. ScuRNN, EUNN, URNN and FullCapacityURNN have $n$ complex states. Those with an asterisk
are what these are compared with, in `examples/papers/networks`.

- **Parameters**: independent real numbers in the recurrent matrices, gates included, as
  {{py:func}}`~spectral_param.num_free_parameters` counts.
- **W**: order of the operations that make the recurrent matrix from its parameters, once in each forward
  pass. **A step**: order of those of one time step of one sequence. "Without W" is what
  {{py:meth}}`~spectral_param.Householder.operator` of `Householder`, `Givens` and `FourierUnitary` costs. On
  a CPU the networks take it from $n = 512$ on with $k ≤ n/4$ reflections or Fourier transforms, and from
  $n = 1024$ on with up to 8 layers of rotations or the FFT's order.
- **Training step**: forward and backward pass of {batch} sequences of {steps} steps with {inputs} inputs,
  the recurrent matrix from its parameters, and the optimizer's step (SGD, or `StiefelRMSprop` for
  FullCapacityURNN), divided by the time of `torch.nn.RNN` with as many units. Where that was measured
  stands below the table.
- **What holds** for the recurrent matrix after every optimizer step. What an activation makes of it is
  another question: [Choosing a constraint](choosing.md#relu).
"""

# What a section needs to have said beside its title.
NOTES = {
    "SpectralRadiusNorm beside the plain way, a training step": """\
A Linear of $n$ units with bias and a step of SGD, one thread. The plain way is a parametrization that returns
`T / torch.linalg.eigvals(T).abs().max()`.
""",
    "ScaledCayley beside torch's, a training step": """\
The same with `torch.nn.utils.parametrizations.orthogonal(layer, orthogonal_map="cayley")`.
""",
    "SpectralRadiusNorm, a training step": """\
A product of W with 32 columns and a step of SGD, from a Gaussian matrix with one eigenvalue ahead of the
others. Where the eigenvalues at the edge crowd, "solver auto" costs what "solver dense" does. Beside a
recurrence of many steps either counts for less than here, where W is used once.
""",
}

FIGURE = """```{{eval-rst}}
.. plot::
   :filename-prefix: {name}

   from benchmarks import plot

   plot.growth({title!r})
```
"""

MEMORY = """## Memory of the recurrences, forward and backward

Most that is allocated at a time beyond inputs and parameters, in units of all states: steps times batch
times n numbers. Gradients are counted, and the tensor like all states that a loss sends back where it
reads all of them.
"""

Result = dict[str, Any]


def curves(results: dict[str, Result]) -> dict[str, list[tuple[str, int, Result]]]:
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


def page(results: dict[str, Result], memory: Result) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks`` wrote.
        memory: What ``python -m benchmarks.memory`` wrote.
    """
    parts = [HEAD]
    drawn: set[str] = set()
    on_their_own_page = {networks.name(n) for n in networks.SIZES}
    for name, result in results.items():
        if name in on_their_own_page:
            continue
        if not result["curve"]:
            parts.append(_section(name, result))
        elif (title := result["curve"][0]) not in drawn:
            drawn.add(title)
            parts.append(_curve(title, curves(results)[title]))
    return "\n".join([*parts, _memory(memory)])


def networks_page(results: dict[str, Result]) -> str:
    """Return the page of the networks; what is not in the results is "not measured".

    Args:
        results: What ``python -m benchmarks`` wrote.
    """
    sizes = networks.SIZES
    head = NETWORKS_HEAD.format(batch=networks.BATCH, steps=networks.STEPS, inputs=networks.INPUTS)
    columns = [
        "network",
        "parameters of W",
        f"at n = {sizes[0]}",
        "W, $O(·)$",
        "a step, $O(·)$",
        *(f"training step, n = {n}" for n in sizes),
        "what holds",
        "paper",
    ]
    lines = [f"| {' | '.join(columns)} |", f"|---|---|---:|---|---|{'---:|' * len(sizes)}---|---|"]
    for name, system in networks.SYSTEMS.items():
        times = (_relative(results.get(networks.name(n)), name) for n in sizes)
        cells = [
            f"{name}*" if name in BASELINES else f"{{py:class}}`~spectral_param.nn.{name}`",
            system.formula,
            f"{system.count(sizes[0]):,}",
            system.matrix,
            system.product,
            *times,
            system.guarantee,
            system.paper,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    parts = [head, "\n".join(lines), ""]
    for n in sizes:
        if result := results.get(networks.name(n)):
            baseline = _milliseconds(result["contenders"][networks.BASELINE]["median"])
            parts.append(f"n = {n}: `torch.nn.RNN` took {baseline} milliseconds. {_origin(result)}")
    return "\n".join(parts)


def _relative(result: Result | None, contender: str) -> str:
    if result is None:
        return "not measured"
    rows = result["contenders"]
    return f"{rows[contender]['median'] / rows[networks.BASELINE]['median']:.2g}"


def _section(name: str, result: Result) -> str:
    rows = result["contenders"]
    ours = next(iter(rows.values()))["median"]
    lines = [f"## {_capitalised(name)}\n"]
    lines.append("| | milliseconds | spread | relative to ours |\n|---|---:|---:|---:|")
    for contender, row in rows.items():
        spread = f"{_milliseconds(row['least'])} to {_milliseconds(row['most'])}"
        lines.append(
            f"| {contender} | {_milliseconds(row['median'])} | {spread} | {row['median'] / ours:.3g} |"
        )
    lines += [""] + [f"{_capitalised(fact)}: {value:.2g}.\n" for fact, value in result["facts"].items()]
    return "\n".join([*lines, _origin(result)])


def _curve(title: str, points: list[tuple[str, int, Result]]) -> str:
    names: dict[str, None] = {}
    for _, _, result in points:
        names |= dict.fromkeys(result["contenders"])
    lines = [
        f"## {_capitalised(title)}\n",
        *([NOTES[title]] if title in NOTES else []),
        FIGURE.format(title=title, name=_file_name(title)),
        "Milliseconds:\n",
    ]
    lines.append(f"| {points[0][0]} | {' | '.join(names)} |\n|---:|{'---:|' * len(names)}")
    for _, x, result in points:
        rows = result["contenders"]
        cells = (_milliseconds(rows[name]["median"]) if name in rows else "" for name in names)
        lines.append(f"| {x} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _origin(points[-1][2])])


def _memory(memory: Result) -> str:
    peaks = memory["peaks"]
    lines = [MEMORY, f"| | {' | '.join(peaks)} |\n|---|{'---:|' * len(peaks)}"]
    for way in next(iter(peaks.values())):
        lines.append(f"| {way} | {' | '.join(f'{peak[way]:.2f}' for peak in peaks.values())} |")
    return "\n".join([*lines, "", _origin(memory)])


def _origin(result: Result) -> str:
    repeats = f"{result['repeats']} repeats; " if "repeats" in result else ""
    environment = ", ".join(
        f"{name} {value[:12] if name == 'commit' else value}" for name, value in result["environment"].items()
    )
    return _capitalised(f"{repeats}{environment}.\n")


def _file_name(title: str) -> str:
    """Return a name of its own for each figure; without one they would overwrite each other."""
    return "costs-" + "-".join(re.findall(r"\w+", title.lower()))


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def main() -> None:
    """Write the pages."""
    names = ("cpu.json", "memory.json", "dynamics.json")
    results, memory, dynamics = (json.loads((RESULTS / name).read_text()) for name in names)
    (DOCS / "costs.md").write_text(page(results, memory))
    (DOCS / "networks.md").write_text(networks_page(results))
    (DOCS / "dynamics_compared.md").write_text(dynamics_table.page(dynamics))


if __name__ == "__main__":
    main()
