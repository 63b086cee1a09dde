"""The orthogonality score and its record over training."""

import pytest
import torch

import spectral_param as sp
from spectral_param.analysis import Recorder, departure_from_normality, orthogonality_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_error_is_the_norm_of_the_gram_matrix_minus_identity(dtype) -> None:
    n = 6
    W = torch.eye(n, dtype=dtype)
    assert orthogonality_error(W) == 0
    W[0, 0] = 2  # WᴴW - I has one entry 3
    assert orthogonality_error(torch.stack([W, -W])).tolist() == [3, 3]
    Q = torch.linalg.qr(torch.randn(n, n, dtype=dtype)).Q
    assert 0 < orthogonality_error(Q) < 10 * n * torch.finfo(dtype).eps
    assert orthogonality_error(torch.full_like(W, torch.nan)).isnan()


def test_of_an_lstm_the_four_gates() -> None:
    lstm = sp.constrain(torch.nn.LSTM(2, 5), "weight_hh_l0", sp.ScaledCayley())
    error = orthogonality_error(lstm.weight_hh_l0.unflatten(0, (4, -1)))
    assert error.shape == (4,)
    assert error.max() < 1e-5
    assert orthogonality_error(torch.nn.LSTM(2, 5).weight_hh_l0.unflatten(0, (4, -1))).min() > 0.1


@pytest.mark.parametrize("rows", [7, 9])  # 9 rows are no stack of three gates.
def test_of_a_tall_weight_the_columns_and_of_a_wide_one_the_rows(rows) -> None:
    W = sp.constrain(torch.nn.Linear(3, rows), "weight", sp.ScaledCayley()).weight
    for weight in (W, W.mT):
        assert orthogonality_error(weight) < 1e-5
        both = orthogonality_error(torch.stack([2 * weight, weight]))
        assert both.tolist() == pytest.approx([27**0.5, 0], abs=1e-5)
    Q = torch.linalg.qr(torch.randn(rows, 3, dtype=torch.complex128)).Q
    assert orthogonality_error(Q) < 1e-13
    assert orthogonality_error(Q.mH) < 1e-13


def test_recorder_over_training() -> None:
    """scoRNN appendix B: the error of a constrained weight stays, that of a free one grows."""
    rnns = torch.nn.RNN(2, 8), torch.nn.RNN(2, 8)
    torch.nn.init.orthogonal_(rnns[1].weight_hh_l0)
    sp.constrain(rnns[0], "weight_hh_l0", sp.ScaledCayley())
    recorders = [Recorder(lambda rnn=rnn: orthogonality_error(rnn.weight_hh_l0)) for rnn in rnns]
    optimizer = torch.optim.SGD([p for rnn in rnns for p in rnn.parameters()], lr=0.1)
    x = torch.randn(5, 3, 2)
    for step in range(0, 40, 10):
        for recorder in recorders:
            recorder.record(step)
        for _ in range(10):
            optimizer.zero_grad()
            sum(rnn(x)[0].square().mean() for rnn in rnns).backward()
            optimizer.step()
    constrained, free = recorders
    assert constrained.steps.tolist() == [0, 10, 20, 30]
    assert constrained.values.shape == (4,)
    assert constrained.values.max() < 1e-5
    assert free.values[0] < 1e-5
    assert (free.values.diff() > 0).all()
    assert free.values[-1] > 1e-2


def test_recorder_keeps_values_not_tensors() -> None:
    weight = torch.ones(2, requires_grad=True)
    recorder = Recorder(lambda: weight)
    assert recorder.steps.shape == recorder.values.shape == (0,)
    recorder.record(0)
    weight.data.fill_(2)
    recorder.record(5)
    assert recorder.values.tolist() == [[1, 1], [2, 2]]
    assert not recorder.values.requires_grad


def test_recorder_of_departure() -> None:
    W = torch.eye(3).repeat(2, 1, 1)
    recorder = Recorder(lambda: departure_from_normality(W))
    recorder.record(0)
    assert recorder.values.shape == (1, 2)
