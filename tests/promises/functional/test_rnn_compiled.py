"""The recurrence under torch.compile: one operator, with the results of the eager paths; and exported."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils.rnn import pack_padded_sequence

import spectral_param as sp
from spectral_param.functional import rnn


def arguments(dtype, sizes, nonlinearity):
    real = dtype.to_real() if nonlinearity == "modrelu" else dtype
    x, h0, U, W = (
        0.4 * torch.randn(s, dtype=dtype) for s in ((sum(sizes), 2), (sizes[0], 5), (5, 2), (5, 5))
    )
    return [t.requires_grad_() for t in (x, h0, U, W, 0.1 * torch.randn(5, dtype=real))]


def gradients(function, args):
    outputs = [t for t in function(*args) if t is not None]
    loss = sum((t * (1 + torch.arange(t.numel()).view(t.shape))).abs().sum() for t in outputs)
    return [*outputs, *torch.autograd.grad(loss, args, allow_unused=True)]


@pytest.mark.parametrize(
    ("nonlinearity", "dtype", "sizes", "options"),
    [
        ("modrelu", torch.float64, [3] * 4, {}),
        ("modrelu", torch.complex128, [3, 2, 2, 1], {"checkpoint_every": 2}),
        ("tanh", torch.float64, [3] * 4, {"checkpoint_every": 3, "return_output": False}),
        ("relu", torch.float64, [2, 1], {}),
    ],
)
@pytest.mark.turns(2)
def test_one_operator_with_the_same_results(nonlinearity, dtype, sizes, options) -> None:
    args = arguments(dtype, sizes, nonlinearity)

    def function(*args):
        return rnn(*args, nonlinearity, sizes, **options)

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    found = gradients(torch.compile(function, fullgraph=True, backend=counter), args)
    for a, b in zip(found, gradients(function, args), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    (graph,) = counter.graphs
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert sum("spectral_param.recurrence" in target for target in targets) == 1
    assert not any("matmul" in target or "addmm" in target for target in targets)


# torch's test looks at it itself (2.14).
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_operators_keep_their_promises() -> None:
    """What they return, on every device and with every transform: torch's own test of operators."""
    x, h0, U, W, b = arguments(torch.float64, [3, 3, 2], "modrelu")
    operator = torch.ops.spectral_param.recurrence.default
    for every, wants_all, h in ((None, True, h0), (2, False, None)):
        torch.library.opcheck(operator, (x, h, U, W, b, None, "modrelu", [3, 3, 2], every, wants_all, True))

    def leaf(*shape):
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    gru = leaf(8, 6), leaf(3, 2), leaf(6, 2), leaf(2), leaf(2), None, "gru", [3, 3, 2]
    delta = leaf(2, 5, 3), leaf(2, 10, 3), None, leaf(2, 10), leaf(2, 5), leaf(2, 3, 4), "delta", [2]
    for given in (gru, delta):
        torch.library.opcheck(operator, (*given, None, True, True))


def test_compiled_recurrence_without_gradients_is_the_same() -> None:
    args = [t.detach() for t in arguments(torch.float64, [3, 2], "tanh")]
    torch.compiler.reset()
    compiled = torch.compile(lambda *a: rnn(*a, "tanh", [3, 2]), fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*args), rnn(*args, "tanh", [3, 2]), strict=True):
        torch.testing.assert_close(a, b)


def test_second_derivatives_of_a_compiled_recurrence() -> None:
    x, h0, U, W, b = (t.detach() for t in arguments(torch.float64, [2] * 3, "modrelu"))

    def penalty(function):
        w = W.clone().requires_grad_()
        (g,) = torch.autograd.grad(function(x, h0, U, w, b)[0].square().sum(), w, create_graph=True)
        return torch.autograd.grad(g.square().sum(), w)[0]

    def function(*args):
        return rnn(*args, "modrelu", [2] * 3)

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(penalty(compiled), penalty(function))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "transform", ["vmap", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("jvp", "jacrev"))]
)
def test_transforms_inside_a_compiled_function(transform) -> None:
    x, h0, U, W, b = (t.detach() for t in arguments(torch.float64, [2] * 3, "modrelu"))

    def last(W):
        return rnn(x, h0, U, W, b, "modrelu", [2] * 3)[1]

    functions = {
        "jvp": lambda W: torch.func.jvp(last, (W,), (W,))[1],
        "vmap": lambda W: torch.func.vmap(last)(torch.stack([W, 2 * W])),
        "jacrev": torch.func.jacrev(last),
    }
    function = functions[transform]
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(W), function(W))


@pytest.mark.nightly
def test_a_callable_keeps_the_loop() -> None:
    args = arguments(torch.float64, [3] * 3, "tanh")

    def function(*args):
        return rnn(*args, torch.sin, [3] * 3)

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    found = gradients(torch.compile(function, fullgraph=True, backend=counter), args)
    for a, b in zip(found, gradients(function, args), strict=True):
        torch.testing.assert_close(a, b)
    targets = [str(node.target) for node in counter.graphs[0].graph.nodes]
    assert not any("spectral_param.recurrence" in target for target in targets)


@pytest.mark.nightly
def test_layers_packed_and_in_batches_of_several_sizes() -> None:
    rnn = sp.nn.ScoRNN(2, 5, bidirectional=True, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(rnn, backend="aot_eager")
    for batch in (3, 5):
        x = torch.randn(4, batch, 2, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), rnn(x))
    packed = pack_padded_sequence(x, [4, 4, 3, 1, 1])
    torch.testing.assert_close(compiled(packed)[0].data, rnn(packed)[0].data)


def test_an_exported_network_runs_without_this_library() -> None:
    rnn = sp.nn.ScoRNN(2, 5)
    x = torch.randn(4, 3, 2)
    exported = torch.export.export(rnn, (x,))
    assert not any("spectral_param" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), rnn(x))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("ScoRNN", {"bidirectional": True, "num_layers": 2}),
        ("ScuRNN", {"batch_first": True}),
        pytest.param("EUNN", {}, marks=pytest.mark.nightly),
        ("GORU", {"bidirectional": True}),
    ],
)
def test_an_exported_network_takes_batches_of_any_size(network, options) -> None:
    rnn = sp.remove(getattr(sp.nn, network)(2, 6, **options))
    batch_first = options.get("batch_first", False)

    def batch_of(size):
        return torch.randn((size, 4, 2) if batch_first else (4, size, 2))

    shapes = ({0 if batch_first else 1: torch.export.Dim("batch")},)
    exported = torch.export.export(rnn, (batch_of(3),), dynamic_shapes=shapes).module()
    for size in (1, 2, 5):
        x = batch_of(size)
        torch.testing.assert_close(exported(x), rnn(x))
