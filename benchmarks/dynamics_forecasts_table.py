"""The page of forecasts beside their rivals, from ``benchmarks/results/forecasts.json``."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.costs_table import origin

Result = dict[str, Any]

OURS, ONE_STEP, PEER = "horizon='cv'", "fit_stable", "BOPDMD, stable"
FAMILIES = (
    "oscillators",
    "string",
    "chain with inputs",
    "waves",
    "driven by noise",
    "public",
    "textures",
    "robot arm",
)
METHODS = (
    "no change",
    "mean",
    "clipping",
    "constraint generation",
    "SOC",
    "forward-backward DMD, clipped",
    PEER,
    "Kalman EM, stable",
    ONE_STEP,
    "horizon=12",
    "horizon=all, estimated",
    OURS,
)
NEAR, WORSE = 1.05, 1.01

HEAD = """# Forecasts compared

<!-- Written by `python -m benchmarks.table` from benchmarks/results/forecasts.json. Do not edit. -->

Which stable model forecasts best? For the least error of one step, see [Fits of one step
compared](dynamics_one_step.md).

{{py:class}}`~spectral_param.dynamics.StableLinearModel` with `horizon="cv"` was within 5 % of the best of
all methods in {near} of {problems} problems, and the best in {best}. It was worse than a fit of one step by
more than 1 % in {worse}. It matched BOPDMD's error to 5 %, or was better, in {matched} of the {peers}
problems that BOPDMD takes.

```{{eval-rst}}
.. plot::
   :filename-prefix: forecasts-compared
   :include-source: false
   :alt: Errors of the forecasts of each method over the smallest of each problem. The table has the medians.

   from benchmarks import plot

   plot.forecasts()
```

What to take:

- **Noise in the measurements, linear dynamics** (oscillators, string, chain): `horizon="cv"`, or a long
  horizon with `start="estimated"`. The median error of a fit of one step is {least} to {most} times the
  smallest.
- **Noise that drives the system** or **nonlinear** dynamics (waves, public data): a fit of one step is as
  good, and quicker. `horizon="cv"` finds that out; a long horizon with `start="estimated"` can be far off.
- **Few rows, many states** (textures): `horizon="cv"`, for its shrinkage.
- **Recordings much shorter than the lead** (robot arm, the first hundreds of rows): look at "no change" in
  `forecast_error_` first.

The error of each method divided by the smallest error that any method has on the same problem: the median.
After the semicolon: how often the method was the best (within 0.1 %).

"""

FOOTNOTE = """
- **The error**: for each lead $k$ the root of $\\sum ‖\\hat x_k - x_k‖^2 / \\sum ‖x_k - \\text{{mean}}‖^2$,
  with sums over all windows, in units of the states; then the mean over $k$. So forecasting the mean has the
  error 1. Where the truth $x_k$ is known, it is without noise. No window has rows of the fit, and all methods
  start at the same measured state.
- ∞ means unstable or failed. A dash means that the method was not run: BOPDMD takes one recording without
  inputs, and Kalman EM and the whole horizon were run up to 12 states.
- **Seconds**: CPU time on one thread, median and largest. Constraint generation and SOC were given
  {seconds:g} seconds each.

"""

FAMILY_TEXT = """The families: **oscillators**, four hardly damped oscillations seen by eight sensors, new
recordings forecast; **string**, 64 nodes projected on ten directions; **chain with inputs**, four masses on
springs, pushed; **waves** that travel round a ring and steepen (Burgers); **driven by noise**, six states
measured exactly; **public** data of statsmodels: US macroeconomic series, El Niño, sunspots and CO₂, the last
three as twelve delays; **textures**, coordinates of short synthetic videos; **robot arm**, the recordings of
Mamakoukas et al. from the first 50 to 2,000 pairs.

