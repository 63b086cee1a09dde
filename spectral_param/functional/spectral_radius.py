r"""Spectral radius and dominant eigentriple as differentiable functions.

Derivation
----------
Let λ be a simple eigenvalue of T with right and left vectors, T u = λ u and vᴴ T = λ vᴴ, both of
unit norm, and s = vᴴ u. Differentiating T u = λ u and multiplying by vᴴ from the left gives

.. math:: d\lambda = v^H\, dT\, u / s .

The vectors move by dT along the directions orthogonal to themselves (uᴴ du = 0: norm and phase
stay), which with the same equation is one bordered system, non-singular because λ is simple,

.. math:: \begin{bmatrix} T - λI & u \\ u^H & 0 \end{bmatrix}
          \begin{bmatrix} du \\ -dλ \end{bmatrix} =
          \begin{bmatrix} -dT\,u \\ 0 \end{bmatrix},

and the same with Tᴴ, λ̄, v for dv. The phase of an eigenvector is arbitrary, so only functions that
do not depend on it may be differentiated; :func:`dominant_eigen` fixes the phase to make all of them
such.

PyTorch's gradient of a real L with respect to complex z is the g with dL = Re⟨g, dz⟩. Then

.. math:: g_T = \frac{g_λ}{\bar s}\, v u^H \;-\; y_u u^H \;-\; v y_v^H ,

where y_u and y_v solve the adjoint bordered systems for g_u and g_v. For a real T the real part is
taken. With ρ = |λ| this is the matrix C/ρ of Prop. 3.2 in Helfrich and Ye (2020), "Eigenvalue
Normalized Recurrent Neural Networks for Short Term Memory".

The backward pass is itself made of differentiable operations on T, λ, u and v, so derivatives of any
order are right. Autograd through ``torch.linalg.eig`` solves with the matrix of *all* eigenvectors:
it loses digits when any two of them are close, and its second derivative is NaN for a tie anywhere in
the spectrum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param.eigen import Eigentriple, dominant_eigentriple
from spectral_param.eigen.dense import physical_conj, power_of_two_scale
from spectral_param.forward_mode import not_nested
from spectral_param.functional.checks import check_square, is_traced
from spectral_param.precision import full_precision, matmul


def degenerate_threshold(dtype: torch.dtype) -> float:
    """Return the |vᴴu| (unit u, v) at and below which λ counts as defective: 10·sqrt(eps).

    A perturbation of size eps splits a defective double eigenvalue by sqrt(eps) and leaves |vᴴu|
    of that size, so below a small multiple of it the derivative 1/(vᴴu) is made of rounding errors.

    Args:
        dtype: A floating point or complex type.
    """
    return float(10 * torch.finfo(dtype).eps ** 0.5)


def _inner(x: Tensor, y: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    return (physical_conj(x) * y).sum(dim=-1)


def _outer(x: Tensor, y: Tensor, real: bool) -> Tensor:  # (..., n), (..., n) -> (..., n, n)
    """Return x yᴴ, or its real part: one real product, without the complex matrix."""
    if not real:
        return x[..., :, None] * physical_conj(y)[..., None, :]
    return matmul(torch.stack([x.real, x.imag], -1), torch.stack([y.real, y.imag], -2))


def condition_reciprocal(u: Tensor, v: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return |vᴴu|, the reciprocal of the condition number of the eigenvalue; no gradient flows through.

    Args:
        u: Unit right eigenvectors.
        v: Unit left eigenvectors.
    """
    return _inner(v, u).detach().abs()


