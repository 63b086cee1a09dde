"""A measured rate of forgetting beside a proven one."""

import copy
import math

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.analysis import MeasuredContraction, contraction
from tests.messages import refused


def test_a_linear_network_is_measured_at_its_spectral_radius() -> None:
    """Each difference is multiplied by the same matrix."""
    torch.manual_seed(0)
    rnn = sp.nn.BlockRNN(2, [(6, sp.SpectralNorm(1.0))], nonlinearity="identity", dtype=torch.float64)
    with torch.no_grad():
        rnn.cells[0].weight_hh = 0.8 * torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))[0]
    found = contraction(rnn, inputs=torch.randn(60, 3, 2))
    assert isinstance(found, MeasuredContraction)
    # The largest entry of a rotated vector is between 1/√6 of its length and all of it.
    slack = 6 ** (0.5 / found.steps)
    assert 0.8 / slack <= found.median <= found.worst <= 0.8 * slack
    assert found.rate == pytest.approx(0.8)
    assert found.pairs == 7 * 3
    assert found.steps == 60


@pytest.mark.parametrize("module", [nn.LSTM(3, 200, num_layers=2), sp.nn.ContractingRNN(3, 200)])
def test_what_is_printed_is_short_however_many_units_there_are(module) -> None:
    found = contraction(module)
    measured = contraction(module, inputs=torch.randn(3, 1, 3), runs=2)
    for of in (found, measured):
        assert str(of).startswith(f"{type(of).__name__}(rate=")
        assert len(str(of)) < 400
        for name in of._fields:
            assert f"{name}=" in str(of)
    assert f"worst={measured.worst!r}" in str(measured)


def test_one_linear_unit_is_measured_exactly() -> None:
    rnn = sp.nn.BlockRNN(1, [(1, sp.SpectralNorm(1.0))], nonlinearity="identity", dtype=torch.float64)
    with torch.no_grad():
        rnn.cells[0].weight_hh = torch.full((1, 1), 0.5, dtype=torch.float64)
    found = contraction(rnn, inputs=torch.zeros(40, 1, 1), runs=3)
    assert found.worst == pytest.approx(0.5, rel=1e-9)
    assert found.median == pytest.approx(0.5, rel=1e-9)
    assert found.steps == 29  # 2^-29 is above 1e-9.


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.turns(2)
def test_rates_are_those_of_runs_by_hand(kind) -> None:
    torch.manual_seed(1)
    net, x = kind(3, 5, 2), torch.rand(12, 2, 3)
    before = [p.clone() for p in net.parameters()]
    state = torch.get_rng_state()
    found = contraction(net, 1.0, inputs=x, runs=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert found.pairs == 4
    assert found[:5] == contraction(net, 1.0)[:1] + found[1:5]
    # Other starts of the same box have a similar rate.
    exact = copy.deepcopy(net).double()
    rates = []
    for _ in range(100):
        starts = [2 * torch.rand(2, 2, 5, dtype=torch.float64) - 1 for _ in range(4)]
        ends = []
        for k in (0, 2):
            hx = (starts[k], starts[k + 1]) if kind is nn.LSTM else starts[k]
            last = exact(x.double(), hx)[1]
            ends.append(torch.cat(last) if kind is nn.LSTM else last)
        begin = [torch.cat(starts[k : k + 2]) if kind is nn.LSTM else starts[k] for k in (0, 2)]
        change = (ends[0] - ends[1]).abs().amax(dim=(0, 2)) / (begin[0] - begin[1]).abs().amax(dim=(0, 2))
        rates.append(change ** (1 / 12))
    rates = torch.stack(rates)
    assert rates.min() * 0.95 < found.median <= found.worst < rates.max() * 1.05


@pytest.mark.nightly
def test_a_proven_rate_is_never_exceeded_in_the_long_run() -> None:
    torch.manual_seed(0)
    rnn = sp.nn.ContractingGRU(2, 8, rate=0.9)
    found = contraction(rnn, inputs=5 * torch.randn(200, 4, 2))
    condition = float(found.scaling.max() / found.scaling.min())
    assert found.worst <= found.rate * condition ** (1 / found.steps)
    assert found.steps < 200  # Pairs that have become close are no longer followed.


def test_runs_that_stay_apart_are_seen() -> None:
    """Two stable states of one unit: h -> tanh(3 h)."""
    rnn = nn.RNN(1, 1, bias=False)
    with torch.no_grad():
        rnn.weight_hh_l0.fill_(3)
        rnn.weight_ih_l0.zero_()
    found = contraction(rnn, inputs=torch.zeros(400, 3, 1), runs=6)
    assert found.rate is None
    assert found.worst == pytest.approx(1, abs=0.02)
    assert found.steps == 400


def test_layouts_are_those_of_the_network() -> None:
    torch.manual_seed(0)
    net, x = nn.GRU(3, 5), torch.rand(12, 4, 3)
    first = copy.deepcopy(net)
    first.batch_first = True
    found = contraction(net, inputs=x)
    assert contraction(first, inputs=x.transpose(0, 1))[5:] == found[5:]
    assert contraction(net, inputs=x[:, 0]).pairs == 7
    assert math.isfinite(found.worst)


def test_what_cannot_be_measured_is_refused() -> None:
    gru, x = nn.GRU(3, 5), torch.rand(12, 4, 3)
    with refused("inputs"):
        contraction(gru, inputs=[1.0])
    with refused("inputs", error=sp.errors.NotFiniteError):
        contraction(gru, inputs=x * torch.nan)
    with refused("inputs", "input_bound=2.5"):
        contraction(nn.GRU(2, 3), 1.0, inputs=torch.full((4, 1, 2), -2.5))
    with refused("runs"):
        contraction(gru, inputs=x, runs=1)
    with refused("ModuleList"):
        contraction(nn.ModuleList([gru]), inputs=x)
    with refused("bidirectional"):
        contraction(nn.GRU(3, 5, bidirectional=True), inputs=x)
    with refused("GRUCell"):
        contraction(nn.GRUCell(3, 5), inputs=x)
    with refused("module"):
        contraction(nn.Linear(3, 5), inputs=x)
