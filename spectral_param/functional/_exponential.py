"""The exponential of a real matrix, by scaling and squaring.

The method rests on e^A = (e^{A/2^s})^{2^s}. First, s halvings bring the norm of A below a limit θ, up to
which the Taylor polynomial of degree 16 is exact to working precision: its remainder is about θ^17/17!. The
terms are grouped by powers of A⁴ (Paterson and Stockmeyer 1973), so that six matrix products are enough. Then
the result is squared s times. The norm of A is the 1-norm in general. For a skew-symmetric A, a bound of the
spectral norm, computed from A⁴, takes the place of the 1-norm. The bound from A⁴ is up to √n times smaller
than the 1-norm, so fewer squarings are needed. Each squaring doubles the rounding error.

``torch.linalg.matrix_exp`` is not used for two reasons. First, for a single matrix of small norm, torch uses
a polynomial of degree 8 with a wrong coefficient (github.com/pytorch/pytorch/issues/196592). The error of the
exponential is 3e-5 in float32, and a recurrence raises the matrix to high powers, which amplifies the error.
Second, the backward pass of ``matrix_exp`` computes the exponential of a matrix of twice the size, which is
eight times the work of the forward pass. The backward pass in this file is twice the work of the forward
pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._context import full_precision, is_plain, is_traced, is_wrapped
from spectral_param._map import Map, apply, attach
from spectral_param._matrices import Array, identity_like
from spectral_param._precision import to_double, to_like
from spectral_param.functional._checks import check_real, check_square, with_arrays
from spectral_param.functional._real_skew import of_real_skew

_DEGREE = 16
_COEFFICIENTS = [1 / math.factorial(k) for k in range(_DEGREE + 1)]


def _norm(A: Tensor) -> Tensor:  # (..., n, n) -> (..., 1, 1)
    """Return the 1-norms."""
    return A.detach().abs().sum(dim=-2, keepdim=True).amax(dim=-1, keepdim=True)


class _Steps(NamedTuple):
    """Intermediate results of scaling and squaring for the backward pass."""

    halvings: Array  # s, (..., 1, 1)
    powers: list[Tensor]  # A, A², A³ and A⁴ for the scaled A
    sums: list[Tensor]  # The factors of A⁴ in Horner's scheme, from the innermost to the outermost
    roots: list[Tensor]  # The matrices that are squared, in order


def _scale_and_square(A: Tensor, skew: bool) -> tuple[Tensor, Tensor, _Steps]:
    """Return the exponentials, the bounds of norms that determine s (on the host), and the ``_Steps``."""
    limit = (torch.finfo(A.dtype).eps / 2 * math.factorial(_DEGREE + 1)) ** (1 / (_DEGREE + 1))
    # Each matrix of a batch has its own s, so huge or non-finite matrices do not change the other results.
    norm = _norm(A)
    if A.is_cpu:
        least = norm.numpy()
        tried = s = _halvings(least, limit)
        powers = _four_powers(A * _powers_of_two(-s, A) if s.any() else A)
        if skew and s.any():
            least = np.minimum(least, _norm(powers[3]).numpy() ** 0.25 * 2.0**s)
            s = _halvings(least, limit)
    else:
        # All norms and divisors are copied to the host in a single transfer.
        divisor = torch.frexp(norm / limit).exponent.clamp(min=0).to(norm.dtype).exp2()
        powers = _four_powers(A / divisor)
        bound = _norm(powers[3]) ** 0.25 * divisor if skew else norm
        *norms, divisors = torch.stack([norm, bound, divisor]).cpu().numpy()
        least = np.minimum(*norms)
        tried = np.where(np.isfinite(least), np.log2(divisors), 0)
        s = _halvings(least, limit)
    # The bound for a skew A holds because ‖A‖₂⁴ = ‖A⁴‖₂ ≤ ‖A⁴‖₁. If the bound needs fewer halvings than the
    # 1-norm, the surplus halvings are undone exactly, because they are powers of two.
    if tried is not s and (back := tried - s).any():
        powers = [power * _powers_of_two(back * k, A) for k, power in enumerate(powers, start=1)]
    identity = identity_like(A)
    X = _COEFFICIENTS[_DEGREE] * powers[3]
    sums = []
    for first in range(_DEGREE - 4, -1, -4):
        for c, P in zip(_COEFFICIENTS[first : first + 4], (identity, *powers[:3]), strict=True):
            X = torch.add(X, P, alpha=c)
        if first:
            sums.append(X)
            X = powers[3] @ X
    roots = []
    chosen = _choices(s, A)
    for done in range(int(s.max())):
        roots.append(X)
        squared = X @ X
        X = squared if chosen is None else torch.where(done < chosen, squared, X)
    return X, torch.from_numpy(least), _Steps(s, powers, sums, roots)


def _halvings(norm: Array, limit: float) -> Array:
    """Return the number s of halvings for each norm; s = 0 for a norm that is not finite."""
    sizes = np.where(np.isfinite(norm), norm / limit, 1)
    return np.ceil(np.log2(np.maximum(sizes, 1)))


def _four_powers(A: Tensor) -> list[Tensor]:
    A2 = A @ A
    return [A, A2, A2 @ A, A2 @ A2]


def _powers_of_two(exponents: Array, A: Tensor) -> Any:
    """Return 2 to the power of the exponents: a float, or a tensor with one number for each matrix of A."""
    if exponents.size == 1:
        return 2.0 ** exponents.item()
    return torch.from_numpy(2.0**exponents).to(A.dtype).to(A.device, non_blocking=True)


def _choices(s: Array, A: Tensor) -> Tensor | None:
    """Return s as a tensor on the device of A, or None if there is only one s."""
    return None if s.size == 1 else torch.from_numpy(s).to(A.dtype).to(A.device, non_blocking=True)


def _pull_back(steps: _Steps, G: Tensor) -> Tensor:
    """Return the gradient with respect to A, for the gradient G with respect to e^A."""
    chosen = _choices(steps.halvings, G)
    for done, X in reversed(list(enumerate(steps.roots))):
        squared = X.mT @ G + G @ X.mT
        G = squared if chosen is None else torch.where(done < chosen, squared, G)
    A, A2, _, A4 = steps.powers
    g_1, g_2, g_3 = (c * G for c in _COEFFICIENTS[1:4])
    g_4: Tensor | None = None
    for first, factor in zip(range(4, _DEGREE, 4), reversed(steps.sums), strict=True):
        g_4 = G @ factor.mT if g_4 is None else g_4 + G @ factor.mT
        G = A4.mT @ G
        g_1, g_2, g_3 = (
            torch.add(g, G, alpha=c)
            for g, c in zip((g_1, g_2, g_3), _COEFFICIENTS[first + 1 : first + 4], strict=True)
        )
    assert g_4 is not None
    g_4 = torch.add(g_4, G, alpha=_COEFFICIENTS[_DEGREE])
    g_2 = g_2 + A2.mT @ g_4 + g_4 @ A2.mT + g_3 @ A.mT
    g_1 = g_1 + A2.mT @ g_3 + A.mT @ g_2 + g_2 @ A.mT
    return g_1 * _powers_of_two(-steps.halvings, G)


def _evaluated(A: Tensor, skew: bool) -> tuple[Map, Tensor]:
    """Return the exponentials of plain tensors as a ``Map``, and the norms that determine s."""
    E, norm, steps = _scale_and_square(A, skew)
    return Map(E, lambda G, _: (_pull_back(steps, G),), lambda A: _scale_and_square(A, skew)[0]), norm


@with_arrays
@full_precision
def exponential(A: Tensor) -> Tensor:
    """Return the exponential of real matrices: orthogonal with determinant 1 for a skew-symmetric A.

    Each squaring doubles the rounding error, so the error is proportional to the norm of A. Where A can
    become large, :func:`spectral_param.rebase` restarts A at zero.

    Args:
        A: Real matrices of shape ``(..., n, n)``.

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If A has fewer than two dimensions or no entries.
        NotSquareError: If A is not square.
        UnsupportedDtypeError: If A is not float32 or float64. For complex A use ``torch.linalg.matrix_exp``.

    Example:
        >>> quarter_turn = torch.tensor([[0.0, -torch.pi / 2], [torch.pi / 2, 0.0]])
        >>> E = spectral_param.functional.exponential(quarter_turn)
        >>> torch.allclose(E, torch.tensor([[0.0, -1.0], [1.0, 0.0]]), atol=1e-6)
        True
    """
    check_square(A, "exponential")
    check_real(A, "exponential", "Use torch.linalg.matrix_exp for a complex one.")
    if is_traced(A) or is_wrapped(A):
        # While a program is traced, s cannot depend on the values of A, so torch's function is used. A batch
        # of two matrices avoids the polynomial of torch.linalg.matrix_exp that has a wrong coefficient.
        both: Tensor = torch.linalg.matrix_exp(torch.stack([A, A]))
        return both[0]
    return apply(lambda A: _evaluated(A, skew=False)[0], lambda A: _scale_and_square(A, skew=False)[0], A)


# Above this norm, squaring leaves fewer than 5 correct digits in single precision, and fewer than 11 digits
# in double precision.
_LARGE = 64.0


def _by_schur_form(A: Tensor) -> Tensor:
    matrices = A.cpu().reshape(-1, *A.shape[-2:]).numpy()
    found = [of_real_skew(matrix, np.cos, lambda b: -np.sin(b)) for matrix in matrices]
    return torch.from_numpy(np.stack(found)).reshape(A.shape).to(A.device)


@full_precision
def skew_exponential(A: Tensor) -> Tensor:  # (..., n, n)
    """Return the exponential of real skew-symmetric matrices; it is orthogonal up to rounding for every A.

    For a large norm, the values come from the real Schur form of A in double precision: the exponential of
    each of its blocks is a rotation. The derivatives come from :func:`exponential`, with an error
    proportional to the norm.
    """
    return apply(_evaluated_skew, exponential, A)


def _evaluated_skew(A: Tensor) -> Map:
    known, norm = _evaluated(A, skew=True)
    large = (norm > _LARGE) & norm.isfinite()
    if not bool(large.any()):
        return known
    large = large.to(A.device, non_blocking=True)
    exact = _by_schur_form(to_double(torch.where(large, A, 0)))
    # One Newton-Schulz step: the computed Schur basis is orthogonal only up to a few rounding errors.
    exact = to_like(1.5 * exact - 0.5 * exact @ (exact.mT @ exact), A)
    lost = large & ~known.value.isfinite()  # Squaring overflowed: these entries get the derivative zero.

    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> Sequence[Tensor | None]:
        return known.pull_back(G.masked_fill(lost, 0), needed)

    def reference(A: Tensor) -> Tensor:
        E = known.reference(A)
        return torch.where(large, exact + torch.where(lost, 0, E - E.detach()), E)

    return Map(torch.where(large, exact, known.value), pull_back, reference)


@full_precision
def tangent_exponential(base: Tensor, T: Tensor) -> Tensor:  # (..., m, n), (..., m, n) -> (..., m, n)
    r"""Return the end of the geodesic from a base with orthonormal columns in the direction of a real T.

    The tangent vector is base·A + B, where A is the skew-symmetric part of baseᵀT and B = (I - base·baseᵀ)T.
    Let s > 0 be a number, and [E₁; E₂] the first n columns of the exponential of a 2n × 2n matrix:

    .. math:: W = \mathrm{base}\, E_1 + B E_2 / s, \qquad
              \begin{pmatrix} E_1 & * \\ E_2 & * \end{pmatrix} =
              \exp \begin{pmatrix} A & -B^T B / s \\ s I & 0 \end{pmatrix} .

    This formula is Theorem 2.1 of Edelman, Arias and Smith (1998) without its QR decomposition, which is not
    differentiable at B = 0. The number s is the larger one of 1 and the Frobenius norm of T, so that the
    2n × 2n matrix is not far from skew. Alternatively, W is the m × m exponential of the skew matrix B·baseᵀ
    - base·Bᵀ + base·A·baseᵀ, times the base. This second formula is used for m < 2n, where it is cheaper, and
    for a large T, because its result is orthogonal to rounding for every T.
    """
    m, n = T.shape[-2:]
    given = T
    base, T = to_double(base), to_double(T)
    # One Newton-Schulz step: the columns of the base are orthonormal only to the precision of T's dtype.
    base = 1.5 * base - 0.5 * base @ (base.mT @ base)
    C = base.mT @ T
    A = (C - C.mT) / 2
    B = T - base @ C
    size = torch.linalg.matrix_norm(T.detach(), keepdim=True)
    values = is_plain(T)
    if m < 2 * n or (values and T.is_cpu and not bool((size <= _LARGE).all())):
        return to_like(_rotated(base, A, B), given)
    s = torch.where(size > 1, size, 1)
    above = torch.cat([A, B.mT @ B / -s], dim=-1)
    below = torch.cat([s * identity_like(A).expand_as(A), torch.zeros_like(A)], dim=-1)
    block = torch.cat([above, below], dim=-2)
    if values and not T.is_cpu:
        # The host waits only once for the device, to read the 1-norm of the 2n × 2n matrix. This norm is at
        # least ‖T‖_F, because the matrix contains s·I.
        known, norm = _evaluated(block.detach(), skew=False)
        if not bool((norm <= _LARGE).all()):
            return to_like(_rotated(base, A, B), given)
        E = attach(known, block)
    else:
        E = exponential(block)
    E = E[..., :n]
    return to_like(base @ E[..., :n, :] + B @ (E[..., n:, :] / s), given)


def _rotated(base: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """Return the end of the geodesic by the m × m exponential."""
    half = (B + 0.5 * base @ A) @ base.mT
    return skew_exponential(half - half.mT) @ base
