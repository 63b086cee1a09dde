"""The leading eigenvalue of a constrained weight: computed, tracked and saved."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param._context import is_compiled, is_traced
from spectral_param._eigen import tracking
from spectral_param._eigen.dense import Eigentriple, Height, leading_eigentriple
from spectral_param._eigen.derivative import (
    leading_value,
    recorded_value,
    value_and_gradient,
    with_gradient,
)

Solver = Literal["auto", "dense", "tracking"]

# "auto" tracks from this size on. Below, all eigenvalues cost about as much as a step of tracking.
TRACKED_SIZE = 96


class Leader(NamedTuple):
    """The leading eigentriples of matrices, and whether all of them are regular.

    Regular means: λ is neither zero nor defective, and the matrix is of ordinary size.
    """

    triple: Eigentriple
    regular: bool


class Follower(nn.Module):
    """The spectral radius ρ, or abscissa α, of matrices that change little from read to read.

    The state of the tracking is in buffers, so that checkpoints, copies and compiled graphs include it. With
    m matrices:

    - ``right``, ``left``: the blocks of each matrix, ``(m, n, 16)``.
    - ``numbers``: the other fields of :class:`~spectral_param._eigen.tracking.State`, float64 ``(m, 7)``.
    - ``triple``, ``digest``: λ, u and v at the last read before the checkpoint, ``(m, 2n + 1, 2)``, and the
      SHA-256 of their bits, those of their T and those of ``numbers``, as eight 32-bit numbers. If all still
      have these bits after loading, the triple is used, so that an interrupted run continues to the same
      bits. After averaging or conversion the bits differ, and the triple is not used.

    All buffers are None if nothing is tracked.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from n = 96 on.
        height: ``"modulus"`` for ρ; ``"real"`` for α, which is always computed densely.
    """

    right: Tensor | None
    left: Tensor | None
    numbers: Tensor | None
    triple: Tensor | None
    digest: Tensor | None

    def __init__(self, solver: Solver, height: Height = "modulus") -> None:
        super().__init__()
        self.solver, self.height = solver, height
        for name in _BUFFERS:
            self.register_buffer(name, None)
        # The last T with its leader, for a checkpoint. T is that of the weight's memory and does not change.
        self._last: tuple[Tensor, Leader] | None = None
        self._is_loaded = False
        # The host's copy of ``numbers``, and the version of the buffer when it was copied.
        self._states: list[tracking.State] | None = None
        self._version = -1

    def tracks(self, n: int) -> bool:
        """Return whether matrices of size n are tracked."""
        asked = self.solver == "tracking" or (self.solver == "auto" and n >= TRACKED_SIZE)
        return asked and self.height == "modulus"

    def begin(self, T: Tensor) -> None:
        """Forget everything, and allocate buffers for matrices like T ``(..., n, n)``."""
        self._last, self._states, self._is_loaded = None, None, False
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

    def follow(self, T: Tensor) -> Leader:
        """Return the leading eigentriple of each matrix.

        Args:
            T: Matrices ``(..., n, n)`` without a graph, float32, float64, complex64 or complex128. The caller
                does not change them any more.
        """
        if not self.tracks(T.shape[-1]):
            return Leader(*leading_eigentriple(T, self.height))
        leader = self._recalled(T) if self._is_loaded else None
        if leader is None:
            leader = self._track(T)
        vars(self)["_last"] = T, leader
        return leader

    def _track(self, T: Tensor) -> Leader:
        """Return the leader, tracked from the state in the buffers."""
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
        )
        return Leader(found, all(state.regular for state in states))

    def _fits(self, T: Tensor) -> bool:
        """Return whether the buffers are for matrices like T."""
        n, m = T.shape[-1], T.shape[:-2].numel()
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
        """Return ρ or α of T ``(..., n, n)`` inside transforms and recorded graphs; torch.compile tracks."""
        if not is_traced(T):
            return leading_value(T, self.height)
        if not (is_compiled() and self.tracks(T.shape[-1]) and self._fits(T)):
            return recorded_value(T, self.height)
        rho, gradient = _followed_radius(T.detach(), self.right, self.left, self.numbers)
        return with_gradient(T, rho, gradient)

    # Checkpoints ----------------------------------------------------------------------------------

    def _recalled(self, T: Tensor) -> Leader | None:
        """Return the loaded triple if it and T have the saved bits."""
        vars(self)["_is_loaded"] = False
        n, m = T.shape[-1], T[..., 0, 0].numel()
        if not self._fits(T) or self.triple is None or self.digest is None:
            return None
        assert self.numbers is not None
        if self.triple.shape != (m, 2 * n + 1, 2) or self.triple.dtype != T.real.dtype:
            return None
        if not torch.equal(self.digest.cpu(), _digest(T, self.triple, self.numbers)):
            return None
        parts = torch.view_as_complex(self.triple.detach().to(T.device).clone())
        shapes = (T.shape[:-2], T.shape[:-1], T.shape[:-1])
        split = parts.split([1, n, n], dim=-1)
        triple = Eigentriple(*(p.reshape(shape) for p, shape in zip(split, shapes, strict=True)))
        return Leader(triple, bool((self.numbers[:, -1] > 0.5).all()))

    def _save(self) -> None:
        """Write the last triple and its digest into the buffers."""
        if self._last is None or self.triple is None or self.digest is None or self.numbers is None:
            return
        T, (triple, _) = self._last
        parts = torch.cat([part.reshape(len(self.triple), -1) for part in triple], dim=-1)
        if parts.shape == self.triple.shape[:-1]:
            with torch.no_grad():
                self.triple.copy_(torch.view_as_real(parts))
                self.digest.copy_(_digest(T, self.triple, self.numbers))

    def __getstate__(self) -> dict[str, Any]:
        self._save()
        return {**self.__dict__, "_last": None, "_states": None, "_is_loaded": True}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._save()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the buffers, or none: a checkpoint with the weight alone is complete."""
        metadata, *_, errors = args
        assign = metadata.get("assign_to_params_buffers", False)
        vars(self).update(_last=None, _states=None, _is_loaded=True)
        with torch.inference_mode(False), torch.no_grad():
            for name in _BUFFERS:
                present, value = getattr(self, name), state_dict.get(prefix + name)
                if present is None or value is None:
                    if value is not None:
                        setattr(self, name, value.detach().clone())
                    elif name == "numbers" and present is not None:
                        fresh = tracking.to_numbers(tracking.State(present, present))
                        present.copy_(torch.tensor(fresh, dtype=torch.float64).expand_as(present))
                    elif present is not None:
                        present.zero_()
                elif present.shape != value.shape:
                    errors.append(
                        f"{prefix}{name}: expected shape {tuple(present.shape)}, got {tuple(value.shape)}. "
                        f"Load the checkpoint without the keys that begin with {prefix!r}: the leading "
                        "eigenvalue is then computed anew."
                    )
                elif assign:
                    setattr(self, name, value.detach().clone())
                else:
                    present.copy_(value)  # In place: compiled graphs hold these tensors.


