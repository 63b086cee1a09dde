"""The leading eigenvalue of a constrained weight: computed, tracked and saved."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from typing import Any, Generic, Literal, NamedTuple, TypeVar

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

R = TypeVar("R")
Layout = tuple[tuple[tuple[int, ...], torch.dtype | None], ...]
Solver = Literal["auto", "dense", "tracking"]

# "auto" tracks from this size on. Below, all eigenvalues cost about as much as a step of tracking.
TRACKED_SIZE = 96


class Leader(NamedTuple):
    """The leading eigentriples of matrices, and whether all of them are regular.

    Regular means: λ is neither zero nor defective, and the matrix is of ordinary size.
    """

    triple: Eigentriple
    regular: bool


class Tracker(nn.Module, abc.ABC, Generic[R]):
    """Something of matrices that change little from read to read, each result proven.

    The state is in buffers, so that checkpoints, copies and compiled graphs include it:

    - ``numbers`` and the blocks of the tracking. Negative numbers mean that nothing is known.
    - The last result before the checkpoint, and ``digest``: the SHA-256 of its bits, those of its T and of
      other buffers, as eight 32-bit numbers. If all still have these bits after loading, the result is used,
      so that an interrupted run continues to the same bits. After averaging or conversion the bits differ,
      and the result is not used.

    All buffers are None if nothing is tracked.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from n = 96 on.
    """

    #: The names of all buffers, and of those that the digest covers.
    names: tuple[str, ...]
    covered: tuple[str, ...]
    numbers: Tensor | None
    digest: Tensor | None

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver
        for name in self.names:
            self.register_buffer(name, None)
        # The last T with its result, for a checkpoint. T is that of the weight's memory and does not change.
        self._last: tuple[Tensor, R] | None = None
        self._is_loaded = False
        # What the host knows of the buffers, and their versions when it was copied.
        self._host: tuple[Any, tuple[int, ...]] = _NO_COPY

    @abc.abstractmethod
    def layout(self, T: Tensor) -> Layout:
        """Return shape and dtype of each buffer for T. None is float64, or what Module.float makes of it."""

    @abc.abstractmethod
    def dense(self, T: Tensor) -> R:
        """Return the result by LAPACK."""

    @abc.abstractmethod
    def tracked(self, T: Tensor) -> R:
        """Return the result by the state in the buffers, which fit T, and write the next state into them."""

    @abc.abstractmethod
    def packed(self, result: R) -> dict[str, Tensor]:
        """Return a result as the tensors of its buffers."""

    @abc.abstractmethod
    def unpacked(self, T: Tensor) -> R:
        """Return the result in the buffers, that of T."""

    def tracks(self, n: int) -> bool:
        """Return whether matrices whose smaller side is n are tracked."""
        return self.solver == "tracking" or (self.solver == "auto" and n >= TRACKED_SIZE)

    def begin(self, T: Tensor) -> None:
        """Forget everything, and allocate buffers for matrices like T ``(..., m, n)``."""
        self._last, self._host, self._is_loaded = None, _NO_COPY, False
        tracks = self.tracks(T.shape[-1])
        with torch.inference_mode(False):
            for name, (shape, dtype) in zip(self.names, self.layout(T), strict=True):
                kind = dtype or torch.float64
                setattr(self, name, torch.full(shape, -1, dtype=kind, device=T.device) if tracks else None)

    def follow(self, T: Tensor) -> R:
        """Return the result for each matrix.

        Args:
            T: Matrices ``(..., m, n)``, m ≥ n, without a graph, float32, float64, complex64 or complex128.
                The caller does not change them any more.
        """
        if not self.tracks(T.shape[-1]):
            return self.dense(T)
        result = self._recalled(T) if self._is_loaded else None
        if result is None:
            if not self.fits(T) or (self.numbers is not None and self.numbers.is_inference()):
                self.begin(T)
            result = self.tracked(T)
        vars(self)["_last"] = T, result
        return result

    def fits(self, T: Tensor) -> bool:
        """Return whether the buffers are for matrices like T."""
        for name, (shape, dtype) in zip(self.names, self.layout(T), strict=True):
            buffer = getattr(self, name)
            if buffer is None or buffer.shape != shape or buffer.device != T.device:
                return False
            # Module.to(complex) converts all buffers.
            if buffer.dtype != dtype and (dtype is not None or buffer.is_complex()):
                return False
        return True

    # Checkpoints ----------------------------------------------------------------------------------

    def _recalled(self, T: Tensor) -> R | None:
        """Return the loaded result if it and T have the saved bits."""
        vars(self)["_is_loaded"] = False
        if not self.fits(T):
            return None
        assert self.digest is not None
        return self.unpacked(T) if torch.equal(self.digest.cpu(), self._digest(T)) else None

    def _save(self) -> None:
        """Write the last result and its digest into the buffers."""
        # The next step has what a resumed run has, so that both continue to the same bits.
        vars(self)["_host"] = _NO_COPY
        if self._last is None or self.digest is None:
            return
        T, result = self._last
        pairs = [(getattr(self, name), value) for name, value in self.packed(result).items()]
        if all(buffer is not None and buffer.shape == value.shape for buffer, value in pairs):
            with torch.no_grad():
                for buffer, value in pairs:
                    buffer.copy_(value)
                self.digest.copy_(self._digest(T))

    def _digest(self, T: Tensor) -> Tensor:
        """Return the SHA-256 of the bytes of T and the buffers, as float64 numbers."""
        digest = hashlib.sha256()
        for t in (T, *(getattr(self, name) for name in self.covered)):
            entries = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).detach().cpu()
            # A copy, as in eigen.dense. Not a clone: torch 2.6 exports a copy whose clones are fake.
            entries = entries.contiguous()
            digest.update(torch.empty_like(entries).copy_(entries).numpy().tobytes())
        numbers = [int.from_bytes(digest.digest()[4 * i : 4 * i + 4], "big") for i in range(8)]
        return torch.tensor(numbers, dtype=torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        self._save()
        return {**self.__dict__, "_last": None, "_host": _NO_COPY, "_is_loaded": True}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._save()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self.names:  # A block that is read by columns is stored by columns.
            if prefix + name in destination:
                destination[prefix + name] = destination[prefix + name].contiguous()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the buffers, or none: a checkpoint with the weight alone is complete."""
        metadata, *_, errors = args
        assign = metadata.get("assign_to_params_buffers", False)
        vars(self).update(_last=None, _host=_NO_COPY, _is_loaded=True)
        with torch.inference_mode(False), torch.no_grad():
            for name in self.names:
                present, value = getattr(self, name), state_dict.get(prefix + name)
                if value is None:
                    if present is not None:
                        present.fill_(-1)
                elif present is not None and present.shape != value.shape:
                    errors.append(
                        f"{prefix}{name}: expected shape {tuple(present.shape)}, got {tuple(value.shape)}. "
                        f"Load the checkpoint without the keys that begin with {prefix!r}: what is tracked "
                        "is then computed anew."
                    )
                elif present is None or assign:
                    setattr(self, name, value.detach().clone())
                else:
                    present.copy_(value)  # In place: compiled graphs hold these tensors.


