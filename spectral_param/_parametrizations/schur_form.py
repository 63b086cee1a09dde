"""Matrices with given eigenvalues, by their real Schur form (nnRNN)."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from spectral_param import init
from spectral_param._eigen.dense import eigenvectors
from spectral_param._eigen.triple import degenerate_threshold
from spectral_param._map import Map, attach, recorded
from spectral_param._parametrizations.decoded import starts_of_pairs
from spectral_param._parametrizations.foreign import adapted, applied, count_free, originals_for
from spectral_param._parametrizations.in_set import frozen
from spectral_param._parametrizations.searched import Searched
from spectral_param._parametrizations.skew_exponential import SkewExponential
from spectral_param._parametrizations.tensors import as_real, as_tuple, at_least_float32, is_trained
from spectral_param._precision import relative_rounding, to_like
from spectral_param._scale import frobenius, power_of_two_scale
from spectral_param.functional._checks import (
    check_real,
    check_time,
    is_finite,
)
from spectral_param.functional._schur import (
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

Form = Literal["exact", "paper"]

_COMPLEX = "For complex weights take spectral_param.ScaledCayley or SpectralRadiusNorm."

# Registration moves eigenvalues and departures from outside a bound to this fraction of the bound. Several
# eigenvalues exactly on the bound can form a nearly defective eigenvalue, which rounding moves beyond the
# bound. The map reaches every departure below the bound, but not the bound itself.
_INSIDE = 0.995


class SchurForm(Searched):
    r"""Real weight :math:`V = P(Λ + T)P^T` with the eigenvalues :math:`γ e^{±iθ}`.

    The eigenvalues are parameters, with optional bounds on their moduli or real parts, and on the departure
    from normality. In training, two real eigenvalues never become a complex pair, and a complex pair never
    becomes two real eigenvalues. So to train a stable weight from a random start, take
    :class:`spectral_param.LyapunovForm`.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> constraint = spectral_param.SchurForm(radius=0.99, departure=1.0)
        >>> rnn = spectral_param.constrain(rnn, "weight_hh_l0", constraint)
        >>> bool(spectral_param.functional.spectral_radius(rnn.weight_hh_l0) <= 0.99 + 1e-5)
        True

    Args:
        P: The parametrization of P, of this library or another, with a ``right_inverse``. The constraint
            uses a copy of P; the given instance is not changed. ``None``, the default, is
            ``SkewExponential("cayley")``, as in the authors' code; ``SkewExponential("henaff")`` is the other
            initialization of the expRNN paper.
        form: ``"exact"``, the default, or ``"paper"``; the two forms have different blocks of Λ, see below.
        radius: Bound of the moduli of the eigenvalues, for ``form="exact"``: a number r for ``|λ| ≤ r``. γ is
            the trained number, reflected at the bound. The derivative of a reflection does not vanish, so
            eigenvalues can reach the bound and leave the bound again. ``None``, the default, means no bound.
            The bound holds up to rounding, but rounding errors can strongly change the eigenvalues of a
            matrix far from normal: in training with the bound 0.9, a float32 weight of 64 rows can reach a
            radius above 1. If the bound must hold, also bound the departure by a number about as large as the
            radius.
        abscissa: Bound of the real parts of the eigenvalues, Re λ ≤ abscissa, for continuous-time dynamics
            dh/dt = V h. ``abscissa`` takes the same values as ``radius``; give only one of the two. With
            ``abscissa``, γ and θ are the real and the imaginary part of an eigenvalue.
        departure: Bound of the departure from normality, for ``form="exact"``: the Frobenius norm of the
            non-normal part of Λ + T, which consists of T and the shears. The bound limits transient growth:
            :math:`‖V‖_2 ≤ ρ + departure`. ``None``, the default, means no bound.
        delta: The factor δ of :meth:`penalty`. The default is 1e-4, as in the authors' experiments on
            copying, adding and Penn Treebank; on sequential MNIST the authors use 0.1.

    Raises:
        ValueError: If an argument is outside its range.

    Source: Kerg et al., "Non-normal Recurrent Neural Network (nnRNN)" (NeurIPS 2019), eq. (5). P is
    orthogonal, Λ is block-diagonal, and T is strictly block lower triangular. So V and Λ have the same
    eigenvalues, for all P and T. The blocks of Λ are

    .. math:: \begin{bmatrix} γ\cosθ & -s\,γ\sinθ \\ γ\sinθ/s & γ\cosθ \end{bmatrix}

    The number s > 0 is called a shear. The block of a real eigenvalue is [γ]. In the paper there is no shear;
    instead, the entry of T inside each block is trained (``form="paper"``). This entry changes the
    eigenvalues, so γ is the modulus of the eigenvalues only while the entry is zero, as at the start.

    The originals are T, of the weight's shape; γ, θ and log s (not for ``"paper"``), each with one entry per
    row; and the originals of P. A block of two rows uses the entries of γ, θ and log s for the first of these
    rows. The buffer ``pairs`` marks the rows where blocks of size 2 begin. Registration and assignment choose
    ``pairs``, and training does not change ``pairs``. With ``init="paper"`` all eigenvalues form pairs,
    except for one real eigenvalue if n is odd.

    The weight is real, of shape ``(..., n, n)``. LAPACK's real Schur form gives the originals of any real
    matrix. A step evaluates the parametrization of P, and takes two more matrix products forward and four
    backward.

    The distance of a weight from the set is the largest excess of an eigenvalue, or of the departure from
    normality, over its bound. Without bounds the distance is 0. ``project`` returns the weight with which
    training would start after registration.
    """

    pairs: Tensor | None

    acts_after = False

    form: Form

    def __init__(
        self,
        P: nn.Module | None = None,
        form: Form = "exact",
        *,
        radius: float | None = None,
        abscissa: float | None = None,
        departure: float | None = None,
        delta: float = 1e-4,
    ) -> None:
        super().__init__(form=(form, Form))
        if radius is not None and not (is_finite(radius) and radius > 0):
            raise ValueError(f"radius: expected a finite positive number or None, got {radius!r}.")
        if abscissa is not None and not is_finite(abscissa):
            raise ValueError(f"abscissa: expected a finite number or None, got {abscissa!r}.")
        check_time(radius, abscissa)
        if departure is not None and not (is_finite(departure) and departure > 0):
            raise ValueError(f"departure: expected a finite positive number or None, got {departure!r}.")
        for name, bound in (("radius", radius), ("abscissa", abscissa), ("departure", departure)):
            if bound is not None and form == "paper":
                raise ValueError(
                    f"{name}: expected None with form='paper', where training T changes the eigenvalues, got "
                    f"{bound!r}. Take form='exact'."
                )
        if not (is_finite(delta) and delta >= 0):
            raise ValueError(f"delta: expected a finite number >= 0, got {delta!r}.")
        self.P = SkewExponential("cayley") if P is None else copy.deepcopy(P)
        if not callable(getattr(self.P, "right_inverse", None)):
            raise ValueError(
                "P: expected a parametrization of orthogonal matrices with a right_inverse, got "
                f"{type(self.P).__name__}. Take SkewExponential() or ScaledCayley(). For a bound on the "
                "moduli of the eigenvalues write SchurForm(radius=...)."
            )
        self.radius = radius
        self.abscissa = abscissa
        self.departure = departure
        self.delta = delta
        self.register_buffer("pairs", None)

    def reference(self, *originals: Tensor) -> Tensor:
        """Return V."""
        return self._at(lambda *own: applied(self.P, own), originals)

    def evaluate(self, *values: Tensor) -> Map:
        """Return V by torch's operations; P and its gradient come from the map of P's own constraint."""
        known, of_P = frozen(self), adapted(self.P).evaluate(*map(as_real, values[self._count :]))
        return recorded(
            lambda *originals: known._at(functools.partial(attach, of_P), originals),
            *values,
            reference=lambda *originals: known._at(of_P.reference, originals),
        )

    def _at(self, of_P: Callable[..., Tensor], originals: tuple[Tensor, ...]) -> Tensor:
        blocks, P_originals = self._blocks(originals)
        if self.departure is not None:
            excess = departure(blocks) / self.departure**2
            blocks = scale_departure(blocks, (1 + excess).rsqrt())
        return assemble(of_P(*P_originals), blocks, self.form == "exact")

    def check_matrices(self, W: Tensor) -> None:
        """Raise for complex matrices."""
        check_real(W, "SchurForm", _COMPLEX)

    def search(self, W: Tensor, eps: float) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return T, γ, θ, log s and the originals of P, and the largest excess over a bound.

        The originals come from LAPACK's real Schur decomposition. Without bounds, every real matrix is in the
        set.
        """
        P, S = real_schur(W)
        rounding = max(eps, self._eps_of(W))
        blocks, excess = self._bounded(read_blocks(S, rounding, self.form == "exact"), W, eps)
        blocks, P_originals = self._invert_P(P, blocks, W, rounding)
        self.pairs = blocks.pairs.to(W.device, W.dtype)
        gamma, theta = self._trained_parts(blocks)
        own = (blocks.T, gamma, theta, blocks.log_shear)[: self._count]
        return (*(X.to(W.device, W.dtype) for X in own), *P_originals), excess.to(W.device, W.dtype)

    def start(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return originals as in section 4 of the paper: T = 0, γ = 1, θ uniform in [0, 2π), s = 1.

        P is initialized as in the paper of its own constraint; a P of another library starts from rotations
        by angles uniform in [-π, π). Eigenvalues outside a bound are moved onto the bound. T = 0 is from the
        authors' code; the paper does not specify T.
        """
        P_originals = as_tuple(adapted(self.P).start(init.henaff_(torch.empty_like(like))))
        gamma = torch.ones_like(like[..., 0])
        theta = torch.empty_like(gamma).uniform_(0, 2 * math.pi)
        pairs = paper_pairs(gamma)
        self.pairs = pairs.to(gamma.dtype)
        if self.abscissa is not None:
            real, theta = polar_parts(gamma, theta, pairs)
            gamma = real.clamp(max=self.abscissa)
        elif self.radius is not None:
            gamma = gamma.clamp(max=self.radius)
        own = (torch.zeros_like(like), gamma, theta, torch.zeros_like(gamma))
        return *own[: self._count], *P_originals

    def free_parameters(self, *originals: Tensor) -> int:
        """Return n² for each matrix, n(n-1)/2 of which belong to P, minus the numbers in frozen originals."""
        blocks, P_originals = self._blocks(originals)
        n = blocks.T.shape[-1]
        rows, pairs = blocks.real.numel(), int(blocks.pairs.sum())
        inside = pairs if self.form == "exact" else 0
        counts = (rows * (n - 1) // 2 - inside, rows - pairs, pairs, pairs)[: self._count]
        total = sum(count for count, X in zip(counts, originals, strict=False) if is_trained(X))
        return total + count_free(self.P, P_originals)

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return pairs of a constraint and its originals, for this constraint and for the constraint of P."""
        return [(self, originals), *adapted(self.P).parts(*originals[self._count :])]

    def penalty(self, *originals: Tensor) -> Tensor:
        r"""Return :math:`δ\, ‖1 - |γ|‖_2^2`, a penalty that keeps the eigenvalues near the unit circle.

        With ``abscissa``, the penalty is δ times the sum of the squared distances of the real parts from
        ``abscissa``. :func:`spectral_param.penalty` sums the penalties of a whole model.

        Args:
            originals: The tensors that the optimizer trains.
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
        """Return the eigenvalues of V, computed from the blocks of Λ.

        Args:
            originals: The tensors that the optimizer trains.

        Returns:
            Complex tensor ``(..., n)``, with conjugate eigenvalues side by side; ``(..., k, n)`` for k gates.

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
        # [a, b; c, a] has the eigenvalues a ± sqrt(bc), computed here for the first row of each block.
        root = (-blocks.imag * (blocks.imag + inside)).to(blocks.T.dtype.to_complex()).sqrt()
        second = (blocks.real - root).roll(1, -1)
        return torch.where(blocks.pairs.roll(1, -1), second, blocks.real + root)

    def _set_name(self) -> str:
        bounds = {"modulus": self.radius, "real part": self.abscissa}
        names = [
            f"eigenvalues of a {what} <= {bound:.6g}" for what, bound in bounds.items() if bound is not None
        ]
        if self.departure is not None:
            names.append(f"a departure from normality < {self.departure:.6g}")
        return f"a weight with {' and '.join(names)}"

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        bounds = f"radius={self.radius}, abscissa={self.abscissa}, departure={self.departure}, "
        return f"form={self.form!r}, {bounds if self.form == 'exact' else ''}delta={self.delta}"

    @property
    def _count(self) -> int:
        """The number of originals before the originals of P."""
        return 4 if self.form == "exact" else 3

    def _folded(self, gamma: Tensor) -> Tensor:
        """Return γ, the trained number reflected at ±``radius``."""
        return gamma if self.radius is None else fold(gamma, -self.radius, self.radius)

    def _blocks(self, originals: tuple[Tensor, ...]) -> tuple[SchurBlocks, tuple[Tensor, ...]]:
        """Return the blocks of Λ + T, and the originals of P."""
        assert self.pairs is not None, "known from registration on"
        originals = tuple(map(as_real, originals))
        T, gamma, theta, *rest = originals[: self._count]
        pairs = starts_of_pairs(self.pairs.to(T.device))
        # For a larger log s, squares of s would overflow.
        most = math.log(torch.finfo(T.dtype).max) / 2.2
        log_shear = rest[0].clamp(-most, most) if rest else torch.zeros_like(gamma)
        if self.abscissa is not None:
            real, imag = fold(gamma, -math.inf, self.abscissa), torch.where(pairs, theta, 0)
        else:
            real, imag = polar_parts(self._folded(gamma), theta, pairs)
        return SchurBlocks(T, real, imag, log_shear, pairs), originals[self._count :]

    def _trained_parts(self, blocks: SchurBlocks) -> tuple[Tensor, Tensor]:
        """Return the γ and θ that :meth:`_blocks` maps to these blocks."""
        if self.abscissa is not None:
            return blocks.real, blocks.imag
        # θ is chosen with |θ| ≤ π/2, and γ with the sign of the real part. If instead γ were positive and θ
        # near π, sin θ would lose digits, and a large shear would amplify this error.
        sign = torch.where(blocks.real < 0, -1, 1)
        theta = torch.atan2(sign * blocks.imag, blocks.real.abs())
        return sign * torch.hypot(blocks.real, blocks.imag), theta

    def _clipped(self, blocks: SchurBlocks, margin: float = 0.0) -> SchurBlocks:
        """Return blocks with eigenvalues outside the bound moved a relative ``margin`` inside the bound."""
        modulus = torch.hypot(blocks.real, blocks.imag)
        if self.abscissa is not None:
            target = self.abscissa - margin * modulus
            return blocks._replace(real=torch.where(blocks.real > self.abscissa, target, blocks.real))
        if self.radius is None:
            return blocks
        factor = torch.where(modulus > self.radius, (1 - margin) * self.radius / modulus, 1)
        return blocks._replace(real=factor * blocks.real, imag=factor * blocks.imag)

    def _bounded(self, blocks: SchurBlocks, W: Tensor, eps: float) -> tuple[SchurBlocks, Tensor]:
        """Return blocks whose image under the map keeps the bounds, and the excess of the given blocks.

        The excess is the maximum of two numbers: the largest excess of an eigenvalue, and the excess of the
        departure. An excess that may be only rounding counts as 0.
        """
        moved = self._clipped(blocks)
        distance = torch.hypot(moved.real - blocks.real, moved.imag - blocks.imag)
        distance = torch.where(blocks.pairs.roll(1, -1), 0, distance)
        outside = distance > self._eigenvalue_tolerance(W, distance, eps)
        excess = torch.where(outside, distance, 0).amax(dim=-1)
        farther = self._clipped(blocks, margin=1 - _INSIDE)
        moved = moved._replace(
            real=torch.where(outside, farther.real, moved.real),
            imag=torch.where(outside, farther.imag, moved.imag),
        )
        if self.departure is None:
            return moved, excess
        # The blocks are scaled first, because squares of the entries may overflow.
        scale = power_of_two_scale(W)[..., 0].to(moved.T.device).to(moved.T.dtype)
        unit = moved._replace(T=moved.T / scale[..., None], imag=moved.imag / scale)
        ratio = departure(unit).sqrt() * scale / self.departure
        outside = ratio > 1 + relative_rounding(W.shape[-1], eps, W.dtype)
        beyond = torch.where(outside, self.departure * (ratio - 1), 0)
        # The map does not reach the bound of the departure. So that rounding does not reach the bound either,
        # departures stay below the bound by this relative distance.
        margin = max(16 * torch.finfo(W.dtype).eps, self._eps_of(W))
        inside = torch.where(outside, _INSIDE, ratio).clamp(max=1 - margin)
        factor = inside / torch.where(ratio > 0, ratio, 1) / (1 - inside.square()).sqrt()
        moved = scale_departure(moved, torch.where(ratio > 0, factor, 1))
        return moved, torch.maximum(excess, beyond.reshape(excess.shape))

    def _eigenvalue_tolerance(self, W: Tensor, distance: Tensor, eps: float) -> Tensor | float:  # -> (..., 1)
        """Return a bound for the rounding errors of the eigenvalues."""
        if not bool((distance > 0).any()):
            return 0.0
        # With eigenvectors v_i, the columns of V, the condition number of λ_i is ‖v_i‖ ‖row i of V⁻¹‖. The
        # error of a defective λ_i is of order √eps.
        _, vectors = eigenvectors(W)
        inverse = torch.linalg.inv_ex(vectors).inverse
        condition = torch.linalg.vector_norm(inverse, dim=-1).nan_to_num(nan=math.inf).amax(dim=-1)
        own = torch.finfo(W.dtype).eps
        worst = 1 / max(degenerate_threshold(W.dtype), eps**0.5 if eps > own else 0.0)
        tolerance: Tensor = 10 * W.shape[-1] * min(eps, own) * W.abs().amax(dim=(-2, -1))
        if eps > own:
            tolerance = tolerance + eps / 2 * frobenius(W)[..., 0, 0]
        tolerance = tolerance * condition.clamp(max=worst)
        return to_like(tolerance[..., None], distance)

    def _invert_P(  # noqa: N802
        self, P: Tensor, blocks: SchurBlocks, like: Tensor, eps: float
    ) -> tuple[SchurBlocks, tuple[Tensor, ...]]:
        """Return blocks and the originals of P; det P is 1 if the map of P reaches such a P, else -1."""
        P, blocks = flip_last(P, blocks, torch.linalg.slogdet(P).sign < 0)
        everywhere = torch.ones(P.shape[:-2], dtype=torch.bool, device=P.device)
        failure = ValueError(
            "P: expected a parametrization that reaches every orthogonal matrix, up to the sign of one "
            f"column, but {type(self.P).__name__} returned another matrix. Take SkewExponential()."
        )
        for candidate, candidate_blocks in ((P, blocks), flip_last(P, blocks, everywhere)):
            target = candidate.to(like.device, like.dtype)
            try:
                originals = originals_for(self.P, target, eps, is_first=False)
            except ValueError as error:
                failure = error
                continue
            # Orthogonal matrices with different determinants have a distance of at least 2. So a distance
            # below 1 shows that the map of P reaches the target.
            with torch.no_grad():
                distance = torch.linalg.matrix_norm(applied(self.P, originals) - target)
            if bool((distance < 1).all()):
                return candidate_blocks, originals
        raise failure
