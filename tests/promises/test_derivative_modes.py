"""Derivatives of every order and in every mode, of every public function and constraint, against differences.

Forward and reverse mode, and each over the other, give the derivatives that finite differences give, also
where a cotangent is zero: PyTorch's ``jvp``, ``hvp`` and ``vhp`` differentiate a backward pass of zeros, and
so does the Hessian of a loss at its minimum.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import spectral_param.functional as F
from spectral_param.testing import Case, Shape, holder, originals
from tests.promises.cases import CASES, FROM_THE_START
from tests.properties import FACTOR

Flat = Callable[[Tensor], Tensor]

# The differences err by h⁴/30 times a fifth derivative and by rounding errors over h: 1e-16 and 1e-12 for a
# function of size 1. The rest is for fifth derivatives, which of an eigenvalue grow with 1/gap⁵.
STEP, RELATIVE = 2e-4, 1e-7


def difference(f: Flat, x: Tensor, v: Tensor) -> Tensor:
    """The derivative of f at x along v, by the values at four points."""
    h = STEP / v.norm()
    near, far = f(x + h * v) - f(x - h * v), f(x + 2 * h * v) - f(x - 2 * h * v)
    return (8 * near - far) / (12 * h)


def gradient_of(loss: Flat) -> Flat:
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(loss(x), x, allow_unused=True)
        return torch.zeros_like(x) if found is None else found

    return gradient


def by_dual_numbers(loss: Flat, x: Tensor, v: Tensor) -> Tensor:
    """Forward mode over autograd's reverse mode."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach().requires_grad_(), v)
        (gradient,) = torch.autograd.grad(loss(dual), dual, create_graph=True)
        tangent = forward_ad.unpack_dual(gradient).tangent
        return torch.zeros_like(x) if tangent is None else tangent.detach()


def along(f: Flat, v: Tensor) -> Flat:
    return lambda x: torch.func.jvp(f, (x,), (v,))[1]


FIRST = {
    "autograd.functional.jvp": lambda f, x, v: torch.autograd.functional.jvp(f, x, v)[1],
    "func.jvp": lambda f, x, v: along(f, v)(x),
}
SECOND = {
    "autograd.functional.hvp": lambda loss, x, v: torch.autograd.functional.hvp(loss, x, v)[1],
    "autograd.functional.vhp": lambda loss, x, v: torch.autograd.functional.vhp(loss, x, v)[1],
    "autograd.functional.jvp of a gradient": lambda loss, x, v: torch.autograd.functional.jvp(
        lambda y: torch.autograd.grad(loss(y), y, create_graph=True)[0], x, v
    )[1],
    "forward over reverse": lambda loss, x, v: along(torch.func.grad(loss), v)(x),
    "reverse over forward": lambda loss, x, v: torch.func.grad(along(loss, v))(x),
    "reverse over reverse": lambda loss, x, v: torch.func.grad(lambda y: torch.func.grad(loss)(y) @ v)(x),
    "dual numbers over autograd": by_dual_numbers,
}
WHOLE = {
    "autograd.functional.hessian": torch.autograd.functional.hessian,
    # Not vectorize=True: there torch itself stops at views of complex tensors.
    "func.hessian": lambda loss, x: torch.func.hessian(loss)(x),
    "func.jacrev of jacrev": lambda loss, x: torch.func.jacrev(torch.func.jacrev(loss))(x),
    "func.jacrev of jacfwd": lambda loss, x: torch.func.jacrev(torch.func.jacfwd(loss))(x),
}


def check_close(actual: Tensor, expected: Tensor, what: str) -> None:
    limit = RELATIVE * max(1.0, expected.abs().max().item())
    error = (actual - expected).abs().max().item()
    assert error <= limit, f"{what}: expected agreement to {limit:.1e}, got {error:.1e}"


