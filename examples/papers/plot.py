"""Pictures of the result files: all scores at a glance, and learning curves."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from examples.papers import config, measures, record
from examples.papers.networks import BASELINES
from examples.papers.sections import SECTIONS
from examples.papers.table import judged, rows_of

LOGARITHMIC = ("MSE", "cross-entropy")
# Narrow, for telephones; grey on a transparent ground, for dark pages.
GREY = "#808080"  # Legible on white and on black.
PARTS = ("axes.edge", "axes.label", "axes.title", "text.", "xtick.", "ytick.")
STYLE = {**{f"{part}color": GREY for part in PARTS}, "font.size": 10}


def overview() -> Figure:
    """Draw the score of each run, one panel for each task that has been run, with the papers' numbers.

    Returns:
        The figure.
    """
    rows, results = config.load_all(), record.read_all(record.RESULTS)
    panels = {
        name: done
        for name, section in SECTIONS.items()
        if section.overview and (done := [r for r in rows if r.section == name and results.get(r.name)])
    }
    # Labels inside save width.
    heights = [len(done) + 1.7 for done in panels.values()]
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            len(panels),
            squeeze=False,
            figsize=(4.4, 0.4 * sum(heights)),
            layout="constrained",
            gridspec_kw={"height_ratios": heights},
        )
    figure.patch.set_alpha(0)
    for axes, (name, done) in zip(grid[:, 0], panels.items(), strict=True):
        axes.patch.set_alpha(0)
        for y, row in enumerate(done):
            runs = results[row.name]
            measure = judged(SECTIONS[name].overview, runs)
            color = "C1" if row.network["name"] in BASELINES else "C0"
            axes.plot(measures.values(runs, measure), [y] * len(runs), "o", color=color, markersize=6)
            printed = [
                float(paper["value"])
                for paper in row.paper
                if paper["measure"] == SECTIONS[name].overview and paper.get("verdict", True)
            ]
            axes.plot(printed, [y] * len(printed), "D", color=GREY, mfc="none")
            label = axes.text(0, y - 0.22, row.label, transform=axes.get_yaxis_transform(), fontsize=8.5)
            label.set(va="bottom", color=GREY, in_layout=False)
        axes.set_yticks([])
        axes.set_ylim(len(done) - 0.6, -0.85)
        axes.spines["left"].set_visible(False)
        metric = results[done[0].name][0]["metric"]
        title = f"{SECTIONS[name].title}:\n{metric}"
        title += ", higher is better →" if metric in measures.HIGHER_IS_BETTER else ", ← lower is better"
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        if metric in LOGARITHMIC and name != "speech":
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=5))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(axis="x", alpha=0.3)
    for label, color in (("this library", "C0"), ("for comparison", "C1")):
        grid[0, 0].plot([], [], "o", color=color, label=label)
    grid[0, 0].plot([], [], "D", color=GREY, mfc="none", label="paper")
    figure.legend(
        loc="outside upper center", ncols=3, frameon=False, labelcolor=GREY, columnspacing=1, handletextpad=0
    )
    return figure


def curves(name: str) -> Axes:
    """Draw the curves of a section's rows, one line for each seed, and the baseline.

    Args:
        name: Of the section.

    Returns:
        The axes.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
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
    if metric in LOGARITHMIC:
        axes.set_yscale("log")
        axes.axhline(baseline, color="0.5", linestyle="--", linewidth=1)
    axes.set(xlabel="epoch", ylabel=f"{section.draws} {metric}")
    axes.grid(alpha=0.3)
    # Below the axes, for which the figure grows: inside, it would lie over curves.
    legend = figure.legend(loc="outside lower left", frameon=False, labelcolor=GREY, fontsize=8.5)
    figure.set_figheight(3.2 + 0.18 * len(legend.get_texts()))
    return axes
