"""StateSpace: the recurrence, the gain of whole networks, systems in and out, what is refused."""

import copy
import pickle

import pytest
import scipy.signal
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import spectral_param as sp
from spectral_param.analysis import h_infinity
from tests.messages import refused


def by_hand(net, u, x):
    """Outputs and last states by the cells, one step after the other."""
    last, directions = [], net.num_directions
    for layer in range(net.num_layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            state, found = x[i], []
            for step in u.flip(0) if direction else u:
                y, state = net.cells[i](step, state)
                found.append(y)
            last.append(state)
            outputs.append(torch.stack(found[::-1] if direction else found))
        u = torch.cat(outputs, dim=-1)
    return u, torch.stack(last)


@pytest.mark.parametrize("gain", [None, 0.7])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("steps", [1, 9, 400])
def test_all_steps_at_once_are_those_one_by_one(gain, bidirectional, steps) -> None:
    options = {"gain": gain, "bidirectional": bidirectional, "dtype": torch.float64}
    net = sp.nn.StateSpace(3, 4, 2, 2, "tanh", **options)
    u, x = torch.randn(steps, 2, 3).double(), torch.randn(len(net.cells), 2, 4).double()
    with torch.no_grad():
        for given, found in zip(net(u, x), by_hand(net, u, x), strict=True):
            assert torch.allclose(given, found, rtol=0, atol=1e-12)


def test_the_output_comes_before_the_state() -> None:
    # As in scipy.signal: y_t = C x_t + D u_t, so the first output sees the first state.
    net = sp.nn.StateSpace(2, 3, 2, dtype=torch.float64)
    u, x = torch.randn(50, 2).double(), torch.randn(1, 3).double()
    y, last = net(u, x)
    _, expected, states = scipy.signal.dlsim(net.cells[0].to_dlti(), u.numpy(), x0=x[0].numpy())
    assert torch.allclose(y, torch.from_numpy(expected), atol=1e-12)
    A, B, _, _ = net.cells[0].system()
    assert torch.allclose(last[0], A @ torch.from_numpy(states[-1]) + B @ u[-1], atol=1e-12)


@pytest.mark.parametrize(
    ("nonlinearity", "bidirectional"),
    [(None, True), ("relu", False), ("tanh", True), ("leaky_relu", False), ("elu", False)],
)
@pytest.mark.turns(3)
def test_the_gain_of_a_network_holds_under_attack(nonlinearity, bidirectional) -> None:
    gain = 1.5
    net = sp.nn.StateSpace(2, 4, 3, 2, nonlinearity, gain, bidirectional=bidirectional, dtype=torch.float64)
    u, v = (torch.randn(12, 1, 2).double().requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([*net.parameters(), u, v], lr=0.05)
    found = torch.zeros(())
    for _ in range(25):
        optimizer.zero_grad()
        found = (net(u)[0] - net(v)[0]).norm() / (u - v).norm()
        assert found <= gain * (1 + 1e-9)
        (-found).backward()
        optimizer.step()
    assert found > 0.3 * gain  # The attack is one.


@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_and_directions_share_the_gain(bidirectional) -> None:
    net = sp.nn.StateSpace(2, 4, 3, 3, gain=2.0, bidirectional=bidirectional, dtype=torch.float64)
    product = 1.0
    for layer in torch.arange(len(net.cells)).reshape(3, -1).tolist():
        bounds = [net.cells[i].gain for i in layer]
        product *= sum(bound**2 for bound in bounds) ** 0.5
        for i in layer:
            assert h_infinity(net.cells[i].to_dlti()) <= net.cells[i].gain
    assert product == pytest.approx(2.0)


@pytest.mark.parametrize("gain", [None, 1.0])
def test_the_radius_holds_after_training(gain) -> None:
    net = sp.nn.StateSpace(2, 4, 2, gain=gain, radius=0.8)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        net(torch.ones(40, 2))[0][-1].sum().neg().backward()
        optimizer.step()
    assert sp.functional.spectral_radius(net.cells[0].system()[0].double()) <= 0.8 * (1 + 1e-6)


@pytest.mark.parametrize("gain", [None, 1.0])
def test_shapes_are_those_of_torch(gain) -> None:
    for options in ({}, {"batch_first": True}, {"bidirectional": True}):
        net = sp.nn.StateSpace(3, 4, 5, 2, gain=gain, **options)
        like = torch.nn.RNN(3, 4, 2, **options)
        factor = 2 if net.bidirectional else 1
        for shape in ((7, 2, 3), (7, 3)):
            (y, x), (y_like, x_like) = net(torch.randn(shape)), like(torch.randn(shape))
            assert y.shape == (*y_like.shape[:-1], 5 * factor)
            assert y.shape[-1] == net.output_size
            assert x.shape == x_like.shape


def test_packed_sequences_are_sequences_side_by_side() -> None:
    net = sp.nn.StateSpace(3, 4, 2, 2, "relu", 1.0, bidirectional=True, dtype=torch.float64)
    u, lengths = torch.randn(9, 3, 3).double(), [9, 5, 1]
    packed, last = net(pack_padded_sequence(u, lengths))
    y, _ = pad_packed_sequence(packed)
    for i, length in enumerate(lengths):
        alone, x = net(u[:length, i])
        assert torch.allclose(y[:length, i], alone, atol=1e-12)
        assert torch.allclose(last[:, i], x, atol=1e-12)


@pytest.mark.parametrize("gain", [None, 3.0])
def test_a_cell_starts_from_a_system_and_returns_it(gain) -> None:
    A = [[0.9, 0.2], [-0.1, 0.8]]
    system = scipy.signal.dlti(A, [[1.0], [0.0]], [[0.1, 0.2]], [[0.5]], dt=1.0)
    cell = sp.nn.StateSpace(1, 2, 1, gain=gain, dtype=torch.float64).cells[0]
    cell.start_from(system)
    for name in "ABCD":
        assert getattr(cell.to_dlti(), name) == pytest.approx(getattr(system, name), abs=1e-9)
    cell.start_from((A, [[1.0], [0.0]], [[9.0, 9.0]], None))
    if gain is not None:
        assert h_infinity(cell.to_dlti()) == pytest.approx(gain, rel=1e-5)


@pytest.mark.parametrize("gain", [None, 1.0])
def test_copies_and_resets(gain) -> None:
    net = sp.nn.StateSpace(2, 4, 3, 2, "relu", gain)
    u = torch.randn(6, 2)
    y = net(u)[0]
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(u)[0], y)
    other = sp.nn.StateSpace(2, 4, 3, 2, "relu", gain)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(u)[0], y)
    net.reset_parameters()
    assert not torch.allclose(net(u)[0], y)
    on_meta = sp.nn.StateSpace(2, 4, 3, gain=gain, device="meta").to_empty(device="cpu")
    on_meta.reset_parameters()
    assert on_meta(u)[0].isfinite().all()
    sp.remove(net)
    net.reset_parameters()
    assert net(u)[0].isfinite().all()


