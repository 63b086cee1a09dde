"""The leading eigenvalue of a constrained weight: computed, tracked, cached and saved."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spectral_param.context import is_traced
from spectral_param.eigen import tracking
from spectral_param.eigen.dense import Choice, Eigentriple, leading_eigentriple
from spectral_param.eigen.derivative import (
    leading_value,
    recorded_value,
    value_and_gradient,
    with_gradient,
)

Solver = Literal["auto", "dense", "tracking"]

# "auto" tracks from this size on. Below, all eigenvalues cost about as much as a step of tracking.
TRACKED_SIZE = 96


class Follower(nn.Module):
    """The spectral radius ρ, or abscissa α, of matrices that change little from read to read.

    The state of the tracking is in buffers, so that checkpoints, copies and compiled graphs include it. With
    m matrices:

    - ``right``, ``left``: the blocks of each matrix, ``(m, n, 16)``.
    - ``numbers``: the other fields of :class:`~spectral_param.eigen.tracking.State`, float64 ``(m, 7)``.
    - ``triple``, ``digest``: λ, u and v at the last read before the checkpoint, ``(m, 2n + 1, 2)``, and the
      SHA-256 of the bits of their T, as eight 32-bit numbers. If T still has these bits after loading, the
      triple is used again, so that an interrupted run continues to the same bits. After averaging or
      conversion the bits differ, and the triple is not used.

    All buffers are None if nothing is tracked.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from n = 96 on.
        choice: ``"modulus"`` for ρ; ``"real"`` for α, which is always computed densely.
    """

    #: Tells the base class of parametrizations that a weight does not depend on these buffers.
    is_memory = True

    right: Tensor | None
    left: Tensor | None
    numbers: Tensor | None
    triple: Tensor | None
    digest: Tensor | None

    def __init__(self, solver: Solver, choice: Choice = "modulus") -> None:
        super().__init__()
        self.solver, self.choice = solver, choice
        for name in _BUFFERS:
            self.register_buffer(name, None)
        # Copies of the last T and its triple. On a device, T's address and version tell whether to compare.
        self._last: tuple[Tensor, Eigentriple] | None = None
        self._mark: tuple[int, int] | None = None
        # The host's copy of ``numbers``, and the version of the buffer when it was copied.
        self._states: list[tracking.State] | None = None
        self._version = -1
        self._is_loaded = False
        self._is_regular = False

    def tracks(self, n: int) -> bool:
        """Return whether matrices of size n are tracked."""
        asked = self.solver == "tracking" or (self.solver == "auto" and n >= TRACKED_SIZE)
        return asked and self.choice == "modulus"

    @property
    def is_regular(self) -> bool:
        """Whether the eigenvalues of the last read are neither zero nor defective, and the sizes ordinary."""
        return self._is_regular

    def begin(self, T: Tensor) -> None:
        """Forget everything, and allocate buffers for matrices like T ``(..., n, n)``."""
        self._last, self._states, self._is_loaded, self._is_regular = None, None, False, False
        n = T.shape[-1]
        with torch.inference_mode(False), torch.no_grad():
            if not self.tracks(n):
                for name in _BUFFERS:
                    setattr(self, name, None)
                return
            m, columns = T[..., 0, 0].numel(), min(tracking.COLUMNS, n)
            self.right = torch.zeros(m, n, columns, dtype=T.dtype, device=T.device)
            self.left = torch.zeros_like(self.right)
            fresh = tracking.to_numbers(tracking.State(self.right[0], self.left[0]))
            self.numbers = torch.tensor([fresh] * m, dtype=torch.float64, device=T.device)
            self.triple = torch.zeros(m, 2 * n + 1, 2, dtype=T.real.dtype, device=T.device)
            self.digest = torch.zeros(8, dtype=torch.float64, device=T.device)

    def follow(self, T: Tensor) -> Eigentriple:
        """Return the leading eigentriple of each matrix, without a graph; computed only if T has changed.

        T is an ordinary tensor of shape ``(..., n, n)``, float32, float64, complex64 or complex128.
        """
        triple = self._known(T)
        if triple is None:
            triple = self._track(T.detach()) if self.tracks(T.shape[-1]) else self._solve(T)
            last = T.detach().clone()
            if torch.is_inference_mode_enabled():
                # Tensors made in inference mode could not be saved for a later backward pass.
                with torch.inference_mode(False):
                    last, triple = T.detach().clone(), Eigentriple(*(part.clone() for part in triple))
            vars(self)["_last"] = last, triple
        return triple

    def _known(self, T: Tensor) -> Eigentriple | None:
        """Return the triple of T if T equals the matrix of the last read."""
        if self._is_loaded:
            self._recall(T)
        # On a device a comparison makes the host wait. It is skipped if T has probably changed.
        mark = None if T.is_inference() else (T.data_ptr(), T._version)
        is_new = mark != self._mark and T.device.type not in tracking.HOST
        vars(self)["_mark"] = mark
        if self._last is None or is_new:
            return None
        last, triple = self._last
        alike = last.dtype == T.dtype and last.device == T.device and torch.equal(last, T)
        return triple if alike else None

    def _solve(self, T: Tensor) -> Eigentriple:
        triple, regular = leading_eigentriple(T, self.choice)
        vars(self)["_is_regular"] = regular
        return triple

    def _track(self, T: Tensor) -> Eigentriple:
        """Return the eigentriple of each matrix, tracked from the state in the buffers."""
        if not self._fits(T) or (self.numbers is not None and self.numbers.is_inference()):
            self.begin(T)
        assert self.right is not None
        assert self.left is not None
        assert self.numbers is not None
        if self._states is None or self._version != self.numbers._version:
            rows = self.numbers.tolist()
            vars(self)["_states"] = _states(self.right, self.left, rows)
        assert self._states is not None
        found, states = _follow(T, self._states)
        _store(states, self.right, self.left, self.numbers)
        # The buffers hold the blocks now, so the states refer to them and drop their own copies.
        kept = zip(states, self.right, self.left, strict=True)
        vars(self).update(
            _states=[dataclasses.replace(state, right=right, left=left) for state, right, left in kept],
            _version=self.numbers._version,
            _is_regular=all(state.regular for state in states),
        )
        return found

    def _fits(self, T: Tensor) -> bool:
        """Return whether the buffers are for matrices like T."""
        n, m = T.shape[-1], T[..., 0, 0].numel()
        return (
            self.right is not None
            and self.left is not None
            and self.numbers is not None
            and self.right.shape == self.left.shape == (m, n, min(tracking.COLUMNS, n))
            and self.right.dtype == self.left.dtype == T.dtype
            and self.right.device == self.left.device == T.device
            and self.numbers.shape == (m, len(tracking.NUMBERS))
            and not self.numbers.is_complex()  # Module.to(complex) converts all buffers.
        )

    def recorded(self, T: Tensor) -> Tensor:
        """Return ρ or α of T ``(..., n, n)`` inside transforms and in a recorded graph, which tracks, too."""
        if not is_traced(T):
            return leading_value(T, self.choice)
        if not self.tracks(T.shape[-1]) or not self._fits(T):
            return recorded_value(T, self.choice)
        rho, gradient = _followed_radius(T.detach(), self.right, self.left, self.numbers)
        return with_gradient(T, rho, gradient)

    # Checkpoints ----------------------------------------------------------------------------------

    def _recall(self, T: Tensor) -> None:
        """After loading: use the saved triple if T has the saved bits."""
        vars(self)["_is_loaded"] = False
        n, m = T.shape[-1], T[..., 0, 0].numel()
        if self.triple is None or self.digest is None or self.triple.shape != (m, 2 * n + 1, 2):
            return
        if self.triple.dtype != T.real.dtype or not torch.equal(self.digest.cpu(), _digest(T)):
            return
        with torch.inference_mode(False):
            parts = torch.view_as_complex(self.triple.detach().to(T.device).clone())
            shapes = (T.shape[:-2], T.shape[:-1], T.shape[:-1])
            split = parts.split([1, n, n], dim=-1)
            triple = Eigentriple(*(p.reshape(shape) for p, shape in zip(split, shapes, strict=True)))
            vars(self)["_last"] = T.detach().clone(), triple
        assert self.numbers is not None
        vars(self)["_is_regular"] = bool((self.numbers[:, -1] > 0.5).all())

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if self._last is not None and self.triple is not None and self.digest is not None:
            T, triple = self._last
            parts = torch.cat([part.reshape(len(self.triple), -1) for part in triple], dim=-1)
            if parts.shape == self.triple.shape[:-1]:
                with torch.no_grad():
                    self.triple.copy_(torch.view_as_real(parts))
                    self.digest.copy_(_digest(T))
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load buffers of any shape, or none: a checkpoint with the weight alone is complete."""
        found = [state_dict.get(prefix + name) for name in _BUFFERS]
        vars(self).update(_last=None, _states=None, _is_loaded=True, _is_regular=False)
        with torch.inference_mode(False), torch.no_grad():
            for name, value in zip(_BUFFERS, found, strict=True):
                present = getattr(self, name)
                if present is not None and value is not None and present.shape == value.shape:
                    present.copy_(value)  # In place: compiled graphs hold these tensors.
                elif value is not None:
                    # On the present device. If the shape does not fit, the first read starts again.
                    device = value.device if present is None else present.device
                    setattr(self, name, value.detach().to(device, copy=True))
                elif present is not None and name == "numbers":
                    fresh = tracking.to_numbers(tracking.State(present, present))
                    present.copy_(torch.tensor(fresh, dtype=torch.float64).expand_as(present))
                elif present is not None:
                    present.zero_()


