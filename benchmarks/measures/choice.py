"""What ``noise="auto"`` chooses on each problem of the forecasts, and the test error of every candidate.

With the errors of each fold and on the test, any other rule can be judged without a fit. A nightly test holds
later choices to these.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.problems.choice import KEYS, choice_of, drawn_once, fitted
from benchmarks.problems.forecasts import Problem, drawn, model_error, problems
from benchmarks.table import Result, Table, load, marked, named
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/dynamics",
    ":(exclude)spectral_param/dynamics/_choice/order.py",
    ":(exclude)spectral_param/dynamics/_fits/both.py",
    "benchmarks/measures/choice.py",
    "benchmarks/problems/choice.py",
    "benchmarks/problems/forecasts.py",
    "benchmarks/problems/one_step.py",
)
VARIES = "choice|error|candidates"  # Rounding decides between what is equally good.

NEW = 100  # the first of the seeds that the rule was not made with
EXACT = 1e-8  # errors below are rounding


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem: the recorded ones, those of new seeds, and those drawn once.

    Args:
        quick: Whether to take the first two of each.
    """
    some = 2 if quick else None
    for makers, prefix in ((problems(), ""), (drawn(NEW), "new seeds, "), (drawn_once(), "")):
        for name, make in list(makers.items())[:some]:
            yield Task(prefix + name, partial(_of, make), threads=1)


def _of(make: Callable[[], Problem]) -> Result:
    """Return what is chosen, its error on held-out rows and on the test, and those of each candidate."""
    problem, began = make(), time.process_time()
    model, error = choice_of(problem)
    seconds, choice = time.process_time() - began, model.choice_
    assert choice is not None
    table = choice.table
    folds = [name for name in table if name.startswith("error of fold")]
    candidates = []
    for i in range(len(table["noise"])):
        way = {key: _plain(table[key][i]) for key in KEYS}
        row: dict[str, Any] = dict(way)
        row["folds"] = [_plain(table[fold][i]) for fold in folds]
        row["score"] = _plain(table["score"][i])
        row["error"] = error if table["taken"][i] else _error(problem, way)
        candidates.append(row)
    return {
        "choice": {key: _plain(choice.params[key]) for key in KEYS},
        "held_out_error": choice.error,
        "error": error,
        "cpu_seconds": seconds,
        "candidates": candidates,
    }


def _error(problem: Problem, way: dict[str, Any]) -> float | None:
    """Return the error of a candidate, None if it cannot be fitted to all rows."""
    try:
        error = model_error(problem, fitted(problem, **way))
    except ValueError:
        return None
    return error if np.isfinite(error) else None


def _plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, infinity as None."""
    if isinstance(value, (np.floating, float)):
        return float(value) if np.isfinite(value) else None
    return value


# Tables -----------------------------------------------------------------------------------------------


def _kinds() -> dict[str, dict[str, Result]]:
    """Return the results: recorded problems, new seeds, and those drawn once."""
    found = load("choice")
    new, once = named("choice", "new seeds"), named("choice", "once")
    old = {name: of for name, of in found.items() if not name.startswith(("new seeds", "once"))}
    return {"recorded": old, "new seeds": new, "drawn once": once}


def _ratios(results: dict[str, Result]) -> list[float]:
    """Return the test error of each choice over that of the best candidate."""
    ratios = []
    for of in results.values():
        best = min(row["error"] for row in of["candidates"] if row["error"] is not None)
        ratios.append(max(of["error"], EXACT) / max(best, EXACT))
    return ratios


def chosen() -> Table:
    """Return how often the choice was near the best candidate, and how long it took."""
    rows = []
    for kind, results in _kinds().items():
        families: dict[str, dict[str, Result]] = {}
        for name, of in results.items():
            family = kind if kind == "drawn once" else name.removeprefix("new seeds, ").split(",")[0]
            families.setdefault(family, {})[name] = of
        if len(families) > 1:
            for family, of_family in families.items():
                rows.append(_row(f"{kind}, {family}", of_family))
        if results:
            rows.append(_row(f"**{kind}, all**", results))
    return [
        "",
        "problems",
        "within 5 % of the best candidate",
        "mean ratio",
        "largest",
        "seconds, median",
    ], rows


def _row(label: str, results: dict[str, Result]) -> list[str]:
    ratios = _ratios(results)
    return [
        marked(label, results.values()),
        str(len(ratios)),
        str(sum(ratio <= 1.05 for ratio in ratios)),
        f"{statistics.geometric_mean(ratios):.3f}",
        f"{max(ratios):.3g}",
        f"{statistics.median(of['cpu_seconds'] for of in results.values()):.2g}",
    ]


def worth() -> Table:
    """Return how much worse the rule is without each candidate, from the errors of the folds alone."""
    results = {name: of for kind in _kinds().values() for name, of in kind.items()}
    rows = []
    for label, kept in (
        ("all nine", lambda row: True),
        ("without no change and drift", lambda row: row["baseline"] not in ("no change", "drift")),
        ("without AR(1)", lambda row: row["baseline"] != "AR(1)"),
        ("without ridges", lambda row: row["baseline"] or not row["ridge"]),
        ("without process noise", lambda row: row["baseline"] or row["noise"] != "process"),
        ("without whole recordings", lambda row: row["noise"] != "measurement"),
    ):
        ratios = []
        for of in results.values():
            rows_of = [row for row in of["candidates"] if row["error"] is not None]
            left = [row for row in rows_of if kept(row) and row["score"] is not None]
            best = min(row["error"] for row in rows_of)
            if left:
                taken = min(left, key=lambda row: row["score"])
                ratios.append(max(taken["error"], EXACT) / max(best, EXACT))
        rows.append(
            [
                marked(label, results.values()),
                f"{100 * statistics.mean(ratio <= 1.05 for ratio in ratios):.0f} %",
                f"{statistics.geometric_mean(ratios):.3f}",
                f"{max(ratios):.3g}",
            ]
        )
    return ["candidates", "within 5 % of the best", "mean ratio", "largest"], rows
