"""What every network keeps. A new network is a line of NETWORKS."""

import copy
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import spectral_param as sp
from tests.promises.cases import orthogonality_defect, radii
from tests.properties import examples

N = 12
LR, CONSTRAINED_LR = 1e-3, 1e-4


def unconstrained(W: Tensor) -> Tensor:
    return W.new_zeros(())


def modulus_defect(W: Tensor) -> Tensor:
    """How far the spectral radius is from at most 1."""
    return torch.relu(radii(W)[0] - 1)


def enrnn_violation(W: Tensor) -> Tensor:
    return torch.stack([orthogonality_defect(W[:8, :8])[0], modulus_defect(W[8:, 8:])])


def singular_value_defect(W: Tensor) -> Tensor:
    """How far singular values are from 1, beyond the margin of 0.01."""
    return torch.relu((torch.linalg.svdvals(W) - 1).abs().max() - 0.01)


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(sp.param_groups(model, LR, CONSTRAINED_LR), alpha=0.9)


@dataclasses.dataclass(frozen=True)
class Network:
    """One network of N hidden units.

    Attributes:
        name: For the test's id.
        make: From the input size and the arguments of torch.nn.RNN to the network.
        violation: How far a recurrent matrix is from its set.
        optimizer: What trains it.
        tolerance: Of the violation in single precision after 60 steps.
    """

    name: str
    make: Callable[..., nn.Module]
    violation: Callable[[Tensor], Tensor] = unconstrained
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = rmsprop
    tolerance: float = 1e-5


NETWORKS = (
    Network("ENRNN", lambda m, *a, **k: sp.nn.ENRNN(m, 8, N - 8, *a, **k), enrnn_violation),
    Network("ScoRNN", lambda m, *a, **k: sp.nn.ScoRNN(m, N, *a, **k), orthogonality_defect),
    Network(
        "ContractingRNN",
        lambda m, *a, **k: sp.nn.ContractingRNN(m, N, *a, **k),
        lambda W: torch.relu(sp.functional.scaled_norm(W.detach()).float() - 0.99),
        # There is no paper: one learning rate for all parameters.
        optimizer=lambda model: torch.optim.Adam(model.parameters(), 5e-3),
    ),
    Network(
        "ContractingGRU",
        lambda m, *a, **k: sp.nn.ContractingGRU(m, N, *a, **k),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), 5e-3),
    ),
    Network(
        "StateSpace",
        lambda m, *a, **k: sp.nn.StateSpace(m, N, N, *a, **k),
        modulus_defect,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), 5e-3),
    ),
    Network("ScuRNN", lambda m, *a, **k: sp.nn.ScuRNN(m, N, *a, **k), orthogonality_defect),
    Network("NNRNN", lambda m, *a, **k: sp.nn.NNRNN(m, N, *a, **k)),
    Network("NNRNN-radius", lambda m, *a, **k: sp.nn.NNRNN(m, N, *a, radius=1.0, **k), modulus_defect),
    Network("ExpRNN", lambda m, *a, **k: sp.nn.ExpRNN(m, N, *a, **k), orthogonality_defect),
    Network("ORNN", lambda m, *a, **k: sp.nn.ORNN(m, N, *a, **k), orthogonality_defect),
    Network("ORNN-few", lambda m, *a, **k: sp.nn.ORNN(m, N, *a, reflections=4, **k), orthogonality_defect),
    Network("SpectralRNN", lambda m, *a, **k: sp.nn.SpectralRNN(m, N, *a, **k), singular_value_defect),
    Network("EUNN", lambda m, *a, **k: sp.nn.EUNN(m, N, *a, **k), orthogonality_defect),
    Network(
        "EUNN-real",
        lambda m, *a, **k: sp.nn.EUNN(m, N, *a, layers=2, dtype=torch.float32, **k),
        orthogonality_defect,
    ),
    Network("URNN", lambda m, *a, **k: sp.nn.URNN(m, N, *a, **k), orthogonality_defect),
    Network("GORU", lambda m, *a, **k: sp.nn.GORU(m, N, *a, **k), orthogonality_defect),
)


