"""The three figures. They use matplotlib's objects, not pyplot, so they need no display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Circle
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from examples.demo.report import score_text

# Colours of Okabe and Ito (2008), which people with any colour vision can tell apart.
COLOURS = {"ENRNN": "#0072B2", "ScoRNN": "#E69F00", "LSTM": "#009E73"}
ACCENT, GREY = "#D55E00", "#767676"
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


def learning_curves(path: Path, tasks: list[list[dict[str, Any]]]) -> None:
    """Draw the validation scores of all networks against the baseline, one panel for each task.

    Args:
        path: PNG file to write.
        tasks: For each task the numbers of its networks; see :func:`examples.demo.report.record`.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.6), layout=ConstrainedLayoutEngine(w_pad=0.1))
        for axes, records in zip(figure.subplots(1, len(tasks)), tasks, strict=True):
            _curves(axes, records)
        _save(figure, path)


def _curves(axes: Axes, records: list[dict[str, Any]]) -> None:
    metric, baseline = records[0]["metric"], records[0]["baseline"]
    for entry in records:
        steps, scores = zip(*entry["curve"], strict=True)
        label = f"{entry['network']}: {_number(entry['test'], metric)}"
        axes.plot(steps, scores, color=COLOURS[entry["network"]], linewidth=2, label=label)
    guess = "always answering 1" if metric == "MSE" else "guessing"
    label = f"{guess}: {_number(baseline, metric)}"
    axes.axhline(baseline, color=GREY, linestyle="--", linewidth=1.2, label=label)
    axes.set_title(f"{records[0]['task']}: {_finding(records)}", pad=62)
    # Above the panel, where no curve can run into it.
    axes.legend(
        title=f"test {metric}",
        loc="lower left",
        bbox_to_anchor=(-0.02, 0.99),
        ncols=2,
        alignment="left",
    )
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"validation {metric}")
    axes.set_xlim(0, records[0]["curve"][-1][0])
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    if metric == "MSE":
        axes.set_yscale("log")
        # In the first steps an untrained network can be off by far more.
        axes.set_ylim(top=0.5)
    else:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _number(score: float, metric: str) -> str:
    return score_text(score, metric).removeprefix(f"{metric} ")


def _finding(records: list[dict[str, Any]]) -> str:
    """Return which network is first to come nine tenths of the way from the baseline to perfect."""
    perfect = 0.0 if records[0]["metric"] == "MSE" else 1.0
    allowed = 0.1 * abs(perfect - records[0]["baseline"])
    arrivals = {
        entry["network"]: step
        for entry in records
        for step, score in reversed(entry["curve"])
        if abs(perfect - score) <= allowed
    }
    return f"{min(arrivals, key=arrivals.__getitem__)} learns fastest" if arrivals else "untrained"


def eigenvalue_plane(path: Path, networks: list[tuple[str, Spectra, Spectra]]) -> None:
    """Draw the eigenvalues of W(L) and W(S) before and after training in the unit disc.

    Args:
        path: PNG file to write.
        networks: Title and the blocks' eigenvalues before and after, one row for each network.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 4.5 * len(networks)), layout="constrained")
        grid = figure.subplots(len(networks), 2, squeeze=False)
        for row, (title, before, after) in zip(grid, networks, strict=True):
            for axes, name in zip(row, before, strict=True):
                radius = after[name].abs().max().item()
                place = "on the unit circle" if name == "W(L)" else "in the unit disc"
                _disc(axes, before[name], after[name])
                axes.set_title(
                    f"$\\mathbf{{W}}^{{{name[1:]}}}$ stays {place}\n{title}, ρ = {radius:.3f}",
                    fontsize=10.5,
                )
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        _save(figure, path)


def _disc(axes: Axes, before: Tensor, after: Tensor) -> None:
    axes.add_patch(Circle((0, 0), 1, facecolor="#F3F6F9", edgecolor=GREY, linewidth=1, zorder=0))
    x, y = before.real.numpy(), before.imag.numpy()
    axes.scatter(x, y, s=38, label="before training", facecolors="none", edgecolors=ACCENT)
    x, y = after.real.numpy(), after.imag.numpy()
    axes.scatter(x, y, s=18, label="after training", color=COLOURS["ENRNN"])
    axes.set_aspect("equal")
    axes.set_xlim(-1.15, 1.15)
    axes.set_ylim(-1.15, 1.15)
    axes.set_xticks([-1, 0, 1])
    axes.set_yticks([-1, 0, 1])
    axes.set_xlabel("real part")
    axes.set_ylabel("imaginary part")


def gradient_maps(path: Path, long: Tensor, short: Tensor, marked: list[int]) -> None:
    """Draw ‖∂h_τ/∂x_t‖ of both states, as figures 4 and 5 of the ENRNN paper do.

    Args:
        path: PNG file to write.
        long: Norms of the long-term state, ``(T, T)``, row τ and column t.
        short: The same of the short-term state.
        marked: The two time steps t whose numbers have to be added.
    """
    top = max(long.max().item(), short.max().item())
    norm = LogNorm(vmin=top * 1e-4, vmax=top)
    colours = mpl.colormaps["viridis"].with_extremes(bad="white")
    with mpl.rc_context({**STYLE, "axes.spines.left": False, "axes.spines.bottom": False}):
        figure = Figure(figsize=(10.5, 5), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, norms, title in (
            (panels[0], short, "Short-term state $h^{(S)}$ forgets"),
            (panels[1], long, "Long-term state $h^{(L)}$ remembers"),
        ):
            # Above the diagonal, where x_t has not been read yet, there is nothing to show.
            unread = torch.ones_like(norms, dtype=torch.bool).triu(1)
            shown = norms.clamp(min=norm.vmin).masked_fill(unread, torch.nan)
            image = axes.imshow(shown.numpy(), norm=norm, cmap=colours)
            for t in marked:
                axes.annotate(
                    "",
                    (t, -0.5),
                    xytext=(0, 18),
                    textcoords="offset points",
                    arrowprops={"arrowstyle": "-|>", "color": ACCENT, "linewidth": 1.5},
                )
            axes.set_title(title, pad=24)
            axes.set_xlabel("t, when the input is read  (arrows: marked numbers)")
            axes.set_ylabel("τ, when the state is looked at")
        bar = figure.colorbar(image, ax=panels, extend="min", shrink=0.85)
        bar.set_label(r"$\|\partial h_\tau / \partial x_t\|_2$")
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)
