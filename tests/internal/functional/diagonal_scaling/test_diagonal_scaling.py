"""The barriers' derivatives against differences, the least abscissa, and where a search stops."""

import numpy as np
import pytest
import torch

from spectral_param.functional import _diagonal_scaling as scaling
from tests.properties import normal


def matrix(n, seed=0):
    return normal((n, n), torch.float64, seed).numpy()


@pytest.mark.parametrize("kind", [scaling._Norm, scaling._Abscissa])
def test_derivatives_are_those_of_differences(kind) -> None:
    W, n, h = matrix(6), 6, 1e-5
    barrier, x = kind(W), np.append(0.3 * matrix(6, 1)[0], 3.0)
    if kind is scaling._Abscissa:
        x[-1] = 2 * np.linalg.norm(W)

    def value(x):
        return barrier.factor(x[:n], x[n])[2]

    def found(x):
        return barrier.derivatives(*barrier.factor(x[:n], x[n])[:2])

    ends = [(x + h * e, x - h * e) for e in np.eye(n + 1)]
    slopes = [(value(a) - value(b)) / (2 * h) for a, b in ends]
    curves = [(found(a)[0] - found(b)[0]) / (2 * h) for a, b in ends]
    gradient, hessian = found(x)
    np.testing.assert_allclose(gradient, slopes, atol=1e-6)
    np.testing.assert_allclose(hessian, curves, atol=1e-6)


@pytest.mark.parametrize("n", [1, 3, 30])
def test_the_least_abscissa_lies_between_that_of_the_eigenvalues_and_the_plain_one(n) -> None:
    W = matrix(n)
    units = np.exp(np.linspace(-3, 3, n))
    found = scaling.least_abscissa(units[:, None] * W / units, 1e12)
    theta = np.exp(found.log) * units
    A = scaling.scaled(W, theta)
    size = np.linalg.eigvalsh((A + A.T) / 2)[-1]
    assert np.linalg.eigvals(W).real.max() <= size * (1 + 1e-9) + 1e-9
    assert size <= min(found.size, np.linalg.eigvalsh((W + W.T) / 2)[-1]) + 1e-7 * np.linalg.norm(W)


def test_the_search_stops_at_what_is_enough() -> None:
    W = matrix(20)
    least = scaling.least_norm(W, 1e12)
    early = scaling.least_norm(W, 1e12, enough=1.2 * least.size)
    assert least.size < early.size <= 1.2 * least.size
    assert np.linalg.norm(scaling.scaled(W, np.exp(early.log)), 2) <= early.size
