"""What constraints and recurrences cost on a CPU, each case beside its peers."""

from __future__ import annotations

import math
import re
import statistics
import timeit
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.cases import constraints, eigen, elsewhere, networks, plain, recurrences
from benchmarks.cases.case import Case, held_bytes
from benchmarks.table import Result, Table, load, marked, shown
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals

DEPENDS = (
    "spectral_param",
    ":(exclude)spectral_param/_constants",
    ":(exclude)spectral_param/analysis",
    ":(exclude)spectral_param/dynamics",
    ":(exclude)spectral_param/testing",
    "benchmarks/cases",
    "benchmarks/problems/characters.py",
)
# What was checked before: errors of rounding, and memory.
VARIES = "facts"

REPEATS = 5
# Seconds of a turn, within which shorter calls are repeated.
TURN = 0.02
# (n, batch, steps) of the papers' adding, copying and MNIST networks, and of characters.
SEQUENCES = [(160, 50, 750), (192, 20, 2020), (170, 128, 784), (1030, 32, 50)]
# Without activation, and which states are read.
LINEAR = [(256, 128, 784, "last"), (64, 1, 10_000, "last"), (64, 1, 10_000, "all"), (16, 16, 2_000, "all")]
RECTANGLES = [(64, 16), (512, 512), (1024, 64), (1024, 256), (2048, 64), (768, 3072)]
RADIUS = "SpectralRadiusNorm"
NETWORKS = "training step of the networks, "
NETWORK_SIZES = (128, 512)

Build = Callable[[], Case]


def tasks(quick: bool) -> Iterator[Task]:
    """Yield all cases, each built and checked when its turn comes.

    Args:
        quick: Whether to shrink everything.
    """
    for each in (_plain, _eigenvalues, _squares, _shapes, _norms, _elsewhere, _recurrences):
        yield from each(quick)


def _task(name: str, build: Build, quick: bool, packages: tuple[str, ...] = ("geotorch",)) -> Task:
    return Task(name, partial(timed, build, 1 if quick else REPEATS), packages=packages)


def _points(title: str, label: str, builds: dict[int, Build], quick: bool) -> Iterator[Task]:
    """Yield the points of a growth curve."""
    for x, build in builds.items():
        name = f"{title}, n = {x}" if label == "n" else f"{title}: {x} {label}"
        run = partial(timed, build, 1 if quick else REPEATS, (title, label, x))
        yield Task(name, run, packages=("geotorch",))


def _plain(quick: bool) -> Iterator[Task]:
    radii, cayleys = ((64,), (64,)) if quick else ((8, 16, 32, 64), (16, 64, 128, 256))
    title = "SpectralRadiusNorm beside the plain way, a training step"
    yield from _points(title, "n", {n: partial(plain.radius_step, n) for n in radii}, quick)
    title = "ScaledCayley beside torch's, a training step"
    yield from _points(title, "n", {n: partial(plain.cayley_step, n) for n in cayleys}, quick)
    for n, steps, batch in [(16, 40, 2)] if quick else [(16, 20, 16), (32, 64, 32), (64, 100, 32)]:
        name = f"a small ENRNN, a training step: n = {n}, {steps} steps, {batch} sequences"
        yield _task(name, partial(plain.network_step, n, steps, batch), quick)


def _eigenvalues(quick: bool) -> Iterator[Task]:
    count, n = (16, 64) if quick else (320, 720)
    both, few = count + count // 2, count // 4
    title, run = f"spectral radius, forward and backward, n = {n}, steps", eigen.on_training_run
    build = partial(run, slice(0, count), both, n, 1)
    yield _task(f"{title} 1 to {count} of ENRNN training", build, quick)
    build = partial(run, slice(count, both), both, n, 8)
    yield _task(f"{title} {count + 1} to {both} of ENRNN training", build, quick)
    build = partial(run, slice(0, few), few, n, 8, True)
    yield _task(f"{title} 1 to {few} of ENRNN training, embedding of variance one", build, quick)
    steps, n = (30, 24) if quick else (60, 256)
    for name in eigen.ADVERSARIAL:
        build = partial(eigen.on_adversarial_run, name, steps, n)
        yield _task(f"adversarial run, n = {n}: {name}", build, quick)


def _squares(quick: bool) -> Iterator[Task]:
    sizes = (16, 32) if quick else (16, 32, 64, 128, 256, 512, 1024, 2048)
    step = constraints.normalised_step
    for n in sizes:
        run = partial(
            timed, partial(step, n), 1 if quick else REPEATS, (f"{RADIUS}, a training step", "n", n)
        )
        yield Task(f"training step with {RADIUS}, n = {n}", run, packages=("geotorch",))
    for dtype in ("float32", "float64"):
        title = f"{RADIUS} on a new Linear, a training step, {dtype}"
        builds = {n: partial(step, n, fresh=True, dtype=dtype) for n in sizes}
        yield from _points(title, "n", builds, quick)
    batch = 8 if quick else 64
    build = partial(step, batch, batch)
    yield _task(f"training step with {RADIUS}, n = {batch}, batch of {batch}", build, quick)
    builds = {n: partial(constraints.orthogonal_step, n) for n in sizes[1:]}
    yield from _points("orthogonal weight, forward and backward", "n", builds, quick)


