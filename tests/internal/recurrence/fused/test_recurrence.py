"""The recurrence: the fast path against the loop of autograd operations, output and every gradient."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param import _paths
from spectral_param._recurrence import linear, node, reference
from spectral_param._recurrence.sequence import Cell, Rows
from spectral_param.functional import rnn
from tests.properties import examples
from tests.recurrences import arguments, assert_same, results

NONLINEARITIES = ("modrelu", "relu", "tanh", "identity")
REAL, COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)
EXACT = [
    (f, dtype)
    for f in NONLINEARITIES
    for dtype in (torch.float64, torch.complex128)
    if f != "relu" or not dtype.is_complex
]


def rnn_reference(x, h0, U, W, b, nonlinearity, sizes):
    return reference.rnn_reference(Cell(U, W, b, nonlinearity), Rows(x, h0, sizes))


def rnn_fused(x, h0, U, W, b, nonlinearity, sizes, every=None, return_output=True):
    return node.rnn_fused(Cell(U, W, b, nonlinearity), Rows(x, h0, sizes, every, return_output))


def rnn_linear(x, h0, U, W, b, top, return_output):
    rows = Rows(x, h0, [len(h0)] * (len(x) // len(h0)), None, return_output)
    return linear.rnn_linear(Cell(U, W, b, "identity"), rows, top)


@examples(25)
@given(data=st.data())
def test_fast_equals_reference_whatever_is_asked_for(data) -> None:
    nonlinearity, dtype = data.draw(st.sampled_from(EXACT))
    sizes = sorted(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=9)), reverse=True)
    n, features = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    bias, linear = data.draw(st.sampled_from([False, True, "negative"])), data.draw(st.booleans())
    every, wants_all = data.draw(st.sampled_from([None, 1, 2, 5])), data.draw(st.booleans())
    args = arguments(sizes, features, n, dtype, bias, linear, nonlinearity)
    starts = data.draw(st.booleans())
    if not starts:
        args[1].data.zero_()

    def without_start(x, h0, *rest, **kwargs):
        return rnn_fused(x, None, *rest, **kwargs)

    of = (0, 1) if wants_all else (1,)
    options = {"every": every, "return_output": wants_all}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_paths, "NUMPY_STATES", data.draw(st.sampled_from([0, 1000])))
        if starts:
            found = results(rnn_fused, args, nonlinearity, sizes, of=of, **options)
        else:
            args[1].requires_grad_(False)
            found = results(without_start, args, nonlinearity, sizes, of=of, **options)
    expected = results(rnn_reference, args, nonlinearity, sizes, of=of)
    assert_same(found, expected, 1e-11)


@pytest.mark.parametrize(("nonlinearity", "dtype"), EXACT)
def test_nan_and_infinity_go_where_they_go_in_the_reference(nonlinearity, dtype, monkeypatch) -> None:
    sizes = [2, 2, 1]
    # inf · (1 + 0i) is NaN + NaN i or not, depending on who computes it.
    values = (math.nan, -0.0) if dtype.is_complex else (math.nan, math.inf, -math.inf, -0.0)
    places = ((0, True), (1, "negative"), (4, True), (4, "negative"))
    for value, (where, bias) in itertools.product(values, places):
        args = [a.detach() for a in arguments(sizes, 2, 3, dtype, bias, nonlinearity=nonlinearity)]
        args[where].flatten()[1] = value
        expected = rnn_reference(*args, nonlinearity, sizes)
        for limit in (0, 1024):
            monkeypatch.setattr(_paths, "NUMPY_STATES", limit)
            found = rnn_fused(*args, nonlinearity, sizes)
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)
            assert any(a.isnan().any() for a in found) or not math.isnan(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("nonlinearity", ["modrelu", torch.tanh])
def test_who_takes_the_fast_path(dtype, nonlinearity) -> None:
    args = arguments([2] * 3, 2, 3, dtype, nonlinearity=nonlinearity)
    output, _ = rnn(*args, nonlinearity, [2] * 3)
    assert (output.grad_fn.name() == "_RecurrenceBackward") == isinstance(nonlinearity, str)


@examples(12)
@given(
    j=st.sampled_from([1, 2, 4]),
    steps=st.sampled_from([16, 23, 37]),
    of=st.sampled_from([(0, 1), (0,), (1,)]),
    dtype=st.sampled_from([torch.float64, torch.complex128]),
    bias=st.booleans(),
    linear=st.booleans(),
)
def test_many_linear_steps_equal_the_reference(j, steps, of, dtype, bias, linear) -> None:
    sizes = [3] * steps
    args = arguments(sizes, 2, 5, dtype, bias, linear, "identity")
    found = results(rnn_linear, args, j, 0 in of, of=of)
    assert_same(found, results(rnn_reference, args, "identity", sizes, of=of), 1e-11)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "return_output"),
    [
        (torch.float64, True),
        (torch.complex128, False),
        pytest.param(torch.float64, False, marks=pytest.mark.nightly),
        pytest.param(torch.complex128, True, marks=pytest.mark.nightly),
    ],
)
def test_derivatives_of_many_linear_steps(return_output, dtype) -> None:
    args = arguments([2] * 7, 1, 2, dtype, nonlinearity="identity")

    def run(*args):
        return tuple(t for t in rnn_linear(*args, 2, return_output) if t is not None)

    assert gradcheck(run, args, check_batched_grad=True)
    assert gradgradcheck(run, args, fast_mode=True)


@pytest.fixture
def taken(monkeypatch) -> list[int]:
    """The numbers of steps that were taken at a time, as exponents."""
    calls = []

    run = linear.rnn_linear

    def spied(cell, rows, top):
        calls.append(top)
        return run(cell, rows, top)

    monkeypatch.setattr(linear, "rnn_linear", spied)
    return calls


@pytest.mark.nightly
@pytest.mark.parametrize("return_output", [True, False])
def test_who_takes_many_steps(return_output, taken) -> None:
    sizes = [2] * 800
    args = arguments(sizes, 2, 8, torch.float64, nonlinearity="identity")
    found = results(rnn, args, "identity", sizes, return_output=return_output, of=(1,))
    assert len(taken) == 1
    assert 2 <= taken[0] <= 11
    assert_same(found, results(rnn_fused, args, "identity", sizes, of=(1,)), 1e-10)
    x, *rest = args
    both = [rnn(x.unflatten(0, (800, 2)), *rest, "identity", return_output=return_output)[1], found[0]]
    assert_same(both[:1], both[1:], 1e-13)
    assert len(taken) == 2
    torch.func.vmap(lambda h: rnn(x, h, *rest[1:], "identity", sizes)[1])(rest[0][None])
    rnn(*args, "identity", sizes, checkpoint_every=2)
    rnn(
        *arguments([2] * 799 + [1], 2, 8, torch.float64, nonlinearity="identity"),
        "identity",
        [2] * 799 + [1],
    )
    rnn(*args, "tanh", sizes)
    rnn(*(None if a is None else a.to("meta") for a in args), "identity", sizes)
    rnn(x[:20], *rest, "identity", [2] * 10, return_output=return_output)
    assert len(taken) == 2
    rnn(*args, "identity", sizes, checkpoint_every=2, return_output=False)
    assert len(taken) == 3


def test_the_number_of_linear_steps_at_a_time_fits() -> None:
    lengths, batches = [1, 2, 3, 10, 100, 10_000], [1, 100, 10_000, 1_000_000]
    for steps, batch, n, wants_all in itertools.product(lengths, batches, [1, 64, 1024], [True, False]):
        x, U = torch.empty(1, device="meta").expand(steps * batch, 1), torch.empty(n, 1, device="meta")
        rows = Rows(x, None, [batch] * steps, None, wants_all)
        top = linear.exponent(Cell(U, U.expand(n, n), None, "identity"), rows)
        assert top is None or 1 <= 1 << top <= steps
