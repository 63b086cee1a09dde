"""Plots of the results of the analyses. Each function draws on the given axes, or on new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spectral_param.analysis._orthogonality import Recorder
from spectral_param.analysis._transient import TransientGrowth
from spectral_param.functional._checks import described, with_arrays

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

_GREY = "#767676"
# The smallest value on a heat map's logarithmic scale, relative to the largest.
_DYNAMIC_RANGE = 1e-4


@with_arrays
def plot_eigenvalues(values: Tensor, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Draw eigenvalues in the complex plane, with the unit circle.

    Args:
        values: From :func:`eigenvalues`, of one matrix or of a batch.
        ax: Axes to draw on; None, the default, makes new ones.
        kwargs: Passed to ``Axes.scatter``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    _check_result(values, "values", values.is_complex(), "eigenvalues(W)")
    ax = _axes(ax)
    angle = torch.linspace(0, 2 * torch.pi, 361, dtype=torch.float64, device="cpu")
    ax.plot(_array(angle.cos()), _array(angle.sin()), color=_GREY, linewidth=1, zorder=1)
    points = values.flatten()
    ax.scatter(_array(points.real), _array(points.imag), **{"s": 14, "zorder": 2, **kwargs})
    ax.set(aspect="equal", xlabel=r"$\mathrm{Re}\,\lambda$", ylabel=r"$\mathrm{Im}\,\lambda$")
    return ax


@with_arrays
def plot_singular_values(values: Tensor, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Draw singular values in descending order.

    Args:
        values: From :func:`singular_values`: ``(..., n)``, one curve for each matrix.
        ax: Axes to draw on; None, the default, makes new ones.
        kwargs: Passed to ``Axes.plot``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    sorted_ = _are_norms(values) and not bool((values.diff() > 0).any())
    _check_result(values, "values", sorted_, "singular_values(W)")
    ax = _axes(ax)
    _curves(ax, torch.arange(1, values.shape[-1] + 1, device="cpu"), values, **kwargs)
    ax.set(xlabel="index", ylabel="singular value")
    return ax


def plot_recording(recorder: Recorder, ax: Axes | None = None, ylabel: str = "", **kwargs: Any) -> Axes:
    """Draw the values of a recorder over training, for example orthogonality or departure from normality.

    Args:
        recorder: The recorder. Values that are tensors give one curve for each entry.
        ax: Axes to draw on; None, the default, makes new ones.
        ylabel: Name of the measure.
        kwargs: Passed to ``Axes.plot``, for example ``label`` and ``color``.

    Returns:
        The axes. The scale is linear; call ``ax.set_yscale("log")`` for errors.
    """
    _check_result(recorder, "recorder", isinstance(recorder, Recorder), "Recorder(measure)")
    ax = _axes(ax)
    values = recorder.values
    _curves(ax, recorder.steps, values.reshape(len(values), -1).mT, **kwargs)
    ax.set(xlabel="optimizer step", ylabel=ylabel)
    return ax


@with_arrays
def plot_gradient_norms(norms: Tensor, ax: Axes | None = None, vmax: float | None = None) -> Axes:
    """Draw gradient norms as the heat map of the ENRNN paper's figures 4 and 5, with a colour bar.

    t runs from left to right and τ from top to bottom. The part above the diagonal is empty, because the
    input at t has not been read yet. The scale is logarithmic over four decades.

    Args:
        norms: Norms of one block, from :func:`gradient_norms`: ``(..., T, T)``. A batch is averaged.
        ax: Axes to draw on; None, the default, makes new ones.
        vmax: Upper end of the scale; None, the default, is the largest norm. Pass one value for all blocks to
            compare them.

    Returns:
        The axes.
    """
    _check_result(norms, "norms", _are_norms(norms), "gradient_norms(rnn, x)")
    ax = _axes(ax)
    from matplotlib.colors import LogNorm

    mean = norms.reshape(-1, *norms.shape[-2:]).mean(dim=0)
    top = (mean.nan_to_num(nan=0.0).max().item() or 1.0) if vmax is None else vmax
    unread = torch.ones_like(mean, dtype=torch.bool).triu(1)
    shown = mean.clamp(min=top * _DYNAMIC_RANGE).masked_fill(unread, torch.nan)
    image = ax.imshow(_array(shown), norm=LogNorm(top * _DYNAMIC_RANGE, top), cmap="viridis")
    ax.set(xlabel="t", ylabel="τ")
    ax.figure.colorbar(image, ax=ax, extend="min", shrink=0.8, label="gradient norm")
    return ax


@with_arrays
def plot_gradient_norm_bounds(norms: Tensor, bounds: Tensor, ax: Axes | None = None) -> Axes:
    """Draw the norms of all pairs of time steps over the lag τ - t, and the bounds of Theorem 3.1.

    Args:
        norms: Norms of one block, from :func:`gradient_norms`: ``(..., T, T)``.
        bounds: From :func:`gradient_norm_bounds`, ``(lags,)``.
        ax: Axes to draw on; None, the default, makes new ones.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    lags = min(norms.shape[-1], len(bounds))
    for lag in range(lags):
        values = norms.diagonal(offset=-lag, dim1=-2, dim2=-1).flatten()
        values = values[values > 0]
        label = "measured" if lag == 0 else None
        ax.plot([lag] * len(values), _array(values), ".", color="C0", markersize=3, alpha=0.4, label=label)
    ax.plot(range(lags), _array(bounds[:lags]), color="C1", label="bound of Theorem 3.1")
    ax.set(yscale="log", xlabel="lag", ylabel="gradient norm")
    ax.legend()
    return ax


