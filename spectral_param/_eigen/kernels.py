r"""The frequency at which a kernel's symbol has the largest norm, tracked from step to step, with a proof.

For every frequency ω on the grid of :mod:`spectral_param._eigen.symbol`, let σ(ω) = ‖K̂(ω)‖, and let b(ω) ≥
σ(ω) be the proven bound. The solver computes the norm σ(ω) and an upper bound of this norm at the leading
frequency of the last step, and at every frequency that turns out to have a larger norm. B is the largest of
these upper bounds. Frequencies with b(ω) ≤ B need no work.

**Carried bounds.** Let the new kernel be f ≥ 0 times the last step's kernel plus a difference D. By Weyl's
inequality, D changes σ(ω) by at most the *move* ‖D̂(ω)‖, and

.. math:: ‖\hat D(ω)‖_F^2 = \sum_{qq'} ⟨D_q, D_{q'}⟩ e^{-i (q - q')·ω}

needs only one product, that of the matrix of all taps of D with its adjoint, for all frequencies together. So
each step multiplies b(ω) by f, and adds the move. Most frequencies need no work in
most steps, because their norms lie several moves below the largest norm.

**Proofs.** For each ω with b(ω) > B, G(ω) = K̂K̂ᴴ is computed in single precision. If there are many such
frequencies, the products K_q K_{q'}ᴴ of the taps are computed once for all of them. A Cholesky factorisation
of t² - G(ω) proves σ(ω) ≤ t; a bound of the rounding errors is subtracted from t² beforehand. The first t is
(1 - s) B, where s is the *slack* of ω, so that b(ω) can grow for some steps before it reaches B. The slack
doubles after a success, and is not tried if moves are nearly as large as s B. The second t is B. (Gram
iteration would use products G·G instead. One such product costs six times as many operations as the
factorisation, and the resulting bound can be too large by a factor of n^(1/8).)

**Failed proofs.** If the proofs for both t fail, eigenvalues in single precision show whether σ(ω) > B. If
σ(ω) > B, the solver computes the norm at ω. If σ(ω) is within rounding errors of B, Cholesky or eigenvalues
in double precision decide.

If a kernel has one input or output channel (a depthwise kernel, for instance), K̂(ω) is a vector, whose norm
needs no proof.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param._eigen import hermitian, symbol
from spectral_param._eigen.singular import SAFE_RANGE, Norm, Pair, leading_pair, stacked_norms, tall
from spectral_param._eigen.solver import Follower, NormFollower, Solver
from spectral_param._matrices import decomposed
from spectral_param._precision import double_device, to_double
from spectral_param._scale import divided, power_of_two_scale

# Number of entries of a batch of Gram matrices that fit into a processor's cache, and the least number of
# matrices in a batch.
_ENTRIES, _LEAST = 2**18, 16
# A bound of the relative rounding errors of a norm that is computed from G in single precision.
_LESS = 2e-6
# The first slack, and the range of slacks. A slack s is tried if s B is larger than _WORTH times the move.
# The slack is multiplied by _PROVEN after a proof, by _FAILED after a failure, and by _UNTRIED if it was not
# tried.
_SLACK, _RANGE, _WORTH = 0.002, (1e-3, 0.95), 2.0
_PROVEN, _FAILED, _UNTRIED = 2.0, 0.25, 1.1
# Relative error of the Gram matrix of a move, which is summed in single precision.
_SUMMED = 1e-5


class KernelFollower(Follower):
    """Finds the peak of each kernel of one weight. With LAPACK as solver, no state is kept between reads."""

    def follow(self, K: Tensor, axes: int) -> symbol.Peak:
        """Return the peak of each kernel.

        Args:
            K: Kernels ``(..., o, i, *Q)`` of stride 1, see :func:`spectral_param._eigen.symbol.phases`. The
                caller must not change the kernels afterwards.
            axes: Number of spatial dimensions.
        """
        # Values and proofs need double precision, so K moves to a device that has it.
        K = K.detach().resolve_conj().to(double_device(K.device))
        batch, kernels = K.shape[: -axes - 2], K.reshape(-1, *K.shape[-axes - 2 :])
        points, cosine = symbol.grid(tuple(K.shape[-axes:]), not K.is_complex())
        if kernels.shape[1] > kernels.shape[2]:
            kernels = kernels.transpose(1, 2)
        if kernels.shape[1] == 1:
            norms, indices = _of_vectors(kernels[:, 0], points)
        else:
            if len(self._states) != len(kernels):
                self._states = [_One(self.solver) for _ in kernels]
            solutions = [
                one.follow(kernel, points) for one, kernel in zip(self._states, kernels, strict=True)
            ]
            norms, indices = [norm for norm, _ in solutions], [index for _, index in solutions]
        pair, bound = stacked_norms(norms, batch)
        return symbol.Peak(pair, bound / cosine, points[indices].reshape(*batch, 1, axes))


def _of_vectors(K: Tensor, points: Tensor) -> tuple[list[Norm], list[int]]:  # (b, i, *Q), (P, axes)
    """Return the norms of kernels with one input or output channel, and the indices of their frequencies."""
    scale = power_of_two_scale(K.flatten(1)[:, None])
    S = divided(K.flatten(1)[:, None], scale).reshape(K.shape)
    step = max(1, _ENTRIES // (len(points) * K.shape[1]))
    sizes = [
        symbol.symbol(to_double(part), points).flatten(-2).norm(dim=-1) for part in S[:, None].split(step)
    ]
    sigma, index = torch.cat(sizes).max(dim=-1)  # (b, P) -> (b)
    sigma = sigma.cpu() * scale[:, 0, 0].cpu().double()
    one = K.new_ones(1).to(K.dtype.to_complex())
    return [Norm(Pair(size, one), size) for size in sigma], index.tolist()


class _Known(NamedTuple):
    """The state of a kernel (n, i, *Q) after a step: b and the slack of each ω, and the leading frequency."""

    kernel: Tensor
    upper: Tensor
    slack: Tensor
    leading: int


class _One:
    """Tracks the peak of one kernel (n, i, *Q), n ≤ i."""

    def __init__(self, solver: Solver) -> None:
        self.norms, self.keeps = NormFollower(solver), solver.norm_from < math.inf
        self.known: _Known | None = None

    def follow(self, K: Tensor, points: Tensor) -> tuple[Norm, int]:
        """Return the largest norm on the grid, and the index of its frequency."""
        known, self.known = self.known, None
        index = 0 if known is None else known.leading
        flat = K.flatten(1)
        if not bool(flat.any() & flat.isfinite().all()):
            pair = leading_pair(tall(symbol.symbol(K, points[index : index + 1])[0]))
            return Norm(pair, pair.value), index
        scale = power_of_two_scale(flat)
        unit = float(scale)
        search = _Search(divided(flat, scale).reshape(K.shape), points, self.norms)
        moved = 0.0
        if known is not None and (known.kernel.shape, known.kernel.dtype) == (K.shape, K.dtype):
            before = known.kernel.to(K.device)
            factor, error = _factor(flat, before.flatten(1), math.prod(K.shape[2:]))
            moves = _moves((K - factor * before) / unit, points) + error / unit
            search.upper, search.slack = factor * known.upper / unit + moves, known.slack
            moved = float(moves.max())
        search.look(index)
        search.finish(moved)
        assert search.leading is not None
        (sigma, v), _ = search.leading
        if self.keeps and SAFE_RANGE[0] < unit < SAFE_RANGE[1]:
            self.known = _Known(K, search.upper * unit, search.slack, search.index)
        return Norm(Pair(sigma * unit, v), search.proven * unit), search.index


def _factor(K: Tensor, before: Tensor, taps: int) -> tuple[float, float]:  # (n, iQ)
    """Return the f ≥ 0 that minimizes ‖K - f before‖_F, and a bound of the rounding errors of f·before.

    The bound holds for the symbol of f·before at every frequency.
    """
    square = float(torch.linalg.vector_norm(before)) ** 2
    factor = max(0.0, float(torch.vdot(before.flatten(), K.flatten()).real) / square)
    return factor, torch.finfo(K.dtype).eps * factor * math.sqrt(square * taps)


def _moves(D: Tensor, points: Tensor) -> Tensor:
    """Return a bound of ‖D̂(ω)‖ for each frequency, float64 on the host, for D (n, i, *Q)."""
    axes = points.shape[-1]
    rows = D.flatten(-axes).flatten(0, 1).mT
    inner = to_double(rows @ rows.mH).cpu().to(torch.complex128)
    wave = torch.exp(-1j * (points @ symbol.taps(D, axes).mT))  # (P, Q)
    square = ((wave @ inner) * wave.conj()).sum(dim=-1).real
    error = _SUMMED * len(inner) * float(inner.diagonal().real.sum())
    return 1.001 * (square.clamp(min=0) + error).sqrt()


class _Search:
    """The search for the largest norm of K̂ on a grid, for a finite K (n, i, *Q) with entries of about 1."""

    def __init__(self, K: Tensor, points: Tensor, norms: NormFollower) -> None:
        self.kernel, self.points, self.norms = K, points, norms
        self.grams = _Grams(K.to(torch.complex64 if K.is_complex() else torch.float32), points)
        self.grams_in_double: _Grams | None = None
        self.upper = torch.full((len(points),), math.inf, dtype=torch.float64, device="cpu")
        self.slack = torch.full_like(self.upper, _SLACK)
        self.bound = 0.0  # B
        self.leading: Norm | None = None
        self.index = 0
        self.candidate: int | None = None

    def look(self, index: int) -> None:
        """Compute the norm at a frequency. The frequency with the largest bound becomes the leading one."""
        small = self.kernel.shape[0] < self.norms.least_size
        # The norm of a small matrix is computed by LAPACK in double precision, and so is the symbol.
        K = to_double(self.kernel) if small else self.kernel
        K = tall(symbol.symbol(K, self.points[index : index + 1])[0])
        norm = self.norms.follow(K)
        # The entries of the symbol are rounded sums, so the bound is raised by these rounding errors.
        norm = Norm(norm.pair, norm.bound * (1 + 2 * torch.finfo(K.dtype).eps))
        self.upper[index] = norm.bound
        if self.leading is None or norm.bound > self.leading.bound:
            self.leading, self.index = norm, index
        self.bound = max(self.bound, float(norm.bound))

    def finish(self, moved: float) -> None:
        """Raise B until B bounds the norms at all frequencies. ``moved`` is the largest move."""
        left = self._open(self.upper.argsort(descending=True))
        while len(left):
            for part in left.split(max(_LEAST, _ENTRIES // self.kernel.shape[0] ** 2)):
                self._sweep(self._open(part), moved)
            if self.candidate is not None:
                self.look(self.candidate)
                self.candidate = None
            left = self._open(left)

    def _sweep(self, part: Tensor, moved: float) -> None:
        """Prove that B bounds the norms at these frequencies, or raise B and choose a candidate."""
        tried = self.slack[part] * self.bound > _WORTH * moved
        self._prove(part[tried], self.bound * (1 - self.slack[part[tried]]))
        proven = self.upper[part] <= self.bound
        factors = torch.where(proven, _PROVEN, torch.where(tried, _FAILED, _UNTRIED))
        self.slack[part] = (self.slack[part] * factors).clamp(*_RANGE)
        self._prove(part)
        part = self._open(part)
        if not len(part):
            return
        values = decomposed(torch.linalg.eigvalsh, self.grams.at(part))[..., -1].cpu()
        size, best = values.max(dim=0)
        level = math.sqrt(max(float(size), 0.0)) * (1 - _LESS)
        if level > self.bound:
            # The candidate's norm is computed after the sweep, because a later frequency may replace the
            # candidate.
            self.bound, self.candidate = level, int(part[best])
            self._prove(part[torch.arange(len(part), device="cpu") != best])
        else:
            self._decide(part)

    def _open(self, indices: Tensor) -> Tensor:
        return indices[self.upper[indices] > self.bound]

    def _prove(self, part: Tensor, levels: Tensor | None = None) -> None:
        """Try to prove that ``levels`` (by default, B) bound the norms at the frequencies ``part``."""
        if not len(part):
            return
        if levels is None:
            part = self._open(part)
            levels = torch.full((len(part),), self.bound, dtype=torch.float64, device="cpu")
        n, i, *sizes = self.kernel.shape
        # Each entry of G is a sum of at most ``terms`` products. Rounding errors add up like a random walk,
        # so 4 · terms rounding errors of size B² are more than enough.
        terms = n + i + math.prod(2 * q - 1 for q in sizes)
        rounding = 4 * terms * torch.finfo(torch.float32).eps * self.bound**2
        G = self.grams.at(part)
        proven = hermitian.is_below(G, (levels**2 - rounding).to(G.device, G.real.dtype)).cpu()
        self.upper[part[proven]] = levels[proven]

    def _decide(self, part: Tensor) -> None:
        """Bound the norms at the frequencies ``part`` in double precision."""
        if self.grams_in_double is None:
            self.grams_in_double = _Grams(to_double(self.kernel), self.points)
        same = 1 + self._same()
        square = torch.full((len(part),), (same * self.bound) ** 2, dtype=torch.float64, device="cpu")
        proven = hermitian.is_below(self.grams_in_double.at(part), square.to(self.kernel.device)).cpu()
        self.upper[part[proven]] = self.bound
        part = part[~proven]
        if len(part):
            values = (
                same * decomposed(torch.linalg.eigvalsh, self.grams_in_double.at(part))[..., -1].cpu().sqrt()
            )
            best = values.argmax()
            if values[best] > self.bound:
                self.look(int(part[best]))
            self.upper[part] = values
            self.bound = max(self.bound, float(values[best]))

    def _same(self) -> float:
        """Return a bound of the rounding errors of norms in double precision, divided by B."""
        return 4 * self.kernel.shape[0] * torch.finfo(torch.float64).eps

    @property
    def proven(self) -> Tensor:
        """The proven bound of the norms at all frequencies."""
        return self.upper.max() * (1 + self._same())


class _Grams:
    """Computes G(ω) of a kernel K (n, i, *Q), by one product for each ω or from the products of the taps."""

    def __init__(self, K: Tensor, points: Tensor) -> None:
        self.kernel, self.points = K, points
        self._asked = 0
        self._lags: tuple[Tensor, ...] | None = None
        self._buffers: list[Tensor] = []

    def at(self, indices: Tensor) -> Tensor:  # -> (m, n, n)
        """Return G at the frequencies with these indices. The next call may overwrite the result."""
        self._asked += len(indices)
        count = self.kernel[0, 0].numel()
        # A product of complex matrices takes as many operations as four products of real matrices.
        products = count * (count + 1) / 2 / (1 if self.kernel.is_complex() else 4)
        if self._lags is None and self._asked <= products:
            X = symbol.symbol(self.kernel, self.points[indices])
            return X @ X.mH
        if self._lags is None:
            C, r = _autocorrelation(self.kernel, self.points.shape[-1])
            lags = [C] if C.is_complex() else [C + C.mT, C - C.mT]
            self._lags = r, *(part.flatten(1) for part in lags)
        r, *lags = self._lags
        angle = (self.points[indices] @ r.mT).to(lags[0].device, lags[0].real.dtype)
        square = (-1, *self.kernel.shape[:1] * 2)
        if len(lags) == 1:
            G = (torch.polar(torch.ones_like(angle), angle) @ lags[0]).reshape(square)
            return G + G.mH
        # The buffers are kept, because writing to new memory takes longer than the products.
        if not self._buffers or len(self._buffers[0]) < len(angle):
            parts = [angle.new_empty(len(angle), lags[0].shape[-1]) for _ in range(2)]
            self._buffers = [*parts, torch.empty_like(parts[0], dtype=angle.dtype.to_complex())]
        real, imaginary, G = (part[: len(angle)] for part in self._buffers)
        torch.mm(angle.cos(), lags[0], out=real)
        torch.mm(angle.sin(), lags[1], out=imaginary)
        return torch.complex(real, imaginary, out=G).reshape(square)


def _autocorrelation(K: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Return C_r (R, n, n) of K (n, i, *Q) with Σ_r (C_r e^(i r·ω) + h.c.) = K̂ K̂ᴴ, and r (R, axes).

    The conjugate transpose h.c. contributes the term for -r, so only one of r and -r is included, and C_0 is
    halved. The lags r are in double precision.
    """
    n, taps = K.shape[0], symbol.taps(K, axes)
    first, second = torch.triu_indices(len(taps), len(taps), device="cpu").unbind()  # Pairs q ≤ q'.
    r, place = (taps[second] - taps[first]).unique(dim=0, return_inverse=True)
    rows = K.flatten(-axes).permute(2, 0, 1).contiguous()  # (Q, n, i)
    C = K.new_zeros(len(r), n, n)
    for q, other, lag in torch.stack([first, second, place], dim=-1).tolist():
        C[lag].addmm_(rows[q], rows[other].mH)  # K_q K_q'ᴴ
    C[(r == 0).all(dim=-1).to(K.device)] /= 2
    return C, r
