"""The lower Schur form and what is read from it."""

import math

import pytest
import torch

from spectral_param.analysis import (
    departure_from_normality,
    eigenvalues,
    lower_schur,
    schur_eigenvalues,
    subdiagonal_magnitudes,
)
from spectral_param.errors import NotSquareError

DOUBLE = {"dtype": torch.float64}


def sorted_by_angle(values):
    return values[(values.angle() + 1e-6 * values.abs()).argsort()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_lower_schur_gives_back_the_weight_by_a_unitary_basis(dtype, n) -> None:
    W = torch.randn(3, n, n, dtype=dtype)
    P, Theta = lower_schur(W)
    exact = W.to(P.dtype)
    assert P.is_complex() == dtype.is_complex
    torch.testing.assert_close(P @ Theta @ P.mH, exact, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(P @ P.mH, torch.eye(n).to(P.dtype).expand_as(P), atol=1e-13, rtol=0)
    assert (Theta.triu(1 if dtype.is_complex else 2) == 0).all()
    for matrix, values in zip(exact, schur_eigenvalues(Theta), strict=True):
        torch.testing.assert_close(sorted_by_angle(values), sorted_by_angle(eigenvalues(matrix)))
    below = Theta.tril(-1)
    if dtype.is_complex:
        torch.testing.assert_close(torch.linalg.matrix_norm(below), departure_from_normality(W))


def test_eigenvalues_of_the_form_that_nnrnn_trains() -> None:
    """γ e^{±iθ} exactly for block-triangular T, and what an entry t inside a block makes of them."""
    gamma, theta, t = 0.9, 1.1, 0.3
    block = gamma * torch.tensor(
        [[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]], **DOUBLE
    )
    Theta = torch.block_diag(block, block, torch.tensor([[0.5]], **DOUBLE))
    Theta[2:, :2] = 100 * torch.randn(3, 2, **DOUBLE)
    Theta[4, 2:4] = 100 * torch.randn(2, **DOUBLE)
    values = schur_eigenvalues(Theta)
    expected = gamma * torch.exp(torch.tensor([1j, -1j, 1j, -1j]).to(torch.complex128) * theta)
    torch.testing.assert_close(values[:4], expected, atol=1e-15, rtol=0)
    assert values[4] == 0.5
    Theta[1, 0] += t
    moduli = schur_eigenvalues(Theta).abs()
    sine = gamma * math.sin(theta)
    assert moduli[0].item() == pytest.approx(
        math.hypot(gamma * math.cos(theta), math.sqrt(sine * (sine + t)))
    )
    assert moduli[2].item() == pytest.approx(gamma)


def test_each_subdiagonal_has_its_mean_modulus() -> None:
    Theta = torch.zeros(2, 5, 5)
    for k in range(5):
        Theta += (-1) ** k * k * torch.diag(torch.ones(5 - k), -k)
    Theta += 100 * torch.ones(5, 5).triu(1)  # not looked at
    expected = torch.arange(1, 5, **DOUBLE).expand(2, 4)
    torch.testing.assert_close(subdiagonal_magnitudes(Theta), expected)


def test_rotated_delay_line_is_found() -> None:
    """All but the first sub-diagonal of a hidden chain vanish, whatever P hid it."""
    Q = torch.linalg.qr(torch.randn(3, 3, **DOUBLE)).Q
    chain = torch.diag(torch.tensor([2.0, 2.0], **DOUBLE), -1) + torch.diag(torch.tensor([0.1, 0.2, 0.3]))
    magnitudes = subdiagonal_magnitudes(lower_schur(Q @ chain @ Q.mT).Theta)
    norm = torch.linalg.matrix_norm(lower_schur(Q @ chain @ Q.mT).Theta.tril(-1))
    assert norm.item() == pytest.approx(8**0.5)
    assert magnitudes[0] > 0.5


def test_nan_in_nan_out_and_only_there() -> None:
    W = torch.stack([torch.randn(3, 3), torch.full((3, 3), torch.nan)])
    P, Theta = lower_schur(W)
    values = schur_eigenvalues(Theta)
    for X in (P, Theta, values, subdiagonal_magnitudes(Theta)):
        assert X[0].isfinite().all()
        assert X[1].isnan().all()


def test_what_has_no_lower_schur_structure_is_refused() -> None:
    with pytest.raises(NotSquareError, match="lower_schur"):
        lower_schur(torch.randn(3, 4))
    for wrong in (torch.ones(3, 3), torch.ones(3, 3).triu(1).tril(1)):
        with pytest.raises(ValueError, match=r"expected lower triangular .* lower_schur\(W\)\.Theta"):
            schur_eigenvalues(wrong)
    with pytest.raises(ValueError, match="expected matrices with n >= 2"):
        subdiagonal_magnitudes(torch.ones(1, 1))
