"""Tables of fits of one step beside their rivals, from ``dynamics.json``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

from benchmarks.table import Result, Table, load, short

UNSTABLE = 1e-9  # beyond the bound
OURS = "fit_stable"
# Beginnings of the names of the problems of each kind, and what the page calls it.
KINDS = {
    "arm, serial, ": "robot arm, in order",
    "arm, shuffled, ": "robot arm, shuffled",
    "texture, ": "textures",
    "oscillators, ": "oscillators",
    "advection-diffusion, ": "advection",
}
# Rows of the tables, with the names of the fits in discrete and in continuous time.
METHODS = {
    "least squares": ("least squares",),
    "rescaling, shifting": ("rescaling", "shifting"),
    "clipping": ("clipping",),
    "constraint generation": ("constraint generation",),
    "SOC": ("SOC",),
    "alpha_stable, trained": ("alpha_stable, trained",),
    "`fit_stable`": (OURS,),
    "`fit_stable`, closed form": ("fit_stable, max_iter=0",),
    "`fit_stable`, smaller bound": ("fit_stable, radius=0.999", "fit_stable, abscissa=-0.001"),
}
SEARCHING = ("constraint generation", "SOC", "alpha_stable, trained")


def fitted() -> dict[str, Result]:
    """Return the problems that all methods fitted."""
    return {name: result for name, result in load("dynamics").items() if "fits" in result}


def of_kind(kind: str) -> dict[str, Result]:
    """Return the problems of a kind.

    Args:
        kind: One of :data:`KINDS`.
    """
    return {name: result for name, result in fitted().items() if name.startswith(kind)}


def is_continuous(result: Result) -> bool:
    """Return whether a problem is one of continuous time.

    Args:
        result: Its result.
    """
    return "shifting" in result["fits"]


def fit_of(method: str, result: Result) -> Result | None:
    """Return what a method made of a problem, None if it is not for that kind of time.

    Args:
        method: One of :data:`METHODS`.
        result: The result of the problem.
    """
    return next((result["fits"][name] for name in METHODS[method] if name in result["fits"]), None)


def excess(row: Result, result: Result) -> float:
    """Return the excess error in millionths, infinity where the fit is unstable.

    Args:
        row: What a fit is worth.
        result: The result of its problem.
    """
    bound = 0.0 if is_continuous(result) else 1.0
    return math.inf if row["reached"] > bound + UNSTABLE else 1e6 * (row["ratio"] - 1)


def ranking(time: str) -> Table:
    """Return for each method how many fits are stable and have the smallest error, the excess, the seconds.

    Args:
        time: ``"discrete"`` or ``"continuous"``.
    """
    found = [result for result in fitted().values() if is_continuous(result) == (time == "continuous")]
    rows = []
    for method in METHODS:
        pairs = [(fit, result) for result in found if (fit := fit_of(method, result))]
        if not pairs or method.startswith(f"`{OURS}`,"):
            continue
        errors = [excess(fit, result) for fit, result in pairs]
        smallest = sum(error == _least(result) for error, result in zip(errors, found, strict=True))
        seconds = [fit["cpu_seconds"] for fit, _ in pairs]
        rows.append(
            [
                method,
                str(sum(map(math.isfinite, errors))),
                str(smallest) if method != "least squares" else "",
                short(statistics.median(errors)),
                f"{statistics.median(seconds):.2g}, {max(seconds):.2g}",
            ]
        )
    return [f"{len(found)} problems", "stable", "smallest error", "excess", "seconds"], rows


def _least(result: Result) -> float:
    """Return the smallest excess of the rivals and of ours without options; NaN if none is stable."""
    rivals = (row for name, row in result["fits"].items() if name == OURS or not name.startswith(OURS))
    return min((e for e in (excess(row, result) for row in rivals) if math.isfinite(e)), default=math.nan)


def excesses() -> Table:
    """Return the median of the excess error of each method, for each kind of problem."""
    return _by_kind(excess)


def growths() -> Table:
    """Return the median of the growth of stable fits."""
    return _by_kind(lambda row, _: row["growth"])


def megabytes() -> Table:
    """Return the largest memory allocated at a time, in MiB."""
    return _by_kind(lambda row, _: row["bytes"] / 2**20, max)


def _by_kind(
    value: Callable[[Result, Result], float | None],
    of: Callable[[Iterable[float]], float] = statistics.median,
) -> Table:
    rows = []
    for method in METHODS:
        cells = []
        for kind in KINDS:
            pairs = [(fit_of(method, result), result) for result in of_kind(kind).values()]
            numbers = [value(row, result) for row, result in pairs if row is not None]
            known = [number for number in numbers if number is not None]
            cells.append(short(of(known)) if known else "")
        if any(cells):
            rows.append([method, *cells])
    return ["", *(f"{words} ({len(of_kind(kind))})" for kind, words in KINDS.items())], rows


def smaller_bound() -> Table:
    """Return in how many problems a smaller bound raised the growth."""
    ours, smaller = "`fit_stable`", "`fit_stable`, smaller bound"
    pairs = [(fit_of(ours, result), fit_of(smaller, result)) for result in fitted().values()]
    growths = [(a["growth"], b["growth"]) for a, b in pairs if a and b and a["growth"] and b["growth"]]
    raised = sum(after > before for before, after in growths)
    return ["problems", "growth raised by the smaller bound"], [[str(len(growths)), str(raised)]]


def searches() -> Table:
    """Return how many searches of each rival the limit of time cut short."""
    rows = []
    for name in SEARCHING:
        found = [result["fits"][name] for result in fitted().values() if name in result["fits"]]
        cut = sum(not row["finished"] for row in found)
        seconds = max(r["seconds_allowed"] for r in fitted().values() if name in r["fits"])
        rows.append([name, str(len(found)), str(cut), f"{seconds:g}"])
    return ["", "searches", "cut short", "CPU seconds allowed"], rows


def random_problems() -> Table:
    """Return how the fits of random problems kept their promises."""
    rows = []
    for time in ("discrete", "continuous"):
        found = load("dynamics")[f"random problems, {time} time"]
        counts = (f"{found[key]:,}" for key in ("problems", "bound_broken", "lost"))
        rows.append([f"{time} time", *counts, f"{found['slowest_cpu_seconds']:.2g}"])
    return ["", "problems", "bound broken", "larger error", "CPU seconds of the slowest"], rows


def rivals() -> Table:
    """Return the excess of our implementations of the rivals over that of their authors."""
    authors = load("dynamics")["the authors' results of the arm"]
    rows = []
    for name in ("SOC", "constraint generation"):
        pairs = []
        for order, stored in authors["excess"].items():
            for samples, theirs in zip(authors["samples"], stored[name], strict=True):
                result = fitted()[f"arm, {order}, N = {samples}"]
                pairs.append((math.inf if theirs is None else theirs, excess(result["fits"][name], result)))
        found = [ours / theirs for theirs, ours in pairs if math.isfinite(theirs) and math.isfinite(ours)]
        unstable = [str(sum(map(math.isinf, side))) for side in zip(*pairs, strict=True)]
        spread = f"{short(min(found))} to {short(max(found))}"
        rows.append([name, str(len(pairs)), short(statistics.median(found)), spread, *unstable])
    return ["", "problems", "median", "range", "unstable in theirs", "unstable in ours"], rows
