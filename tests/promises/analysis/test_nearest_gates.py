"""The member nearest to a GRU or LSTM of which a rate is proven."""

import copy

import pytest
import torch
from torch import nn

from spectral_param.analysis import contraction
from spectral_param.errors import NotFiniteError
from spectral_param.init import contracting_
from tests.messages import refused


def distance(net, other):
    """The Frobenius norm of the difference of all parameters."""
    pairs = zip(net.parameters(), other.parameters(), strict=True)
    return torch.stack([(p - q).double().square().sum() for p, q in pairs]).sum().sqrt().item()


def network(kind, n, layers, dtype=torch.float32, closed=0.0, **options):
    torch.manual_seed(n)
    net = kind(2, n, layers, dtype=dtype, **options)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.mul_(2)
            if "bias_ih" in name:
                parameter[n : 2 * n] -= closed
    return net


CASES = [
    (kind, n, layers, dtype, rate)
    for kind in (nn.GRU, nn.LSTM)
    for n, layers, dtype in ((8, 1, torch.float32), (4, 2, torch.float64), (3, 1, torch.float32))
    for rate in (0.95, 1.0)
]


@pytest.mark.turns(10)
@pytest.mark.parametrize("case", CASES)
def test_the_rate_is_proven_and_less_is_lost_than_by_scaling(case) -> None:
    kind, n, layers, dtype, rate = case
    net = network(kind, n, layers, dtype, closed=4.0)
    given, scaled = copy.deepcopy(net), copy.deepcopy(net)
    assert contraction(given, 1.0).rate is None or contraction(given, 1.0).rate > rate
    assert contracting_(scaled, rate, 1.0).rate <= rate
    certificate = contracting_(net, rate, 1.0, method="nearest")
    assert certificate.rate <= rate
    assert contraction(net, 1.0).rate <= rate
    assert certificate.rate > rate - 0.01  # Not farther inside than it has to be.
    assert distance(net, given) < distance(scaled, given)
    for (name, p), q in zip(net.named_parameters(), given.parameters(), strict=True):
        assert (p * q >= 0).all() or "bias" in name
        if "weight_hh" in name:
            assert (p.abs() <= q.abs()).all()
        else:  # The update or forget gate alone.
            assert torch.equal(p[:n], q[:n])
            assert torch.equal(p[2 * n :], q[2 * n :])
    # A member keeps its bits.
    again = copy.deepcopy(net)
    assert contracting_(again, rate, 1.0, method="nearest").rate == certificate.rate
    assert distance(again, net) == 0


def test_one_unit_is_the_nearest_of_a_grid() -> None:
    """Where the candidate alone reads the state, z + (1 - z) |u| <= r is the condition."""
    u, b, rate = 1.5, 0.5, 0.9
    cell = nn.GRUCell(1, 1, dtype=torch.float64)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.weight_hh[2], cell.bias_ih[1] = u, b
    contracting_(cell, rate, 1.0, method="nearest")
    found_u, found_b = cell.weight_hh[2].item(), (cell.bias_ih[1] + cell.bias_hh[1]).item()
    grid = torch.linspace(-4, b, 200001, dtype=torch.float64)
    z = torch.sigmoid(grid)
    largest = ((rate - z) / (1 - z)).clamp(max=u)
    cost = (largest - u).square() + (grid - b).square() / 2  # Half for each of two biases.
    cost[largest < 0] = torch.inf
    best = cost.argmin()
    assert abs((found_u - u) ** 2 + (found_b - b) ** 2 / 2 - cost[best].item()) < 1e-6
    assert abs(found_u - largest[best].item()) < 1e-3
    assert cell.bias_ih[1].item() - b == pytest.approx(cell.bias_hh[1].item())


@pytest.mark.nightly
def test_a_gate_that_no_scaling_closes_is_closed() -> None:
    net = network(nn.LSTM, 2, 1, closed=-6.0)
    with refused("rate", "forget"):
        contracting_(copy.deepcopy(net), 0.95, 1.0)
    assert contracting_(net, 0.95, 1.0, method="nearest").rate <= 0.95
    without = network(nn.GRU, 2, 1, bias=False)
    assert contracting_(without, 0.95, 1.0, method="nearest").rate <= 0.95


def test_directions_cells_and_inputs_without_a_bound() -> None:
    both = network(nn.GRU, 2, 1, bidirectional=True)
    assert contracting_(both, 0.97, 1.0, method="nearest").scaling.shape == (2, 2)
    gru = network(nn.GRU, 2, 1)
    before = copy.deepcopy(gru)
    assert contracting_(gru, 1.0, method="nearest").rate == 1
    assert torch.equal(gru.weight_ih_l0, before.weight_ih_l0)  # It has no say.
    assert torch.equal(gru.bias_ih_l0, before.bias_ih_l0)


def test_what_is_refused_changes_nothing() -> None:
    gru = network(nn.GRU, 4, 1)
    before = copy.deepcopy(gru)
    for rate, bound, words in [
        (0.9, None, ("rate", "input_bound")),
        (1.5, 1.0, ("rate",)),
        (0.9, -1, ("input_bound",)),
    ]:
        with refused(*words):
            contracting_(gru, rate, bound, method="nearest")
    with refused("method", "nearest"):
        contracting_(gru, 0.9, 1.0, method="closest")
    with refused("module"):
        contracting_(nn.RNN(2, 3), 0.9, 1.0, method="nearest")
    assert distance(gru, before) == 0
    with torch.no_grad():
        gru.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(NotFiniteError):
        contracting_(gru, 0.9, 1.0, method="nearest")
