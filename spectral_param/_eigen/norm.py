"""The largest singular value with a bound from above: by LAPACK, or followed from one step to the next.

An optimizer step changes T little, so the leading right singular vectors of the last step are nearly right. A
block V of 16 of them is corrected by products of T and Tᴴ with thin blocks. The largest Ritz value of G = TᴴT
is σ² from below. A bound from above comes from (3) of :mod:`spectral_param._eigen.proof`, with what lies
outside of the block bounded by (2). Both are within ``tolerance`` of each other, or the result is not used.

Products of T are spent where Chebyshev polynomials of G make the most of them, because the gap between the
block and the rest, a/θ₁ = 0.9 or so for a Gaussian matrix, is small: a polynomial of degree d amplifies what
is above a by T_d(2θ₁/a - 1), about e^(2d √(1 - a/θ₁))/2. The number ``edge``, a/θ₁, is the only one that is
learnt.

Where the block has no gap to the rest (many equal singular values), G is computed in double precision. A
Cholesky factorisation proves the largest Ritz value. If it is not the largest eigenvalue, LAPACK finds that.

All random numbers come from generators seeded by the step's number, which is part of the state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from spectral_param._eigen import proof
from spectral_param._eigen.follower import TRACKED_SIZE, Solver, _digest
from spectral_param._eigen.singular import Pair, leading_pair, to_double

Array = npt.NDArray[Any]

# Columns of the block, and how many of them the next step takes from the directions outside.
COLUMNS, FRESH = 16, 3
# Most of the Ritz vectors that are left out of what is bounded.
CUT = 12
# Sweeps of a block of random vectors; rounds of an attempt; products of T and Tᴴ in one round.
COLD_SWEEPS, ROUNDS, PRODUCTS = 3, 3, 80
# What lies outside is to be bounded by a + REACH (θ₁ - a).
REACH = 0.75
# For σ in this range nothing overflows or underflows in single precision, EᴴE included, which is to be known
# to (eps θ₁)² = (eps σ²)². A σ outside is computed by LAPACK.
_ORDINARY = (2.0**-14, 2.0**14)


class Norm(NamedTuple):
    """The norms of matrices.

    Attributes:
        pair: σ and v.
        bound: A bound of σ from above, as σ is: ``(...)``, float64, on the host.
    """

    pair: Pair
    bound: Tensor


def tolerance(dtype: torch.dtype) -> float:
    """Return by how much a bound may exceed σ, relative to σ, if it is followed."""
    return 1e-10 if dtype in (torch.float64, torch.complex128) else 4 * torch.finfo(dtype).eps


@dataclasses.dataclass(frozen=True)
class State:
    """What is kept between calls, for a batch of matrices.

    Attributes:
        block: Leading right singular vectors, ``(b, n, COLUMNS)``.
        step: Number of calls; the seed of the random directions.
        edge: a/θ₁; 0 if the block means nothing, 1 if the last attempt failed.
    """

    block: Tensor
    step: int = 0
    edge: float = 0.0


def follow(T: Tensor, state: State) -> tuple[Norm, State]:  # T: (b, m, n), m ≥ n
    """Return the norms, and the state for the next call."""
    T = T.detach().resolve_conj()
    state = dataclasses.replace(state, step=state.step + 1)
    # Products of matrices alone are faster than those of a batch of one.
    one = len(T) == 1
    inner = dataclasses.replace(state, block=state.block[0]) if one else state
    norms, best, found = _attempt(T[0] if one else T, inner)
    block = found.block[None] if one else found.block
    if norms is None:
        norms, block = _without_gap(T, block, best)
    return norms, dataclasses.replace(found, block=block)


class _Ritz(NamedTuple):
    """The Ritz pairs of G in a block, largest first, on the host, for b matrices."""

    theta: Array  # (b, k)
    defect: Array  # EᴴE for the Ritz vectors, (b, k, k)

    @property
    def top(self) -> Array:
        return self.theta[:, 0]

    def bound(self, cut: int, b: Array) -> Array:
        """Return (3) for the first ``cut`` Ritz vectors and a bound b of the rest."""
        H = np.zeros_like(self.defect[:, :cut, :cut])
        H[:, range(cut), range(cut)] = self.theta[:, :cut]
        return proof.block_bound(H, self.defect[:, :cut, :cut], self.top, b)


def _attempt(T: Tensor, state: State) -> tuple[Norm | None, tuple[Tensor, Array] | None, State]:
    """Follow the block from the last T to this one.

    Returns:
        The norms, None if they could not be proven; the best Ritz vectors and their values; and the state.
    """
    n, tol, edge = T.shape[-1], tolerance(T.dtype), state.edge
    generator = torch.Generator().manual_seed(state.step)
    V = state.block
    if edge == 0:
        V = _normal(V, generator)
        for _ in range(COLD_SWEEPS):
            V = _product(T, _orthonormal(V))
    V, ritz = _ritz(T, V)
    for _ in range(ROUNDS):
        if ritz is None:
            return None, None, dataclasses.replace(state, edge=0.0)
        if edge in (0, 1):
            # The last Ritz values have not converged.
            edge = float((ritz.theta[:, 3 * V.shape[-1] // 4 - 1] / ritz.top).max())
        edge = min(max(edge, 1e-6), 1.0)
        sweeps = _sweeps(ritz, edge, tol)
        if sweeps > PRODUCTS:
            break
        if sweeps:
            V, ritz = _ritz(T, _chebyshev(partial(_product, T), V, _scaled(edge * ritz.top, T), sweeps))
            if ritz is None:
                continue
        cut, reach = _cut(ritz, edge, tol)
        products = _products(reach, n)
        if cut == 0 or products > PRODUCTS:
            edge = max(edge, float((ritz.theta[:, -1] / ritz.top).max()))
            continue
        leading, a = V[..., :cut], reach * ritz.top
        X = _outside(leading, _normal(V.new_empty(*V.shape[:-1], proof.VECTORS), generator))
        S = _chebyshev(partial(_product_outside, T, leading), X, _scaled(a, T), products)
        gram = _on_host(S.mH @ S)[0]
        b, estimate = proof.chebyshev_bound(gram, a, products, n)
        upper = ritz.bound(cut, b)
        known = float((estimate / ritz.top).max())
        edge = known if math.isfinite(known) else (1 + reach) / 2
        if (upper <= ritz.top * (1 + 2 * tol)).all():
            state = dataclasses.replace(state, block=_refreshed(V, S), edge=min(edge, 1.0))
            return _norms(V, ritz.top, upper), None, state
        if math.isfinite(known):
            V, ritz = _ritz(T, _refreshed(V, S))
    best = None if ritz is None else (V.reshape(len(ritz.top), *V.shape[-2:]), ritz.top)
    return None, best, dataclasses.replace(state, block=V, edge=1.0)


def _sweeps(ritz: _Ritz, edge: float, tol: float) -> int:
    """Return the degree of the polynomial after which (3) holds up to ``tol``; 0 if it does now."""
    if edge >= 1 - 1e-9:
        return 0
    # All relative to θ₁. (3) asks for residual² ≤ 2 tol (θ₁ - b), with a reserve.
    needed = math.sqrt(2 * tol * (1 - REACH) * (1 - edge))
    residual = np.sqrt(ritz.defect[:, 0, 0].real.clip(min=0))
    excess = float((residual / ritz.top).max()) / needed
    return math.ceil(math.acosh(math.e * excess) / math.acosh(2 / edge - 1)) if excess > 1 else 0


def _cut(ritz: _Ritz, edge: float, tol: float) -> tuple[int, float]:
    """Return how many Ritz vectors to leave out of what is bounded, and a/θ₁ of the rest.

    Many make the rest small, but only those that have converged can be used in (3): those of residual r_i
    with r_i² ≤ (θ₁ - b) (θ₁ - θ_i)/2, roughly, and the first.
    """
    k = ritz.theta.shape[-1]
    relative = ritz.theta / ritz.top[:, None]
    squares = np.einsum("bii->bi", ritz.defect).real / (ritz.top**2)[:, None]
    room = np.maximum((1 - relative) / 2, 2 * tol) - squares / ((1 - REACH) * max(1 - edge, 1e-9))
    good = (room >= 0).all(axis=0)
    cut = min(CUT, k, int(good.argmin()) if not good.all() else k)
    after = float(relative[:, cut].max()) if cut < k else 0.0
    return cut, max(edge, after)


def _products(reach: float, n: int) -> int:
    """Return the degree of the polynomial with which (2) is expected to be a + REACH (θ₁ - a)."""
    if reach >= 1 - 1e-9:
        return PRODUCTS + 1
    growth = (n**0.5 + proof.VECTORS**0.5) / proof.TAU
    target = 1 + REACH * (1 / reach - 1)  # b/a
    return math.ceil(math.acosh(growth) / math.acosh(2 * target - 1))


def _without_gap(T: Tensor, block: Tensor, best: tuple[Tensor, Array] | None) -> tuple[Norm, Tensor]:
    """Return the norms by Cholesky or LAPACK, and the block with the vectors found."""
    if best is not None:
        V, top = best
        G = to_double(T)
        upper = top * (1 + 2 * tolerance(T.dtype))
        if bool(proof.is_below(G.mH @ G, torch.from_numpy(upper).to(T.device)).all()):
            return _norms(V, top, upper), block
    pair = leading_pair(T)
    v = torch.where(pair.vector.isfinite(), pair.vector, 0)
    return Norm(pair, pair.value), torch.cat([v[..., None], block[..., :-1]], dim=-1)


def _norms(V: Tensor, top: Array, upper: Array) -> Norm:
    """Return the norms for a block whose first columns are the vectors, and bounds of σ²."""
    sigma, bound = torch.from_numpy(np.sqrt(np.stack([top, np.maximum(top, upper)])))
    return Norm(Pair(sigma, V[..., 0].clone()), bound)


def _product(T: Tensor, V: Tensor) -> Tensor:
    """Return TᴴT V, in the layout in which BLAS multiplies a thin block fastest."""
    result: Tensor = ((T @ V).mH @ T).mH.resolve_conj()
    return result


def _outside(V: Tensor, X: Tensor) -> Tensor:
    """Return (I - VVᴴ) X, in the memory of X."""
    return X.sub_(V @ (V.mH @ X))


def _product_outside(T: Tensor, V: Tensor, X: Tensor) -> Tensor:
    """Return (I - VVᴴ) TᴴT X."""
    return _outside(V, _product(T, X))


def _orthonormal(V: Tensor) -> Tensor:
    Q: Tensor = torch.linalg.qr(V).Q
    return Q.mT.contiguous().mT


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random vectors. They are drawn on the host, so that they are the same on any device."""
    rows = torch.randn(like.mT.shape, dtype=like.dtype, device="cpu", generator=generator)
    return rows.to(like.device, non_blocking=True).mT


