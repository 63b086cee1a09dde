"""Tables of hidden states and bands of forecasts, from ``states.json``."""

from __future__ import annotations

import statistics

import scipy.stats

from benchmarks.table import Result, Table, load

OURS, CHOSEN = "states=n", "states='cv'"
COVERAGES = ("0.5", "0.8", "0.95")
BAND = 0.99  # binomial, for each lead
OVERLAP = 5  # windows of the families of measured states overlap: so many count as one
KINDS = ("conformal", "gaussian")


def _named(kind: str) -> dict[str, Result]:
    """Return the results whose names begin so, by the rest of the name."""
    return {n.removeprefix(kind).lstrip(", "): r for n, r in load("states").items() if n.startswith(kind)}


def compared() -> Table:
    """Return the error of each method over that of the true system, how often it was stable, and its time."""
    fits: dict[str, list[tuple[Result, float]]] = {}
    for result in _named("system").values():
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
    return ["", "median", "largest", "fitted", "stable A", "seconds, median"], rows


def summary() -> Table:
    """Return how often ours was near the best and the best of the others, and how often all was stable."""
    ratios, steady = [], []
    for result in _named("system").values():
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
    return ["", "", "of"], [[name, str(sum(is_so)), str(len(is_so))] for name, is_so in rows.items()]


def orders() -> Table:
    """Return how often cross-validation found the true number of states."""
    found = _named("order").values()
    rows = []
    for name, has_inputs in (("with inputs", True), ("without inputs", False)):
        off = [abs(r["order"] - r["states"]) for r in found if bool(r["inputs"]) == has_inputs]
        rows.append([name, str(len(off)), str(off.count(0)), str(sum(d <= 2 for d in off))])
    return ["", "systems", "exact", "within 2"], rows


def seconds() -> Table:
    """Return the seconds of a fit with a given and with a chosen number of states."""
    times = load("states")["times"]
    return ["", "seconds"], [[f"`{name}`", f"{times[name]:.2g}"] for name in ("states=8", CHOSEN)]


def coverage() -> Table:
    """Return the share of values in the bands, and for how many systems it is outside the binomial band."""
    found = [result["coverage"] for result in _named("system").values()]
    windows = sum(of["windows"] for of in found)
    leads = found[0]["leads"]
    rows = []
    for kind in KINDS:
        for share in COVERAGES:
            cells = []
            for i in range(len(leads)):
                each = [(of[f"{kind}, {share}"][i], of["windows"]) for of in found]
                pooled = sum(hit * number for hit, number in each) / windows
                outside = sum(_outside(hit, number, float(share)) != 0 for hit, number in each)
                cells.append(f"{pooled:.3f} ({outside})")
            rows.append([kind, share, *cells])
    return [f"{windows:,} windows", "asked", *(f"lead {lead}" for lead in leads)], rows


def families() -> Table:
    """Return the share of values in the bands for measured states, and the problems far below it."""
    by_family: dict[str, list[tuple[str, Result]]] = {}
    for problem, result in _named("coverage").items():
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
    return ["asked: 0.8", "problems", *(f"lead {lead}" for lead in leads), "below the binomial band"], rows


def _outside(share: float, windows: int, coverage: float) -> int:
    """Return −1 or 1 where the share is below or above the binomial band, 0 inside."""
    low, high = scipy.stats.binom.interval(BAND, windows, coverage)
    return -1 if share * windows < low else 1 if share * windows > high else 0
