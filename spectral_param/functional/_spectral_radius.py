"""Spectral radius, spectral abscissa and dominant eigentriple as differentiable functions.

The page docs/derivation_spectral_radius.md derives the derivatives, which are computed in
``spectral_param/_eigen/derivative.py``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from spectral_param._eigen.dense import Criterion, leading_eigentriple
from spectral_param._eigen.derivative import eigentriple, known_value, unseen_value
from spectral_param._eigen.triple import Eigentriple, inner
from spectral_param._map import Map, apply
from spectral_param.functional._checks import check_square, with_arrays


@with_arrays
def dominant_eigen(T: Tensor) -> Eigentriple:
    """Return the eigenvalue of largest modulus with its right and left eigenvectors.

    The eigenvectors obey :math:`T u = λ u` and :math:`v^H T = λ v^H` with :math:`‖u‖ = ‖v‖ = 1`. The entry of
    u with the largest modulus is positive, and :math:`v^H u` is positive. This choice fixes the phases. So λ,
    u and v are functions of T and can be differentiated any number of times. The condition number of λ is
    ``1 / (vᴴu)``. The forward pass costs one eigenvalue decomposition; a derivative of u or v costs one
    linear solve.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Named tuple ``(eigenvalue, right, left)`` of complex tensors with shapes ``(...)``, ``(..., n)`` and
        ``(..., n)``. From a complex conjugate pair, the eigenvalue in the upper half plane is returned. If
        other eigenvalues have the same modulus, any one of them may be returned. The result is NaN where the
        matrix is not finite. The derivative is zero where λ is defective (in working precision).

    Raises:
        NotAMatrixError: If T has fewer than two dimensions or no entries.
        NotSquareError: If T is not square.
        UnsupportedDtypeError: If T is not float32, float64, complex64 or complex128.
        NotImplementedError: For forward mode inside forward mode.

    Example:
        >>> T = torch.tensor([[0.0, 2.0], [-2.0, 0.0]], dtype=torch.float64)
        >>> spectral_param.functional.dominant_eigen(T).eigenvalue
        tensor(0.+2...j, dtype=torch.complex128)
    """
    check_square(T, "dominant_eigen")
    eigenvalue, u, v = eigentriple(T)
    pivot = u.detach().abs().argmax(dim=-1, keepdim=True)
    u = u * torch.sgn(u.gather(-1, pivot)).conj()
    v = v * torch.sgn(inner(v, u))[..., None]
    return Eigentriple(eigenvalue, u, v)


@with_arrays
def spectral_radius(T: Tensor) -> Tensor:
    r"""Return the spectral radius ``ρ(T) = max |λ_i(T)|`` of each matrix, differentiably.

    The gradient is :math:`\mathrm{Re}(\bar λ\, \bar v u^T / (v^H u)) / ρ`, which is the matrix C/ρ of Prop.
    3.2 in Helfrich and Ye (2020). Under torch.compile, autograd gives only the first derivative. Transforms
    of torch.func inside a compiled function, and exported programs, give derivatives of every order by
    PyTorch's formula, which differentiates the modulus through all eigenvectors.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Real tensor of shape ``(...)``. The result and its gradient are NaN where T is not finite. If several
        eigenvalues have the largest modulus, the gradient is that of one of these eigenvalues. The gradient
        is zero where ρ = 0 or λ is defective, because ρ has no derivative there.

    Raises:
        NotAMatrixError: If T has fewer than two dimensions or no entries.
        NotSquareError: If T is not square.
        UnsupportedDtypeError: If T is not float32, float64, complex64 or complex128.
        NotImplementedError: For second derivatives of a compiled graph, and for forward mode inside forward
            mode.

    Example:
        >>> T = torch.tensor([[1.0, 5.0], [0.0, -3.0]], requires_grad=True)
        >>> rho = spectral_param.functional.spectral_radius(T)
        >>> rho.backward()
        >>> rho.item(), T.grad[1]  # the first row is zero to rounding
        (3.0, tensor([ 1.2500, -1.0000]))
    """
    check_square(T, "spectral_radius")
    return _value(T, "modulus")


@with_arrays
def spectral_abscissa(T: Tensor) -> Tensor:
    r"""Return the spectral abscissa ``α(T) = max Re λ_i(T)`` of each matrix, differentiably.

    The spectral abscissa is the largest growth rate of :math:`\dot x = T x`, which is stable for α < 0. The
    gradient is :math:`\mathrm{Re}(\bar v u^T / (v^H u))` with the right eigenvector u and the left
    eigenvector v of the rightmost eigenvalue. For derivatives under torch.compile see
    :func:`spectral_radius`.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Real tensor of shape ``(...)``. The result and its gradient are NaN where T is not finite. If several
        eigenvalues are rightmost, the gradient is that of one of these eigenvalues, or of one conjugate pair.
        The gradient is zero where λ is defective, because α has no derivative there.

    Raises:
        NotAMatrixError: If T has fewer than two dimensions or no entries.
        NotSquareError: If T is not square.
        UnsupportedDtypeError: If T is not float32, float64, complex64 or complex128.
        NotImplementedError: For second derivatives of a compiled graph, and for forward mode inside forward
            mode.

    Example:
        >>> T = torch.tensor([[1.0, 5.0], [0.0, -3.0]], requires_grad=True)
        >>> alpha = spectral_param.functional.spectral_abscissa(T)
        >>> alpha.backward()
        >>> alpha.item(), T.grad[:, 0]  # the second column is zero to rounding
        (1.0, tensor([1.0000, 1.2500]))
    """
    check_square(T, "spectral_abscissa")
    return _value(T, "real")


def _value(T: Tensor, criterion: Criterion) -> Tensor:
    def evaluate(T: Tensor) -> Map:
        triple, regular = leading_eigentriple(T, criterion)
        return known_value(T, triple, criterion, regular)

    return apply(evaluate, functools.partial(unseen_value, criterion=criterion), T)