def test_an_exported_program_has_operators_of_torch_alone() -> None:
    net = sp.nn.StateSpace(2, 4, 3, 2, "relu", 1.0).eval()
    sp.remove(net)
    u = torch.randn(5, 1, 2)
    program = torch.export.export(net, (u,))
    assert not any("spectral_param" in str(node.target) for node in program.graph.nodes)
    assert torch.allclose(program.module()(u)[0], net(u)[0], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nonlinearity", {"nonlinearity": "gelu"}),
        ("nonlinearity", {"nonlinearity": torch.relu}),
        ("gain", {"gain": 0.0}),
        ("gain", {"gain": float("nan")}),
        ("radius", {"radius": 1.1}),
        ("radius", {"gain": 1.0, "radius": 0.0}),
        ("moduli", {"moduli": (0.5, 2.0)}),
        ("state_size", {"state_size": 0}),
        ("output_size", {"output_size": 0}),
        ("dtype", {"dtype": torch.complex64}),
        ("bias", {"bias": "yes"}),
    ],
)
def test_arguments_out_of_range_are_refused(name, options) -> None:
    with refused(name):
        sp.nn.StateSpace(**{"input_size": 2, "state_size": 3, "output_size": 2, **options})


def test_systems_that_do_not_fit_are_refused() -> None:
    cell = sp.nn.StateSpace(1, 2, 1).cells[0]
    with refused("A"):
        cell.start_from(([[0.5]], [[1.0]], [[1.0]], None))
    with refused("system", "continuous"):
        cell.start_from(scipy.signal.lti([1.0], [1.0, 2.0, 1.0]))
    with refused("system"):
        cell.start_from(([[0.5]], [[1.0]]))
    with refused("system"):
        cell.start_from(5)
    with refused("input"):
        cell(torch.randn(2, 3, 1))
    with refused("hx"):
        cell(torch.randn(2, 1), torch.randn(2, 3))
