"""torch.compile, a few by its default backend, and torch.export of what was deployed."""

import pytest
import torch
from torch.nn.utils import parametrize

import spectral_param as sp


def both(model, x, backend="aot_eager"):
    """Outputs and gradients, eager and compiled. "aot_eager" traces both passes as inductor does, sooner."""
    torch.compiler.reset()
    results = []
    for each in (model, torch.compile(model, fullgraph=True, backend=backend)):
        output = each(x)
        results.append([output, *torch.autograd.grad(output.square().sum(), list(model.parameters()))])
    return zip(*results, strict=True)


def constrained(constraint):
    return sp.constrain(torch.nn.Linear(6, 6), "weight", constraint)


@pytest.mark.parametrize("kind", [sp.SpectralRadiusNorm, sp.ScaledCayley])
def test_constrained_linear_by_inductor(kind) -> None:
    for a, b in both(constrained(kind()), torch.randn(3, 6), "inductor"):
        torch.testing.assert_close(a, b)


def test_cell_by_inductor() -> None:
    cell = sp.nn.ENRNN(3, 4, 2).cells[0]
    torch.nn.init.normal_(cell.bias, std=0.1)
    cell.weight_hh  # noqa: B018  # the latch has its shape from here on
    h = torch.randn(5, 6)

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell

        def forward(self, x):
            return self.cell(x, h)

    for a, b in both(Step(), torch.randn(5, 3), "inductor"):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("nonlinearity", ["modrelu", torch.tanh])
def test_checkpoints_of_a_compiled_network(nonlinearity) -> None:
    rnn = sp.nn.BlockRNN(3, [(4, sp.ScaledCayley())], nonlinearity=nonlinearity, checkpoint_every=2)
    rnn.return_output = False

    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x):
            return self.rnn(x)[1]

    for a, b in both(Last(), torch.randn(5, 2, 3)):
        torch.testing.assert_close(a, b)


def test_both_directions() -> None:
    blocks = [(4, sp.ScaledCayley())]
    rnn = sp.nn.BlockRNN(3, blocks, num_layers=2, bidirectional=True, dtype=torch.float64)

    class Output(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x):
            return self.rnn(x)[0]

    x = torch.randn(5, 2, 3, dtype=torch.float64)
    for a, b in both(Output(), x):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(torch.export.export(rnn, (x,)).module()(x)[0], rnn(x)[0])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_traced_network(checkpoint_every) -> None:
    rnn = sp.nn.ScoRNN(3, 4, checkpoint_every=checkpoint_every)
    traced = torch.jit.trace(rnn, (torch.randn(5, 2, 3),), check_trace=False)
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(traced(x), rnn(x))


def test_training_step_sees_each_new_weight() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.SpectralRadiusNorm())
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 6)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), layer(x))
        with torch.no_grad():
            layer.parametrizations.weight.original.normal_()


def penalty(function, T):
    """A gradient penalty: the derivative of a derivative."""
    T = T.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(T).square().sum(), T, create_graph=True)
    return torch.autograd.grad(first.square().sum(), T)[0]


def test_second_derivatives_of_the_radius_raise_when_compiled() -> None:
    torch.compiler.reset()
    compiled = torch.compile(sp.functional.spectral_radius, fullgraph=True, backend="eager")
    with pytest.raises(NotImplementedError, match="second derivatives are not available"):
        penalty(compiled, torch.randn(4, 4))


def test_second_derivatives_of_cayley_are_right_when_compiled() -> None:
    torch.compiler.reset()
    compiled = torch.compile(sp.functional.cayley, fullgraph=True, backend="eager")
    A = torch.randn(4, 4, dtype=torch.float64)
    torch.testing.assert_close(penalty(compiled, A), penalty(sp.functional.cayley, A))


@pytest.mark.parametrize("kind", [sp.SpectralRadiusNorm, sp.ScaledCayley])
def test_export_after_removal(kind) -> None:
    layer = constrained(kind())
    x = torch.randn(3, 6)
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), expected)


def test_autocast_keeps_orthogonality_in_training() -> None:
    layer = sp.constrain(torch.nn.Linear(32, 32), "weight", sp.ScaledCayley())
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(20):
        x = torch.randn(8, 32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)
            loss = (output.float() - x.flip(-1)).square().mean()
        assert output.dtype == torch.bfloat16
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    W = layer.weight
    assert (W.mT @ W - torch.eye(32)).abs().max() < 32 * torch.finfo(torch.float32).eps


def test_recurrence_under_autocast() -> None:
    rnn = sp.nn.ENRNN(2, 6, 4)
    x = torch.randn(5, 3, 2)
    expected = rnn(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(rnn(x)[0], expected)
        torch.testing.assert_close(rnn(x.bfloat16())[0], expected, atol=0.1, rtol=0.1)
