"""Stochastic and doubly stochastic weights: what a start becomes, what a floor bounds, what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spectral_param as sp
from spectral_param.analysis import stationary_distribution
from spectral_param.errors import InManifoldError, NotFiniteError, NotSquareError, UnsupportedDtypeError
from tests.messages import refused
from tests.properties import REAL, examples, normal, powers_of_ten, seeds

BOTH = [sp.Stochastic, sp.DoublyStochastic]
dims = {sp.Stochastic: (-1,), sp.DoublyStochastic: (-1, -2)}


def constrained(W, constraint, **options):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(W.clone())
    return sp.constrain(module, "weight", constraint, **options)


def check_member(W, kind, floor):
    """Sums of 1 and no entry below floor/n, to rounding."""
    n, eps = W.shape[-1], torch.finfo(W.dtype).eps
    for dim in dims[kind]:
        assert (W.double().sum(dim) - 1).abs().max() <= 8 * max(W.shape[-2:]) * eps
    assert W.min() >= floor / n - eps


def steps_between(W):
    """The largest distance of two rows, in total variation: what a step leaves of that of distributions."""
    return 0.5 * (W[..., :, None, :] - W[..., None, :, :]).abs().sum(-1).amax(dim=(-2, -1))


@pytest.mark.parametrize("kind", BOTH)
@given(
    n=st.integers(2, 9),
    floor=st.sampled_from([0.0, 0.01, 0.3, 0.999]),
    scale=powers_of_ten(-20, 20),
    spread=st.sampled_from([1.0, 10.0]),
    dtype=st.sampled_from(REAL),
    seed=seeds,
)
@examples(20)
def test_a_positive_start_is_scaled_to_the_set_and_then_stays(
    kind, n, floor, scale, spread, dtype, seed
) -> None:
    W = (spread * normal((2, n, n), dtype, seed)).exp() * scale
    found = constrained(W, kind(floor)).weight.detach()
    check_member(found, kind, floor)
    again = constrained(found, kind(floor)).weight.detach()
    tolerance = 20 * n * torch.finfo(dtype).eps
    torch.testing.assert_close(again, found, rtol=0, atol=tolerance)
    if floor == 0 and kind is sp.Stochastic:
        expected = W.double() / W.double().sum(-1, keepdim=True)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)
    if floor == 0:  # Ratios of 2 x 2 minors are those of the start.
        minors = [X[..., 0, 0] * X[..., 1, 1] / (X[..., 0, 1] * X[..., 1, 0]) for X in (W.double(), found)]
        safe = found[..., :2, :2].amin(dim=(-2, -1)) > 1e-3
        torch.testing.assert_close(minors[0][safe], minors[1][safe].double(), rtol=1e5 * tolerance, atol=0)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("floor", [0.0, 0.25])
def test_zeros_stay_zeros_and_training_moves_the_rest(kind, floor) -> None:
    n, generator = 4, torch.Generator().manual_seed(0)
    pattern = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]], dtype=torch.float64)
    module = constrained(pattern, kind(floor))
    first = module.weight.detach().clone()
    optimizer = torch.optim.Adam(module.parameters(), 0.1)
    G = torch.randn(n, n, generator=generator, dtype=torch.float64)
    for _ in range(5):
        optimizer.zero_grad()
        (module.weight * G).sum().backward()
        optimizer.step()
    W = module.weight.detach()
    check_member(W, kind, floor)
    assert (W - first).abs().max() > 0.05
    if floor == 0:
        assert W[pattern == 0].max() <= 2 * math.exp(-60) * n


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *REAL])
def test_a_permutation_and_the_mean_are_members(kind, dtype) -> None:
    eps = torch.finfo(dtype).eps
    for W in (torch.eye(5).roll(2, 0), torch.full((5, 5), 0.2, dtype=torch.float64), torch.ones(1, 1)):
        module = constrained(W.to(dtype), kind())
        torch.testing.assert_close(module.weight.double(), W.double(), rtol=0, atol=10 * eps)
        module.weight = W.to(dtype)  # It can be assigned, too.
        torch.testing.assert_close(module.weight.double(), W.double(), rtol=0, atol=10 * eps)


@pytest.mark.parametrize("floor", [0.1, 0.5])
@pytest.mark.parametrize("dtype", REAL)
def test_a_floor_bounds_the_second_eigenvalue(floor, dtype) -> None:
    """For any originals; and a step takes this part of the distance of any two distributions away."""
    for n in (2, 3, 8):
        module = constrained(torch.ones(3, n, n, dtype=dtype), sp.Stochastic(floor))
        original = module.parametrizations.weight.original
        for size in (1.0, 1e2, 1e20):
            original.data.copy_(size * normal((3, n, n), dtype, n))
            W = module.weight.detach()
            check_member(W, sp.Stochastic, floor)
            assert steps_between(W).max() <= 1 - floor + 8 * n * torch.finfo(dtype).eps
        original.data.copy_(normal((3, n, n), dtype, n))
        rate = stationary_distribution(module.weight.detach()).mixing_rate
        assert rate.max() <= 1 - floor + 1e-5
    # The bound is attained: two states that nothing else connects.
    W = constrained(torch.eye(2, dtype=dtype), sp.Stochastic(floor)).weight.detach()
    assert stationary_distribution(W).mixing_rate.item() == pytest.approx(1 - floor, abs=1e-6)


@pytest.mark.parametrize("floor", [0.0, 0.05])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_a_product_of_60_weights_amplifies_nothing(floor, size) -> None:
    n, eps = 4, torch.finfo(torch.float32).eps
    module = constrained(torch.ones(60, n, n), sp.DoublyStochastic(floor))
    module.parametrizations.weight.original.data.copy_(size * normal((60, n, n), torch.float32, 0))
    product = torch.eye(n)
    for W in module.weight.detach():
        assert torch.linalg.svdvals(W.double())[1] <= 1 - floor + 8 * n * eps
        product = W @ product
    assert torch.linalg.matrix_norm(product.double(), 2) <= 1 + 60 * 8 * n * eps
    second = torch.linalg.svdvals(product.double())[1]
    assert second <= (1 - floor) ** 60 + 60 * 8 * n * eps


def test_chains_of_any_shape_and_of_gates() -> None:
    wide = sp.constrain(torch.nn.Linear(7, 3), "weight", sp.Stochastic(0.2), init="paper")
    check_member(wide.weight.detach(), sp.Stochastic, 0.2)
    assert sp.num_free_parameters(wide) == 3 * 6 + 3
    rnn = sp.constrain(torch.nn.LSTM(2, 5), "weight_hh_l0", sp.DoublyStochastic(), init="paper")
    check_member(rnn.weight_hh_l0.detach().unflatten(0, (4, 5)), sp.DoublyStochastic, 0)
    assert (
        rnn.parametrizations.weight_hh_l0[0].free_parameters(rnn.weight_hh_l0.unflatten(0, (4, 5))) == 4 * 16
    )


@pytest.mark.parametrize("kind", BOTH)
def test_a_gradient_belongs_to_the_floor_of_its_read(kind) -> None:
    grads = []
    for edited in (None, 0.5):
        module = constrained(normal((3, 3), torch.float64, 0).exp(), kind(0.1))
        chain, G = module.parametrizations.weight, normal((3, 3), torch.float64, 1)
        W = module.weight
        if edited is not None:
            chain[0].floor = edited
            check_member(module.weight.detach(), kind, edited)
        (g,) = torch.autograd.grad((W.square() * G).sum(), chain.original, create_graph=True)
        grads.append((g.detach(), *torch.autograd.grad(g.square().sum(), chain.original)))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_other_weights_are_refused_and_the_remedies_work(kind) -> None:
    name, negative = kind.__name__, normal((4, 4), torch.float32, 0)
    with refused(name, "negative"):
        constrained(negative, kind())
    for init in ("paper", negative.abs(), negative.exp()):
        check_member(constrained(negative, kind(), init=init).weight.detach(), kind, 0)
    zeros = torch.ones(3, 3)
    zeros[1] = 0
    with refused(name, "row"):
        constrained(zeros, kind())
    check_member(constrained(zeros, kind(), init=zeros + torch.eye(3)).weight.detach(), kind, 0)
    if kind is sp.DoublyStochastic:
        with refused(name, "column"):
            constrained(zeros.mT, kind())
        with refused(name, r"\(3, 4\)", error=NotSquareError):
            constrained(torch.ones(3, 4), kind())
    with refused(name, error=NotFiniteError):
        constrained(torch.full((2, 2), torch.inf), kind())
    with refused(name, error=UnsupportedDtypeError):
        constrained(torch.ones(2, 2, dtype=torch.complex64), kind())
    for floor in (-0.1, 1.0, math.nan, "a", None):
        with refused("floor"):
            kind(floor)
    module = constrained(torch.eye(3), kind(0.3))
    for W in (torch.eye(3), torch.full((3, 3), 0.5)):
        with refused(name, "project", error=InManifoldError):
            module.weight = W
        module.weight = sp.constraints(module)["weight"].project(W)
        check_member(module.weight.detach(), kind, 0.3)
    with refused(name, "negative"):
        module.weight = -torch.eye(3)


def test_distances_are_errors_of_sums_or_what_entries_lack() -> None:
    W = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    assert sp.Stochastic().distance(W).item() == 0
    assert sp.DoublyStochastic().distance(W).item() == pytest.approx(0.2)
    assert sp.Stochastic(0.5).distance(W).item() == pytest.approx(0.3)  # 0.1 lacks 0.15 of 0.5/2.
    assert sp.Stochastic().distance(-W).item() == pytest.approx(2)


def test_the_largest_entries_do_not_overflow() -> None:
    counts = torch.full((3, 4), 3e38)
    assert torch.equal(sp.Stochastic().project(counts), torch.full((3, 4), 0.25))


def test_a_start_of_which_no_permutation_is_a_part_still_gives_a_member() -> None:
    """Zeros below the diagonal leave the identity; a block of too many zeros gets entries."""
    triangle = torch.ones(4, 4, dtype=torch.float64).triu()
    W = constrained(triangle, sp.DoublyStochastic()).weight.detach()
    check_member(W, sp.DoublyStochastic, 0)
    torch.testing.assert_close(W, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-5)
    blocked = torch.ones(4, 4, dtype=torch.float64)
    blocked[:3, :2] = 0  # Three rows have two columns.
    check_member(constrained(blocked, sp.DoublyStochastic()).weight.detach(), sp.DoublyStochastic, 0)
