"""Sparse matrices of many kinds, and their spectral radii by LAPACK."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

DEGREE = 10
Rng = np.random.Generator
Matrix = Any


def graph(n: int, rng: Rng, entries: np.ndarray | None = None, degree: int = DEGREE) -> Matrix:
    """Return entries, by default Gaussian ones, at ``degree`` random places of each row.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
        entries: The entries.
        degree: How many a row.
    """
    if entries is None:
        entries = rng.standard_normal(n * degree)
    places = (np.repeat(np.arange(n), degree), rng.integers(0, n, n * degree))
    return sparse.csr_array((entries, places), shape=(n, n))


def relabelled(T: Matrix, rng: Rng) -> Matrix:
    """Return T with its nodes in random order.

    Args:
        T: The matrix.
        rng: Source of randomness.
    """
    order = rng.permutation(T.shape[0])
    return T.tocsr()[order][:, order]


def ring(weights: np.ndarray) -> Matrix:
    """Return the cycle with these weights.

    Args:
        weights: One for each edge.
    """
    nodes = np.arange(len(weights))
    return sparse.csr_array((weights, (nodes, np.roll(nodes, -1))), shape=(len(nodes), len(nodes)))


def preferential(n: int, rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of a graph that grows by edges to nodes that have many.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    ends = list(range(DEGREE))
    rows, columns = [], []
    for node in range(DEGREE, n):
        chosen = [ends[i] for i in rng.integers(0, len(ends), DEGREE // 2)]
        rows += [node] * len(chosen)
        columns += chosen
        ends += [*chosen, node]
    return np.array(rows), np.array(columns)


def scale_free(n: int, rng: Rng) -> Matrix:
    """Return a directed graph, a third of whose edges go both ways.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    rows, columns = preferential(n, rng)
    back = rng.random(len(rows)) < 1 / 3
    rows, columns = np.concatenate([rows, columns[back]]), np.concatenate([columns, rows[back]])
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))


