"""Orthogonal and unitary matrices by the scaled Cayley transform (scoRNN, scuRNN)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from spectral_param import init
from spectral_param._map import Map
from spectral_param._matrices import decomposed
from spectral_param._parametrizations.decoded import signs
from spectral_param._parametrizations.orthogonal import Orthonormal
from spectral_param._parametrizations.tensors import as_real, as_tuple, at_least_float32, is_trained
from spectral_param._sets import orthonormal
from spectral_param.errors import InManifoldError
from spectral_param.functional import _cayley as cayley
from spectral_param.functional._cayley import cayley_inverse
from spectral_param.functional._cayley_diagonal import choose_signs, pivot_phases, tall_inverse
from spectral_param.functional._checks import whole_number

# A weight keeps its D as long as no entry of A and B is larger than this number. A new D makes the entries of
# A at most 1 for a real square weight. In a test with 40 random target matrices of sizes n = 3, 5, 8,
# training reached all targets with 1.5; with 2, training missed one or two targets.
_OUTGROWN = 1.5
# A new D is taken only if it shrinks the largest entry of A and B at least by this factor.
_WORTH = 0.7


class ScaledCayley(Orthonormal, same_set=True):
    r"""Weight with orthonormal columns (rows if the weight is wide); a square weight is orthogonal (unitary).

    Multiplication by a tall or square W keeps the length of a vector; a wide W never increases the length.
    Take this constraint by default for orthogonal weights.

    Example:
        >>> layer = torch.nn.Linear(64, 256)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.ScaledCayley())
        >>> W = layer.weight
        >>> torch.allclose(W.mT @ W, torch.eye(64), atol=1e-5)
        True

    Args:
        negative_ones: Number of -1s in D (an ``int``), or their fraction of n (a ``float`` from 0 to 1);
            for real square weights only. The number fixes the determinant: det W = (-1)^number. The papers
            tune the fraction: 0.5 for tasks with long memory, 0.1 for tasks with short memory. With ``None``,
            the default, the registered or assigned weight determines the number; with ``init="paper"``, the
            default of the networks of :mod:`spectral_param.nn`, the number is n/2.

    Raises:
        ValueError: If ``negative_ones`` is outside its range.

    W is a scaled Cayley transform. The original T = [T₁; B] has the shape of a tall weight, ``(..., m, n)``.
    With A = (T₁ - T₁ᴴ)/2, a tall weight is

    .. math:: W = \begin{pmatrix} Z - I \\ -B Z \end{pmatrix} D, \qquad Z = 2 (I + A + B^H B)^{-1}.

    A square weight has no B, and is :math:`W = (I + A)^{-1}(I - A)D`. A wide weight is the transpose of a
    tall weight. Sources: Helfrich, Willmott and Ye, "Orthogonal Recurrent Neural Networks with Scaled Cayley
    Transform" (ICML 2018), real and square; Maduranga, Helfrich and Ye, "Complex Unitary Recurrent Neural
    Networks using Scaled Cayley Transform" (AAAI 2019), complex; Trockman and Kolter, "Orthogonalizing
    Convolutional Layers with the Cayley Transform" (ICLR 2021), tall.

    - For a real weight, D = diag(±1) is the buffer ``signs``. Only registration, assignment and
      :func:`spectral_param.rebase` choose D; loading a checkpoint restores the saved D. T is the weight's
      ``original``.
    - For a complex weight, D = diag(exp iθ) with trained θ. T and θ are ``original0`` and ``original1``.

    Registration takes the nearest weight of the set, the polar factor, and chooses D so that I + A is well
    conditioned: for a real square weight and ``negative_ones=None``, ``|a_ij| ≤ 1`` (Kahan 2006). With a D
    that fits, every weight of the set can be represented, also a weight with determinant -1 or eigenvalues
    -1. A step costs one n × n inverse and products, O(mn²) in time and O(mn) in memory.

    The distance of a weight from the set is the Frobenius norm ‖WᴴW - I‖, which bounds ``|σᵢ² - 1|`` for each
    singular value σᵢ; ``project`` takes the nearest weight of the set, the polar factor. If ``negative_ones``
    is given, the distance of a weight with the opposite determinant is at least 2.

    As an eigenvalue of WD tends to -1, ‖T‖ grows without bound, and steps of T move W less and less: training
    from I to diag(-1, -1, 1) stops before the target. Such training needs a new D.
    ``spectral_param.rebase(model)`` chooses a new D where entries of A are large, and
    ``spectral_param.rebase(model, optimizer)`` repeats this choice during training.

    W is orthonormal up to rounding for every T. The error of a singular value is usually a few eps and can
    reach 64·√n·eps; for a T whose error could be larger, the inverse is computed in double precision, or by
    eigenvalues. (torch.compile and transforms of torch.func cannot branch on values, so with torch.compile or
    torch.func the inverse is computed in double precision for every single-precision T.)
    """

    shapes = "tall"
    signs: Tensor | None

    def __init__(self, negative_ones: int | float | None = None) -> None:
        super().__init__()
        if isinstance(negative_ones, float | np.floating) and 0 <= negative_ones <= 1:
            negative_ones = float(negative_ones)
        elif negative_ones is not None:
            otherwise = ", a fraction (float from 0 to 1) or None"
            negative_ones = whole_number(negative_ones, "negative_ones", least=0, otherwise=otherwise)
        self.negative_ones = negative_ones
        if negative_ones is not None:
            self.by_map_alone = "a step may change the determinant, which negative_ones gives"
        self.register_buffer("signs", None)

    def evaluate(self, T: Tensor, theta: Tensor | None = None) -> Map:  # type: ignore[override]
        """Return W for tensors without a graph, with a hand-written gradient of the transform."""
        d = self._diagonal(T, theta)
        of_T = cayley.at_signs(T, d)
        if theta is None:
            return of_T
        W = of_T.value

        def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
            # dW = iW dΘ.
            g = (W.conj() * G).sum(dim=-2).imag.to(theta.dtype) if needed[1] else None
            return of_T.pull_back(G, needed[:1])[0], g

        return Map(W, pull_back, self.reference)

    def reference(self, T: Tensor, theta: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return W for T ``(..., m, n)`` and, for a complex weight, the phases θ ``(..., n)``."""
        return cayley.reference(T, self._diagonal(T, theta))

    def _diagonal(self, T: Tensor, theta: Tensor | None) -> Tensor:
        """Return the diagonal of D."""
        if theta is not None:
            phases = as_real(theta).to(T.real.dtype)
            return torch.polar(torch.ones_like(phases), phases)
        d = self.signs
        if d is None:
            return torch.ones_like(T[..., 0, :])
        if (
            d.dtype == T.dtype and d.device == T.device and not d.is_complex()
        ):  # The usual case of :func:`signs`.
            return torch.copysign(torch.ones_like(d), d)
        return signs(d, T)

    def check_matrices(self, W: Tensor) -> None:
        """Raise if ``negative_ones`` is not possible for these matrices."""
        if W.is_complex() or W.shape[-2] > W.shape[-1]:
            self._check_no_count()
        self._count(W.shape[-1])

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ‖WᴴW - I‖, but at least 2 for a W whose determinant has the wrong sign.

        Two orthogonal matrices with opposite determinants have a distance of at least 2.
        """
        distance, resolution = super().outside(W, eps)
        count = self._count(W.shape[-1])
        if count is not None:
            distance = torch.where(_has_sign(W, -((-1) ** count)), distance.clamp(min=2), distance)
        return distance, resolution

    def near(self, W: Tensor, eps: float | None = None) -> Tensor:
        """Return the nearest member: the polar factor if ``negative_ones`` does not fix the determinant."""
        count = self._count(W.shape[-1])
        if count is None:
            return super().near(W, eps)
        U, _, Vh = decomposed(torch.linalg.svd, W)
        # If UVᴴ has the wrong determinant, negate the left singular vector of the smallest singular value:
        # this gives the nearest orthogonal matrix with the other determinant.
        U[..., -1] *= torch.where(_has_sign(U @ Vh, -((-1) ** count)), -1, 1)[..., None]
        nearest: Tensor = U @ Vh
        return nearest

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return T = [A; B], and the phases of D for a complex W."""
        W = orthonormal.near(W)
        n = W.shape[-1]
        matrices = W.cpu().reshape(-1, *W.shape[-2:])  # D is chosen on the host, column by column.
        if W.is_complex() or W.shape[-2] > n:
            chosen = [pivot_phases(matrix[:n]) for matrix in matrices]
        else:
            chosen = [self._choose_signs(matrix) for matrix in matrices]
        d = torch.stack(chosen).reshape(*W.shape[:-2], n).to(W.device)
        T = tall_inverse(W, d)
        if W.is_complex():
            return T, d.angle()
        self.signs = d
        return T

    def rebase(self, T: Tensor, theta: Tensor | None = None) -> None:  # type: ignore[override]
        """Choose a new D where an entry of A or B exceeds 1.5. The weight changes only by rounding."""
        self.choose_again(T, theta)

    @torch.no_grad()
    def choose_again(self, T: Tensor, theta: Tensor | None = None) -> bool:
        """Do :meth:`rebase`, and return whether another D was chosen."""
        # A cheap test comes first: no entry of A or B is larger than the largest entry of T.
        if not float(T.abs().amax()) > _OUTGROWN:
            return False
        outgrown = _largest_entry(T) > _OUTGROWN
        exact = at_least_float32(T)
        W = self.evaluate(exact, None if theta is None else at_least_float32(theta)).value
        outgrown &= W.isfinite().flatten(-2).all(dim=-1)
        if not bool(outgrown.any()):
            return False
        trial = ScaledCayley(self.negative_ones)
        try:
            found = as_tuple(trial.invert(W[outgrown]))
        except InManifoldError:  # For rare weights, no D with the number of -1s in ``negative_ones`` exists.
            return False
        # For a complex or tall weight, a new D may make entries of A and B larger.
        better = _largest_entry(found[0]) < _WORTH * _largest_entry(exact)[outgrown]
        chosen = outgrown.clone()
        chosen[outgrown] = better
        if not bool(chosen.any()):
            return False
        for original, new in zip((T, theta), found, strict=False):
            assert original is not None
            original[chosen] = new[better].to(original.dtype)
        if trial.signs is not None:
            assert self.signs is not None
            self.signs[chosen] = trial.signs[better].to(self.signs)
        return True

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return A as initialized in section 4.2 of the paper, with rotation angles uniform in [0, π/2].

        The entries -1 are at the end of D. ``negative_ones=None`` means n/2 entries -1, which spread the
        eigenvalues of W over the whole unit circle. The phases of a complex D are uniform in [0, 2π).
        """
        n = like.shape[-1]
        if like.shape[-2] > n:
            # The papers have only square matrices. A tall weight starts from a random member of the set.
            return self.invert(self.near(torch.randn_like(like)))
        T = cayley_inverse(init.cayley_(torch.empty_like(like)))
        if like.is_complex():
            return T, torch.empty_like(like[..., 0].real).uniform_(0, 2 * math.pi)
        count = self._count(n)
        d = torch.ones_like(T[..., 0])
        d[..., n - (n // 2 if count is None else count) :] = -1
        self.signs = d
        return T

    def free_parameters(self, T: Tensor, theta: Tensor | None = None) -> int:  # type: ignore[override]
        """Return mn - n(n+1)/2 for each real matrix, 2mn - n² + n for each complex matrix (T and the phases).

        Although 2mn - n² + n numbers are trained, the set of complex matrices has dimension 2mn - n².
        """
        m, n = T.shape[-2:]
        matrices = T.numel() // (m * n)
        if theta is None:
            return matrices * (m * n - n * (n + 1) // 2)
        return matrices * ((2 * m - n) * n * is_trained(T) + n * is_trained(theta))

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"negative_ones={self.negative_ones}"

    def _set_name(self) -> str:
        count = self.negative_ones
        return super()._set_name() + ("" if count is None else f" and the determinant of {count} -1s")

    def _count(self, n: int) -> int | None:
        count = self.negative_ones
        if isinstance(count, float):
            count = round(count * n)
        if count is not None and count > n:
            raise ValueError(f"negative_ones: expected at most n = {n}, got {count}. Take a fraction of n.")
        return count

    def _check_no_count(self) -> None:
        if self.negative_ones is not None:
            raise ValueError(
                "negative_ones: expected None for a weight that is complex, which has trained phases, or not "
                f"square, whose determinant D does not fix, got {self.negative_ones!r}. Leave it out."
            )

    def _choose_signs(self, W: Tensor) -> Tensor:
        count = self._count(W.shape[-1])
        d = choose_signs(W, count)
        if d is None:
            determinant, needed = torch.linalg.slogdet(W).sign.item(), (-1) ** (count or 0)
            reason = (
                f"of determinant {determinant:+.0f} ((-1)^count is {needed:+d})"
                if determinant != needed
                else "for which no D was found such that WD has no eigenvalue -1, as for the identity"
            )
            raise InManifoldError(
                f"ScaledCayley: expected a weight that {count} -1s in D can reach, got one {reason}. "
                "Use negative_ones=None, or another start: spectral_param.constrain(..., init='paper')."
            )
        return d


def _largest_entry(T: Tensor) -> Tensor:  # (..., m, n) -> (...)
    """Return the largest modulus of the entries of A and B."""
    n = T.shape[-1]
    A, B = T[..., :n, :], T[..., n:, :]
    return torch.cat([(A - A.mH) / 2, B], dim=-2).abs().amax(dim=(-2, -1))


def _has_sign(W: Tensor, sign: int) -> Tensor:  # (..., n, n) -> (...)
    """Return which matrices have a determinant of the given sign."""
    return torch.linalg.slogdet(W).sign * sign > 0
