"""Adversarial matrices, built in numpy in float64 so that nothing of the library takes part."""

from __future__ import annotations

import numpy as np
import scipy.linalg
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
