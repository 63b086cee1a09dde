"""The uRNN's matrices: against explicit ones, and all derivatives."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import fourier_operator


def sample(n):
    return (
        torch.randn(2, n, dtype=torch.complex128),
        torch.randn(3, n, dtype=torch.float64),
        torch.randperm(n),
    )


def explicit(v, phases, permutation):
    """D3 R2 F⁻¹ D2 Π R1 F D1."""
    n = len(permutation)
    D1, D2, D3 = (np.diag(np.exp(1j * phase)) for phase in phases.numpy())
    R1, R2 = (np.eye(n) - 2 * np.outer(u, u.conj()) / np.vdot(u, u) for u in v.numpy())
    F = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n) / np.sqrt(n)
    P = np.eye(n)[permutation.numpy()]
    return D3 @ R2 @ F.conj().T @ D2 @ P @ R1 @ F @ D1


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_against_explicit_matrices(n) -> None:
    parameters = sample(n)
    W = explicit(*parameters)
    for dtype in (torch.complex128, torch.float64):
        h = torch.randn(2, 3, n, dtype=dtype)
        np.testing.assert_allclose(fourier_operator(*parameters)(h), h.numpy() @ W.T, atol=1e-13)


def test_derivatives_of_first_and_second_order_are_exact() -> None:
    v, phases, permutation = sample(4)
    tensors = tuple(t.requires_grad_() for t in (torch.randn(2, 4, dtype=torch.complex128), v, phases))

    def function(h, v, phases):
        return fourier_operator(v, phases, permutation)(h)

    assert gradcheck(function, tensors, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(function, tensors, fast_mode=True)


def test_a_batch_of_matrices() -> None:
    v, phases, permutation = torch.randn(3, 2, 5) + 0j, torch.randn(3, 3, 5), torch.randperm(5)
    h = torch.randn(3, 4, 5)
    actual = fourier_operator(v, phases, permutation)(h)
    torch.testing.assert_close(actual[1], fourier_operator(v[1], phases[1], permutation)(h[1]))


def test_zero_and_tiny_vectors() -> None:
    v, phases, permutation = sample(6)
    h = torch.randn(2, 6)
    tiny = fourier_operator((1e-30 * v).to(torch.complex64), phases.float(), permutation)(h)
    torch.testing.assert_close(tiny, fourier_operator(v, phases, permutation)(h).to(torch.complex64))

    zero = torch.zeros_like(v).requires_grad_()
    F = np.exp(-2j * np.pi * np.outer(np.arange(6), np.arange(6)) / 6) / np.sqrt(6)
    D1, D2, D3 = (np.diag(np.exp(1j * phase)) for phase in phases.numpy())
    W = D3 @ F.conj().T @ D2 @ np.eye(6)[permutation] @ F @ D1  # R = I
    x = fourier_operator(zero, phases, permutation)(h)
    np.testing.assert_allclose(x.detach(), h.numpy() @ W.T, atol=1e-13)
    x.real.sum().backward()
    assert zero.grad.abs().max() == 0
