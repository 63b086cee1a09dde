"""torch.compile, a few by its default backend, and programs that run without this library."""

import subprocess
import sys

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


@pytest.mark.nightly
def test_constrained_linear() -> None:
    model = torch.nn.Sequential(constrained(sp.SpectralRadiusNorm()), constrained(sp.ScaledCayley()))
    for a, b in both(model, torch.randn(3, 6)):
        torch.testing.assert_close(a, b)


def test_bounds_that_are_tensors() -> None:
    each = torch.linspace(0.5, 1.0, 6)
    bounds = (sp.SpectralRadiusNorm(each[2]), sp.SpectralNorm("present"), sp.FrobeniusNorm(each, dim=0))
    model = torch.nn.Sequential(*map(constrained, bounds))
    for a, b in both(model, torch.randn(3, 6)):
        torch.testing.assert_close(a, b)


class Applied(torch.nn.Module):
    """A module as part of another one, which applies it in a way of its own."""

    def __init__(self, module, way):
        super().__init__()
        self.module, self.way = module, way

    def forward(self, x):
        return self.way(x)


@pytest.mark.nightly
def test_cell_by_inductor() -> None:
    """The one compilation by torch.compile's default backend: of both constraints, and of modReLU."""
    cell = sp.nn.ENRNN(3, 4, 2).cells[0]
    torch.nn.init.normal_(cell.bias, std=0.1)
    cell.weight_hh  # noqa: B018  # the latch has its shape from here on
    h = torch.randn(5, 6)
    for a, b in both(Applied(cell, lambda x: cell(x, h)), torch.randn(5, 3), "inductor"):
        torch.testing.assert_close(a, b)


@pytest.mark.nightly
@pytest.mark.parametrize("nonlinearity", [pytest.param("modrelu", marks=pytest.mark.nightly), torch.tanh])
def test_checkpoints_of_a_compiled_network(nonlinearity) -> None:
    rnn = sp.nn.BlockRNN(3, [(4, sp.ScaledCayley())], nonlinearity=nonlinearity, checkpoint_every=2)
    rnn.return_output = False
    for a, b in both(Applied(rnn, lambda x: rnn(x)[1]), torch.randn(5, 2, 3)):
        torch.testing.assert_close(a, b)


# torch 2.6 warns about the names that it gives constants of a graph.
@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore:Node .* does not reference")
def test_compiled_network_of_both_directions_is_the_same() -> None:
    blocks = [(4, sp.ScaledCayley())]
    rnn = sp.nn.BlockRNN(3, blocks, bidirectional=True, dtype=torch.float64)
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    for a, b in both(Applied(rnn, lambda x: rnn(x)[0]), x):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(torch.export.export(rnn, (x,)).module()(x)[0], rnn(x)[0])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_traced_network_is_right_for_other_inputs(checkpoint_every) -> None:
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
    with pytest.raises(NotImplementedError, match="second derivatives"):
        penalty(compiled, torch.randn(4, 4))


TRANSFORMS = {
    "jvp": lambda f: lambda T: torch.func.jvp(f, (T,), (T.mT,))[1],
    "hessian": torch.func.hessian,
    "vmap": lambda f: lambda T: torch.func.vmap(torch.func.grad(f))(torch.stack([T, T.mT])),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("transform", "function"),
    [
        pytest.param("jvp", sp.functional.spectral_abscissa, marks=pytest.mark.nightly),
        pytest.param("hessian", sp.functional.spectral_radius, marks=pytest.mark.nightly),
        ("vmap", sp.functional.spectral_radius),
    ],
)
def test_transforms_inside_a_compiled_function(transform, function) -> None:
    transformed, T = TRANSFORMS[transform](function), torch.randn(4, 4, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(T), transformed(T))


def test_second_derivatives_of_cayley_are_right_when_compiled() -> None:
    torch.compiler.reset()

    def part(T):
        return sp.functional.cayley(T - T.mT)[:2, :2]

    compiled = torch.compile(part, fullgraph=True, backend="eager")
    T = torch.randn(4, 4, dtype=torch.float64)
    torch.testing.assert_close(penalty(compiled, T), penalty(part, T))


@pytest.mark.parametrize("kind", [sp.SpectralRadiusNorm, sp.ScaledCayley])
def test_export_after_removal(kind) -> None:
    layer = constrained(kind())
    x = torch.randn(3, 6)
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), expected)


