"""What is read off a curve, and whether it reaches a goal."""

from __future__ import annotations

import math
import operator
import statistics
from decimal import Context, Decimal
from typing import Any

Result = dict[str, Any]

HIGHER_IS_BETTER = ("accuracy", "SegSNR", "STOI", "PESQ")

# Half of the baseline means nothing for an accuracy, nor for bits per character, whose baseline is that of
# taking all characters to be as likely.
HALVED = ("MSE", "cross-entropy")

# Enough digits for any double and those that papers print; quantize refuses to go beyond.
DIGITS = Context(prec=400)

BOUNDS = {
    "at_most": ("at most", operator.le),
    "at_least": ("at least", operator.ge),
    "below": ("below", operator.lt),
    "not_above": ("not above", operator.le),
    "better_than": ("better than", operator.lt),
}


def summary(curve: list[dict[str, Any]], metric: str, baseline: float) -> dict[str, float | None]:
    """Return the numbers of a run that tables are made of.

    Scores that are not finite are never the best; where none is finite, the best is None.

    Args:
        curve: One entry for each evaluation.
        metric: What was evaluated.
        baseline: What a guess has; see :class:`examples.papers.tasks.task.Task`.
    """
    found: dict[str, float | None] = {}
    if not curve:
        return found
    best = max if metric in HIGHER_IS_BETTER else min
    for split in ("validation", "test"):
        if split in curve[0]:
            # A comparison with NaN is false, so an early one would stay the best.
            found[f"best {split}"] = best((point[split] for point in _finite(curve, split)), default=None)
            found[f"last {split}"] = curve[-1][split]
    if "validation" in curve[0]:
        finite = _finite(curve, "validation")
        chosen = best(finite, key=lambda point: point["validation"], default=None)
        if "test" in curve[0]:
            found["test at best validation"] = None if chosen is None else chosen["test"]
    if metric in HALVED and "test" in curve[0]:
        passed = [point["epoch"] for point in curve if point["test"] < baseline / 2]
        found["epochs to half the baseline"] = passed[0] if passed else None
    return found


def _finite(curve: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    return [point for point in curve if math.isfinite(point[split])]


def is_higher_better(measure: str, metric: str) -> bool:
    """Return whether a larger number is better.

    Args:
        measure: Name of the measure.
        metric: The task's metric.
    """
    if measure in HIGHER_IS_BETTER:
        return True
    return metric in HIGHER_IS_BETTER and measure.split()[0] in ("best", "last", "test")


def values(results: list[Result], measure: str) -> list[float]:
    """Return a measure of each run; infinity for one that diverged or never came there.

    Args:
        results: The runs of a row.
        measure: Name of the measure.
    """
    found = []
    for result in results:
        value = result["summary"].get(measure)
        if measure in result["summary"] or result["status"] == "diverged":
            bad = -math.inf if is_higher_better(measure, result["metric"]) else math.inf
            found.append(bad if value is None or result["status"] == "diverged" else float(value))
    return found


def median(results: list[Result], measure: str) -> float | None:
    """Return the median of a measure over the runs of a row, None without any.

    Args:
        results: The runs of a row.
        measure: Name of the measure.
    """
    found = values(results, measure)
    return statistics.median(found) if found else None


def compare(ours: float, printed: str, higher_is_better: bool) -> str:
    """Return ``"better"``, ``"equal"`` or ``"worse"``: equal if ours rounds to the printed number.

    Args:
        ours: Our number.
        printed: The paper's, with its digits.
        higher_is_better: Which way is better.
    """
    theirs = Decimal(printed)
    if math.isfinite(ours) and Decimal(ours).quantize(theirs, context=DIGITS) == theirs:
        return "equal"
    return "better" if (ours > float(printed)) == higher_is_better else "worse"


def bound(goal: dict[str, Any]) -> tuple[str, str | list[str]]:
    """Return which of the bounds a goal has, and the number or the rows that it names.

    Args:
        goal: As for :func:`reached`.

    Raises:
        ValueError: If the goal has no bound that is known.
    """
    kind = next((kind for kind in BOUNDS if kind in goal), None)
    if kind is None:
        raise ValueError(f"goal: expected a bound, one of {', '.join(BOUNDS)}; got {goal}")
    return kind, goal[kind]


def reached(goal: dict[str, Any], results: dict[str, list[Result]], row: str, metric: str) -> bool | None:
    """Return whether a goal is reached, None while that is open.

    A row whose median run diverged, or never came there, reaches nothing. A goal beside several rows is
    missed as soon as one of them is ahead.

    Args:
        goal: ``measure`` and a bound: ``at_most``, ``at_least`` or ``below`` a number, as text; or
            ``not_above`` or ``better_than`` all of some rows, by their names.
        results: The runs of each row.
        row: Whose goal it is.
        metric: The metric of its task.

    Raises:
        ValueError: If the goal has no bound that is known.
    """
    kind, limit = bound(goal)
    measure, (_, holds) = goal["measure"], BOUNDS[kind]
    theirs: list[float | None]
    if isinstance(limit, str):
        theirs, sign = [float(limit)], 1
    else:
        theirs = [median(results.get(other, []), measure) for other in limit]
        sign = -1 if is_higher_better(measure, metric) else 1
    ours = median(results.get(row, []), measure)
    if ours is None:
        return None
    if not math.isfinite(ours) or not all(holds(sign * ours, sign * x) for x in theirs if x is not None):
        return False
    return None if None in theirs else True