def symmetric_signed(n: int, rng: Rng) -> Matrix:
    """Return an undirected scale-free graph with random signs.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    rows, columns = preferential(n, rng)
    half = sparse.csr_array((rng.choice([-1.0, 1.0], len(rows)), (rows, columns)), shape=(n, n))
    return half + half.T


def small_world(n: int, rng: Rng) -> Matrix:
    """Return a ring lattice with Gaussian weights, a tenth of whose edges go anywhere.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    rows = np.repeat(np.arange(n), DEGREE)
    columns = (rows + np.tile(np.arange(1, DEGREE + 1) - DEGREE // 2, n)) % n
    anywhere = rng.random(len(rows)) < 0.1
    columns[anywhere] = rng.integers(0, n, anywhere.sum())
    return sparse.csr_array((rng.standard_normal(len(rows)), (rows, columns)), shape=(n, n))


def with_chords(n: int, rng: Rng) -> Matrix:
    """Return a cycle with a few chords: nearly all eigenvalues are next to one circle.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    T = ring(np.ones(n)).tolil()
    for _ in range(5):
        T[rng.integers(n), rng.integers(n)] = rng.uniform(-1, 1)
    return relabelled(T, rng)


def in_turn(n: int, rng: Rng) -> Matrix:
    """Return a graph whose cycles all have lengths that 2, 3, 4, 5 or 7 divides.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    period = int(rng.choice([2, 3, 4, 5, 7]))
    classes = rng.integers(0, period, n)
    T = graph(n, rng, degree=3 * DEGREE).tocoo()
    kept = classes[T.col] == (classes[T.row] + 1) % period
    return sparse.csr_array((T.data[kept], (T.row[kept], T.col[kept])), shape=(n, n))


def equal_blocks(n: int, rng: Rng) -> Matrix:
    """Return three blocks that differ by 1e-4, coupled one way.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    block = graph(n // 3, rng)
    blocks = []
    for _ in range(3):
        other = block.copy()
        other.data = other.data * (1 + 1e-4 * rng.standard_normal(len(other.data)))
        blocks.append(other)
    above = graph(n // 3, rng)
    return relabelled(
        sparse.block_array([[blocks[0], above, None], [None, blocks[1], above], [None, None, blocks[2]]]),
        rng,
    )


def mostly_forward(n: int, rng: Rng) -> Matrix:
    """Return a graph whose edges back have a hundredth of the weight of those forward.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    T = graph(n, rng)
    return relabelled(sparse.triu(T) + 0.01 * sparse.tril(T, -1), rng)


def delay_line(n: int, rng: Rng) -> Matrix:
    """Return a chain with feedback to its first nodes, as in delay-line reservoirs.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    T = ring(rng.uniform(0.5, 1.5, n)).tolil()
    for node in rng.integers(n // 2, n, 20):
        T[node, 0] = rng.standard_normal()
    return T.tocsr()


def orthogonal(n: int, rng: Rng) -> Matrix:
    """Return a product of sparse rotations: all eigenvalues are on one circle.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    T = sparse.eye_array(n, format="csr")
    for _ in range(3):
        angles = rng.uniform(0, 2 * np.pi, n // 2)
        c, s = np.cos(angles), np.sin(angles)
        nodes = rng.permutation(n)[: 2 * (n // 2)].reshape(2, -1)
        rest = np.setdiff1d(np.arange(n), nodes)
        data = np.concatenate([c, -s, s, c, np.ones(len(rest))])
        rows = np.concatenate([nodes[0], nodes[0], nodes[1], nodes[1], rest])
        columns = np.concatenate([nodes[0], nodes[1], nodes[0], nodes[1], rest])
        T = T @ sparse.csr_array((data, (rows, columns)), shape=(n, n))
    return T


def acyclic(n: int, rng: Rng) -> Matrix:
    """Return a graph without cycles: nilpotent.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    return relabelled(sparse.triu(graph(n, rng), 1), rng)


def with_loops(n: int, rng: Rng) -> Matrix:
    """Return an acyclic graph and a few loops: the largest is the radius.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    loops = np.where(rng.random(n) < 0.1, rng.uniform(-1, 1, n), 0)
    return (acyclic(n, rng) + sparse.diags_array(loops)).tocsr()


def mostly_empty(n: int, rng: Rng) -> Matrix:
    """Return a graph with empty rows and empty columns, or of no entries at all.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    keep = sparse.diags_array((rng.random(n) < rng.choice([0.0, 0.2, 0.6])).astype(float))
    return (keep @ graph(n, rng)).tocsr()


def complex_entries(n: int, rng: Rng) -> Matrix:
    """Return complex Gaussian entries.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    return graph(n, rng, rng.standard_normal(n * DEGREE) + 1j * rng.standard_normal(n * DEGREE))


def not_finite(n: int, rng: Rng) -> Matrix:
    """Return a graph with a NaN, or an infinite entry.

    Args:
        n: Number of nodes.
        rng: Source of randomness.
    """
    T = graph(n, rng)
    T.data[rng.integers(len(T.data))] = rng.choice([np.nan, np.inf, -np.inf])
    return T


KINDS: dict[str, Callable[[int, Rng], Matrix]] = {
    "Gaussian": graph,
    "uniform": lambda n, rng: graph(n, rng, rng.uniform(-1, 1, n * DEGREE)),
    "signs": lambda n, rng: graph(n, rng, rng.choice([-1.0, 1.0], n * DEGREE)),
    "Cauchy": lambda n, rng: graph(n, rng, rng.standard_cauchy(n * DEGREE)),
    "two a row": lambda n, rng: graph(n, rng, degree=2),
    "complex": complex_entries,
    "scale-free, directed": scale_free,
    "scale-free, symmetric, signs": symmetric_signed,
    "small world": small_world,
    "weighted permutation": lambda n, rng: ring(rng.uniform(0.5, 1.5, n))[rng.permutation(n)],
    "cycle with chords": with_chords,
    "classes in turn": in_turn,
    "nearly equal blocks": equal_blocks,
    "mostly forward": mostly_forward,
    "delay line with feedback": delay_line,
    "orthogonal": orthogonal,
    "acyclic": acyclic,
    "acyclic with loops": with_loops,
    "mostly empty": mostly_empty,
    "not finite": not_finite,
}


def reference(kind: str, T: Matrix) -> float:
    """Return ρ(T): by LAPACK, or as the kind says where LAPACK does not find it.

    Args:
        kind: Its name.
        T: The matrix.
    """
    if kind == "not finite":
        return math.nan
    if kind.startswith("acyclic"):  # LAPACK finds roots of rounding errors.
        return float(np.abs(T.diagonal()).max())
    return lapack(T)


def lapack(T: Matrix) -> float:
    """Return ρ(T) from all eigenvalues.

    Args:
        T: The matrix.
    """
    return float(np.abs(np.linalg.eigvals(T.toarray())).max())


def error(found: float, exact: float) -> float:
    """Return the relative error; NaN agrees with NaN, and infinity stands for NaN where it is wrong.

    Args:
        found: What was found.
        exact: What it should be.
    """
    if math.isnan(found) or math.isnan(exact):
        return 0.0 if math.isnan(found) and math.isnan(exact) else math.inf
    return abs(found - exact) / exact if exact else (0.0 if found == 0 else math.inf)
