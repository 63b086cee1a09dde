"""Equilibrium layers: one solution, known to rounding, with its derivatives; what proves none is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.messages import refused
from tests.properties import FAST

SETS = {
    "range": lambda: sp.LyapunovForm(abscissa=0.0, growth=1.0),
    "diagonal range": lambda: sp.LyapunovForm(abscissa=0.5, metric="diagonal", growth=3.0),
    "norm": lambda: sp.SpectralNorm(0.9),
    "contraction": lambda: sp.LyapunovForm(0.9, growth=1.0),
    "diagonal norm": lambda: sp.LyapunovForm(0.9, metric="diagonal"),
    "absolute": lambda: sp.SpectralRadiusNorm(0.9, of="absolute"),
}
ACTIVATIONS = ("relu", "tanh", "sigmoid", "softplus", "leaky_relu", "hardtanh", nn.ELU())


def layer(seed, kind=None, size=3.0, dtype=torch.float64, **options):
    """One of many layers whose weights are larger than those of the start."""
    torch.manual_seed(seed)
    kind = tuple(SETS)[seed % len(SETS)] if kind is None else kind
    options = {"nonlinearity": ACTIVATIONS[seed // 6 % len(ACTIVATIONS)]} | options
    made = sp.nn.Equilibrium(3, 2 + seed % 11, SETS[kind](), dtype=dtype, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(size)
    return made, 2 * torch.randn(5, 3, dtype=dtype)


def slow(made, x, steps):
    """The solution by so many steps, whose gradient autograd follows: of splitting with the step 1.

    There φ is its own resolvent, so it needs neither an inner solution nor a derivative of φ.
    """
    W, c = made.weight_hh, nn.functional.linear(x, made.weight_ih, made.bias)
    V = torch.linalg.inv(2 * torch.eye(len(W), dtype=W.dtype) - W)
    u = z = torch.zeros_like(c)
    for _ in range(steps):
        w = (2 * z - u + c) @ V.mT
        u = 2 * w - 2 * z + u
        z = made.activation(u)
    return z


def size_of(made, x, z):
    W = made.weight_hh.detach()
    L = torch.linalg.matrix_norm(torch.eye(len(W), dtype=W.dtype) - W, 2)
    c = nn.functional.linear(x, made.weight_ih, made.bias).detach()
    return L * z.norm(dim=1) + c.norm(dim=1)


@pytest.mark.turns(74)
@pytest.mark.parametrize("seed", range(200))
def test_the_residual_is_rounding_and_there_is_one_solution(seed) -> None:
    for dtype in (torch.float32, torch.float64):
        made, x = layer(seed, dtype=dtype)
        z = made(x).detach()
        c = nn.functional.linear(x, made.weight_ih, made.bias)
        missed = (z - made.activation(z @ made.weight_hh.mT + c)).detach().norm(dim=1)
        assert (missed <= 32 * torch.finfo(dtype).eps * size_of(made, x, z)).all()
        assert made.residual == pytest.approx(missed.max().item(), rel=1e-3)
    starts = 10 * torch.randn(20, *z.shape, dtype=z.dtype)
    found = made(x.expand(20, *x.shape), starts)
    torch.testing.assert_close(found, z.expand(found.shape), rtol=0, atol=1e-10 * float(1 + z.norm()))


@pytest.mark.turns(111)
@pytest.mark.parametrize("seed", range(200))
def test_gradients_are_those_of_500_unrolled_iterations(seed) -> None:
    made, x = layer(seed, size=1.5)
    x.requires_grad_()
    wanted = [x, *made.parameters()]
    weights = torch.randn(5, made.hidden_size, dtype=torch.float64)
    found = torch.autograd.grad((made(x) * weights).sum(), wanted, allow_unused=True)
    unrolled = slow(made, x, 500)
    torch.testing.assert_close(made(x), unrolled, rtol=1e-9, atol=1e-9)
    expected = torch.autograd.grad((unrolled * weights).sum(), wanted, allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


@pytest.mark.turns(4)
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "softplus", "leaky_relu"])
def test_derivatives_of_first_and_second_order_are_exact(nonlinearity) -> None:
    torch.manual_seed(0)
    made = sp.nn.Equilibrium(2, 2, nonlinearity=nonlinearity, dtype=torch.float64)
    x = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    inputs = (x, *made.parameters())
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x, *_: made(x), inputs, **FAST)


@pytest.mark.nightly
def test_two_solutions_are_no_farther_apart_than_their_inputs() -> None:
    """m = 1 of the default: 1-Lipschitz in Ux + b, after steps that make W large, too."""
    torch.manual_seed(0)
    made = sp.nn.Equilibrium(4, 12, dtype=torch.float64)
    x = torch.randn(64, 4, dtype=torch.float64)
    optimizer = torch.optim.Adam(made.parameters(), lr=5e-2)
    for _ in range(30):
        optimizer.zero_grad()
        (-made(x).var(dim=0).sum()).backward()
        optimizer.step()
    W = made.weight_hh.detach()
    assert torch.linalg.matrix_norm(W, 2) > 1.2  # No bound of the norm would allow it.
    z, c = made(x), nn.functional.linear(x, made.weight_ih, made.bias)
    apart = torch.pdist(z.detach()) / torch.pdist(c.detach())
    assert apart.max() <= 1 + 1e-9
    assert made.residual <= 1e-12


def test_a_near_start_saves_iterations() -> None:
    made, x = layer(6)
    z = made(x)
    assert made.iterations > 10
    made(x, z.detach())
    assert made.iterations <= 2


def test_shapes_are_those_of_the_input() -> None:
    made, _ = layer(0, dtype=torch.float32)
    n = made.hidden_size
    assert made(torch.randn(3)).shape == (n,)
    assert made(torch.randn(2, 4, 3)).shape == (2, 4, n)
    assert made(torch.randn(0, 3)).shape == (0, n)
    alone = sp.nn.Equilibrium(3, 4, bias=False)
    assert alone.bias is None
    assert alone(torch.zeros(2, 3)).eq(0).all()


def test_what_is_not_finite_stays_in_its_row() -> None:
    made, x = layer(0)
    expected = made(x)
    x[2] = torch.nan
    found = made(x)
    assert found[2].isnan().all()
    torch.testing.assert_close(found[[0, 1, 3, 4]], expected[[0, 1, 3, 4]], rtol=1e-10, atol=1e-10)


def test_copies_pickles_and_state_dicts_compute_the_same() -> None:
    made, x = layer(0, dtype=torch.float32)
    expected = made(x)
    other = sp.nn.Equilibrium(3, made.hidden_size)
    other.load_state_dict(made.state_dict())
    for each in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), other):
        assert torch.equal(each(x), expected)


def test_a_reset_renews_the_weights_inside_the_set() -> None:
    made, _ = layer(0)
    before = made.weight_hh.detach().clone()
    made.reset_parameters()
    W = made.weight_hh.detach()
    assert not torch.equal(W, before)
    assert torch.linalg.eigvalsh((W + W.mT) / 2)[-1] <= 1e-9


def test_autocast_and_half_precision() -> None:
    made, x = layer(0, dtype=torch.float32)
    expected = made(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (made(x) - expected).norm() <= 0.05 * expected.norm()
    found = made.bfloat16()(x.bfloat16())
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() <= 0.05 * expected.norm()


def test_stopping_early_warns() -> None:
    made, x = layer(6)
    made.max_iterations = 3
    with pytest.warns(RuntimeWarning, match="max_iterations"):
        made(x)
    assert made.iterations == 3
    assert made.residual > 1e-9


@pytest.mark.parametrize(
    "constraint",
    [
        sp.SpectralNorm(1.0),
        sp.SpectralNorm("present"),
        sp.LyapunovForm(abscissa=1.0, growth=1.0),
        sp.LyapunovForm(abscissa=0.0),
        sp.LyapunovForm(0.9),
        sp.LyapunovForm(0.9, growth=2.0),
        sp.SpectralRadiusNorm(0.9),
        sp.SpectralRadiusNorm(0.9, "latched", of="absolute"),
        sp.ScaledCayley(),
        "norm",
    ],
    ids=repr,
)
def test_constraints_that_prove_no_solution_are_refused(constraint) -> None:
    with refused("constraint", "a < 1"):
        sp.nn.Equilibrium(3, 4, constraint)


class Mine(nn.ReLU):
    pass


@pytest.mark.parametrize(
    "nonlinearity",
    [
        *(nn.GELU(), nn.SiLU(), nn.Mish(), nn.SELU(), nn.PReLU(), nn.LeakyReLU(-0.1), nn.Softmax(-1), Mine()),
        *("gelu", 1.0, nn.Softplus(threshold=1.0), nn.LeakyReLU(1.5)),
    ],
    ids=str,
)
def test_other_activations_are_refused(nonlinearity) -> None:
    with refused("nonlinearity", "'relu'"):
        sp.nn.Equilibrium(3, 4, nonlinearity=nonlinearity)


def test_bad_input_is_refused() -> None:
    made = sp.nn.Equilibrium(3, 4)
    for arguments, name in (
        (([1.0],), "input"),
        ((torch.randn(2, 4),), "input"),
        ((torch.randn(2, 3), torch.randn(4)), "start"),
    ):
        with refused(name):
            made(*arguments)
    for name in ("input_size", "hidden_size", "max_iterations"):
        with refused(name):
            sp.nn.Equilibrium(**({"input_size": 3, "hidden_size": 4} | {name: 0}))
    with refused("dtype"):
        sp.nn.Equilibrium(3, 4, dtype=torch.complex64)
