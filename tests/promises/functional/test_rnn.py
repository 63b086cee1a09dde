"""The recurrence: a named activation gives what its function gives in a loop, outputs and every gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from spectral_param.functional import modrelu, rnn
from tests.properties import examples
from tests.recurrences import arguments, assert_same, results

REAL, COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)
DEFINED = [
    (f, dtype)
    for f in ("modrelu", "relu", "tanh", "identity")
    for dtype in REAL + COMPLEX
    if f != "relu" or dtype in REAL
]
EXACT = [(f, dtype) for f, dtype in DEFINED if dtype in (torch.float64, torch.complex128)]


def loop(x, h0, U, W, b, nonlinearity, sizes):
    """The recurrence with a function for an activation: step by step, with autograd's derivatives."""
    function = {
        "modrelu": lambda z: z if b is None else modrelu(z, b),
        "relu": torch.relu,
        "tanh": torch.tanh,
        "identity": lambda z: z,
    }[nonlinearity]
    return rnn(x, h0, U, W, None if nonlinearity == "modrelu" else b, function, sizes)


@examples(30)
@given(data=st.data())
def test_a_named_activation_gives_what_its_function_gives(data) -> None:
    nonlinearity, dtype = data.draw(st.sampled_from(DEFINED))
    # Short sequences of few states are computed in another way than large ones.
    n = data.draw(st.one_of(st.integers(1, 9), st.sampled_from([40, 70])))
    most = data.draw(st.sampled_from([5, 40]))
    sizes = sorted(data.draw(st.lists(st.integers(1, most), min_size=1, max_size=9)), reverse=True)
    features = data.draw(st.integers(1, 4))
    bias, linear = data.draw(st.sampled_from([False, True, "negative"])), data.draw(st.booleans())
    every, wants_all = data.draw(st.sampled_from([None, 1, 2, 5, "auto"])), data.draw(st.booleans())
    args = arguments(sizes, features, n, dtype, bias, linear, nonlinearity)
    of = (0, 1) if wants_all else (1,)

    options = {"checkpoint_every": every, "return_output": wants_all}
    found = results(rnn, args, nonlinearity, sizes, of=of, **options)
    expected = results(loop, args, nonlinearity, sizes, of=of)
    exact = dtype in (torch.float64, torch.complex128)
    assert_same(found, expected, 1e-11 if exact else 5e-4)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_gradient_of_one_output_alone(which, dtype, checkpoint_every) -> None:
    """Only the states, or only the last states, are used."""
    sizes = [3, 2, 2]
    args = arguments(sizes, 2, 4, dtype)
    found = results(rnn, args, "modrelu", sizes, checkpoint_every=checkpoint_every, of=[which])
    assert_same(found, results(loop, args, "modrelu", sizes, of=[which]))


