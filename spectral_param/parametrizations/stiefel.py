"""The mark of a weight that its optimizer keeps orthogonal or unitary (full-capacity uRNN)."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.functional.checks import check_finite
from spectral_param.parametrizations._orthogonal import check_orthogonal, polar_factor
from spectral_param.parametrizations.base import Parametrization


class Stiefel(Parametrization):
    r"""Orthogonal (unitary) weight that is trained as it is, by :class:`spectral_param.optim.StiefelRMSprop`.

    Wisdom et al., "Full-Capacity Unitary Recurrent Neural Networks" (NeurIPS 2016). Unlike the other
    parametrizations, this one constrains nothing in the forward pass: the weight is its own
    ``original``. Registration takes the nearest orthogonal weight (the polar factor), and
    :func:`spectral_param.optim.stiefel_groups` finds the weight for the optimizer, whose steps keep it
    orthogonal up to the rounding errors that add up. Any other optimizer leaves the set.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> register_parametrization(rnn, "weight_hh_l0", spectral_param.parametrizations.Stiefel())
        ParametrizedRNN(...)
        >>> groups = spectral_param.optim.stiefel_groups(rnn, lr=1e-3, stiefel_lr=1e-4)
        >>> optimizer = spectral_param.optim.StiefelRMSprop(groups)
    """

    def constrain(self, W: Tensor) -> Tensor:  # type: ignore[override]
        """Return W, in memory of its own like every constrained weight."""
        return W.clone()

    assignable_behind = True

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor:
        """Return W, or its polar factor."""
        check_finite(W, "Stiefel")
        if project:
            return polar_factor(W)
        check_orthogonal(W, eps, "Stiefel")
        return W.clone()

    def start(self, like: Tensor) -> Tensor:
        """Return random orthogonal (unitary) matrices, uniform by Haar's measure."""
        return polar_factor(torch.randn_like(like))

    def free_parameters(self, W: Tensor) -> int:  # type: ignore[override]
        """Return the dimension of the manifold: n(n-1)/2 for each real matrix, n² for each complex one."""
        n = W.shape[-1]
        return W.numel() // n**2 * (n * n if W.is_complex() else n * (n - 1) // 2)
