"""Natural frequencies and damping ratios of simulated structures, and how well they are known."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from benchmarks.problems.structures import DT, Drive, Structure, structure
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from spectral_param.dynamics import StableLinearModel

DEPENDS = ("spectral_param/dynamics", "benchmarks/measures/modes.py", "benchmarks/problems/structures.py")

Array = NDArray[Any]

STRUCTURES = 20
DELAYS = 8


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each structure and way to fit: with a force, recorded or not, and without one.

    Args:
        quick: Whether to take one structure with the number of its modes alone.
    """
    ways = (
        {"given": 1} if quick else {"given": 1, "auto": 1, "delays": 5}
    )  # Those with delays take minutes each.
    for way, every in ways.items():
        for seed in range(0, 1 if quick else STRUCTURES, every):
            drives: tuple[Drive, ...] = ("unknown" if seed % 2 else "recorded", "none")
            for drive in drives:
                name = f"{way}, structure {seed}, {drive}"
                yield Task(name, partial(_of, seed, drive, way, 300 if quick else None))


def _of(seed: int, drive: Drive, way: str, rows: int | None = None) -> Result:
    """Return the relative errors of frequencies and dampings, in deviations where these are known."""
    of = structure(seed, drive, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = fitted(of, way)
        frequencies, damping = model.natural_frequencies_, model.damping_ratios_
    beside = covariance_driven(of, 2 * len(of.frequencies))
    at_modes = {"SSI-cov": nearest(of, *beside)}
    if (model.frequencies_ > 0).any():  # A baseline may be taken that has no modes.
        at_modes = {"ours": nearest(of, frequencies, damping, model.frequencies_), **at_modes}
    found: Result = {
        "drive": drive,
        "modes": len(of.frequencies),
        "rows": len(of.Y),
        "noise": of.noise,
    }
    found["order"] = len(model.A_)
    # White noise that drives a mode leaves its damping at least this relative deviation, whatever the method.
    found["bound"] = (1 / np.sqrt(2 * np.pi * of.frequencies * of.damping * len(of.Y) * DT)).tolist()
    for name, at in at_modes.items():
        f, z = (frequencies, damping) if name == "ours" else beside[:2]
        found[name] = {
            "frequency": (f[at] / of.frequencies - 1).tolist(),
            "damping": (z[at] / of.damping - 1).tolist(),
        }
    known = model.natural_frequency_errors_ is not None and model.damping_ratio_errors_ is not None
    if known and "ours" in at_modes:
        at = at_modes["ours"]
        found["inside"] = [
            (np.abs(of.frequencies - frequencies[at]) <= 2 * model.natural_frequency_errors_[at]).tolist(),
            (np.abs(of.damping - damping[at]) <= 2 * model.damping_ratio_errors_[at]).tolist(),
        ]
    return found


def fitted(of: Structure, way: str) -> StableLinearModel:
    """Return the fit: the number of modes is given, chosen, or left to delays.

    Args:
        of: The structure.
        way: ``"given"``, ``"auto"`` or ``"delays"``.
    """
    if way == "delays":
        model = StableLinearModel(delays=DELAYS, noise="auto", lead=100, dt=DT)
    elif way == "auto":
        model = StableLinearModel(states="auto", dt=DT)
    else:
        through = of.U is not None
        model = StableLinearModel(states=2 * len(of.frequencies), feedthrough=through, dt=DT)
    return model.fit(of.Y, U=of.U)


def nearest(of: Structure, natural: Array, damping: Array, signed: Array) -> list[int]:
    """Return the index of the mode that is nearest to each true one, by frequency and then damping.

    Args:
        of: The structure.
        natural: Natural frequencies.
        damping: Damping ratios.
        signed: Frequencies, of which one of a pair is positive.
    """
    one = np.flatnonzero(signed > 0)
    away = np.abs(natural[one] / of.frequencies[:, None] - 1) + np.abs(damping[one] - of.damping[:, None])
    return [int(one[i]) for i in away.argmin(axis=1)]


def covariance_driven(of: Structure, n: int, blocks: int = 40) -> tuple[Array, Array, Array]:
    """Return natural frequencies, damping ratios and signed frequencies of SSI-cov of so many states.

    Peeters and De Roeck, "Reference-based stochastic subspace identification" (1999).

    Args:
        of: The structure.
        n: Number of states.
        blocks: Rows of a block of covariances.
    """
    Y = of.Y - of.Y.mean(axis=0)
    lag = [Y[i:].T @ Y[: len(Y) - i] / (len(Y) - i) for i in range(2 * blocks)]
    H = np.block([[lag[i + j + 1] for j in range(blocks - 1)] for i in range(blocks)])
    U, s, _ = np.linalg.svd(H)
    O = U[:, :n] * np.sqrt(s[:n])
    p = Y.shape[1]
    A = np.linalg.lstsq(O[:-p], O[p:], rcond=None)[0]
    rates = np.log(scipy.linalg.eigvals(A).astype(complex)) / DT
    size = np.abs(rates)
    return size / (2 * np.pi), -rates.real / size, rates.imag / (2 * np.pi)


def errors() -> Table:
    """Return worst and median errors of each way, and the share of truths in two deviations."""
    rows = []
    for way, label in (
        ("given", "`states=` twice the number of modes"),
        ("auto", '`states="auto"`'),
        ("delays", f'`delays={DELAYS}, noise="auto"`'),
    ):
        results = list(named("modes", way).values())
        for drive in get_args(Drive):
            these = [r for r in results if r["drive"] == drive]
            if not these:
                continue
            for name in ("ours", "SSI-cov"):
                if name != "ours" and way != "given":
                    continue
                known = [r for r in these if name in r]
                lost = sum(r["modes"] for r in these) - sum(r["modes"] for r in known)
                f, z = (
                    np.abs(np.concatenate([r[name][of] for r in known])) for of in ("frequency", "damping")
                )
                inside = [np.mean(r["inside"]) for r in these if name == "ours" and "inside" in r]
                bound = np.concatenate([r["bound"] for r in known])
                rows.append(
                    [
                        marked(label if name == "ours" else "SSI-cov", these),
                        drive,
                        f"{len(z)}, {lost} more not found" if lost else str(len(z)),
                        f"{100 * f.max():.2g} %",
                        f"{100 * np.median(z):.2g} %",
                        f"{100 * z.max():.2g} %",
                        "" if drive != "unknown" else f"{np.sqrt(np.square(z / bound).mean()):.2g}",
                        f"{100 * np.mean(inside):.0f} %" if inside else "",
                    ]
                )
    header = ["", "force", "modes", "worst frequency", "median damping", "worst damping"]
    return [*header, "root mean square over the bound", "within two deviations"], rows
