"""Diagrams of stabilisation: which modes stay as the order of a fit grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spectral_param.analysis._plot import _axes
from spectral_param.functional._checks import described

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_stabilisation(
    models: Sequence[Any],
    ax: Axes | None = None,
    frequency: float = 0.01,
    damping: float = 0.05,
    **kwargs: Any,
) -> Axes:
    """Draw the natural frequencies of models of growing order: frequencies of a structure stay, others move.

    The defaults follow Peeters and De Roeck, "Stochastic System Identification for Operational Modal
    Analysis: A Review" (J. Dyn. Sys., Meas., Control, 2001).

    Args:
        models: Fitted :class:`~spectral_param.dynamics.StableLinearModel` of the same recording, as
            ``[StableLinearModel(states=n, dt=dt).fit(Y) for n in range(2, 17, 2)]``.
        ax: Axes to draw on; None, the default, makes new ones.
        frequency: A mode is stable if its natural frequency differs from a natural frequency of the next
            smaller model by at most this part: 0.01, the default, is 1 %.
        damping: The same limit for the damping ratio; 0.05, the default, is 5 %.
        kwargs: Passed to ``Axes.scatter``.

    Returns:
        The axes. Stable modes are filled, others are rings; each pair is drawn once.

    Raises:
        ValueError: If there is no model, or a model is not fitted.
    """
    if not isinstance(models, Sequence) or not len(models):
        raise ValueError(f"models: expected a list of fitted StableLinearModels, got {described(models)}.")
    for i, model in enumerate(models):
        if not hasattr(model, "natural_frequencies_"):
            raise ValueError(f"models[{i}]: expected a fitted StableLinearModel, got {described(model)}.")
    import numpy as np

    ax, before = _axes(ax), np.zeros((0, 2))
    points = []
    for model in sorted(models, key=lambda model: len(model.A_)):
        pairs = model.frequencies_ > 0
        modes = np.stack([model.natural_frequencies_[pairs], model.damping_ratios_[pairs]], axis=1)
        near = np.array([frequency, damping]) * np.abs(modes)[:, None]
        stays = (np.abs(modes[:, None] - before) <= near).all(axis=2).any(axis=1)
        points += [
            (f, len(model.A_), stay) for (f, _), stay in zip(modes.tolist(), stays.tolist(), strict=True)
        ]
        before = modes
    for stays, fill, label in ((True, "tab:blue", "stable"), (False, "none", "new, or moved")):
        some = [(f, n) for f, n, stay in points if stay == stays]
        drawn = {"s": 25, "facecolors": fill, "edgecolors": "tab:blue", "label": label, **kwargs}
        ax.scatter([f for f, _ in some], [n for _, n in some], **drawn)
    ax.set(xlabel="natural frequency", ylabel="states")
    ax.legend(frameon=False, fontsize="small")
    return ax
