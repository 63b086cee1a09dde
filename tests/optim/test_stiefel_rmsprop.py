"""StiefelRMSprop: RMSprop on most parameters, the multiplicative Cayley step on marked matrices."""

import copy
import io
import itertools

import numpy as np
import pytest
import torch

import spectral_param as sp
from spectral_param.optim import StiefelRMSprop, stiefel_groups
from tests.cases import orthogonal, orthogonality_defect

DTYPES = [torch.float64, torch.complex128]


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
    for _ in range(300):
        optimizer.zero_grad()
        loss = (W - target).abs().square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(losses))
    assert losses[-1] < 1e-6 * losses[0]
    assert orthogonality_defect(W.detach()).max() < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_blocks_step_one_by_one(dtype) -> None:
    W, G = orthogonal((12, 4), dtype), torch.randn(12, 4, dtype=dtype)
    together, apart = torch.nn.Parameter(W.clone()), torch.nn.Parameter(W.clone().view(3, 4, 4))
    together.grad, apart.grad = G, G.view(3, 4, 4)
    for parameter in (together, apart):
        StiefelRMSprop([parameter], lr=0.1, stiefel=True).step()
    assert torch.equal(together.view(3, 4, 4), apart)
    assert orthogonality_defect(apart.detach()).max() < 1e-12


def test_half_precision_steps_in_single() -> None:
    W = torch.nn.Parameter(orthogonal((4, 4), torch.float32).bfloat16())
    W.grad = torch.randn_like(W)
    StiefelRMSprop([W], lr=0.1, stiefel=True).step()
    assert W.dtype == torch.bfloat16
    assert orthogonality_defect(W.detach().float()).max() < 0.05


def model_and_optimizer():
    torch.manual_seed(0)
    rnn = sp.nn.FullCapacityURNN(2, 4, num_layers=2)
    model = torch.nn.ModuleList([rnn, torch.nn.Linear(8, 1)])
    return model, StiefelRMSprop(stiefel_groups(model, lr=1e-2, stiefel_lr=1e-3))


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(len(steps))
    for _ in steps:
        x = torch.randn(6, 3, 2, generator=generator)
        optimizer.zero_grad()
        model[1](model[0](x)[0]).square().mean().backward()
        optimizer.step()


def test_state_dict_resumes_bit_for_bit() -> None:
    model, optimizer = model_and_optimizer()
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    train(model, optimizer, range(4))
    other, its_optimizer = model_and_optimizer()
    file.seek(0)
    for part, state in zip((other, its_optimizer), torch.load(file), strict=True):
        part.load_state_dict(state)
    train(other, its_optimizer, range(4))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_closure_and_scheduler() -> None:
    W = torch.nn.Parameter(torch.eye(3, dtype=torch.float64))
    optimizer = StiefelRMSprop([W], lr=0.1, stiefel=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure():
        optimizer.zero_grad()
        loss = W[0, 1] + W[1, 2]
        loss.backward()
        return loss

    assert optimizer.step(closure) == 0
    scheduler.step()
    assert optimizer.step(closure) < 0
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_parameters_without_a_gradient_stay() -> None:
    W, b = torch.nn.Parameter(torch.eye(3)), torch.nn.Parameter(torch.ones(3))
    groups = [{"params": [W], "stiefel": True}, {"params": [b]}]
    StiefelRMSprop(groups, lr=0.1).step()
    assert torch.equal(W, torch.eye(3))
    assert torch.equal(b, torch.ones(3))


def test_groups_of_a_model() -> None:
    rnn = sp.nn.FullCapacityURNN(2, 4, num_layers=2, bidirectional=True)
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
        ({"stiefel": True}, r"expected a square weight .* got shape \(3, 2\)"),
    ],
)
def test_bad_arguments(kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        StiefelRMSprop([torch.nn.Parameter(torch.ones(3, 2))], **kwargs)


def test_a_refused_group_is_not_added() -> None:
    optimizer = StiefelRMSprop([torch.nn.Parameter(torch.eye(2))])
    with pytest.raises(ValueError, match="lr"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.eye(2))], "lr": -1.0})
    assert len(optimizer.param_groups) == 1
