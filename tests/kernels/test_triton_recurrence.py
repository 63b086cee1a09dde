"""The Triton kernels against the loop of autograd operations: output and every gradient.

On a GPU, or else in Triton's interpreter, which test_interpreter.py starts a process of its own for.
"""

import os

import pytest
import torch

from spectral_param.functional.recurrence import rnn, rnn_reference
from spectral_param.functional.recurrence_fused import rnn_fused
from spectral_param.kernels import select

pytest.importorskip("triton", reason="needs the package triton")

# What the interpreter of Triton 3.6 does with numpy.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

GPU = torch.cuda.is_available()
if not GPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU; runs in Triton's interpreter, by test_interpreter.py", allow_module_level=True)

DEVICE = "cuda" if GPU else "cpu"
NONLINEARITIES = ("modrelu", "relu", "tanh", "identity")
KERNELS = ("resident", "stepwise")
# Sizes of the state, sequences, steps: odd ones, and those at which the registers are divided otherwise.
SHAPES = [(1, 1, 1), (1, 5, 2), (7, 17, 2), (16, 1, 9), (33, 5, 9), (65, 2, 2), (128, 1, 2), (160, 2, 2)]
# And dense ones, for all activations.
BATCH_SIZES = [[3, 3, 2, 1], [2, 1], [2, 2, 2]]


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan(monkeypatch) -> None:
    """So that an entry which no kernel writes is found."""
    monkeypatch.setattr(torch, "empty_like", lambda t, **_: torch.full_like(t, torch.nan))
    new_empty = torch.Tensor.new_empty

    def filled(t, *shape, **options):
        room = new_empty(t, *shape, **options)
        return room.fill_(torch.nan) if room.is_floating_point() else room

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch) -> str:
    monkeypatch.setenv(select.VARIABLE, request.param)
    return request.param


def leaf(*shape, scale=1.0, dtype=torch.float32):
    # Drawn on the host, so that every device gets the same.
    return (scale * torch.randn(shape, dtype=dtype)).to(DEVICE).requires_grad_()


def arguments(sizes, n, dtype=torch.float32, bias=True):
    return (
        leaf(sum(sizes), 3, dtype=dtype),
        leaf(sizes[0], n, dtype=dtype),
        leaf(n, 3, dtype=dtype),
        leaf(n, n, scale=n**-0.5, dtype=dtype),
        leaf(n, scale=0.1, dtype=dtype) if bias else None,
    )


def check(args, nonlinearity, sizes, which=(0, 1)) -> None:
    """Compare with the reference in double precision, relative to the largest entry of each tensor."""
    double = [None if a is None else a.detach().double().requires_grad_() for a in args]
    G = None
    results = []
    for function, tensors in ((rnn_fused, args), (rnn_reference, double)):
        outputs = [function(*tensors, nonlinearity, sizes)[i] for i in which]
        if G is None:
            G = [torch.randn(o.shape, dtype=torch.float64).to(o) for o in outputs]
        leaves = [t for t in tensors if t is not None]
        gradients = torch.autograd.grad(outputs, leaves, [g.to(outputs[0]) for g in G])
        results.append([*outputs, *gradients])
    # A sum of n products in another order, in as many steps.
    tolerance = 30 * torch.finfo(args[0].dtype).eps * len(sizes)
    for ours, reference in zip(*results, strict=True):
        assert ours.shape == reference.shape
        error = (ours.double() - reference).abs().max() / reference.abs().max().clamp(min=1e-3)
        assert error <= tolerance


@pytest.mark.parametrize(("n", "batch", "steps"), SHAPES)
def test_equals_reference(kernel, n, batch, steps) -> None:
    check(arguments([batch] * steps, n), "modrelu", [batch] * steps)


@pytest.mark.parametrize("sizes", BATCH_SIZES, ids=str)
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_every_activation_and_packed_sequences(kernel, sizes, nonlinearity) -> None:
    check(arguments(sizes, 7), nonlinearity, sizes)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_without_bias(kernel, nonlinearity) -> None:
    check(arguments([2, 2, 1], 5, bias=False), nonlinearity, [2, 2, 1])


@pytest.mark.parametrize("sizes", [[3, 3, 2, 1, 1], [2] * 5], ids=str)
def test_checkpoints(kernel, sizes) -> None:
    args = arguments(sizes, 7)
    plain, again = (rnn_fused(*args, "tanh", sizes, every) for every in (None, 2))
    torch.testing.assert_close(again, plain)
    gradients = (torch.autograd.grad([o.square().sum() for o in outputs], args) for outputs in (again, plain))
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_identity_as_input_map(kernel) -> None:
    x, h0, _, W, b = arguments([2, 2, 1], 3)
    check((x, h0, None, W, b), "modrelu", [2, 2, 1])


@pytest.mark.parametrize("which", [(0,), (1,)])
def test_gradient_of_one_output_alone(kernel, which) -> None:
    check(arguments([3, 2, 2], 7), "modrelu", [3, 2, 2], which)


