"""Hidden states beside the true system and other packages, their order, and the coverage of bands.

The other packages, nfoursid, sippy_unipi and statsmodels, have an environment of their own, whose interpreter
``$SPECTRAL_PARAM_RIVALS`` names. Without it the true system alone is compared with.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from benchmarks import rivals
from benchmarks.problems import forecasts
from benchmarks.problems.states import LEAD, Matrices, System, forecast_error, height, system
from benchmarks.table import Result, Table, load, marked, named
from benchmarks.task import Task
from spectral_param.dynamics import StableLinearModel

DEPENDS = (
    "spectral_param/dynamics",
    "benchmarks/measures/states.py",
    "benchmarks/problems/forecasts.py",
    "benchmarks/problems/states.py",
    "benchmarks/rivals/states.py",
)
VARIES = "^times"  # Seconds.

Array = NDArray[Any]  # float64

SYSTEMS = 40
NEW, DRAWN = 1000, 60  # Seeds of systems that were drawn once, and their number.
START = 100  # rows from which a band begins
COVERAGES = (0.5, 0.8, 0.95)
LEADS = (1, 5, 20, 50)
FAMILIES = ("oscillators", "string", "chain", "waves", "driven", "public")


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each system, each order, each problem with measured states, and the times.

    Args:
        quick: Whether to take one of each.
    """
    runs: dict[str, Callable[[], Result]] = {"times": times}
    for seed in range(1 if quick else SYSTEMS):
        runs[f"system {seed}"] = partial(compare, seed, os.environ.get("SPECTRAL_PARAM_RIVALS"))
        runs[f"order {seed}"] = partial(order_at_noise, seed)
    for seed in range(NEW, NEW + (1 if quick else DRAWN)):
        runs[f"new order {seed}"] = partial(order_at_noise, seed, None)
    makers = {n: make for n, make in forecasts.problems().items() if n.startswith(FAMILIES)}
    for name, make in list(makers.items())[: 1 if quick else None]:
        runs[f"coverage, {name}"] = partial(coverage_of, make)
    for name, run in runs.items():
        packages = ("statsmodels",) if name.startswith("coverage, public") else ()
        yield Task(name, partial(_quietly, run), packages=packages)


def _quietly(run: Callable[[], Result]) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run()


