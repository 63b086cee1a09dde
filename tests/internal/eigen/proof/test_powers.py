"""Powers of a matrix prove that its spectral radius is below a bound, or nothing."""

import fractions
import itertools

import numpy as np
import pytest
import torch

from spectral_param._eigen.proof import has_radius_below


def hermitian(n):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n)))[0]
    return (Q * np.linspace(-1, 0.9, n)) @ Q.conj().T


def cycle(n, weights):
    """Weights along a cycle: all eigenvalues have the modulus of their geometric mean."""
    A = np.zeros((n, n))
    A[np.arange(n), np.roll(np.arange(n), -1)] = weights
    return A


def jordan_block(n, value):
    return value * np.eye(n) + np.diag(np.ones(n - 1), 1)


def in_other_units(A):
    d = 10 ** np.random.default_rng(0).uniform(-6, 6, len(A))
    return A * d / d[:, None]


# Matrices whose spectral radius is known without LAPACK.
OF_RADIUS_ONE = {
    "rotation": np.array([[0.6, -0.8], [0.8, 0.6]]),
    "one entry": np.array([[1.0]]),
    "jordan": jordan_block(5, 1.0),
    "jordan, complex": jordan_block(9, 0.6 + 0.8j),
    "triangular": np.eye(20) + np.triu(100 * np.ones((20, 20)), 1),
    "cycle": cycle(96, np.exp(np.linspace(-1, 1, 96))),
    "wild cycle": cycle(8, 10.0 ** np.array([9, -9, 6, -6, 3, -3, 0, 0])),
    "two cycles": np.kron(np.eye(2), cycle(16, np.exp(np.linspace(-3, 3, 16)))),
    "other units": in_other_units(cycle(30, np.ones(30))),
    "hermitian": hermitian(70),
}


@pytest.mark.parametrize("name", OF_RADIUS_ONE)
def test_powers_prove_no_radius_that_is_not_below(name) -> None:
    for size, bound in itertools.product(
        (1e-20, 1.0, 1e20), (-1.0, 0.0, 1e-320, 1e-30, 0.5, 0.999, 1.0, 1 + 1e-12)
    ):
        A = torch.from_numpy(size * OF_RADIUS_ONE[name])
        assert not has_radius_below(A, size * bound), size


def test_rounding_errors_of_powers_do_not_make_a_radius_smaller() -> None:
    """T² = 2I, but rounded it is I and an entry below the diagonal, because a² is too long for a number."""
    a, b = 201370893, 84847
    T = torch.tensor([[a, b], [(2 - a**2) // b, -a]], dtype=torch.float64)
    assert (2 - a**2) % b == 0
    for bound in (1.2, 1.3, 1.4):
        assert not has_radius_below(T, bound)
        assert not has_radius_below(torch.kron(torch.eye(40, dtype=T.dtype), T), bound)


def test_powers_of_matrices_that_are_nearly_nilpotent() -> None:
    """ρ, exactly from trace and determinant, consists of the rounding errors of the entries."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        angle, size = rng.uniform(0, 2 * np.pi), 10 ** rng.uniform(0, 10)
        c, s = np.cos(angle), np.sin(angle)
        T = size * np.array([[-c * s, c * c], [-s * s, c * s]])
        half, (a, b, c, d) = fractions.Fraction(1, 2), map(fractions.Fraction, T.flat)
        mean, determinant = half * (a + d), a * d - b * c
        root = abs(mean**2 - determinant) ** half
        rho = float(determinant) ** 0.5 if mean**2 < determinant else abs(float(mean)) + root
        assert not has_radius_below(torch.from_numpy(T), 0.99 * rho)


def test_numbers_that_a_processor_flushes_to_zero_prove_nothing() -> None:
    torch.set_flush_denormal(True)
    try:
        for bound in (1e308, 1e200, 1e-200, 1e-300):
            assert not has_radius_below(torch.tensor([[1.75 * bound]], dtype=torch.float64), bound)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(
    ("name", "slack"),
    [("one entry", 1.01), ("rotation", 1.01), ("hermitian", 1.04), ("jordan", 1.6)],
)
def test_powers_prove_a_radius_that_is_clearly_below(name, slack) -> None:
    for size in (1e-100, 1.0, 1e100):
        assert has_radius_below(torch.from_numpy(size * OF_RADIUS_ONE[name]), size * slack)


@pytest.mark.parametrize("entry", [np.nan, np.inf, 1e300])
def test_powers_prove_nothing_of_what_is_not_finite(entry) -> None:
    for n in (1, 3, 80):
        assert not has_radius_below(torch.full((n, n), entry, dtype=torch.float64), 1.0)
