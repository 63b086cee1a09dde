"""Figures of times from the committed numbers."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from benchmarks.measures.cpu import cases
from benchmarks.measures.dynamics import KINDS, METHODS, excess, fit_of, of_kind
from benchmarks.measures.forecasts import FAMILIES, compared
from benchmarks.measures.forecasts import METHODS as FORECASTS


def growth(title: str) -> Axes:
    """Draw the milliseconds of each contender over what grows, with the spread as a band.

    Args:
        title: Title of the curve.

    Returns:
        The axes.
    """
    _, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    points = [[*result["curve"][1:], result] for result in cases(title).values() if result["curve"]]
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
    axes.set_xticks([x for _, x, _ in points], [str(x) for _, x, _ in points])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(_short)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    return axes


def relative(keys: tuple[str, ...]) -> Axes:
    """Draw the times of our networks divided by those of torch's, one line for each case.

    Args:
        keys: Beginnings of the names of the cases.

    Returns:
        The axes.
    """
    found = [item for key in keys for item in cases(key).items() if not item[1]["curve"]]
    _, axes = plt.subplots(figsize=(7, 1.2 + 0.3 * len(found)), layout="constrained")
    colors: dict[str, str] = {}
    labels = []
    for y, (label, result) in enumerate(found):
        (name, ours), *others = result["contenders"].items()
        labels.append(label if label.startswith(name) else f"{name}, {label}")
        for rival, row in others:
            if rival.startswith("torch."):
                color = colors.setdefault(rival.split("(")[0], f"C{len(colors)}")
                axes.plot(ours["median"] / row["median"], y, "o", color=color)
    axes.axvline(1, color="0.5", linestyle="--", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(_short)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("time of ours divided by the time of torch's")
    axes.grid(axis="x", alpha=0.3)
    marks = [Line2D([], [], linestyle="", marker="o", color=color) for color in colors.values()]
    axes.legend(marks, list(colors), loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return axes


def stable_fits() -> Figure:
    """Draw the error of one step of each method, a dot for each problem.

    Returns:
        The figure.
    """
    methods = [method for method in METHODS if method != "least squares"]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for i, (kind, words) in enumerate(KINDS.items()):
        for result in of_kind(kind).values():
            for y, method in enumerate(methods):
                if (row := fit_of(method, result)) is None:
                    continue
                at, marks = y + 0.13 * (i - 2), {"color": f"C{i}", "markersize": 4, "alpha": 0.7}
                error = excess(row, result)
                if math.isfinite(error):
                    axes.plot(max(error, 1e-2), at, "o", **marks)
                else:
                    axes.plot(1, at, "x", transform=axes.get_yaxis_transform(), clip_on=False, **marks)
        axes.plot([], [], "o", color=f"C{i}", label=words)
    axes.plot([], [], "x", color="0.4", label="unstable")
    axes.set(xscale="log", xlabel="excess error of one step, in millionths (0.01 or less at the left end)")
    axes.set_yticks(range(len(methods)), [method.replace("`", "") for method in methods])
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def forecasts() -> Figure:
    """Draw the error of the forecasts of each method over the best of each problem, a dot for each problem.

    Returns:
        The figure.
    """
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    for i, family in enumerate(FAMILIES):
        for name, of in compared().items():
            if name.startswith(family):
                for y, method in enumerate(FORECASTS):
                    ratio = of.get(method, math.nan) / min(of.values())
                    axes.plot(
                        min(ratio, 100), y + 0.09 * (i - 3.5), "o", color=f"C{i}", markersize=3, alpha=0.7
                    )
        axes.plot([], [], "o", color=f"C{i}", label=family)
    axes.axvline(1, color="0.5", linestyle="--", linewidth=1)
    axes.set(
        xscale="log",
        xlabel="error over the smallest of all methods (100 or more at the end)",
    )
    axes.set_yticks(range(len(FORECASTS)), FORECASTS)
    axes.set_ylim(len(FORECASTS) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def _short(value: float, _: int) -> str:
    return f"{value:g}"
