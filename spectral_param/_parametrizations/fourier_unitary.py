"""Unitary matrices of the uRNN: diagonals, reflections and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spectral_param._context import HALF
from spectral_param._matrices import identity_like
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.decoded import permutation, permutation_to_digits
from spectral_param._parametrizations.tensors import as_real, at_least_float32, is_trained, on_rows
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional._fourier import fourier_operator


class FourierUnitary(Parametrization):
    r"""Unitary weight :math:`W = D_3 R_2 \mathcal{F}^{-1} D_2 Π R_1 \mathcal{F} D_1` of the uRNN.

    The weight has 7n real parameters; a general unitary matrix has n². A product with a vector costs
    O(n log n).

    Example:
        >>> layer = torch.nn.Linear(8, 8, dtype=torch.complex64)
        >>> constraint = spectral_param.FourierUnitary()
        >>> layer = spectral_param.constrain(layer, "weight", constraint, init="paper")
        >>> torch.allclose(layer.weight @ layer.weight.mH, torch.eye(8) + 0j, atol=1e-5)
        True
        >>> spectral_param.num_free_parameters(layer)  # 7n, and the bias
        72

    Source: Arjovsky, Shah and Bengio, "Unitary Evolution Recurrent Neural Networks" (ICML 2016).
    The D_i are diagonal matrices of phases, the R_i = I - 2vv*/(v*v) are reflections, F is the unitary
    Fourier transform, and Π is a random permutation, drawn at registration and shared by the matrices of a
    batch. The buffer ``permutation`` has the indices of Π as digits in base 256, which are exact in half
    precision, too.

    The weight is complex, of shape ``(..., n, n)``. The vectors v (complex, shape ``(..., 2, n)``) are
    ``original0``, and the phases (shape ``(..., 3, n)``) are ``original1``. A zero vector means no
    reflection.

    No method is known to compute the parameters of a given matrix. So registration needs the random
    ``init="paper"``, and only the weight that was read last can be assigned.

    ``distance`` and ``project`` recognise only the weight that was read last as a member.
    """

    permutation: Tensor

    acts_after = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("permutation", None)

    def reference(self, v: Tensor, phases: Tensor) -> Tensor:  # type: ignore[override]
        """Return W for v ``(..., 2, n)`` and phases ``(..., 3, n)``."""
        phases = as_real(phases).to(v.real.dtype)  # Module.double converts the phases, but not v.
        return fourier_operator(v, phases, permutation(self.permutation))(identity_like(v)).mT

    def operator(self, v: Tensor, phases: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function h -> h Wᵀ on rows ``(..., m, n)``, which does not form W.

        Args:
            v: Vectors of the reflections.
            phases: Angles of the diagonals.

        Raises:
            ValueError: If the weight consists of gates.
        """
        self._check_one_square()
        v, phases = at_least_float32(v), at_least_float32(phases)
        phases = as_real(phases).to(v.real.dtype)
        return on_rows(fourier_operator(v, phases, permutation(self.permutation)), v.dtype)

    def check_matrices(self, W: Tensor) -> None:
        """Raise for real matrices."""
        if not W.is_complex():
            given = self._like.dtype if self._like.dtype in HALF else W.dtype
            raise UnsupportedDtypeError(
                f"FourierUnitary: expected a complex weight, got {given}. Give the layer a complex "
                "dtype, for example torch.complex64, or take Givens for a real weight."
            )

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Raise, because no method is known that finds the parameters of a weight."""
        raise self._has_no_inverse("parameters", "ScaledCayley or Givens, which reach every unitary weight")

    def start(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return originals as in the paper: vectors uniform in [-1, 1], phases uniform in [-π, π]."""
        n = like.shape[-1]
        self.permutation = permutation_to_digits(torch.randperm(n, device=like.device), like.real.dtype)
        # Real and imaginary parts are uniform in [-1, 1].
        v = torch.view_as_complex(like.real.new_empty((*like.shape[:-2], 2, n, 2)).uniform_(-1, 1))
        return v, like.real.new_empty((*like.shape[:-2], 3, n)).uniform_(-math.pi, math.pi)

    def free_parameters(self, v: Tensor, phases: Tensor) -> int:  # type: ignore[override]
        """Return 7n for each matrix, the number of trained parameters, as in the paper.

        For n ≥ 6, only 7n - 7 parameters are independent: the length and the phase of each v have no effect,
        constant phases can move between D₁, D₂ and D₃, and turning both vectors together in their plane does
        not change the product of the reflections.
        """
        return 2 * v.numel() * is_trained(v) + phases.numel() * is_trained(phases)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the digits of the permutation; a permutation saved as indices is converted to digits."""
        indices = state_dict.get(f"{prefix}permutation")
        if indices is not None and not indices.is_floating_point():
            digits = permutation_to_digits(indices, self._like_real.dtype)
            state_dict = {**state_dict, f"{prefix}permutation": digits}
        super()._load_from_state_dict(state_dict, prefix, *args)
