"""The recurrence: the fast path against the loop of autograd operations, output and every gradient."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from spectral_param._recurrence import fused, linear, reference
from spectral_param._recurrence.sequence import Cell, Rows
from spectral_param.functional import modrelu, rnn

NONLINEARITIES = ("modrelu", "relu", "tanh", "identity")
SIZES = ([3] * 7, [3, 3, 2, 2, 2, 1], [4, 1], [1], [2] * 2)
REAL, COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)
DEFINED = [(f, dtype) for f in NONLINEARITIES for dtype in REAL + COMPLEX if f != "relu" or dtype in REAL]
EXACT = [(f, dtype) for f, dtype in DEFINED if dtype in (torch.float64, torch.complex128)]


def covering(*axes):
    """The product of all axes but the last, each with one of the last axis' values in turn."""
    *crossed, last = axes
    return [(*case, value) for case, value in zip(itertools.product(*crossed), itertools.cycle(last))]


def rnn_reference(x, h0, U, W, b, nonlinearity, sizes):
    return reference.rnn_reference(Cell(U, W, b, nonlinearity), Rows(x, h0, sizes))


def rnn_fused(x, h0, U, W, b, nonlinearity, sizes, every=None, return_output=True, support=None):
    return fused.rnn_fused(Cell(U, W, b, nonlinearity, support), Rows(x, h0, sizes, every, return_output))


def rnn_linear(x, h0, U, W, b, top, return_output):
    rows = Rows(x, h0, [len(h0)] * (len(x) // len(h0)), None, return_output)
    return linear.rnn_linear(Cell(U, W, b, "identity"), rows, top)


def arguments(sizes, features, n, dtype, bias=True, linear=True, nonlinearity="modrelu"):
    def leaf(*shape, scale=1.0, dtype=dtype):
        return (scale * torch.randn(shape, dtype=dtype)).requires_grad_()

    dtype_of_bias = dtype.to_real() if nonlinearity == "modrelu" else dtype
    gain = 0.3 if dtype.is_complex and nonlinearity == "tanh" else 1.0  # away from its poles
    return (
        leaf(sum(sizes), features if linear else n, scale=0.5),
        leaf(sizes[0], n, scale=0.5),
        leaf(n, features, scale=gain) if linear else None,
        leaf(n, n, scale=gain * n**-0.5),
        leaf_of_bias(bias, leaf(n, scale=0.1, dtype=dtype_of_bias)),
    )


def leaf_of_bias(bias, mixed):
    """None, or a bias of mixed signs (True), or a negative one, for which modReLU has a way of its own."""
    if bias == "negative":
        mixed = (-mixed.detach().abs()).to(mixed.dtype).requires_grad_()
    return mixed if bias else None


def results(function, args, *rest, of=(0, 1), **kwargs):
    """Outputs, and every gradient of a random function of them."""
    outputs = function(*args, *rest, **kwargs)
    generator = torch.Generator().manual_seed(1)
    G = [torch.randn(outputs[i].shape, dtype=outputs[i].dtype, generator=generator) for i in of]
    G = [g.to(outputs[i].device) for g, i in zip(G, of, strict=True)]
    leaves = [a for a in args if a is not None and a.requires_grad]
    gradients = torch.autograd.grad([outputs[i] for i in of], leaves, G)
    return [*(outputs[i] for i in of), *gradients]


def assert_same(found, expected, tolerance=None) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


OPTIONS = [  # steps at a time, bias, whether there is an input map
    (1, True, True),
    (3, "negative", True),
    (100, False, False),
    (1, "negative", False),
    (3, False, True),
    (100, True, False),
    (100, "negative", True),
]


@pytest.mark.parametrize(
    ("defined", "sizes", "options"), covering(DEFINED, SIZES, OPTIONS), ids=lambda value: str(value)
)
def test_fast_equals_reference(defined, sizes, options, monkeypatch) -> None:
    (nonlinearity, dtype), (steps, bias, linear) = defined, options
    monkeypatch.setattr(fused, "_steps_in_cache", lambda *sizes: steps)
    args = arguments(sizes, 2, 5, dtype, bias, linear, nonlinearity)
    tolerance = 1e-12 if dtype in (torch.float64, torch.complex128) else 1e-4
    expected = results(rnn_reference, args, nonlinearity, sizes)
    assert_same(results(rnn_fused, args, nonlinearity, sizes), expected, tolerance)
    monkeypatch.setattr(fused, "SHORT_STATES", 0)  # As large networks, whose steps torch computes.
    assert_same(results(rnn_fused, args, nonlinearity, sizes), expected, tolerance)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_fast_equals_reference_whatever_is_asked_for(data) -> None:
    nonlinearity, dtype = data.draw(st.sampled_from(EXACT))
    sizes = sorted(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=9)), reverse=True)
    n, features = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    bias, linear = data.draw(st.sampled_from([False, True, "negative"])), data.draw(st.booleans())
    every, wants_all = data.draw(st.sampled_from([None, 1, 2, 5])), data.draw(st.booleans())
    cut = data.draw(st.integers(1, n))
    support = [(slice(0, cut), slice(0, n)), (slice(cut, n), slice(cut, n))][: 2 if cut < n else 1]
    args = arguments(sizes, features, n, dtype, bias, linear, nonlinearity)
    inside = torch.zeros(n, n, dtype=torch.bool)
    for rows, columns in support:
        inside[rows, columns] = True
    args[3].data.mul_(inside)
    starts = data.draw(st.booleans())
    if not starts:
        args[1].data.zero_()

    def without_start(x, h0, *rest, **kwargs):
        return rnn_fused(x, None, *rest, **kwargs)

    of = (0, 1) if wants_all else (1,)
    options = {"every": every, "return_output": wants_all, "support": support}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "SHORT_STATES", data.draw(st.sampled_from([0, 1000])))
        patch.setattr(fused, "BLOCKWISE_SIZE", data.draw(st.sampled_from([0, 1000])))
        patch.setattr(fused, "BLOCKWISE_ROWS", 0)
        if starts:
            found = results(rnn_fused, args, nonlinearity, sizes, of=of, **options)
        else:
            args[1].requires_grad_(False)
            found = results(without_start, args, nonlinearity, sizes, of=of, **options)
    expected = results(rnn_reference, args, nonlinearity, sizes, of=of)
    at = len(of) + [a is not None and a.requires_grad for a in args[:3]].count(True)
    # The gradient of W, which is not defined outside.
    found[at], expected[at] = found[at] * inside, expected[at] * inside
    assert_same(found, expected, 1e-11)


