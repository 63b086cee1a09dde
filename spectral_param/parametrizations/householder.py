"""Orthogonal and unitary matrices as products of Householder reflections (oRNN)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param.errors import InManifoldError
from spectral_param.functional.checks import check_finite
from spectral_param.functional.householder import (
    all_reflections,
    few_reflections,
    householder,
    householder_apply,
    householder_factors,
    unit_columns,
)
from spectral_param.parametrizations._orthogonal import check_orthogonal, polar_factor
from spectral_param.parametrizations.base import (
    Parametrization,
    as_real,
    at_least_float32,
    is_trained,
    on_rows,
)


class Householder(Parametrization):
    r"""Orthogonal (unitary) weight :math:`W = H_1 H_2 ⋯ H_k`, :math:`H_i = I - 2 u_i u_i^H / \|u_i\|^2`.

    Source: Mhammedi, Hellicar, Rahman and Bailey, "Efficient Orthogonal Parametrisation of Recurrent
    Neural Networks Using Householder Reflections" (ICML 2017). The i-th vector has zeros in its first
    i - 1 entries. The vectors are the columns of the weight's ``original``, of shape ``(..., n, k)``;
    what stands above its diagonal is not read. Their scale has no effect.

    - k = n: every orthogonal (unitary) weight, as W = H_1 ⋯ H_n D with a diagonal D.
    - k < n: every orthogonal (unitary) weight with rank(I - W) ≤ k, which leaves n - k dimensions as they
      are. H_i multiplies u_i by d_i, and what is orthogonal to it by 1.

    Real weight: d_i = ±1, fixed between assignments (buffer ``signs``); they decide the determinant, which
    training cannot change. For k = n they are in the place of the paper's smallest reflection, ±1. For
    k < n they are -1, a reflection, except for one +1 where the determinant asks for it. Complex weight:
    d_i = exp(iθ_i), θ trained, without which reflections would not reach all of these sets. The vectors
    are then ``original0``, θ is ``original1``.

    Weights of shape ``(..., n, n)``. Registration takes the orthogonal matrix that is
    nearest (the polar factor), and with k < n the nearest to that one in the set. Costs three products of
    n × k matrices; with small k a recurrence is cheaper through :meth:`operator`.

    A vector of zeros stands for no reflection: H = I, and its gradient is zero, so that training leaves
    it alone. Registration makes none.

    Args:
        reflections: Number k of reflections, ``None`` for n. The paper's tables vary it: fewer are fewer
            parameters and less work.

    Raises:
        ValueError: If ``reflections`` is not a positive integer.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> register_parametrization(rnn, "weight_hh_l0", spectral_param.Householder(reflections=16))
        ParametrizedRNN(...)
        >>> W = rnn.weight_hh_l0
        >>> torch.allclose(W @ W.mT, torch.eye(64), atol=1e-5)
        True
        >>> rnn.parametrizations.weight_hh_l0.original.shape
        torch.Size([64, 16])
    """

    signs: Tensor | None

    def __init__(self, reflections: int | None = None) -> None:
        super().__init__()
        if reflections is not None and (
            isinstance(reflections, bool) or not isinstance(reflections, int) or reflections < 1
        ):
            raise ValueError(
                f"reflections: expected a positive integer, or None for as many as there are rows, got "
                f"{reflections!r}."
            )
        self.reflections = reflections
        self.register_buffer("signs", None)

    def constrain(self, vectors: Tensor, angles: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return W; the vectors have shape (..., n, k), the angles (complex weights) (..., k)."""
        tau, d = self._coefficients(vectors, angles)
        W = householder(vectors.tril(), tau)
        return W if d is None else W * d[..., None, :]

    def fast_operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return :meth:`operator` from the size on at which it was measured to be faster, on CPUs."""
        vectors = originals[0]
        n, k = vectors.shape[-2:]
        pays = n >= 512 and 4 * k <= n and vectors.device.type == "cpu" and self.gates == 1
        return self.operator(*originals) if pays else None

    def operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function h -> h Wᵀ on rows, without ever forming W.

        What it needs of the vectors is computed here, once; each call is two products with n × k
        matrices in place of one with W, which pays for k well below n / 2 where the same W acts many
        times, as in a recurrence.

        Args:
            originals: The tensors the optimizer trains.

        Raises:
            ValueError: If the weight consists of gates.

        Example:
            >>> layer = torch.nn.Linear(64, 64, bias=False)
            >>> layer = spectral_param.constrain(layer, "weight", spectral_param.Householder(reflections=4))
            >>> of_weight = layer.parametrizations.weight
            >>> apply = of_weight[0].operator(of_weight.original)
            >>> h = torch.randn(5, 64)
            >>> torch.allclose(apply(h), h @ layer.weight.mT, atol=1e-5)
            True
        """
        self._check_no_gates()
        vectors, *angles = map(at_least_float32, originals)
        tau, d = self._coefficients(vectors, *angles)
        U, X = householder_factors(vectors.tril(), tau)

        if d is not None and d.ndim > 1:
            d = d[..., None, :]  # One for each matrix of a batch, not for each row.

        def apply(h: Tensor) -> Tensor:
            return householder_apply(h if d is None else h * d, U, X)

        return on_rows(apply, U.dtype)

    def matvec(self, h: Tensor, *originals: Tensor) -> Tensor:
        """Return the rows h Wᵀ without forming W. For many h in turn, see :meth:`operator`.

        Args:
            h: Shape ``(..., n)``.
            originals: The tensors the optimizer trains.
        """
        return self.operator(*originals)(h)

    def count(self, n: int) -> int:
        """Return k for matrices of size n.

        Args:
            n: The size.

        Raises:
            ValueError: If k is larger.
        """
        count = n if self.reflections is None else self.reflections
        if count > n:
            raise ValueError(f"reflections: expected at most n = {n}, got {count}.")
        return count

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the vectors, and the angles for a complex W."""
        n = W.shape[-1]
        count = self.count(n)
        check_finite(W, "Householder")
        if not project:
            self._check_member(W, count, eps)
        if project or eps > torch.finfo(W.dtype).eps:
            W = polar_factor(W)
        if count < n:
            vectors, d = few_reflections(W, count)
        else:
            vectors, d = all_reflections(W)
        if W.is_complex():
            return vectors, d.angle()
        self.signs = d
        return vectors

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return normally distributed vectors of norm 1, as the authors' code does.

        Complex weights start with reflections, too, so θ is 0 for k = n and π otherwise.
        """
        n = like.shape[-1]
        count = self.count(n)
        vectors = unit_columns(torch.randn_like(like[..., :count]).tril())
        if like.is_complex():
            angles = torch.full_like(vectors[..., 0, :].real, 0 if count == n else math.pi)
            return vectors, angles
        self.signs = torch.full_like(like[..., 0, :count], -1)
        if count == n:
            # The smallest reflection is ±1 at random, the others have no sign.
            self.signs = -self.signs
            self.signs[..., -1] = 1 - 2 * torch.randint_like(self.signs[..., -1], 2)
        return vectors

    def free_parameters(self, vectors: Tensor, angles: Tensor | None = None) -> int:  # type: ignore[override]
        """Return k(2n-k-1)/2 for each real matrix, k(2n-k) for each complex one, as their sets have."""
        n, k = vectors.shape[-2:]
        matrices = vectors.numel() // (n * k)
        if angles is None:
            return matrices * (k * (2 * n - k - 1) // 2)
        return matrices * k * ((2 * n - k - 1) * is_trained(vectors) + is_trained(angles))

    def from_matrix(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return the first k columns as vectors; a complex matrix has the phases of :meth:`start`."""
        n = X.shape[-1]
        count = self.count(n)
        if not X.is_complex():
            return (X[..., :count],)
        return X[..., :count], torch.full_like(X[..., 0, :count].real, 0 if count == n else math.pi)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"reflections={self.reflections}"

    def _coefficients(
        self, vectors: Tensor, angles: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return τ and the diagonal of D, None for 2 and for ones."""
        if angles is not None:
            # Module.double converts the angles and leaves the vectors.
            angles = as_real(angles).to(vectors.real.dtype)
            d = torch.polar(torch.ones_like(angles), angles)
        elif self.signs is not None:
            d = self.signs.to(vectors.device, vectors.dtype)
        else:
            return None, None
        n, k = vectors.shape[-2:]
        return (None, d) if k == n else (1 - d, None)

    def _check_member(self, W: Tensor, count: int, eps: float) -> None:
        check_orthogonal(W, eps, "Householder")
        n = W.shape[-1]
        if count == n:
            return
        identity = torch.eye(n, dtype=W.dtype, device=W.device)
        moved = float(torch.linalg.svdvals(identity - W)[..., count].max())
        if moved > 10 * n * eps:
            raise InManifoldError(
                f"Householder: expected a weight that {count} reflections can reach, so that I - W has at "
                f"most {count} singular values above 0, got one where the next is {moved:.1e}. Take more "
                "reflections, or remove the parametrization, set the weight and register a new instance, "
                "which takes the nearest one."
            )
