"""NNRNN and ExpRNN: what their recurrent matrices are, and still are after training."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch

import spectral_param as sp
from spectral_param.errors import UnsupportedDtypeError
from tests.promises.cases import orthogonality_defect


def train(rnn, steps=120, after_step=lambda step: None):
    """The adding problem of length 20 with the loss of the nnRNN paper; returns the losses."""
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(rnn.hidden_size, 1, dtype=torch.float64)
    optimizer = torch.optim.RMSprop([*rnn.parameters(), *head.parameters()], lr=2e-3)
    losses = []
    for step in range(1, steps + 1):
        values = torch.rand(20, 32, dtype=torch.float64, generator=generator)
        marks = torch.zeros(20, 32, dtype=torch.float64)
        for half in (0, 10):
            marks[half + torch.randint(10, (32,), generator=generator), torch.arange(32)] = 1
        output, _ = rnn(torch.stack([values, marks], dim=-1))
        loss = (head(output[-1])[:, 0] - (values * marks).sum(dim=0)).square().mean()
        optimizer.zero_grad()
        (loss + sp.penalty(rnn)).backward()
        optimizer.step()
        after_step(step)
        losses.append(loss.item())
    return losses


def said_and_true(rnn):
    """The largest distance between γ e^{±iθ} and LAPACK's eigenvalues, best matched."""
    (cell,) = rnn.cells
    originals = cell.parametrizations.weight_hh
    gamma, theta = (X.detach().numpy() for X in (originals.original1, originals.original2))
    n = len(gamma)
    pairs = n // 2 * 2
    z = gamma[0:pairs:2] * np.exp(1j * theta[0:pairs:2])
    said = np.concatenate([z, z.conj(), gamma[pairs:]])
    distance = np.abs(np.linalg.eigvals(cell.weight_hh.detach().numpy())[:, None] - said)
    return distance[scipy.optimize.linear_sum_assignment(distance)].max()


@pytest.mark.parametrize(
    ("hidden_size", "P"),
    [(12, sp.ScaledCayley()), pytest.param(13, None, marks=pytest.mark.nightly)],
    ids=["Cayley", "exponential"],
)
def test_eigenvalues_are_what_gamma_and_theta_say_after_training(hidden_size, P) -> None:
    rnn = sp.nn.NNRNN(2, hidden_size, P=P, dtype=torch.float64)
    start = [p.detach().clone() for p in rnn.parameters()]
    losses = train(rnn)
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert all((p - s).abs().max() > 1e-3 for p, s in zip(rnn.parameters(), start, strict=True))
    assert said_and_true(rnn) < 1e-10


@pytest.mark.nightly
def test_the_papers_literal_form_leaves_them() -> None:
    """Note on eq. (5): T's entry inside each block moves the eigenvalues off γ e^{±iθ}."""
    rnn = sp.nn.NNRNN(2, 12, form="paper", dtype=torch.float64)
    assert said_and_true(rnn) < 1e-10, "they are right at the start"
    train(rnn)
    assert said_and_true(rnn) > 1e-2


def test_the_papers_literal_form_is_eq_5() -> None:
    rnn = sp.nn.NNRNN(2, 6, form="paper", dtype=torch.float64)
    train(rnn, steps=5)
    (cell,) = rnn.cells
    T, gamma, theta, A = (
        X.detach().numpy() for X in cell.parametrizations.weight_hh.parameters(recurse=False)
    )
    blocks = cell.parametrizations.weight_hh[0].blocks[0]
    A = np.tril(A, -1) - np.tril(A, -1).T
    P = blocks.P.base.numpy() @ scipy.linalg.expm(A)
    S = np.tril(T, -1)
    for i in (0, 2, 4):
        c, s = np.cos(theta[i]), np.sin(theta[i])
        S[i : i + 2, i : i + 2] += gamma[i] * np.array([[c, -s], [s, c]])
    np.testing.assert_allclose(cell.weight_hh.detach(), P @ S @ P.T, atol=1e-13)


@pytest.mark.nightly
def test_radius_and_departure_reach_the_blocks() -> None:
    rnn = sp.nn.NNRNN(2, 8, radius=0.9, departure=0.5, delta=0.25, dtype=torch.float64)
    train(rnn, steps=50)
    W = rnn.cells[0].weight_hh.detach()
    assert torch.linalg.eigvals(W).abs().max() <= 0.9 + 1e-9
    assert torch.linalg.matrix_norm(W, 2) <= 1.4
    assert rnn.cells[0].parametrizations.weight_hh[0].blocks[0].delta == 0.25


@pytest.mark.parametrize("rebase_every", [None, 1])
@pytest.mark.turns(2)
def test_exp_rnn_stays_orthogonal_and_learns(rebase_every) -> None:
    rnn = sp.nn.ExpRNN(2, 12, angles="cayley", dtype=torch.float64)
    before = rnn.cells[0].weight_hh.detach().clone()

    def after_step(step):
        if rebase_every and step % rebase_every == 0:
            sp.rebase(rnn)

    losses = train(rnn, after_step=after_step)
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    W = rnn.cells[0].weight_hh.detach()
    assert (W - before).abs().max() > 0.01
    assert orthogonality_defect(W).max() < 1e-13


def test_exp_rnn_takes_what_block_rnn_takes() -> None:
    rnn = sp.nn.ExpRNN(3, 5, num_layers=2, bidirectional=True, batch_first=True)
    assert rnn(torch.randn(2, 7, 3))[0].shape == (2, 7, 10)
    assert sp.num_free_parameters(sp.nn.ExpRNN(1, 10)) == 45 + 10 + 10
    assert sp.num_free_parameters(sp.nn.NNRNN(1, 10)) == 100 + 10 + 10


@pytest.mark.parametrize("network", [sp.nn.ExpRNN, sp.nn.NNRNN])
def test_complex_networks_are_refused(network) -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"expected.*got torch\.complex64"):
        network(2, 4, dtype=torch.complex64)
