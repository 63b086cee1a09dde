"""Orthogonal and unitary matrices as products of Householder reflections (oRNN)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param._map import matmul
from spectral_param._parametrizations.decoded import signs
from spectral_param._parametrizations.orthogonal import Orthonormal
from spectral_param._parametrizations.tensors import as_real, at_least_float32, is_trained, on_rows
from spectral_param._sets import orthonormal
from spectral_param.functional._checks import whole_number
from spectral_param.functional._householder import (
    all_reflections,
    householder_apply,
    householder_factors,
    unit_columns,
)


class Householder(Orthonormal, same_set=True):
    r"""Weight with orthonormal columns: :math:`W = H_1 H_2 ⋯ H_k`, :math:`H_i = I - 2 u_i u_i^H / \|u_i\|^2`.

    A square weight is orthogonal (unitary), and a wide weight has orthonormal rows. With k < n reflections
    the weight has fewer parameters, and a product with a vector costs O(nk).

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> constraint = spectral_param.Householder(reflections=16)
        >>> rnn = spectral_param.constrain(rnn, "weight_hh_l0", constraint, init="paper")
        >>> W = rnn.weight_hh_l0
        >>> torch.allclose(W @ W.mT, torch.eye(64), atol=1e-5)
        True
        >>> rnn.parametrizations.weight_hh_l0.original.shape
        torch.Size([64, 16])

    Args:
        reflections: Number k of reflections. ``None``, the default, is n, which reaches every orthogonal
            weight. Fewer reflections have fewer parameters and take less time; the paper compares several k.

    Raises:
        ValueError: If ``reflections`` is not a positive integer.

    Source: Mhammedi, Hellicar, Rahman and Bailey, "Efficient Orthogonal Parametrisation of Recurrent
    Neural Networks Using Householder Reflections" (ICML 2017). The first i - 1 entries of the vector u_i are
    zero. The vectors u_i are the columns of the weight's ``original``, of shape ``(..., n, k)``; entries
    above the diagonal are ignored. The length of a vector has no effect.

    - k = n reaches every orthogonal (unitary) weight, as W = H_1 ⋯ H_n D with a diagonal D of entries d_i.
    - k < n reaches every orthogonal (unitary) weight with rank(I - W) ≤ k; such a weight keeps n - k
      dimensions fixed. For k < n, H_i multiplies u_i by d_i, and vectors orthogonal to u_i by 1.

    For a real weight, the numbers d_i = ±1 are the buffer ``signs``, which registration and assignment
    choose. Training changes neither d nor the determinant, which depends on d. For k = n, D replaces the
    paper's last reflection, which is ±1. For k < n, all d_i are -1, so H_i is a reflection.

    For a complex weight, d_i = exp(iθ_i) with trained θ. Reflections alone would not reach all unitary
    weights. The vectors are ``original0``, and θ is ``original1``.

    A tall weight ``(..., m, n)`` consists of the first n columns of H_1 ⋯ H_n D, and a wide weight is the
    transpose of a tall weight; k is n for such weights. Registration takes the nearest matrix with
    orthonormal columns, the polar factor. With k < n, registration needs the random ``init="paper"``, and
    only the weight that was read last can be assigned. Computing W costs three products of n × k matrices.
    For small k, :meth:`operator` makes a recurrence cheaper.

    The distance of a weight from the set is the Frobenius norm ‖WᴴW - I‖, which bounds ``|σᵢ² - 1|`` for each
    singular value σᵢ; ``project`` takes the nearest weight of the set, the polar factor. With k < n only the
    weight that was read last counts as a member.

    A zero vector means no reflection, H = I. The gradient of a zero vector is zero, so the vector stays zero.
    Registration does not create zero vectors.
    """

    shapes = "tall"
    signs: Tensor | None

    def __init__(self, reflections: int | None = None) -> None:
        super().__init__()
        if reflections is not None:
            otherwise = ", or None for one per row of the weight"
            reflections = whole_number(reflections, "reflections", otherwise=otherwise)
        self.reflections = reflections
        if reflections is not None:
            self.by_map_alone = "no projection onto products of few reflections is known"
        self.register_buffer("signs", None)

    @property
    def acts_after(self) -> bool:  # type: ignore[override]
        """Whether k = n: then the original has one vector per column, and so the shape of the weight."""
        return self.reflections is None

    def reference(self, vectors: Tensor, angles: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return W for vectors ``(..., m, k)`` and, for a complex weight, angles ``(..., k)``."""
        tau, d = self._coefficients(vectors, angles)
        U, X = householder_factors(vectors.tril(), tau)
        m, n = U.shape[-2:] if self.reflections is None else X.shape[-1:] * 2
        W = torch.eye(m, n, dtype=U.dtype, device=U.device) - matmul(U, X[..., :n])
        return W if d is None else W * d[..., None, :]

    def operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function h -> h Wᵀ on rows ``(..., n)``, which does not form W.

        Each call of the function takes two products with n × k matrices instead of one product with W. For
        k well below n/2 the function is faster if the same W acts many times, as in a recurrence. Factors
        that depend only on the vectors are computed once, when ``operator`` is called.

        Args:
            originals: The tensors that the optimizer trains.

        Raises:
            ValueError: If the weight consists of gates.

        Example:
            >>> layer = torch.nn.Linear(64, 64, bias=False)
            >>> constraint = spectral_param.Householder(reflections=4)
            >>> layer = spectral_param.constrain(layer, "weight", constraint, init="paper")
            >>> of_weight = layer.parametrizations.weight
            >>> apply = of_weight[0].operator(of_weight.original)
            >>> h = torch.randn(5, 64)
            >>> torch.allclose(apply(h), h @ layer.weight.mT, atol=1e-5)
            True
        """
        self._check_one_square()
        vectors, *angles = map(at_least_float32, originals)
        tau, d = self._coefficients(vectors, *angles)
        U, X = householder_factors(vectors.tril(), tau)

        if d is not None and d.ndim > 1:
            d = d[..., None, :]  # The batch of d is a batch of matrices: add an axis for the rows of h.

        def apply(h: Tensor) -> Tensor:
            return householder_apply(h if d is None else h * d, U, X)

        return on_rows(apply, U.dtype)

    def count(self, n: int) -> int:
        """Return k for matrices of n columns.

        Raises:
            ValueError: If k > n.
        """
        count = n if self.reflections is None else self.reflections
        if count > n:
            raise ValueError(f"reflections: expected at most n = {n}, got {count}. Take None for n.")
        return count

    def check_matrices(self, W: Tensor) -> None:
        """Raise for more reflections than rows, and for matrices that are not square if k is given."""
        self.count(W.shape[-1])
        if self.reflections is not None and W.shape[-2] != W.shape[-1]:
            raise ValueError(
                f"reflections: expected None for a weight that is not square, got {self.reflections}: a "
                "product of k reflections fixes the other directions of a square matrix. Leave it out."
            )

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ‖WᴴW - I‖.

        Raises:
            InManifoldError: For fewer reflections than rows, because such reflections cannot be computed from
                W.
        """
        count = self.count(W.shape[-1])
        if count < W.shape[-1]:
            remedy = "reflections=None, which reaches every orthogonal weight"
            raise self._has_no_inverse(f"{count} reflections", remedy)
        return super().outside(W, eps)

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the originals of W: the vectors, and for a complex W the angles."""
        vectors, d = all_reflections(orthonormal.near(W))
        if W.is_complex():
            return vectors, d.angle()
        self.signs = d
        return vectors

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return normally distributed vectors, scaled to norm 1, as in the authors' code.

        A complex weight starts with reflections, too: θ = 0 for k = n, and θ = π for k < n.
        """
        n = like.shape[-1]
        count = self.count(n)
        vectors = unit_columns(torch.randn_like(like[..., :count]).tril())
        if like.is_complex():
            angles = torch.full_like(vectors[..., 0, :].real, 0 if count == n else math.pi)
            return vectors, angles
        self.signs = torch.full_like(like[..., 0, :count], -1)
        if count == n:
            # The paper's last reflection is ±1, chosen at random. All other entries of D are 1.
            self.signs = -self.signs
            self.signs[..., -1] = 1 - 2 * torch.randint_like(self.signs[..., -1], 2)
        return vectors

    def free_parameters(self, vectors: Tensor, angles: Tensor | None = None) -> int:  # type: ignore[override]
        """Return the dimension of the set: k(2n-k-1)/2 per real matrix, k(2n-k) per complex matrix."""
        n, k = vectors.shape[-2:]
        matrices = vectors.numel() // (n * k)
        if angles is None:
            return matrices * (k * (2 * n - k - 1) // 2)
        return matrices * k * ((2 * n - k - 1) * is_trained(vectors) + is_trained(angles))

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"reflections={self.reflections}"

    def _coefficients(
        self, vectors: Tensor, angles: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the reflections' factors τ (None if all are 2) and the diagonal of D (None if all are 1)."""
        if angles is not None:
            # Module.double converts the angles, but not the complex vectors.
            angles = as_real(angles).to(vectors.real.dtype)
            d = torch.polar(torch.ones_like(angles), angles)
        elif self.signs is not None:
            d = signs(self.signs, vectors)
        else:
            return None, None
        n, k = vectors.shape[-2:]
        return (None, d) if k == n or self.reflections is None else (1 - d, None)
