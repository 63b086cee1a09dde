"""What every layer can do as a module: be pickled, be built without memory, start anew, say its options."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

import spectral_param as sp
from tests.promises.cases import orthogonality_defect, radii

LAYERS = {
    "BlockRNN": lambda **k: sp.nn.BlockRNN(
        3, [(4, sp.ScaledCayley()), (2, None), (3, sp.SpectralRadiusNorm())], coupling=True, **k
    ),
    "ENRNN": lambda **k: sp.nn.ENRNN(3, 5, 4, **k),
    "ENRNN of two layers": lambda **k: sp.nn.ENRNN(3, 5, 4, num_layers=2, bidirectional=True, **k),
    "ScuRNN": lambda **k: sp.nn.ScuRNN(3, 9, **k),
    "ORNN": lambda **k: sp.nn.ORNN(3, 9, reflections=4, **k),
    "NNRNN": lambda **k: sp.nn.NNRNN(3, 9, **k),
    "GORU": lambda **k: sp.nn.GORU(3, 9, **k),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def trained(make):
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(5, 2, 3))[0].square().mean().backward()
        optimizer.step()
    return layer


def through_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


def through_a_file(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every_layer
@pytest.mark.parametrize("copied", [through_pickle, through_a_file, copy.deepcopy])
@pytest.mark.turns(3)
def test_copies_of_trained_layers(make, copied) -> None:
    layer = trained(make)
    x = torch.randn(5, 2, 3)
    output = layer(x)[0]  # with a graph
    layer.cells[0].bias.requires_grad_(False)
    layer.eval()
    other = copied(layer)
    assert torch.equal(other(x)[0], output)
    assert not other.training
    assert not other.cells[0].bias.requires_grad
    assert list(other.state_dict()) == list(layer.state_dict())
    # Neither is tied to the other, and each can be taken apart.
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    assert torch.equal(layer(x)[0], output)
    parametrize.remove_parametrizations(other.cells[0], "weight_hh")
    assert parametrize.is_parametrized(layer.cells[0], "weight_hh")
    other.train()(x)[0].sum().backward()
    assert torch.equal(copied(other)(x)[0], other(x)[0])


@every_layer
@pytest.mark.turns(3)
def test_built_without_memory_and_started_afterwards(make) -> None:
    torch.manual_seed(0)
    expected = make()
    with torch.device("meta"):
        layer = make()
    assert all(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    x = torch.randn(5, 2, 3)
    output, h_n = layer(x.to("meta"))
    assert output.is_meta
    assert (output.shape, h_n.shape) == tuple(t.shape for t in expected(x))
    layer.to_empty(device="cpu")
    torch.manual_seed(0)
    layer.reset_parameters()
    for (name, found), wanted in zip(layer.state_dict().items(), expected.state_dict().values(), strict=True):
        assert torch.equal(found, wanted), name
    assert torch.equal(layer(x)[0], expected(x)[0])


@every_layer
@pytest.mark.turns(3)
def test_start_anew_after_training(make) -> None:
    torch.manual_seed(0)
    expected = make().state_dict()
    layer = trained(make)
    torch.manual_seed(0)
    layer.reset_parameters()
    x = torch.randn(5, 2, 3)
    torch.manual_seed(0)
    fresh = make()
    for (name, found), wanted in zip(layer.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(found, wanted), name
    assert torch.equal(layer(x)[0], fresh(x)[0])
    assert list(expected) == list(layer.state_dict())


def test_start_anew_from_init_and_without_the_constraint() -> None:
    rnn = sp.nn.ScoRNN(3, 4, init=torch.nn.init.eye_)
    with torch.no_grad():
        rnn.cells[0].parametrizations.weight_hh.original0.normal_()
    rnn.reset_parameters()
    torch.testing.assert_close(rnn.cells[0].weight_hh, torch.eye(4))
    parametrize.remove_parametrizations(rnn.cells[0], "weight_hh")
    torch.nn.init.zeros_(rnn.cells[0].weight_hh)
    rnn.reset_parameters()
    torch.testing.assert_close(rnn.cells[0].weight_hh.detach(), torch.eye(4))


def test_start_anew_in_double_precision() -> None:
    rnn = sp.nn.ENRNN(3, 5, 4, mode="equal").double()
    rnn.reset_parameters()
    W = rnn.cells[0].weight_hh.detach()
    assert W.dtype == torch.float64
    assert orthogonality_defect(W[:5, :5]).max() < 1e-12
    assert radii(W[5:, 5:]).item() == pytest.approx(1, abs=1e-12)


@every_layer
@pytest.mark.turns(3)
def test_forward_of_fake_tensors(make) -> None:
    layer, x = make(), torch.randn(5, 2, 3)
    expected = [t.shape for t in layer(x)]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert [t.shape for t in layer(mode.from_tensor(x))] == expected


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [LAYERS["ENRNN"], LAYERS["GORU"]], ids=["ENRNN", "GORU"])
def test_a_traced_layer_follows_its_parameters(make) -> None:
    layer, x = make(), torch.randn(5, 2, 3)
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.testing.assert_close(traced(x), layer(x))


NETWORKS = [
    kind
    for kind in vars(sp.nn).values()
    if inspect.isclass(kind) and issubclass(kind, sp.nn.BlockRNN) and kind is not sp.nn.BlockRNN
]


@pytest.mark.parametrize("kind", NETWORKS, ids=lambda kind: kind.__name__)
def test_signatures_are_complete(kind) -> None:
    shared = inspect.signature(sp.nn.BlockRNN).parameters
    found = inspect.signature(kind).parameters
    assert not any(p.kind is p.VAR_KEYWORD for p in found.values())
    missing = shared.keys() - found.keys() - {"blocks", "coupling"}
    assert not missing
    required = {name: 3 for name, p in found.items() if p.default is p.empty}
    kind(**required, batch_first=True, return_output=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'drop_out'"):
        kind(**required, drop_out=0.1)
    for dtype in ("float32", torch.int64, float):
        with pytest.raises(
            ValueError, match=f"dtype: expected .* got {dtype!r}. Pass for example torch.float32"
        ):
            kind(**required, dtype=dtype)


def test_the_hidden_size_of_enrnn() -> None:
    with pytest.raises(TypeError, match="'long_size' and 'short_size'"):
        sp.nn.ENRNN(2, hidden_size=64)
    with pytest.raises(TypeError, match="hidden_size: expected long_size and short_size"):
        sp.nn.ENRNN(2, 40, 24, hidden_size=64)
