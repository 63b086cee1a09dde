"""Lyapunov certificates of given matrices."""

import math

import pytest
import torch

from spectral_param.analysis import lyapunov_certificate, transient_growth
from tests.matrices import jordan


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("rho", [0.5, 0.99, 1.0])
def test_it_proves_the_bound(rho, dtype) -> None:
    W = torch.randn(3, 6, 6, dtype=dtype)
    W = 0.8 * rho * W / torch.linalg.eigvals(W).abs().amax(dim=-1)[:, None, None]
    M, growth = lyapunov_certificate(W, radius=0.8)
    defect = torch.linalg.eigvalsh(W.mH @ M @ W - 0.64 * M)[:, -1]
    assert (defect <= 1e-12 * torch.linalg.matrix_norm(M)).all()
    torch.testing.assert_close(growth, torch.linalg.cond(M).sqrt())
    assert (transient_growth(W / 0.8, 200).peak <= growth * (1 + 1e-9)).all()


@pytest.mark.parametrize("W", [1.1 * torch.eye(2), jordan(2, 1.0), torch.full((2, 2), math.nan)])
def test_an_unstable_matrix_has_no_certificate(W) -> None:
    M, growth = lyapunov_certificate(W)
    assert M.isnan().all()
    assert growth == math.inf


@pytest.mark.parametrize("radius", [0.0, math.inf, math.nan])
def test_a_radius_that_is_not_finite_and_positive_is_named(radius) -> None:
    with pytest.raises(ValueError, match="radius: expected a finite number > 0"):
        lyapunov_certificate(torch.eye(2), radius)
