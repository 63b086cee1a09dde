"""goru: the equations, packed rows, and every gradient."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import goru
from tests.promises.cases import orthogonal

N, M, T, B = 4, 3, 5, 2


def tensors():
    shapes = ((T, B, M), (B, N), (3 * N, M), (2 * N, N))
    x, h0, V, gates = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    bias = 0.1 * torch.randn(3 * N, dtype=torch.float64)
    return x, h0, V, gates, orthogonal((N, N), torch.float64), bias


def step(x, h, V, gates, U, bias):
    """The equations of Jing et al. (2017), for one state of one sequence."""
    (V_r, V_z, V), (R, Z), (b_r, b_z, b) = V.chunk(3), gates.chunk(2), bias.chunk(3)
    r = 1 / (1 + torch.exp(-(V_r @ x + R @ h + b_r)))
    z = 1 / (1 + torch.exp(-(V_z @ x + Z @ h + b_z)))
    a = V @ x + r * (U @ h)
    candidate = torch.where(a.abs() + b > 0, a.sign() * (a.abs() + b), 0)
    return z * h + (1 - z) * candidate


def test_equations_written_out() -> None:
    x, h0, *weights = tensors()
    output, last = goru(x, h0, *weights)
    for i in range(B):
        h = h0[i]
        for t in range(T):
            h = step(x[t, i], h, *weights)
            torch.testing.assert_close(output[t, i], h)
        torch.testing.assert_close(last[i], h)


def test_no_bias_is_a_bias_of_zero() -> None:
    x, h0, V, gates, U, bias = tensors()
    for a, b in zip(goru(x, h0, V, gates, U), goru(x, h0, V, gates, U, 0 * bias), strict=True):
        torch.testing.assert_close(a, b)


def test_sequences_that_end_before_others() -> None:
    x, h0, *weights = tensors()
    rows = torch.cat([x[0], x[1], x[2, :1], x[3, :1]])
    output, last = goru(rows, h0, *weights, batch_sizes=[2, 2, 1, 1])
    full, _ = goru(x, h0, *weights)
    torch.testing.assert_close(output, torch.cat([full[0], full[1], full[2, :1], full[3, :1]]))
    torch.testing.assert_close(last, torch.stack([full[3, 0], full[1, 1]]))


def test_gradients_of_first_and_second_order_are_exact() -> None:
    inputs = [t.requires_grad_() for t in tensors()]
    assert gradcheck(goru, inputs)
    assert gradgradcheck(goru, inputs, fast_mode=True)


def test_sequences_and_states_that_do_not_fit_are_refused() -> None:
    x, h0, *weights = tensors()
    with pytest.raises(ValueError, match="at least one time step"):
        goru(x[:0], h0, *weights)
    with pytest.raises(ValueError, match=r"h0 of shape \(batch, n\) = \(2, 4\), got \(1, 4\)"):
        goru(x, h0[:1], *weights)