def check_derivative_modes(f: Flat, x: Tensor, whole: bool = True) -> None:
    """Assert that all derivatives of f, from a vector to a vector, are those of differences."""
    generator = torch.Generator().manual_seed(2)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, dtype=like.dtype, generator=generator)

    value = f(x).detach()
    v, c, weight = normal(x), normal(value), normal(value)

    def loss(y: Tensor) -> Tensor:
        found = f(y)
        return (c * found).sum() + (weight * found).square().sum()

    def residual(y: Tensor) -> Tensor:  # Its cotangents are zero at x, but not its second derivatives.
        return (weight * (f(y) - value)).square().sum()

    check_close(gradient_of(loss)(x) @ v, difference(lambda y: loss(y).detach(), x, v), "gradient")
    tangent = difference(lambda y: f(y).detach(), x, v)
    for name, jvp in FIRST.items():
        check_close(jvp(f, x, v), tangent, name)
    for what, each in (("", loss), (" at a minimum", residual)):
        expected = difference(gradient_of(each), x, v)
        if each is residual:
            exact = torch.autograd.functional.vjp(f, x, 2 * weight.square() * tangent)[1]
            check_close(expected, exact, "differences at a minimum")
        for name, hvp in SECOND.items():
            check_close(hvp(each, x, v), expected, name + what)
        for name, hessian in WHOLE.items() if whole else ():
            check_close(hessian(each, x) @ v, expected, name + what)


def check_third_derivatives(f: Flat, x: Tensor) -> None:
    generator = torch.Generator().manual_seed(3)
    v = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    value = f(x).detach()
    c = torch.randn(value.shape, dtype=x.dtype, generator=generator)

    def loss(y: Tensor) -> Tensor:
        return (c * f(y)).sum() + (f(y) - value).square().sum()

    def second(y: Tensor) -> Tensor:
        y = y.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(y), y, create_graph=True)
        return torch.autograd.grad(gradient @ v, y)[0]

    expected = difference(second, x, v)
    hvp = torch.func.grad(lambda y: torch.func.grad(loss)(y) @ v)
    check_close(torch.func.grad(lambda y: hvp(y) @ v)(x), expected, "third derivative in reverse mode")
    check_close(along(hvp, v)(x), expected, "third derivative, forward over reverse over reverse")


# Functions ----------------------------------------------------------------------------------------


def flat(function: Callable[..., object], *inputs: Tensor) -> tuple[Flat, Tensor]:
    """Return a function of tensors as one of real vectors, and the vector of the inputs."""
    sizes = [len(real_parts(t)) for t in inputs]

    def f(x: Tensor) -> Tensor:
        tensors = [
            (torch.complex(*piece.chunk(2)) if t.is_complex() else piece).reshape(t.shape)
            for piece, t in zip(x.split(sizes), inputs, strict=True)
        ]
        found = function(*tensors)
        return torch.cat([real_parts(r) for r in ((found,) if isinstance(found, Tensor) else found)])

    return f, torch.cat([real_parts(t) for t in inputs]).detach()


def real_parts(t: Tensor) -> Tensor:
    t = t.reshape(-1)
    return torch.cat([t.real, t.imag]) if t.is_complex() else t


