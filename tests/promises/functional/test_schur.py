"""The real Schur form: against a dense construction, its spectrum, its derivatives, and the way back."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param._context import matmul
from spectral_param.functional import schur_form
from spectral_param.functional._schur import (
    SchurBlocks,
    departure,
    paper_pairs,
    polar_parts,
    read_blocks,
    real_schur,
    scale_departure,
)
from tests import matrices


def random_blocks(n, rng, pairs=None, shear=0.5):
    """Random P and SchurBlocks; ``pairs`` as the paper has them by default."""
    P = torch.from_numpy(matrices.random_orthogonal(n, rng))
    gamma, theta, log_shear = (torch.from_numpy(rng.standard_normal(n)) for _ in range(3))
    T = torch.from_numpy(rng.standard_normal((n, n)))
    pairs = paper_pairs(gamma) if pairs is None else torch.tensor(pairs)
    return P, SchurBlocks(T, *polar_parts(gamma, theta, pairs), shear * log_shear, pairs)


def build(P, blocks, exact=True):
    T, gamma, theta, log_shear, pairs = polar(blocks)
    return schur_form(P, T, gamma, theta, log_shear if exact else None, pairs)


def polar(blocks):
    """T, γ, θ, log s and pairs, written apart from the library."""
    T, real, imag, log_shear, pairs = blocks
    sign = torch.where(real < 0, -1.0, 1.0).to(real.dtype)
    gamma = torch.where(pairs, sign * torch.hypot(real, imag), real)
    return T, gamma, torch.atan2(sign * imag, real.abs()), log_shear, pairs


def dense(P, blocks, exact):
    """Eq. (5), entry by entry in numpy."""
    T, gamma, theta, log_shear, pairs = (X.numpy() for X in polar(blocks))
    n = len(gamma)
    S = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            S[i, j] = T[i, j]
    i = 0
    while i < n:
        if not pairs[i]:
            S[i, i] = gamma[i]
            i += 1
            continue
        s = math.exp(log_shear[i]) if exact else 1.0
        S[i, i] = S[i + 1, i + 1] = gamma[i] * math.cos(theta[i])
        S[i, i + 1] = -s * gamma[i] * math.sin(theta[i])
        S[i + 1, i] = gamma[i] * math.sin(theta[i]) / s + (0.0 if exact else T[i + 1, i])
        i += 2
    return P.numpy() @ S @ P.numpy().T


def expected_eigenvalues(blocks):
    values = []
    _, gammas, thetas, _, _ = polar(blocks)
    for i in range(len(gammas)):
        gamma, theta = gammas[i].item(), thetas[i].item()
        if blocks.pairs[i]:
            values += [gamma * np.exp(1j * theta), gamma * np.exp(-1j * theta)]
        elif i == 0 or not blocks.pairs[i - 1]:
            values.append(complex(gamma))
    return np.array(values)


ARRANGEMENTS = ([0], [1, 0], [0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1, 0, 0], [0, 0, 1, 0, 0, 1, 0], [0] * 5)


@pytest.mark.parametrize("pairs", ARRANGEMENTS, ids=str)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "paper"])
def test_against_a_dense_construction(pairs, exact) -> None:
    P, blocks = random_blocks(len(pairs), np.random.default_rng(0), [bool(p) for p in pairs])
    np.testing.assert_allclose(build(P, blocks, exact), dense(P, blocks, exact), atol=1e-13)


@pytest.mark.parametrize("pairs", ARRANGEMENTS, ids=str)
def test_spectrum_is_what_gamma_and_theta_say(pairs) -> None:
    """Whatever P, T and the shears are."""
    P, blocks = random_blocks(len(pairs), np.random.default_rng(1), [bool(p) for p in pairs])
    expected = np.poly(expected_eigenvalues(blocks)).real
    np.testing.assert_allclose(np.poly(build(P, blocks).numpy()), expected, atol=1e-10)


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
@pytest.mark.parametrize("n", [1, 2, 5])
def test_derivatives_of_first_and_second_order_are_exact(n, exact) -> None:
    P, blocks = random_blocks(n, np.random.default_rng(2))
    leaves = [X.clone().requires_grad_() for X in (P, *blocks[:4])]

    def function(P, T, gamma, theta, log_shear):
        return schur_form(P, T, gamma, theta, log_shear if exact else None, blocks.pairs)

    assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, leaves)


# The way back ---------------------------------------------------------------------------------------


def adversarial_matrices(n):
    rng = np.random.default_rng(n)
    Q = matrices.random_orthogonal(n, rng)
    Q[:, 0] *= -np.sign(np.linalg.det(Q))
    A = rng.standard_normal((n, n))
    jordan = matrices.jordan(n, 0.9).numpy()
    return {
        "random": A,
        "symmetric": A + A.T,
        "skew": A - A.T,
        "orthogonal, determinant -1": Q,
        "zero": np.zeros((n, n)),
        "identity": np.eye(n),
        "minus identity": -np.eye(n),
        "1e20": 1e20 * A,
        "1e-20": 1e-20 * A,
        "Jordan block": jordan,
        "Jordan block, transposed": -jordan.T,
        "hidden Jordan block": Q @ jordan @ Q.T,
        "hidden Jordan block, negative": -Q @ jordan @ Q.T,
        "real spectrum": Q @ np.triu(A) @ Q.T,
        "repeated eigenvalues": Q @ np.diag([0.5] * (n - n // 2) + [-1.0] * (n // 2)) @ Q.T,
        "cyclic shift": np.roll(np.eye(n), 1, axis=0),
        "rank one": np.outer(A[0], A[1 % n]),
        "graded": np.diag(10.0 ** np.linspace(-8, 8, n)) @ A,
    }


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "paper"])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_every_real_matrix_has_the_form(n, exact) -> None:
    for name, W in adversarial_matrices(n).items():
        P, S = real_schur(torch.from_numpy(W))
        eps = torch.finfo(torch.float64).eps
        blocks = read_blocks(S, eps, exact)
        error = np.abs(build(P, blocks, exact).numpy() - W).max()
        assert error <= 20 * n * eps * np.abs(W).max(), name
        assert (P.mT @ P - torch.eye(n)).abs().max() <= 20 * n * eps, name
        assert blocks.log_shear.max() <= 0, name
        assert blocks.log_shear.min() >= 0.5 * math.log(eps), name
        assert not blocks.pairs[-1], name


@given(n=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_random_matrices_have_the_form(n, seed) -> None:
    W = matrices.ginibre(n, np.random.default_rng(seed))
    P, S = real_schur(torch.from_numpy(W))
    blocks = read_blocks(S, 1e-16, exact=True)
    np.testing.assert_allclose(build(P, blocks).numpy(), W, atol=1e-13)
    np.testing.assert_allclose(
        np.sort(np.abs(expected_eigenvalues(blocks))), np.sort(np.abs(np.linalg.eigvals(W))), atol=1e-9
    )


@pytest.mark.parametrize("a", [0.3, -0.3, 0.0])
@pytest.mark.parametrize("tiny", [1e-6, 1e-12, 1e-15, 1e-17, 1e-200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_that_are_almost_defective(a, tiny, dtype) -> None:
    """[a, -1; tiny, a] on its way to a Jordan block, with negative eigenvalues, too."""
    W = torch.tensor([[a, -1.0], [tiny, a]], dtype=torch.float64)
    for matrix in (W, W.mT):
        P, S = real_schur(matrix)
        eps = torch.finfo(dtype).eps
        blocks = read_blocks(S, eps, exact=True)
        single = SchurBlocks(*(X.to(dtype) for X in blocks[:4]), blocks.pairs)
        V = build(P.to(dtype), single).double()
        assert (V - matrix).abs().max() <= 20 * eps


# Departure from normality ---------------------------------------------------------------------------


def henrici(V):
    eigenvalues = np.linalg.eigvals(V)
    return math.sqrt((V**2).sum() - (np.abs(eigenvalues) ** 2).sum())


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_departure_is_henricis(n) -> None:
    P, blocks = random_blocks(n, np.random.default_rng(3))
    assert departure(blocks).sqrt().item() == pytest.approx(henrici(build(P, blocks).numpy()), abs=1e-7)


def test_scaling_the_departure_leaves_the_eigenvalues() -> None:
    P, blocks = random_blocks(7, np.random.default_rng(4))
    scaled = scale_departure(blocks, torch.tensor([0.3], dtype=torch.float64))
    assert departure(scaled).item() == pytest.approx(0.09 * departure(blocks).item())
    np.testing.assert_allclose(
        np.poly(build(P, scaled).numpy()), np.poly(build(P, blocks).numpy()), atol=1e-10
    )


def test_departure_bounds_the_transient() -> None:
    """|V^k| <= Σ_j binomial(k, j) ρ^(k-j) D^j, here with ρ = 1."""
    P, blocks = random_blocks(6, np.random.default_rng(5))
    largest = torch.hypot(blocks.real, blocks.imag)[blocks.pairs].max()
    blocks = blocks._replace(real=blocks.real / largest, imag=blocks.imag / largest)
    V, D = build(P, blocks).numpy(), departure(blocks).sqrt().item()
    for k in range(1, 30):
        bound = sum(math.comb(k, j) * D**j for j in range(min(k, 5) + 1))
        assert np.linalg.norm(np.linalg.matrix_power(V, k), 2) <= bound * (1 + 1e-9)
