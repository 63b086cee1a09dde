"""Unitary matrices of the uRNN: diagonals, reflections and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param.errors import InManifoldError, UnsupportedDtypeError
from spectral_param.functional.fourier import fourier_apply, fourier_operator
from spectral_param.parametrizations.base import (
    Parametrization,
    as_real,
    at_least_float32,
    is_trained,
    join_gates,
    on_rows,
    split_gates,
)
from spectral_param.parametrizations.memory import Memory, present_originals


class FourierUnitary(Parametrization):
    r"""Unitary weight :math:`W = D_3 R_2 \mathcal{F}^{-1} D_2 Π R_1 \mathcal{F} D_1` of the uRNN.

    Source: Arjovsky, Shah and Bengio, "Unitary Evolution Recurrent Neural Networks" (ICML 2016).
    D: diagonals of phases; R = I - 2vv*/(v*v): reflections; F: the unitary Fourier transform; Π: a
    permutation, drawn at registration and fixed (buffer ``permutation``, shared by the matrices of a
    batch). 7n real parameters, of the n² of all unitary matrices, and O(n log n) for a product with a
    vector.

    The vectors v (complex, shape ``(..., 2, n)``) are ``original0``, the phases (shape ``(..., 3, n)``)
    ``original1``. A zero vector reflects nothing. Complex weights ``(..., n, n)``, or ``(k·n, n)`` for k
    blocks.

    No way from a matrix back to its parameters is known. *Registration drops the weight for the paper's
    start*, which is random, and of assignments only the weight that was read last is accepted.

    Example:
        >>> layer = torch.nn.Linear(8, 8, dtype=torch.complex64)
        >>> _ = register_parametrization(layer, "weight", spectral_param.FourierUnitary())
        >>> torch.allclose(layer.weight @ layer.weight.mH, torch.eye(8) + 0j, atol=1e-5)
        True
        >>> spectral_param.num_free_parameters(layer)  # 7n, and the bias
        72
    """

    permutation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("permutation", None)
        self._memory = Memory()

    def constrain(self, v: Tensor, phases: Tensor) -> Tensor:  # type: ignore[override]
        """Return W; v has shape (..., 2, n), phases (..., 3, n)."""
        phases = as_real(phases).to(v.real.dtype)  # Module.double converts the phases and leaves v.
        self._memory.store((v, phases), ())
        identity = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        W = fourier_apply(identity, v, phases, self.permutation).mT
        return W if self._shape is None else join_gates(W, like=self._shape)

    def fast_operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return :meth:`operator` from the size on at which it was measured to be faster, on CPUs."""
        v = originals[0]
        pays = v.shape[-1] >= 512 and v.device.type == "cpu" and not self._has_gates()
        return self.operator(*originals) if pays else None

    def operator(self, v: Tensor, phases: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function h -> h Wᵀ on rows ``(..., m, n)``, for a square weight; W is not formed.

        Args:
            v: Vectors of the reflections.
            phases: Angles of the diagonals.

        Raises:
            ValueError: If the weight consists of gates.
        """
        self._check_no_gates()
        v, phases = at_least_float32(v), at_least_float32(phases)
        phases = as_real(phases).to(v.real.dtype)
        return on_rows(fourier_operator(v, phases, self.permutation), v.dtype)

    def unconstrain(self, W: Tensor, project: bool) -> tuple[Tensor, ...]:
        """Return the paper's start at registration, then the tensors that W was read from last."""
        if project:
            return self.paper_start(W)
        originals = present_originals(self._memory, self.constrain, W, 10 * W.shape[-1] * self._eps)
        if originals is None:
            raise InManifoldError(
                "FourierUnitary: expected the weight that was read last, got another one, whose parameters "
                "cannot be found. Copy the trained tensors instead (load_state_dict), or take ScaledCayley "
                "or Givens, which reach every unitary weight."
            )
        return originals

    def paper_start(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return reflection vectors uniform in [-1, 1] and phases uniform in [-π, π], as the paper."""
        if not like.is_complex():
            raise UnsupportedDtypeError(
                f"FourierUnitary: expected a complex weight, got {like.dtype}. Use a complex dtype, for "
                "example dtype=torch.complex64 for the layer; for real weights there is Givens."
            )
        blocks = split_gates(like)
        n = like.shape[-1]
        self.permutation = torch.randperm(n, device=like.device)
        # Uniform real and imaginary parts.
        v = torch.view_as_complex(blocks.real.new_empty((*blocks.shape[:-2], 2, n, 2)).uniform_(-1, 1))
        return v, blocks.real.new_empty((*blocks.shape[:-2], 3, n)).uniform_(-math.pi, math.pi)

    def free_parameters(self, v: Tensor, phases: Tensor) -> int:  # type: ignore[override]
        """Return 7n for each matrix, as the paper counts: what is trained.

        7n - 7 of them are independent (from n = 6 on): the length and the phase of each v do not matter,
        constant phases can move between D₁, D₂ and D₃, and two reflections are a rotation in the plane of
        their vectors, in which both can be turned together.
        """
        return 2 * v.numel() * is_trained(v) + phases.numel() * is_trained(phases)
