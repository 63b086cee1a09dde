"""Conversions of precision: of whole networks, of layers with a complex weight, of nested constraints."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import holder
from tests.messages import refused
from tests.promises.cases import CASES

COMPLEX = torch.complex64
NETWORKS = {
    "ScuRNN": lambda **kw: sp.nn.ScuRNN(3, 8, 2, **kw),
    "EUNN": lambda **kw: sp.nn.EUNN(3, 8, **kw),
    "EUNN without U and bias": lambda **kw: sp.nn.EUNN(3, 3, input_map="identity", bias=False, **kw),
    "EUNN by a function": lambda **kw: sp.nn.EUNN(3, 1024, layers=2, **kw),
    "URNN": lambda **kw: sp.nn.URNN(3, 8, bidirectional=True, **kw),
    "URNN by a function": lambda **kw: sp.nn.URNN(3, 512, **kw),
    "ORNN": lambda dtype=COMPLEX: sp.nn.ORNN(3, 8, dtype=dtype),
    "SpectralRNN": lambda dtype=COMPLEX: sp.nn.SpectralRNN(3, 8, dtype=dtype),
    "ENRNN": lambda dtype=COMPLEX: sp.nn.ENRNN(3, 5, 4, dtype=dtype),
    "a module as activation": lambda dtype=COMPLEX: sp.nn.BlockRNN(
        3,
        [(5, sp.Givens()), (4, None)],
        coupling=True,
        nonlinearity=sp.nn.ModReLU(9, dtype=dtype.to_real()),
        dtype=dtype,
    ),
    **{
        name: lambda dtype=COMPLEX, activation=activation: sp.nn.BlockRNN(
            3, [(8, sp.ScaledCayley())], nonlinearity=activation, dtype=dtype
        )
        for name, activation in {"tanh": "tanh", "identity": "identity", "callable": torch.tanh}.items()
    },
}
TO_DOUBLE = {
    "double": nn.Module.double,
    "to a real dtype": lambda module: module.to(torch.float64),
    "to a complex dtype": lambda module: module.to(torch.complex128),
    "type": lambda module: module.type(torch.complex128),
    "to a tensor": lambda module: module.to(torch.empty(0, dtype=torch.float64)),
}
TO_SINGLE = {
    "float": nn.Module.float,
    "to a real dtype": lambda module: module.to(torch.float32),
    "to a complex dtype": lambda module: module.to(torch.complex64),
}


def converted(convert, module):
    with warnings.catch_warnings():
        # torch's, that complex modules are new.
        warnings.simplefilter("ignore", UserWarning)
        return convert(module)


def kinds(module) -> list[torch.dtype]:
    return [t.dtype for t in (*module.parameters(), *module.buffers())]


def results(rnn, x):
    """Output, last states and every gradient."""
    rnn.zero_grad()
    output, h_n = rnn(x)
    (output.abs().square().sum() + h_n.real.sum()).backward()
    return [output.detach(), h_n.detach(), *(p.grad.clone() for p in rnn.parameters())]


@pytest.mark.parametrize(
    ("name", "conversion"),
    [
        pytest.param(name, conversion, marks=pytest.mark.nightly if (i + j) % 2 else ())
        for i, name in enumerate(NETWORKS)
        for j, conversion in enumerate(TO_DOUBLE)
    ],
)
@pytest.mark.turns(3)
def test_a_converted_network_is_one_built_in_double_precision(name, conversion) -> None:
    make = NETWORKS[name]
    rnn, expected = make(), make(dtype=torch.complex128)
    for cell in rnn.cells:
        if cell.bias is not None:
            nn.init.normal_(cell.bias, std=0.1)
    expected.load_state_dict(rnn.state_dict())
    x = torch.randn(5, 2, 3)
    rnn(x)  # What has been read in single precision must not come back.
    converted(TO_DOUBLE[conversion], rnn)
    assert kinds(rnn) == kinds(expected)
    x = x.double()
    for actual, wanted in zip(results(rnn, x), results(expected, x), strict=True):
        # Single precision would differ by 1e-7.
        torch.testing.assert_close(actual, wanted, rtol=1e-11, atol=1e-11 * wanted.abs().max().item())
    assert rnn.cells[0](x[0]).dtype == torch.complex128


@pytest.mark.parametrize("conversion", TO_SINGLE)
@pytest.mark.parametrize(
    "name", ["ScuRNN", "EUNN without U and bias", "SpectralRNN", "a module as activation"]
)
def test_and_back(name, conversion) -> None:
    rnn = NETWORKS[name]()
    before, x = copy.deepcopy(rnn), torch.randn(5, 2, 3)
    converted(TO_SINGLE[conversion], rnn.double())
    assert kinds(rnn) == kinds(before)
    for key, t in before.state_dict().items():
        assert torch.equal(rnn.state_dict()[key], t), key
    assert torch.equal(rnn(x)[0], before(x)[0])


def test_a_converted_network_is_trained_beside_other_layers() -> None:
    model = nn.ModuleList([sp.nn.ScuRNN(3, 8), nn.Linear(16, 1)]).to(torch.float64)
    rnn, head = model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, losses = torch.randn(10, 4, 3, dtype=torch.float64), []
    for _ in range(20):
        loss = (head(rnn(x)[0][-1]) - x.sum(dim=(0, 2))[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    W = rnn.cells[0].weight_hh
    assert (W.mH @ W - torch.eye(8, dtype=W.dtype)).abs().max() < 100 * torch.finfo(torch.float64).eps


@pytest.mark.parametrize("name", ["ScuRNN", "EUNN by a function", "ENRNN"])
def test_plain_weights_of_a_complex_network_are_converted_alike(name) -> None:
    rnn = sp.remove(NETWORKS[name]())
    x = torch.randn(4, 2, 3)
    expected = rnn(x)[0]
    output = rnn.double()(x.double())[0]
    assert output.dtype == torch.promote_types(expected.dtype, torch.float64)
    torch.testing.assert_close(output.to(expected.dtype), expected, rtol=1e-3, atol=1e-4)


def test_other_moves_of_a_complex_network() -> None:
    rnn = NETWORKS["ScuRNN"]()
    x = torch.randn(5, 2, 3)
    expected = rnn(x)[0]
    for move in (nn.Module.cpu, nn.Module.share_memory, lambda m: m.to("cpu"), nn.Module.float):
        assert torch.equal(move(rnn)(x)[0], expected)
    empty = copy.deepcopy(rnn).to("meta").to_empty(device="cpu")
    empty.load_state_dict(rnn.state_dict())
    assert torch.equal(empty(x)[0], expected)


HALF = {
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "to": lambda module: module.to(torch.float16),
    "complex32": lambda module: module.to(torch.complex32),
}


@pytest.mark.parametrize("conversion", HALF)
@pytest.mark.parametrize("name", ["ScuRNN", "EUNN without U and bias", "URNN by a function"])
def test_half_precision_of_a_complex_network_is_refused_and_the_remedy_works(name, conversion) -> None:
    rnn = NETWORKS[name]()
    x = torch.randn(5, 2, 3)
    expected, before = rnn(x)[0], kinds(rnn)
    with refused("dtype", "autocast"):
        converted(HALF[conversion], rnn)
    assert kinds(rnn) == before
    head = nn.Linear(expected.shape[-1], 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rnn(x)[0], expected)
        assert head(rnn(x)[0]).dtype == torch.bfloat16


COMPLEX_CASES = [case for case in CASES if torch.complex64 in case.dtypes]


@pytest.mark.parametrize("case", COMPLEX_CASES, ids=lambda case: case.name)
@pytest.mark.turns(2)
def test_a_layer_with_a_complex_weight_follows_torch(case) -> None:
    """``Module.double`` leaves complex parameters alone. What drops imaginary parts is refused."""
    layer = holder(case, case.member((4, 4), torch.complex64))
    layer.bias = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    before, types = layer.weight.detach().clone(), kinds(layer)
    for convert in (lambda m: m.to(torch.float64), lambda m: m.to(torch.bfloat16)):
        with refused("complex", "imaginary"):
            converted(convert, layer)
        assert kinds(layer) == types
        assert torch.equal(layer.weight, before)
    # The remedies.
    layer.double()
    assert layer.weight.dtype == layer.bias.dtype == torch.complex64
    torch.testing.assert_close(layer.weight.detach(), before, rtol=1e-4, atol=1e-5)
    converted(lambda m: m.to(torch.complex128), layer)
    assert layer.weight.dtype == layer.bias.dtype == torch.complex128
    assert case.violation(layer.weight.detach()).max() < 1e-5


def test_a_refused_conversion_leaves_the_bounds_of_a_batch() -> None:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.randn(2, 4, 4, dtype=torch.complex64))
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(torch.tensor([0.3, 0.6])))
    expected = {key: t.clone() for key, t in layer.state_dict().items()}
    with refused("complex", "imaginary"):
        layer.to(torch.float64)
    assert layer.state_dict().keys() == expected.keys()
    assert all(torch.equal(layer.state_dict()[key], t) for key, t in expected.items())
    torch.testing.assert_close(
        sp.functional.spectral_radius(layer.weight.detach()), torch.tensor([0.3, 0.6]), atol=1e-5, rtol=0
    )


def test_a_real_weight_after_a_complex_one() -> None:
    layer = sp.constrain(nn.Linear(6, 6, dtype=torch.complex64), "weight", sp.Givens())
    with refused("Givens", "remove the constraint"):
        layer.to(torch.float32)
    sp.remove(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, that imaginary parts are discarded.
        layer.to(torch.float32)
    sp.constrain(layer, "weight", sp.Givens())
    assert layer.weight.dtype == torch.float32


NESTED = {
    "blocks": lambda: sp.BlockTriangular([(4, sp.FourierUnitary()), (3, sp.Householder(2))], coupling=True),
    "blocks of reals": lambda: sp.BlockTriangular([(4, sp.SingularValues(0.1)), (3, sp.SchurForm())]),
    "P": lambda: sp.SchurForm(P=sp.ScaledCayley(), radius=0.9),
    "two sides": lambda: sp.SingularValues(0.1),
}
DOUBLE = {"blocks": torch.complex128}


@pytest.mark.parametrize("by", ["dtype", "default", "assignment"])
@pytest.mark.parametrize("name", NESTED)
def test_nested_constraints_have_the_precision_of_the_weight(name, by) -> None:
    dtype = DOUBLE.get(name, torch.float64)
    single = {torch.complex128: torch.complex64, torch.float64: torch.float32}[dtype]
    constraint = NESTED[name]()
    if by == "default":
        torch.set_default_dtype(torch.float64)
    try:
        weight = torch.randn(7, 7, dtype=single if by == "assignment" else dtype)
        layer = nn.Module()
        layer.weight = nn.Parameter(weight)
        sp.constrain(layer, "weight", constraint if by != "default" else NESTED[name](), init="paper")
    finally:
        torch.set_default_dtype(torch.float32)
    if by == "assignment":  # Tensors of another precision take the place of the parameters.
        state = {
            key: t.to(dtype if t.is_complex() else torch.float64) for key, t in layer.state_dict().items()
        }
        layer.load_state_dict(state, assign=True)
    assert layer.weight.dtype == dtype
    assert set(kinds(layer)) <= {torch.float64, dtype}
    for part in layer.modules():
        if isinstance(part, sp.Parametrization):
            assert part.dtype == dtype, part


@pytest.mark.parametrize("name", ["ScoRNN", "SpectralRNN", "NNRNN", "GORU", "ORNN", "EUNN", "URNN", "ScuRNN"])
def test_a_network_built_in_double_precision_has_nothing_else(name) -> None:
    network = getattr(sp.nn, name)
    complex_ = network(3, 4)(torch.zeros(1, 1, 3))[1].is_complex()
    rnn = network(3, 6, dtype=torch.complex128 if complex_ else torch.float64)
    assert set(kinds(rnn)) <= {torch.float64, torch.complex128}


MIXED = {
    "ScuRNN": lambda: sp.nn.ScuRNN(3, 5),
    "EUNN": lambda: sp.nn.EUNN(3, 5, dtype=torch.float32),
    "GORU": lambda: sp.nn.GORU(3, 5),
    "ENRNN": lambda: sp.nn.ENRNN(3, 3, 2),
}


@pytest.mark.parametrize("name", MIXED)
def test_input_of_higher_precision_is_refused_and_the_remedies_work(name) -> None:
    rnn = MIXED[name]()
    (cell,) = rnn.cells
    kind = rnn(torch.zeros(1, 1, 3))[1].dtype
    x, h = torch.randn(4, 2, 3, dtype=torch.float64), torch.zeros(2, 5, dtype=kind)
    finer = h.to(torch.promote_types(kind, torch.float64))
    for call in (lambda: rnn(x), lambda: cell(x[0]), lambda: cell(x[0], h)):
        with refused("input", r"\.to\(torch\.float32\)"):
            call()
    for call in (lambda: rnn(x.float(), finer[None]), lambda: cell(x[0].float(), finer)):
        with refused("hx"):
            call()
    expected = rnn(x.to(torch.float32), h[None])
    # Lower precision loses nothing.
    assert rnn(x.bfloat16(), h[None])[0].dtype == expected[0].dtype
    assert torch.equal(cell(x[0].float(), h), cell(x[0].float()))
    output, h_n = rnn.to(torch.float64)(x, h[None])
    assert h_n.dtype == finer.dtype
    torch.testing.assert_close(output.to(expected[0].dtype), expected[0], rtol=1e-4, atol=1e-5)


def test_integers_are_taken() -> None:
    rnn = sp.nn.ScoRNN(3, 5)
    x = torch.eye(3, dtype=torch.int64)[:, None]
    assert torch.equal(rnn(x)[0], rnn(x.float())[0])


def test_an_analysis_takes_no_state_of_higher_precision() -> None:
    rnn, x = sp.nn.ScoRNN(3, 5), torch.randn(4, 2, 3)
    h = torch.randn(1, 2, 5, dtype=torch.float64)
    with refused("hx", "float64"):
        sp.analysis.gradient_norms(rnn, x, h)
    assert sp.analysis.gradient_norms(rnn, x, h.float()).isfinite().all()