def _shapes(quick: bool) -> Iterator[Task]:
    for m, n in [(16, 4)] if quick else RECTANGLES:
        name = f"orthonormal weight, a training step, {m} x {n}"
        yield _task(name, partial(constraints.rectangle_step, m, n), quick)
    for count, n in [(2, 4)] if quick else [(128, 32), (32, 128)]:
        name = f"orthogonal blocks, forward and backward, {count} of {n} x {n}"
        yield _task(name, partial(constraints.blocks_step, count, n), quick)
    m, n = (90, 5) if quick else (30_000, 50)
    name = f"a very tall weight, a training step, {m} x {n}"
    yield _task(name, partial(constraints.tall_step, m, n), quick)


def _norms(quick: bool) -> Iterator[Task]:
    title = "bounded norm, a training step"
    for gap, adam in ((True, False), (False, False), (True, True)):
        start = ("a gap of 3 %" if gap else "torch's own start") + (", Adam" if adam else "")
        for m, n in [(16, 4)] if quick else [(256, 256), (768, 768), (768, 3072)]:
            build = partial(constraints.norm_step, m, n, gap, adam)
            yield _task(f"{title}, {m} x {n}, {start}", build, quick)
    channels, size = (4, 5) if quick else (64, 16)
    for stride in (1, 2):
        kernel = f"kernel {channels} x {channels} x 3 x 3, stride {stride}, images {size} x {size}"
        build = partial(constraints.kernel_norm_step, channels, size, stride)
        yield _task(f"{title}, {kernel}", build, quick)


def _elsewhere(quick: bool) -> Iterator[Task]:
    for package, (name, build) in elsewhere.CASES.items() if not quick else ():
        yield _task(f"in other packages, a training step: {name}", build, quick, (package,))


def _recurrences(quick: bool) -> Iterator[Task]:
    title = "recurrence, forward and backward"
    for n, batch, steps in [(16, 4, 10)] if quick else SEQUENCES:
        name = f"{title}, n = {n}, batch {batch}, {steps} steps"
        yield _task(name, partial(recurrences.sequence, n, batch, steps), quick)
    n, batch = (16, 4) if quick else (160, 50)
    lengths = (5, 10) if quick else (50, 100, 200, 400, 800, 1600, 3200)
    builds = {steps: partial(recurrences.growing_sequence, n, batch, steps) for steps in lengths}
    yield from _points(f"{title}, n = {n}, batch {batch}", "steps", builds, quick)
    for n in (8,) if quick else (32, 128, 256):
        name = f"a cell in a loop, a training step: n = {n}, batch 16, 200 steps"
        yield _task(name, partial(recurrences.cell_in_a_loop, n), quick)
    for n, batch, steps, read in [(4, 1, 400, "last")] if quick else LINEAR:
        case = f"{read} states read, n = {n}, batch {batch}, {steps} steps"
        name = f"recurrence without activation, forward and backward, {case}"
        yield _task(name, partial(recurrences.linear_sequence, n, batch, steps, read), quick)
    for n in (16,) if quick else NETWORK_SIZES:
        name = f"{NETWORKS}n = {n}, batch {networks.BATCH}, {networks.STEPS} steps"
        yield _task(name, partial(networks.training_step, n), quick)
    long, short, past = (6, 10, 2) if quick else (310, 720, 300)
    name = f"training step on characters, ENRNN {long}/{short}, batch 32, 50 steps, after {past} steps"
    yield _task(name, partial(recurrences.character_step, long, short, past), quick)


def timed(build: Build, repeats: int, curve: tuple[str, str, int] | None = None) -> Result:
    """Return seconds per unit and memory of each contender.

    All take their turns one after the other, again and again, so that drift is shared.

    Args:
        build: Makes the case, and checks it.
        repeats: How many turns each has.
        curve: Title of the growth curve that it is a point of, and the name and value of what grows.
    """
    # After some steps, gradients of torch's orthogonal(cayley) have subnormal entries, with which a processor
    # takes ten times as long: the time would depend on the number of steps.
    with flushed_denormals():
        case = build()
        contenders = _in_turns(case, repeats)
    return {
        "environment": {"dtype": case.dtype},
        "repeats": repeats,
        "contenders": contenders,
        "facts": case.facts,
        "curve": curve,
    }


