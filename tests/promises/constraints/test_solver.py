"""A solver of one's own takes the place of LAPACK in the radius and in the norm."""

import copy
import pickle

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import Holder


class PowerIteration(sp.Solver):
    """Power iteration with a proof, and LAPACK where a proof fails."""

    STEPS = 60

    def __init__(self, *sizes) -> None:
        super().__init__(*sizes)
        self.proven, self.states = [], []

    def eigentriple(self, T, state):
        """The proof is Collatz' and Wielandt's: min (Tu)ᵢ/uᵢ ≤ ρ ≤ max (Tu)ᵢ/uᵢ for T, u > 0."""
        self.states.append(state)
        self.proven.append(False)
        if T.is_complex() or not bool((T > 0).all()):
            return super().eigentriple(T, None)[0], None
        A, tolerance = T.double(), 4 * len(T) * torch.finfo(T.dtype).eps
        vectors, values = [], []
        for M, x in zip((A, A.mT), state or (torch.ones_like(A[0]),) * 2, strict=True):
            for _ in range(self.STEPS):
                x = M @ x
                x = x / torch.linalg.vector_norm(x)
            quotients = (M @ x) / x
            if not quotients.max() <= (1 + tolerance) * quotients.min():
                return super().eigentriple(T, None)[0], None
            vectors.append(x)
            values.append(quotients.mean())
        self.proven[-1] = True
        dtype = T.dtype.to_complex()
        return ((values[0].to(dtype), *(x.to(dtype) for x in vectors)), True), tuple(vectors)

    def norm(self, T, state):
        """The proof is Cholesky's: all singular values are below s if s² - TᴴT has a factor.

        A vector that has not converged is left to LAPACK, too.
        """
        self.states.append(state)
        A = T.to(torch.complex128 if T.is_complex() else torch.float64)
        v = torch.ones_like(A[0]) if state is None else state
        for _ in range(self.STEPS):
            v = A.mH @ (A @ v)
            v = v / torch.linalg.vector_norm(v)
        sigma = torch.linalg.vector_norm(A @ v)
        tolerance = 8 * len(v) * torch.finfo(torch.float64).eps
        bound = sigma * (1 + tolerance)
        G = bound**2 * torch.eye(len(v), dtype=A.dtype) - A.mH @ A
        residual = torch.linalg.vector_norm(A.mH @ (A @ v) - sigma**2 * v)
        is_converged = bool(residual <= tolerance * sigma**2)
        self.proven.append(is_converged and bool(torch.linalg.cholesky_ex(G).info == 0))
        if not self.proven[-1]:
            return super().norm(T, None)[0], None
        return ((sigma, v.to(T.dtype)), bound), v


KINDS = {
    "radius": lambda solver: sp.SpectralRadiusNorm(0.9, solver=solver, of="absolute"),
    "norm": lambda solver: sp.SpectralNorm(0.9, "equal", solver=solver),
}


def trained(make, W, steps=6):
    """Return the weights and gradients of a training."""
    layer = sp.constrain(Holder(W.clone()), "weight", make)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    numbers = []
    for step in range(steps):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        (layer.weight * torch.randn(W.shape, dtype=W.dtype, generator=generator)).sum().abs().backward()
        numbers += [layer.weight.detach(), layer.parametrizations.weight.original.grad.clone()]
        optimizer.step()
    return numbers


