"""Learning curves from the result files."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from examples.papers import config, record
from examples.papers.sections import SECTIONS
from examples.papers.table import rows_of


def curves(name: str, axes: Axes | None = None) -> Axes:
    """Draw the curves of a section's rows, one line for each seed, and the baseline.

    Args:
        name: Of the section.
        axes: Where to draw; new ones by default.

    Returns:
        The axes.
    """
    axes = plt.subplots(figsize=(7, 4), layout="constrained")[1] if axes is None else axes
    section, results = SECTIONS[name], record.read_all(record.RESULTS)
    metric, baseline = "", 0.0
    for row in rows_of(name, config.load_all()):
        color, label = None, row.label
        for run in results.get(row.name, []):
            if not run["curve"]:
                continue
            metric, baseline = run["metric"], run["baseline"]
            epochs = [point["epoch"] for point in run["curve"]]
            scores = [point[section.draws] for point in run["curve"]]
            (line,) = axes.plot(epochs, scores, color=color, linewidth=1.2, label=label)
            color, label = line.get_color(), None
    if metric in ("MSE", "cross-entropy"):
        axes.set_yscale("log")
        axes.axhline(baseline, color="0.5", linestyle="--", linewidth=1)
    axes.set(xlabel="epoch", ylabel=f"{section.draws} {metric}", title=section.title)
    axes.grid(alpha=0.3)
    axes.legend()
    return axes
