"""Matrices along a path, for what is followed from step to step."""

from __future__ import annotations

import numpy as np
import torch

from tests import matrices


class Paths:
    """Matrices of size n with a spectrum that is put in by hand, in random coordinates.

    ``ginibre`` and ``drifting`` are random: their spectrum is what it is.
    """

    def __init__(self, n: int, dtype: torch.dtype, seed: int = 0) -> None:
        self.n, self.complex = n, dtype.is_complex
        self.rng = np.random.default_rng(seed)
        self.Q = self.orthogonal()
        self.upper = 0.3 * np.triu(matrices.ginibre(n, self.rng), 1)
        self.rest = self.rng.uniform(-0.5, 0.5, n)
        self.drifting = self.ginibre()

    def ginibre(self) -> np.ndarray:
        G = matrices.ginibre(self.n, self.rng)
        return G + 1j * matrices.ginibre(self.n, self.rng) if self.complex else G

    def orthogonal(self) -> np.ndarray:
        return np.linalg.qr(self.ginibre())[0]

    def with_head(self, *blocks: np.ndarray) -> np.ndarray:
        D = np.diag(self.rest).astype(complex if self.complex else float) + self.upper
        k = 0
        for block in blocks:
            D[k : k + len(block), k : k + len(block)] = block
            k += len(block)
        return self.Q @ D @ self.Q.conj().T

    def pair(self, r: float, t: float) -> np.ndarray:
        """Eigenvalues r e^{±it}; without the conjugate, which would be a tie, for complex matrices."""
        if self.complex:
            return np.array([[r * np.exp(1j * t)]])
        return r * np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])

    def overtaken(self, t: int, speed: float) -> np.ndarray:
        return self.with_head(self.pair(1, 0.7), self.pair(0.6 + speed * t, 2.1))

    def drift(self, t: int) -> np.ndarray:
        self.drifting = self.drifting + 0.02 * self.ginibre()
        return self.drifting

    def crowded(self, t: int) -> np.ndarray:
        """40 pairs whose moduli, in descending order, differ by less than a hundredth."""
        return self.with_head(*(self.pair(0.994**k, 0.07 * k + 0.01 * t) for k in range(40)))
