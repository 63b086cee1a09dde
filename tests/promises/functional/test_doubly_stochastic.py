"""Doubly stochastic matrices: sums, the only matrix of its form, derivatives, and each matrix by itself."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.errors import NotAMatrixError, NotSquareError, UnsupportedDtypeError
from spectral_param.functional import doubly_stochastic
from tests.messages import refused
from tests.properties import REAL, examples, normal, seeds


def pattern(mask, size):
    return torch.where(mask, size, -size).double()


def hard(kind, n, size, seed):
    """Logits whose differences are at most 2 ``size``."""
    i = torch.arange(n)
    noise = normal((n, n), torch.float64, seed).clamp(-3, 3) / 3
    shuffled = i.roll(seed % n)[:, None] == i
    half = (i < n // 2)[:, None] == (i < n // 2)
    found = {
        "uniform": size * noise,
        "permutation": pattern(shuffled, size),
        "disturbed permutation": 0.9 * pattern(shuffled, size) + 0.1 * size * noise,
        "two blocks": 0.9 * pattern(half, size) + 0.1 * size * noise,
        "one-way blocks": torch.where(half | (i < n // 2), pattern(half, size), 0) + 0.0 * noise,
        "triangle": pattern(i[:, None] <= i, size),
        "nearly a triangle": pattern(i[:, None] <= i + 1, size),
        "one row": pattern((i[:, None] == 0) | (i < 0), size),
        "products": size * (2 * (i[:, None] * i) / max((n - 1) ** 2, 1) - 1).double(),
        "sparse": pattern(noise > 1 / 3, size),
    }
    return found[kind]


KINDS = [
    "uniform",
    "permutation",
    "disturbed permutation",
    "two blocks",
    "one-way blocks",
    "triangle",
    "nearly a triangle",
    "one row",
    "products",
    "sparse",
]


def plain(T, steps):
    """Return W by its definition: Sinkhorn's alternating divisions, in double precision."""
    W = T.double().exp()
    for _ in range(steps):
        W = W / W.sum(dim=-2, keepdim=True)
        W = W / W.sum(dim=-1, keepdim=True)
    return W


def check_sums(W):
    n, eps = W.shape[-1], torch.finfo(W.dtype).eps
    for dim in (-2, -1):
        assert (W.double().sum(dim) - 1).abs().max() <= 8 * n * eps
    assert W.min() >= 0


@example(kind="sparse", n=8, size=6.0, dtype=torch.float64, seed=1)  # Whole steps of Newton diverge.
@example(kind="sparse", n=64, size=30.0, dtype=torch.float32, seed=1)
@example(kind="nearly a triangle", n=16, size=30.0, dtype=torch.float64, seed=0)
@example(kind="permutation", n=2, size=30.0, dtype=torch.float32, seed=1)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 24),
    size=st.sampled_from([1.0, 6.0, 30.0]),
    dtype=st.sampled_from(REAL),
    seed=seeds,
)
@examples(40)
def test_rows_and_columns_have_the_sum_1(kind, n, size, dtype, seed) -> None:
    """To rounding, with W = e^(T + f + g), of which there is one: alone, and in a large batch."""
    T = hard(kind, n, size, seed).to(dtype)
    for logits in (T, T.expand(4 * n * n, n, n)) if n < 5 else (T,):
        W = doubly_stochastic(logits)
        check_sums(W)
        # Where W is known to some digits, log W - T is f + g, so cross differences vanish.
        exact = W.double()
        known = exact > 1e6 * torch.finfo(dtype).eps
        scales = exact.clamp(min=1e-300).log() - logits.double()
        cross = scales[..., :, None, :, None] - scales[..., :, None, None, :]
        cross = cross - scales[..., None, :, :, None] + scales[..., None, :, None, :]
        rows = known[..., :, None, :, None] & known[..., :, None, None, :]
        rows = rows & known[..., None, :, :, None] & known[..., None, :, None, :]
        assert torch.where(rows, cross, 0).abs().max() <= 1e-4
        if n > 8:
            break