DIGEST = (8,), None  # In a layout.
_NO_COPY: tuple[Any, tuple[int, ...]] = (None, ())


class Follower(Tracker[Leader]):
    """The spectral radius ρ, or abscissa α, of matrices that change little from read to read.

    With m matrices the buffers are:

    - ``right``, ``left``: the blocks of each matrix, ``(m, n, 16)``.
    - ``numbers``: the other fields of :class:`~spectral_param._eigen.tracking.State`, ``(m, 7)``.
    - ``triple``: λ, u and v, ``(m, 2n + 1, 2)``.

    Args:
        solver: As for :class:`Tracker`.
        height: ``"modulus"`` for ρ; ``"real"`` for α, which is always computed densely.
    """

    names = ("right", "left", "numbers", "triple", "digest")
    covered = ("triple", "numbers")
    right: Tensor | None
    left: Tensor | None
    triple: Tensor | None

    def __init__(self, solver: Solver, height: Height = "modulus") -> None:
        super().__init__(solver if height == "modulus" else "dense")
        self.height: Height = height

    def layout(self, T: Tensor) -> Layout:
        """Return shape and dtype of each buffer."""
        n, m = T.shape[-1], T.shape[:-2].numel()
        block = (m, n, min(tracking.COLUMNS, n)), T.dtype
        numbers = (m, len(tracking.NUMBERS)), None
        triple = (m, 2 * n + 1, 2), T.real.dtype
        return block, block, numbers, triple, DIGEST

    def dense(self, T: Tensor) -> Leader:
        """Return the leading eigentriple of each matrix by LAPACK."""
        return Leader(*leading_eigentriple(T, self.height))

    def tracked(self, T: Tensor) -> Leader:
        """Return the leader, tracked from the state in the buffers."""
        right, left, numbers = self.right, self.left, self.numbers
        assert right is not None
        assert left is not None
        assert numbers is not None
        states, versions = self._host
        if versions != (numbers._version,):
            states = _states(right, left, numbers.tolist())
        found, states = _follow(T, states)
        _store(states, right, left, numbers)
        # The buffers hold the blocks now, so the states refer to them and drop their own copies.
        kept = [dataclasses.replace(s, right=r, left=l) for s, r, l in zip(states, right, left, strict=True)]
        vars(self)["_host"] = kept, (numbers._version,)
        return Leader(found, all(state.regular for state in states))

    def recorded(self, T: Tensor) -> Tensor:
        """Return ρ or α of T ``(..., n, n)`` inside transforms and recorded graphs; torch.compile tracks."""
        if not is_traced(T):
            return leading_value(T, self.height)
        if not (is_compiled() and self.tracks(T.shape[-1]) and self.fits(T)):
            return recorded_value(T, self.height)
        rho, gradient = _followed_radius(T.detach(), self.right, self.left, self.numbers)
        return with_gradient(T, rho, gradient)

    def packed(self, leader: Leader) -> dict[str, Tensor]:
        """Return the triple as one tensor."""
        m = leader.triple.eigenvalue.numel()
        parts = torch.cat([part.reshape(m, -1) for part in leader.triple], dim=-1)
        return {"triple": torch.view_as_real(parts)}

    def unpacked(self, T: Tensor) -> Leader:
        """Return the leader in the buffers."""
        assert self.triple is not None
        assert self.numbers is not None
        n, parts = T.shape[-1], torch.view_as_complex(self.triple.detach().clone())
        shapes = (T.shape[:-2], T.shape[:-1], T.shape[:-1])
        split = parts.split([1, n, n], dim=-1)
        triple = Eigentriple(*(p.reshape(shape) for p, shape in zip(split, shapes, strict=True)))
        return Leader(triple, bool((self.numbers[:, -1] > 0.5).all()))


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