SUPPORTS = {
    "coupled": [(slice(0, 2), slice(0, 5)), (slice(2, 5), slice(2, 5))],
    "alone": [(slice(0, 3), slice(0, 3)), (slice(3, 5), slice(3, 5))],
    "three": [(slice(0, 1), slice(0, 4)), (slice(1, 2), slice(1, 5)), (slice(2, 5), slice(2, 5))],
}


@pytest.mark.parametrize(
    ("name", "defined", "options"),
    covering(SUPPORTS, EXACT, list(itertools.product(SIZES, [None, 2]))),
    ids=lambda value: str(value),
)
def test_zeros_outside_the_support_may_be_skipped(name, defined, options, monkeypatch) -> None:
    (nonlinearity, dtype), (sizes, checkpoint_every) = defined, options
    monkeypatch.setattr(fused, "BLOCKWISE_SIZE", 0)
    monkeypatch.setattr(fused, "BLOCKWISE_ROWS", 0)
    args = arguments(sizes, 2, 5, dtype, nonlinearity=nonlinearity)
    inside = torch.zeros(5, 5, dtype=torch.bool)
    for rows, columns in SUPPORTS[name]:
        inside[rows, columns] = True
    args[3].data.mul_(inside)
    found = results(rnn_fused, args, nonlinearity, sizes, checkpoint_every, support=SUPPORTS[name])
    expected = results(rnn_reference, args, nonlinearity, sizes)
    expected[5] = expected[5] * inside  # The gradient of W.
    assert_same(found, expected, 1e-12)
    # What is outside is not read.
    args[3].data.masked_fill_(~inside, 7.0)
    assert_same(results(rnn_fused, args, nonlinearity, sizes, support=SUPPORTS[name]), found, 1e-12)


def test_support_that_is_one_block(monkeypatch) -> None:
    monkeypatch.setattr(fused, "BLOCKWISE_SIZE", 0)
    args = arguments([2] * 3, 2, 150, torch.float64)
    args[3].data[:, 100:] = 0
    found = rnn(*args, batch_sizes=[2] * 3, support=[(slice(0, 150), slice(0, 100))])
    assert_same(found, rnn_reference(*args, "modrelu", [2] * 3), 1e-12)


@pytest.mark.parametrize("pair", [(slice(0, 2), slice(0, 4)), (slice(None), slice(0, 4, 2))])
def test_support_that_is_not_of_the_weight_is_refused(pair) -> None:
    args = arguments([2] * 3, 2, 4, torch.float32)
    with pytest.raises(ValueError, match="support"):
        rnn(*args, batch_sizes=[2] * 3, support=[pair])


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_gradient_of_one_output_alone(which, dtype, checkpoint_every) -> None:
    """Only the states, or only the last states, are used."""
    sizes = [3, 2, 2]
    args = arguments(sizes, 2, 4, dtype)
    found = results(rnn_fused, args, "modrelu", sizes, checkpoint_every, of=[which])
    assert_same(found, results(rnn_reference, args, "modrelu", sizes, of=[which]))


