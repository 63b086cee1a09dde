"""Spectral radius, spectral abscissa and dominant eigentriple as differentiable functions.

``spectral_param/_eigen/derivative.py`` has the derivation.
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

    :math:`T u = λ u` and :math:`v^H T = λ v^H` with :math:`‖u‖ = ‖v‖ = 1`. The entry of u with the largest
    modulus is positive, and so is :math:`v^H u`. This choice fixes the phases, so that λ, u and v are
    functions of T, which can be differentiated any number of times. ``1 / (vᴴu)`` is the condition number of
    λ. The forward pass costs one eigenvalue decomposition, a derivative of u or v one linear solve.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Named tuple ``(eigenvalue, right, left)`` of complex tensors with shapes ``(...)``, ``(..., n)`` and
        ``(..., n)``. Of a complex conjugate pair, the eigenvalue in the upper half plane is taken; of other
        eigenvalues of equal modulus, any one. NaN where the matrix is not finite. Where λ is defective (in
        working precision) the derivative is zero.

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

    The gradient is :math:`\mathrm{Re}(\bar λ\, \bar v u^T / (v^H u)) / ρ`, which is C/ρ of Prop. 3.2 in
    Helfrich and Ye (2020). Under torch.compile autograd gives the first derivative only. Transforms of
    torch.func inside the compiled function, and exported programs, give derivatives of every order, by
    PyTorch's formula, which differentiates the modulus through all eigenvectors.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Real tensor of shape ``(...)``. NaN, with NaN gradient, where T is not finite. If several eigenvalues
        have the largest modulus, the gradient of one of them is returned. The gradient is zero where ρ = 0 or
        λ is defective, because ρ has no derivative there.

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
    gradient is :math:`\mathrm{Re}(\bar v u^T / (v^H u))` for the vectors of the rightmost eigenvalue. For
    costs and limits see :func:`spectral_radius`.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Real tensor of shape ``(...)``. NaN, with NaN gradient, where T is not finite. If several eigenvalues
        are rightmost, the gradient of one of them, or of one conjugate pair, is returned. The gradient is
        zero where λ is defective, because α has no derivative there.

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
