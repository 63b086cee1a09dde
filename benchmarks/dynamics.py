"""Stable fits beside least squares, rescaling and clipping: errors, bounds and seconds, and random problems.

Run ``python -m benchmarks.dynamics [--data FOLDER] [--output FILE]``. The robot arm needs the data of
https://github.com/giorgosmamakoukas/MemoryEfficientStableLDS as ``FOLDER/franka/Franka_TrainingData.mat``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from benchmarks.dynamics_problems import error, height, least_squares, random_problem, simple_fits, texture
from benchmarks.run import environment
from benchmarks.table import RESULTS
from spectral_param.dynamics import fit_stable

ARM = Path("franka", "Franka_TrainingData.mat")
SAMPLES = (50, 75, 100, 150, 200, 300, 400, 500, 1000, 1500, 2000)
TEXTURES = [(20, 60, s) for s in range(5)] + [(60, 80, 0), (60, 80, 1), (150, 225, 0), (300, 450, 0)]


def problems(data: Path | None, quick: bool) -> Iterator[tuple[str, tuple[Any, Any, Any]]]:
    """Yield name and X, Y, U of each.

    Args:
        data: Folder with the recordings of the arm, or None.
        quick: Whether to leave out all that is large.
    """
    if data is not None:
        content = scipy.io.loadmat(data / ARM)
        states = [0, 1, 2, *range(6, 20)]
        X, Y, U = content["X"][:, states], content["Y"][:, states], content["U"]
        for samples in SAMPLES[: 2 if quick else None]:
            yield f"arm, serial, N = {samples}", (X[:samples], Y[:samples], U[:samples])
        for samples in SAMPLES[: 2 if quick else None]:
            # MATLAB's rng(2020) and floor(rand(1, N) * 3192).
            rows = np.floor(np.random.RandomState(2020).random_sample(samples) * len(X)).astype(int)
            yield f"arm, shuffled, N = {samples}", (X[rows], Y[rows], U[rows])
    for n, frames, seed in TEXTURES[: 1 if quick else None]:
        yield f"texture, n = {n}, {frames} frames, seed {seed}", (*texture(n, frames, seed), None)


def compare(X: Any, Y: Any, U: Any) -> dict[str, Any]:
    """Return errors over that of least squares, radii, and what the stable fit costs.

    Args:
        X: States.
        Y: What follows them.
        U: Inputs, or None.
    """
    A = least_squares(X, Y, U)
    least = error(A, X, Y, U)
    began = time.process_time()
    fit = fit_stable(X, Y, U)
    seconds = time.process_time() - began
    tracemalloc.start()
    fit_stable(X, Y, U)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    named = zip(("rescaling", "clipping"), simple_fits(A, 1.0), strict=False)
    return {
        "least_squares_error": least,
        "least_squares_radius": height(A),
        "ratio": {"fit_stable": fit.error / least} | {name: error(S, X, Y, U) / least for name, S in named},
        "closed_form_ratio": fit_stable(X, Y, U, steps=0).error / least,
        "radius_minus_one": fit.reached - 1,
        "cpu_seconds": seconds,
        "bytes": memory,
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
    return {"problems": count, "bound_broken": broken, "lost": lost, "slowest_cpu_seconds": slowest}


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dynamics", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("SPECTRAL_PARAM_DATA"), help="data folder"
    )
    parser.add_argument("--quick", action="store_true", help="little of each, to test the machinery")
    parser.add_argument("--output", type=Path, default=RESULTS / "dynamics.json", help="where the numbers go")
    arguments = parser.parse_args()
    data = None if arguments.data is None else Path(arguments.data)
    results: dict[str, Any] = {"environment": environment()}
    for name, problem in problems(data, arguments.quick):
        results[name] = compare(*problem)
        ratios = ", ".join(f"{key} {value:.7f}" for key, value in results[name]["ratio"].items())
        print(f"{name}: {ratios}, {results[name]['cpu_seconds']:.3f} s", flush=True)
    for continuous in (False, True):
        name = f"random problems, {'continuous' if continuous else 'discrete'} time"
        results[name] = random_problems(10 if arguments.quick else 1000, continuous)
        print(f"{name}: {results[name]}", flush=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