@pytest.mark.parametrize(("nonlinearity", "dtype"), EXACT)
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_derivatives_of_first_and_second_order_are_exact(nonlinearity, dtype, checkpoint_every) -> None:
    sizes = [2, 2, 1]
    args = arguments(sizes, 2, 3, dtype, nonlinearity=nonlinearity)

    def function(*args):
        return rnn_fused(*args, nonlinearity, sizes, checkpoint_every)

    assert gradcheck(function, args)
    assert gradgradcheck(function, args, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("bias", [-0.5, 0.0, 0.5])
def test_exact_zero_preactivation(dtype, bias) -> None:
    """modReLU with positive bias jumps at zero, where value and derivative are defined as zero."""
    args = [a.detach() for a in arguments([2] * 3, 2, 4, dtype)]
    args[0].zero_()
    args[1].zero_()
    args[4].fill_(bias)
    args = [a.requires_grad_() for a in args]
    found = results(rnn_fused, args, "modrelu", [2] * 3)
    assert (found[0] == 0).all()
    assert_same(found, results(rnn_reference, args, "modrelu", [2] * 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_modulus_exactly_at_the_threshold(dtype) -> None:
    """|z| = -b: the unit is off and has no derivative."""
    z = torch.tensor([[0.5, -0.5, 0.5, 0.75]], dtype=dtype)
    if dtype.is_complex:
        z[0, 2] = 0.5j
    args = [z, torch.zeros_like(z), None, torch.eye(4, dtype=dtype), torch.full((4,), -0.5).double()]
    args = [None if a is None else a.requires_grad_() for a in args]
    found = results(rnn_fused, args, "modrelu", [1])
    assert found[0].tolist() == [[0, 0, 0, 0.25]]
    assert found[2][0, :3].tolist() == [0, 0, 0]
    assert_same(found, results(rnn_reference, args, "modrelu", [1]))


@pytest.mark.parametrize(
    ("nonlinearity", "dtype", "value"),
    [
        (f, dtype, value)
        for f, dtype in EXACT
        for value in (math.nan, math.inf, -math.inf, -0.0)
        if not (dtype.is_complex and math.isinf(value))
        # inf · (1 + 0i) is NaN + NaN i or not, depending on who computes it
    ],
)
@pytest.mark.parametrize(("where", "bias"), [(0, True), (1, "negative"), (4, True), (4, "negative")])
def test_nan_and_infinity_go_where_they_go_in_the_reference(
    dtype, nonlinearity, value, where, bias, monkeypatch
) -> None:
    sizes = [2, 2, 1]
    args = [a.detach() for a in arguments(sizes, 2, 3, dtype, bias, nonlinearity=nonlinearity)]
    args[where].flatten()[1] = value
    for limit in (fused.SHORT_STATES, 0):
        monkeypatch.setattr(fused, "SHORT_STATES", limit)
        for found, expected in zip(
            rnn_fused(*args, nonlinearity, sizes), rnn_reference(*args, nonlinearity, sizes), strict=True
        ):
            torch.testing.assert_close(found, expected, equal_nan=True)
        assert found.isnan().any() or not math.isnan(value)


@pytest.mark.parametrize("scale", [1e-2, 1e-5, 1e-8, 1e-12])
def test_complex_modrelu_that_barely_starts_with_a_positive_bias(scale) -> None:
    """|h| - b is nothing but rounding here, and the derivative across the phase is b/|z|."""
    z = scale * torch.randn(100, 3, dtype=torch.complex64)
    state, W, b = torch.zeros_like(z), torch.zeros(3, 3, dtype=z.dtype), torch.full((3,), 0.1)
    G = torch.randn_like(z)

    def gradients(function, dtype):
        x, bias = z.to(dtype).requires_grad_(), b.to(dtype.to_real()).requires_grad_()
        h = function(x, state.to(dtype), None, W.to(dtype), bias, "modrelu", [100])[0]
        return torch.autograd.grad(h, (x, bias), G.to(dtype))

    for found, exact in zip(
        gradients(rnn_fused, torch.complex64), gradients(rnn_reference, torch.complex128), strict=True
    ):
        assert (found - exact).abs().max() <= 1e-6 * exact.abs().max()


def test_the_bias_of_a_complex_modrelu_may_be_complex() -> None:
    """Module.to makes it so; its real part counts, and only that has a gradient."""
    args = arguments([2] * 3, 2, 3, torch.complex128)
    x, h0, U, W, b = (a.detach() for a in args)
    x, b = x.unflatten(0, (3, 2)), torch.complex(b, torch.ones_like(b)).requires_grad_()
    output = rnn(x, h0, U, W, b)[0]
    torch.testing.assert_close(output, rnn(x, h0, U, W, b.real)[0])
    (gradient,) = torch.autograd.grad(output.abs().sum(), b)
    (expected,) = torch.autograd.grad(rnn(x, h0, U, W, b.real)[0].abs().sum(), b)
    assert (gradient.imag == 0).all()
    torch.testing.assert_close(gradient, expected)


def test_a_real_bias_of_other_complex_activations() -> None:
    x, h0, U, W, b = arguments([2] * 3, 2, 3, torch.complex128)
    x = x.detach().unflatten(0, (3, 2))
    output = rnn(x, h0, U, W, b, "tanh")[0]
    expected = rnn(x, h0, U, W, b, torch.tanh)[0]
    G = torch.randn_like(output)
    assert_same(torch.autograd.grad(output, b, G), torch.autograd.grad(expected, b, G))


def test_lazily_conjugated_and_transposed_arguments() -> None:
    sizes = [2] * 3
    x, h0, U, W, b = (a.detach() for a in arguments(sizes, 3, 3, torch.complex128))
    lazy = [x.conj(), h0.conj(), U.mH, W.mH]
    args = [t.requires_grad_() for t in (*lazy, b)]
    physical = [t.detach().resolve_conj().clone().requires_grad_() for t in (*lazy, b)]
    found = results(rnn_fused, args, "modrelu", sizes)
    assert_same(found, results(rnn_reference, physical, "modrelu", sizes))


def test_complex_relu_is_refused() -> None:
    x, h0, U, W, _ = arguments([2] * 3, 2, 3, torch.complex64)
    with pytest.raises(ValueError, match=r"defined for torch.complex64, got 'relu'. Take 'modrelu'"):
        rnn(x.unflatten(0, (3, 2)), h0, U, W, None, "relu")


@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh", torch.tanh])
def test_who_takes_the_fast_path(dtype, nonlinearity) -> None:
    args = arguments([2] * 3, 2, 3, dtype, nonlinearity=nonlinearity)
    output, _ = rnn(*args, nonlinearity, [2] * 3)
    assert (output.grad_fn.name() == "_RecurrenceBackward") == isinstance(nonlinearity, str)


def test_gradient_that_is_none_altogether() -> None:
    class Swallow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return None

    args = arguments([2] * 3, 2, 3, torch.float64)
    for create_graph in (False, True):
        swallowed = Swallow.apply(rnn_fused(*args, "modrelu", [2] * 3)[0])
        gradients = torch.autograd.grad(
            swallowed.sum(), args, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
        assert all((g == 0).all() for g in gradients)


# Checkpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpoint_every", "nonlinearity", "dtype", "options"),
    covering(
        [1, 2, 3, 100, "auto"],
        ["modrelu", "tanh", torch.tanh],
        [torch.float64, torch.complex128],
        [*zip(SIZES, itertools.cycle([True, False])), (SIZES[0], False), (SIZES[1], True)],
    ),
)
def test_checkpoints_change_nothing(checkpoint_every, nonlinearity, dtype, options) -> None:
    sizes, linear = options
    args = arguments(sizes, 2, 5, dtype, linear=linear, nonlinearity=nonlinearity)
    expected = results(rnn, args, nonlinearity, sizes)
    assert_same(results(rnn, args, nonlinearity, sizes, checkpoint_every=checkpoint_every), expected, 1e-12)


@pytest.mark.parametrize("checkpoint_every", [None, 2])
@pytest.mark.parametrize("nonlinearity", ["modrelu", torch.tanh])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("sizes", [[3] * 5, [3, 2, 2, 1]], ids=str)
def test_last_states_are_the_same_without_the_output(checkpoint_every, nonlinearity, dtype, sizes) -> None:
    args = arguments(sizes, 2, 4, dtype, nonlinearity=nonlinearity)
    options = {"checkpoint_every": checkpoint_every, "return_output": False}
    assert rnn(*args, nonlinearity, sizes, **options)[0] is None
    found = results(rnn, args, nonlinearity, sizes, of=[1], **options)
    assert_same(found, results(rnn, args, nonlinearity, sizes, of=[1]), 1e-12)
    with torch.no_grad():
        assert_same([rnn(*args, nonlinearity, sizes, **options)[1]], found[:1], 1e-12)


def test_states_are_free_with_checkpoints_and_kept_without() -> None:
    """What backward needs is the caller's tensor itself without checkpoints, and not with them."""
    for checkpoint_every in (None, 2):
        args = arguments([2] * 5, 2, 3, torch.float64)
        output, last = rnn(*args, "modrelu", [2] * 5, checkpoint_every=checkpoint_every)
        with torch.no_grad():
            output.zero_()
        if checkpoint_every is None:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                last.sum().backward()
        else:
            last.sum().backward()


def test_checkpoints_of_a_custom_activation_compute_it_again() -> None:
    calls = []

    def activation(z):
        calls.append(len(z))
        return torch.tanh(z)

    args = arguments([2] * 6, 2, 3, torch.float64)
    _, last = rnn(*args, activation, [2] * 6, checkpoint_every=2)
    assert len(calls) == 6
    last.sum().backward()
    assert len(calls) == 12


@pytest.mark.parametrize("nonlinearity", ["modrelu", torch.tanh])
def test_checkpoints_inside_transforms(nonlinearity) -> None:
    x, h0, U, W, b = (a.detach() for a in arguments([2] * 4, 2, 3, torch.float64, nonlinearity=nonlinearity))

    def loss(W, checkpoint_every=2):
        return rnn(x, h0, U, W, b, nonlinearity, [2] * 4, checkpoint_every=checkpoint_every)[1].square().sum()

    W.requires_grad_()
    (expected,) = torch.autograd.grad(loss(W, None), W)
    torch.testing.assert_close(torch.func.grad(loss)(W.detach()), expected)
    torch.testing.assert_close(torch.autograd.grad(loss(W), W, create_graph=True)[0], expected)
    assert gradgradcheck(loss, W, fast_mode=True)


@pytest.mark.parametrize("checkpoint_every", [0, -3, 2.0, "sqrt"])
def test_distance_of_checkpoints_out_of_range_is_named(checkpoint_every) -> None:
    args = arguments([2] * 4, 2, 3, torch.float64)
    with pytest.raises(ValueError, match="checkpoint_every: expected a positive number of steps, 'auto'"):
        rnn(*args, "modrelu", [2] * 4, checkpoint_every=checkpoint_every)


# ---------------------------------------------------------------------------------------------------


def test_only_what_is_needed_gets_a_gradient() -> None:
    args = arguments([2] * 4, 2, 3, torch.float64)
    for i, leaf in enumerate(args):
        frozen = [a.detach() if j != i else a for j, a in enumerate(args)]
        output, _ = rnn_fused(*frozen, "tanh", [2] * 4)
        (fast,) = torch.autograd.grad(output.sum(), leaf)
        (reference,) = torch.autograd.grad(rnn_reference(*args, "tanh", [2] * 4)[0].sum(), leaf)
        torch.testing.assert_close(fast, reference)


def test_double_backward_with_unused_and_frozen_inputs() -> None:
    args = list(arguments([2] * 3, 2, 3, torch.float64))
    args[0] = args[0].detach()
    args[4] = None
    wanted = [args[1], args[2], args[3]]

    def second(function):
        output = function(*args, "tanh", [2] * 3)[0]
        first = torch.autograd.grad(output.square().sum(), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), wanted)

    for a, b in zip(second(rnn_fused), second(rnn_reference), strict=True):
        torch.testing.assert_close(a, b)


def test_one_matrix_in_both_roles_with_create_graph() -> None:
    x, h0, _, W, b = arguments([2] * 4, 3, 3, torch.float64)
    outputs = [
        torch.autograd.grad(
            rnn(x.unflatten(0, (4, 2)), h0, W, W, b)[0].square().sum(), W, create_graph=create_graph
        )[0]
        for create_graph in (False, True)
    ]
    torch.testing.assert_close(*outputs)


def test_torch_func_takes_the_reference_path() -> None:
    x, h0, U, W, b = (a.detach() for a in arguments([2] * 4, 2, 3, torch.float64))
    x = x.unflatten(0, (4, 2))

    def loss(W):
        return rnn(x, h0, U, W, b)[0].square().sum()

    W.requires_grad_()
    (eager,) = torch.autograd.grad(loss(W), W)
    torch.testing.assert_close(torch.func.grad(loss)(W.detach()), eager)


def test_function_of_ones_own_is_an_activation() -> None:
    x, h0, U, W, b = arguments([2] * 4, 2, 3, torch.float64)
    x = x.unflatten(0, (4, 2))
    named = rnn(x, h0, U, W, b, "tanh")[0]
    torch.testing.assert_close(rnn(x, h0, U, W, b, torch.tanh)[0], named)


def test_complex_states_have_exact_gradients() -> None:
    args = arguments([2] * 3, 2, 3, torch.complex128, bias=False)
    bias = torch.full((3,), -0.01, dtype=torch.float64, requires_grad=True)
    x, h0, U, W, _ = args

    def function(x, h0, U, W, bias):
        return rnn(x.unflatten(0, (3, 2)), h0, U, W, bias, "modrelu")

    assert gradcheck(function, (x, h0, U, W, bias))


def test_dense_equals_a_loop_in_plain_sight() -> None:
    T, B, m, n = 5, 2, 3, 4
    x, h, U, W = torch.randn(T, B, m), torch.randn(B, n), torch.randn(n, m), torch.randn(n, n)
    output, last = rnn(x, h, U, W, None, "tanh")
    for t in range(T):
        h = torch.tanh(x[t] @ U.mT + h @ W.mT)
        torch.testing.assert_close(output[t], h)
    torch.testing.assert_close(last, h)


def test_names_and_shapes_that_do_not_fit_are_refused() -> None:
    x, h0, U, W = torch.randn(2, 1, 3), torch.zeros(1, 4), torch.zeros(4, 3), torch.zeros(4, 4)
    with pytest.raises(ValueError, match="expected one of modrelu, relu, tanh, identity"):
        rnn(x, h0, U, W, nonlinearity="gelu")
    with pytest.raises(ValueError, match="sequence of length 0"):
        rnn(x[:0], h0, U, W)
    with pytest.raises(ValueError, match=r"h0 of shape \(batch, n\) = \(1, 4\), got \(5, 4\)"):
        rnn(x, h0.expand(5, 4), U, W)
    with pytest.raises(ValueError, match=r"x of shape \(rows, m\) = \(2, 4\), .* got \(2, 3\)"):
        rnn(x, h0, None, W)
    with pytest.raises(ValueError, match=r"x of shape \(rows, m\) = \(1, 3\), .* got \(2, 3\)"):
        rnn(x.flatten(0, 1), h0, U, W, batch_sizes=[1])
    with pytest.raises(ValueError, match=r"batch_sizes that do not increase, got \[1, 2\]"):
        rnn(torch.randn(3, 3), h0, U, W, nonlinearity=torch.sin, batch_sizes=[1, 2])
    with pytest.raises(ValueError, match=r"weight_ih of shape \(n, m\) = \(4, 3\), got \(1, 3\)"):
        rnn(x, h0, U[:1], W)
    with pytest.raises(ValueError, match=r"weight_hh of shape \(n, n\) = \(4, 4\), got \(1, 4\)"):
        rnn(x, h0, U, W[:1], nonlinearity=torch.sin)
    with pytest.raises(ValueError, match=r"bias of shape \(n,\) = \(4,\), got \(1,\)"):
        rnn(x, h0, U, W, torch.zeros(1))
    with pytest.raises(
        ValueError, match=r"x of shape \(T, B, m\), or \(rows, m\) with batch_sizes, got \(3,\)"
    ):
        rnn(x[0, 0], h0, U, W)
    with pytest.raises(
        ValueError, match="batch_sizes: expected a list of integers, one for each step, got 2"
    ):
        rnn(x.flatten(0, 1), h0, U, W, batch_sizes=2)


def test_other_kinds_of_arguments_are_refused() -> None:
    x, h0, U, W = torch.randn(2, 1, 3), torch.zeros(1, 4), torch.zeros(4, 3), torch.zeros(4, 4)
    for i, name in enumerate(["x", "h0", "weight_ih", "weight_hh", "bias"]):
        arguments = [x, h0, U, W, torch.zeros(4)]
        arguments[i] = 0.5
        with pytest.raises(ValueError, match=f"rnn: {name}: expected a tensor, got a value of type float"):
            rnn(*arguments)
    for support in ("all", [(0, 4)], [slice(0, 4)]):
        with pytest.raises(ValueError, match="support of pairs of slices"):
            rnn(x, h0, U, W, support=support)
    with pytest.raises(ValueError, match=r"x in the dtype of weight_ih, torch.float32, got torch.int64"):
        rnn(x.long(), h0, U, W)
    with pytest.raises(ValueError, match=r"Convert one of them: h0.to\(weight_hh.dtype\)"):
        rnn(x, h0, U, W.double())


def test_a_recurrence_takes_arrays() -> None:
    x, h0, U, W = torch.randn(2, 1, 3), torch.zeros(1, 4), torch.randn(4, 3), torch.randn(4, 4)
    found = rnn(*(t.numpy() for t in (x, h0, U, W)))
    for a, b in zip(found, rnn(x, h0, U, W), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_modrelu_is_its_formula_with_exact_derivatives(dtype) -> None:
    z = torch.randn(6, 5, dtype=dtype, requires_grad=True)
    bias = (0.3 * torch.randn(5, dtype=torch.float64)).requires_grad_()
    with torch.no_grad():
        expected = torch.where(z.abs() + bias > 0, z / z.abs() * (z.abs() + bias), 0)
        torch.testing.assert_close(modrelu(z, bias), expected)
    assert gradcheck(modrelu, (z, bias))
    assert gradgradcheck(modrelu, (z, bias), fast_mode=True)


def test_modrelu_at_zero() -> None:
    z = torch.zeros(3, requires_grad=True)
    y = modrelu(z, torch.tensor([-1.0, 0.0, 1.0]))
    y.sum().backward()
    assert (y == 0).all()
    assert (z.grad == 0).all()


@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_recurrent_matrix_as_a_function(checkpoint_every) -> None:
    x, h0 = torch.randn(5, 3, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    U, W = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    expected = rnn(x, h0, U, W)
    actual = rnn(x, h0, U, lambda h: h @ W.mT, checkpoint_every=checkpoint_every)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)
        gradients = (torch.autograd.grad(r.square().sum(), W, retain_graph=True)[0] for r in (a, e))
        torch.testing.assert_close(*gradients)


def test_gradients_mapped_over_keep_no_graph() -> None:
    x, h0 = torch.randn(5, 1, 2), torch.zeros(1, 3)
    U, W = torch.randn(3, 2), torch.randn(3, 3, requires_grad=True)
    _, last = rnn(x, h0, U, W)
    directions = torch.eye(3)[:, None]
    (jacobian,) = torch.autograd.grad(last, W, directions, is_grads_batched=True, retain_graph=True)
    assert not jacobian.requires_grad
    expected = [torch.autograd.grad(last, W, g, retain_graph=True)[0] for g in directions]
    torch.testing.assert_close(jacobian, torch.stack(expected))
    assert torch.autograd.grad(last, W, directions, is_grads_batched=True, create_graph=True)[0].requires_grad


@pytest.mark.parametrize("sizes", [[3] * 4, [3, 3, 2, 1]], ids=str)
@pytest.mark.parametrize(("nonlinearity", "dtype"), EXACT)
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_no_step_asks_for_numbers_or_for_the_cpu(sizes, nonlinearity, dtype, checkpoint_every) -> None:
    """On the meta device as on a GPU: nothing waits for a number, and no tensor is made on the CPU."""
    args = arguments(sizes, 2, 5, dtype, nonlinearity=nonlinearity)
    meta = [a.detach().to("meta").requires_grad_() for a in args]
    found = results(rnn, meta, nonlinearity, sizes, checkpoint_every=checkpoint_every)
    assert [t.shape for t in found[2:]] == [a.shape for a in args]
    assert all(t.is_meta for t in found)


# No activation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("j", "steps", "of", "options"),
    covering(
        [1, 2, 4],
        [16, 23, 37],
        [(0, 1), (0,), (1,)],
        [
            (torch.float64, True, True),
            (torch.complex128, False, True),
            (torch.complex128, True, False),
            (torch.float64, False, False),
        ],
    ),
)
def test_many_linear_steps_equal_the_reference(j, steps, of, options) -> None:
    dtype, bias, linear = options
    sizes = [3] * steps
    args = arguments(sizes, 2, 5, dtype, bias, linear, "identity")
    found = results(rnn_linear, args, j, 0 in of, of=of)
    assert_same(found, results(rnn_reference, args, "identity", sizes, of=of), 1e-11)


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
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

    def spied(cell, rows):
        calls.append(linear.exponent(cell, rows))
        return run(cell, rows)

    monkeypatch.setattr(linear, "rnn_linear", spied)
    return calls


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


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize(
    "W",
    [
        torch.diag(torch.ones(7), 1),  # nilpotent
        torch.eye(8) + torch.diag(torch.ones(7), 1),  # powers grow like t^7
        torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))[0],
        1e-20 * torch.ones(8, 8),
        -torch.eye(8),
    ],
    ids=["nilpotent", "Jordan", "orthogonal", "tiny", "minus one"],
)
def test_many_linear_steps_of_adversarial_matrices(W, return_output, taken) -> None:
    x, h0, U, *_ = arguments([2] * 3000, 2, 8, torch.float64, nonlinearity="identity")
    args = (x, h0, U, W.double().requires_grad_(), None)
    found = results(rnn, args, "identity", [2] * 3000, return_output=return_output, of=(1,))
    assert taken
    expected = results(rnn_fused, args, "identity", [2] * 3000, of=(1,))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10 * float(b.detach().abs().max()), rtol=0)