def matrices(*shape: int, seed: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def skew(X: Tensor) -> Tensor:
    return X - X.mH


def recurrence(activation: str) -> Callable[..., object]:
    return lambda x, h0, V, W, b: F.rnn(x, h0, V, W, b, activation)


def reflection_factors(V: Tensor) -> tuple[Tensor, ...]:
    return F.householder_factors(V)


def rotated(theta: Tensor, phi: Tensor, h: Tensor) -> Tensor:
    return F.givens_operator(theta, phi, SIGNS)(h + 0j)


def transformed(v: Tensor, phases: Tensor, h: Tensor) -> Tensor:
    return F.fourier_operator(v, phases, torch.tensor([2, 0, 1]))(h + 0j)


def from_blocks(A: Tensor, T: Tensor, gamma: Tensor, theta: Tensor, shear: Tensor) -> Tensor:
    pairs = torch.tensor([True, False, False, False])
    return F.schur_form(F.cayley(skew(A)), T, gamma, theta, shear, pairs)


def reflected(h: Tensor, V: Tensor) -> Tensor:
    return F.householder_apply(h, *F.householder_factors(V))


RECURRENT = tuple(
    matrices(*shape, seed=i) for i, shape in enumerate(((3, 2, 2), (2, 3), (3, 2), (3, 3), (3,)))
)
SIGNS = torch.tensor([1.0, -1, 1, 1], dtype=torch.float64)
FUNCTIONS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "spectral_radius": (F.spectral_radius, (matrices(4, 4),)),
    "spectral_radius-2x2": (F.spectral_radius, (torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64),)),
    "spectral_radius-rotation": (F.spectral_radius, (matrices(4, 4, seed=3) + 3 * skew(matrices(4, 4)),)),
    "spectral_radius-complex": (F.spectral_radius, (matrices(3, 3, dtype=torch.complex128),)),
    "spectral_radius-batch": (F.spectral_radius, (matrices(2, 3, 3),)),
    "spectral_abscissa": (F.spectral_abscissa, (matrices(4, 4),)),
    "spectral_abscissa-rotation": (F.spectral_abscissa, (2 * skew(matrices(4, 4)) + matrices(4, 4, seed=6),)),
    "spectral_abscissa-complex": (F.spectral_abscissa, (matrices(3, 3, dtype=torch.complex128),)),
    "dominant_eigen": (F.dominant_eigen, (matrices(4, 4),)),
    "dominant_eigen-2x2": (F.dominant_eigen, (torch.tensor([[2.0, 1], [1, -3]], dtype=torch.float64),)),
    "dominant_eigen-complex": (F.dominant_eigen, (matrices(3, 3, dtype=torch.complex128),)),
    "dominant_eigen-batch": (F.dominant_eigen, (matrices(2, 3, 3),)),
    "cayley": (lambda X: F.cayley(skew(X)), (matrices(4, 4),)),
    "cayley-complex": (lambda X: F.cayley(skew(X)), (matrices(3, 3, dtype=torch.complex128),)),
    "cayley_inverse": (lambda X: F.cayley_inverse(F.cayley(skew(X))), (matrices(4, 4),)),
    "scaled_cayley": (lambda X: F.scaled_cayley(skew(X), SIGNS), (matrices(4, 4),)),
    "doubly_stochastic": (F.doubly_stochastic, (matrices(4, 4),)),
    "exponential": (lambda X: F.exponential(skew(X)), (matrices(4, 4),)),
    "householder": (F.householder, (matrices(4, 3),)),
    "householder-complex": (F.householder, (matrices(3, 2, dtype=torch.complex128),)),
    "householder_apply": (reflected, (matrices(2, 4, seed=6), matrices(4, 3))),
    "spectral_radius-triangular": (F.spectral_radius, (matrices(4, 4).triu(),)),
    "householder_factors": (reflection_factors, (matrices(4, 2),)),
    "givens_operator": (rotated, (matrices(6), matrices(6, seed=6), matrices(2, 4, seed=7))),
    "fourier_operator": (
        transformed,
        (matrices(2, 3, dtype=torch.complex128), matrices(3, 3, seed=6), matrices(1, 3, seed=7)),
    ),
    "schur_form": (
        from_blocks,
        (matrices(4, 4), matrices(4, 4, seed=6), *(matrices(4, seed=i) for i in (7, 8, 9))),
    ),
    "modrelu": (F.modrelu, (matrices(2, 3), matrices(3, seed=6))),
    "rnn-modrelu": (recurrence("modrelu"), RECURRENT),
    "rnn-tanh": (recurrence("tanh"), RECURRENT),
    "goru": (
        F.goru,
        tuple(matrices(*s, seed=i) for i, s in enumerate(((3, 2, 1), (2, 2), (6, 1), (4, 2), (2, 2), (6,)))),
    ),
}


