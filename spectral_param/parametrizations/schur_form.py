"""Matrices of given eigenvalues by their real Schur form (nnRNN)."""

from __future__ import annotations

import copy
import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from spectral_param import init
from spectral_param.eigen.derivative import degenerate_threshold
from spectral_param.errors import InManifoldError
from spectral_param.functional.checks import check_finite, check_real, finfo_eps
from spectral_param.functional.schur import (
    SchurBlocks,
    assemble,
    departure,
    flip_last,
    fold,
    paper_pairs,
    polar_parts,
    read_blocks,
    real_schur,
    scale_departure,
)
from spectral_param.parametrizations.base import (
    Parametrization,
    at_least_float32,
    is_trained,
    nested_count,
    nested_from_matrix,
    nested_originals,
    nested_parts,
    nested_start,
    nested_weight,
)
from spectral_param.parametrizations.skew_exponential import SkewExponential

Form = Literal["exact", "paper"]

_COMPLEX = "Its Schur form is another; take spectral_param.ScaledCayley or SpectralRadiusNorm."

# Where what would be outside a bound starts, relative to it. Of several eigenvalues on the bound itself
# rounding makes a Jordan block, whose eigenvalues it moves across; and the bound of the departure is reached
# in the limit only.
_INSIDE = 0.995