def _chebyshev(product: Callable[[Tensor], Tensor], X: Tensor, a: Any, degree: int) -> Tensor:
    """Return T_j(2A/a - 1) X for the degree j ≥ 1."""
    before, now = X, product(X).mul_(2 / a).sub_(X)
    for _ in range(degree - 1):
        before, now = now, product(now).mul_(4 / a).sub_(now, alpha=2).sub_(before)
    return now


def _scaled(a: Array, T: Tensor) -> Any:
    """Return numbers as a factor of the blocks of T: one as a float, which is faster."""
    if T.ndim == 2:
        return a.item()
    return torch.from_numpy(a).to(T.real.dtype).to(T.device, non_blocking=True)[:, None, None]


def _ritz(T: Tensor, V: Tensor) -> tuple[Tensor, _Ritz | None]:
    """Return the Ritz vectors of G in the space of V, largest first, and the pairs.

    The pairs are None where a matrix is zero, not finite, or of extreme size.
    """
    V = _orthonormal(V)
    image = _product(T, V)
    H = V.mH @ image
    E = image - V @ H
    small, defect = _on_host(H, E.mH @ E)
    if not (np.isfinite(small).all() and np.isfinite(defect).all()):
        return V, None
    theta, q = np.linalg.eigh((small + small.conj().swapaxes(-1, -2)) / 2)
    theta, q = theta[:, ::-1], q[..., ::-1].copy()
    low, high = _ORDINARY
    if not ((theta[:, 0] > low**2) & (theta[:, 0] < high**2)).all():
        return V, None
    turn = torch.from_numpy(q.reshape(*V.shape[:-2], *q.shape[1:]))
    V = V @ turn.to(V.dtype).to(V.device, non_blocking=True)
    return V, _Ritz(theta, q.conj().swapaxes(-1, -2) @ defect @ q)