def test_every_network_is_in_the_table() -> None:
    parts = {"BlockRNN", "BlockRNNCell", "GORUCell", "MaxMin", "ModReLU", "Residual", "SequenceLayer"}
    parts |= {"ContractingGRUCell", "Equilibrium", "StateSpaceCell"}
    parts |= {"Adapters", "adapt", "DeltaProduct", "DeltaProductCell"}
    assert {network.name.split("-")[0] for network in NETWORKS} == set(sp.nn.__all__) - parts


every_network = pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)


def last_states(state: Any) -> Tensor:
    """h_n; LSTM has (h_n, c_n)."""
    return state[0] if isinstance(state, tuple) else state


@examples(15)
@given(
    network=st.sampled_from(NETWORKS),
    num_layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    length=st.integers(1, 5),
    batch=st.integers(1, 4),
)
@example(NETWORKS[0], 2, True, True, 5, 4)
@example(NETWORKS[-1], 2, True, True, 5, 4)
def test_shapes_are_those_of_torch_nn_rnn(
    network, num_layers, bidirectional, batch_first, length, batch
) -> None:
    kwargs = {"bidirectional": bidirectional, "batch_first": batch_first}
    rnn = network.make(3, num_layers, **kwargs)
    reference = nn.RNN(3, N, num_layers, **kwargs)
    doubled = rnn.output_size // (N * reference.bidirectional + N)  # Real and imaginary parts.
    assert doubled in (1, 2)
    sizes = (batch, length) if batch_first else (length, batch)
    for x in (torch.randn(*sizes, 3), torch.randn(length, 3)):
        output, state = rnn(x)
        expected_output, expected_state = reference(x)
        assert output.shape == (*expected_output.shape[:-1], rnn.output_size)
        assert last_states(state).shape == expected_state.shape
        assert output.dtype == torch.float32
        rnn(x, state)  # What it returned it takes.


@every_network
def test_an_empty_batch_and_flatten_parameters(network) -> None:
    """Models written for torch.nn.RNN may call it before each pass."""
    rnn = network.make(3)
    rnn.flatten_parameters()
    output, state = rnn(torch.randn(5, 0, 3))
    assert output.shape == (5, 0, rnn.output_size)
    assert last_states(state).shape == (1, 0, N)


@every_network
@pytest.mark.turns(2)
def test_a_sequence_goes_on_from_its_states(network) -> None:
    rnn = network.make(3, 2)
    x = torch.randn(6, 4, 3)
    expected, _ = rnn(x)
    first, state = rnn(x[:2])
    second, _ = rnn(x[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), expected)


@every_network
@pytest.mark.turns(2)
def test_packed_sequences_are_those_one_by_one(network) -> None:
    rnn = network.make(3, 2, bidirectional=True)
    sequences = [torch.randn(length, 3) for length in (2, 6, 4)]
    packed, state = rnn(pack_sequence(sequences, enforce_sorted=False))
    for i, (sequence, output) in enumerate(zip(sequences, unpack_sequence(packed), strict=True)):
        expected, its_state = rnn(sequence)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(last_states(state)[:, i], last_states(its_state))