OVERFLOWS = {
    # Its second unit would explode, but nothing ever reaches it.
    "radius": torch.diag(torch.tensor([0.5, 1e20])),
    # Its square overflows, the fourth power is zero.
    "transient": torch.tensor([[0.0, 1e30, 0.0], [0.0, 0.0, 1e30], [0.0, 0.0, 0.0]]),
}


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize("W", OVERFLOWS.values(), ids=OVERFLOWS)
def test_powers_that_overflow_leave_states_as_they_are(W, return_output, taken) -> None:
    n = len(W)
    x, h0, U = torch.ones(1003, 1, 1), torch.zeros(1, n), torch.eye(n)[:, :1]
    output, last = rnn(x, h0, U, W, nonlinearity="identity", return_output=return_output)
    expected = rnn_fused(x[:, 0], h0, U, W, None, "identity", [1] * 1003)
    assert taken
    assert expected[0].isfinite().all()
    torch.testing.assert_close(last, expected[1], rtol=0, atol=0)
    if output is not None:
        torch.testing.assert_close(output[:, 0], expected[0], rtol=0, atol=0)


@pytest.mark.parametrize("return_output", [True, False])
def test_a_sequence_with_nan_does_not_touch_another(return_output, taken) -> None:
    x, h0, U, W, b = arguments([2] * 3000, 2, 8, torch.float64, nonlinearity="identity")
    with torch.no_grad():
        expected = rnn(x, h0, U, W, b, "identity", [2] * 3000)
        x[2 * 1500 + 1] = math.nan
        output, last = rnn(x, h0, U, W, b, "identity", [2] * 3000, return_output=return_output)
    assert taken
    torch.testing.assert_close(last[0], expected[1][0])
    assert last[1].isnan().all()
    if output is not None:
        torch.testing.assert_close(output[::2], expected[0][::2])
        assert output[1::2][:1500].isfinite().all()
        assert output[1::2][1500:].isnan().all()