@pytest.mark.nightly
@given(n=st.integers(2, 8), dtype=st.sampled_from(REAL), seed=seeds)
@examples(10)
def test_it_is_the_limit_of_alternating_divisions(n, dtype, seed) -> None:
    T = normal((3, n, n), dtype, seed)
    error = (doubly_stochastic(T).double() - plain(T, 3000)).abs().max()
    assert error <= 30 * n * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("size", [100.0, 1e4, 1e30])
def test_every_finite_matrix_of_logits_gives_one(dtype, size) -> None:
    """Also beyond the limit, where logits far below the largest ones of their row and column count as -60."""
    for kind in KINDS:
        check_sums(doubly_stochastic(hard(kind, 6, size, 3).to(dtype)))
    largest = torch.finfo(dtype).max * torch.tensor([[1.0, -1.0], [1.0, -1.0]], dtype=dtype)
    assert torch.equal(doubly_stochastic(largest), torch.full((2, 2), 0.5, dtype=dtype))


def test_what_is_added_to_a_row_or_a_column_changes_nothing() -> None:
    T = normal((5, 5), torch.float64, 0)
    moved = T + 100 * normal((5, 1), torch.float64, 1) - 100 * normal((5,), torch.float64, 2)
    torch.testing.assert_close(doubly_stochastic(moved), doubly_stochastic(T), rtol=0, atol=1e-12)
    torch.testing.assert_close(doubly_stochastic(T.mT), doubly_stochastic(T).mT, rtol=0, atol=1e-14)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_a_product_of_60_has_the_norm_1(dtype, size) -> None:
    n, product = 4, torch.eye(4, dtype=dtype)
    for i in range(60):
        product = doubly_stochastic(size * normal((n, n), dtype, i)) @ product
    # One rounding more for each product.
    assert torch.linalg.matrix_norm(product.double(), 2) <= 1 + 60 * 8 * n * torch.finfo(dtype).eps


@pytest.mark.parametrize("size", [1.0, 6.0, 200.0])
@pytest.mark.turns(2)
def test_derivatives_of_first_and_second_order_are_exact(size) -> None:
    """Of one matrix, of a batch, and of logits beyond the limit."""
    T = size * normal((2, 3, 3), torch.float64, 4) / 3
    T.requires_grad_()
    modes = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(doubly_stochastic, (T,), fast_mode=True, **modes)
    assert gradgradcheck(doubly_stochastic, (T,), fast_mode=True)


def test_logits_beyond_the_limit_have_no_derivative() -> None:
    """Two rows have one column alone, so others of their entries count as -60 and are large all the same."""
    T = torch.tensor([[0.0, -1000, -1010], [0, -1020, -1000], [0, -1, -2]], dtype=torch.float64)
    T.requires_grad_()
    assert doubly_stochastic(T)[:2, 1:].min() > 0.1
    assert gradcheck(doubly_stochastic, (T,))
    (found,) = torch.autograd.grad(doubly_stochastic(T), T, normal((3, 3), torch.float64, 0))
    assert found[:2, 1:].abs().max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_in_single_precision_is_that_of_double_precision(kind) -> None:
    """To rounding of the gradient of W, however weakly rows and columns hang together."""
    n = 6
    for size in (1.0, 6.0, 30.0):
        T, G = hard(kind, n, size, 5).float(), normal((n, n), torch.float32, 6)
        found, expected = (
            torch.autograd.grad(doubly_stochastic(X), X, G.to(X.dtype))[0]
            for X in (T.requires_grad_(), T.detach().double().requires_grad_())
        )
        assert (found - expected).abs().max() <= 8 * n * torch.finfo(torch.float32).eps * G.abs().max()


def test_a_gradient_of_nearly_a_permutation_keeps_its_digits() -> None:
    """Its largest entry is 1e-26; differences of the gradient of W alone would leave 1e-7."""
    G = normal((3, 3), torch.float32, 7)
    found, expected = (
        torch.autograd.grad(doubly_stochastic(X), X, G.to(X.dtype))[0]
        for X in (60 * torch.eye(3, dtype=dtype, requires_grad=True) for dtype in REAL)
    )
    assert expected.abs().max() < 1e-25
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    for dim in (0, 1):  # What is added to a row or a column changes nothing.
        assert found.double().sum(dim).abs().max() <= 1e-5 * expected.abs().max()