def programs():
    """Modules and their inputs: small and tracked sizes, derivatives of all kinds of operators, a network."""
    radius = sp.constrain(torch.nn.Linear(120, 120), "weight", sp.SpectralRadiusNorm(mode="latched"))
    chain = [sp.SkewExponential(), sp.SpectralAbscissa(-0.1, "at_most")]
    convolution = torch.nn.Conv2d(2, 3, 3, padding=1)
    yield "tracked", radius, torch.randn(3, 120)
    yield "chain", sp.constrain(torch.nn.Linear(6, 6), "weight", chain), torch.randn(3, 6)
    yield "enrnn", sp.nn.ENRNN(2, 6, 4), torch.randn(5, 3, 2)
    yield "convolution", sp.constrain(convolution, "weight", sp.SpectralNorm()), torch.randn(1, 2, 5, 5)


def networks():
    """More networks and their inputs."""
    x = torch.randn(5, 3, 2)
    yield "tall", sp.constrain(torch.nn.Linear(5, 9), "weight", sp.Householder()), torch.randn(3, 5)
    yield "tracked-enrnn", sp.nn.ENRNN(2, 100, 4, checkpoint_every="auto"), x
    yield "scornn", sp.nn.ScoRNN(2, 5, num_layers=2, bidirectional=True), x
    yield "goru", sp.nn.GORU(2, 6), x
    yield "contracting-gru", sp.nn.ContractingGRU(2, 6), x
    yield "eunn", sp.nn.EUNN(2, 6), x


LOAD = """
import sys, torch
sys.modules["spectral_param"] = None  # An import raises.
for name in sys.argv[1:]:
    x, expected, gradient = torch.load(name + ".tensors")
    for program in torch.jit.load(name + ".jit"), torch.export.load(name + ".pt2").module():
        output = program(x)
        first = output[0] if isinstance(output, tuple) else output
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4, msg=name)
        loss = first.abs().square().sum()
        found = torch.autograd.grad(loss, dict(program.named_parameters())[gradient[0]])[0]
        size = gradient[1].abs().max().item()
        torch.testing.assert_close(found, gradient[1], rtol=1e-3, atol=1e-3 * size, msg=name)
print("loaded", len(sys.argv) - 1)
"""


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("made", [programs, pytest.param(networks, marks=pytest.mark.nightly)])
def test_programs_run_without_this_library(made, tmp_path) -> None:
    names = []
    for name, module, x in made():
        names.append(str(tmp_path / name))
        output = module(x)
        first = output[0] if isinstance(output, tuple) else output
        names_of = [key for key, _ in module.named_parameters()]
        original = next((key for key in names_of if "original" in key), names_of[1])
        gradient = torch.autograd.grad(first.abs().square().sum(), module.get_parameter(original))[0]
        torch.save((x, first.detach(), (original, gradient)), names[-1] + ".tensors")
        torch.export.save(torch.export.export(module, (x,)), names[-1] + ".pt2")
        torch.jit.trace(module, (x,), check_trace=False).save(names[-1] + ".jit")
    run = subprocess.run([sys.executable, "-c", LOAD, *names], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"loaded {len(names)}\n"


def test_an_exported_radius_has_every_derivative() -> None:
    T = torch.randn(4, 4, dtype=torch.float64)

    class Radius(torch.nn.Module):
        def forward(self, T):
            return sp.functional.spectral_radius(T)

    exported = torch.export.export(Radius(), (T,)).module()
    torch.testing.assert_close(penalty(exported, T), penalty(sp.functional.spectral_radius, T))
    assert exported(torch.full_like(T, torch.nan)).isnan()


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


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # Dynamo's own.
@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="not in torch 2.6")
@pytest.mark.parametrize(
    "make", [sp.SpectralRadiusNorm, pytest.param(sp.SchurForm, marks=pytest.mark.nightly)]
)
def test_compiled_autograd_of_several_reads(make) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6, dtype=torch.float64), "weight", make())
    trained = [p for p in layer.parameters() if p.requires_grad]
    for p in trained:
        p.data.add_(0.01)
    x = torch.randn(2, 6, dtype=torch.float64)

    def loss():
        return (layer(x) + layer(2 * x) + layer(3 * x)).square().sum()

    expected = torch.autograd.grad(loss(), trained)
    torch.compiler.reset()
    value = loss()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: value.backward(), backend="eager")()
    torch.testing.assert_close([p.grad for p in trained], list(expected))