def is_degenerate(u: Tensor, v: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return where the eigenvalue counts as defective; see :func:`degenerate_threshold`.

    Args:
        u: Unit right eigenvectors.
        v: Unit left eigenvectors.
    """
    return condition_reciprocal(u, v) <= degenerate_threshold(u.dtype)


def _eigenvalue_gradient(g: Tensor, u: Tensor, v: Tensor, real: bool) -> Tensor:
    """Return g/s̄ v uᴴ, the gradient with respect to T for gradient g of λ; its real part for a real T."""
    degenerate = is_degenerate(u, v)
    weight = torch.where(degenerate, 0, g / physical_conj(torch.where(degenerate, 1, _inner(v, u))))
    return _outer(weight[..., None] * v, u, real)


def _bordered_solve(
    T: Tensor, eigenvalue: Tensor, column: Tensor, row: Tensor, rhs: Tensor, degenerate: Tensor
) -> Tensor:
    """Solve [[T - λI, column], [rowᴴ, 0]] [x; ·] = [rhs; 0] for x, with zero for degenerate λ."""
    n = T.shape[-1]
    scale = power_of_two_scale(T.detach())
    identity = torch.eye(n, dtype=T.dtype, device=T.device)
    top = torch.cat([(T - eigenvalue[..., None, None] * identity) / scale, column[..., None]], -1)
    bottom = torch.cat([row.conj(), torch.zeros_like(row[..., :1])], -1)[..., None, :]
    bordered = torch.cat([top, bottom], -2)
    bordered = torch.where(
        degenerate[..., None, None], torch.eye(n + 1, dtype=T.dtype, device=T.device), bordered
    )
    padded = torch.cat([rhs, torch.zeros_like(rhs[..., :1])], -1)[..., None]
    x = torch.linalg.solve_ex(bordered, padded).result[..., :n, 0] / scale[..., 0]
    return torch.where(degenerate[..., None], 0, x)


class _DominantEigen(torch.autograd.Function):
    """T -> (λ, u, v), by the formulas at the top of this file."""

    @staticmethod
    def forward(T: Tensor, known: Eigentriple | None) -> tuple[Tensor, Tensor, Tensor]:
        if known is None:
            return dominant_eigentriple(T)
        # Autograd attaches the graph to the returned tensors themselves: these must be new ones.
        return Eigentriple(*(x.detach() for x in known))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], *output)
        ctx.save_for_forward(inputs[0], *output)

    @staticmethod
    @full_precision
    def backward(
        ctx: Any, g_eigenvalue: Tensor | None, g_right: Tensor | None, g_left: Tensor | None
    ) -> tuple[Tensor | None, None]:
        T, eigenvalue, u, v = ctx.saved_tensors
        degenerate = is_degenerate(u, v)
        terms = []
        if g_eigenvalue is not None:
            terms.append(_eigenvalue_gradient(g_eigenvalue, u, v, real=not T.is_complex()))
        if g_right is not None:
            y = _bordered_solve(T.mH, eigenvalue.conj(), u, u, g_right, degenerate)
            terms.append(_outer(-y, u, real=not T.is_complex()))
        if g_left is not None:
            y = _bordered_solve(T, eigenvalue, v, v, g_left, degenerate)
            terms.append(_outer(-v, y, real=not T.is_complex()))
        if not terms:
            return None, None
        return sum(terms[1:], start=terms[0]), None

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dT: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor]:
        T, eigenvalue, u, v = ctx.saved_tensors
        dT = dT.to(u.dtype)
        degenerate = is_degenerate(u, v)
        dTu = (dT @ u[..., None])[..., 0]
        dTHv = (dT.mH @ v[..., None])[..., 0]
        d_eigenvalue = torch.where(degenerate, 0, _inner(v, dTu) / torch.where(degenerate, 1, _inner(v, u)))
        du = _bordered_solve(T, eigenvalue, u, u, -dTu, degenerate)
        dv = _bordered_solve(T.mH, eigenvalue.conj(), v, v, -dTHv, degenerate)
        return d_eigenvalue, du, dv

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, None], T: Tensor, known: Eigentriple | None
    ) -> tuple[tuple[Tensor, ...], int]:
        return _DominantEigen.apply(T.movedim(in_dims[0], 0), known), 0  # type: ignore[no-untyped-call]


def eigentriple(T: Tensor, known: Eigentriple | None = None) -> Eigentriple:
    """Return the differentiable dominant eigentriple of T, vectors with LAPACK's phase.

    Args:
        T: Matrices of shape ``(..., n, n)``.
        known: The triple of exactly this ``T`` when it is already at hand: it is then not computed
            again, and the gradient is the same.
    """
    return Eigentriple(*_DominantEigen.apply(T, known))  # type: ignore[no-untyped-call]


def dominant_eigen(T: Tensor) -> Eigentriple:
    r"""Return the eigenvalue of largest modulus with its right and left eigenvectors.

    :math:`T u = λ u` and :math:`v^H T = λ v^H` with :math:`‖u‖ = ‖v‖ = 1`. The phase of u makes its
    entry of largest modulus positive, the phase of v makes :math:`v^H u` positive, so all three are
    functions of T that can be differentiated, any number of times. ``1 / (vᴴu)`` is the condition
    number of λ. Costs one eigenvalue decomposition; differentiating u or v costs a linear solve.

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Returns:
        Named tuple ``(eigenvalue, right, left)`` of complex tensors with shapes ``(...)``,
        ``(..., n)`` and ``(..., n)``. Of a complex conjugate pair, the eigenvalue in the upper half
        plane; of other ties, any one. NaN where the matrix is not finite. Where λ is defective (in
        working precision) the derivative is zero.

    Raises:
        NotAMatrixError: If T has fewer than two dimensions or no entries.
        NotSquareError: If T is not square.
        UnsupportedDtypeError: If T is not floating point or complex.
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
    v = v * torch.sgn(_inner(v, u))[..., None]
    return Eigentriple(eigenvalue, u, v)


def spectral_radius(T: Tensor) -> Tensor:
    r"""Return the spectral radius ``ρ(T) = max |λ_i(T)|`` of each matrix, differentiably.

    The gradient is :math:`\mathrm{Re}(\bar λ\, \bar v u^T / (v^H u)) / ρ`, C/ρ of Prop. 3.2 in Helfrich
    and Ye (2020).

    Args:
        T: Matrices of shape ``(..., n, n)``, real or complex.

    Under torch.compile only the first derivative in reverse mode is available: PyTorch gives operators of
    this kind no forward mode, and a compiled ``torch.func.jvp`` passes over them with a zero.

    Returns:
        Real tensor of shape ``(...)``. NaN, with NaN gradient, where T is not finite. With several
        eigenvalues of the largest modulus the gradient is that of one of them; it is zero where
        ρ = 0 or where λ is defective, for ρ has no derivative there.

    Raises:
        NotAMatrixError: If T has fewer than two dimensions or no entries.
        NotSquareError: If T is not square.
        UnsupportedDtypeError: If T is not float32, float64, complex64 or complex128.
        NotImplementedError: For second derivatives of a compiled or exported graph, and for forward mode
            inside forward mode.

    Example:
        >>> T = torch.tensor([[1.0, 5.0], [0.0, -3.0]], requires_grad=True)
        >>> rho = spectral_param.functional.spectral_radius(T)
        >>> rho.backward()
        >>> rho.item(), T.grad[1]  # the first row is zero to rounding
        (3.0, tensor([ 1.2500, -1.0000]))
    """
    check_square(T, "spectral_radius")
    if is_traced(T):
        rho: Tensor = _compiled_radius(T)[0]
        return rho
    return eigentriple(T).eigenvalue.abs()


# torch.compile sees one opaque operator with real outputs. Tracing the complex arithmetic above
# would hand complex kernels to a compiler that has none.
@torch.library.custom_op("spectral_param::spectral_radius", mutates_args=())
def _compiled_radius(T: Tensor) -> tuple[Tensor, Tensor]:
    eigenvalue, u, v = dominant_eigentriple(T)
    return eigenvalue.abs(), _eigenvalue_gradient(torch.sgn(eigenvalue), u, v, real=not T.is_complex())


@_compiled_radius.register_fake
def _(T: Tensor) -> tuple[Tensor, Tensor]:
    return T.real.new_empty(T.shape[:-2]), torch.empty_like(T)


def _compiled_radius_setup(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _compiled_radius_backward(ctx: Any, g_rho: Tensor, _: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "spectral_radius: second derivatives are not available in a compiled or exported graph, "
            "where the first one is a constant. Differentiate twice in eager mode."
        )
    (gradient,) = ctx.saved_tensors
    product: Tensor = g_rho[..., None, None] * gradient
    return product


_compiled_radius.register_autograd(_compiled_radius_backward, setup_context=_compiled_radius_setup)