def _in_turns(case: Case, repeats: int) -> dict[str, Result]:
    calls: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in case.contenders}
    for name, run in case.contenders.items():
        run()  # A first call may prepare what the others use.
        calls[name] = max(1, round(TURN / timeit.timeit(run, number=1)))
    for _ in range(repeats):
        for name, run in case.contenders.items():
            seconds = timeit.timeit(run, number=calls[name]) / calls[name]
            times[name].append(seconds / case.units.get(name, 1))
    return {
        name: {
            "median": statistics.median(t),
            "least": min(t),
            "most": max(t),
            "bytes": held_bytes(case.contenders[name]),
            "registration": case.registration.get(name),
        }
        for name, t in times.items()
    }


# Tables -----------------------------------------------------------------------------------------------


def cases(key: str) -> dict[str, Result]:
    """Return the results whose names begin so, by the rest of the name; points of a curve come last.

    Args:
        key: The beginning of the name of a case, or of the title of a curve.

    Raises:
        ValueError: If there are none.
    """
    results = sorted(load("cpu").items(), key=lambda item: item[1]["curve"][2] if item[1]["curve"] else 0)
    named = {shown(name, result): result for name, result in results}
    found = {name.removeprefix(key).lstrip(",: "): r for name, r in named.items() if name.startswith(key)}
    if not found:
        raise ValueError(f"key: expected the beginning of the name of a case, got {key!r}")
    return found


def times(key: str) -> Table:
    """Return the milliseconds of each contender, and what was checked.

    Args:
        key: As for :func:`cases`.
    """
    rows = cases(key)
    names = dict.fromkeys(name for result in rows.values() for name in result["contenders"])
    # What was checked at each step of some, at every eighth of others, is one column.
    facts = dict.fromkeys(fact.split(",")[0] for result in rows.values() for fact in result["facts"])
    cells = []
    for label, result in rows.items():
        medians = {name: milliseconds(row["median"]) for name, row in result["contenders"].items()}
        checked = {fact.split(",")[0]: _fact(value) for fact, value in result["facts"].items()}
        cells.append(
            [
                marked(label, result),
                *(medians.get(name, "") for name in names),
                *(checked.get(f, "") for f in facts),
            ]
        )
    return ["", *names, *facts], cells


def registration(key: str) -> Table:
    """Return the milliseconds to put each constraint on, and the megabytes of a step.

    Args:
        key: As for :func:`cases`.
    """
    rows = cases(key)
    columns: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for result in rows.values() for name in result["contenders"]):
        for quantity, unit, scale in (("registration", "registration", 1e3), ("bytes", "megabytes", 1e-6)):
            found = [result["contenders"].get(name, {}).get(quantity) for result in rows.values()]
            if any(value is not None for value in found):
                columns[f"{name}: {unit}"] = ["" if x is None else f"{scale * x:.3g}" for x in found]
    labels = [marked(label, result) for label, result in rows.items()]
    return ["", *columns], [list(row) for row in zip(labels, *columns.values(), strict=True)]


def ratios(*pairs: str) -> Table:
    """Return the time of this library over that of another, at the smallest and at the largest size.

    Args:
        *pairs: The beginning of the names of cases, a slash, and the other contender.
    """
    rows = []
    for pair in pairs:
        key, rival = pair.split(" / ")
        found: dict[int, list[float]] = {}
        results = cases(key)
        for label, result in results.items():
            (ours, row), *_ = result["contenders"].items()
            if rival in result["contenders"]:
                n = int(re.findall(r"n = (\d+)", label)[0])
                found.setdefault(n, []).append(row["median"] / result["contenders"][rival]["median"])
        ends = [text for n in sorted({min(found), max(found)}) for text in (str(n), _range(found[n]))]
        rows.append([marked(key, results.values()), ours, rival, *[*ends, "", ""][:4]])
    return ["", "this library", "alternative", "smallest n", "ratio", "largest n", "ratio"], rows


def training_steps() -> Table:
    """Return the time of a training step of each network over that of the baseline, and its parameters."""
    found = cases(NETWORKS)
    baselines = [result["contenders"][networks.BASELINE]["median"] for result in found.values()]
    rows = []
    for network, system in networks.SYSTEMS.items():
        medians = [result["contenders"].get(network, {}).get("median", math.nan) for result in found.values()]
        ratios = [
            f"{median / baseline:.2g}" if median > 0 else "not measured"
            for median, baseline in zip(medians, baselines, strict=True)
        ]
        rows.append([network, f"{system.count(NETWORK_SIZES[0]):,}", *ratios])
    rows.append([f"{networks.BASELINE}, milliseconds", "", *map(milliseconds, baselines)])
    sizes = [marked(name, result) for name, result in found.items()]
    return ["", f"parameters of W, n = {NETWORK_SIZES[0]}", *sizes], rows


def milliseconds(seconds: float) -> str:
    """Return a time as text, to three digits at least.

    Args:
        seconds: The time.
    """
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _range(values: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2g}" for value in (min(values), max(values))))


def _fact(value: float) -> str:
    return f"{value:.1e}" if abs(value) < 1e-2 else f"{value:.2f}"
