"""What is proven of gated networks: rates, scalings and starts, against Jacobians and attacks; scaling."""

import math

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.analysis import contraction
from spectral_param.init import contracting_
from tests.messages import refused

KINDS = {"GRU": nn.GRU, "LSTM": nn.LSTM, "ContractingGRU": sp.nn.ContractingGRU}


def network(kind, n, layers, seed, rate=0.97):
    """A network of large weights in double precision, with the rate, and its certificate."""
    torch.manual_seed(seed)
    options = {"rate": rate} if kind == "ContractingGRU" else {}
    net = KINDS[kind](2, n, layers, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1 + 3 * torch.rand(()))
        if kind == "ContractingGRU":
            for cell in net.cells:
                cell.log_scaling.normal_()
            return net, contraction(net)
        for k in range(layers):
            getattr(net, f"bias_ih_l{k}")[n : 2 * n] -= 8  # Gates that hold can be far from 1.
    return net, contracting_(net, rate, 1.0)


def flat(parts, layers):
    """States or scalings of all layers as one vector; of an LSTM h and c of each layer."""
    parts = parts if isinstance(parts, tuple) else (parts,)
    return torch.stack([part.reshape(layers, -1) for part in parts], dim=1).flatten()


def stepped(net, kind, n, layers):
    """One step as a function of the input and the flat state."""

    def step(x, state):
        parts = state.view(layers, -1, n)
        if kind == "LSTM":
            h, c = (parts[:, k][:, None].contiguous() for k in range(2))
            return flat(net(x[None, None], (h, c))[1], layers)
        return flat(net(x[None, None], parts.contiguous())[1], layers)

    return step


def starts(certificate, layers, corners):
    """A start within the bounds, at a corner of them for even numbers."""
    bound = flat(certificate.starts, layers)
    point = 2 * torch.rand(len(bound), dtype=torch.float64) - 1
    return bound * (point.sign() if corners else point)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "points"), [(1, 10), pytest.param(4, 25, marks=pytest.mark.nightly)])
@pytest.mark.turns(1)
def test_jacobians_obey_the_inequality(kind, layers, n, points) -> None:
    net, certificate = network(kind, n, layers, seed=n)
    assert certificate.rate <= 0.97 * (1 + 1e-5)
    d, step = flat(certificate.scaling, layers), stepped(net, kind, n, layers)
    for k in range(points):
        x = 2 * torch.rand(2, dtype=torch.float64) - 1
        x = x.sign() if k % 3 else x
        x = 100 * x if kind == "ContractingGRU" else x
        J = torch.autograd.functional.jacobian(lambda h, x=x: step(x, h), starts(certificate, layers, k % 2))
        assert ((J.abs() @ d) / d).max() <= certificate.rate * (1 + 1e-12)


@torch.no_grad()
def moved_inside(net, n, layers):
    """Lower the biases of gates that hold, then scale the recurrent weights; the certificate."""
    for k in range(layers):
        W, b_ih, b_hh = (
            getattr(net, f"{name}_l{k}")[n : 2 * n] for name in ("weight_ih", "bias_ih", "bias_hh")
        )
        b_ih -= (W.abs().sum(dim=1) + b_ih + b_hh - 2).clamp(min=0)  # σ(2) = 0.88
    return contracting_(net, 0.97, 1.0)