def _on_host(*small: Tensor) -> list[Array]:
    """Return small matrices of equal size, (b, k, k) in double precision, in one transfer."""
    k = small[0].shape[-1]
    return list(to_double(torch.stack(small)).reshape(len(small), -1, k, k).cpu().resolve_conj().numpy())


def _refreshed(V: Tensor, S: Tensor) -> Tensor:
    """Return the block with its last directions replaced by some from outside."""
    count = min(FRESH, max(0, V.shape[-2] - V.shape[-1]))
    return torch.cat([V[..., : V.shape[-1] - count], S[..., :count]], dim=-1)


class NormFollower(nn.Module):
    """The norms of matrices that change little from read to read.

    The state of the tracking is in buffers, so that checkpoints and copies include it. With b matrices:

    - ``block``: :attr:`State.block`.
    - ``numbers``: the other fields of :class:`State`, float64 ``(2,)``.
    - ``vector``, ``sizes``, ``digest``: v, σ and its bound at the last read before the checkpoint, and the
      SHA-256 of their bits, those of T and those of ``numbers``. If all still have these bits after loading,
      the norms are used, so that an interrupted run continues to the same bits.

    All buffers are None if nothing is tracked.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from n = 96 on.
    """

    block: Tensor | None
    numbers: Tensor | None
    vector: Tensor | None
    sizes: Tensor | None
    digest: Tensor | None

    def __init__(self, solver: Solver) -> None:
        super().__init__()
        self.solver = solver
        for name in _BUFFERS:
            self.register_buffer(name, None)
        # The last T with its norms, for a checkpoint. T is that of the weight's memory and does not change.
        self._last: tuple[Tensor, Norm] | None = None
        self._is_loaded = False
        # The host's copy of ``numbers``, and the version of the buffer when it was copied.
        self._copy: tuple[list[float], int] = [], -1

    def tracks(self, n: int) -> bool:
        """Return whether matrices whose smaller side is n are tracked."""
        return self.solver == "tracking" or (self.solver == "auto" and n >= TRACKED_SIZE)

    def begin(self, T: Tensor) -> None:
        """Forget everything, and allocate buffers for matrices like T ``(..., m, n)``."""
        self._last, self._is_loaded, self._copy = None, False, ([], -1)
        n = T.shape[-1]
        with torch.inference_mode(False), torch.no_grad():
            for name in _BUFFERS:
                setattr(self, name, None)
            if self.tracks(n):
                count = T[..., 0, 0].numel()
                self.block = T.new_zeros(count, n, min(COLUMNS, n))
                self.numbers = torch.zeros(2, dtype=torch.float64, device=T.device)
                self.vector = T.new_zeros(count, n)
                self.sizes = torch.zeros(2, count, dtype=torch.float64, device=T.device)
                self.digest = torch.zeros(8, dtype=torch.float64, device=T.device)

    def follow(self, T: Tensor) -> Norm:
        """Return the norms.

        Args: T: Matrices ``(..., m, n)``, m ≥ n, without a graph, float32, float64, complex64 or complex128.
            The
                caller does not change them any more.
        """
        if not self.tracks(T.shape[-1]):
            pair = leading_pair(T)
            return Norm(pair, pair.value)
        found = self._recalled(T) if self._is_loaded else None
        if found is None:
            if not self._fits(T):
                self.begin(T)
            assert self.block is not None
            assert self.numbers is not None
            if self._copy[1] != self.numbers._version:
                vars(self)["_copy"] = self.numbers.tolist(), self.numbers._version
            step, edge = self._copy[0]
            fresh = not (math.isfinite(step) and 0 <= edge <= 1)
            state = State(self.block, 0, 0.0) if fresh else State(self.block, int(step), edge)
            (pair, bound), state = follow(T.reshape(-1, *T.shape[-2:]), state)
            with torch.no_grad():
                self.block.copy_(state.block)
                numbers = torch.tensor([state.step, state.edge], dtype=torch.float64, device="cpu")
                self.numbers.copy_(numbers, non_blocking=True)
                vars(self)["_copy"] = [state.step, state.edge], self.numbers._version
            shape = T.shape[:-2]
            pair = Pair(pair.value.reshape(shape), pair.vector.reshape(*shape, -1))
            found = Norm(pair, bound.reshape(shape))
        vars(self)["_last"] = T, found
        return found

    def _fits(self, T: Tensor) -> bool:
        """Return whether the buffers are for matrices like T."""
        n, count = T.shape[-1], T[..., 0, 0].numel()
        return (
            self.block is not None
            and self.numbers is not None
            and self.block.shape == (count, n, min(COLUMNS, n))
            and (self.block.dtype, self.block.device) == (T.dtype, T.device)
            and not self.numbers.is_complex()  # Module.to(complex) converts all buffers.
            and not self.numbers.is_inference()
        )

    # Checkpoints ----------------------------------------------------------------------------------

    def _recalled(self, T: Tensor) -> Norm | None:
        """Return the loaded norms if they and T have the saved bits."""
        vars(self)["_is_loaded"] = False
        vector, sizes, digest, numbers = self.vector, self.sizes, self.digest, self.numbers
        if not self._fits(T) or vector is None or sizes is None or digest is None or numbers is None:
            return None
        if not torch.equal(digest.cpu(), _digest(T, vector, sizes, numbers)):
            return None
        shape = T.shape[:-2]
        sigma, bound = sizes.cpu().clone().reshape(2, *shape)
        return Norm(Pair(sigma, vector.clone().reshape(*shape, -1)), bound)

    def _save(self) -> None:
        """Write the last norms and their digest into the buffers."""
        if self._last is None or self.vector is None or self.sizes is None or self.digest is None:
            return
        assert self.numbers is not None
        T, (pair, bound) = self._last
        if pair.vector.numel() == self.vector.numel() and self.sizes.dtype == torch.float64:
            with torch.no_grad():
                self.vector.copy_(pair.vector.reshape(self.vector.shape))
                self.sizes.copy_(torch.stack([pair.value, bound]).reshape(self.sizes.shape))
                self.digest.copy_(_digest(T, self.vector, self.sizes, self.numbers))

    def __getstate__(self) -> dict[str, Any]:
        self._save()
        return {**self.__dict__, "_last": None, "_is_loaded": True, "_copy": ([], -1)}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._save()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load buffers of any shape, or none: a checkpoint with the weight alone is complete."""
        vars(self).update(_last=None, _is_loaded=True, _copy=([], -1))
        with torch.inference_mode(False), torch.no_grad():
            for name in _BUFFERS:
                present, value = getattr(self, name), state_dict.get(prefix + name)
                if present is not None and value is not None and present.shape == value.shape:
                    present.copy_(value)
                elif value is not None:
                    device = value.device if present is None else present.device
                    setattr(self, name, value.detach().to(device, copy=True))
                elif present is not None:
                    present.zero_()


_BUFFERS = ("block", "numbers", "vector", "sizes", "digest")
