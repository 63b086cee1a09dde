"""The networks that the library's are compared with, and the optimizer of one of them."""

import copy
import itertools

import numpy as np
import pytest
import torch

import spectral_param as sp
from examples.papers.networks import (
    GRU,
    IRNN,
    LSTM,
    FullCapacityURNN,
    RNNOrth,
    StiefelRMSprop,
    stiefel_groups,
)
from examples.papers.networks.full_capacity import Stiefel, stiefel_step
from spectral_param.testing import Case, conformance
from tests.promises.cases import orthogonal, orthogonality_defect

DTYPES = [torch.float64, torch.complex128]
CASE = Case(
    name="Stiefel",
    make=lambda shape: Stiefel(),
    member=orthogonal,
    violation=orthogonality_defect,
    outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
    holds_far=False,
    variant=True,
)
# The original is the weight itself. That it stays in the set is the contract of the optimizer, which is not
# asked by another optimizer's step, a mean of two models, a conversion or a write from elsewhere.
NOT_KEPT = {"constraint_holds", "averaging", "half_and_back", "write_during_a_read"}
KEPT = [trial for trial in conformance(CASE) if str(trial.check) not in NOT_KEPT]


@pytest.mark.parametrize("trial", KEPT, ids=str)
@pytest.mark.turns(3)
def test_contract_of_the_mark(trial) -> None:
    trial()


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float64, 3 * 10), (torch.complex128, 3 * 25)])
def test_free_parameters_are_the_dimension_of_the_manifold(dtype, expected) -> None:
    assert Stiefel().free_parameters(torch.empty(3, 5, 5, dtype=dtype)) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_step_written_out_in_numpy(dtype) -> None:
    W, G = orthogonal((6, 6), dtype), torch.randn(6, 6, dtype=dtype)
    w, g = W.numpy(), G.numpy()
    a = g @ w.conj().T - w @ g.conj().T
    expected = np.linalg.inv(np.eye(6) + 0.15 * a) @ (np.eye(6) - 0.15 * a) @ w
    np.testing.assert_allclose(stiefel_step(W, G, 0.3).numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lr", [1e-3, 1.0, 100.0])
def test_step_stays_on_the_manifold_however_long(dtype, lr) -> None:
    W = stiefel_step(orthogonal((3, 7, 7), dtype), torch.randn(3, 7, 7, dtype=dtype), lr)
    assert orthogonality_defect(W).max() < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_change_of_the_loss_is_that_of_the_derivation(dtype) -> None:
    W = orthogonal((5, 5), dtype).requires_grad_()
    target = torch.randn(5, 5, dtype=dtype)

    def loss(W):
        return ((W @ W - target).abs() ** 4).sum()

    loss(W).backward()
    A = W.grad @ W.mH - W @ W.grad.mH
    lr = 1e-7
    with torch.no_grad():
        change = (loss(stiefel_step(W, W.grad, lr)) - loss(stiefel_step(W, W.grad, -lr))) / (2 * lr)
    assert change.item() == pytest.approx(-0.5 * (A.abs() ** 2).sum().item(), rel=1e-5)


def steps_in_numpy(w, gradients, lr, alpha, eps, normalize):
    """The update of the paper in real arithmetic: W as [[Re, -Im], [Im, Re]]."""

    def composite(z):
        return np.block([[z.real, -z.imag], [z.imag, z.real]])

    n = len(w)
    w, v = composite(w), np.zeros((2 * n, 2 * n))
    for g in map(composite, gradients):
        if normalize:
            v = alpha * v + (1 - alpha) * g**2
            g = g / (np.sqrt(v) + eps)
        a = g @ w.T - w @ g.T
        w = np.linalg.inv(np.eye(2 * n) + lr / 2 * a) @ (np.eye(2 * n) - lr / 2 * a) @ w
    return w[:n, :n] + 1j * w[n:, :n]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_are_those_of_the_paper(dtype, normalize) -> None:
    start = orthogonal((5, 5), dtype)
    W = torch.nn.Parameter(start.clone())
    optimizer = StiefelRMSprop([W], lr=0.05, alpha=0.7, eps=1e-3, stiefel=True, normalize=normalize)
    gradients = [torch.randn(5, 5, dtype=dtype) for _ in range(4)]
    for G in gradients:
        W.grad = G
        optimizer.step()
    expected = steps_in_numpy(start.numpy(), [G.numpy() for G in gradients], 0.05, 0.7, 1e-3, normalize)
    np.testing.assert_allclose(W.detach().numpy(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("stiefel", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_that_are_conjugated_lazily(stiefel, normalize) -> None:
    start, x = orthogonal((5, 5), torch.complex128), torch.randn(3, 5, dtype=torch.complex128)
    W, other = (torch.nn.Parameter(start.clone()) for _ in range(2))
    for matrix in (W, other):
        optimizer = StiefelRMSprop([matrix], lr=0.05, stiefel=stiefel, normalize=normalize)
        (x @ matrix.mH).abs().sum().backward()
        if matrix is W:
            assert matrix.grad.is_conj()
        else:
            matrix.grad = matrix.grad.resolve_conj()
        optimizer.step()
    assert torch.equal(W, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_parameters_step_as_with_torchs_rmsprop(dtype) -> None:
    ours = [torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((3, 4), (5,), ())]
    theirs = copy.deepcopy(ours)
    optimizers = [
        StiefelRMSprop(ours, lr=0.02, alpha=0.95),
        torch.optim.RMSprop(theirs, lr=0.02, alpha=0.95),
    ]
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_descends_to_the_nearest_unitary_matrix_and_stays_unitary(dtype) -> None:
    target = torch.linalg.matrix_exp(0.3 * (T := torch.randn(6, 6, dtype=dtype)) - 0.3 * T.mH)
    W = torch.nn.Parameter(torch.eye(6, dtype=dtype))
    optimizer = StiefelRMSprop([W], lr=0.05, stiefel=True, normalize=False)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (W - target).abs().square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(losses))
    assert losses[-1] < 1e-6 * losses[0]
    assert orthogonality_defect(W.detach()).max() < 1e-12


def test_groups_of_a_model() -> None:
    rnn = FullCapacityURNN(2, 4, num_layers=2, bidirectional=True)
    assert rnn(torch.randn(5, 3, 2))[0].dtype == torch.float32
    for model in (rnn, copy.deepcopy(rnn)):
        others, matrices = stiefel_groups(model, lr=1e-2, stiefel_lr=1e-3)
        assert [group["lr"] for group in (others, matrices)] == [1e-2, 1e-3]
        assert [tuple(p.shape) for p in matrices["params"]] == [(4, 4)] * 4
        assert len(others["params"]) == 8
    (only,) = stiefel_groups(sp.nn.ScoRNN(2, 4), lr=1e-2, stiefel_lr=1e-3)
    assert not only["stiefel"]


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"lr": -1.0}, "lr: expected a number at least 0, got -1"),
        ({"alpha": 1.0}, "alpha: expected a number from 0 to below 1, got 1"),
        ({"eps": -1e-8}, "eps: expected a number at least 0"),
    ],
)
def test_optimizer_arguments_out_of_range_are_named(kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        StiefelRMSprop([torch.nn.Parameter(torch.ones(3, 2))], **kwargs)


@pytest.mark.parametrize(("ours", "theirs"), [(LSTM, torch.nn.LSTM), (GRU, torch.nn.GRU)])
def test_gated_network_computes_what_torchs_does_with_the_same_weights(ours, theirs) -> None:
    rnn, reference = ours(3, 4, batch_first=True), theirs(3, 4, batch_first=True)
    rnn.load_state_dict(reference.state_dict())
    x = torch.randn(5, 6, 3)
    assert torch.equal(rnn(x)[0], reference(x)[0])
    assert rnn.output_size == reference(x)[0].shape[-1]


@pytest.mark.parametrize("forget_bias", [1.0, -4.0])
@pytest.mark.parametrize("second_bias", [False, True])
def test_forget_gates_start_with_the_given_bias(forget_bias, second_bias) -> None:
    lstm = LSTM(3, 4, forget_bias=forget_bias, second_bias=second_bias)
    torch.nn.init.ones_(lstm.bias_ih_l0)
    lstm.reset_parameters()
    i, f, g, o = (lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
    assert torch.equal(f, torch.full((4,), forget_bias))
    assert bool(torch.cat([i, g, o]).any()) == second_bias


@pytest.mark.parametrize(("make", "gates"), [(LSTM, 4), (GRU, 3)])
def test_one_trained_bias_for_each_gate(make, gates) -> None:
    rnn = make(3, 5)
    assert sp.num_free_parameters(rnn) == gates * (5 * 5 + 5 * 3 + 5)
    rnn(torch.randn(4, 2, 3))[0].sum().backward()
    assert rnn.bias_hh_l0.grad is None
    assert rnn.bias_ih_l0.grad.any()


def test_unconstrained_networks_start_as_their_papers_say() -> None:
    irnn, orth = IRNN(2, 40), RNNOrth(2, 8)
    assert torch.equal(irnn.cells[0].weight_hh, torch.eye(40))
    assert irnn.cells[0].weight_ih.detach().std().item() == pytest.approx(0.001, rel=0.3)
    assert orthogonality_defect(orth.cells[0].weight_hh.detach()) < 1e-5
    assert sp.num_free_parameters(orth) == 8 * 8 + 8 * 2 + 8
