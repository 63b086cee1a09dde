"""Stable fits of one step beside their rivals: errors, bounds, seconds and memory; and random problems.

The robot arm needs the recordings that ``python -m examples.papers download franka`` gets.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.problems import one_step as make
from benchmarks.problems.one_step import error, height, least_squares, random_problem, simple_fits
from benchmarks.rivals.dynamics import Found, constraint_generation, soc, trained_alpha_stable
from benchmarks.table import Result, Table, load, marked, short
from benchmarks.task import Task
from examples.papers.tasks.dynamics import load_arm
from spectral_param.dynamics import fit_stable
from spectral_param.dynamics._model.growth import growth_of_exponential, growth_of_powers
from spectral_param.dynamics._one_step.fit import reduce

DEPENDS = (
    "spectral_param/dynamics/_one_step",
    "spectral_param/dynamics/_model/growth.py",
    "spectral_param/dynamics/_data/arrays.py",
    "spectral_param/dynamics/_data/recordings.py",
    "benchmarks/measures/dynamics.py",
    "benchmarks/problems/one_step.py",
    "benchmarks/rivals/dynamics.py",
)
# What these find depends on the time that they have.
VARIES = "SOC|constraint generation|alpha_stable, trained|seconds_allowed"

Array = NDArray[Any]  # float64
Fit = Callable[[float], Found]  # of the CPU seconds allowed

SAMPLES = (50, 75, 100, 150, 200, 300, 400, 500, 1000, 1500, 2000)
TEXTURES = (
    *((n, frames, seed) for n, frames in ((20, 60), (30, 45), (60, 80)) for seed in range(5)),
    *((100, 150, seed) for seed in range(2)),
    *((150, 225, seed) for seed in range(3)),
    (200, 300, 0),
    (300, 450, 0),
)
CONTINUOUS = (
    *(("oscillators", make.oscillators, n, N) for n, N in ((20, 40), (40, 60), (40, 200), (100, 200))),
    *(("advection-diffusion", make.advection_diffusion, n, N) for n, N in ((32, 40), (32, 60), (100, 150))),
)
SECONDS = 10.0  # of a rival that searches
LARGE = 100  # states; above, growth takes too long to find


class Problem(NamedTuple):
    """What is fitted."""

    X: Array
    Y: Array
    U: Array | None
    continuous: bool  # whether Y holds derivatives


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem, and for random ones in discrete and in continuous time.

    Args:
        quick: Whether to take one problem of each kind, and few random ones.
    """
    makers: dict[str, Callable[[], Problem]] = {}
    for order in ("serial", "shuffled"):
        for N in SAMPLES:
            makers[f"arm, {order}, N = {N}"] = partial(_arm, order, N)
    for n, frames, seed in TEXTURES:
        makers[f"texture, n = {n}, {frames} frames, seed {seed}"] = partial(_texture, n, frames, seed)
    for kind, F, n, N in CONTINUOUS:
        makers[f"{kind}, n = {n}, N = {N}"] = lambda F=F, n=n, N=N: _continuous(F(n), N)
    kept: set[str] = set()
    for name, maker in makers.items():
        kind = name.partition(" ")[0]
        if not (quick and kind in kept):
            kept.add(kind)
            seconds = 0.1 if quick else SECONDS
            run = lambda maker=maker, seconds=seconds: compare(maker(), seconds)  # noqa: E731
            yield Task(name, run, packages=("geotorch",))
    for kind in ("discrete", "continuous"):
        run = partial(random_problems, 3 if quick else 1000, kind == "continuous")
        yield Task(f"random problems, {kind} time", run)


@functools.cache
def _warm() -> None:
    """Fit something, so that the first fit is timed warm."""
    fit_stable(*random_problem(np.random.default_rng(0)), radius=0.1)


def _arm(order: str, samples: int) -> Problem:
    recordings = load_arm()
    states = [0, 1, 2, *range(6, 20)]
    X, Y, U = recordings
    X, Y = X[:, states], Y[:, states]
    rows = np.arange(samples)
    if order == "shuffled":  # MATLAB's rng(2020) and floor(rand(1, N) * 3192)
        rows = np.floor(np.random.RandomState(2020).random_sample(samples) * len(X)).astype(int)
    return Problem(X[rows], Y[rows], U[rows], False)


def _texture(n: int, frames: int, seed: int) -> Problem:
    X, Y = make.texture(n, frames, seed)
    return Problem(X, Y, None, False)


def _continuous(F: Array, samples: int) -> Problem:
    X, Y = make.noisy_derivatives(F, samples, seed=0)
    return Problem(X, Y, None, True)


def compare(problem: Problem, seconds: float) -> dict[str, Any]:
    """Return what each fit is worth and what it costs.

    Args:
        problem: The problem.
        seconds: When rivals that search have to stop.
    """
    _warm()
    X, Y, U, continuous = problem
    A = least_squares(X, Y, U)
    least = error(A, X, Y, U)
    reduced = reduce(X, Y, np.zeros((len(X), 0)) if U is None else U).problem

    def stable(**options: Any) -> Fit:
        return lambda _: Found(fit_stable(X, Y, U, **options).A, True)

    fits: dict[str, Fit] = {"least squares": lambda _: Found(least_squares(X, Y, U), True)}
    fits["shifting" if continuous else "rescaling"] = lambda _: _simple(problem, 0)
    fits["clipping"] = lambda _: _simple(problem, 1)
    if continuous:
        fits["alpha_stable, trained"] = lambda seconds: trained_alpha_stable(reduced, seconds)
        fits["fit_stable"] = stable(time="continuous")
        fits["fit_stable, abscissa=-0.001"] = stable(time="continuous", abscissa=-0.001)
    else:
        fits["constraint generation"] = lambda seconds: constraint_generation(reduced, seconds)
        fits["SOC"] = lambda seconds: soc(reduced, least, seconds)
        fits["fit_stable, max_iter=0"] = stable(max_iter=0)
        fits["fit_stable"] = stable()
        fits["fit_stable, radius=0.999"] = stable(radius=0.999)
    return {
        "seconds_allowed": seconds,
        "fits": {name: _measured(fit, problem, least, seconds) for name, fit in fits.items()},
    }