@pytest.mark.parametrize(
    ("nonlinearity", "dtype", "checkpoint_every"),
    [(*defined, every) for defined, every in zip(EXACT, (None, 2, 2, None, None, 2, None), strict=True)],
)
@pytest.mark.turns(2)
def test_derivatives_of_first_and_second_order_are_exact(nonlinearity, dtype, checkpoint_every) -> None:
    sizes = [2, 2, 1]
    args = arguments(sizes, 1, 2, dtype, nonlinearity=nonlinearity)

    def function(*args):
        return rnn(*args, nonlinearity, sizes, checkpoint_every=checkpoint_every)

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
    found = results(rnn, args, "modrelu", [2] * 3)
    assert (found[0] == 0).all()
    assert_same(found, results(loop, args, "modrelu", [2] * 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_modulus_exactly_at_the_threshold(dtype) -> None:
    """|z| = -b: the unit is off and has no derivative."""
    z = torch.tensor([[0.5, -0.5, 0.5, 0.75]], dtype=dtype)
    if dtype.is_complex:
        z[0, 2] = 0.5j
    args = [z, torch.zeros_like(z), None, torch.eye(4, dtype=dtype), torch.full((4,), -0.5).double()]
    args = [None if a is None else a.requires_grad_() for a in args]
    found = results(rnn, args, "modrelu", [1])
    assert found[0].tolist() == [[0, 0, 0, 0.25]]
    assert found[2][0, :3].tolist() == [0, 0, 0]
    assert_same(found, results(loop, args, "modrelu", [1]))


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

    for found, exact in zip(gradients(rnn, torch.complex64), gradients(loop, torch.complex128), strict=True):
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
    found = results(rnn, args, "modrelu", sizes)
    assert_same(found, results(loop, physical, "modrelu", sizes))


def test_complex_relu_is_refused() -> None:
    x, h0, U, W, _ = arguments([2] * 3, 2, 3, torch.complex64)
    with pytest.raises(ValueError, match=r"expected.*got 'relu'"):
        rnn(x.unflatten(0, (3, 2)), h0, U, W, None, "relu")


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
        swallowed = Swallow.apply(rnn(*args, "modrelu", [2] * 3)[0])
        gradients = torch.autograd.grad(
            swallowed.sum(), args, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
        assert all((g == 0).all() for g in gradients)


@pytest.mark.parametrize(
    ("checkpoint_every", "nonlinearity", "dtype", "sizes"),
    [
        (1, torch.tanh, torch.float64, [3, 3, 2, 2, 2, 1]),
        (2, "modrelu", torch.complex128, [3] * 7),
        (2, torch.tanh, torch.complex128, [4, 1]),
        (3, torch.tanh, torch.float64, [3] * 7),
        (100, "tanh", torch.float64, [3, 3, 2, 2, 2, 1]),
        (100, torch.tanh, torch.float64, [1]),
        ("auto", torch.tanh, torch.float64, [3] * 7),
    ],
)
def test_checkpoints_change_nothing(checkpoint_every, nonlinearity, dtype, sizes) -> None:
    args = arguments(sizes, 2, 5, dtype, nonlinearity=nonlinearity)
    expected = results(rnn, args, nonlinearity, sizes)
    assert_same(results(rnn, args, nonlinearity, sizes, checkpoint_every=checkpoint_every), expected, 1e-12)


@pytest.mark.parametrize("checkpoint_every", [None, 2])
@pytest.mark.parametrize(
    ("nonlinearity", "dtype", "sizes"),
    [("modrelu", torch.complex128, [3, 2, 2, 1]), (torch.tanh, torch.float64, [3] * 5)],
)
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
    with pytest.raises(ValueError, match="checkpoint_every: expected"):
        rnn(*args, "modrelu", [2] * 4, checkpoint_every=checkpoint_every)


def test_only_what_is_needed_gets_a_gradient() -> None:
    args = arguments([2] * 4, 2, 3, torch.float64)
    for i, leaf in enumerate(args):
        frozen = [a.detach() if j != i else a for j, a in enumerate(args)]
        output, _ = rnn(*frozen, "tanh", [2] * 4)
        (fast,) = torch.autograd.grad(output.sum(), leaf)
        (reference,) = torch.autograd.grad(loop(*args, "tanh", [2] * 4)[0].sum(), leaf)
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

    for a, b in zip(second(rnn), second(loop), strict=True):
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
    with pytest.raises(ValueError, match=r"nonlinearity: expected.*got"):
        rnn(x, h0, U, W, nonlinearity="gelu")
    with pytest.raises(ValueError, match=r"expected.*got"):
        rnn(x[:0], h0, U, W)
    with pytest.raises(ValueError, match=r"expected.*h0.*got \(5, 4\)"):
        rnn(x, h0.expand(5, 4), U, W)
    with pytest.raises(ValueError, match=r"expected.*x.*got \(2, 3\)"):
        rnn(x, h0, None, W)
    with pytest.raises(ValueError, match=r"expected.*x.*got \(2, 3\)"):
        rnn(x.flatten(0, 1), h0, U, W, batch_sizes=[1])
    with pytest.raises(ValueError, match=r"batch_sizes.*got \[1, 2\]"):
        rnn(torch.randn(3, 3), h0, U, W, nonlinearity=torch.sin, batch_sizes=[1, 2])
    with pytest.raises(ValueError, match=r"expected.*weight_ih.*got \(1, 3\)"):
        rnn(x, h0, U[:1], W)
    with pytest.raises(ValueError, match=r"expected.*weight_hh.*got \(1, 4\)"):
        rnn(x, h0, U, W[:1], nonlinearity=torch.sin)
    with pytest.raises(ValueError, match=r"expected.*bias.*got \(1,\)"):
        rnn(x, h0, U, W, torch.zeros(1))
    with pytest.raises(ValueError, match=r"expected.*x.*got \(3,\)"):
        rnn(x[0, 0], h0, U, W)
    with pytest.raises(ValueError, match=r"batch_sizes: expected.*got 2"):
        rnn(x.flatten(0, 1), h0, U, W, batch_sizes=2)


def test_other_kinds_of_arguments_are_refused() -> None:
    x, h0, U, W = torch.randn(2, 1, 3), torch.zeros(1, 4), torch.zeros(4, 3), torch.zeros(4, 4)
    for i, name in enumerate(["x", "h0", "weight_ih", "weight_hh", "bias"]):
        arguments = [x, h0, U, W, torch.zeros(4)]
        arguments[i] = 0.5
        with pytest.raises(ValueError, match=f"{name}: expected.*got.*float"):
            rnn(*arguments)
    with pytest.raises(ValueError, match=r"expected x.*float32, got torch.int64"):
        rnn(x.long(), h0, U, W)
    with pytest.raises(ValueError, match=r"expected.*got"):
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


@pytest.mark.parametrize(
    ("sizes", "nonlinearity", "dtype", "checkpoint_every"),
    [
        ([3] * 4, "modrelu", torch.float64, None),
        ([3, 3, 2, 1], "modrelu", torch.complex128, None),
        ([3, 3, 2, 1], "modrelu", torch.float64, 2),
        ([3, 3, 2, 1], "tanh", torch.complex128, None),
        ([3] * 4, "relu", torch.float64, 2),
        ([3, 3, 2, 1], "identity", torch.complex128, None),
    ],
)
def test_no_step_asks_for_numbers_or_for_the_cpu(sizes, nonlinearity, dtype, checkpoint_every) -> None:
    """On the meta device as on a GPU: nothing waits for a number, and no tensor is made on the CPU."""
    args = arguments(sizes, 2, 5, dtype, nonlinearity=nonlinearity)
    meta = [a.detach().to("meta").requires_grad_() for a in args]
    found = results(rnn, meta, nonlinearity, sizes, checkpoint_every=checkpoint_every)
    assert [t.shape for t in found[2:]] == [a.shape for a in args]
    assert all(t.is_meta for t in found)


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
def test_many_linear_steps_of_adversarial_matrices(W, return_output) -> None:
    x, h0, U, *_ = arguments([2] * 1000, 2, 8, torch.float64, nonlinearity="identity")
    args = (x, h0, U, W.double().requires_grad_(), None)
    found = results(rnn, args, "identity", [2] * 1000, return_output=return_output, of=(1,))
    expected = results(rnn, args, "identity", [2] * 1000, of=(1,))
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
def test_powers_that_overflow_leave_states_as_they_are(W, return_output) -> None:
    n = len(W)
    x, h0, U = torch.ones(1003, 1, 1), torch.zeros(1, n), torch.eye(n)[:, :1]
    output, last = rnn(x, h0, U, W, nonlinearity="identity", return_output=return_output)
    expected = rnn(x[:, 0], h0, U, W, None, "identity", [1] * 1003)
    assert expected[0].isfinite().all()
    torch.testing.assert_close(last, expected[1], rtol=0, atol=0)
    if output is not None:
        torch.testing.assert_close(output[:, 0], expected[0], rtol=0, atol=0)


@pytest.mark.parametrize("return_output", [True, False])
def test_a_sequence_with_nan_does_not_touch_another(return_output) -> None:
    x, h0, U, W, b = arguments([2] * 1000, 2, 8, torch.float64, nonlinearity="identity")
    with torch.no_grad():
        expected = rnn(x, h0, U, W, b, "identity", [2] * 1000)
        x[2 * 500 + 1] = math.nan
        output, last = rnn(x, h0, U, W, b, "identity", [2] * 1000, return_output=return_output)
    torch.testing.assert_close(last[0], expected[1][0])
    assert last[1].isnan().all()
    if output is not None:
        torch.testing.assert_close(output[::2], expected[0][::2])
        assert output[1::2][:500].isfinite().all()
        assert output[1::2][500:].isnan().all()


@pytest.mark.parametrize("return_output", [True, False])
def test_many_orthogonal_steps_are_as_exact_as_one_after_the_other(return_output) -> None:
    W = torch.linalg.qr(torch.randn(16, 16, dtype=torch.float64))[0]
    x, U = torch.randn(2000, 1, 2).double(), torch.randn(16, 2).double()
    args = (x[:, 0], torch.zeros(1, 16).double(), U, W.float().double())
    single = [a.float() for a in args]
    exact = rnn(*args, None, "identity", [1] * 2000)[1]
    loop = rnn(*single, None, "identity", [1] * 2000)[1]
    many = rnn(*single, None, "identity", [1] * 2000, return_output=return_output)[1]
    errors = [float((h.double() - exact).norm() / exact.norm()) for h in (many, loop)]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("return_output", [True, False])
def test_many_linear_steps_under_autocast(return_output) -> None:
    x, h0, U, W, b = arguments([2] * 1000, 2, 8, torch.float32, nonlinearity="identity")
    W = (W / torch.linalg.matrix_norm(W, 2)).detach().requires_grad_()
    args = (x, h0, U, W, b)
    options = {"return_output": return_output, "of": (1,)}
    with torch.autocast("cpu", torch.bfloat16):
        found = results(rnn, args, "identity", [2] * 1000, **options)
    assert all(t.isfinite().all() for t in found)
    for a, b in zip(found, results(rnn, args, "identity", [2] * 1000, **options), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_linear_steps_in_half_precision(return_output, dtype) -> None:
    x, h0, U, W, _ = (t.detach() for t in arguments([1] * 2000, 2, 8, torch.float32, nonlinearity="identity"))
    args = [t.to(dtype) for t in (x, h0, U, W / torch.linalg.matrix_norm(W, 2))]
    exact = rnn(*(t.double() for t in args), None, "identity", [1] * 2000)[1]
    many = rnn(*args, None, "identity", [1] * 2000, return_output=return_output)[1]
    steps = loop(*args, None, "identity", [1] * 2000)[1]
    errors = [float((h - exact).norm()) for h in (many, steps)]
    assert errors[0] <= 2 * errors[1]


def test_many_linear_steps_of_an_input_that_the_bias_removes() -> None:
    """With W = 1, as an integrator: U x + b is small in each step, and neither U x nor b is."""
    noise = 1e-3 * torch.randn(4096, 1)
    x, one = noise - 4, torch.ones(1, 1)
    args = (x, torch.zeros(1, 1), one, one, torch.tensor([4.0]))
    last = rnn(*args, "identity", [1] * 4096, return_output=False)[1]
    torch.testing.assert_close(last[0, 0].double(), (x.double() + 4).sum(), rtol=0, atol=1e-5)


def test_the_last_state_is_not_part_of_all_states() -> None:
    args = arguments([2] * 1000, 2, 8, torch.float64, nonlinearity="identity")
    output, last = rnn(*args, "identity", [2] * 1000)
    assert last.untyped_storage().nbytes() == last.nbytes
    torch.testing.assert_close(output[-2:], last, rtol=0, atol=0)
    last.detach_().zero_()
    assert output[-2:].all()


@pytest.mark.nightly
def test_long_linear_recurrences_without_numbers() -> None:
    args = [torch.randn(200, 1, 2), torch.zeros(1, 8), torch.randn(8, 2), 0.5 * torch.eye(8)]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        output, last = rnn(*(mode.from_tensor(t) for t in args), nonlinearity="identity")
    assert (output.shape, last.shape) == ((200, 1, 8), (1, 8))
    x, *rest = args
    traced = make_fx(lambda *args: rnn(*args, nonlinearity="identity", return_output=False)[1])(x, *rest)
    expected = rnn(x[:, 0], *rest, None, "identity", [1] * 200)[1]
    torch.testing.assert_close(traced(x, *rest), expected)


def test_one_linear_step_of_many_sequences() -> None:
    args = arguments([4000], 1, 64, torch.float64, nonlinearity="identity")
    found = rnn(*args, "identity", [4000], return_output=False)
    assert_same(found[1:], loop(*args, "identity", [4000])[1:], 1e-12)
