"""Orthogonal matrices by the exponential of a skew-symmetric matrix (expRNN, dtriv)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from spectral_param import init
from spectral_param._map import Map, recorded
from spectral_param._matrices import identity_like
from spectral_param._parametrizations.decoded import orthogonal, orthogonal_unseen
from spectral_param._parametrizations.orthogonal import Orthonormal
from spectral_param._parametrizations.tensors import at_least_float32
from spectral_param._sets import orthonormal
from spectral_param.functional._checks import check_real
from spectral_param.functional._exponential import skew_exponential, tangent_exponential

Angles = Literal["henaff", "cayley"]


class SkewExponential(Orthonormal):
    r"""Orthogonal weight :math:`W = B\, e^A` with a skew-symmetric A and a fixed orthogonal base B.

    A tall weight has orthonormal columns, a wide weight orthonormal rows.
    :class:`spectral_param.ScaledCayley` is faster and has nearly the same set. Take this map for expRNN and,
    with :func:`spectral_param.rebase`, for dtriv.

    Example:
        >>> layer = torch.nn.Linear(64, 16)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SkewExponential())
        >>> W = layer.weight
        >>> torch.allclose(W @ W.mT, torch.eye(16), atol=1e-5)
        True

    Args:
        angles: The distribution of the rotation angles with which ``init="paper"`` starts a square weight,
            at the base B = I: ``"henaff"``, the default, is uniform in [-π, π), and ``"cayley"`` is uniform
            in [0, π/2]. The papers use both distributions, depending on the task.

    Raises:
        ValueError: If ``angles`` is neither ``"henaff"`` nor ``"cayley"``.

    Sources: Lezcano-Casado and Martínez-Rubio, "Cheap Orthogonal Constraints in Neural Networks" (ICML
    2019), with B = I; Lezcano-Casado, "Trivializations for Gradient-Based Optimization on Manifolds"
    (NeurIPS 2019), where :func:`spectral_param.rebase` moves the base in training. The map equals geotorch's
    ``SO`` with ``triv="expm"``: the original is T, and A = ``T.tril(-1) - T.tril(-1).mT``.

    The weight is real, of shape ``(..., m, n)``. A tall W is the end of the geodesic from the base B in the
    direction of T, and a wide W is the transpose of a tall W (Edelman, Arias and Smith, "The Geometry of
    Algorithms with Orthogonality Constraints", SIAM Journal on Matrix Analysis and Applications 1998).
    Registration projects the weight onto the nearest matrix with orthonormal columns (the polar factor). This
    matrix becomes the base, with T = 0; an assigned weight becomes the base, too. Training does not change
    the determinant of a square weight, because det W = det B. B is a buffer in float32 or better.

    The distance of a weight from the set is the Frobenius norm ‖WᴴW - I‖, which bounds ``|σᵢ² - 1|`` for each
    singular value σᵢ; ``project`` takes the nearest weight of the set, the polar factor.
    """

    shapes = "tall"
    angles: Angles
    base: Tensor | None

    def __init__(self, angles: Angles = "henaff") -> None:
        super().__init__(angles=(angles, Angles))
        self.register_buffer("base", None)

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return the weight, the exponential of T at the base B."""
        base = self._base_like(T)
        return _at(base if base is None else orthogonal_unseen(base), T)

    def evaluate(self, T: Tensor) -> Map:  # type: ignore[override]
        """Return the exponential of T at the present base; autograd computes the gradient."""
        base = self._base_like(T)
        return recorded(functools.partial(_at, base if base is None else orthogonal(base)), T)

    def _base_like(self, T: Tensor) -> Tensor | None:
        return None if self.base is None else self.base.to(T.device, T.real.dtype)

    def check_matrices(self, W: Tensor) -> None:
        """Raise for complex matrices."""
        check_real(W, "SkewExponential", "For unitary weights take spectral_param.ScaledCayley.")

    def invert(self, W: Tensor) -> Tensor:
        """Return T = 0, and make W the base."""
        self.base = orthonormal.near(W)
        return torch.zeros_like(W)

    def start(self, like: Tensor) -> Tensor:
        """Return T with random angles, for the base I; for tall matrices, return T = 0 for a random base."""
        if like.shape[-2] > like.shape[-1]:
            self.base = orthonormal.polar_factor(torch.randn_like(like))
            return torch.zeros_like(like)
        fill = init.henaff_ if self.angles == "henaff" else init.cayley_
        R = fill(torch.empty_like(like))
        angles = torch.atan2(R.diagonal(-1, -2, -1), R.diagonal(0, -2, -1)[..., :-1])
        self.base = identity_like(R).expand_as(R).clone()
        # Every second entry of the subdiagonal lies between two rotations, and is not an angle.
        angles[..., 1::2] = 0
        return torch.diag_embed(angles, -1)

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return mn - n(n+1)/2 for each m x n matrix, which is n(n-1)/2 if the matrix is square."""
        m, n = T.shape[-2:]
        return T.numel() // (m * n) * (m * n - n * (n + 1) // 2)

    def rebase(self, T: Tensor) -> None:  # type: ignore[override]
        """Make the present weight the base, and the original T zero. The weight changes only by rounding."""
        with torch.no_grad():
            W = self.evaluate(at_least_float32(T)).value  # The same W that a read of the weight returns.
            if self.base is not None and bool(W.isfinite().all()):
                # Without the projection, rounding errors of many products would accumulate.
                self.base.copy_(orthonormal.polar_factor(W))
                T.zero_()

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"angles={self.angles!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SkewExponential:
        """Convert the module; if the dtype of the base changes, make the base orthogonal in the new dtype."""
        base = self.base
        super()._apply(fn, recurse)
        if base is not None and self.base is not None and self.base.dtype != base.dtype:
            wanted = torch.promote_types(self.base.dtype, torch.float32)
            self.base = orthonormal.polar_factor(base.to(self.base.device, wanted))
        return self


def _at(base: Tensor | None, T: Tensor) -> Tensor:
    """Return the exponential of T at an orthogonal base, by default the identity."""
    m, n = T.shape[-2:]
    if m > n:
        if base is None:
            base = torch.eye(m, n, dtype=T.dtype, device=T.device)
        return tangent_exponential(base, T)
    T = T.tril(-1)
    E = skew_exponential(T - T.mT)
    return E if base is None else base @ E
