"""Sequences of non-normal matrices that are made to fool what follows an eigenvalue.

Of a non-normal matrix an entry of any small size can move eigenvalues that nothing in the blocks knows of
past the one that is followed. Each run has a leading eigenvalue 1, a non-normal part that is quiet at
first, and one change at a step of its own that (mostly) lets that part lead; it goes back some steps later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

Matrix = np.ndarray
Rng = np.random.Generator

STEPS = 24  # of one run


def chain(k: int, strength: float, closing: float) -> Matrix:
    """Return ``strength`` above the diagonal and ``closing`` in the corner: |λ|^k = closing·strength^(k-1).

    Args:
        k: Size.
        strength: Of the chain.
        closing: The entry that closes it.
    """
    C = np.diag(np.full(k - 1, strength), 1)
    C[-1, 0] = closing
    return C


def jordan(k: int, eigenvalue: float, corner: float) -> Matrix:
    """Return a Jordan block with a perturbed corner: eigenvalues λ + corner^(1/k) ω.

    Args:
        k: Size.
        eigenvalue: λ.
        corner: The perturbation.
    """
    return eigenvalue * np.eye(k) + chain(k, 1.0, corner)


def companion(roots: Matrix) -> Matrix:
    """Return the companion matrix of the polynomial with these roots.

    Args:
        roots: Closed under conjugation.
    """
    coefficients = np.poly(roots).real
    C = np.diag(np.ones(len(roots) - 1), -1)
    C[0] = -coefficients[1:]
    return C


def families(n: int, rng: Rng) -> dict[str, Callable[[bool], Matrix]]:
    """Return for each family a function from whether it has changed to its matrix, drawn anew each time.

    Args:
        n: Size.
        rng: Where everything random comes from.
    """
    k = int(rng.integers(4, 13))
    strength, target = rng.uniform(1.2, 3.0), rng.uniform(0.8, 1.5)
    closing = target**k / strength ** (k - 1)
    rest = rng.uniform(0.2, 0.6) * rng.standard_normal((n, n)) / n**0.5
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    S = Q * rng.uniform(0.2, 2.0, n)
    upper = rng.uniform(0, 1) * np.triu(rng.standard_normal((n, n)), 1) / n**0.5
    angles = rng.uniform(0.1, 3.0, k // 2)
    moduli = rng.uniform(0.2, 0.6, k // 2)
    eigenvalue = rng.uniform(0.1, 0.6)

    def around(block: Matrix) -> Matrix:
        T = np.zeros((n, n))
        T[0, 0] = 1.0
        T[1 : 1 + len(block), 1 : 1 + len(block)] = block
        m = 1 + len(block)
        T[m:, m:] = rest[: n - m, : n - m]
        return T

    def roots(changed: bool) -> Matrix:
        z = moduli.copy()
        if changed:
            z[0] = target
        return np.concatenate([z * np.exp(1j * angles), z * np.exp(-1j * angles)])

    def plain(changed: bool) -> Matrix:
        return around(chain(k, strength, closing if changed else 0.0))

    def block(changed: bool) -> Matrix:
        return around(jordan(k, eigenvalue, max(target - eigenvalue, 0.0) ** k if changed else 0.0))

    def polynomial(changed: bool) -> Matrix:
        return around(companion(roots(changed)))

    def product(changed: bool) -> Matrix:
        A = around(chain(k, strength, closing if changed else 0.0))
        return A @ around(np.eye(k) + 0.2 * chain(k, 1.0, 0.0))

    return {
        "chain": plain,
        "chain in a random basis": lambda changed: Q @ (plain(changed) + upper) @ Q.T,
        "chain in a skew basis": lambda changed: np.linalg.solve(S, plain(changed) @ S),
        "perturbed Jordan block": block,
        "Jordan block in a random basis": lambda changed: Q @ (block(changed) + upper) @ Q.T,
        "companion matrix": polynomial,
        "companion matrix in a random basis": lambda changed: Q @ polynomial(changed) @ Q.T,
        "product": product,
        "product in a random basis": lambda changed: Q @ product(changed) @ Q.T,
    }


def run(name: str, seed: int, n: int) -> Iterator[Matrix]:
    """Yield the matrices of one run.

    Args:
        name: Of the family.
        seed: Of everything random in it.
        n: Size.
    """
    rng = np.random.default_rng(seed)
    matrix_at = families(n, rng)[name]
    begin = int(rng.integers(1, STEPS - 2))
    end = begin + int(rng.integers(1, 12))
    movement = 10 ** rng.uniform(-6, -2)
    for step in range(STEPS):
        yield matrix_at(begin <= step < end) * (1 + movement * np.sin(step))


def is_wrong(T: Tensor, rho: float) -> bool:
    """Return whether ρ(T) is neither the exact one nor within what rounding may do to it.

    Args:
        T: The matrix.
        rho: What was found.
    """
    double = T.double().numpy()
    values = np.linalg.eigvals(double)
    exact = np.abs(values).max()
    eps = torch.finfo(T.dtype).eps
    error = abs(rho / exact - 1)
    if error <= 1000 * eps:
        return False
    # What perturbations of T by ten roundings do to ρ: exact for a defective eigenvalue, too.
    rng = np.random.default_rng(0)
    scale = 10 * eps * np.linalg.norm(double, 2) / len(T) ** 0.5
    moved = [np.abs(np.linalg.eigvals(double + scale * rng.standard_normal(T.shape))).max() for _ in range(4)]
    return bool(error > 1000 * eps + 10 * max(abs(m / exact - 1) for m in moved))


def names_of_families() -> list[str]:
    """Return the names of all families."""
    return list(families(32, np.random.default_rng(0)))