_BUFFERS = ("right", "left", "numbers", "triple", "digest")


def _states(right: Tensor, left: Tensor, rows: list[list[float]]) -> list[tracking.State]:
    return [tracking.from_numbers(*each) for each in zip(right, left, rows, strict=True)]


def _follow(T: Tensor, states: list[tracking.State]) -> tuple[Eigentriple, list[tracking.State]]:
    """Return the triples of matrices ``(..., n, n)`` and the states for the next call."""
    matrices = T.reshape(-1, *T.shape[-2:])
    found = [tracking.track(*each) for each in zip(matrices, states, strict=True)]
    columns = zip(*(triple for triple, _ in found), strict=True)
    triple = Eigentriple(*(torch.stack(c).reshape(T.shape[:-2] + c[0].shape) for c in columns))
    return triple, [state for _, state in found]


def _store(states: list[tracking.State], right: Tensor, left: Tensor, numbers: Tensor) -> None:
    """Write the states into the buffers."""
    right.copy_(torch.stack([state.right for state in states]))
    left.copy_(torch.stack([state.left for state in states]))
    numbers.copy_(torch.tensor([tracking.to_numbers(state) for state in states], dtype=torch.float64))


@torch.library.custom_op("spectral_param::followed_radius", mutates_args=("right", "left", "numbers"))
def _followed_radius(T: Tensor, right: Tensor, left: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    triple, states = _follow(T, _states(right, left, numbers.tolist()))
    _store(states, right, left, numbers)
    return value_and_gradient(T, triple, "modulus")


@_followed_radius.register_fake
def _(T: Tensor, right: Tensor, left: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    return T.real.new_empty(T.shape[:-2]), torch.empty_like(T)


def _digest(T: Tensor) -> Tensor:
    """Return the SHA-256 of T's bytes, as float64 numbers."""
    entries = (torch.view_as_real(T.resolve_conj()) if T.is_complex() else T).detach().cpu().contiguous()
    digest = hashlib.sha256(entries.clone().numpy().tobytes()).digest()  # A copy, as in eigen.dense.
    numbers = [int.from_bytes(digest[4 * i : 4 * i + 4], "big") for i in range(8)]
    return torch.tensor(numbers, dtype=torch.float64)
