"""Orthogonal and unitary matrices as products of rotations in layers (EUNN)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param.errors import InManifoldError
from spectral_param.functional.checks import check_finite
from spectral_param.functional.givens import (
    ORDERS,
    Order,
    eliminate,
    givens_apply,
    givens_operator,
    max_layers,
    num_rotations,
)
from spectral_param.parametrizations._orthogonal import polar_factor
from spectral_param.parametrizations._present import Present
from spectral_param.parametrizations.base import (
    Parametrization,
    as_real,
    at_least_float32,
    is_trained,
    on_rows,
)


class Givens(Parametrization):
    r"""Orthogonal (unitary) weight :math:`W = D F^{(1)} ⋯ F^{(L)}` of layers of 2x2 rotations.

    Source: Jing, Shen, Dubček, Peurifoy, Skirlo, LeCun, Tegmark and Soljačić, "Tunable Efficient Unitary
    Neural Networks (EUNN) and their application to RNNs" (ICML 2017). Each layer rotates disjoint pairs of
    coordinates, so L sets the capacity: up to n(n-1)/2 rotations, which are all orthogonal (unitary)
    matrices, at a cost of O(nL) for a product with a vector.

    - Real weight: rotations by θ, D = diag(±1), fixed between assignments (buffer ``signs``). θ is the
      weight's ``original``.
    - Complex weight: rotations by θ with phases φ, D = diag(exp iω). θ, φ and ω are ``original0`` to
      ``original2``, all real.

    Weights of shape ``(..., n, n)``. Registration at full capacity starts from the nearest orthogonal weight,
    which is found again exactly. A smaller set is not convex, and no way to its nearest member is known. A
    weight that is in it is found again: always for L ≤ 2 and for ``"fft"``, otherwise as long as no rotation
    is lost in rounding, which becomes likely from about L = 8 on. *Any other weight is dropped for the
    paper's start*, which is random.

    Args:
        layers: Number L of layers, from 1 to n. ``None``, the default, means all: n for
            ``"rectangular"``, log2 n for ``"fft"``. The authors' code takes 2 unless told otherwise.
        order: ``"rectangular"``: layers rotate neighbours, (1,2), (3,4), … and (2,3), (4,5), … in turn.
            ``"fft"``: layer i rotates pairs at distance n/2^i, so that log2 n layers connect every
            coordinate with every other; n has to be a power of two.

    Raises:
        ValueError: If ``layers`` or ``order`` is something else.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> register_parametrization(rnn, "weight_hh_l0", spectral_param.Givens(layers=4))
        ParametrizedRNN(...)
        >>> W = rnn.weight_hh_l0
        >>> torch.allclose(W @ W.mT, torch.eye(64), atol=1e-5)
        True
        >>> rnn.parametrizations.weight_hh_l0.original.shape  # 2 layers of 32 rotations and 2 of 31
        torch.Size([126])
    """

    signs: Tensor | None

    def __init__(self, layers: int | None = None, order: Order = "rectangular") -> None:
        super().__init__()
        if order not in ORDERS:
            raise ValueError(f"order: expected one of {', '.join(ORDERS)}, got {order!r}.")
        if layers is not None and (isinstance(layers, bool) or not isinstance(layers, int) or layers < 1):
            raise ValueError(f"layers: expected a positive integer or None, got {layers!r}.")
        if layers is not None and order == "fft":
            raise ValueError(
                f"layers: expected None for order='fft', whose log2 n layers belong together, got {layers}."
            )
        self.layers = layers
        self.order: Order = order
        self.register_buffer("signs", None)
        self._present = Present()

    def constrain(  # type: ignore[override]
        self, theta: Tensor, phi: Tensor | None = None, omega: Tensor | None = None
    ) -> Tensor:
        """Return W; theta and phi have one entry for each rotation, omega one for each row."""
        angles = [as_real(t) for t in (theta, phi, omega) if t is not None]
        self._present.keep(*angles)
        theta, phi, d = self._rotations(*angles)
        identity = torch.eye(d.shape[-1], dtype=d.dtype, device=d.device)
        return givens_apply(identity, theta, phi, d, order=self.order).mT

    def fast_operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return :meth:`operator` from the size on at which it was measured to be faster, on CPUs."""
        diagonal = originals[2] if len(originals) == 3 else self.signs
        n = 0 if diagonal is None else diagonal.shape[-1]
        few = self.order == "fft" or (self.layers is not None and self.layers <= 8)
        pays = n >= 1024 and few and originals[0].device.type == "cpu" and self.gates == 1
        return self.operator(*originals) if pays else None

    def operator(
        self, theta: Tensor, phi: Tensor | None = None, omega: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Return the function h -> h Wᵀ on rows ``(..., m, n)``, for a square weight; W is not formed.

        Args:
            theta: Angles of the rotations.
            phi: Their phases, for a complex weight.
            omega: Phases of D, for a complex weight.

        Raises:
            ValueError: If the weight consists of gates.
        """
        self._check_no_gates()
        angles = (at_least_float32(as_real(t)) for t in (theta, phi, omega) if t is not None)
        theta, phi, d = self._rotations(*angles)
        return on_rows(givens_operator(theta, phi, d, order=self.order), d.dtype)

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor | tuple[Tensor, ...]:
        """Return θ, for a complex W also φ and ω."""
        check_finite(W, "Givens")
        found = []
        for matrix in W.reshape(-1, *W.shape[-2:]):
            rotations, error = self._recover(matrix, project, eps)
            if error > 10 * W.shape[-1] * eps:
                if not project:
                    return self._present_originals(W, error, eps)
                rotations = self._random(matrix)
            found.append(rotations)
        theta, phi, d = (torch.stack(parts) for parts in zip(*found, strict=True))
        return self._originals(W, theta, phi, d)

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return angles and phases uniform in [-π, π), and D = I for a real weight."""
        return self._originals(like, *self._random(like))

    def from_matrix(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return the entries below the diagonal as θ (imaginary parts as φ), and the diagonal as ω."""
        n = X.shape[-1]
        count = num_rotations(n, self._num_layers(n), self.order)
        rows, columns = torch.tril_indices(n, n, -1, device=X.device)
        below = X[..., rows[:count], columns[:count]]
        if not X.is_complex():
            if self.signs is None:
                self.signs = torch.ones_like(X[..., 0])
            return (below,)
        return below.real, below.imag, X.diagonal(dim1=-2, dim2=-1).real

    def free_parameters(  # type: ignore[override]
        self, theta: Tensor, phi: Tensor | None = None, omega: Tensor | None = None
    ) -> int:
        """Return one for each rotation of a real weight; two, and the phases of D, for a complex one.

        All are independent. At full capacity they are n(n-1)/2, and n², the dimensions of the groups.
        """
        return sum(t.numel() for t in (theta, phi, omega) if t is not None and is_trained(t))

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"layers={self.layers}, order={self.order!r}"

    def _rotations(
        self, theta: Tensor, phi: Tensor | None = None, omega: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return θ, φ and the diagonal."""
        if omega is not None:
            return theta, phi, torch.polar(torch.ones_like(omega), omega)
        assert self.signs is not None, "known from registration or the first matrix on"
        return theta, None, self.signs.to(theta.device, theta.dtype)

    def _num_layers(self, n: int) -> int:
        most = max_layers(n, self.order)
        if self.layers is not None and self.layers > most:
            raise ValueError(
                f"layers: expected at most n = {n}, which reach every matrix, got {self.layers}. Take None."
            )
        return most if self.layers is None else self.layers

    def _recover(self, W: Tensor, project: bool, eps: float) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
        """Return θ, φ and d of one matrix, and how far their product is from it."""
        n = W.shape[-1]
        layers = self._num_layers(n)
        rotations = num_rotations(n, layers, self.order)
        if rotations == n * (n - 1) // 2 and (project or eps > torch.finfo(W.dtype).eps):
            W = polar_factor(W)
        W = W.to("cpu", torch.complex128 if W.is_complex() else torch.float64)
        theta, phi, d = map(torch.from_numpy, eliminate(W.numpy(), layers, self.order))
        identity = torch.eye(n, dtype=W.dtype)
        rebuilt = givens_apply(identity, theta, phi if W.is_complex() else None, d, order=self.order).mT
        return (theta, phi, d), float((rebuilt - W).abs().max())

    def _random(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the paper's θ, φ and d for matrices ``like``."""
        n = like.shape[-1]
        rotations = num_rotations(n, self._num_layers(n), self.order)
        theta, phi = like.real.new_empty((2, *like.shape[:-2], rotations)).uniform_(-math.pi, math.pi)
        d = torch.ones_like(like[..., 0])
        if like.is_complex():
            omega = torch.empty_like(d.real).uniform_(-math.pi, math.pi)
            d = torch.polar(torch.ones_like(omega), omega)
        return theta, phi, d

    def _originals(self, like: Tensor, theta: Tensor, phi: Tensor, d: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return what is trained, for weights ``like``, and keep the signs, which are not."""
        batch = like.shape[:-2]
        theta, phi, omega = (
            t.to(like.device, like.real.dtype).reshape(*batch, -1) for t in (theta, phi, d.angle())
        )
        if like.is_complex():
            return theta, phi, omega
        self.signs = d.to(like.device, like.dtype).reshape(*batch, -1)
        return theta

    def _present_originals(self, W: Tensor, error: float, eps: float) -> Tensor | tuple[Tensor, ...]:
        """Return the originals that were read last if W is their weight.

        Raises:
            InManifoldError: If it is not.
        """
        originals = self._present.originals_of(W, self.constrain, atol=10 * W.shape[-1] * eps)
        if originals is None:
            raise InManifoldError(
                f"Givens: expected an orthogonal (unitary) weight that {self._num_layers(W.shape[-1])} "
                f"{self.order} layers of rotations make, got one that those found miss by {error:.1e}. Copy "
                "the trained angles instead (load_state_dict), or take layers=None, which reaches every "
                "orthogonal weight."
            )
        return originals if W.is_complex() else originals[0]
