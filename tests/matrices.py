"""Adversarial matrices, built in numpy in float64 so that nothing of the library takes part."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import scipy.sparse
import torch
from torch import Tensor

Rng = np.random.Generator


def random_orthogonal(n: int, rng: Rng) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def ginibre(n: int, rng: Rng) -> np.ndarray:
    return rng.standard_normal((n, n)) / np.sqrt(n)


def _hidden(blocks: list[np.ndarray], n: int, rng: Rng) -> np.ndarray:
    """Q [blocks, small random part above the diagonal; the rest smaller] Qᵀ."""
    head = scipy.linalg.block_diag(*blocks)
    k = len(head)
    rest = ginibre(n - k, rng)
    rest *= 0.6 / np.abs(np.linalg.eigvals(rest)).max()
    T = scipy.linalg.block_diag(head, rest)
    T[:k, k:] = 0.1 * rng.standard_normal((k, n - k))
    Q = random_orthogonal(n, rng)
    return Q @ T @ Q.T


def near_defective(n: int, rng: Rng) -> np.ndarray:
    """A dominant pair 1 ± sqrt(δ), δ from 1e-4 to 1e-10, on its way to a Jordan block."""
    delta = 10 ** rng.uniform(-10, -4)
    return _hidden([np.array([[1.0, 1.0], [delta, 1.0]])], n, rng)


def tied(n: int, rng: Rng) -> np.ndarray:
    """Different eigenvalues of modulus one: a pair e^{±it}, +1 and -1."""
    t = rng.uniform(0.1, 3.0)
    rotation = np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])
    return _hidden([rotation, np.eye(1), -np.eye(1)], n, rng)


def jordan(n: int, eigenvalue: float) -> Tensor:
    return eigenvalue * torch.eye(n, dtype=torch.float64) + torch.diag(
        torch.ones(n - 1, dtype=torch.float64), 1
    )


def dominant_condition(T: np.ndarray) -> float:
    """1/|v*u| of the eigenvalue of largest modulus; the worst one among ties."""
    values, left, right = scipy.linalg.eig(T, left=True, right=True)
    moduli = np.abs(values)
    dominant = moduli >= moduli.max() * (1 - 1e-8)
    products = np.abs(np.sum(left.conj() * right, axis=0))
    return float(1 / products[dominant].min())


def radius(T: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(T.astype(np.float64))).max())


def skew(T: Tensor) -> Tensor:
    """The skew-Hermitian part."""
    return (T - T.mH) / 2


def departure_squared(V: np.ndarray) -> float:
    """The square of Henrici's departure from normality, which cancels for a normal matrix."""
    return float((V**2).sum() - (np.abs(np.linalg.eigvals(V)) ** 2).sum())


def departure(V: np.ndarray) -> float:
    """Henrici's departure from normality."""
    return math.sqrt(departure_squared(V))


def reflections(vectors: np.ndarray, tau: np.ndarray | None = None) -> np.ndarray:
    """H_1 H_2 … H_k, multiplied out as the paper writes them."""
    n, k = vectors.shape
    W = np.eye(n, dtype=vectors.dtype)
    for i in range(k):
        u = vectors[:, i : i + 1]
        W = W @ (np.eye(n) - (2 if tau is None else tau[i]) * (u @ u.conj().T) / np.vdot(u, u).real)
    return W


def special_orthogonal_matrices() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    n = 9
    Q = random_orthogonal(n, rng)
    flip = np.eye(n)
    flip[0, 0] = -1
    return {
        "identity": np.eye(n),
        "minus identity": -np.eye(n),
        "reflection": flip,
        "hidden reflection": Q @ flip @ Q.T,
        "permutation": np.eye(n)[rng.permutation(n)],
        "cyclic shift": np.roll(np.eye(n), 1, axis=0),
        "eigenvalue -1 several times": Q @ np.diag([-1.0] * 5 + [1.0] * 4) @ Q.T,
        "det +1": Q * np.linalg.det(Q),
        "det -1": -Q * np.linalg.det(Q),
        "hadamard": np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]]) / 2.0,
        "n = 1": -np.eye(1),
    }


#: Orthogonal matrices with eigenvalues that make a parametrization singular, or with zeros.
SPECIAL = special_orthogonal_matrices()


def adversarial_matrices(n: int) -> dict[str, np.ndarray]:
    """Real matrices whose Schur form is not unique, badly scaled or nearly defective."""
    rng = np.random.default_rng(n)
    Q = random_orthogonal(n, rng)
    Q[:, 0] *= -np.sign(np.linalg.det(Q))
    A = rng.standard_normal((n, n))
    block = jordan(n, 0.9).numpy()
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
        "Jordan block": block,
        "Jordan block, transposed": -block.T,
        "hidden Jordan block": Q @ block @ Q.T,
        "hidden Jordan block, negative": -Q @ block @ Q.T,
        "real spectrum": Q @ np.triu(A) @ Q.T,
        "repeated eigenvalues": Q @ np.diag([0.5] * (n - n // 2) + [-1.0] * (n // 2)) @ Q.T,
        "cyclic shift": np.roll(np.eye(n), 1, axis=0),
        "rank one": np.outer(A[0], A[1 % n]),
        "graded": np.diag(10.0 ** np.linspace(-8, 8, n)) @ A,
    }


def sparse(n: int, per_row: int, seed: int = 0) -> scipy.sparse.csr_array:
    """Return a random matrix with so many entries a row, some of which may fall together."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(n), per_row)
    entries = rng.standard_normal(rows.size), (rows, rng.integers(0, n, rows.size))
    return scipy.sparse.csr_array(entries, shape=(n, n))
