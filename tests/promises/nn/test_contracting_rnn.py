"""ContractingRNN: what it forgets, after training too, and which activations are refused."""

import pytest
import torch

import spectral_param as sp
from tests.messages import refused


def trained_to_remember(**options):
    """A network that training drives to keep where it started from."""
    rnn = sp.nn.ContractingRNN(3, 16, dtype=torch.float64, **options)
    optimizer = torch.optim.Adam(rnn.parameters(), lr=1e-2)
    for _ in range(60):
        x, starts = torch.randn(10, 8, 3).double(), torch.randn(2, 1, 8, 16).double()
        first, second = (rnn(x, start)[1] for start in starts)
        optimizer.zero_grad()
        (-(first - second).norm()).backward()
        optimizer.step()
    return rnn


@pytest.mark.parametrize("options", [{"rate": 0.9}, {"rate": 0.9, "nonlinearity": "tanh", "growth": 3.0}])
@pytest.mark.turns(2)
def test_two_trajectories_stay_inside_the_envelope(options) -> None:
    rnn = trained_to_remember(**options)
    W = rnn.cells[0].weight_hh.detach()
    _, rate, _, condition = sp.analysis.lyapunov_certificate(W, 0.9, metric="diagonal")
    assert rate <= 0.9 * (1 + 1e-9)
    if "growth" in options:
        assert sp.functional.scaled_norm(W, condition=3.0) <= 0.9 * (1 + 1e-7)
    starts, x = torch.randn(2, 1, 4, 16).double(), torch.randn(60, 4, 3).double()
    first, second = (rnn(x, start)[0].detach() for start in starts)
    distance = (first - second).norm(dim=-1)
    envelope = condition * 0.9 ** torch.arange(1, 61)[:, None] * (starts[0, 0] - starts[1, 0]).norm(dim=-1)
    assert (distance <= envelope * (1 + 1e-9) + 1e-12).all()
    assert (distance[5] > 1e-3).any()  # It remembers what it may.


def test_the_coordinates_of_the_network_keep_its_growth() -> None:
    rnn = trained_to_remember(rate=0.9, growth=3.0)
    links = rnn.cells[0].parametrizations.weight_hh
    square, condition = links[0].blocks[0].certificate(links.original0)
    scaling, W = square.diagonal().sqrt(), rnn.cells[0].weight_hh.detach()
    assert condition <= 3.0 * (1 + 1e-9)
    torch.testing.assert_close(scaling.max() / scaling.min(), condition)
    assert torch.linalg.matrix_norm(scaling[:, None] * W / scaling, 2) <= 0.9 * (1 + 1e-9)


def test_layers_directions_and_flags_are_those_of_torch() -> None:
    rnn = sp.nn.ContractingRNN(3, 5, 2, bidirectional=True, batch_first=True, dropout=0.1)
    reference = torch.nn.RNN(3, 5, 2, bidirectional=True, batch_first=True)
    x = torch.randn(4, 7, 3)
    for one, other in zip(rnn(x), reference(x), strict=True):
        assert one.shape == other.shape


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"nonlinearity": "modrelu"}, "nonlinearity"),
        ({"nonlinearity": torch.nn.GELU()}, "nonlinearity"),
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.01}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"growth": 0.5}, "growth"),
        ({"dtype": torch.complex64}, "dtype"),
    ],
)
def test_each_bad_argument_is_named(options, name) -> None:
    with refused(name):
        sp.nn.ContractingRNN(3, 5, **options)


def test_the_remedy_for_another_activation_works() -> None:
    block = (5, sp.LyapunovForm(0.9, metric="diagonal"))
    rnn = sp.nn.BlockRNN(3, [block], nonlinearity=torch.nn.Softsign())
    x, start = torch.randn(200, 2, 3), 10 * torch.randn(1, 2, 5)
    torch.testing.assert_close(rnn(x)[1], rnn(x, start)[1], rtol=0, atol=1e-4)


def test_an_enrnn_of_two_certified_blocks_contracts_whatever_its_coupling() -> None:
    blocks = [(8, sp.SpectralNorm(0.95)), (6, sp.SpectralNorm(0.5))]
    rnn = sp.nn.BlockRNN(3, blocks, coupling=True, nonlinearity="relu", dtype=torch.float64)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.mul_(20)
    W = rnn.cells[0].weight_hh.detach()
    assert torch.linalg.matrix_norm(W, 2) > 2
    assert sp.functional.scaled_norm(W) <= 0.95 * (1 + 1e-6)
