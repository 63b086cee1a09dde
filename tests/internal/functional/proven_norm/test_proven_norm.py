"""The proven norm: an estimate decides how close the bound is, not whether it holds."""

import numpy as np
import pytest
import scipy.sparse
import torch

from spectral_param.functional import _proven_norm
from spectral_param.functional._proven_norm import norm_bound
from tests.properties import normal


@pytest.mark.parametrize("n", [1, 5, 60, 600])
@pytest.mark.parametrize("scale", [1.0, 1e-250, 1e250])
def test_close_to_the_norm_from_above(n, scale) -> None:
    A = normal((n, n), torch.float64, n).numpy() * (normal((n, n), torch.float64, 1).numpy() > 0)
    for each in (A, scipy.sparse.csr_array(A)):
        norm = np.linalg.norm(A, 2) * scale
        assert norm <= norm_bound(scale * each) <= norm * (1 + (n + 3) ** 2 * 1e-15 + 1e-9)


@pytest.mark.parametrize("factor", [0.3, 1 - 1e-6])
def test_an_estimate_that_is_too_small_is_refuted(monkeypatch, factor) -> None:
    A = normal((30, 30), torch.float64, 0).numpy()
    norm = np.linalg.norm(A, 2)
    monkeypatch.setattr(_proven_norm, "_estimate", lambda gram: factor * np.linalg.eigvalsh(gram)[-1])
    assert norm <= norm_bound(A) <= 4 * norm


def test_zero() -> None:
    assert norm_bound(np.zeros((3, 3))) == 0
