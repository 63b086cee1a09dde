"""The five figures. They use matplotlib's objects, not pyplot, so they need no display."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from examples.demo.cards import GUESSING as GUESSING_AN_ORDER
from examples.demo.cards import LONGEST
from examples.demo.forecast import MODELS
from examples.demo.settings import GUESSING
from examples.demo.sphere import WAYS

# Colours of Okabe and Ito (2008), which people with any colour vision can tell apart.
BLUE, ORANGE, GREEN, ACCENT, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#767676"
COLOURS = {"ENRNN": BLUE, "ScoRNN": ORANGE, "LSTM": GREEN}
STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#333333",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "legend.frameon": False,
    "mathtext.fontset": "dejavusans",
}

Spectra = dict[str, Tensor]
"""Eigenvalues of each recurrent block by its name."""


def memory(path: Path, records: list[dict[str, Any]], before: Spectra, after: Spectra) -> None:
    """Draw the accuracy of each network, a line for each seed, and where an ENRNN's eigenvalues go.

    Args:
        path: PNG file to write.
        records: The numbers of each network and seed.
        before: Eigenvalues of the blocks of an ENRNN before training.
        after: The same after training.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        curves, *discs = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        labelled = set()
        for entry in records:
            name = entry["network"]
            steps, scores = zip(*entry["curve"], strict=True)
            label = None if name in labelled else name
            curves.plot(steps, scores, color=COLOURS[name], linewidth=1.6, alpha=0.85, label=label)
            labelled.add(name)
        curves.axhline(GUESSING, color=GREY, linestyle="--", linewidth=1.2, label="guessing")
        curves.set_title("Digits, pixel by pixel: a line for each seed")
        curves.set(xlabel="optimizer step", ylabel="validation accuracy", ylim=(0, 1))
        curves.yaxis.set_major_formatter(PercentFormatter(1.0))
        curves.legend(loc="lower right")
        places = ("on the unit circle", "in the unit disc")
        for axes, name, place in zip(discs, before, places, strict=True):
            _disc(axes, before[name], after[name])
            axes.set_title(f"$\\mathbf{{W}}^{{{name[1:]}}}$ stays {place}")
        figure.legend(*discs[0].get_legend_handles_labels(), loc="outside lower right", ncols=2)
        _save(figure, path)


def _disc(axes: Axes, before: Tensor, after: Tensor) -> None:
    axes.add_patch(Circle((0, 0), 1, facecolor="#F3F6F9", edgecolor=GREY, linewidth=1, zorder=0))
    x, y = before.real.numpy(), before.imag.numpy()
    axes.scatter(x, y, s=34, label="before training", facecolors="none", edgecolors=ACCENT)
    x, y = after.real.numpy(), after.imag.numpy()
    axes.scatter(x, y, s=16, label="after training", color=BLUE)
    axes.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), xticks=(-1, 0, 1), yticks=(-1, 0, 1))


