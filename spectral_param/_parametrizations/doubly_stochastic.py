"""Matrices whose rows and columns have the sum 1: mixing without amplification."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from spectral_param._map import Map
from spectral_param._parametrizations import stochastic
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.tensors import is_trained
from spectral_param._precision import relative_rounding
from spectral_param.functional import _doubly_stochastic as doubly
from spectral_param.functional._checks import check_real


class DoublyStochastic(Parametrization):
    r"""Square weight with entries ≥ 0 whose rows and columns have the sum 1; it mixes without amplifying.

    The weight has the spectral norm 1, and so has any product of such weights: :math:`‖Wx‖ ≤ ‖x‖`, and the
    entries of Wx and x have the same mean. If a network computes a matrix for each token, use
    :func:`spectral_param.functional.doubly_stochastic`, the function behind this constraint.

    Example:
        >>> mixing = torch.nn.Linear(4, 4, bias=False)
        >>> mixing = spectral_param.constrain(
        ...     mixing, "weight", spectral_param.DoublyStochastic(), init=0.9 * torch.eye(4) + 0.025
        ... )
        >>> W = mixing.weight
        >>> torch.allclose(W.sum(dim=0), torch.ones(4)), torch.allclose(W.sum(dim=1), torch.ones(4))
        (True, True)
        >>> round(torch.linalg.matrix_norm(W, 2).item(), 5)
        1.0

    Args:
        floor: A number ε, 0 <= ε < 1. No entry is below ε/n. The largest singular value is 1, and all other
            singular values are at most 1 - ε, so that each step multiplies the deviation of x from its mean
            by at most 1 - ε. With the default, 0, entries are at least 0.

    Raises:
        ValueError: If ``floor`` is outside its range.

    The weight is :math:`W = (1 - ε) S + ε/n` with the doubly stochastic matrix
    :math:`S_{ij} = e^{T_{ij} + f_i + g_j}`. T holds the logits; the vectors f and g are such that all rows
    and columns have the sum 1. Sources: Sinkhorn, "A relationship between arbitrary positive matrices and
    doubly stochastic matrices" (Annals of Mathematical Statistics 35, 1964); for the mixing of the streams of
    a residual network, Xie et al., "mHC: Manifold-Constrained Hyper-Connections" (arXiv 2512.24880).

    Registration takes a square weight without negative entries, and scales its rows and columns to the sum 1.
    If the result S has an entry below ε/n, S is replaced by (1 - s) S + s/n, with the smallest s for which
    all entries are at least ε/n. If the positive entries are not a union of permutations
    (as in a triangular matrix of ones), some zeros become positive, or some positive entries become zero; see
    :func:`~spectral_param.functional.doubly_stochastic`. Negative entries and rows or columns without a
    positive entry are refused. For a random start take ``init="paper"``, which draws Gaussian logits T.

    An entry of 0 becomes about :math:`e^{-60}`, which is less than a rounding error. (With the floor ε, an
    entry of ε/n grows by about :math:`e^{-60}`.) The derivative of such an entry is equally small, so **zeros
    stay zeros in training**. To let all entries train, register a mixture, as in the example:
    ``0.9 * W + 0.1 / n``.
    """

    by_map_alone = stochastic.NO_ZEROS

    def __init__(self, floor: float = 0.0) -> None:
        super().__init__()
        self.floor = stochastic.checked_floor(floor)

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return (1 - ε) S + ε/n."""
        return _reference(T, floor=self.floor)

    def evaluate(self, T: Tensor) -> Map:  # type: ignore[override]
        """Return (1 - ε) S + ε/n, with a hand-written gradient of S."""
        floor, of_T = self.floor, doubly.evaluate(T)
        return Map(
            stochastic.mixed(of_T.value, floor),
            lambda G, needed: of_T.pull_back((1 - floor) * G, needed),
            functools.partial(_reference, floor=floor),
        )

    def check_matrices(self, W: Tensor) -> None:
        """Raise for complex matrices."""
        check_real(W, "DoublyStochastic", stochastic.AMPLITUDES)

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ``stochastic.largest_error`` of W, and the rounding error of this number."""
        rounding = relative_rounding(W.shape[-1], eps, W.dtype)
        return stochastic.largest_error(W, self.floor, dims=(-1, -2)), rounding

    def near(self, W: Tensor) -> Tensor:
        """Return W with rows and columns scaled to the sum 1; ``stochastic.raised`` lifts entries below ε/n.

        Raises:
            ValueError: If W has negative entries, or a row or column of zeros.
        """
        stochastic.check_scalable(W, (-1, -2), "DoublyStochastic")
        T = torch.where(W > 0, W.log(), -1e4)  # -1e4 stands for log 0: all other logarithms are larger.
        return stochastic.raised(doubly.evaluate(T).value, self.floor, dims=(-2, -1))

    def invert(self, W: Tensor) -> Tensor:
        """Return logits T for W: the logarithms of S = (W - ε/n)/(1 - ε)."""
        return stochastic.logits(W, self.floor)

    def _set_name(self) -> str:
        return f"a weight with rows and columns of sum 1 and no entry below {self.floor:g}/n"

    def start(self, like: Tensor) -> Tensor:
        """Return Gaussian logits."""
        return torch.randn_like(like)

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return (n - 1)² for each matrix."""
        n = T.shape[-1]
        return is_trained(T) * T[..., 0, 0].numel() * (n - 1) ** 2

    def extra_repr(self) -> str:
        """Return the argument, for ``repr``."""
        return f"floor={self.floor}"


def _reference(T: Tensor, floor: float) -> Tensor:
    return stochastic.mixed(doubly.reference(T), floor)