def adding_problem(length: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    numbers, marks = torch.rand(length, batch, generator=generator), torch.zeros(length, batch)
    for half in marks.chunk(2):
        half.scatter_(0, torch.randint(len(half), (1, batch), generator=generator), 1.0)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(dim=0)


def build(network: Network) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    rnn = network.make(2)
    model = nn.ModuleList([rnn, nn.Linear(rnn.output_size, 1)])
    return model, network.optimizer(model)


def loss_of(model: nn.Module, sequences: tuple[Tensor, Tensor]) -> Tensor:
    rnn, head = model
    x, y = sequences
    return nn.functional.mse_loss(head(rnn(x)[0][-1])[:, 0], y)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, length: int) -> list[float]:
    losses = []
    for step in steps:
        loss = loss_of(model, adding_problem(length, 20, torch.Generator().manual_seed(step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.turns(6)
@pytest.mark.parametrize("network", NETWORKS, ids=(network.name for network in NETWORKS))
def test_training_lowers_the_loss_and_keeps_the_constraint(network) -> None:
    model, optimizer = build(network)
    before = copy.deepcopy(model)
    train(model, optimizer, range(60), length=20)
    with torch.no_grad():
        held_out = adding_problem(20, 200, torch.Generator().manual_seed(1000))
        assert loss_of(model, held_out) < 0.5 * loss_of(before, held_out)
    for name, parameter in model.named_parameters():
        changed = not torch.equal(parameter, before.get_parameter(name))
        assert changed == parameter.requires_grad, name
    for cell in getattr(model[0], "cells", ()):
        assert network.violation(cell.weight_hh.detach()).max() < network.tolerance


@every_network
@pytest.mark.turns(2)
def test_training_resumes_bit_for_bit(network) -> None:
    model, optimizer = build(network)
    train(model, optimizer, range(3), length=8)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    expected = train(model, optimizer, range(3, 7), length=8)
    other, its_optimizer = build(network)
    file.seek(0)
    for part, state in zip((other, its_optimizer), torch.load(file), strict=True):
        part.load_state_dict(state)
    assert train(other, its_optimizer, range(3, 7), length=8) == expected
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@every_network
def test_copies_compute_the_same(network) -> None:
    rnn = network.make(2)
    x = torch.randn(5, 3, 2)
    expected, _ = rnn(x)
    assert torch.equal(copy.deepcopy(rnn)(x)[0], expected)


# What single networks have of their own ------------------------------------------------------------


def test_scurnn_starts_as_its_paper_and_trains_the_phases() -> None:
    W = sp.nn.ScuRNN(2, 200).cells[0].parametrizations.weight_hh
    A, theta = W.original0.detach(), W.original1
    # Rotations by angles uniform in [0, π/2]: |a| = tan(t / 2) beside the diagonal, zero elsewhere.
    angles = 2 * torch.atan(A.diagonal(1)[::2].abs())
    assert (angles.amin() < 0.1) & (angles.amax() > 1.47) & (angles.amax() <= torch.pi / 2)
    assert A.abs().sum().item() == pytest.approx(2 * A.diagonal(1)[::2].abs().sum().item())
    assert (theta.amin() >= 0) & (theta.amin() < 0.2) & (theta.amax() > 6.08) & (theta.amax() < 2 * torch.pi)
    assert theta.requires_grad


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(sp.nn.ScuRNN, torch.complex128), (sp.nn.EUNN, torch.complex64), (sp.nn.URNN, torch.complex128)],
)
def test_real_and_imaginary_parts_of_complex_states(make, dtype) -> None:
    x = torch.randn(4, 3, 2, dtype=dtype.to_real())
    torch.manual_seed(1)
    states, h_n = make(2, 5, dtype=dtype, real_output=False)(x)
    torch.manual_seed(1)
    output, h_n_too = make(2, 5, dtype=dtype)(x)
    assert states.dtype == h_n.dtype == dtype
    assert output.dtype == dtype.to_real()
    torch.testing.assert_close(output, torch.cat([states.real, states.imag], dim=-1))
    torch.testing.assert_close(h_n, h_n_too)


@pytest.mark.parametrize("make", [sp.nn.ScuRNN, sp.nn.EUNN, sp.nn.URNN])
def test_complex_networks_take_the_precision_of_the_default_dtype(make, monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    assert make(2, 5, dtype=None).cells[0].weight_hh.dtype == torch.complex128


@pytest.mark.parametrize(("make", "remedy"), [(sp.nn.ScuRNN, "ScoRNN"), (sp.nn.URNN, "EUNN")])
def test_complex_networks_refuse_a_real_dtype(make, remedy) -> None:
    with pytest.raises(ValueError, match=rf"expected.*got torch.float32.*{remedy}"):
        make(2, 5, dtype=torch.float32)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequence_with_states_of_its_own_is_its_sequences_one_by_one(bidirectional) -> None:
    """Sorted by length, the sequences are in a cycle of three, which is not its own inverse."""
    rnn = sp.nn.ScoRNN(2, 5, num_layers=2, bidirectional=bidirectional)
    lengths = [2, 5, 3]
    x = torch.randn(5, 3, 2)
    hx = torch.randn(len(rnn.cells), 3, 5)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    assert packed.sorted_indices.tolist() != packed.unsorted_indices.tolist()
    output, h_n = rnn(packed, hx)
    padded, _ = nn.utils.rnn.pad_packed_sequence(output)
    for i, length in enumerate(lengths):
        expected, last = rnn(x[:length, i], hx[:, i])
        torch.testing.assert_close(padded[:length, i], expected)
        torch.testing.assert_close(h_n[:, i], last)
