"""Decompositions where LAPACK's first iteration does not converge."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import spectral_param as sp
from spectral_param import _matrices
from spectral_param._matrices import decomposed, eigh, eigvalsh, least_squares, singular_values, svd

EPS = np.finfo(np.float64).eps
ROOT = Path(sp.__file__).parent
DIRECT = re.compile(
    r"(np|torch)\.linalg\.(svd|svdvals|lstsq|pinv|cond|matrix_rank|eigh|eigvalsh)\("
    r"|norm\([^()]*(\([^()]*\))?[^()]*, ?(ord ?= ?)?-?2[,)]|linalg\.matrix_norm,"
)
NAMES = ("svd", "svdvals", "lstsq", "eigh", "eigvalsh")


@pytest.fixture
def refused(monkeypatch):
    """Let every first iteration fail."""
    for module, error in ((np.linalg, np.linalg.LinAlgError), (torch.linalg, torch.linalg.LinAlgError)):
        for name in NAMES:
            if not hasattr(module, name):
                continue

            def fail(*_, error=error, **__):
                raise error("the iteration did not converge")

            first = getattr(module, name)
            monkeypatch.setattr(module, name, fail)
            if first in _matrices._AGAIN:
                monkeypatch.setitem(_matrices._AGAIN, fail, _matrices._AGAIN[first])


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


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_eigenvalues_of_hermitian_matrices_have_a_second_way(refused, dtype):
    rng = np.random.default_rng(2)
    M = rng.standard_normal((2, 5, 5)) + (
        1j * rng.standard_normal((2, 5, 5)) if dtype == np.complex128 else 0
    )
    M = M + M.conj().swapaxes(1, 2)
    M[1] = np.eye(5)  # ties
    of_stack = map(np.asarray, decomposed(torch.linalg.eigh, torch.from_numpy(M)))
    for of, (values, V) in ((M[0], eigh(M[0])), (M, of_stack)):
        restored = (V * values[..., None, :]) @ V.conj().swapaxes(-1, -2)
        np.testing.assert_allclose(restored, of, atol=100 * EPS)
        assert (np.diff(values) >= 0).all()
        assert V.dtype == dtype
    np.testing.assert_allclose(eigvalsh(M[0]), values[0], atol=100 * EPS)
    found = decomposed(torch.linalg.eigvalsh, torch.from_numpy(M).to(torch.complex64))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, values, atol=1e-5)


def test_what_needs_derivatives_has_no_second_way(refused):
    X = torch.eye(3, dtype=torch.float64, requires_grad=True)
    for name in ("svd", "svdvals", "eigh", "eigvalsh"):
        with pytest.raises(torch.linalg.LinAlgError, match="did not converge"):
            decomposed(getattr(torch.linalg, name), X)


def test_what_is_not_finite_is_refused(refused):
    for decompose in (svd, eigh, eigvalsh):
        with pytest.raises(np.linalg.LinAlgError, match="finite"):
            decompose(np.full((3, 3), np.nan))


@pytest.mark.nightly
def test_a_fit_of_hidden_states_needs_no_first_way(monkeypatch):
    rng = np.random.default_rng(2)
    Y = np.sin(0.3 * np.arange(200))[:, None] + 0.1 * rng.standard_normal((200, 1))
    expected = sp.dynamics.StableLinearModel(states=2, lead=5).fit(Y).eigenvalues_
    for name in NAMES:
        of = getattr(np.linalg, name)

        def first(M, *args, way=of, **options):
            if M.size:
                raise np.linalg.LinAlgError("SVD did not converge")
            return way(M, *args, **options)

        monkeypatch.setattr(np.linalg, name, first)
    found = sp.dynamics.StableLinearModel(states=2, lead=5).fit(Y).eigenvalues_
    # The descent ends where it gains less than 1e-3 of the likelihood.
    np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(expected), atol=1e-4)


def test_every_decomposition_has_one():
    """Or it stands in a try of its own."""
    direct = []
    for path in ROOT.rglob("*.py"):
        lines = path.read_text().splitlines()
        for before, line in itertools.pairwise(["", *lines]):
            is_code = not line.lstrip().startswith((">>>", '"')) and before.strip() != "try:"
            if DIRECT.search(line) and is_code and path != ROOT / "_matrices.py":
                direct.append(f"{path.relative_to(ROOT)}: {line.strip()}")
    assert not direct