"""


def page(results: dict[str, Result]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks.dynamics_forecasts`` wrote.
    """
    compared = {name: errors(result) for name, result in results.items() if "fits" in result}
    ours = {name: of[OURS] / min(of.values()) for name, of in compared.items()}
    one = {name: of[OURS] / of[ONE_STEP] for name, of in compared.items()}
    linear = [
        statistics.median(of[ONE_STEP] / min(of.values()) for of in found)
        for family in FAMILIES[:3]
        if (found := [of for name, of in compared.items() if name.startswith(family)])
    ]
    head = HEAD.format(
        least=f"{min(linear):.2g}",
        most=f"{max(linear):.2g}",
        near=sum(ratio <= NEAR for ratio in ours.values()),
        problems=len(ours),
        best=sum(ratio <= 1.001 for ratio in ours.values()),
        worse=sum(ratio > WORSE for ratio in one.values()),
        matched=sum(of[OURS] <= NEAR * of[PEER] for of in compared.values() if PEER in of),
        peers=sum(PEER in of for of in compared.values()),
    )
    families = [family for family in FAMILIES if any(name.startswith(family) for name in compared)]
    counts = [sum(name.startswith(family) for name in compared) for family in families]
    titles = [f"{family} ({count})" for family, count in zip(families, counts, strict=True)]
    lines = [f"| | {' | '.join(titles)} | seconds |", f"|---|{'---:|' * (len(families) + 1)}"]
    for method in METHODS:
        cells = [_cell(method, [of for n, of in compared.items() if n.startswith(f)]) for f in families]
        lines.append(f"| {_shown(method)} | {' | '.join(cells)} | {_seconds(method, results)} |")
    parts = [head, "\n".join(lines), "\n", FOOTNOTE.format(seconds=2.0), FAMILY_TEXT]
    missed = sorted(((ratio, name) for name, ratio in ours.items() if ratio > NEAR), reverse=True)
    if missed:
        parts.append('Where `horizon="cv"` was more than 5 % above the best:\n\n')
        parts.append("| problem | error | the best | `fit_stable` | no change |\n|---|---:|---|---:|---:|\n")
        for _, name in missed:
            of = compared[name]
            best = min(of, key=lambda method: of[method])
            cells = (f"{of[OURS]:.3g}", f"{_shown(best)}, {of[best]:.3g}", _number(of[ONE_STEP]))
            parts.append(f"| {name} | {' | '.join(cells)} | {_number(of['no change'])} |\n")
        parts.append("\n")
    if every := [result for name, result in results.items() if name.startswith("random problems")]:
        counts = ("problems", "bound_broken", "worse_than_start", "refused")
        drawn = {name: sum(result[name] for result in every) for name in counts}
        parts.append(
            f"In addition, {drawn['problems']:,} random problems were fitted: n from 1 to 12, with and "
            "without\ninputs, one to six recordings of 2 to 60 rows, units from 1e-4 to 1e4. Fits that broke "
            f"the\nbound: {drawn['bound_broken']}. Fits with a larger error than their start: "
            f"{drawn['worse_than_start']}. Refused, for too few rows: {drawn['refused']}.\n\n"
        )
    parts.append(
        "## Where it was measured\n\n`python -m benchmarks.dynamics_forecasts` measures everything again.\n"
    )
    parts.append("`benchmarks/results/forecasts.json` has the numbers of each problem.\n\n")
    environments = {origin(result): None for result in results.values() if "environment" in result}
    return "".join([*parts, *(f"- {environment}\n" for environment in environments)])


def errors(result: Result) -> dict[str, float]:
    """Return the error of each method, infinity where it is unstable or failed.

    Args:
        result: The result of a problem.
    """
    found = {}
    for name, fit in result["fits"].items():
        error = fit.get("error")
        found[name] = error if error is not None and math.isfinite(error) else math.inf
    return found | {"mean": 1.0}


def _cell(method: str, problems: list[dict[str, float]]) -> str:
    ratios = [of[method] / min(of.values()) for of in problems if method in of]
    if not ratios:
        return "–"
    wins = sum(ratio <= 1.001 for ratio in ratios)
    return f"{_number(statistics.median(ratios))}; {wins}"


def _seconds(method: str, results: dict[str, Result]) -> str:
    spent = [
        result["fits"][method]["cpu_seconds"]
        for result in results.values()
        if "cpu_seconds" in result.get("fits", {}).get(method, {})
    ]
    return f"{statistics.median(spent):.2g}, {max(spent):.2g}" if spent and max(spent) > 1e-4 else ""


def _shown(method: str) -> str:
    if method == ONE_STEP:
        return "`fit_stable`"
    return f"`{method}`".replace("'", '"') if method.startswith("horizon") else method


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