def compare(seed: int, python: str | None) -> dict[str, Any]:
    """Return the errors of the true system, of our fits and of the rivals, and the coverage of our bands.

    Args:
        seed: Of the system.
        python: Interpreter of the environment of the rivals.
    """
    of = system(seed)
    n = len(of.true[0])
    Y, U = of.Y[: of.rows], None if of.inputs is None else of.U[: of.rows]
    fits: dict[str, Any] = {}
    order = None
    for name, states in (("states=n", n), ("states='auto'", "auto")):
        began = time.process_time()
        model = StableLinearModel(states=states, lead=LEAD if states == "auto" else None).fit(Y, U=U)
        spent = time.process_time() - began
        fits[name] = {
            "error": forecast_error(_matrices(model), of),
            "cpu_seconds": spent,
            "radius": height(model.A_),
            "predictor": height(model.A_ - model.K_ @ model.C_),
        }
        order = model.states_
    packages: dict[str, str] = {}
    if python is not None:
        others, packages = _rivals(python, Y, of.U[: of.rows], n, of)
        fits |= others
    return {
        "environment": {"rivals": packages},
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
        script = Path(rivals.__file__).with_name("states.py")
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


def coverage_of(make: Callable[[], forecasts.Problem]) -> Result:
    """Return the coverage of a problem with measured states.

    Args:
        make: Makes the problem.
    """
    problem = make()
    rank = len(problem.units()) if problem.common else None
    model = StableLinearModel(noise="auto", lead=problem.lead, rank=rank)
    model.fit(problem.recordings, U=problem.inputs)
    after = problem.following if problem.measured is None else problem.measured
    windows = [(rows, of, U) for (rows, U), of in zip(forecasts.begun(problem), after, strict=True)]
    return {"coverage": _covered(model, windows, problem.lead)}


def order_at_noise(seed: int, noise: float | None = 0.01) -> dict[str, Any]:
    """Return the order that BIC chooses, the true one, and the ratio of the errors of their forecasts.

    Args:
        seed: Of the system.
        noise: Of states and outputs; None draws it.
    """
    of = system(seed, noise=noise)
    began = time.process_time()
    U = None if of.inputs is None else of.U[: of.rows]
    model = StableLinearModel(states="auto").fit(of.Y[: of.rows], U=U)
    seconds = time.process_time() - began
    known = StableLinearModel(states=len(of.true[0])).fit(of.Y[: of.rows], U=U)
    return {
        "states": len(of.true[0]),
        "inputs": of.U.shape[1],
        "order": model.states_,
        "ratio": forecast_error(_matrices(model), of) / forecast_error(_matrices(known), of),
        "cpu_seconds": seconds,
    }


def _matrices(model: StableLinearModel) -> Matrices:
    """Return A, B, C, D and K of a fit."""
    n, p = len(model.A_), len(model.C_)
    B = np.zeros((n, 0)) if model.B_ is None else model.B_
    D = np.zeros((p, 0)) if model.D_ is None else model.D_
    return model.A_, B, model.C_, D, model.K_


def times() -> dict[str, Any]:
    """Return the seconds of fits of 2,000 rows of 8 states, 3 outputs and 2 inputs."""
    seed = next(s for s in range(1000) if [M.shape for M in system(s).true[1:3]] == [(8, 2), (3, 8)])
    of = system(seed)
    Y, U = of.Y[:2000], of.U[:2000]
    found: dict[str, Any] = {"rows": len(Y)}
    for name, states in (("states=8", 8), ("states='auto'", "auto")):
        spent = []
        for _ in range(3 if states == 8 else 1):
            began = time.process_time()
            StableLinearModel(states=states).fit(Y, U=U)
            spent.append(time.process_time() - began)
        found[name] = float(np.median(spent))
    return found


# Tables -----------------------------------------------------------------------------------------------

OURS, CHOSEN = "states=n", "states='auto'"
BAND = 0.99  # binomial, for each lead
OVERLAP = 5  # windows of the families of measured states overlap: so many count as one
KINDS = ("conformal", "gaussian")


def compared() -> Table:
    """Return the error of each method over that of the true system, how often it was stable, and its time."""
    fits: dict[str, list[tuple[Result, float]]] = {}
    for result in named("states", "system").values():
        for name, fit in result["fits"].items():
            if "failed" not in fit:
                fits.setdefault(name, []).append((fit, result["true"]))
    rows = []
    for name, of in fits.items():
        ratios = [fit["error"] / true for fit, true in of]
        largest = f"{max(ratios):.2f}" if max(ratios) < 100 else "above 100"
        stable = sum(fit["radius"] <= 1 + 1e-9 for fit, _ in of)
        seconds = f"{statistics.median(fit['cpu_seconds'] for fit, _ in of):.2g}"
        label = f"`{name}`" if name in (OURS, CHOSEN) else name
        rows.append([label, f"{statistics.median(ratios):.3f}", largest, str(len(of)), str(stable), seconds])
    systems = marked("", named("states", "system").values())
    return [systems, "median", "largest", "fitted", "stable A", "seconds, median"], rows


def summary() -> Table:
    """Return how often ours was near the best and the best of the others, and how often all was stable."""
    ratios, steady = [], []
    for result in named("states", "system").values():
        fits = {name: fit for name, fit in result["fits"].items() if "failed" not in fit}
        own = [fits.pop(name) for name in (OURS, CHOSEN)]
        steady += [fit["radius"] <= 1 + 1e-12 and fit["predictor"] < 1 for fit in own]
        if fits:
            ratios.append(own[0]["error"] / min(fit["error"] for fit in fits.values()))
    rows = {
        "systems in which `states=n` was within 5 % of the best of the others": [r <= 1.05 for r in ratios],
        "systems in which it was the best": [ratio <= 1 for ratio in ratios],
        "fits in which $A$ and $A - KC$ were stable": steady,
    }
    header = ["", marked("", named("states", "system").values()), "of"]
    return header, [[name, str(sum(is_so)), str(len(is_so))] for name, is_so in rows.items()]


def orders() -> Table:
    """Return how often BIC found the true number of states, and how forecasts compare with it."""
    rows = []
    for label, name in (("1 % noise", "order"), ("new systems, 0.1 to 10 % noise", "new order")):
        found = named("states", name).values()
        for inputs in (True, False):
            of = [r for r in found if bool(r["inputs"]) == inputs]
            off = [abs(r["order"] - r["states"]) for r in of]
            ratios = [r["ratio"] for r in of if "ratio" in r]
            rows.append(
                [
                    marked(f"{label}, {'with' if inputs else 'without'} inputs", of),
                    str(len(off)),
                    str(off.count(0)),
                    str(sum(d <= 2 for d in off)),
                    f"{sum(ratio <= 1.05 for ratio in ratios)}" if ratios else "",
                    f"{max(ratios):.3g}" if ratios else "",
                ]
            )
    header = ["", "systems", "exact", "within 2", "forecasts within 5 % of the true order's", "largest ratio"]
    return header, [row for row in rows if row[1] != "0"]


def seconds() -> Table:
    """Return the seconds of a fit with a given and with a chosen number of states."""
    times = load("states")["times"]
    return ["", marked("seconds", times)], [
        [f"`{name}`", f"{times[name]:.2g}"] for name in ("states=8", CHOSEN)
    ]


def covered() -> Table:
    """Return the share of values in the bands, and for how many systems it is outside the binomial band."""
    results = named("states", "system").values()
    found = [result["coverage"] for result in results]
    windows = sum(of["windows"] for of in found)
    leads = found[0]["leads"]
    rows = []
    for kind in KINDS:
        for share in map(str, COVERAGES):
            cells = []
            for i in range(len(leads)):
                each = [(of[f"{kind}, {share}"][i], of["windows"]) for of in found]
                pooled = sum(hit * number for hit, number in each) / windows
                outside = sum(_outside(hit, number, float(share)) != 0 for hit, number in each)
                cells.append(f"{pooled:.3f} ({outside})")
            rows.append([kind, share, *cells])
    return [marked(f"{windows:,} windows", results), "asked", *(f"lead {lead}" for lead in leads)], rows


def families() -> Table:
    """Return the share of values in the bands for measured states, and the problems far below it."""
    by_family: dict[str, list[tuple[str, Result]]] = {}
    for problem, result in named("states", "coverage").items():
        by_family.setdefault(problem.split(",")[0], []).append((problem, result["coverage"]))
    leads = max((of["leads"] for pairs in by_family.values() for _, of in pairs), key=len)
    rows = []
    for kind in KINDS:
        share = f"{kind}, 0.8"
        for family, pairs in by_family.items():
            cells = []
            for lead in leads:
                known = [of[share][of["leads"].index(lead)] for _, of in pairs if lead in of["leads"]]
                cells.append(f"{statistics.mean(known):.2f}" if known else "")
            low = [
                problem
                for problem, of in pairs
                if min(_outside(hit, max(1, of["windows"] // OVERLAP), 0.8) for hit in of[share]) < 0
            ]
            rows.append([f"{family}, {kind}", str(len(pairs)), *cells, "; ".join(low)])
    problems = marked("problems", named("states", "coverage").values())
    return ["asked: 0.8", problems, *(f"lead {lead}" for lead in leads), "below the binomial band"], rows


def _outside(share: float, windows: int, coverage: float) -> int:
    """Return −1 or 1 where the share is below or above the binomial band, 0 inside."""
    low, high = scipy.stats.binom.interval(BAND, windows, coverage)
    return -1 if share * windows < low else 1 if share * windows > high else 0
