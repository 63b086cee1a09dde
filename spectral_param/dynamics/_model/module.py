"""Stable linear dynamics as a torch module, to continue training from a fit."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from spectral_param._matrices import Array
from spectral_param._parametrizations import SpectralAbscissa, SpectralRadiusNorm


class StableLinear(nn.Module):
    """x ↦ A x + B u + c, where the eigenvalues of A stay in a disc or a half-plane during training.

    Args:
        A: State matrix ``(n, n)`` that satisfies the bound.
        B: Input matrix ``(n, m)``, or None.
        c: Offset ``(n,)``, or None.
        time: ``"discrete"`` for a spectral radius of at most ``bound``, ``"continuous"`` for real parts of at
            most ``bound``.
        bound: The radius or the abscissa.
    """

    def __init__(self, A: Array, B: Array | None, c: Array | None, time: str, bound: float) -> None:
        super().__init__()
        self.A = _parameter(A)
        self.B = None if B is None else _parameter(B)
        self.c = None if c is None else _parameter(c)
        constraint = SpectralRadiusNorm if time == "discrete" else SpectralAbscissa
        register_parametrization(self, "A", constraint(bound, mode="at_most"))

    def forward(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        """Return the next states, or the derivatives.

        Args:
            x: States ``(..., n)``.
            u: Inputs ``(..., m)``.

        Returns:
            Tensor ``(..., n)``.

        Raises:
            ValueError: If inputs are passed and the fit had none, or the other way round.
        """
        if (u is None) != (self.B is None):
            raise ValueError(
                f"StableLinear: expected {'no ' if self.B is None else ''}inputs u, as in the fit, got "
                f"{'none' if u is None else 'some'}."
            )
        following = x @ self.A.mT
        if u is not None and self.B is not None:
            following = following + u @ self.B.mT
        return following if self.c is None else following + self.c


def _parameter(M: Array) -> nn.Parameter:
    return nn.Parameter(torch.tensor(M, dtype=torch.float64, device="cpu"))
