"""Tables of forecasts beside their rivals, from ``forecasts.json``."""

from __future__ import annotations

import math
import statistics

from benchmarks.table import Result, Table, load

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
NEAR, WORSE, BEST = 1.05, 1.01, 1.001


def compared() -> dict[str, dict[str, float]]:
    """Return the error of each method in each problem, infinity where it is unstable or failed."""
    return {name: errors(result) for name, result in load("forecasts").items() if "fits" in result}


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


def summary() -> Table:
    """Return how often the horizon chosen by cross-validation was best, near the best, and worse."""
    found = list(compared().values())
    peers = [of for of in found if PEER in of]
    rows = {
        "the best of all methods, to 0.1 %": [of[OURS] <= BEST * min(of.values()) for of in found],
        "within 5 % of the best": [of[OURS] <= NEAR * min(of.values()) for of in found],
        "more than 1 % worse than `fit_stable`": [of[OURS] > WORSE * of[ONE_STEP] for of in found],
        "as good as BOPDMD, to 5 %, or better": [of[OURS] <= NEAR * of[PEER] for of in peers],
    }
    return ["", "problems", "of"], [[name, str(sum(is_so)), str(len(is_so))] for name, is_so in rows.items()]


def families() -> Table:
    """Return the median of each method's error over the smallest, and how often it was the best."""
    rows, problems = [], compared()
    found = {f: [of for name, of in problems.items() if name.startswith(f)] for f in FAMILIES}
    for method in METHODS:
        spent = [
            result["fits"][method]["cpu_seconds"]
            for result in load("forecasts").values()
            if "cpu_seconds" in result.get("fits", {}).get(method, {})
        ]
        seconds = f"{statistics.median(spent):.2g}, {max(spent):.2g}" if spent else ""
        rows.append([_shown(method), *(_cell(method, of) for of in found.values()), seconds])
    return ["", *(f"{family} ({len(of)})" for family, of in found.items()), "seconds"], rows


def missed() -> Table:
    """Return the problems in which the chosen horizon was more than 5 % above the best."""
    rows = []
    for name, of in sorted(compared().items(), key=lambda item: -item[1][OURS] / min(item[1].values())):
        best = min(of, key=lambda method: of[method])
        if of[OURS] > NEAR * of[best]:
            cells = (f"{of[OURS]:.3g}", f"{_shown(best)}, {of[best]:.3g}")
            rows.append([name, *cells, _number(of[ONE_STEP]), _number(of["no change"])])
    return ["problem", "error", "the best", "`fit_stable`", "no change"], rows


def random_problems() -> Table:
    """Return how the fits of random problems kept their promises."""
    drawn = [result for name, result in load("forecasts").items() if name.startswith("random problems")]
    columns = ("problems", "bound_broken", "worse_than_start", "refused")
    header = ["problems", "bound broken", "larger error than the start", "refused, for too few rows"]
    return header, [[f"{sum(result[column] for result in drawn):,}" for column in columns]]


def _cell(method: str, problems: list[dict[str, float]]) -> str:
    ratios = [of[method] / min(of.values()) for of in problems if method in of]
    if not ratios:
        return "–"
    return f"{_number(statistics.median(ratios))}; {sum(ratio <= BEST for ratio in ratios)}"


def _shown(method: str) -> str:
    if method == ONE_STEP or method.startswith("horizon"):
        return f"`{method}`".replace("'", '"')
    return method


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
