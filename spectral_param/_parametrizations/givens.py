"""Orthogonal and unitary matrices as products of rotations in layers (EUNN)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from spectral_param._context import promoted
from spectral_param._matrices import identity_like
from spectral_param._parametrizations.decoded import signs
from spectral_param._parametrizations.orthogonal import Orthonormal
from spectral_param._parametrizations.tensors import as_real, at_least_float32, is_trained, on_rows
from spectral_param._precision import to_double
from spectral_param._sets import orthonormal
from spectral_param.functional._checks import whole_number
from spectral_param.functional._givens import (
    Order,
    eliminate,
    givens_operator,
    max_layers,
    num_rotations,
)


class Givens(Orthonormal, same_set=True):
    r"""Orthogonal (unitary) weight :math:`W = D F^{(1)} ⋯ F^{(L)}` of layers of 2x2 rotations.

    The number L of layers sets the capacity: few layers have few parameters, L = n layers reach every
    orthogonal (unitary) matrix. A product with a vector costs O(nL).

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> constraint = spectral_param.Givens(layers=4)
        >>> rnn = spectral_param.constrain(rnn, "weight_hh_l0", constraint, init="paper")
        >>> W = rnn.weight_hh_l0
        >>> torch.allclose(W @ W.mT, torch.eye(64), atol=1e-5)
        True
        >>> rnn.parametrizations.weight_hh_l0.original.shape  # 2 layers of 32 rotations and 2 of 31
        torch.Size([126])

    Args:
        layers: Number L of layers, from 1 to n. ``None``, the default, is the largest number: n for
            ``"rectangular"``, log2 n for ``"fft"``. The default of the authors' code is 2.
        order: With ``"rectangular"``, the default, layers rotate pairs of neighbouring coordinates,
            alternately (1,2), (3,4), … and (2,3), (4,5), …. With ``"fft"``, layer i rotates pairs at distance
            n/2^i, so that log2 n layers connect each coordinate with all others; n must be a power of two.

    Raises:
        ValueError: If ``layers`` or ``order`` does not have one of the values above.

    Source: Jing, Shen, Dubček, Peurifoy, Skirlo, LeCun, Tegmark and Soljačić, "Tunable Efficient Unitary
    Neural Networks (EUNN) and their application to RNNs" (ICML 2017). Each layer rotates disjoint pairs of
    coordinates; n layers have n(n-1)/2 rotations.

    - For a real weight, the rotations have angles θ, the weight's ``original``. D = diag(±1) is the buffer
      ``signs``. Only registration and assignment choose D.
    - For a complex weight, the rotations have angles θ and phases φ, and D = diag(exp iω). θ, φ and ω are
      ``original0``, ``original1`` and ``original2``, all real.

    The weight has shape ``(..., n, n)``. With L = n, registration starts from the nearest orthogonal
    (unitary) matrix. With fewer layers, and in the FFT order, no good method is known to find the nearest
    matrix of the set. In both cases registration needs the random ``init="paper"``, and only the weight that
    was read last can be assigned.

    The distance of a weight from the set is the Frobenius norm ‖WᴴW - I‖, which bounds ``|σᵢ² - 1|`` for each
    singular value σᵢ; ``project`` takes the nearest weight of the set. With fewer than n layers, and in the
    FFT order, only the weight that was read last counts as a member.
    """

    order: Order
    signs: Tensor | None

    acts_after = False

    def __init__(self, layers: int | None = None, order: Order = "rectangular") -> None:
        super().__init__(order=(order, Order))
        layers = None if layers is None else whole_number(layers, "layers", otherwise=" or None")
        if layers is not None and order == "fft":
            raise ValueError(
                f"layers: expected None for order='fft', which always has log2 n layers, got {layers}."
            )
        self.layers = layers
        if layers is not None or order == "fft":
            self.by_map_alone = "no projection onto products of few rotations is known"
        self.register_buffer("signs", None)

    def reference(self, *originals: Tensor) -> Tensor:
        """Return W; θ and φ have one entry for each rotation, and ω has one entry for each row."""
        theta, phi, d = self._rotations(*[as_real(t) for t in originals])
        return givens_operator(theta, phi, d, order=self.order)(identity_like(d)).mT

    def operator(
        self, theta: Tensor, phi: Tensor | None = None, omega: Tensor | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Return the function h -> h Wᵀ on rows ``(..., m, n)``, which does not form W.

        Args:
            theta: Angles of the rotations.
            phi: Phases of the rotations, for a complex weight.
            omega: Phases of D, for a complex weight.

        Raises:
            ValueError: If the weight consists of gates.
        """
        self._check_one_square()
        angles = (at_least_float32(as_real(t)) for t in (theta, phi, omega) if t is not None)
        theta, phi, d = self._rotations(*angles)
        return on_rows(givens_operator(theta, phi, d, order=self.order), d.dtype)

    def check_matrices(self, W: Tensor) -> None:
        """Raise for more than n layers and, in FFT order, if n is not a power of two."""
        self._num_layers(W.shape[-1])

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ‖WᴴW - I‖.

        Raises:
            InManifoldError: For fewer than n layers and in FFT order, because no method is known to compute
                the angles of W.
        """
        layers = self._num_layers(W.shape[-1])
        if self.order == "fft" or layers < W.shape[-1]:
            what = f"{layers} {self.order} layers of rotations"
            raise self._has_no_inverse(what, "Givens(), which reaches every orthogonal weight")
        return super().outside(W, eps)

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return θ, and for a complex W also φ and ω."""
        n = W.shape[-1]
        W = orthonormal.near(W)
        matrices = to_double(W.cpu()).reshape(-1, n, n).numpy()
        theta, phi, d = (np.stack(parts) for parts in zip(*map(eliminate, matrices), strict=True))
        return self._originals(W, *map(torch.from_numpy, (theta, phi, d)))

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return angles and phases uniform in [-π, π), and D = I for a real weight."""
        n = like.shape[-1]
        rotations = num_rotations(n, self._num_layers(n), self.order)
        theta, phi = like.real.new_empty((2, *like.shape[:-2], rotations)).uniform_(-math.pi, math.pi)
        d = torch.ones_like(like[..., 0])
        if like.is_complex():
            omega = torch.empty_like(d.real).uniform_(-math.pi, math.pi)
            d = torch.polar(torch.ones_like(omega), omega)
        # Cloned, because torch.export and safetensors refuse tensors that are views of one tensor.
        return self._originals(like, theta.clone(), phi.clone(), d)

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the number of angles: one per rotation; for a complex weight two per rotation, plus n for D.

        All angles are independent. With L = n, a real weight has n(n-1)/2 angles, and a complex weight n².
        These numbers are the dimensions of the orthogonal and of the unitary group.
        """
        return sum(t.numel() for t in originals if is_trained(t))

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"layers={self.layers}, order={self.order!r}"

    def _rotations(
        self, theta: Tensor, phi: Tensor | None = None, omega: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return θ, φ and the diagonal of D, in one precision."""
        if omega is not None:
            assert phi is not None
            # Module.float converts the angles, but keeps the dtype of a complex weight. So the angles are
            # converted to the precision of the weight.
            exact = promoted(omega.dtype, self._like.real.dtype)
            theta, phi, omega = theta.to(exact), phi.to(exact), omega.to(exact)
            return theta, phi, torch.polar(torch.ones_like(omega), omega)
        assert self.signs is not None, "known from registration or the first matrix on"
        return theta, None, signs(self.signs, theta)

    def _num_layers(self, n: int) -> int:
        most = max_layers(n, self.order)
        if self.layers is not None and self.layers > most:
            raise ValueError(
                f"layers: expected at most n = {n}, got {self.layers}. Take None, which reaches every matrix."
            )
        return most if self.layers is None else self.layers

    def _originals(self, like: Tensor, theta: Tensor, phi: Tensor, d: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the originals, and store the signs of a real weight."""
        batch = like.shape[:-2]
        theta, phi, omega = (
            t.to(like.device, like.real.dtype).reshape(*batch, -1) for t in (theta, phi, d.angle())
        )
        if like.is_complex():
            return theta, phi, omega
        self.signs = d.to(like.device, like.dtype).reshape(*batch, -1)
        return theta