def cards(path: Path, records: list[dict[str, Any]]) -> None:
    """Draw how many orders are right over the number of shuffles: a line for each network and seed.

    Args:
        path: PNG file to write.
        records: The numbers of each network and seed.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        networks = list(dict.fromkeys(entry["network"] for entry in records))
        labelled = set()
        for entry in records:
            name = entry["network"]
            colour = (BLUE, ACCENT, ORANGE)[networks.index(name)]
            label = None if name in labelled else name
            axes.plot(entry["lengths"], entry["right"], "o-", color=colour, linewidth=1.6, label=label)
            labelled.add(name)
        axes.axhline(GUESSING_AN_ORDER, color=GREY, linestyle="--", linewidth=1.2, label="guessing")
        lengths = records[0]["lengths"]
        axes.set_title(f"Three cards, trained on at most {LONGEST} shuffles: a line for each seed")
        axes.set(xscale="log", xlabel="shuffles", ylabel="orders that are right", ylim=(0, 1.02))
        axes.set_xticks(lengths, map(str, lengths))
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="center right")
        _save(figure, path)


def certificate(path: Path, records: list[dict[str, Any]]) -> None:
    """Draw accuracy under attack, and two certificates, over the size of the attack: medians and ranges.

    Args:
        path: PNG file to write.
        records: The numbers of each network and seed.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        networks = list(dict.fromkeys(entry["network"] for entry in records))
        for name, colour in zip(networks, (BLUE, ACCENT), strict=True):
            entries = [entry for entry in records if entry["network"] == name]
            sizes = entries[0]["sizes"]
            for what, style, words in (
                ("attacked", "-", "right under attack"),
                ("certified", "--", "certified, best certificate"),
                ("certified by the product", ":", "certified by the product of norms"),
            ):
                values = list(zip(*(entry[what] for entry in entries), strict=True))
                median = [statistics.median(each) for each in values]
                axes.plot(sizes, median, style, color=colour, linewidth=2, label=f"{name}: {words}")
                axes.fill_between(
                    sizes, [*map(min, values)], [*map(max, values)], color=colour, alpha=0.15, linewidth=0
                )
        axes.set_title("Images of digits, attacked; certified against every attack")
        axes.set(xlabel="size of the change, 2-norm", ylabel="share of the test images", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(fontsize=9)
        _save(figure, path)


def forecast(path: Path, records: list[dict[str, Any]]) -> None:
    """Draw the forecasts of one sensor of the first recording, and the errors of all.

    Args:
        path: PNG file to write.
        records: The numbers of each seed.
    """
    colours = dict(zip(MODELS, (ACCENT, BLUE), strict=True))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        rows, errors = figure.subplots(1, 2, width_ratios=(2.6, 1))
        first = records[0]
        past, future = first["past"][-60:], first["future"]
        ahead = range(len(past), len(past) + len(future))
        rows.plot(range(len(past)), past, ".", color=GREY, label="measured")
        rows.plot(ahead, future, color="black", linewidth=4, alpha=0.2, label="what happens")
        for name, values in first["forecast"].items():
            rows.plot(ahead, values, color=colours[name], linewidth=1.6, label=name)
        rows.axvline(len(past) - 0.5, color=GREY, linewidth=0.8)
        rows.set_title("A forecast of 100 steps: the first of the recordings", pad=30)
        rows.set(xlabel="row", ylabel="first sensor")
        rows.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.98), ncols=4)
        for place, name in enumerate(MODELS):
            values = [entry["error"][name] for entry in records]
            errors.plot([place] * len(values), values, "o", color=colours[name], markersize=8, alpha=0.7)
        errors.axhline(1, color=GREY, linestyle="--", linewidth=1.2)
        errors.annotate(
            "forecasting 0", (0.98, 1), xycoords=("axes fraction", "data"), ha="right", va="bottom"
        )
        errors.set_title("Error: a dot for each seed", pad=30)
        errors.set(xlim=(-0.6, 1.6), xticks=(0, 1), xticklabels=MODELS, ylabel="relative error")
        errors.set_ylim(bottom=0)
        _save(figure, path)


def sphere(path: Path, records: list[dict[str, Any]]) -> None:
    """Draw how far above the minimum each step on the sphere is: a line for each way and seed.

    Args:
        path: PNG file to write.
        records: The numbers of each way and seed.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        for way, colour, label in zip(WAYS, (ACCENT, BLUE), ("put back", "along the sphere"), strict=True):
            for entry in (each for each in records if each["step"] == way):
                axes.semilogy(entry["curve"], color=colour, linewidth=1.6, alpha=0.85, label=label)
                label = None
        axes.set_title("Adam on a sphere, a linear cost: a line for each seed")
        axes.set(xlabel="optimizer step", ylabel="above the minimum", ylim=(1e-8, 3))
        axes.legend(loc="center right")
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)
