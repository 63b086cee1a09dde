"""Singular values where LAPACK's first iteration does not converge."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import spectral_param as sp
from spectral_param import _matrices
from spectral_param._matrices import decomposed, least_squares, singular_values, svd

EPS = np.finfo(np.float64).eps
ROOT = Path(sp.__file__).parent
DIRECT = re.compile(
    r"np\.linalg\.(svd|svdvals|lstsq|pinv|cond|matrix_rank)\(|torch\.linalg\.(svd|svdvals|lstsq|pinv)\("
    r"|np\.linalg\.norm\([^()]*(\([^()]*\))?[^()]*, ?(ord ?= ?)?-?2[,)]"
)


@pytest.fixture
def refused(monkeypatch):
    """Let every first iteration fail."""
    for module, error in ((np.linalg, np.linalg.LinAlgError), (torch.linalg, torch.linalg.LinAlgError)):
        for name in ("svd", "svdvals", "lstsq"):

            def fail(*_, error=error, **__):
                raise error("SVD did not converge")

            monkeypatch.setattr(module, name, fail)
    monkeypatch.setattr(_matrices, "_SINGULAR", (torch.linalg.svd, torch.linalg.svdvals))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_singular_values_have_a_second_way(refused, shape, dtype):
    rng = np.random.default_rng(0)
    M = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == np.complex128 else 0)
    for U, s, Vh in (
        svd(M),
        map(np.asarray, decomposed(torch.linalg.svd, torch.from_numpy(M), full_matrices=False)),
    ):
        np.testing.assert_allclose((U * s[..., None, :]) @ Vh, M, atol=100 * EPS)
        assert U.dtype == dtype
        assert (np.diff(s) <= 0).all()
    np.testing.assert_allclose(singular_values(M), s, atol=100 * EPS)
    values = decomposed(torch.linalg.svdvals, torch.from_numpy(M).to(torch.complex64))
    assert values.dtype == torch.float32
    np.testing.assert_allclose(values, s, rtol=1e-5)


def test_least_squares_have_a_second_way(refused):
    rng = np.random.default_rng(1)
    M = rng.standard_normal((8, 3)) @ rng.standard_normal((3, 5))  # dependent columns
    Y = rng.standard_normal((8, 2))
    np.testing.assert_allclose(
        least_squares(M, Y), np.linalg.inv(M.T @ M + 1e-9 * np.eye(5)) @ M.T @ Y, atol=1e-5
    )


def test_what_is_not_finite_is_refused(refused):
    with pytest.raises(np.linalg.LinAlgError, match="finite"):
        svd(np.full((3, 3), np.nan))


@pytest.mark.nightly
def test_a_fit_of_hidden_states_needs_no_first_way(monkeypatch):
    rng = np.random.default_rng(2)
    Y = np.sin(0.3 * np.arange(200))[:, None] + 0.1 * rng.standard_normal((200, 1))
    expected = sp.dynamics.StableLinearModel(states=2, lead=5).fit(Y).eigenvalues_
    for name, of in (("svd", np.linalg.svd), ("lstsq", np.linalg.lstsq)):

        def first(M, *args, way=of, **options):
            if M.size:
                raise np.linalg.LinAlgError("SVD did not converge")
            return way(M, *args, **options)

        monkeypatch.setattr(np.linalg, name, first)
    found = sp.dynamics.StableLinearModel(states=2, lead=5).fit(Y).eigenvalues_
    # The descent ends where it gains less than 1e-3 of the likelihood.
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(expected), atol=1e-4)


def test_every_decomposition_has_one():
    direct = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in ROOT.rglob("*.py")
        if path.name != "_matrices.py" or path.parent != ROOT
        for line in path.read_text().splitlines()
        if DIRECT.search(line) and not line.lstrip().startswith(">>>")
    ]
    assert not direct
