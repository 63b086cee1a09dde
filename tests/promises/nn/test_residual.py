"""The inverse of a residual block and its determinant, for trained blocks; what has none is refused."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.messages import refused
from tests.properties import FAST, REAL

ACTIVATIONS = {
    nn.Tanh: np.tanh,
    nn.ReLU: lambda a: np.maximum(a, 0),
    nn.Softsign: lambda a: a / (1 + np.abs(a)),
    nn.Hardtanh: lambda a: np.clip(a, -1, 1),
}


def block(n, units, size, activation=nn.Tanh, mean=False, dtype=torch.float64, mode="at_most"):
    """A block whose function has a constant of at most ``size``."""
    function = nn.Sequential(nn.Linear(n, units), activation(), nn.Linear(units, n))
    made = sp.nn.Residual(function, mean).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3)
    return sp.constrain(made, "*weight", sp.SpectralNorm(math.sqrt(size), mode))


def trained(seed, dtype):
    """One of many blocks: a few steps towards a density, which stretch it."""
    torch.manual_seed(seed)
    kinds = itertools.cycle(ACTIVATIONS)
    activation = next(itertools.islice(kinds, seed % len(ACTIVATIONS), None))
    n, size = 2 + seed % 7, (0.5, 0.9, 0.97, 0.99)[seed // 4 % 4]
    made = block(n, 4 + seed % 13, size, activation, mean=seed % 3 == 0, dtype=dtype)
    x = 3 * torch.randn(32, n, dtype=dtype) + 1
    optimizer = torch.optim.Adam(made.parameters(), lr=3e-2)
    for _ in range(10):
        optimizer.zero_grad()
        (made(x).square().sum(dim=1) / 2 - made.log_abs_det(x)).mean().backward()
        optimizer.step()
    return made, x


def solved(made, y):
    """The x of y in extended precision, by many iterations with the weights that the block has."""
    first, activation, second = made.function
    W, b, V, c = (
        t.detach().numpy().astype(np.longdouble)
        for t in (first.weight, first.bias, second.weight, second.bias)
    )
    act = ACTIVATIONS[type(activation)]
    target = y.detach().numpy().astype(np.longdouble) * (2 if made.mean else 1)
    x = target
    for _ in range(6000):
        before, x = x, target - (act(x @ W.T + b) @ V.T + c)
        if np.abs(x - before).max() <= np.finfo(x.dtype).eps * np.abs(x).max():
            break
    return x


def constant(made):
    return sp.analysis.lipschitz(copy.deepcopy(made.function).eval())


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.turns(41)
@pytest.mark.parametrize("seed", range(100))
def test_the_inverse_of_a_trained_block_is_within_its_bound(seed, dtype) -> None:
    made, x = trained(seed, dtype)
    y = made(x).detach()
    found, eps, rate = made.inverse(y).detach(), torch.finfo(dtype).eps, constant(made)
    error = np.linalg.norm(found.numpy() - solved(made, y), axis=1)
    size = (found.norm(dim=1) + y.norm(dim=1)).double().numpy()
    assert (error <= 8 * eps / (1 - rate) * size).all()
    assert 1 <= made.iterations <= max(1, math.ceil(math.log(4 * eps / (1 - rate)) / math.log(rate)))


@pytest.mark.turns(40)
@pytest.mark.parametrize("seed", range(100))
def test_the_determinant_of_a_trained_block_is_that_of_its_jacobian(seed) -> None:
    made, x = trained(seed, torch.float64)
    x, wanted = x[:5].requires_grad_(), [*made.parameters()]
    jacobians = [
        torch.autograd.functional.jacobian(lambda x: made(x[None])[0], each, create_graph=True) for each in x
    ]
    expected = torch.linalg.slogdet(torch.stack(jacobians))
    assert (expected.sign == 1).all()
    found = made.log_abs_det(x)
    torch.testing.assert_close(found, expected.logabsdet, rtol=1e-8, atol=1e-8)
    weights = torch.linspace(1, 2, 5, dtype=torch.float64)
    gradients = torch.autograd.grad((found * weights).sum(), [x, *wanted], allow_unused=True)
    others = torch.autograd.grad((expected.logabsdet * weights).sum(), [x, *wanted], allow_unused=True)
    for one, other in zip(gradients, others, strict=True):
        assert (one is None or not one.any()) == (other is None or not other.any())
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


SERIES = [(0.6, True, 100), (0.3, False, 2000), (0.9, False, 2000), (0.9, True, 2000), (0.97, False, 2000)]


@pytest.mark.turns(5)
@pytest.mark.parametrize("case", SERIES)
def test_the_series_is_right_in_the_mean(case) -> None:
    """Within three standard errors: the value, and the gradient along one direction."""
    size, mean, draws = case
    torch.manual_seed(1)
    made = block(3, 6, size, mean=mean)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    direction = torch.randn_like(x)

    def numbers(method):
        value = made.log_abs_det(x, method).sum()
        (gradient,) = torch.autograd.grad(value, x)
        return torch.stack([value.detach(), (gradient * direction).sum()])

    drawn = torch.stack([numbers("series") for _ in range(draws)])
    spread = drawn.std(dim=0)
    assert (spread > 1e-3).all()
    assert ((drawn.mean(dim=0) - numbers("exact")).abs() <= 3 * spread / draws**0.5).all()


def test_terms_that_are_rarely_there_are_right_in_the_mean() -> None:
    """For f(x) = -0.9 x of one number, only how many terms there are is random."""
    made = sp.nn.Residual(nn.Linear(1, 1, bias=False, dtype=torch.float64))
    weight = made.function.weight
    nn.init.constant_(weight, -0.9)
    x = torch.zeros(1, 1, dtype=torch.float64)
    drawn = []
    for _ in range(200):
        value = made.log_abs_det(x, "series").sum()
        drawn.append([value.item(), torch.autograd.grad(value, weight)[0].item()])
    drawn = torch.tensor(drawn, dtype=torch.float64)
    exact = torch.tensor([math.log(0.1), 1 / 0.1], dtype=torch.float64)
    error = drawn.std(dim=0) / len(drawn) ** 0.5
    assert (error > 1e-3).all()
    assert ((drawn.mean(dim=0) - exact).abs() <= 3 * error).all()


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.turns(2)
def test_derivatives_of_first_and_second_order_are_exact(mean) -> None:
    function = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        for layer in (function[0], function[2]):
            layer.weight.copy_(0.9 * torch.tensor([[0.8, -0.6], [0.6, 0.8]]))
    made = sp.nn.Residual(function, mean)
    x = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    inputs = (x, *function[0].parameters())
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda y, *_: made.inverse(y), inputs, **FAST)
        assert check(lambda x, *_: made.log_abs_det(x), inputs, **FAST)


def test_the_gradient_reaches_what_is_constrained() -> None:
    made = block(2, 3, 0.9, mode="equal")  # Without the kink at the bound.
    x = torch.randn(2, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *_: made.inverse(x), (*made.parameters(),), **FAST)


def test_a_third_derivative_of_the_inverse() -> None:
    r"""For x + s sin-like f of one number, dⁿx/dyⁿ follows from those of y(x)."""
    function = nn.Sequential(nn.Linear(1, 1, dtype=torch.float64), nn.Tanh())
    with torch.no_grad():
        function[0].weight.fill_(0.7)
        function[0].bias.fill_(0.2)
    made = sp.nn.Residual(function)
    y = torch.tensor([[0.4]], dtype=torch.float64, requires_grad=True)
    x = made.inverse(y)
    found, of_x, leaf = [], [], x.detach().requires_grad_()
    one, other = x, made(leaf)
    for _ in range(3):
        (one,) = torch.autograd.grad(one, y, create_graph=True)
        (other,) = torch.autograd.grad(other, leaf, create_graph=True)
        found.append(one.item())
        of_x.append(other.item())
    a, b, c = of_x
    assert found == pytest.approx([1 / a, -b / a**3, (3 * b * b - a * c) / a**5], rel=1e-9)


def test_images_are_events() -> None:
    """All axes but the first are one event, by convolutions too."""
    made = sp.nn.Residual(
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ELU(), nn.Conv2d(4, 2, 3, padding=1))
    )
    made = sp.constrain(made.double(), "*weight", sp.SpectralNorm(0.8))
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(made.inverse(made(x)), x, rtol=1e-12, atol=1e-12)
    J = torch.autograd.functional.jacobian(lambda x: made(x[None])[0], x[1]).reshape(32, 32)
    torch.testing.assert_close(made.log_abs_det(x)[1], torch.linalg.slogdet(J).logabsdet)
    assert made.log_abs_det(x, "series").shape == (3,)


def test_a_function_that_is_0_is_the_identity() -> None:
    made = sp.nn.Residual(nn.Linear(3, 3))
    nn.init.zeros_(made.function.weight)
    nn.init.zeros_(made.function.bias)
    x = torch.randn(4, 3)
    assert torch.equal(made.inverse(x), x)
    for method in ("exact", "series"):
        assert torch.equal(made.log_abs_det(x, method), torch.zeros(4))
    assert made.inverse(x[:0]).shape == (0, 3)


def test_it_ends_where_rounding_leaves_nothing_to_gain() -> None:
    """Large numbers inside f cancel: changes stay above the rounding of x and y."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    with torch.no_grad():
        first.weight.copy_(0.5 * torch.eye(3))
        first.bias.fill_(1e5)
        second.weight.copy_(1.9 * torch.eye(3))
        second.bias.fill_(-1.9e5)
    made, x = sp.nn.Residual(nn.Sequential(first, second)), torch.randn(4, 3)
    found = made.inverse(made(x))
    assert made.iterations < 226  # The proven number for the rate 0.95.
    assert (found - x).norm(dim=1).max() <= 1e5 * 8 * 1.2e-7 / 0.05