class SchurForm(Parametrization):
    r"""Real weight :math:`V = P(Λ + T)P^T` with the eigenvalues :math:`γ e^{±iθ}`.

    Source: Kerg et al., "Non-normal Recurrent Neural Network (nnRNN)" (NeurIPS 2019), eq. (5). P is
    orthogonal, Λ block-diagonal, T strictly block lower triangular; the eigenvalues are those of Λ
    whatever P and T are. The blocks of Λ are

    .. math:: \begin{bmatrix} γ\cosθ & -s\,γ\sinθ \\ γ\sinθ/s & γ\cosθ \end{bmatrix}

    with a shear s > 0, or [γ], a real eigenvalue. The paper has no shear and trains the entry of T
    inside each block instead, which moves the eigenvalues: of modulus γ they are at the start only.
    ``form="paper"`` is that.

    The originals are T, of the weight's shape; γ, θ and log s, of its shape without columns; and those
    of P. (``"paper"`` has no log s.) The entry of γ, θ and log s that counts is that of the row where a
    block starts; the buffer ``pairs`` says where blocks of size 2 do. It is chosen when a weight is
    registered or assigned and stays fixed in training, so two real eigenvalues do not become a complex
    pair, nor the other way round: with ``init="paper"`` all are pairs, and for odd n one is real.

    Weights of shape ``(..., n, n)``, real. Registration and assignment take any real matrix, through LAPACK's
    real Schur form. Costs what P costs, and two matrix products forward, four backward.

    Args:
        P: The parametrization of P: of this library or another, with a ``right_inverse``. It is copied,
            so the given instance stays unused. ``None``: ``SkewExponential("cayley")``, the
            paper's expRNN as its authors start it; ``SkewExponential("henaff")`` is its other start.
        form: ``"exact"`` or ``"paper"``.
        radius: Bounds the moduli of the eigenvalues, with ``form="exact"``: a number r for ``|λ| ≤ r``,
            a pair for ``low ≤ |λ| ≤ high``, memory that neither dies nor explodes. What is trained in place
            of γ is reflected at the bounds: it is γ itself inside, and its derivative does not vanish on a
            bound, so that eigenvalues reach it and leave it again. With a pair, real eigenvalues keep their
            sign (buffer ``negative``). ``None``: no bound. It is a bound up to rounding, to which the
            eigenvalues of a matrix far from normal are very sensitive: training can take a float32 weight
            of 64 rows beyond 1 from a bound of 0.9. Where the bound matters, bound the departure, too.
        abscissa: Bounds the real parts of the eigenvalues, Re λ ≤ abscissa, in the same way and with the same
            remark: for dynamics in continuous time, dh/dt = V h. γ and θ are then the real and the imaginary
            part of an eigenvalue. Not together with ``radius``.
        departure: Bounds the departure from normality, with ``form="exact"``: the Frobenius norm of
            everything in Λ + T that is not normal, T and the shears. It limits how much a stable weight
            may grow a state for a while: :math:`‖V‖_2 ≤ ρ + departure`. ``None``: no bound.
        delta: δ of :meth:`penalty`. 1e-4, the default, is what the authors ran on copying, adding and
            Penn Treebank; on sequential MNIST they ran 0.1.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> register_parametrization(rnn, "weight_hh_l0", spectral_param.SchurForm(radius=0.99))
        ParametrizedRNN(...)
        >>> bool(spectral_param.functional.spectral_radius(rnn.weight_hh_l0) <= 0.99 + 1e-5)
        True
    """

    pairs: Tensor | None

    def __init__(
        self,
        P: nn.Module | None = None,
        form: Form = "exact",
        *,
        radius: float | tuple[float, float] | None = None,
        abscissa: float | None = None,
        departure: float | None = None,
        delta: float = 1e-4,
    ) -> None:
        super().__init__()
        if form not in get_args(Form):
            raise ValueError(f"form: expected one of {', '.join(get_args(Form))}, got {form!r}.")
        low, high = radius if isinstance(radius, tuple | list) else (0.0, radius)
        if high is not None and not (math.isfinite(high) and 0 <= low < high):
            raise ValueError(
                "radius: expected a finite positive number, a pair (low, high) with 0 <= low < high, or "
                f"None, got {radius!r}."
            )
        if abscissa is not None and not math.isfinite(abscissa):
            raise ValueError(f"abscissa: expected a finite number or None, got {abscissa!r}.")
        if radius is not None and abscissa is not None:
            raise ValueError(
                f"radius, abscissa: expected one of them, got {radius!r} and {abscissa!r}. radius= is for "
                "discrete time, abscissa= for continuous time."
            )
        if departure is not None and not (math.isfinite(departure) and departure > 0):
            raise ValueError(f"departure: expected a finite positive number or None, got {departure!r}.")
        for name, bound in (("radius", radius), ("abscissa", abscissa), ("departure", departure)):
            if bound is not None and form == "paper":
                raise ValueError(
                    f"{name}: expected None with form='paper', whose γ are not the moduli of the eigenvalues "
                    f"once T is trained, got {bound!r}. Take form='exact'."
                )
        if not (math.isfinite(delta) and delta >= 0):
            raise ValueError(f"delta: expected a finite number >= 0, got {delta!r}.")
        self.P = SkewExponential("cayley") if P is None else copy.deepcopy(P)
        if not callable(getattr(self.P, "right_inverse", None)):
            raise ValueError(
                "P: expected a parametrization of orthogonal matrices with a right_inverse, got "
                f"{type(self.P).__name__}. SkewExponential() and ScaledCayley() are two. A bound on the "
                "moduli of the eigenvalues is SchurForm(radius=...)."
            )
        self.form = form
        self.radius = radius
        self.abscissa = abscissa
        self.departure = departure
        self.delta = delta
        self.register_buffer("pairs", None)
        self.register_buffer("negative", None)

    def constrain(self, *originals: Tensor) -> Tensor:
        """Return V."""
        blocks, P_originals = self._blocks(originals)
        if self.departure is not None:
            excess = departure(blocks) / self.departure**2
            blocks = scale_departure(blocks, (1 + excess).rsqrt())
        return assemble(nested_weight(self.P, P_originals), blocks, self.form == "exact")

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> tuple[Tensor, ...]:
        """Return T, γ, θ, log s and the originals of P, by LAPACK's real Schur decomposition."""
        check_real(W, "SchurForm", _COMPLEX)
        check_finite(W, "SchurForm")
        P, S = real_schur(W)
        blocks = self._inside(read_blocks(S, eps, self.form == "exact"), W, eps, project)
        blocks, P_originals = self._invert_P(P, blocks, W, eps)
        self.pairs = blocks.pairs.to(W.device)
        gamma, theta = self._trained_parts(blocks)
        own = (blocks.T, gamma, theta, blocks.log_shear)[: self._count]
        return *(X.to(W.device, W.dtype) for X in own), *P_originals

    def start(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return section 4's start: T = 0, γ = 1, θ uniform in [0, 2π), s = 1, P as its own paper does.

        Bounds move eigenvalues that would be outside. The authors' code has T = 0; the paper does not say. A
        P of another library starts from rotations by angles uniform in [-π, π).
        """
        check_real(like, "SchurForm", _COMPLEX)
        P_originals = nested_start(self.P, init.henaff_(torch.empty_like(like)))
        gamma = torch.ones_like(like[..., 0])
        theta = torch.empty_like(gamma).uniform_(0, 2 * math.pi)
        self.pairs = paper_pairs(gamma)
        if self._interval()[0] > 0:
            self.negative = torch.zeros_like(gamma)
        if self.abscissa is not None:
            real, theta = polar_parts(gamma, theta, self.pairs)
            gamma = real.clamp(max=self.abscissa)
        elif self.radius is not None:
            gamma = gamma.clamp(*self._interval())
        own = (torch.zeros_like(like), gamma, theta, torch.zeros_like(gamma))
        return *own[: self._count], *P_originals

    def from_matrix(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return what is below the diagonal as T, what is above it as P, and the edges as γ, θ, log s."""
        if self.pairs is None:
            self.pairs = paper_pairs(X[..., 0])
            if self._interval()[0] > 0:
                self.negative = torch.zeros_like(self.pairs, dtype=X.dtype)
        edge = torch.zeros_like(X[..., :1, 0])
        theta, log_shear = (torch.cat([X.diagonal(k, -2, -1), edge], dim=-1) for k in (1, -1))
        own = (X, X.diagonal(dim1=-2, dim2=-1), theta, log_shear)
        return *own[: self._count], *nested_from_matrix(self.P, X.mT)

    def free_parameters(self, *originals: Tensor) -> int:
        """Return n² for each matrix, if P counts as n(n-1)/2; frozen originals are left out."""
        blocks, P_originals = self._blocks(originals)
        n = blocks.T.shape[-1]
        rows, pairs = blocks.real.numel(), int(blocks.pairs.sum())
        inside = pairs if self.form == "exact" else 0
        counts = (rows * (n - 1) // 2 - inside, rows - pairs, pairs, pairs)[: self._count]
        total = sum(count for count, X in zip(counts, originals, strict=False) if is_trained(X))
        return total + nested_count(self.P, P_originals)

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return this parametrization, and P with its own originals.

        Args:
            originals: The tensors the optimizer trains.

        Returns:
            Pairs of a parametrization and the originals that it reads.
        """
        return [(self, originals), *nested_parts(self.P, originals[self._count :])]

    def penalty(self, *originals: Tensor) -> Tensor:
        r"""Return :math:`δ\, ‖1 - |γ|‖_2^2`, which holds the eigenvalues near the unit circle.

        With ``abscissa``, δ times the squared distances of the real parts from it. For all weights of a model
        at once: :func:`spectral_param.penalty`.

        Args:
            originals: The tensors the optimizer trains.
        """
        blocks, _ = self._blocks(tuple(map(at_least_float32, originals)))
        if self.abscissa is not None:
            distance = self.abscissa - blocks.real
        else:
            distance = 1 - self._folded(at_least_float32(originals[1])).abs().to(blocks.real.dtype)
        second = blocks.pairs.roll(1, -1)
        return self.delta * torch.where(second, 0, distance.square()).sum()

    @torch.no_grad()
    def eigenvalues(self, *originals: Tensor) -> Tensor:
        """Return the eigenvalues of V, read off the blocks of Λ.

        Args:
            originals: The tensors the optimizer trains.

        Returns:
            Complex tensor ``(..., n)``, conjugate ones side by side; ``(..., k, n)`` for k gates.

        Example:
            >>> layer = torch.nn.Linear(4, 4)
            >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SchurForm(), init="paper")
            >>> weight = layer.parametrizations.weight
            >>> weight[0].eigenvalues(*weight.parameters(recurse=False)).abs()
            tensor([1., 1., 1., 1.])
        """
        blocks, _ = self._blocks(tuple(map(at_least_float32, originals)))
        inside = torch.zeros_like(blocks.imag)
        if self.form == "paper":
            entry = blocks.T.diagonal(-1, -2, -1)
            inside[..., :-1] = torch.where(blocks.pairs[..., :-1], entry, 0)
        # [a, b; c, a] has the eigenvalues a ± sqrt(bc); each row here has the block's.
        root = (-blocks.imag * (blocks.imag + inside)).to(blocks.T.dtype.to_complex()).sqrt()
        second = (blocks.real - root).roll(1, -1)
        return torch.where(blocks.pairs.roll(1, -1), second, blocks.real + root)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        bounds = f"radius={self.radius}, abscissa={self.abscissa}, departure={self.departure}, "
        return f"form={self.form!r}, {bounds if self.form == 'exact' else ''}delta={self.delta}"

    @property
    def _count(self) -> int:
        """How many originals come before those of P."""
        return 4 if self.form == "exact" else 3

    def _folded(self, gamma: Tensor) -> Tensor:
        """Return the γ that the blocks have, from what is trained; |γ| where a sign is kept."""
        if self.radius is None:
            return gamma
        low, high = self._interval()
        return fold(gamma, low if low > 0 else -high, high)

    def _interval(self) -> tuple[float, float]:
        """Return the least and the largest modulus."""
        if self.radius is None:
            return 0.0, math.inf
        return self.radius if isinstance(self.radius, tuple | list) else (0.0, self.radius)

    def _blocks(self, originals: tuple[Tensor, ...]) -> tuple[SchurBlocks, tuple[Tensor, ...]]:
        """Return what Λ + T is made of, and the originals of P."""
        assert self.pairs is not None, "known from registration on"
        T, gamma, theta, *rest = originals[: self._count]
        log_shear = rest[0] if rest else torch.zeros_like(gamma)
        if self.abscissa is not None:
            real, imag = fold(gamma, -math.inf, self.abscissa), torch.where(self.pairs, theta, 0)
        else:
            gamma = self._folded(gamma)
            if self._interval()[0] > 0:
                assert self.negative is not None, "known from registration on"
                gamma = gamma * (1 - 2 * self.negative.to(gamma.device, gamma.dtype))
            real, imag = polar_parts(gamma, theta, self.pairs)
        return SchurBlocks(T, real, imag, log_shear, self.pairs), originals[self._count :]

    def _trained_parts(self, blocks: SchurBlocks) -> tuple[Tensor, Tensor]:
        """Return the γ and θ that :meth:`_blocks` maps to these blocks, and keep the signs of γ."""
        if self.abscissa is not None:
            return blocks.real, blocks.imag
        # |θ| ≤ π/2 and γ has the sign of the real part: next to the negative axis, sin θ would lose the
        # digits that a large shear needs.
        negative = (blocks.real < 0).to(blocks.real.dtype)
        sign = 1 - 2 * negative
        modulus = torch.hypot(blocks.real, blocks.imag)
        theta = torch.atan2(sign * blocks.imag, blocks.real.abs())
        if self._interval()[0] > 0:
            self.negative = negative.to(blocks.T.device)
            return modulus, theta
        return sign * modulus, theta

    def _moved_inside(self, blocks: SchurBlocks, room: float = 0.0) -> SchurBlocks:
        """Return blocks whose eigenvalues keep the bounds, with nothing else changed.

        Args:
            blocks: Of the exact form.
            room: Distance from the bound at which those from outside are put, relative to the bound.
        """
        modulus = torch.hypot(blocks.real, blocks.imag)
        if self.abscissa is not None:
            target = self.abscissa - room * modulus
            return blocks._replace(real=torch.where(blocks.real > self.abscissa, target, blocks.real))
        if self.radius is None:
            return blocks
        low, high = self._interval()
        room = min(room * high, (high - low) / 4)
        target = torch.where(modulus > high, high - room, torch.where(modulus < low, low + room, modulus))
        factor = target / torch.where(modulus > 0, modulus, 1)
        real = torch.where(modulus > 0, factor * blocks.real, target)
        return blocks._replace(real=real, imag=factor * blocks.imag)

    def _inside(self, blocks: SchurBlocks, W: Tensor, eps: float, project: bool) -> SchurBlocks:
        """Return blocks that keep the bounds, or what :meth:`constrain` scales to that departure."""
        # At registration only the rounding of the computation counts as none. Half precision would count
        # far too much as that.
        rounding = finfo_eps(W.dtype) if project else eps
        moved = self._moved_inside(blocks)
        distance = torch.hypot(moved.real - blocks.real, moved.imag - blocks.imag)
        distance = torch.where(blocks.pairs.roll(1, -1), 0, distance)
        outside = distance > self._eigenvalue_tolerance(W, distance, rounding)
        if not project and bool(outside.any()):
            bound = f"radius {self.radius}" if self.radius is not None else f"abscissa {self.abscissa}"
            raise InManifoldError(
                f"SchurForm: expected a weight whose eigenvalues keep the bound, {bound}, got one that is "
                f"{float(distance.max()):.6g} outside. Move them, or remove the parametrization, set the "
                "weight and register a new instance, which does so."
            )
        farther = self._moved_inside(blocks, room=1 - _INSIDE)
        moved = moved._replace(
            real=torch.where(outside, farther.real, moved.real),
            imag=torch.where(outside, farther.imag, moved.imag),
        )
        if self.departure is None:
            return moved
        ratio = departure(moved).sqrt() / self.departure
        outside = ratio > 1 + 10 * W.shape[-1] * rounding
        if not project and bool(outside.any()):
            raise InManifoldError(
                f"SchurForm: expected a weight whose departure from normality is < {self.departure}, got "
                f"{self.departure * float(ratio.max()):.6g}. Remove the parametrization, set the weight "
                "and register a new instance, which scales its non-normal part."
            )
        # Relative room that rounding needs next to the bound, where the map is not invertible.
        room = max(16 * finfo_eps(W.dtype), eps)
        inside = torch.where(outside, _INSIDE, ratio).clamp(max=1 - room)
        factor = inside / torch.where(ratio > 0, ratio, 1) / (1 - inside.square()).sqrt()
        return scale_departure(moved, torch.where(ratio > 0, factor, 1))

    def _eigenvalue_tolerance(self, W: Tensor, distance: Tensor, eps: float) -> Tensor | float:  # -> (..., 1)
        """Return how far an eigenvalue may be off for rounding alone."""
        if not bool((distance > 0).any()):
            return 0.0
        # ‖v_i‖ ‖row i of V⁻¹‖ is the condition number of λ_i. A defective one moves by the root of rounding.
        vectors = torch.linalg.eig(W).eigenvectors
        inverse = torch.linalg.inv_ex(vectors).inverse
        condition = torch.linalg.vector_norm(inverse, dim=-1).nan_to_num(nan=math.inf).amax(dim=-1)
        worst = 1 / degenerate_threshold(W.dtype)
        tolerance: Tensor = 10 * W.shape[-1] * eps * W.abs().amax(dim=(-2, -1)) * condition.clamp(max=worst)
        return tolerance[..., None].to(distance.device, distance.dtype)

    def _invert_P(  # noqa: N802
        self, P: Tensor, blocks: SchurBlocks, like: Tensor, eps: float
    ) -> tuple[SchurBlocks, tuple[Tensor, ...]]:
        """Return the originals of P, of determinant 1 if P can have that; otherwise of -1."""
        P, blocks = flip_last(P, blocks, torch.linalg.slogdet(P).sign < 0)
        everywhere = torch.ones(P.shape[:-2], dtype=torch.bool)
        failure = ValueError(
            f"P: expected a parametrization that reaches each orthogonal matrix, or its neighbour with one "
            f"column negated, but {type(self.P).__name__} returned another matrix. Take SkewExponential()."
        )
        for candidate, candidate_blocks in ((P, blocks), flip_last(P, blocks, everywhere)):
            target = candidate.to(like.device, like.dtype)
            try:
                originals = nested_originals(self.P, target, eps=eps, project=False)
            except ValueError as error:
                failure = error
                continue
            # Two matrices of different determinant are at least 2 apart.
            with torch.no_grad():
                distance = torch.linalg.matrix_norm(nested_weight(self.P, originals) - target)
            if bool((distance < 1).all()):
                return candidate_blocks, originals
        raise failure
