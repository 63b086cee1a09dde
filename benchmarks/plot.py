"""Growth curves from the committed numbers."""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.table import RESULTS, curves


def growth(title: str, axes: Axes | None = None) -> Axes:
    """Draw the milliseconds of each contender over what grows, with the spread as a band.

    Args:
        title: Title of the curve.
        axes: Where to draw; new ones by default.

    Returns:
        The axes.
    """
    axes = plt.subplots(figsize=(7, 4), layout="constrained")[1] if axes is None else axes
    points = curves(json.loads((RESULTS / "cpu.json").read_text()))[title]
    names: dict[str, None] = {}
    for _, _, result in points:
        names |= dict.fromkeys(result["contenders"])
    for name in names:
        rows: list[tuple[int, dict[str, Any]]] = [
            (x, result["contenders"][name]) for _, x, result in points if name in result["contenders"]
        ]
        xs = [x for x, _ in rows]
        (line,) = axes.loglog(xs, [1e3 * row["median"] for _, row in rows], marker="o", label=name)
        low, high = ([1e3 * row[key] for _, row in rows] for key in ("least", "most"))
        axes.fill_between(xs, low, high, color=line.get_color(), alpha=0.2)
    axes.set_xlabel(points[0][0])
    axes.set_ylabel("milliseconds")
    axes.set_title(title)
    axes.set_xticks([x for _, x, _ in points], [str(x) for _, x, _ in points])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return axes