# Of the eigenvalues' functions, which are computed alike, each kind of matrix with one; all in a nightly run.
OFTEN = [
    name
    for name in FUNCTIONS
    if FACTOR > 1
    or (
        name not in ("spectral_radius-2x2", "spectral_radius-batch", "spectral_abscissa-rotation")
        and name not in ("spectral_abscissa-complex", "dominant_eigen-complex", "cayley-complex")
    )
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", OFTEN, ids=OFTEN)
def test_derivatives_of_a_function_in_every_mode(name: str) -> None:
    f, x = flat(FUNCTIONS[name][0], *FUNCTIONS[name][1])
    check_derivative_modes(f, x)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FUNCTIONS)
def test_third_derivatives_of_a_function(name: str) -> None:
    check_third_derivatives(*flat(FUNCTIONS[name][0], *FUNCTIONS[name][1]))


# Constraints --------------------------------------------------------------------------------------


def trained_constraint(case: Case, shape: Shape, dtype: torch.dtype) -> tuple[Flat, Tensor]:
    torch.manual_seed(4)
    module = holder(case, case.member(shape, dtype))
    with torch.no_grad():  # Away from the start, which may be a special point.
        for tensor in originals(module):
            tensor.add_(0.05 * torch.randn_like(tensor))
    constraint = module.parametrizations["weight"][0].eval()
    return flat(constraint, *(t.detach() for t in originals(module)))


def shapes_of(case: Case) -> list[tuple[Shape, torch.dtype]]:
    # Of a larger weight that is tracked, a gradient is known to the root of the rounding error.
    shapes: list[Shape] = [(4, 4), *(shape for shape in case.rectangles[:1] if max(shape) < 10)]
    if not case.variant:
        shapes.append((2, 3, 3))
    wanted = (torch.float64,) if torch.float64 in case.dtypes else ()
    chosen = [(shape, dtype) for shape in shapes for dtype in wanted]
    return chosen + ([((3, 3), torch.complex128)] if torch.complex128 in case.dtypes else [])


# One shape and dtype of each constraint by turns; in a nightly run all of them, and the constraints' modes.
CONSTRAINTS = [
    pytest.param(case, *each, id=f"{case.name}-{'x'.join(map(str, each[0]))}-{str(each[1])[6:]}")
    for i, case in enumerate((*CASES, *FROM_THE_START))
    for j, each in enumerate(shapes_of(case))
    if FACTOR > 1 or (j == i % len(shapes_of(case)) and not case.variant)
]


@pytest.mark.parametrize(("case", "shape", "dtype"), CONSTRAINTS)
@pytest.mark.turns(3)
def test_derivatives_of_a_constraint_in_every_mode(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    f, x = trained_constraint(case, shape, dtype)
    # torch cannot batch the views of complex tensors that jacrev of jacfwd makes in some of these.
    check_derivative_modes(f, x, whole=x.numel() <= 16 and not dtype.is_complex)


@pytest.mark.nightly
@pytest.mark.parametrize(("case", "shape", "dtype"), [each for each in CONSTRAINTS if "4x4" in each.id])
def test_third_derivatives_of_a_constraint(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    check_third_derivatives(*trained_constraint(case, shape, dtype))


def test_hessian_vector_product_of_the_spectral_radius_of_two_rows() -> None:
    """ρ = (5 + √33)/2 for [[1, 2], [3, 4]]: λ² - (a + d) λ + ad - bc = 0, differentiated by hand."""
    T = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    v = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    found = torch.autograd.functional.hvp(F.spectral_radius, T, v)[1]
    expected = torch.tensor([[9.0, -18.0], [0.0, -9.0]], dtype=torch.float64) / 33**1.5
    expected[1, 0] = 21 / 33**1.5
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