@pytest.mark.parametrize("shape", [(12, 12), (3, 7, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_solver_of_ones_own_gives_the_weight_and_the_gradient_of_lapack(kind, dtype, shape) -> None:
    W = torch.rand(shape, dtype=torch.float64).to(dtype)
    solver = PowerIteration()
    found, expected = trained(KINDS[kind](solver), W), trained(KINDS[kind]("dense"), W)
    assert solver.proven
    assert all(solver.proven)
    for x, y in zip(found, expected, strict=True):
        # A bound may exceed σ by 4 eps, and vectors have the square root of the precision.
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_proves_nothing_lapack_is_asked_with_the_same_bits(kind) -> None:
    W = torch.eye(9).roll(1, 0) - 0.1 * torch.eye(9)  # Power iteration turns and turns.
    W[:, 0] *= 1.001
    solver = PowerIteration()
    solver.STEPS = 1
    found, expected = trained(KINDS[kind](solver), W), trained(KINDS[kind]("dense"), W)
    assert solver.proven
    assert not any(solver.proven)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", KINDS)
def test_each_matrix_has_its_state_and_a_copy_has_none(kind) -> None:
    solver = PowerIteration()
    constraint = KINDS[kind](solver)
    T = torch.rand(2, 5, 5)
    constraint(T)
    constraint(T + 0.01)
    assert [state is None for state in solver.states] == [True, True, False, False]
    for other in (T[0], T.double(), T[:, :4, :4]):  # Another shape or dtype.
        solver.states.clear()
        constraint(other)
        assert solver.states == [None] * (other.numel() // other[..., :, :].shape[-1] ** 2)
    assert copy.deepcopy(constraint).solver is solver
    for clone in (copy.deepcopy(constraint), pickle.loads(pickle.dumps(constraint))):
        assert isinstance(clone.solver, PowerIteration)
        clone.solver.states.clear()
        clone(T + 0.02)
        assert clone.solver.states == [None, None]


def test_its_size_limits() -> None:
    for size, asked in ((5, False), (6, True)):
        for constraint in (make(PowerIteration(6, 6)) for make in KINDS.values()):
            constraint(torch.rand(size, size))
            assert bool(constraint.solver.states) is asked


def test_the_norm_of_a_convolution_asks_it() -> None:
    solver = PowerIteration()
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, bias=False)
    other = copy.deepcopy(conv)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.9, "equal", solver=solver))
    sp.constrain(other, "weight", sp.SpectralNorm(0.9, "equal", solver="dense"))
    torch.testing.assert_close(conv.weight, other.weight, rtol=1e-6, atol=0)
    assert solver.states


@pytest.mark.nightly
def test_a_compiled_graph_asks_it() -> None:
    solver = PowerIteration()
    layer = sp.constrain(Holder(torch.rand(8, 8)), "weight", KINDS["radius"](solver))
    before = len(solver.states)
    compiled = torch.compile(lambda: layer.weight, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(), layer.weight)
    assert len(solver.states) > before


@pytest.mark.parametrize("constraint", [sp.SpectralRadiusNorm, sp.SpectralNorm])
def test_what_is_no_solver_is_refused(constraint) -> None:
    for wrong in ("lapack", None, PowerIteration, ["auto"]):
        with pytest.raises(ValueError, match=r"solver: expected .*auto.*got"):
            constraint(solver=wrong)
    constraint(solver=PowerIteration())  # The remedy.
    with pytest.raises(AttributeError, match="solver"):
        constraint().solver = "dense"


def test_it_is_shown() -> None:
    assert "solver=PowerIteration(8, 0)" in repr(sp.SpectralRadiusNorm(solver=PowerIteration(8)))
    assert "solver=PowerIteration(0, 0)" in repr(sp.SpectralNorm(solver=PowerIteration()))
    assert "solver='auto'" in repr(sp.SpectralNorm())


@pytest.mark.nightly
def test_a_constraint_with_it_keeps_the_contract() -> None:
    """That of radii: a norm may have less than the precision of LAPACK that the contract asks for."""
    sp.testing.check_constraint(lambda shape: KINDS["radius"](PowerIteration()))


@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1.0, 1e25, 1e30])
def test_a_solver_that_calls_every_eigenvalue_regular_has_the_gradient_of_any_scale(scale) -> None:
    T = torch.rand(6, 6) + 0.1
    gradients = []
    for solver in (PowerIteration(), "dense"):
        X = (scale * T).requires_grad_()
        W = sp.SpectralRadiusNorm(0.9, solver=solver, of="absolute")(X)
        (gradient,) = torch.autograd.grad(W.square().sum(), X)
        gradients.append(gradient * scale)
    assert gradients[1].abs().max() > 0.01
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