@pytest.mark.parametrize("return_output", [True, False])
def test_many_orthogonal_steps_are_as_exact_as_one_after_the_other(return_output, taken) -> None:
    W = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64))[0]
    x, U = torch.randn(5000, 1, 2).double(), torch.randn(16, 2).double()
    args = (x[:, 0], torch.zeros(1, 16).double(), U, W.float().double())
    single = [a.float() for a in args]
    exact = rnn_fused(*args, None, "identity", [1] * 5000)[1]
    loop = rnn_fused(*single, None, "identity", [1] * 5000)[1]
    many = rnn(*single, None, "identity", [1] * 5000, return_output=return_output)[1]
    assert taken
    errors = [float((h.double() - exact).norm() / exact.norm()) for h in (many, loop)]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("return_output", [True, False])
def test_many_linear_steps_under_autocast(return_output, taken) -> None:
    x, h0, U, W, b = arguments([2] * 3000, 2, 8, torch.float32, nonlinearity="identity")
    W = (W / torch.linalg.matrix_norm(W, 2)).detach().requires_grad_()
    args = (x, h0, U, W, b)
    options = {"return_output": return_output, "of": (1,)}
    with torch.autocast("cpu", torch.bfloat16):
        found = results(rnn, args, "identity", [2] * 3000, **options)
    assert taken
    assert all(t.isfinite().all() for t in found)
    for a, b in zip(found, results(rnn, args, "identity", [2] * 3000, **options), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_linear_steps_in_half_precision(return_output, dtype, taken) -> None:
    x, h0, U, W, _ = (t.detach() for t in arguments([1] * 2000, 2, 8, torch.float32, nonlinearity="identity"))
    args = [t.to(dtype) for t in (x, h0, U, W / torch.linalg.matrix_norm(W, 2))]
    exact = rnn_fused(*(t.double() for t in args), None, "identity", [1] * 2000)[1]
    errors = [
        float((run(*args, None, "identity", [1] * 2000, return_output=return_output)[1] - exact).norm())
        for run in (rnn, rnn_fused)
    ]
    assert taken
    assert errors[0] <= 2 * errors[1]


def test_many_linear_steps_of_an_input_that_the_bias_removes(taken) -> None:
    """With W = 1, as an integrator: U x + b is small in each step, and neither U x nor b is."""
    noise = 1e-3 * torch.randn(4096, 1)
    x, one = noise - 4, torch.ones(1, 1)
    args = (x, torch.zeros(1, 1), one, one, torch.tensor([4.0]))
    last = rnn(*args, "identity", [1] * 4096, return_output=False)[1]
    assert taken
    torch.testing.assert_close(last[0, 0].double(), (x.double() + 4).sum(), rtol=0, atol=1e-5)


def test_the_last_state_is_not_part_of_all_states(taken) -> None:
    args = arguments([2] * 3000, 2, 8, torch.float64, nonlinearity="identity")
    output, last = rnn(*args, "identity", [2] * 3000)
    assert taken
    assert last.untyped_storage().nbytes() == last.nbytes
    torch.testing.assert_close(output[-2:], last, rtol=0, atol=0)
    last.detach_().zero_()
    assert output[-2:].all()


def test_long_linear_recurrences_without_numbers() -> None:
    args = [torch.randn(400, 1, 2), torch.zeros(1, 8), torch.randn(8, 2), 0.5 * torch.eye(8)]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        output, last = rnn(*(mode.from_tensor(t) for t in args), nonlinearity="identity")
    assert (output.shape, last.shape) == ((400, 1, 8), (1, 8))
    x, *rest = args
    traced = make_fx(lambda *args: rnn(*args, nonlinearity="identity", return_output=False)[1])(
        x[:200], *rest
    )
    expected = rnn_fused(x[:200, 0], *rest, None, "identity", [1] * 200)[1]
    torch.testing.assert_close(traced(x[:200], *rest), expected)


def test_the_number_of_linear_steps_at_a_time_fits() -> None:
    lengths, batches = [1, 2, 3, 10, 100, 10_000], [1, 100, 10_000, 1_000_000]
    for steps, batch, n, wants_all in itertools.product(lengths, batches, [1, 64, 1024], [True, False]):
        top = linear.fastest_exponent(steps, batch, 1, n, wants_all)
        assert top is None or 1 <= 1 << top <= steps


def test_one_linear_step_of_many_sequences() -> None:
    args = arguments([4000], 1, 64, torch.float64, nonlinearity="identity")
    found = rnn(*args, "identity", [4000], return_output=False)
    assert_same(found[1:], rnn_reference(*args, "identity", [4000])[1:], 1e-12)
