"""The real Schur form: against a dense construction, its spectrum, its derivatives."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import schur_form
from tests import matrices
from tests.properties import examples, seeds


def random_parts(pairs, seed):
    """P, T, γ, θ, log s and where the blocks of size 2 start."""
    n, rng = len(pairs), np.random.default_rng(seed)
    P = torch.from_numpy(matrices.random_orthogonal(n, rng))
    T = torch.from_numpy(rng.standard_normal((n, n)))
    gamma, theta, log_shear = (torch.from_numpy(rng.standard_normal(n)) for _ in range(3))
    return P, T, gamma, theta, 0.5 * log_shear, torch.tensor(pairs)


def dense(P, T, gamma, theta, log_shear, pairs):
    """Eq. (5), entry by entry in numpy; without shears in the paper's form."""
    n = len(gamma)
    S = np.tril(T.numpy(), -1)
    i = 0
    while i < n:
        if not pairs[i]:
            S[i, i] = gamma[i]
            i += 1
            continue
        s = 1.0 if log_shear is None else math.exp(log_shear[i])
        S[i, i] = S[i + 1, i + 1] = gamma[i] * math.cos(theta[i])
        S[i, i + 1] = -s * gamma[i] * math.sin(theta[i])
        S[i + 1, i] = gamma[i] * math.sin(theta[i]) / s + (T[i + 1, i] if log_shear is None else 0.0)
        i += 2
    return P.numpy() @ S @ P.numpy().T


def eigenvalues(gamma, theta, pairs):
    values = []
    for i, (g, t) in enumerate(zip(gamma.tolist(), theta.tolist(), strict=True)):
        if pairs[i]:
            values += [g * np.exp(1j * t), g * np.exp(-1j * t)]
        elif i == 0 or not pairs[i - 1]:
            values.append(complex(g))
    return np.array(values)


# Blocks of size 1 and 2 in any order, as where those of size 2 start.
ARRANGEMENTS = st.lists(st.sampled_from([[False], [True, False]]), min_size=1, max_size=5).map(
    lambda blocks: list(itertools.chain(*blocks))
)


@given(pairs=ARRANGEMENTS, exact=st.booleans(), seed=seeds)
@examples(25)
def test_against_a_dense_construction_and_its_spectrum(pairs, exact, seed) -> None:
    """Whatever P, T and the shears are, the exact form has the eigenvalues that γ and θ say."""
    P, T, gamma, theta, log_shear, pairs = random_parts(pairs, seed)
    V = schur_form(P, T, gamma, theta, log_shear if exact else None, pairs).numpy()
    expected = dense(P, T, gamma, theta, log_shear if exact else None, pairs)
    np.testing.assert_allclose(V, expected, atol=1e-13 * max(1, np.abs(expected).max()))
    if exact:
        expected = np.poly(eigenvalues(gamma, theta, pairs)).real
        size = (1 + np.linalg.norm(V, 2)) ** len(gamma)
        np.testing.assert_allclose(np.poly(V), expected, atol=1e-12 * size)


def test_the_papers_literal_form_moves_the_eigenvalues() -> None:
    """T's entry inside a block: γcosθ ± sqrt(-γ sinθ (γ sinθ + t)), of modulus γ for t = 0 only."""
    gamma, theta, t = 1.0, 0.7, 0.5
    T = torch.tensor([[0.0, 0.0], [t, 0.0]], dtype=torch.float64)
    g, angle = (torch.tensor([x, 0.0], dtype=torch.float64) for x in (gamma, theta))
    pairs = torch.tensor([True, False])
    identity = torch.eye(2, dtype=torch.float64)
    literal = schur_form(identity, T, g, angle, None, pairs)
    sine = gamma * math.sin(theta)
    expected = gamma * math.cos(theta) + 1j * math.sqrt(sine * (sine + t))
    values = np.linalg.eigvals(literal.numpy())
    np.testing.assert_allclose(sorted(values, key=np.imag), [np.conj(expected), expected], atol=1e-14)
    assert abs(abs(expected) - gamma) > 0.1
    exact = schur_form(identity, T, g, angle, torch.zeros(2, dtype=torch.float64), pairs)
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(exact.numpy())), gamma, atol=1e-14)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "paper"])
def test_derivatives_of_first_and_second_order_are_exact(exact) -> None:
    *parts, pairs = random_parts([True, False, False], 2)
    leaves = [X.clone().requires_grad_() for X in parts]

    def function(P, T, gamma, theta, log_shear):
        return schur_form(P, T, gamma, theta, log_shear if exact else None, pairs)

    fast = {"fast_mode": True}
    assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True, **fast)
    assert gradgradcheck(function, leaves, **fast)


def test_departure_bounds_the_transient() -> None:
    """|V^k| <= Σ_j binomial(k, j) ρ^(k-j) D^j, here with ρ = 1."""
    P, T, gamma, *rest = random_parts([True, False, True, False, True, False], 5)
    V = schur_form(P, T, gamma / gamma[::2].abs().max(), *rest).numpy()
    D = matrices.departure(V)
    for k in range(1, 30):
        bound = sum(math.comb(k, j) * D**j for j in range(min(k, 5) + 1))
        assert np.linalg.norm(np.linalg.matrix_power(V, k), 2) <= bound * (1 + 1e-9)
