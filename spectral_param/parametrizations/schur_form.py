"""Matrices of given eigenvalues by their real Schur form (nnRNN)."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spectral_param import init
from spectral_param.eigen import dominant_eigentriple
from spectral_param.errors import InManifoldError
from spectral_param.functional.checks import check_finite, check_real, finfo_eps
from spectral_param.functional.schur import (
    SchurBlocks,
    departure,
    flip_last,
    paper_pairs,
    read_blocks,
    real_schur,
    scale_departure,
    schur_form,
)
from spectral_param.functional.spectral_radius import condition_reciprocal, degenerate_threshold
from spectral_param.parametrizations.base import (
    Parametrization,
    at_least_float32,
    constraints_of,
    is_trained,
    join_gates,
    real_entries,
    split_gates,
)
from spectral_param.parametrizations.skew_exponential import SkewExponential

Form = Literal["exact", "paper"]

_COMPLEX = "Its Schur form is another; take spectral_param.ScaledCayley or SpectralRadiusNorm."

# Where a bounded quantity starts that would be outside its bound, relative to it. On the bound
# itself the derivative is zero; here that of γ = r sin(g) is a tenth of r.
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

    Weights of shape ``(..., n, n)``, real; one of shape ``(k·n, n)``, as LSTM and GRU hold, is k such
    matrices. Registration and assignment take any real matrix, through scipy (the extra ``schur``);
    ``init="paper"`` does without. Costs what P costs, and two matrix products forward, four backward.

    Args:
        P: The parametrization of P: of this library or another, with a ``right_inverse``. It is copied,
            so the given instance stays unused. ``None``: ``SkewExponential(start="cayley")``, the
            paper's expRNN as its authors start it; ``SkewExponential(start="henaff")`` is its other start.
        form: ``"exact"`` or ``"paper"``.
        radius: Bounds the spectral radius, with ``form="exact"``: γ = radius · sin(g), and g is trained
            instead of γ. On the bound the derivative vanishes, but only as the root of the distance:
            half a percent inside it is a tenth of the radius. There eigenvalues start that would be
            outside. Those on the bound are kept, and leave it slowly, or by an optimizer that divides
            by the size of the gradient, as Adam and RMSprop do. ``None``: no bound. It is a bound up to
            rounding, to which the eigenvalues of a matrix far from normal are very sensitive: training can
            take a float32 weight of 64 rows beyond 1 from a bound of 0.9. Where the bound matters,
            bound the departure, too.
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
        radius: float | None = None,
        departure: float | None = None,
        delta: float = 1e-4,
    ) -> None:
        super().__init__()
        if form not in get_args(Form):
            raise ValueError(f"form: expected one of {', '.join(get_args(Form))}, got {form!r}.")
        for name, bound in (("radius", radius), ("departure", departure)):
            if bound is not None and not (math.isfinite(bound) and bound > 0):
                raise ValueError(f"{name}: expected a finite positive number or None, got {bound!r}.")
            if bound is not None and form == "paper":
                raise ValueError(
                    f"{name}: expected None with form='paper', whose γ are not the moduli of the eigenvalues "
                    f"once T is trained, got {bound!r}. Take form='exact'."
                )
        if not (math.isfinite(delta) and delta >= 0):
            raise ValueError(f"delta: expected a finite number >= 0, got {delta!r}.")
        self.P = SkewExponential(start="cayley") if P is None else copy.deepcopy(P)
        if not callable(getattr(self.P, "right_inverse", None)):
            raise ValueError(
                "P: expected a parametrization of orthogonal matrices with a right_inverse, got "
                f"{type(self.P).__name__}. SkewExponential() and ScaledCayley() are two."
            )
        self.form = form
        self.radius = radius
        self.departure = departure
        self.delta = delta
        self.register_buffer("pairs", None)

    def constrain(self, *originals: Tensor) -> Tensor:
        """Return V."""
        blocks, P_originals = self._blocks(originals)
        if self.departure is not None:
            excess = departure(blocks) / self.departure**2
            blocks = scale_departure(blocks, (1 + excess).rsqrt())
        T, gamma, theta, log_shear, pairs = blocks
        shear = log_shear if self.form == "exact" else None
        V = schur_form(self.P(*P_originals), T, gamma, theta, shear, pairs)
        return join_gates(V, like=originals[0].shape)

    def unconstrain(self, W: Tensor, project: bool) -> tuple[Tensor, ...]:
        """Return T, γ, θ, log s and the originals of P, by LAPACK's real Schur decomposition."""
        check_real(W, "SchurForm", _COMPLEX)
        check_finite(W, "SchurForm")
        matrices = split_gates(W)
        P, S = real_schur(matrices)
        blocks = self._unbounded(read_blocks(S, self._eps, self.form == "exact"), matrices, project)
        blocks, P_originals = self._invert_P(P, blocks, like=matrices)
        self.pairs = blocks.pairs.reshape(W.shape[:-1]).to(W.device)
        T, *vectors = (X.to(W.device, W.dtype) for X in blocks[: self._count])
        return (
            join_gates(T, like=W.shape),
            *(vector.reshape(W.shape[:-1]) for vector in vectors),
            *P_originals,
        )

    def paper_start(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return section 4's start: T = 0, γ = 1, θ uniform in [0, 2π), s = 1, P as its own paper does.

        γ is less where the radius asks for it. The authors' code has T = 0; the paper does not say. A P of
        another library starts from rotations by angles uniform in [-π, π).
        """
        check_real(like, "SchurForm", _COMPLEX)
        matrices = split_gates(like)
        if isinstance(self.P, Parametrization):
            self.P.start_from_paper()
        P_originals = self._invert(init.henaff_(torch.empty_like(matrices)))
        gamma = torch.ones_like(like[..., 0])
        self.pairs = paper_pairs(matrices[..., 0]).reshape(gamma.shape)
        if self.radius is not None:
            gamma = (gamma / self.radius).clamp(max=_INSIDE).asin()
        theta = torch.empty_like(gamma).uniform_(0, 2 * math.pi)
        own = (torch.zeros_like(like), gamma, theta, torch.zeros_like(gamma))
        return (*own[: self._count], *P_originals)

    def free_parameters(self, *originals: Tensor) -> int:
        """Return n² for each matrix, if P counts as n(n-1)/2; frozen originals are left out."""
        blocks, P_originals = self._blocks(originals)
        n = blocks.T.shape[-1]
        rows, pairs = blocks.gamma.numel(), int(blocks.pairs.sum())
        inside = pairs if self.form == "exact" else 0
        counts = (rows * (n - 1) // 2 - inside, rows - pairs, pairs, pairs)[: self._count]
        total = sum(count for count, X in zip(counts, originals, strict=False) if is_trained(X))
        if any(map(is_trained, P_originals)):
            if isinstance(self.P, Parametrization):
                return total + self.P.free_parameters(*P_originals)
            total += sum(map(real_entries, P_originals))
        return total

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return this parametrization, and P with its own originals.

        Args:
            originals: The tensors the optimizer trains.

        Returns:
            Pairs of a parametrization and the originals that it reads.
        """
        own = originals[self._count :]
        nested = self.P.parts(*own) if isinstance(self.P, Parametrization) else [(self.P, own)]
        return [(self, originals), *nested]

    def penalty(self, *originals: Tensor) -> Tensor:
        r"""Return :math:`δ\, ‖1 - |γ|‖_2^2`, which holds the eigenvalues near the unit circle.

        For all weights of a model at once: :func:`spectral_param.penalty`.

        Args:
            originals: The tensors the optimizer trains.
        """
        blocks, _ = self._blocks(tuple(map(at_least_float32, originals)))
        second = blocks.pairs.roll(1, -1)
        return self.delta * torch.where(second, 0, (1 - blocks.gamma.abs()).square()).sum()

    @torch.no_grad()
    def eigenvalues(self, *originals: Tensor) -> Tensor:
        """Return the eigenvalues of V, read off the blocks of Λ.

        Args:
            originals: The tensors the optimizer trains.

        Returns:
            Complex tensor of the weight's shape without columns, conjugate ones side by side.

        Example:
            >>> layer = spectral_param.schur_form(torch.nn.Linear(4, 4), init="paper")
            >>> weight = layer.parametrizations.weight
            >>> weight[0].eigenvalues(*weight.parameters(recurse=False)).abs()
            tensor([1., 1., 1., 1.])
        """
        blocks, _ = self._blocks(tuple(map(at_least_float32, originals)))
        T, gamma, theta, _, pairs = blocks
        sine = torch.where(pairs, gamma * theta.sin(), 0)
        inside = torch.zeros_like(sine)
        if self.form == "paper":
            inside[..., :-1] = torch.where(pairs[..., :-1], T.diagonal(-1, -2, -1), 0)
        # [a, b; c, a] has the eigenvalues a ± sqrt(bc); each row here has the block's.
        root = (-sine * (sine + inside)).to(T.dtype.to_complex()).sqrt()
        real = torch.where(pairs, gamma * theta.cos(), gamma)
        first = real + root
        eigenvalues = torch.where(pairs.roll(1, -1), (real - root).roll(1, -1), first)
        return eigenvalues.reshape(originals[1].shape)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        bounds = f"radius={self.radius}, departure={self.departure}, "
        return f"form={self.form!r}, {bounds if self.form == 'exact' else ''}delta={self.delta}"

    @property
    def _count(self) -> int:
        """How many originals come before those of P."""
        return 4 if self.form == "exact" else 3

    def _blocks(self, originals: tuple[Tensor, ...]) -> tuple[SchurBlocks, tuple[Tensor, ...]]:
        """Return what Λ + T is made of, matrix by matrix, and the originals of P."""
        assert self.pairs is not None, "known from registration on"
        T = split_gates(originals[0])
        gamma, theta, *rest = (X.reshape(T.shape[:-1]) for X in originals[1 : self._count])
        if self.radius is not None:
            gamma = self.radius * gamma.sin()
        log_shear = rest[0] if rest else torch.zeros_like(gamma)
        pairs = self.pairs.reshape(T.shape[:-1])
        return SchurBlocks(T, gamma, theta, log_shear, pairs), originals[self._count :]

    def _unbounded(self, blocks: SchurBlocks, W: Tensor, project: bool) -> SchurBlocks:
        """Return blocks that the bounds map to these, or to ones moved inside if ``project``."""
        # Relative room that rounding needs next to a bound, where the maps are not invertible.
        room = max(16 * finfo_eps(W.dtype), self._eps)
        # At registration only the rounding of the computation counts as none. Half precision would count
        # far too much as that, and leave it on the bound.
        eps = finfo_eps(W.dtype) if project else self._eps
        if self.radius is not None:
            modulus = blocks.gamma.abs() / self.radius
            tolerance = self._eigenvalue_tolerance(W, modulus, eps) / self.radius
            outside = modulus > 1 + tolerance
            if not project and bool(outside.any()):
                raise InManifoldError(
                    f"SchurForm: expected a weight of spectral radius <= {self.radius}, got "
                    f"{self.radius * float(modulus.max()):.6g}. Scale it, or remove the parametrization, set "
                    "the weight and register a new instance, which moves the eigenvalues inside."
                )
            modulus = torch.where(outside, _INSIDE, modulus).clamp(max=1 - room)
            clipped = blocks.gamma.sign() * self.radius * modulus
            bounded = blocks._replace(gamma=clipped)
            blocks = bounded._replace(gamma=(clipped / self.radius).asin())
        else:
            bounded = blocks
        if self.departure is not None:
            ratio = departure(bounded).sqrt() / self.departure
            outside = ratio > 1 + 10 * W.shape[-1] * eps
            if not project and bool(outside.any()):
                raise InManifoldError(
                    f"SchurForm: expected a weight whose departure from normality is < {self.departure}, got "
                    f"{self.departure * float(ratio.max()):.6g}. Remove the parametrization, set the weight "
                    "and register a new instance, which scales its non-normal part."
                )
            inside = torch.where(outside, _INSIDE, ratio).clamp(max=1 - room)
            factor = inside / torch.where(ratio > 0, ratio, 1) / (1 - inside.square()).sqrt()
            blocks = scale_departure(blocks, torch.where(ratio > 0, factor, 1))
        return blocks

    def _eigenvalue_tolerance(self, W: Tensor, modulus: Tensor, eps: float) -> Tensor | float:  # -> (..., 1)
        """Return how far the spectral radius may be off for rounding alone."""
        if bool((modulus <= 1).all()):
            return 0.0
        triple = dominant_eigentriple(W)
        condition = condition_reciprocal(triple.right, triple.left).clamp(min=degenerate_threshold(W.dtype))
        tolerance = 10 * W.shape[-1] * eps * W.abs().amax(dim=(-2, -1)) / condition
        return tolerance[..., None].to(modulus.device, modulus.dtype)

    def _invert_P(  # noqa: N802
        self, P: Tensor, blocks: SchurBlocks, like: Tensor
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
                originals = self._invert(target)
            except ValueError as error:
                failure = error
                continue
            # Two matrices of different determinant are at least 2 apart.
            with torch.no_grad():
                distance = torch.linalg.matrix_norm(self.P(*originals) - target)
            if bool((distance < 1).all()):
                return candidate_blocks, originals
        raise failure

    def _invert(self, P: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.P, Parametrization):
            found: Any = self.P.invert(P, self._eps)
        else:
            inverse: Any = self.P.right_inverse
            found = inverse(P)
        return (found,) if isinstance(found, Tensor) else tuple(found)


def penalty(model: nn.Module) -> Tensor:
    r"""Return the sum of the penalties :math:`δ\, ‖1 - |γ|‖_2^2` of a model, to be added to the loss.

    Args:
        model: Any model. Each :class:`spectral_param.SchurForm` in it adds its own, with its own δ; without
            one, the sum is zero.

    Example:
        >>> rnn = spectral_param.nn.NNRNN(1, 16, delta=0.1)
        >>> loss = rnn(torch.randn(20, 4, 1))[0].square().mean()
        >>> (loss + spectral_param.penalty(rnn)).backward()
    """
    total = torch.zeros(())
    for constraint, originals in constraints_of(model):
        if isinstance(constraint, SchurForm):
            own = constraint.penalty(*originals)
            total = total.to(own.device) + own
    return total
