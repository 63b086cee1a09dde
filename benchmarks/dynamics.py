"""Stable fits of one step beside their rivals: errors, bounds, seconds and memory; and random problems.

Forecasts are compared by ``python -m benchmarks.dynamics_forecasts``.

Run ``python -m benchmarks.dynamics [--only TEXT] [--output FILE]``. The robot arm needs the recordings that
``python -m examples.papers download franka`` gets.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import dynamics_problems as make
from benchmarks.dynamics_problems import error, height, least_squares, random_problem, simple_fits
from benchmarks.dynamics_rivals import Found, constraint_generation, soc, trained_alpha_stable
from benchmarks.run import check_tree, environment, present, write
from benchmarks.table import RESULTS
from examples.papers.data import DataError
from examples.papers.tasks.dynamics import load_arm
from spectral_param.dynamics import fit_stable
from spectral_param.dynamics._growth import growth_of_exponential, growth_of_powers
from spectral_param.dynamics._one_step.fit import reduce

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


def problems(only: str, quick: bool) -> Iterator[tuple[str, Problem]]:
    """Yield name and problem.

    Args:
        only: A part of the names asked for.
        quick: Whether to leave out all that is large.
    """
    makers: dict[str, Callable[[], Problem]] = {}
    try:
        recordings = load_arm()
    except DataError as error:
        print(f"Without the robot arm: {error}.", file=sys.stderr)
    else:
        for order in ("serial", "shuffled"):
            for N in SAMPLES:
                makers[f"arm, {order}, N = {N}"] = lambda order=order, N=N: _arm(recordings, order, N)
    for n, frames, seed in TEXTURES:
        name = f"texture, n = {n}, {frames} frames, seed {seed}"
        makers[name] = lambda n=n, frames=frames, seed=seed: _texture(n, frames, seed)
    for kind, F, n, N in CONTINUOUS:
        makers[f"{kind}, n = {n}, N = {N}"] = lambda F=F, n=n, N=N: _continuous(F(n), N)
    kept: set[str] = set()
    for name, maker in makers.items():
        kind = name.partition(" ")[0]
        if only in name and not (quick and kind in kept):
            kept.add(kind)
            yield name, maker()


def _arm(recordings: tuple[Array, Array, Array], order: str, samples: int) -> Problem:
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
        "environment": environment(),
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
        "environment": environment(),
        "problems": count,
        "bound_broken": broken,
        "lost": lost,
        "slowest_cpu_seconds": slowest,
    }


def main() -> None:
    """Run what is asked for and write the results beside those that are there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dynamics", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="little of each, to test the machinery")
    parser.add_argument(
        "--only", default="", help="problems with this in their name; others keep their numbers"
    )
    parser.add_argument("--new", action="store_true", help="only problems that have no numbers yet")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="CPU seconds for each rival that searches"
    )
    parser.add_argument("--output", type=Path, default=RESULTS / "dynamics.json", help="where the numbers go")
    arguments = parser.parse_args()
    check_tree(arguments.output)

    done = set(present(arguments.output)) if arguments.new else set()
    fit_stable(*random_problem(np.random.default_rng(0)), radius=0.1)  # so that the first is timed warm
    for name, problem in problems(arguments.only, arguments.quick):
        if name in done:
            continue
        result = compare(problem, arguments.seconds)
        write(arguments.output, name, result)
        ratios = ", ".join(f"{key} {fit['ratio']:.7f}" for key, fit in result["fits"].items())
        seconds = result["fits"]["fit_stable"]["cpu_seconds"]
        print(f"{name}: {ratios}, {seconds:.3f} s", flush=True)
    write(
        arguments.output,
        "the authors' results of the arm",
        {"samples": make.STORED_SAMPLES, "excess": make.STORED},
    )
    for continuous in (False, True):
        name = f"random problems, {'continuous' if continuous else 'discrete'} time"
        if arguments.only in name and name not in done:
            result = random_problems(3 if arguments.quick else 1000, continuous)
            write(arguments.output, name, result)
            print(f"{name}: {result}", flush=True)


if __name__ == "__main__":
    main()