def _simple(problem: Problem, which: int) -> Found:
    X, Y, U, continuous = problem
    return Found([*simple_fits(least_squares(X, Y, U), 0.0 if continuous else 1.0, continuous)][which], True)


def _measured(fit: Fit, problem: Problem, least: float, seconds: float) -> dict[str, Any]:
    began = time.process_time()
    A, finished = fit(seconds)
    spent = time.process_time() - began
    tracemalloc.start()
    fit(min(seconds, 1.0))
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    X, Y, U, continuous = problem
    reached = float(height(A, continuous))
    small_enough = reached <= (0.0 if continuous else 1.0) + 1e-9 and len(A) <= LARGE
    growth = growth_of_exponential if continuous else growth_of_powers
    return {
        "ratio": error(A, X, Y, U) / least,
        "reached": reached,
        "finished": bool(finished),
        "cpu_seconds": spent,
        "bytes": memory,
        "growth": growth(A) if small_enough else None,
    }


def random_problems(count: int, continuous: bool) -> dict[str, Any]:
    """Return how often a fit broke the bound, or lost to a simple fit that keeps it: never.

    Args:
        count: Number of problems.
        continuous: Whether the bound is an abscissa.
    """
    broken = lost = 0
    slowest = 0.0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        X, Y, U = random_problem(rng, continuous)
        bound = float(rng.choice([0.0, -0.5, 1.0] if continuous else [1.0, 0.9, 2.0]))
        began = time.process_time()
        if continuous:
            fit = fit_stable(X, Y, U, time="continuous", abscissa=bound)
        else:
            fit = fit_stable(X, Y, U, radius=bound)
        slowest = max(slowest, time.process_time() - began)
        broken += bool(height(fit.A, continuous) > bound + 1e-12)
        A = least_squares(X, Y, U)
        allowed = 1e-9 * error(A, X, Y, U) + 1e-13 * np.square(Y).sum()  # rounding
        lost += any(
            fit.error > error(S, X, Y, U) + allowed
            for S in simple_fits(A, bound, continuous)
            if height(S, continuous) <= bound + 1e-12
        )
    return {
        "problems": count,
        "bound_broken": broken,
        "lost": lost,
        "slowest_cpu_seconds": slowest,
    }


# Tables -----------------------------------------------------------------------------------------------

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
    return [marked(f"{len(found)} problems", found), "stable", "smallest error", "excess", "seconds"], rows


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
    kinds = {words: of_kind(kind).values() for kind, words in KINDS.items()}
    return ["", *(marked(f"{words} ({len(found)})", found) for words, found in kinds.items())], rows


def smaller_bound() -> Table:
    """Return in how many problems a smaller bound raised the growth."""
    ours, smaller = "`fit_stable`", "`fit_stable`, smaller bound"
    pairs = [(fit_of(ours, result), fit_of(smaller, result)) for result in fitted().values()]
    growths = [(a["growth"], b["growth"]) for a, b in pairs if a and b and a["growth"] and b["growth"]]
    raised = sum(after > before for before, after in growths)
    label = marked(str(len(growths)), fitted().values())
    return ["problems", "growth raised by the smaller bound"], [[label, str(raised)]]


def searches() -> Table:
    """Return how many searches of each rival the limit of time cut short."""
    rows = []
    for name in SEARCHING:
        found = [result["fits"][name] for result in fitted().values() if name in result["fits"]]
        cut = sum(not row["finished"] for row in found)
        seconds = max(r["seconds_allowed"] for r in fitted().values() if name in r["fits"])
        label = marked(name, (r for r in fitted().values() if name in r["fits"]))
        rows.append([label, str(len(found)), str(cut), f"{seconds:g}"])
    return ["", "searches", "cut short", "CPU seconds allowed"], rows


def kept_promises() -> Table:
    """Return how the fits of random problems kept their promises."""
    rows = []
    for kind in ("discrete", "continuous"):
        found = load("dynamics")[f"random problems, {kind} time"]
        counts = (f"{found[key]:,}" for key in ("problems", "bound_broken", "lost"))
        rows.append([marked(f"{kind} time", found), *counts, f"{found['slowest_cpu_seconds']:.2g}"])
    return ["", "problems", "bound broken", "larger error", "CPU seconds of the slowest"], rows


def rivals() -> Table:
    """Return the excess of our implementations of the rivals over that of their authors."""
    rows = []
    for name in ("SOC", "constraint generation"):
        pairs = []
        results = []
        for order, stored in make.STORED.items():
            for samples, theirs in zip(make.STORED_SAMPLES, stored[name], strict=True):
                result = fitted()[f"arm, {order}, N = {samples}"]
                results.append(result)
                pairs.append((math.inf if theirs is None else theirs, excess(result["fits"][name], result)))
        found = [ours / theirs for theirs, ours in pairs if math.isfinite(theirs) and math.isfinite(ours)]
        unstable = [str(sum(map(math.isinf, side))) for side in zip(*pairs, strict=True)]
        spread = f"{short(min(found))} to {short(max(found))}"
        label = marked(name, results)
        rows.append([label, str(len(pairs)), short(statistics.median(found)), spread, *unstable])
    return ["", "problems", "median", "range", "unstable in theirs", "unstable in ours"], rows
