"""Orthogonal matrices by the exponential of a skew-symmetric one (expRNN, dtriv)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from spectral_param import init
from spectral_param.context import matmul
from spectral_param.functional.checks import check_finite, check_real
from spectral_param.functional.exponential import skew_exponential
from spectral_param.parametrizations._orthogonal import check_orthogonal, polar_factor
from spectral_param.parametrizations.base import Parametrization, at_least_float32

Angles = Literal["henaff", "cayley"]


class SkewExponential(Parametrization):
    r"""Orthogonal weight :math:`W = B\, e^A`, A skew-symmetric, B a fixed orthogonal base.

    Sources: Lezcano-Casado and Martínez-Rubio, "Cheap Orthogonal Constraints in Neural Networks" (ICML
    2019), with B = I; Lezcano-Casado, "Trivializations for Gradient-Based Optimization on Manifolds"
    (NeurIPS 2019), with a base that moves along: :func:`spectral_param.rebase`. The map is that of
    geotorch's ``SO`` with ``triv="expm"``, A being ``T.tril(-1) - T.tril(-1).mT`` of the original T.

    Weights of shape ``(..., n, n)``, real. Registration starts from the nearest orthogonal weight (the polar
    factor), which becomes the base, with A = 0; so does an assignment. The base keeps the determinant, and
    training does not change it. The base is a buffer, float32 or better.

    Args:
        angles: Of the rotations that ``init="paper"`` starts from, with B = I: ``"henaff"``, uniform in
            [-π, π), or ``"cayley"``, in [0, π/2]. The papers take either, depending on the task.

    Raises:
        ValueError: If ``angles`` is something else.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> register_parametrization(rnn, "weight_hh_l0", spectral_param.SkewExponential())
        ParametrizedRNN(...)
        >>> W = rnn.weight_hh_l0
        >>> torch.allclose(W @ W.mT, torch.eye(64), atol=1e-5)
        True
    """

    base: Tensor | None

    def __init__(self, angles: Angles = "henaff") -> None:
        super().__init__()
        if angles not in get_args(Angles):
            raise ValueError(f"angles: expected one of {', '.join(get_args(Angles))}, got {angles!r}.")
        self.angles = angles
        self.register_buffer("base", None)

    def constrain(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return B exp(A)."""
        T = T.tril(-1)
        E = skew_exponential(T - T.mT)
        return E if self.base is None else matmul(self.base.to(E.device, E.dtype), E)

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor:
        """Return T = 0, and make W the base."""
        check_real(W, "SkewExponential", "For unitary weights take spectral_param.ScaledCayley.")
        check_finite(W, "SkewExponential")
        if not project:
            check_orthogonal(W, eps, "SkewExponential")
        self.base = polar_factor(W)
        return torch.zeros_like(W)

    def start(self, like: Tensor) -> Tensor:
        """Return T with those angles, and make I the base."""
        check_real(like, "SkewExponential", "For unitary weights take spectral_param.ScaledCayley.")
        fill = init.henaff_ if self.angles == "henaff" else init.cayley_
        R = fill(torch.empty_like(like))
        angles = torch.atan2(R.diagonal(-1, -2, -1), R.diagonal(0, -2, -1)[..., :-1])
        identity = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
        self.base = identity.expand_as(R).clone()
        # Between two rotations the entry below the diagonal is zero, and must not become an angle.
        angles[..., 1::2] = 0
        return torch.diag_embed(angles, -1)

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return n(n-1)/2 for each matrix."""
        n = T.shape[-1]
        return T.numel() // n**2 * (n * (n - 1) // 2)

    def rebase(self, T: Tensor) -> None:
        """Make the present weight the base, and T zero. The weight changes by rounding only.

        Args:
            T: The weight's original.
        """
        with torch.no_grad():
            W = self.constrain(at_least_float32(T))
            if self.base is not None and bool(W.isfinite().all()):
                # The product of many exponentials drifts away from the orthogonal matrices.
                self.base.copy_(polar_factor(W))
                T.zero_()

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"angles={self.angles!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SkewExponential:
        """Keep the base orthogonal to the precision that a conversion asks for, float32 or better."""
        base = self.base
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if base is not None and self.base is not None and self.base.dtype != base.dtype:
            wanted = torch.promote_types(self.base.dtype, torch.float32)
            self.base = polar_factor(base.to(self.base.device, wanted))
        return self
