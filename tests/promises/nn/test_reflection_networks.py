"""ORNN and SpectralRNN: the papers' recurrences written out, constraints in training."""

import pytest
import torch

import spectral_param as sp
from tests.promises.cases import orthogonality_defect
from tests.training import average_inputs


def states(x, h, cell, activation):
    result = []
    for x_t in x:
        h = activation(x_t @ cell.weight_ih.mT + h @ cell.weight_hh.mT + cell.bias)
        result.append(h)
    return torch.stack(result)


@pytest.mark.parametrize("reflections", [None, 3])
@pytest.mark.parametrize(
    ("make", "activation"),
    [(sp.nn.ORNN, lambda z: torch.where(z < 0, 0.1 * z, z)), (sp.nn.SpectralRNN, torch.relu)],
)
def test_states_are_those_of_the_paper(make, activation, reflections) -> None:
    rnn = make(2, 6, reflections=reflections)
    (cell,) = rnn.cells
    torch.nn.init.normal_(cell.bias)
    x, h_0 = torch.randn(5, 3, 2), torch.randn(3, 6)
    torch.testing.assert_close(rnn(x, h_0[None])[0], states(x, h_0, cell, activation))
    sigma = torch.linalg.svdvals(cell.weight_hh)
    torch.testing.assert_close(sigma, torch.ones(6))


@pytest.mark.parametrize("make", [sp.nn.ORNN, sp.nn.SpectralRNN])
def test_complex_networks_and_other_activations(make) -> None:
    x = torch.randn(4, 3, 2)
    rnn = make(2, 5, reflections=2, dtype=torch.complex64, real_output=True)
    assert rnn(x)[0].shape == (4, 3, 10)
    assert rnn.cells[0].nonlinearity == "modrelu"
    assert make(2, 5, nonlinearity="tanh").cells[0].nonlinearity == "tanh"


@pytest.mark.nightly
def test_training_lowers_the_loss_and_keeps_the_constraints() -> None:
    for rnn in (sp.nn.ORNN(2, 16, reflections=6), sp.nn.SpectralRNN(2, 16, margin=0.1, reflections=4)):
        head = torch.nn.Linear(16, 1)
        groups = [{"params": [*rnn.parameters(), *head.parameters()], "lr": 5e-3}]
        losses = average_inputs(rnn, head, groups)
        assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
        W = rnn.cells[0].weight_hh.detach()
        if isinstance(rnn, sp.nn.ORNN):
            assert orthogonality_defect(W).max() < 1e-5
        else:
            sigma = torch.linalg.svdvals(W)
            assert (sigma - 1).abs().max() < 0.1
            assert (sigma - 1).abs().max() > 1e-3