_BUFFERS = ("right", "left", "numbers", "triple", "digest")


def _states(right: Tensor, left: Tensor, rows: list[list[float]]) -> list[tracking.State]:
    return [tracking.from_numbers(*each) for each in zip(right, left, rows, strict=True)]


def _follow(T: Tensor, states: list[tracking.State]) -> tuple[Eigentriple, list[tracking.State]]:
    """Return the triples of matrices ``(..., n, n)`` and the states for the next call."""
    if T.ndim == 2:
        triple, state = tracking.track(T, states[0])
        return triple, [state]
    matrices = T.reshape(-1, *T.shape[-2:])
    found = tracking.together([tracking.steps(*each) for each in zip(matrices, states, strict=True)])
    columns = zip(*(triple for triple, _ in found), strict=True)
    triple = Eigentriple(*(torch.stack(c).reshape(T.shape[:-2] + c[0].shape) for c in columns))
    return triple, [state for _, state in found]


def _store(states: list[tracking.State], right: Tensor, left: Tensor, numbers: Tensor) -> None:
    """Write the states into the buffers."""
    for i, state in enumerate(states):
        right[i].copy_(state.right)
        left[i].copy_(state.left)
    rows = [tracking.to_numbers(state) for state in states]
    numbers.copy_(torch.tensor(rows, dtype=torch.float64, device="cpu"), non_blocking=True)


@torch.library.custom_op("spectral_param::followed_radius", mutates_args=("right", "left", "numbers"))
def _followed_radius(T: Tensor, right: Tensor, left: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    triple, states = _follow(T, _states(right, left, numbers.tolist()))
    _store(states, right, left, numbers)
    return value_and_gradient(T, triple, "modulus")


@_followed_radius.register_fake
def _(T: Tensor, right: Tensor, left: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    return T.real.new_empty(T.shape[:-2]), torch.empty_like(T)


def _digest(*tensors: Tensor) -> Tensor:
    """Return the SHA-256 of the bytes of all tensors, as float64 numbers."""
    digest = hashlib.sha256()
    for t in tensors:
        entries = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).detach().cpu().contiguous()
        # A copy, as in eigen.dense. Not a clone: torch 2.6 exports a copy whose clones are fake.
        digest.update(torch.empty_like(entries).copy_(entries).numpy().tobytes())
    numbers = [int.from_bytes(digest.digest()[4 * i : 4 * i + 4], "big") for i in range(8)]
    return torch.tensor(numbers, dtype=torch.float64)
