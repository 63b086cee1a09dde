"""Hidden states beside the true system and other packages, their order, and the coverage of bands.

Run ``python -m benchmarks.states [--only TEXT] [--new] [--rivals PYTHON] [--output FILE]``; ``--new``
resumes. PYTHON is the interpreter of an environment with ``nfoursid``, ``sippy_unipi`` and ``statsmodels``;
without it the true system alone is compared with.

The error of a forecast: the root of the mean square over windows and outputs, in standard deviations of the
outputs, then the mean over the leads. Windows begin after the rows of the fit; the filter of each model has
seen all rows before, from the first state that fits the rows of the fit best.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from benchmarks.dynamics_families import problems
from benchmarks.run import check_tree, environment, present, write
from benchmarks.table import RESULTS
from spectral_param.dynamics import StableLinearModel

Array = NDArray[Any]  # float64
Matrices = tuple[Array, Array, Array, Array, Array]  # A, B, C, D, K

SYSTEMS = 40
LEAD = 50
BEFORE = 200  # rows that the system runs before it is recorded
AFTER = 2500  # rows to forecast
START = 100  # rows from which a band begins
COVERAGES = (0.5, 0.8, 0.95)
LEADS = (1, 5, 20, 50)
FAMILIES = ("oscillators", "string", "chain", "waves", "driven", "public")


@dataclasses.dataclass(frozen=True)
class System:
    """A recording, what follows, and the system that made both.

    Attributes:
        Y: Outputs.
        U: Inputs, without columns if there are none.
        rows: Of the fit; the rest is forecast.
        noise: Standard deviation of the noise relative to the signal.
        true: The system in innovation form, with the gain of its Kalman filter.
    """

    Y: Array
    U: Array
    rows: int
    noise: float
    true: Matrices

    @property
    def inputs(self) -> Array | None:
        """Inputs as a fit takes them."""
        return self.U if self.U.shape[1] else None


def system(seed: int, noise: float | None = None) -> System:
    """Return a random system of 2 to 8 states, 1 to 3 outputs, 0 to 2 inputs, and 300 to 2,000 rows.

    Its eigenvalues have moduli from 0.6 to 0.99, most of them in pairs. White inputs drive it, and noise of
    the states and of the outputs of 0.1 to 10 % of the signal. Without inputs, noise of the states alone
    drives it.

    Args:
        seed: Of all that is random.
        noise: Of states and outputs. None draws it.
    """
    rng = np.random.default_rng(seed)
    n, p, m = int(rng.integers(2, 9)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    rows, drawn = int(rng.integers(300, 2001)), float(10 ** rng.uniform(-3, -1))
    noise = drawn if noise is None else noise
    A, i = np.zeros((n, n)), 0
    while i < n:
        modulus = rng.uniform(0.6, 0.99)
        if i + 1 < n and rng.random() < 0.7:
            c, s = np.cos(angle := rng.uniform(0.05, 2.5)), np.sin(angle)
            A[i : i + 2, i : i + 2] = modulus * np.array([[c, -s], [s, c]])
            i += 2
        else:
            A[i, i] = modulus * rng.choice([-1, 1], p=[0.2, 0.8])
            i += 1
    T = np.linalg.qr(rng.standard_normal((n, n)))[0] * rng.uniform(0.5, 2, n)
    A = T @ A @ np.linalg.inv(T)
    B, C, G = (rng.standard_normal(shape) for shape in ((n, m), (p, n), (n, n)))
    count = BEFORE + rows + AFTER
    U, w = rng.standard_normal((count, m)), rng.standard_normal((count, n)) @ G.T
    forced, driven = _states(A, U @ B.T), _states(A, w)
    scale = noise * forced.std() / driven.std() if m else 1.0
    Y = (forced + scale * driven) @ C.T
    deviation = noise * Y.std(axis=0)
    Y = Y + deviation * rng.standard_normal(Y.shape)
    Q, R = scale**2 * G @ G.T, np.diag(deviation**2)
    P = scipy.linalg.solve_discrete_are(A.T, C.T, Q, R)
    K = np.linalg.solve(C @ P @ C.T + R, C @ P @ A.T).T
    return System(Y[BEFORE:], U[BEFORE:], rows, noise, (A, B, C, np.zeros((p, m)), K))


def _states(A: Array, driven: Array) -> Array:
    """Return the states of a system at rest that is driven by these rows."""
    X, x = np.empty_like(driven), np.zeros(len(A))
    for k, row in enumerate(driven):
        X[k] = x
        x = A @ x + row
    return X


def _first(predictor: Array, C: Array, errors: Array, rows: int) -> Array:
    """Return what the first state adds to those of a filter that began at 0: the state that fits best."""
    powers = np.empty((rows, *predictor.shape))
    powers[0] = np.eye(len(predictor))
    for k in range(1, rows):
        powers[k] = predictor @ powers[k - 1]
    seen = (C @ powers[: len(errors)]).reshape(-1, len(predictor))
    if not (np.isfinite(seen).all() and np.isfinite(errors).all()):
        return np.zeros((rows, len(predictor)))
    found: Array = powers @ np.linalg.lstsq(seen, errors.ravel(), rcond=None)[0]
    return found


def forecast_error(matrices: Matrices, of: System) -> float:
    """Return the error of the forecasts of a model in innovation form, infinity if they overflow.

    Args:
        matrices: A, B, C, D and K.
        of: The system.
    """
    A, B, C, D, K = matrices
    Y, U, rows = of.Y, of.U, of.rows
    with np.errstate(all="ignore"):
        X = _states(A - K @ C, U @ (B - K @ D).T + Y @ K.T)
        X = X + _first(A - K @ C, C, Y[:rows] - X[:rows] @ C.T - U[:rows] @ D.T, len(Y))
        starts = np.arange(rows, len(Y) - LEAD, 5)
        x, errors = X[starts], []
        for k in range(LEAD):
            u, y = U[starts + k], Y[starts + k]
            errors.append(np.square((x @ C.T + u @ D.T - y) / Y.std(axis=0)).mean())
            x = x @ A.T + u @ B.T
        error = float(np.sqrt(errors).mean())
    return error if np.isfinite(error) else float("inf")


def height(A: Array) -> float:
    """Return the largest modulus of an eigenvalue.

    Args:
        A: The matrix.
    """
    return float(np.abs(np.linalg.eigvals(A)).max())


def compare(seed: int, rivals: str | None) -> dict[str, Any]:
    """Return the errors of the true system, of our fits and of the rivals, and the coverage of our bands.

    Args:
        seed: Of the system.
        rivals: Interpreter of the environment of the rivals.
    """
    of = system(seed)
    n = len(of.true[0])
    Y, U = of.Y[: of.rows], None if of.inputs is None else of.U[: of.rows]
    fits: dict[str, Any] = {}
    order = None
    for name, states in (("states=n", n), ("states='cv'", "cv")):
        began = time.process_time()
        model = StableLinearModel(states=states, lead=LEAD if states == "cv" else None).fit(Y, U=U)
        spent = time.process_time() - began
        D = np.zeros((Y.shape[1], 0)) if model.D_ is None else model.D_
        B = np.zeros((len(model.A_), 0)) if model.B_ is None else model.B_
        fits[name] = {
            "error": forecast_error((model.A_, B, model.C_, D, model.K_), of),
            "cpu_seconds": spent,
            "radius": height(model.A_),
            "predictor": height(model.A_ - model.K_ @ model.C_),
        }
        order = model.states_
    packages: dict[str, str] = {}
    if rivals is not None:
        others, packages = _rivals(rivals, Y, of.U[: of.rows], n, of)
        fits |= others
    return {
        "environment": environment() | {"rivals": packages},
        "states": n,
        "outputs": Y.shape[1],
        "inputs": of.U.shape[1],
        "rows": of.rows,
        "noise": of.noise,
        "true": forecast_error(of.true, of),
        "fits": fits,
        "order": order,
        "coverage": coverage(model, of),
    }


def _rivals(python: str, Y: Array, U: Array, n: int, of: System) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the errors of the rivals' models, and the versions of their packages."""
    unit, unit_u = Y.std(axis=0), U.std(axis=0)
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder, "given.npz"), Path(folder, "taken.npz")
        np.savez(given, Y=Y / unit, U=U / unit_u, n=n)
        script = Path(__file__).with_name("states_rivals.py")
        subprocess.run([python, str(script), str(given), str(taken)], check=True, capture_output=True)
        found = np.load(taken)
        facts = json.loads(str(found["facts"]))
        for name, fit in facts["fits"].items():
            if "failed" not in fit:
                A, B, C, D, K = (found[f"{name}/{letter}"] for letter in "ABCDK")
                matrices = (A, B / unit_u, unit[:, None] * C, unit[:, None] * D / unit_u, K / unit)
                fit["error"] = forecast_error(matrices, of)
                fit["radius"] = height(A)
    return facts["fits"], facts["packages"]