def test_long_sequence(kernel) -> None:
    check(arguments([1] * 40, 7), "tanh", [1] * 40)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_double_precision_step_by_step(monkeypatch, nonlinearity) -> None:
    monkeypatch.setenv(select.VARIABLE, "stepwise")
    check(arguments([3, 2, 2], 7, torch.float64), nonlinearity, [3, 2, 2])


def test_inputs_are_left_alone_and_need_not_be_contiguous(kernel) -> None:
    x, _, U, W, b = arguments([2] * 3, 7)
    h0 = leaf(7).expand(2, 7)
    args = (x, h0, U, W.mT, b)
    before = [a.clone() for a in args]
    output, last = rnn_fused(*args, "modrelu", [2] * 3)
    reference = rnn_reference(*args, "modrelu", [2] * 3)
    torch.testing.assert_close((output, last), reference, atol=1e-5, rtol=1e-5)
    # The gradients of these sums are single numbers, expanded.
    gradients = torch.autograd.grad(output.sum() + last.sum(), W)
    torch.testing.assert_close(gradients, torch.autograd.grad(sum(o.sum() for o in reference), W))
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, for 0 · inf
def test_not_finite_comes_through(kernel, nonlinearity, value) -> None:
    x, h0, _, W, b = (a.detach() for a in arguments([2] * 3, 3))
    x[2, 1] = value
    ours = rnn_fused(x, h0, None, W, b, nonlinearity, [2] * 3)
    reference = rnn_reference(x, h0, None, W, b, nonlinearity, [2] * 3)
    torch.testing.assert_close(ours, reference, equal_nan=True)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_infinite_states_stay_infinite(kernel) -> None:
    """Not NaN, from the zeros that W and the state are padded with."""
    x, h0, W = (torch.ones(s, device=DEVICE) for s in ((8, 3), (2, 3), (3, 3)))
    x[1, 1] = torch.inf
    output, last = rnn_fused(x, h0, None, W, None, "relu", [2] * 4)
    reference = rnn_reference(x, h0, None, W, None, "relu", [2] * 4)
    assert last[1].isinf().all()
    torch.testing.assert_close((output, last), reference)


def test_exact_zero_preactivation_with_positive_bias(kernel) -> None:
    """modReLU jumps at zero, where value and derivative are defined as zero."""
    n = 4
    x, h0, W, b = (torch.zeros(s, device=DEVICE) for s in ((6, n), (2, n), (n, n), (n,)))
    args = [t.requires_grad_() for t in (x, h0, W, b + 0.5)]
    output, _ = rnn_fused(args[0], args[1], None, *args[2:], "modrelu", [2] * 3)
    assert (output == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(output.sum(), args))


def test_tanh_is_right_to_a_few_roundings(monkeypatch) -> None:
    monkeypatch.setenv(select.VARIABLE, "resident")
    n = 160
    x = torch.cat([torch.linspace(-12, 12, 5 * n), torch.logspace(-12, 0, 3 * n)]).reshape(8, n).to(DEVICE)
    W = torch.zeros(n, n, device=DEVICE)
    ours, _ = rnn_fused(x, torch.zeros_like(x), None, W, None, "tanh", [8])
    exact = x.double().tanh()
    error = (ours.double() - exact).abs() / exact.abs()
    # On a GPU the exponential and the division are off by up to two units in the last place, each.
    assert error.max() <= 8 * torch.finfo(torch.float32).eps


def test_second_derivatives_go_through_the_reference(kernel) -> None:
    args = arguments([2] * 3, 5)

    def second(function):
        output = function(*args, "tanh", [2] * 3)[0]
        first = torch.autograd.grad(output.square().sum(), args, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), args)

    for a, b in zip(second(rnn_fused), second(rnn_reference), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_same_bits_every_time(kernel) -> None:
    args = arguments([5, 3], 33)
    runs = [rnn_fused(*args, "tanh", [5, 3]) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_autocast_leaves_it_in_full_precision(kernel) -> None:
    x, h0, U, W, b = arguments([2] * 4, 9)
    x = x.unflatten(0, (4, 2))
    plain = rnn(x, h0, U, W, b)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        under_autocast = rnn(x, h0, U, W, b)
    assert all(torch.equal(a, b) for a, b in zip(plain, under_autocast, strict=True))


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize(("n", "batch", "steps"), [(160, 50, 750), (192, 20, 200), (170, 128, 784)])
def test_sizes_of_the_papers(kernel, n, batch, steps) -> None:
    # Not modReLU: in so many steps single precision somewhere takes the other side of its threshold.
    check(arguments([batch] * steps, n), "tanh", [batch] * steps)


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_host_never_waits(kernel) -> None:
    for sizes in ([3] * 4, [3, 2, 1]):
        args = arguments(sizes, 7)
        output, last = rnn_fused(*args, "modrelu", sizes)  # compiles
        torch.cuda.set_sync_debug_mode("error")
        try:
            output, last = rnn_fused(*args, "modrelu", sizes)
            torch.autograd.grad((output, last), args, (output, last))
        finally:
            torch.cuda.set_sync_debug_mode("default")