@with_arrays
def plot_loss_gradient_norms(norms: Tensor, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Draw the norms of the loss gradients over time, as figure 5 of the scoRNN paper does.

    Args:
        norms: Norms of one block, from :func:`loss_gradient_norms`: ``(..., T)``. A batch is averaged.
        ax: Axes to draw on; None, the default, makes new ones.
        kwargs: Passed to ``Axes.plot``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    _check_result(norms, "norms", _are_norms(norms), "loss_gradient_norms(rnn, x, loss)")
    ax = _axes(ax)
    mean = norms.reshape(-1, norms.shape[-1]).mean(dim=0)
    _curves(ax, torch.arange(len(mean), device="cpu"), mean, **kwargs)
    ax.set(yscale="log", xlabel="t", ylabel=r"$\|\partial L/\partial h_t\|_2$")
    return ax


@with_arrays
def plot_fisher_memory(memory: Tensor, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Draw Fisher memory curves, or bounds on them.

    Args:
        memory: From :func:`fisher_memory` or :func:`fisher_memory_bound`: ``(..., steps + 1)``, one curve for
            each matrix. Zeros are left out of the logarithmic scale.
        ax: Axes to draw on; None, the default, makes new ones.
        kwargs: Passed to ``Axes.plot``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    _check_result(memory, "memory", _are_norms(memory), "fisher_memory(W, v, steps)")
    ax = _axes(ax)
    _curves(ax, torch.arange(memory.shape[-1], device="cpu"), memory.where(memory > 0, torch.nan), **kwargs)
    ax.set(yscale="log", xlabel="k", ylabel="Fisher memory J(k)")
    return ax


@with_arrays
def plot_schur_form(Theta: Tensor, ax: Axes | None = None) -> Axes:
    """Draw the entries of a Schur form as figure 3(a, b) of the nnRNN paper does, with a colour bar.

    Args:
        Theta: One real matrix ``(n, n)``.
        ax: Axes to draw on; None, the default, makes new ones.

    Returns:
        The axes. Negative entries are blue, positive ones red.
    """
    ax = _axes(ax)
    largest = Theta.abs().max().item()
    image = ax.imshow(_array(Theta), cmap="RdBu_r", vmin=-largest, vmax=largest)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set(xticks=[], yticks=[])
    return ax


@with_arrays
def plot_subdiagonals(magnitudes: Tensor, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Draw the mean magnitude of each sub-diagonal, as figure 3(c) of the nnRNN paper does.

    Args:
        magnitudes: From :func:`subdiagonal_magnitudes`: ``(..., n - 1)``, one curve for each matrix.
        ax: Axes to draw on; None, the default, makes new ones.
        kwargs: Passed to ``Axes.plot``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    _check_result(magnitudes, "magnitudes", _are_norms(magnitudes), "subdiagonal_magnitudes(Theta)")
    ax = _axes(ax)
    _curves(ax, torch.arange(1, magnitudes.shape[-1] + 1, device="cpu"), magnitudes, **kwargs)
    ax.set(xlabel="sub-diagonal k", ylabel="mean magnitude")
    return ax


@with_arrays
def plot_angles(values: Tensor, ax: Axes | None = None, bins: int = 24, **kwargs: Any) -> Axes:
    """Draw a histogram of the angles of eigenvalues, folded into 0 … π: the insets of nnRNN's figure 3.

    Args:
        values: From :func:`schur_eigenvalues` or :func:`eigenvalues`.
        ax: Axes to draw on; None, the default, makes new ones.
        bins: Number of bins.
        kwargs: Passed to ``Axes.hist``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    _check_result(values, "values", values.is_complex(), "eigenvalues(W)")
    ax = _axes(ax)
    style = {"histtype": "stepfilled", "linewidth": 1.5, "alpha": 0.8, **kwargs}
    ax.hist(_array(values.angle().abs().flatten()), bins=bins, range=(0, torch.pi), **style)
    ax.set_xticks([0, torch.pi / 2, torch.pi], ["0", "π/2", "π"])
    ax.set(xlim=(0, torch.pi), xlabel="angle of the eigenvalue", ylabel="eigenvalues")
    return ax


def plot_transient_growth(
    growth: TransientGrowth, ax: Axes | None = None, kreiss: Tensor | None = None, **kwargs: Any
) -> Axes:
    """Draw the norms of the powers of W, and the Kreiss constant, a lower bound on the largest norm.

    Args:
        growth: From :func:`transient_growth`; one curve for each matrix.
        ax: Axes to draw on; None, the default, makes new ones.
        kreiss: From :func:`kreiss_constant`: a dashed line for each matrix, in the colour of its curve.
        kwargs: Passed to ``Axes.plot``, for example ``label`` and ``color``.

    Returns:
        The axes.
    """
    _check_result(growth, "growth", isinstance(growth, TransientGrowth), "transient_growth(W, steps)")
    ax = _axes(ax)
    lines = _curves(ax, torch.arange(growth.norms.shape[-1], device="cpu"), growth.norms, **kwargs)
    if kreiss is not None:
        for colour, bound in zip(lines, kreiss.flatten().tolist(), strict=True):
            ax.axhline(bound, color=colour, linestyle="--", linewidth=1)
    ax.set(xlabel="k", ylabel=r"$\|W^k\|_2$")
    return ax


def plot_modes(
    model: Any,
    ax: Axes | None = None,
    number: int = 4,
    shape: tuple[int, int] | None = None,
    amplitudes: Any = None,
    **kwargs: Any,
) -> Axes:
    """Draw the modes of stable dynamics, with frequencies and decay times, one mode of each conjugate pair.

    Args:
        model: A fitted :class:`~spectral_param.dynamics.StableLinearModel`.
        ax: Axes to draw on; None, the default, makes new ones.
        number: Number of modes.
        shape: Rows and columns of a field, whose columns of states are drawn as images from left to right;
            None, the default, draws curves over the index of the state.
        amplitudes: From ``model.amplitudes(X)``: the modes with the largest amplitudes are drawn. None, the
            default, draws the modes that decay most slowly.
        kwargs: Passed to ``Axes.plot``, or to ``Axes.imshow`` with a shape.

    Returns:
        The axes. Real parts are drawn, each divided by its largest modulus.

    Raises:
        ValueError: If the model is not fitted, or the shape does not fit the states.
    """
    modes = getattr(model, "modes_", None)
    if modes is None:
        raise ValueError(
            f"model: expected a fitted spectral_param.dynamics.StableLinearModel, got {described(model)}."
        )
    import numpy as np

    height = len(modes)
    if shape is not None and (len(shape) != 2 or shape[0] * shape[1] != height):
        raise ValueError(f"shape: expected (rows, columns) of {height} states, got {shape!r}.")
    ax = _axes(ax)
    one_of_pair = np.flatnonzero(model.frequencies_ >= 0)
    if amplitudes is not None:
        one_of_pair = one_of_pair[np.argsort(-np.abs(np.asarray(amplitudes))[one_of_pair], kind="stable")]
    drawn, titles = [], []
    for i in one_of_pair[:number]:
        mode = modes[:, i]
        largest = mode[np.abs(mode).argmax()]
        drawn.append((mode / largest if largest != 0 else mode).real)
        titles.append(f"f = {model.frequencies_[i]:.3g}, decay time {model.decay_times_[i]:.3g}")
    if shape is None:
        for curve, title in zip(drawn, titles, strict=True):
            ax.plot(range(1, height + 1), curve, **{"label": title, **kwargs})
        ax.set(xlabel="state", ylabel="mode, real part")
        ax.legend(frameon=False, fontsize="small")
        return ax
    gap = max(1, shape[1] // 20)
    tiles = np.full((shape[0], len(drawn) * (shape[1] + gap) - gap), np.nan)
    for k, tile in enumerate(drawn):
        begin = k * (shape[1] + gap)
        tiles[:, begin : begin + shape[1]] = tile.reshape(shape)
    ax.imshow(tiles, **{"cmap": "RdBu_r", "vmin": -1, "vmax": 1, **kwargs})
    middle = [k * (shape[1] + gap) + (shape[1] - 1) / 2 for k in range(len(drawn))]
    ax.set_xticks(middle, [title.replace(", ", "\n") for title in titles])
    ax.set_yticks([])
    ax.set(xlabel="mode, real part")
    return ax


def plot_choice(choice: Any, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Draw the errors of a forecast's candidates on held-out rows: for each fold, and their mean.

    Args:
        choice: ``choice_`` of a :class:`~spectral_param.dynamics.StableLinearModel` that was fitted with
            ``noise="auto"``.
        ax: Axes to draw on; None, the default, makes new ones.
        kwargs: Passed to ``Axes.plot``, for the means.

    Returns:
        The axes, with a logarithmic scale. A ring is around the candidate that was taken.

    Raises:
        ValueError: If ``choice`` is not such a choice.
    """
    table = getattr(choice, "table", None)
    if not table or "error of fold 0" not in table:
        raise ValueError(
            'choice: expected choice_ of a StableLinearModel(noise="auto") after fit, got '
            f"{described(choice)}."
        )
    import numpy as np

    ax = _axes(ax)
    kept = np.isfinite(np.array(table["score"], dtype=float))
    names = []
    for i in np.flatnonzero(kept):
        baseline = table["baseline"][i] if "baseline" in table else None
        ridge = f", {table['ridge'][i]:g}" if "ridge" in table else f", {table['states'][i]} states"
        names.append(baseline or f"{table['noise'][i]}{ridge}")
    x = np.arange(len(names))
    for name in table:
        if name.startswith("error of fold"):
            ax.plot(x, table[name][kept], ".", color=_GREY, markersize=4, zorder=1)
    ax.plot(x, table["error"][kept], **{"marker": "o", "linestyle": "none", **kwargs})
    (taken,) = np.flatnonzero(table["taken"][kept])
    ax.scatter(taken, table["error"][kept][taken], s=120, facecolors="none", edgecolors="black")
    ax.set_xticks(x, names, rotation=30, ha="right")
    ax.set(yscale="log", xlabel="candidate", ylabel="error on held-out rows")
    return ax


def _check_result(value: object, name: str, is_result: bool, call: str) -> None:
    """Raise unless a plot got a result of the analysis, not a weight."""
    if not is_result:
        got = described(value)
        raise ValueError(f"{name}: expected what analysis.{call} returns, got {got}. Pass that result.")


def _are_norms(values: Tensor) -> bool:
    """Return whether all numbers are real and not negative."""
    return not (values.is_complex() or bool((values < 0).any()))


def _axes(ax: Axes | None) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "spectral_param.analysis: expected matplotlib for plots, got none. Run pip install matplotlib."
        ) from error
    return plt.subplots()[1] if ax is None else ax


def _curves(ax: Axes, x: Tensor, y: Tensor, **kwargs: Any) -> list[Any]:
    """Draw y (..., points) over x; only the first curve has a label. Return the curves' colours."""
    colours: list[Any] = []
    for curve in y.reshape(-1, y.shape[-1]):
        (line,) = ax.plot(_array(x), _array(curve), **kwargs)
        kwargs.pop("label", None)
        colours.append(line.get_color())
    return colours


def _array(X: Tensor) -> np.ndarray:
    return X.detach().cpu().numpy()