def test_a_result_that_is_written_to_keeps_its_gradient() -> None:
    """As with torch's own functions, which raise or are right."""
    T, G = normal((3, 3), torch.float64, 0).requires_grad_(), normal((3, 3), torch.float64, 1)
    (expected,) = torch.autograd.grad(2 * doubly_stochastic(T), T, G)
    W = doubly_stochastic(T)
    W.mul_(2)
    (found,) = torch.autograd.grad(W, T, G)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("count", [2, 100])
def test_infinite_logits_give_nan_in_their_matrix_alone(value, count) -> None:
    T = normal((count, 3, 3), torch.float64, 8)
    expected = doubly_stochastic(T)
    T[1, 0, 2] = value
    W = doubly_stochastic(T.requires_grad_())
    assert W[1].isnan().all()
    others = torch.arange(count) != 1
    torch.testing.assert_close(W[others], expected[others], rtol=0, atol=1e-14)
    W[others].square().sum().backward()
    assert T.grad[others].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_single_precision_rounded(dtype) -> None:
    T = normal((2, 4, 4), torch.float32, 9).to(dtype).requires_grad_()
    W = doubly_stochastic(T)
    assert torch.equal(W, doubly_stochastic(T.float()).to(dtype))
    W.square().sum().backward()
    assert T.grad.dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_sums(doubly_stochastic(T.detach().float()))


def test_compiled_and_transformed() -> None:
    T, G = normal((5, 3, 3), torch.float64, 10), normal((5, 3, 3), torch.float64, 11)

    def gradient(function):
        X = T.clone().requires_grad_()
        return torch.autograd.grad(function(X), X, G)[0]

    expected, value = gradient(doubly_stochastic), doubly_stochastic(T)
    torch.compiler.reset()
    compiled = torch.compile(doubly_stochastic, fullgraph=True, backend="aot_eager")
    close = {"rtol": 0, "atol": 1e-13}
    torch.testing.assert_close(compiled(T), value, **close)
    torch.testing.assert_close(gradient(compiled), expected, **close)
    mapped = torch.func.vmap(doubly_stochastic)
    torch.testing.assert_close(mapped(T), value, **close)
    torch.testing.assert_close(gradient(mapped), expected, **close)
    found = torch.func.grad(lambda X: (doubly_stochastic(X) * G).sum())(T)
    torch.testing.assert_close(found, expected, **close)


@pytest.mark.nightly
@pytest.mark.parametrize("n", [3, 9])
def test_an_exported_program_has_operators_of_torch_alone(n) -> None:
    class Mixing(torch.nn.Module):
        def forward(self, T):
            return doubly_stochastic(T)

    T = normal((2, n, n), torch.float64, 12)
    program = torch.export.export(Mixing(), (T,))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all(name.startswith(("aten.", "<built-in", "_operator")) for name in names), names
    torch.testing.assert_close(program.module()(3 * T), doubly_stochastic(3 * T), rtol=0, atol=1e-12)


def test_one_row_and_arrays() -> None:
    assert torch.equal(doubly_stochastic(torch.tensor([[-3.0]])), torch.ones(1, 1))
    assert math.isclose(doubly_stochastic(torch.zeros(4, 4).numpy())[1, 2], 0.25, rel_tol=1e-6)


def test_other_input_is_refused() -> None:
    with refused("doubly_stochastic", error=NotSquareError):
        doubly_stochastic(torch.zeros(2, 3))
    with refused("doubly_stochastic", error=UnsupportedDtypeError):
        doubly_stochastic(torch.zeros(2, 2, dtype=torch.complex64))
    with refused("doubly_stochastic", error=UnsupportedDtypeError):
        doubly_stochastic(torch.zeros(2, 2, dtype=torch.int64))
    with refused("doubly_stochastic", error=NotAMatrixError):
        doubly_stochastic(torch.zeros(3))