def coverage(model: StableLinearModel, of: System) -> dict[str, Any]:
    """Return how many of the outputs lie in the bands, for each kind, coverage and lead, and of how many.

    The windows that are forecast do not overlap.

    Args:
        model: A fit with a lead.
        of: The system.
    """
    begins = range(of.rows, len(of.Y) - LEAD, LEAD)
    windows = [
        (of.Y[at - START : at], of.Y[at : at + LEAD], of.U[at - START : at + LEAD] if of.U.shape[1] else None)
        for at in begins
    ]
    return _covered(model, windows, LEAD)


def _covered(
    model: StableLinearModel, windows: list[tuple[Array, Array, Array | None]], lead: int
) -> dict[str, Any]:
    leads = [k for k in LEADS if k <= lead]
    found: dict[str, Any] = {"windows": len(windows), "leads": leads}
    for kind in ("conformal", "gaussian"):
        for share in COVERAGES:
            hits = np.zeros(lead)
            for start, after, U in windows:
                band = model.simulate(start, lead, U, coverage=share, interval=kind)
                hits += ((band.lower <= after) & (after <= band.upper)).mean(axis=1)
            found[f"{kind}, {share:g}"] = [float(hits[k - 1] / len(windows)) for k in leads]
    return found


def families() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the name of each problem of measured states, and a function that returns its coverage."""
    for name, make in problems(""):
        if not name.startswith(FAMILIES):
            continue

        def run(make: Callable[[], Any] = make) -> dict[str, Any]:
            problem = make()
            driven = [None] * len(problem.starts) if problem.inputs is None else list(problem.driven)
            rank = len(problem.units()) if problem.common else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = StableLinearModel(horizon="cv", lead=problem.lead, rank=rank)
                model.fit(problem.recordings, U=problem.inputs)
            after = problem.following if problem.measured is None else problem.measured
            windows = list(zip(problem.starts, after, driven, strict=True))
            return {"environment": environment(), "coverage": _covered(model, windows, problem.lead)}

        yield name, run


def order_at_noise(seed: int) -> dict[str, Any]:
    """Return the order that "cv" chooses at 1 % noise, and the true one.

    Args:
        seed: Of the system.
    """
    of = system(seed, noise=0.01)
    began = time.process_time()
    U = None if of.inputs is None else of.U[: of.rows]
    model = StableLinearModel(states="cv").fit(of.Y[: of.rows], U=U)
    return {
        "environment": environment(),
        "states": len(of.true[0]),
        "inputs": of.U.shape[1],
        "order": model.states_,
        "cpu_seconds": time.process_time() - began,
    }


def times() -> dict[str, Any]:
    """Return the seconds of fits of 2,000 rows of 8 states, 3 outputs and 2 inputs."""
    seed = next(s for s in range(1000) if [M.shape for M in system(s).true[1:3]] == [(8, 2), (3, 8)])
    of = system(seed)
    Y, U = of.Y[:2000], of.U[:2000]
    found: dict[str, Any] = {"environment": environment(), "rows": len(Y)}
    for name, states in (("states=8", 8), ("states='cv'", "cv")):
        spent = []
        for _ in range(3 if states == 8 else 1):
            began = time.process_time()
            StableLinearModel(states=states).fit(Y, U=U)
            spent.append(time.process_time() - began)
        found[name] = float(np.median(spent))
    return found


def tasks(rivals: str | None) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the name of each result and a function that returns it.

    Args:
        rivals: Interpreter of the environment of the rivals, or None.
    """
    yield "times", times
    for seed in range(SYSTEMS):
        yield f"system {seed}", lambda seed=seed: compare(seed, rivals)
        yield f"order {seed}", lambda seed=seed: order_at_noise(seed)
    for name, run in families():
        yield f"coverage, {name}", run


def main() -> None:
    """Run what is asked for and write each result beside those that are there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.states", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="results with this in their name; others keep their numbers"
    )
    parser.add_argument("--new", action="store_true", help="only what has no numbers yet")
    parser.add_argument("--rivals", help="interpreter of an environment with the other packages")
    parser.add_argument("--output", type=Path, default=RESULTS / "states.json", help="where the numbers go")
    arguments = parser.parse_args()
    check_tree(arguments.output)
    done = set(present(arguments.output)) if arguments.new else set()
    for name, run in tasks(arguments.rivals):
        if arguments.only in name and name not in done:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                write(arguments.output, name, run())
            print(name, flush=True)


if __name__ == "__main__":
    sys.exit(main())