def test_the_graph_is_that_of_what_is_trained() -> None:
    made, x = block(3, 4, 0.9), torch.randn(2, 3, dtype=torch.float64)
    assert made.inverse(x).requires_grad
    assert made.log_abs_det(x).requires_grad
    made.requires_grad_(False)
    assert not made.inverse(x).requires_grad
    assert not made.log_abs_det(x).requires_grad
    with torch.no_grad():
        x.requires_grad_()
        assert not made.inverse(x).requires_grad
        assert not made.log_abs_det(x, "series").requires_grad


def test_autocast_changes_nothing() -> None:
    made, x = block(3, 4, 0.9, dtype=torch.float32), torch.randn(2, 3)
    expected = made.inverse(x), made.log_abs_det(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = made.inverse(x), made.log_abs_det(x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_a_weight_that_was_edited_since_is_noticed_by_the_backward_pass() -> None:
    made, x = block(3, 4, 0.9), torch.randn(2, 3, dtype=torch.float64)
    result = made.inverse(x)
    with torch.no_grad():
        made.function[0].bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def hooked():
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    return layer


class Mine(nn.Linear):
    pass


REFUSED = {
    "dropout": lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)),
    "batch statistics": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "hook": hooked,
    "subclass": lambda: Mine(3, 3),
    "normalisation": lambda: nn.LayerNorm(3),
    "in place": lambda: nn.SiLU(inplace=True),
    "moves": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(30, 30)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_whose_constant_is_not_known_are_refused(name) -> None:
    made = sp.nn.Residual(nn.Sequential(REFUSED[name]()))
    for call in ("inverse", "log_abs_det"):
        with refused(f"Residual.{call}", "'function.0"):
            getattr(made, call)(torch.randn(4, 3))


def test_in_training_what_does_the_same_as_in_evaluation_is_taken() -> None:
    x = torch.randn(4, 3)
    layers = [nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)]
    made = sp.nn.Residual(nn.Sequential(*layers))
    with torch.no_grad():
        layers[0].weight.mul_(0.5)
    for layer in layers[1:]:
        layer.eval()
    assert made.function[0].training
    torch.testing.assert_close(made.inverse(made(x)), x)
    layers[2].train().p = 0.0
    torch.testing.assert_close(made.inverse(made(x)), x)


