r"""Derivatives of the leading eigenvalue and its vectors, and the operators for torch.compile.

docs/derivation_spectral_radius.md derives the formulas, and says why autograd through ``torch.linalg.eig``
cannot replace them. Let λ be a simple eigenvalue of T with the unit vectors u and v, where T u = λ u and
vᴴ T = λ vᴴ. Let s = vᴴ u. Then

.. math:: d\lambda = v^H\, dT\, u / s, \qquad
          \begin{bmatrix} T - λI & u \\ u^H & 0 \end{bmatrix}
          \begin{bmatrix} du \\ -dλ \end{bmatrix} =
          \begin{bmatrix} -dT\,u \\ 0 \end{bmatrix},

and dv solves the same bordered system with Tᴴ, λ̄ and v in place of T, λ and u. The phase of an eigenvector
is arbitrary, so a function may be differentiated only if it does not depend on the phase.
``functional.dominant_eigen`` fixes the phases, so every function of its result may be differentiated.

PyTorch's gradient g of a real L with respect to complex z is defined by dL = Re⟨g, dz⟩. Then

.. math:: g_T = \frac{g_λ}{\bar s}\, v u^H \;-\; y_u u^H \;-\; v y_v^H ,

where y_u and y_v solve the adjoint bordered systems for g_u and g_v. For a real T the real part of g_T is
taken. With ρ = |λ|, g_λ = g_ρ λ/ρ. With α = Re λ, g_λ = g_α. The backward pass consists of differentiable
operations on T, λ, u and v, so derivatives of any order are right.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._context import (
    full_precision,
    is_compiled,
    is_traced,
    not_nested,
    solve,
)
from spectral_param._eigen.dense import Criterion, criterion_of, dominant_eigentriple
from spectral_param._eigen.triple import (
    Eigentriple,
    degenerate_threshold,
    inner,
    is_degenerate,
    physical_conj,
)
from spectral_param._map import Map
from spectral_param._matrices import identity_like
from spectral_param._precision import to_double
from spectral_param._scale import power_of_two_scale


def _outer(x: Tensor, y: Tensor, real: bool, base: Tensor | None = None) -> Tensor:  # -> (..., n, n)
    """Return base + x yᴴ; with ``real``, return its real part without forming the complex matrix.

    Only elementwise operations are used, which autocast and TensorFloat-32 do not affect.
    """
    if not real:
        x, y = x[..., :, None], physical_conj(y)[..., None, :]
        return x * y if base is None else torch.addcmul(base, x, y)
    real_x, imag_x = torch.view_as_real(x.resolve_conj())[..., :, None, :].unbind(dim=-1)
    real_y, imag_y = torch.view_as_real(y.resolve_conj())[..., None, :, :].unbind(dim=-1)
    first = real_x * real_y if base is None else torch.addcmul(base, real_x, real_y)
    return torch.addcmul(first, imag_x, imag_y)


def _degenerate_unless(regular: bool, u: Tensor, v: Tensor) -> Tensor:
    """Return a mask of the matrices whose λ has no derivative; with ``regular``, all entries are False."""
    if regular:
        return torch.zeros(u.shape[:-1], dtype=torch.bool, device=u.device)
    return is_degenerate(u, v)


def _eigenvalue_gradient(g: Tensor, u: Tensor, v: Tensor, real: bool, regular: bool) -> Tensor:
    """Return g/s̄ v uᴴ, the gradient with respect to T for a gradient g of λ; with ``real``, its real part."""
    s = inner(v, u)
    if regular:
        weight = g / physical_conj(s)
    else:
        degenerate = s.detach().abs() <= degenerate_threshold(u.dtype)
        weight = torch.where(degenerate, 0, g / physical_conj(torch.where(degenerate, 1, s)))
    return _outer(weight[..., None] * v, u, real)


def _bordered_solve(
    T: Tensor, eigenvalue: Tensor, column: Tensor, row: Tensor, rhs: Tensor, degenerate: Tensor
) -> Tensor:
    """Solve [[T - λI, column], [rowᴴ, 0]] [x; ·] = [rhs; 0] for x; x is zero where λ is degenerate."""
    n = T.shape[-1]
    scale = power_of_two_scale(T.detach())
    identity = identity_like(T)
    top = torch.cat([(T - eigenvalue[..., None, None] * identity) / scale, column[..., None]], -1)
    bottom = torch.cat([row.conj(), torch.zeros_like(row[..., :1])], -1)[..., None, :]
    bordered = torch.cat([top, bottom], -2)
    bordered = torch.where(
        degenerate[..., None, None], torch.eye(n + 1, dtype=T.dtype, device=T.device), bordered
    )
    padded = torch.cat([rhs, torch.zeros_like(rhs[..., :1])], -1)[..., None]
    x = solve(bordered, padded)[..., :n, 0] / scale[..., 0]
    # If the differentiated function does not depend on the vector, rhs is zero and x must be zero, even if
    # the bordered matrix is singular because another eigenvalue equals λ. In all other cases x stays a
    # function of rhs, so that x can be differentiated at rhs = 0.
    unused = (rhs == 0).all(dim=-1, keepdim=True) & ~x.isfinite().all(dim=-1, keepdim=True)
    return torch.where(degenerate[..., None] | unused, 0, x)


class _Eigen(torch.autograd.Function):
    """The function T -> (λ, u, v), with derivatives as above, for transforms and for all orders."""

    @staticmethod
    def forward(
        T: Tensor, criterion: Criterion, known: Eigentriple | None, regular: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if known is None:
            return dominant_eigentriple(T, criterion)
        # Autograd attaches the graph to the returned tensors, so the returned tensors must be new.
        return Eigentriple(*(x.detach() for x in known))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.regular = inputs[3]
        ctx.save_for_backward(inputs[0], *output)
        ctx.save_for_forward(inputs[0], *output)

    @staticmethod
    @full_precision
    def backward(
        ctx: Any, g_eigenvalue: Tensor | None, g_right: Tensor | None, g_left: Tensor | None
    ) -> tuple[Tensor | None, None, None, None]:
        T, eigenvalue, u, v = ctx.saved_tensors
        degenerate = _degenerate_unless(ctx.regular, u, v)
        terms = []
        if g_eigenvalue is not None:
            terms.append(_eigenvalue_gradient(g_eigenvalue, u, v, not T.is_complex(), ctx.regular))
        if g_right is not None:
            y = _bordered_solve(T.mH, eigenvalue.conj(), u, u, g_right, degenerate)
            terms.append(_outer(-y, u, real=not T.is_complex()))
        if g_left is not None:
            y = _bordered_solve(T, eigenvalue, v, v, g_left, degenerate)
            terms.append(_outer(-v, y, real=not T.is_complex()))
        if not terms:
            return None, None, None, None
        return sum(terms[1:], start=terms[0]), None, None, None

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dT: Tensor, *_: None) -> tuple[Tensor, Tensor, Tensor]:
        T, eigenvalue, u, v = ctx.saved_tensors
        dT = dT.to(u.dtype)
        degenerate = _degenerate_unless(ctx.regular, u, v)
        dTu = (dT @ u[..., None])[..., 0]
        dTHv = (dT.mH @ v[..., None])[..., 0]
        d_eigenvalue = torch.where(degenerate, 0, inner(v, dTu) / torch.where(degenerate, 1, inner(v, u)))
        du = _bordered_solve(T, eigenvalue, u, u, -dTu, degenerate)
        dv = _bordered_solve(T.mH, eigenvalue.conj(), v, v, -dTHv, degenerate)
        return d_eigenvalue, du, dv

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int, None, None, None],
        T: Tensor,
        criterion: Criterion,
        known: Eigentriple | None,
        regular: bool,
    ) -> tuple[tuple[Tensor, ...], int]:
        T = T.movedim(in_dims[0], 0)
        return _Eigen.apply(T, criterion, known, regular), 0  # type: ignore[no-untyped-call]


# In all functions below T has the shape (..., n, n).


def eigentriple(
    T: Tensor, criterion: Criterion = "modulus", known: Eigentriple | None = None, regular: bool = False
) -> Eigentriple:
    """Return the leading eigentriple as a differentiable function of T.

    Args:
        T: Matrices ``(..., n, n)``.
        criterion: Whether the leading eigenvalue has the largest modulus or the largest real part.
        known: The triple of T, if it has been computed already.
        regular: Whether all leading eigenvalues are known to be simple; see
            :func:`spectral_param._eigen.dense.leading_eigentriple`.
    """
    return Eigentriple(*_Eigen.apply(T, criterion, known, regular))  # type: ignore[no-untyped-call]


def unseen_value(T: Tensor, criterion: Criterion = "modulus", handle: int = -1) -> Tensor:
    """Return |λ| or Re λ of the leading eigenvalue, for a T inside a transform or a recorded graph.

    In transforms of torch.func the value is differentiable in every mode and to every order. ``handle`` is
    the key of a follower in ``FOLLOWERS``; a compiled graph calls this follower.
    """
    if is_traced(T):
        return _recorded_value(T, criterion, handle)
    value: Tensor = criterion_of(eigentriple(T, criterion).eigenvalue, criterion)
    return value


# The short path: T is outside transforms and graphs, and its triple is known ----------------------


def _value_gradient(
    triple: Eigentriple, g: Tensor, criterion: Criterion, is_real: bool, regular: bool = False
) -> Tensor:
    """Return the gradient with respect to T, given the gradient g with respect to |λ| or Re λ."""
    eigenvalue, u, v = triple
    g_eigenvalue = g * torch.sgn(eigenvalue) if criterion == "modulus" else g.to(u.dtype)
    return _eigenvalue_gradient(g_eigenvalue, u, v, is_real, regular)


def known_value(
    T: Tensor, triple: Eigentriple, criterion: Criterion = "modulus", regular: bool = False
) -> Map:
    """Return the map T -> |λ| or Re λ, for a T outside transforms and graphs whose triple is known.

    :func:`eigentriple` describes ``regular``.
    """

    def pull_back(g: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        return (_value_gradient(triple, g, criterion, not T.is_complex(), regular),)

    def reference(T: Tensor) -> Tensor:
        value: Tensor = criterion_of(eigentriple(T, criterion, triple, regular).eigenvalue, criterion)
        return value

    # The real part of a complex tensor is a view of this tensor, so it is cloned.
    return Map(criterion_of(triple.eigenvalue, criterion).clone(), pull_back, reference)


def divided_by_modulus(T: Tensor, triple: Eigentriple, radius: Tensor | float) -> Map:
    r"""Return the map T -> W = r T / |λ|, for a T outside transforms and graphs, and r = ``radius``.

    λ must be simple and not zero. ``radius`` has one r for each matrix. With f = r / |λ|, the gradient G of
    W, and the gradient g_T(g_ρ) of ρ = |λ| from the top of this file,

    .. math:: g_T = f\, G + g_T(g_ρ), \qquad g_ρ = -\frac{f}{|λ|}\, \mathrm{Re}\langle T, G\rangle.
    """
    eigenvalue, u, v = triple
    X = T
    one = X.ndim == 2 and X.is_cpu
    # For one matrix on the host the divisor is a Python number, which is faster than a tensor.
    divisor = abs(eigenvalue.item()) / float(radius) if one else _to_matrices(eigenvalue.abs() / radius, X)

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        if one and X.shape[-1] < _paths.TRACKED_RADIUS:
            return (_small(X, eigenvalue, u, v, G, float(radius)),)
        size = eigenvalue.abs()
        f = radius / size
        g = -(physical_conj(X) * G).real.sum(dim=(-2, -1)) * f / size
        weight = g * torch.sgn(eigenvalue) / (u.conj_physical() * v).sum(dim=-1)
        base = _to_matrices(f, G) * G
        return (_outer(weight[..., None] * v, u, real=not X.is_complex(), base=base),)

    def reference(T: Tensor) -> Tensor:
        size = eigentriple(T, "modulus", triple, regular=True).eigenvalue.abs()
        return T / _to_matrices(size / radius, T)

    return Map(X / divisor, pull_back, reference)


def _small(T: Tensor, eigenvalue: Tensor, u: Tensor, v: Tensor, G: Tensor, radius: float) -> Tensor:
    """Return g_T of :func:`divided_by_modulus` for one small matrix, in numpy, which takes half the time."""
    with np.errstate(all="ignore"):  # A GradScaler produces infinite gradients, which must not warn.
        matrix, gradient = (x.resolve_conj().resolve_neg().numpy() for x in (T, G))
        right, left, value = u.numpy(), v.numpy(), eigenvalue.item()
        size = abs(value)
        f = radius / size
        g = -np.vdot(matrix, gradient).real * f / size
        w = left * (g * value / size / np.vdot(right, left))
        result = f * gradient
        if T.is_complex():
            result += w[:, None] * right.conj()
        else:
            result += w.real[:, None] * right.real
            if value.imag:
                result += w.imag[:, None] * right.imag
        return torch.from_numpy(result)


def _to_matrices(x: Tensor, T: Tensor) -> Tensor:  # (...) -> (..., 1, 1)
    return x if T.ndim == 2 else x[..., None, None]


# Recorded graphs ----------------------------------------------------------------------------------


def _recorded_value(T: Tensor, criterion: Criterion, handle: int) -> Tensor:
    """Return |λ| or Re λ for a graph that is being recorded."""
    if is_compiled():
        return _leading_value(T, criterion, handle)[0]
    # Only operators of torch are used, because an exported program must run without this library. Matrices
    # with NaN are replaced by zeros, because LAPACK's QR iteration can end the process if it gets NaN.
    finite = T.detach().isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    values = torch.linalg.eigvals(to_double(torch.where(finite, T, 0)))
    value: Tensor = criterion_of(values, criterion).max(dim=-1).values
    return torch.where(finite[..., 0, 0], value, torch.nan).to(T.real.dtype)


# This table maps handles to the followers that compiled graphs call. The references are weak, so that this
# table keeps no follower alive: a graph may outlive its follower.
FOLLOWERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


# The compiler has no kernels for the complex arithmetic above, so the operator's outputs are real.
@torch.library.custom_op("spectral_param::leading_value", mutates_args=())
def _leading_value(T: Tensor, criterion: str, handle: int) -> tuple[Tensor, Tensor]:
    """Return |λ| or Re λ, and its gradient with respect to T."""
    kind: Criterion = "modulus" if criterion == "modulus" else "real"
    follower = FOLLOWERS.get(handle)
    triple = dominant_eigentriple(T, kind) if follower is None else follower.follow(T).triple
    value = criterion_of(triple.eigenvalue, kind).clone()
    return value, _value_gradient(triple, torch.ones_like(value), kind, not T.is_complex())


@_leading_value.register_fake
def _(T: Tensor, criterion: str, handle: int) -> tuple[Tensor, Tensor]:
    return T.real.new_empty(T.shape[:-2]), torch.empty_like(T)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "spectral_radius, spectral_abscissa: expected at most one derivative in a compiled "
            "graph, got a second one: second derivatives are not available there. Differentiate twice in "
            "eager mode."
        )
    (gradient,) = ctx.saved_tensors
    return g[..., None, None] * gradient, None, None


_leading_value.register_autograd(_backward, setup_context=_setup_context)
