"""The eigentriples behind a constrained weight: computed, tracked, remembered and saved."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import torch
from torch import Tensor

from spectral_param.eigen import Eigentriple, tracking
from spectral_param.functional.checks import is_plain
from spectral_param.functional.spectral_radius import eigentriple
from spectral_param.parametrizations.memory import Memory
from spectral_param.precision import full_precision

Solver = Literal["auto", "dense", "tracking"]

# Size from which "auto" tracks. Below, all eigenvalues cost about as much as a step of tracking.
TRACKED_SIZE = 96


class EigentripleMemory:
    """Gives the dominant eigentriples of matrices that change a little from read to read.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from n = 96 on.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver = solver
        self._memory = Memory()
        self._tracked: list[tracking.State] = []
        # Address and version of the last T: the same ones say that it is probably unchanged. So does another
        # one that was unchanged: a copy is made for each read then.
        self._mark: tuple[int, int] | None = None
        self._is_copied = False
        # Packed state from a checkpoint, until the first read tells the matrices that it is for.
        self._saved: Tensor | None = None

    def tracks(self, n: int) -> bool:
        """Return whether matrices of this size are tracked.

        Args:
            n: The size.
        """
        return self.solver == "tracking" or (self.solver == "auto" and n >= TRACKED_SIZE)

    def forget(self) -> None:
        """Forget everything, since T is about to be another one."""
        self._memory, self._tracked, self._saved = Memory(), [], None

    @property
    def followed(self) -> bool:
        """Whether the last triples were all followed, so that none is of a zero or defective eigenvalue."""
        return bool(self._tracked) and all(state.followed for state in self._tracked)

    @full_precision
    def read(self, T: Tensor) -> Eigentriple:
        """Return the differentiable eigentriples of T, computed only if T is not the last one.

        Args:
            T: Matrices of shape ``(..., n, n)``.
        """
        if not is_plain(T):
            return eigentriple(T)
        if self._saved is not None:
            self._restore(T)
        tracks = self.tracks(T.shape[-1])
        # On a device each comparison makes the host wait. Where T has probably changed, it is left to the
        # tracking, which waits once for everything.
        mark = None if T.is_inference() else (T.data_ptr(), T._version)
        moved = tracks and not tracking.is_on_host(T) and mark != self._mark and not self._is_copied
        self._mark = mark
        known = None if moved else self._memory.recall(T)
        if known is None and tracks:
            known = self._track(T)
            self._memory.store((T,), known)
        if known is not None:
            return eigentriple(T, Eigentriple(*known))
        triple = eigentriple(T)
        self._memory.store((T,), triple)
        return triple

    def pack(self) -> Tensor:
        """Return the state as a float64 vector, empty without tracking.

        It holds the blocks that are followed, and the last T with its triple. A checkpoint is usually written
        after the optimizer has moved T and before that is read: how far T has moved, which decides whether
        to look for other eigenvalues, is then known after loading as it would have been without.
        """
        if self._saved is not None:
            return self._saved
        keys, triple = self._memory.entry()
        if not self._tracked or not keys:
            return torch.zeros(0, dtype=torch.float64)
        last = torch.cat([_to_numbers(part) for part in (*keys, *triple)])
        return torch.cat([_fingerprint(keys[0]), last, tracking.pack(self._tracked)])

    def unpack(self, packed: Tensor) -> None:
        """Go on from a packed state.

        Args:
            packed: What :meth:`pack` returned.
        """
        self._memory, self._tracked = Memory(), []
        self._saved = packed if len(packed) else None

    def _restore(self, T: Tensor) -> None:
        """Take up the saved state if it is for matrices like T."""
        assert self._saved is not None
        saved, self._saved = self._saved.cpu().double(), None
        batch, n = T.shape[:-2], T.shape[-1]
        shapes = (T.shape, batch, (*batch, n), (*batch, n))
        dtypes = (T.dtype, *3 * (T.dtype.to_complex(),))
        sizes = [
            _FINGERPRINT,
            *(math.prod(shape) * (2 if d.is_complex else 1) for shape, d in zip(shapes, dtypes, strict=True)),
        ]
        if len(saved) < sum(sizes):
            return
        mark, *parts, blocks = saved.split([*sizes, len(saved) - sum(sizes)])
        self._tracked = tracking.unpack(blocks, T.detach().reshape(-1, n, n))
        last, *triple = map(_from_numbers, parts, shapes, dtypes)
        # Where a T of other numbers was averaged into it, say, the triple belongs to none.
        if self._tracked and torch.equal(mark, _fingerprint(last)):
            self._memory.store((last.to(T.device),), tuple(part.to(T.device) for part in triple))

    def _track(self, T: Tensor) -> tuple[Tensor, ...]:
        """Return the eigentriple of each matrix by itself, from what the last call left."""
        matrices = T.reshape(-1, *T.shape[-2:])
        states: list[tracking.State | None] = [*self._tracked]
        if len(states) != len(matrices):
            states = [None] * len(matrices)
        last: list[tuple[Tensor, Eigentriple] | None] = [None] * len(matrices)
        keys, triples = self._memory.entry()
        if keys and keys[0].shape == T.shape and keys[0].dtype == T.dtype and keys[0].device == T.device:
            parts = [part.reshape(-1, *part.shape[T.ndim - 2 :]) for part in triples]
            before = zip(keys[0].reshape(matrices.shape), *parts, strict=True)
            last = [(previous, Eigentriple(*triple)) for previous, *triple in before]
        found = [tracking.track(*each) for each in zip(matrices, states, last, strict=True)]
        self._tracked = [state for _, state in found]
        self._is_copied = all(state is before for state, before in zip(self._tracked, states, strict=True))
        columns = zip(*(triple for triple, _ in found), strict=True)
        return tuple(torch.stack(column).reshape(T.shape[:-2] + column[0].shape) for column in columns)


# Of SHA-256, as numbers of 32 bits.
_FINGERPRINT = 8


def _fingerprint(T: Tensor) -> Tensor:
    """Return a digest of T's bytes, as float64 numbers."""
    entries = (torch.view_as_real(T) if T.is_complex() else T).detach().cpu().contiguous()
    digest = hashlib.sha256(entries.numpy().tobytes()).digest()
    numbers = [int.from_bytes(digest[4 * i : 4 * i + 4], "big") for i in range(_FINGERPRINT)]
    return torch.tensor(numbers, dtype=torch.float64)


def _to_numbers(x: Tensor) -> Tensor:
    """Return the entries as a float64 vector on the host."""
    return (torch.view_as_real(x) if x.is_complex() else x).cpu().double().flatten()


def _from_numbers(numbers: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return what :func:`_to_numbers` was given."""
    if dtype.is_complex:
        return torch.complex(*numbers.reshape(*shape, 2).unbind(-1)).to(dtype)
    return numbers.reshape(shape).to(dtype)
