"""The page of fits of one step beside their rivals, from ``benchmarks/results/dynamics.json``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.costs_table import origin

Result = dict[str, Any]
Row = dict[str, Any]

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

HEAD = """# Fits of one step compared

<!-- Written by `python -m benchmarks.table` from benchmarks/results/dynamics.json. Do not edit. -->

{{py:func}}`~spectral_param.dynamics.fit_stable` beside other methods that fit a stable $A$ to data. Its fits
were stable in {stable} of {problems} problems. In {smallest} of them, no other stable method had a smaller
error of one step. The fit with the least error of one step need not forecast best: see [Forecasts
compared](dynamics_compared.md).

```{{eval-rst}}
.. plot::
   :filename-prefix: dynamics-compared
   :include-source: false
   :alt: Errors of one step of each method. The tables below have the medians.

   from benchmarks import plot

   plot.stable_fits()
```

Each dot is one problem: {kinds}.

"""

READING = """- **Stable**: in how many problems the spectral radius is at most 1 (the abscissa at most 0).
- **Smallest error**: in how many problems no other stable method has a smaller error of one step on the
  data of the fit.
- **Excess**: the error of one step divided by that of least squares, minus 1, in millionths. Median; ∞
  means unstable.
- **Seconds**: CPU time on one thread, median and largest.

"""

BY_KIND = """## By kind of problem

{what}:

"""

METHODS_TEXT = """## The methods

- **Rescaling** divides the $A$ of least squares by its spectral radius. **Shifting**, in continuous time,
  subtracts its abscissa. **Clipping** moves each eigenvalue outside of the region to the nearest point of the
  region.
- **Constraint generation**: Siddiqi, Boots and Gordon (NeurIPS 2007). **SOC**, $A = S^{{-1}} O C S$:
  Mamakoukas, Xherija and Murphey (NeurIPS 2020). `benchmarks/dynamics_rivals.py` has both, written from the
  papers.
- **alpha_stable, trained**: geotorch's constraint and L-BFGS.
- Constraint generation, SOC and `alpha_stable` search. A search may take {seconds:g} CPU seconds; this limit
  cut {cut} of {searched} searches short. SOC's authors allow half an hour.
- **Closed form** is `fit_stable(..., max_iter=0)`. The **smaller bound** is `radius=0.999` or
  `abscissa=-0.001`.

"""

PROBLEMS_TEXT = """## The problems

- **Robot arm**: 17 states and 7 inputs of the recordings of Mamakoukas et al., 50 to 2,000 pairs, the first
  of the recordings or drawn at random.
- **Textures**: leading principal coordinates of short synthetic videos of moving waves.
- **Oscillators** (weakly damped) and **advection** (a substance carried round a ring, with diffusion): random
  states and their derivatives, both with noise.

"""

RANDOM = """In addition, {problems:,} random problems in discrete and as many in continuous time were fitted,
with n from 1 to 12, few and many samples, with and without inputs, well and badly scaled. Fits of
`fit_stable` that broke the bound: {broken}. Fits with a larger error than rescaling (shifting) or clipping
where these are stable: {lost}. The slowest took {slowest:.2g} CPU seconds.

"""

STORED = """## The rivals, checked

SOC's authors publish results of both rivals on the robot arm. The excess of our implementation divided by
theirs, where both are stable:

| | problems | median | range | unstable in theirs | unstable in ours |
|---|---:|---:|---:|---:|---:|
"""

FOOT = """## Where it was measured

`python -m benchmarks.dynamics` measures everything again. `benchmarks/results/dynamics.json` has the numbers
of each problem.

"""


def page(results: dict[str, Result]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks.dynamics`` wrote.
    """
    fitted = {name: result for name, result in results.items() if "fits" in result}
    kinds = {kind: found for kind in KINDS if (found := of_kind(fitted, kind))}
    counted = [f"{KINDS[kind]} ({len(found)})" for kind, found in kinds.items()]
    parts = [HEAD.format(kinds=", ".join(counted), **_answer(list(fitted.values())))]
    for title, wanted in (("Discrete time", False), ("Continuous time", True)):
        if found := [result for result in fitted.values() if is_continuous(result) == wanted]:
            parts.append(_ranking(title, found))
    parts += [
        READING,
        BY_KIND.format(what="Median of the excess error, in millionths"),
        _by_kind(kinds, lambda row, result: excess(row, result)),
        "Median of the growth of stable fits with up to 100 states; the growth is the largest $‖A^k‖$ for\n"
        "$k ≤ 1000$, or the largest $‖e^{At}‖$:\n\n",
        _by_kind(kinds, lambda row, _: row["growth"]),
        _smaller_bound(kinds),
        "Largest memory allocated at a time, in MiB (in the first second of a method that searches):\n\n",
        _by_kind(kinds, lambda row, _: row["bytes"] / 2**20, max),
        _methods(fitted),
        PROBLEMS_TEXT,
        _random([result for name, result in results.items() if name.startswith("random problems")]),
        _stored(results.get("the authors' results of the arm"), fitted),
        FOOT,
    ]
    environments = {origin(result): None for result in results.values() if "environment" in result}
    return "".join([*parts, *(f"- {environment}\n" for environment in environments)])


def of_kind(fitted: dict[str, Result], kind: str) -> dict[str, Result]:
    """Return the problems of a kind.

    Args:
        fitted: Results with fits.
        kind: One of :data:`KINDS`.
    """
    return {name: result for name, result in fitted.items() if name.startswith(kind)}