@pytest.mark.parametrize(("networks", "steps"), [(1, 10), pytest.param(20, 400, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_finds_a_slower_rate(kind, layers, networks, steps) -> None:
    """Adam over weights inside the set, an input, and two starts."""
    n = 4
    for seed in range(networks):
        net, certificate = network(kind, n, layers, seed)
        size = len(flat(certificate.scaling, layers))
        free = [torch.randn(2, dtype=torch.float64), torch.randn(2, size, dtype=torch.float64)]
        optimizer = torch.optim.Adam([*net.parameters(), *(t.requires_grad_() for t in free)], lr=3e-2)
        for _ in range(steps):
            if kind == "ContractingGRU":
                certificate = contraction(net)
                assert certificate.rate <= 0.97 * (1 + 1e-5)
            else:
                certificate = moved_inside(net, n, layers)
                assert certificate.rate <= 0.97
            d, bound = flat(certificate.scaling, layers), flat(certificate.starts, layers)
            x = free[0] * 10 if kind == "ContractingGRU" else free[0].tanh()
            h = bound * free[1].tanh()
            step = stepped(net, kind, n, layers)
            before = ((h[0] - h[1]) / d).abs().max()
            quotient = ((step(x, h[0]) - step(x, h[1])) / d).abs().max() / before
            assert quotient <= certificate.rate * (1 + 1e-9) + 1e-12 / before
            optimizer.zero_grad()
            (-quotient).backward()
            optimizer.step()


@pytest.mark.parametrize("networks", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_networks_inside_come_back_bit_for_bit(networks) -> None:
    for seed in range(networks):
        torch.manual_seed(seed)
        gru = nn.GRU(3, 6)
        with torch.no_grad():
            gru.weight_hh_l0.mul_(0.1 if seed % 2 else 0.05)
        before = {name: t.clone() for name, t in gru.state_dict().items()}
        certificate = contraction(gru, 0.5)
        assert certificate.rate is not None
        assert contracting_(gru, certificate.rate, 0.5).rate == certificate.rate
        rnn = sp.nn.ContractingGRU.from_gru(gru, rate=0.98)
        for name, t in gru.state_dict().items():
            assert torch.equal(t, before[name])
        assert torch.equal(rnn.cells[0].bounded()[0], gru.weight_hh_l0)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("layers", "n"), [(1, 10), (2, 4), pytest.param(3, 10, marks=pytest.mark.nightly)])
@pytest.mark.turns(1)
def test_others_are_scaled_to_the_largest_proven_size(kind, dtype, layers, n) -> None:
    torch.manual_seed(0)
    net = kind(3, n, layers, dtype=dtype)
    weights = [getattr(net, f"weight_hh_l{k}") for k in range(layers)]
    before = [U.detach().clone() for U in weights]
    assert contracting_(net, 0.95, 0.5).rate <= 0.95
    for U, old in zip(weights, before, strict=True):
        factor = float(U.detach().norm() / old.norm())
        assert 0 < factor < 1
        torch.testing.assert_close(U.detach(), factor * old)
    with torch.no_grad():
        for U in weights:
            U.mul_(1 + 1e-6)
    assert contraction(net, 0.5).rate > 0.95


def gru_of(weight, bias=-1.0):
    n = weight.shape[1]
    gru = nn.GRU(1, n, dtype=torch.float64)
    with torch.no_grad():
        gru.weight_hh_l0.copy_(weight)
        gru.bias_ih_l0.fill_(bias)
        gru.bias_hh_l0.zero_()
    return gru


def test_reducible_and_cyclic_weights() -> None:
    n = 6
    torch.manual_seed(0)
    cycle = 0.2 * torch.eye(n, dtype=torch.float64).roll(1, 0)
    triangular = 0.2 * torch.randn(n, n, dtype=torch.float64).triu()
    for block in (cycle, triangular, triangular.triu(1), 4.5 * cycle):
        U = torch.cat([cycle.new_zeros(2 * n, n), block])  # The gates read the input alone.
        gru = gru_of(U, bias=-40.0)  # Update gates near 0: the rate is ρ(|U_n|).
        with torch.no_grad():
            gru.bias_ih_l0[2 * n :] = 0
        exact = torch.linalg.eigvals(block.abs()).abs().max()
        rate = contraction(gru, 1.0).rate
        assert (
            exact * (1 - 1e-9) <= rate <= exact * (1 + 1e-3) + 0.02
        )  # Reducible: approached, cond(d) < 1e12.
        if block is cycle:
            assert rate == pytest.approx(0.2, rel=1e-6)


def test_zero_weights_have_the_rate_of_the_gates() -> None:
    gru = gru_of(torch.zeros(12, 4))
    reach = torch.sigmoid(gru.weight_ih_l0[4:8, 0].abs() - 1).max().item()
    assert contraction(gru, 1.0).rate == pytest.approx(reach, rel=1e-9)


def test_a_saturated_gate_holds_and_has_the_rate_one() -> None:
    gru = gru_of(0.02 * torch.randn(12, 4), bias=60.0)
    certificate = contraction(gru, 1.0)
    assert certificate.rate == 1
    assert contraction(gru).rate == 1
    with refused("rate"):
        contracting_(gru, 0.99, 1.0)


def test_outside_the_cube_the_inequality_does_not_hold() -> None:
    """Why starts are part of the certificate."""
    _, certificate = network("GRU", 1, 1, seed=3)
    assert torch.equal(certificate.starts, torch.ones(1, 1, dtype=torch.float64))
    _, lstm = network("LSTM", 3, 1, seed=3)
    assert (lstm.starts[0] == 1).all()
    assert (lstm.starts[1] >= 1).all()


def test_without_gates() -> None:
    rnn = sp.nn.ContractingRNN(3, 8, 2, rate=0.9, dtype=torch.float64)
    certificate = contraction(rnn)
    assert certificate.rate <= 0.9 * (1 + 1e-4)
    assert certificate.norm == "2"
    start = 5 * torch.randn(2, 2, 1, 8, dtype=torch.float64)
    x = torch.randn(1, 1, 3, dtype=torch.float64)
    after = [rnn(x, h)[1].detach() for h in start]
    before, after = (((a - b)[:, 0] / certificate.scaling).norm(dim=1).max() for a, b in (start, after))
    assert after <= certificate.rate * before * (1 + 1e-12)
    plain = nn.RNN(3, 4)
    with torch.no_grad():
        plain.weight_hh_l0.fill_(1.0)
    assert contraction(plain).rate is None


def test_cells_lists_and_directions() -> None:
    torch.manual_seed(0)
    cell = nn.LSTMCell(2, 5)
    certificate = contracting_(cell, 0.9, 0.1)
    assert [part.shape for part in certificate.scaling] == [(5,), (5,)]
    row = nn.ModuleList([nn.GRUCell(2, 5), nn.GRUCell(5, 3)])
    for module, bound in zip(row, (0.5, 1.0), strict=True):
        contracting_(module, 0.97, bound)
    assert contraction(row, 0.5).rate == pytest.approx(0.97, rel=1e-4)
    both = nn.GRU(2, 4, 2, bidirectional=True)
    assert contracting_(both, 0.98, 0.5).scaling.shape == (4, 4)
    with refused("module"):
        contraction(nn.ModuleList([nn.GRUCell(2, 5), nn.GRUCell(4, 3)]), 0.5)


def test_obstacles_name_layer_gate_and_bias() -> None:
    gru = nn.GRU(3, 8, 2)
    with torch.no_grad():
        gru.weight_hh_l1.mul_(20)
        gru.weight_hh_l0.zero_()
    assert "layer 1" in contraction(gru, 1.0).obstacle
    lstm = nn.LSTM(3, 8)
    assert "forget gate" in contraction(lstm).obstacle
    assert "modReLU" in contraction(sp.nn.GORU(3, 4)).obstacle
    with torch.no_grad():
        lstm.bias_ih_l0[8 + 2] = 50
    with pytest.raises(ValueError, match="unit 2 can reach"):
        contracting_(lstm, 0.98, 1.0)


def test_each_bad_argument_is_named() -> None:
    gru = nn.GRU(2, 3)
    for bound in (0, -1.0, math.nan, math.inf, "1"):
        with refused("input_bound"):
            contraction(gru, bound)
    for rate in (0, 1.01, math.nan, "fast"):
        with refused("rate"):
            contracting_(gru, rate, 1.0)
    for module in (nn.Linear(2, 2), sp.nn.StateSpace(2, 3, 2), nn.LSTM(2, 4, proj_size=2), nn.ModuleList()):
        with pytest.raises(ValueError, match=r"expected .*got"):
            contraction(module, 1.0)
    with refused("module"):
        contraction(torch.eye(2))
    dropped = nn.GRU(2, 3, 2, dropout=0.5)
    with pytest.raises(ValueError, match=r"eval\(\)"):
        contraction(dropped, 1.0)
    assert contraction(dropped.eval(), 1e-3).obstacle is not None
    with torch.no_grad():
        gru.weight_hh_l0[0, 0] = math.nan
    with pytest.raises(sp.errors.NotFiniteError):
        contraction(gru, 1.0)
    with pytest.raises(ValueError, match="echo_state_"):
        contracting_(nn.RNN(2, 3), 0.9, 1.0)
    constrained = sp.constrain(nn.GRU(2, 3), "weight_hh_l0", sp.SpectralNorm(1.0))
    with pytest.raises(ValueError, match="remove"):
        contracting_(constrained, 0.9, 1.0)
    complex_rnn = sp.nn.BlockRNN(2, [(3, sp.SpectralNorm(0.5))], dtype=torch.complex64)
    with pytest.raises(sp.errors.UnsupportedDtypeError):
        contraction(complex_rnn)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_diagonal_metric_of_gates_warns(kind) -> None:
    net = kind(2, 4)
    with pytest.warns(UserWarning, match=r"contraction.*ContractingGRU"):
        sp.analysis.lyapunov_certificate(net.weight_hh_l0, metric="diagonal")
    with pytest.warns(UserWarning, match=r"contraction.*ContractingGRU"):
        sp.constrain(net, "weight_hh_l0", sp.LyapunovForm(0.9, metric="diagonal"))


def test_products_of_reflections() -> None:
    for rate in (None, 0.9):
        net = sp.nn.DeltaProduct(3, 8, num_heads=2, rate=rate)
        certificate = contraction(net)
        assert certificate.rate == (1 if rate is None else rate)
        assert certificate.norm == "2"
        assert certificate.scaling.shape == certificate.starts.shape == (1, 2, 4, 4)
        assert contraction(net.cells[0]).scaling.shape == (2, 4, 4)
    stack = contraction(sp.nn.DeltaProduct(3, 8, 2, rate=0.9))
    assert stack.rate is None
    assert "layer 1" in stack.obstacle
    assert contraction(nn.ModuleList([net, sp.nn.ContractingGRU(8, 4)])).rate is None
    net.cells[0].weight_ih.data[0, 0] = math.nan
    with refused("finite"):
        contraction(net)


def test_two_layers_of_reflections_move_apart() -> None:
    """What the obstacle says: the second layer reads what differs."""
    torch.manual_seed(0)
    net = sp.nn.DeltaProduct(2, 8, 2, num_heads=2, strength="reflection", dtype=torch.float64)
    x, first = torch.randn(50, 1, 2).double(), torch.randn(2, 1, *net.state_shape).double()
    second = first.clone()
    second[0] += 1e-3 * torch.randn(first[0].shape).double()
    apart = (net(x, first)[1] - net(x, second)[1]).norm() / (first - second).norm()
    assert apart > 2