@pytest.mark.parametrize("call", ["inverse", "log_abs_det"])
def test_a_constant_of_1_is_refused_and_the_remedy_works(call) -> None:
    made, x = sp.nn.Residual(nn.Linear(3, 3)), torch.randn(4, 3)
    with torch.no_grad():
        made.function.weight.copy_(torch.eye(3))
    with refused(f"Residual.{call}", "SpectralNorm"):
        getattr(made, call)(x)
    made = sp.constrain(made, "*weight", sp.SpectralNorm(0.9))
    assert getattr(made, call)(x).isfinite().all()


def test_bad_input_is_refused() -> None:
    made = block(3, 4, 0.9, dtype=torch.float32)
    for call, name in ((made.inverse, "y"), (made.log_abs_det, "x")):
        for value in (torch.randn(3), torch.ones(2, 3, dtype=torch.int64), [1.0]):
            with refused(name):
                call(value)
    with refused("method"):
        made.log_abs_det(torch.randn(2, 3), "trace")


def test_a_function_that_mixes_events_has_no_determinants() -> None:
    made = sp.nn.Residual(nn.Softmax(dim=0))
    with refused("Residual.log_abs_det", r"x\[None\]"):
        made.log_abs_det(torch.randn(4, 3))
    assert made.log_abs_det(torch.randn(1, 3)).shape == (1,)
