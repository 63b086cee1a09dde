"""The 2x2 problems: solutions lie in the region, and no search finds better ones."""

import numpy as np
import pytest

from spectral_param.dynamics._one_step.blocks import nearest_in_disc, nearest_in_half_plane


def heights(B, half_plane):
    eigenvalues = np.linalg.eigvals(B)
    return eigenvalues.real.max(-1) if half_plane else np.abs(eigenvalues).max(-1)


def value(B, L, H):
    return np.square(B @ L - H).sum((-2, -1))


def problems(kind, count, seed):
    rng = np.random.default_rng(seed)
    L = rng.standard_normal((count, 2, 2))
    L[:, 1, 0] = 0
    H = rng.standard_normal((count, 2, 2)) * 10.0 ** rng.uniform(-1, 1, count)[:, None, None]
    if kind == "ill-conditioned":
        L[:, :, 0] *= 10.0 ** rng.uniform(-3, 0, count)[:, None]
    elif kind == "symmetric":  # ties of singular values, equal diagonals
        L[:] = np.eye(2)
        H = H[:, :1, :1] * np.eye(2) + H[:, :1, 1:] * np.array([[0, 1], [-1, 0]])
    elif kind == "multiple of the identity":
        L[:] = np.eye(2)
        H = H[:, :1, :1] * np.eye(2)
    return L, H


def members(bound, half_plane):
    """Return all real Schur forms of a grid of blocks in the region, over a grid of angles and shears."""
    angle = np.linspace(0, np.pi, 24, endpoint=False)
    if half_plane:
        heights = bound - np.array([0, 0, 0.01, 0.1, 0.3, 1, 3, 10])
        real = np.array([(p, q) for p in heights for q in heights])
        complex_ = np.array([(a, w) for a in heights for w in (0.01, 0.1, 0.3, 1, 3, 10, 30)])
    else:
        ends = bound * np.linspace(-1, 1, 9)
        real = np.array([(p, q) for p in ends for q in ends])
        turns = np.linspace(0.05, np.pi - 0.05, 9)
        complex_ = np.array(
            [(r * np.cos(t), r * np.sin(t)) for r in bound * np.array([1, 0.8, 0.4]) for t in turns]
        )
    shears = np.concatenate([-(10.0 ** np.linspace(2, -2, 12)), [0], 10.0 ** np.linspace(-2, 2, 12)])
    blocks = [np.array([[p, s], [0, q]]) for p, q in real for s in shears]
    blocks += [
        np.array([[a, s * w], [-w / s, a]]) for a, w in complex_ for s in 10.0 ** np.linspace(-1.5, 1.5, 13)
    ]
    blocks = np.array(blocks)
    cos, sin = np.cos(angle), np.sin(angle)
    G = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)[:, None]
    return (G @ blocks @ G.swapaxes(-1, -2)).reshape(-1, 2, 2)


def locally_improved(B, L, H, bound, half_plane, rng):
    """Return the least value of many small moves of B that stay in the region."""
    best = value(B, L, H)
    for size in (0.3, 0.1, 0.03, 0.01, 1e-3):
        for _ in range(6):
            tried = B + size * (1 + np.abs(B).max()) * rng.standard_normal((400, 2, 2))
            h = heights(tried, half_plane)
            if half_plane:
                tried -= np.maximum(h - bound, 0)[:, None, None] * np.eye(2)
            else:
                tried *= np.minimum(1, bound / h)[:, None, None]
            values = value(tried, L, H)
            k = values.argmin()
            if values[k] < best:
                B, best = tried[k], values[k]
    return best


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["plain", "ill-conditioned", "symmetric", "multiple of the identity"])
@pytest.mark.parametrize(
    ("nearest", "bound"),
    [
        (nearest_in_disc, 1.0),
        (nearest_in_disc, 0.3),
        (nearest_in_half_plane, 0.0),
        (nearest_in_half_plane, -0.5),
    ],
)
def test_no_dense_search_finds_a_better_block(nearest, bound, kind):
    half_plane = nearest is nearest_in_half_plane
    rng = np.random.default_rng(1)
    L, H = problems(kind, 8, seed=0)
    B = nearest(L, H, bound)
    size = np.abs(B).max((-2, -1)) + 1
    # A block with a double eigenvalue keeps it to the root of rounding.
    assert (heights(B, half_plane) <= bound + 1e-7 * size).all()
    grid = members(bound, half_plane)
    found = value(B, L, H)
    for l, h, f in zip(L, H, found, strict=True):
        values = value(grid, l, h)
        starts = [grid[k] for k in np.argsort(values)[:2]]
        searched = min(locally_improved(start, l, h, bound, half_plane, rng) for start in starts)
        assert f <= searched * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("nearest", [nearest_in_disc, nearest_in_half_plane])
def test_blocks_in_the_region_are_left_alone(nearest):
    L, _ = problems("plain", 50, seed=2)
    B = np.random.default_rng(3).uniform(-0.4, 0.4, (50, 2, 2)) - 0.45 * np.eye(2)
    np.testing.assert_allclose(nearest(L, B @ L, 1.0), B, atol=1e-10)


@pytest.mark.parametrize(
    ("H", "expected"),
    [
        ([[3.0, 0.0], [0.0, 0.5]], [[1.0, 0.0], [0.0, 0.5]]),  # one real eigenvalue too large
        ([[0.0, 2.0], [-2.0, 0.0]], [[0.0, 1.0], [-1.0, 0.0]]),  # a pair
        ([[3.0, 0.0], [0.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]]),  # both
        ([[3.0, 0.0], [0.0, -3.0]], [[1.0, 0.0], [0.0, -1.0]]),  # one at each end
    ],
)
def test_normal_blocks_are_clipped(H, expected):
    B = nearest_in_disc(np.eye(2)[None], np.array(H)[None], 1.0)[0]
    # Clipping is not the best of all matrices for the last two, but what replaces it is no worse.
    assert value(B, np.eye(2), np.array(H)) <= value(np.array(expected), np.eye(2), np.array(H)) + 1e-14
    assert heights(B, False) <= 1 + 1e-7
