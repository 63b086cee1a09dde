"""The recurrence: the fast path against the loop of autograd operations, output and every gradient."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import modrelu, rnn
from spectral_param.functional.recurrence_fused import rnn_fused
from spectral_param.functional.recurrence_reference import rnn_reference

NONLINEARITIES = ("modrelu", "relu", "tanh", "identity")
SIZES = ([3] * 7, [3, 3, 2, 2, 2, 1], [4, 1], [1], [2] * 2)


def arguments(sizes, features, n, dtype, bias=True, linear=True):
    def leaf(*shape, scale=1.0):
        return (scale * torch.randn(shape, dtype=dtype)).requires_grad_()

    return (
        leaf(sum(sizes), features if linear else n),
        leaf(sizes[0], n),
        leaf(n, features) if linear else None,
        leaf(n, n, scale=n**-0.5),
        leaf(n, scale=0.1) if bias else None,
    )


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fast_equals_reference(sizes, nonlinearity, bias, linear, dtype) -> None:
    args = arguments(sizes, 2, 5, dtype, bias, linear)
    leaves = [a for a in args if a is not None]
    fast = rnn_fused(*args, nonlinearity, sizes)
    reference = rnn_reference(*args, nonlinearity, sizes)
    G = [torch.randn_like(x) for x in reference]
    results = []
    for outputs in (fast, reference):
        results.append([*outputs, *torch.autograd.grad(outputs, leaves, G)])
    tolerance = 1e-12 if dtype == torch.float64 else 1e-4
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_output_alone(which) -> None:
    """Only the states, or only the last states, are used."""
    sizes = [3, 2, 2]
    args = arguments(sizes, 2, 4, torch.float64)
    fast = rnn_fused(*args, "modrelu", sizes)[which]
    reference = rnn_reference(*args, "modrelu", sizes)[which]
    G = torch.randn_like(reference)
    for a, b in zip(torch.autograd.grad(fast, args, G), torch.autograd.grad(reference, args, G), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_derivatives(nonlinearity) -> None:
    sizes = [2, 2, 1]
    args = arguments(sizes, 2, 3, torch.float64)

    def function(*args):
        return rnn_fused(*args, nonlinearity, sizes)

    assert gradcheck(function, args)
    assert gradgradcheck(function, args)


def test_exact_zero_preactivation_with_positive_bias() -> None:
    """modReLU jumps at zero, where value and derivative are defined as zero on both paths."""
    args = [a.detach() for a in arguments([2] * 3, 2, 4, torch.float64)]
    args[0].zero_()
    args[1].zero_()
    args[4].fill_(0.5)
    args = [a.requires_grad_() for a in args]
    fast = rnn_fused(*args, "modrelu", [2] * 3)
    reference = rnn_reference(*args, "modrelu", [2] * 3)
    assert (fast[0] == 0).all()
    for a, b in zip(
        torch.autograd.grad(fast[0].sum(), args),
        torch.autograd.grad(reference[0].sum(), args),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


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


def test_custom_activation() -> None:
    x, h0, U, W, b = arguments([2] * 4, 2, 3, torch.float64)
    x = x.unflatten(0, (4, 2))
    named = rnn(x, h0, U, W, b, "tanh")[0]
    torch.testing.assert_close(rnn(x, h0, U, W, b, torch.tanh)[0], named)


def test_complex_states() -> None:
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


def test_bad_input() -> None:
    x, h0, U, W = torch.randn(2, 1, 3), torch.zeros(1, 4), torch.zeros(4, 3), torch.zeros(4, 4)
    with pytest.raises(ValueError, match="expected one of modrelu, relu, tanh, identity"):
        rnn(x, h0, U, W, nonlinearity="gelu")
    with pytest.raises(ValueError, match="sequence of length 0"):
        rnn(x[:0], h0, U, W)
    with pytest.raises(ValueError, match=r"h0 of shape \(batch, n\) = \(1, 4\), got \(5, 4\)"):
        rnn(x, h0.expand(5, 4), U, W)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_modrelu(dtype) -> None:
    z = torch.randn(6, 5, dtype=dtype, requires_grad=True)
    bias = (0.3 * torch.randn(5, dtype=torch.float64)).requires_grad_()
    with torch.no_grad():
        expected = torch.where(z.abs() + bias > 0, z / z.abs() * (z.abs() + bias), 0)
        torch.testing.assert_close(modrelu(z, bias), expected)
    assert gradcheck(modrelu, (z, bias))
    assert gradgradcheck(modrelu, (z, bias))


def test_modrelu_at_zero() -> None:
    z = torch.zeros(3, requires_grad=True)
    y = modrelu(z, torch.tensor([-1.0, 0.0, 1.0]))
    y.sum().backward()
    assert (y == 0).all()
    assert (z.grad == 0).all()