def is_continuous(result: Result) -> bool:
    """Return whether a problem is one of continuous time.

    Args:
        result: Its result.
    """
    return "shifting" in result["fits"]


def fit_of(method: str, result: Result) -> Row | None:
    """Return what a method made of a problem, None if it is not for that kind of time.

    Args:
        method: One of :data:`METHODS`.
        result: The result of the problem.
    """
    return next((result["fits"][name] for name in METHODS[method] if name in result["fits"]), None)


def excess(row: Row, result: Result) -> float:
    """Return the excess error in millionths, infinity where the fit is unstable.

    Args:
        row: What a fit is worth.
        result: The result of its problem.
    """
    bound = 0.0 if is_continuous(result) else 1.0
    return math.inf if row["reached"] > bound + UNSTABLE else 1e6 * (row["ratio"] - 1)


def _answer(found: list[Result]) -> dict[str, int]:
    """Return the numbers of the answer at the head of the page."""
    return {
        "problems": len(found),
        "stable": sum(math.isfinite(excess(result["fits"][OURS], result)) for result in found),
        "smallest": sum(excess(result["fits"][OURS], result) == _least(result) for result in found),
    }


def _ranking(title: str, found: list[Result]) -> str:
    """Return the table of the methods over all problems of a kind of time."""
    lines = [
        f"{title}, {len(found)} problems:\n",
        "| | stable | smallest error | excess | seconds |\n|---|---:|---:|---:|---:|",
    ]
    for method, names in METHODS.items():
        name = next((name for name in names if name in found[0]["fits"]), "")
        if not name or (name.startswith(OURS) and name != OURS):
            continue
        errors = [excess(result["fits"][name], result) for result in found]
        smallest = sum(excess(r["fits"][name], r) == _least(r) for r in found)
        seconds = [result["fits"][name]["cpu_seconds"] for result in found]
        cells = (
            str(sum(map(math.isfinite, errors))),
            str(smallest) if name != "least squares" else "",
            _short(statistics.median(errors)),
            f"{statistics.median(seconds):.2g}, {max(seconds):.2g}",
        )
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def _least(result: Result) -> float:
    """Return the smallest excess of the rivals and of ours without options; NaN if none is stable."""
    rivals = (row for name, row in result["fits"].items() if name == OURS or not name.startswith(OURS))
    return min((e for e in (excess(row, result) for row in rivals) if math.isfinite(e)), default=math.nan)


def _by_kind(
    kinds: dict[str, dict[str, Result]],
    value: Callable[[Row, Result], float | None],
    of: Callable[[Iterable[float]], float] = statistics.median,
) -> str:
    """Return the table of a number of each method for each kind of problem."""
    lines = [f"| | {' | '.join(KINDS[kind] for kind in kinds)} |\n|---|{'---:|' * len(kinds)}"]
    for method in METHODS:
        cells = []
        for found in kinds.values():
            pairs = [(fit_of(method, result), result) for result in found.values()]
            numbers = [value(row, result) for row, result in pairs if row is not None]
            known = [number for number in numbers if number is not None]
            cells.append(_short(of(known)) if known else "")
        if any(cells):
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def _smaller_bound(kinds: dict[str, dict[str, Result]]) -> str:
    """Say how often a smaller bound raised the growth."""
    ours, smaller = "`fit_stable`", "`fit_stable`, smaller bound"
    pairs = [
        (fit_of(ours, result)["growth"], fit_of(smaller, result)["growth"])
        for found in kinds.values()
        for result in found.values()
    ]
    both = [pair for pair in pairs if None not in pair]
    raised = sum(after > before for before, after in both)
    return f"The smaller bound raised the growth in {raised} of {len(both)} problems.\n\n"


def _methods(fitted: dict[str, Result]) -> str:
    searching = ("constraint generation", "SOC", "alpha_stable, trained")
    found = [row for r in fitted.values() for name, row in r["fits"].items() if name in searching]
    return METHODS_TEXT.format(
        seconds=max(result["seconds_allowed"] for result in fitted.values()),
        cut=sum(not row["finished"] for row in found),
        searched=len(found),
    )


def _random(drawn: list[Result]) -> str:
    if not drawn:
        return ""
    return RANDOM.format(
        problems=min(result["problems"] for result in drawn),
        broken=sum(result["bound_broken"] for result in drawn),
        lost=sum(result["lost"] for result in drawn),
        slowest=max(result["slowest_cpu_seconds"] for result in drawn),
    )


def _stored(authors: Result | None, fitted: dict[str, Result]) -> str:
    if authors is None:
        return ""
    lines = []
    for name in ("SOC", "constraint generation"):
        pairs = []
        for order, stored in authors["excess"].items():
            for samples, theirs in zip(authors["samples"], stored[name], strict=True):
                result = fitted[f"arm, {order}, N = {samples}"]
                pairs.append((math.inf if theirs is None else theirs, excess(result["fits"][name], result)))
        ratios = [ours / theirs for theirs, ours in pairs if math.isfinite(theirs) and math.isfinite(ours)]
        unstable = [sum(math.isinf(pair[i]) for pair in pairs) for i in (0, 1)]
        cells = (
            str(len(pairs)),
            _short(statistics.median(ratios)),
            f"{_short(min(ratios))} to {_short(max(ratios))}",
            *map(str, unstable),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return STORED + "\n".join([*lines, "", ""])


def _short(value: float) -> str:
    if math.isinf(value):
        return "∞"
    if abs(value) < 5e-3:
        return "0"
    return f"{value:.2g}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.1e}"
