r"""Products of layers of disjoint 2x2 rotations (EUNN), applied without forming the matrix.

Jing et al. (2017), "Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs", write a
unitary matrix as

.. math:: W = D\, F^{(1)} F^{(2)} \cdots F^{(L)},

where D is a diagonal of phases, and each F is a layer of rotations of disjoint pairs of coordinates.

- ``"rectangular"``: odd layers rotate the pairs (1,2), (3,4), …, and even layers rotate (2,3), (4,5), … Any
  number L of layers is possible. L = n layers have n(n-1)/2 rotations and reach every unitary matrix
  (Clements et al. 2016).
- ``"fft"``: layer i rotates pairs of coordinates at the distance n/2^i, and L = log2 n.

Here a rotation is

.. math:: R(θ, φ) = \begin{pmatrix} e^{iφ}\cosθ & -\sinθ \\ e^{iφ}\sinθ & \cosθ \end{pmatrix}.

Eq. (4) of Jing et al. has e^{iφ} in the first *row* instead of the first column. The reason for the
difference is on the page docs/derivation_structured.md.

Blocks
------
Applied one by one, L = n layers would be slow, because each layer reads the whole input but does little
arithmetic. Autograd would also store n matrices of n x n entries. So K consecutive layers are first merged
into dense blocks, for all groups of K layers at once. In the FFT order, K layers act within sets of 2^K
coordinates. In the rectangular order, the coordinates are cut into windows of 2K. The rotations of K layers
that depend on a single window form a triangle, which loses one coordinate per layer at either end. The other
rotations form triangles around the boundaries between windows. In the FFT order, K layers become one product
with a block-diagonal matrix of blocks 2^K x 2^K. In the rectangular order, K layers become two products with
block-diagonal matrices of blocks 2K x 2K. The two products take 4 n K multiplications for each vector instead
of 2 n K, but all multiplications are done by ``bmm``.

The inverse: from a matrix to its rotations
-------------------------------------------
The rectangular order is factored by the method of Clements et al. (2016), "Optimal design for universal
multiport interferometers". Layers j run from 1, on the left, to L; coordinates p run from 0. A rotation of
layer j on the coordinates p, p+1 belongs to the ray e = p - j. A ray e can be removed from the right, from
layer L down to layer 1, once all rays of smaller e are removed. A ray e can be removed from the left, from
layer 1 up to layer L, once all rays of larger e are removed. Consider the remaining product before a rotation
is removed from the right. In rows where column p is zero without this rotation, the entries in the columns p
and p+1 are a multiple of (e^{iφ} sin θ, cos θ), which gives the angles. Let q be the number of remaining rays
with larger e. The nonzero part of a column grows by at most one row per layer, and by at most q rows in all.
So column p+1 can be nonzero down to row p+1 + min(j-1, q), and column p without the rotation only down to row
p + min(j-2, q); no row index exceeds n-1. For removal from the left, rows and columns are exchanged, and so
are up and down. Clements et al. use the same order of removal, which succeeds for every unitary matrix to
machine precision.

A rotation removed from the left is diag(1, e^{iψ}) R(θ, 0) instead of R(θ, φ), because D is to the left of
the rotations. At the end all diagonals are moved to the left, by R(θ, 0) diag(a, b) = b R(θ, arg a - arg b).
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from spectral_param import _paths
from spectral_param._context import promoted
from spectral_param._map import matmul
from spectral_param._matrices import Array
from spectral_param.functional._checks import check_choices, with_arrays

Order = Literal["rectangular", "fft"]
Angles = NDArray[np.float64]


def max_layers(n: int, order: Order) -> int:
    """Return the largest useful number of layers: n for ``"rectangular"``, log2 n for ``"fft"``.

    Raises:
        ValueError: If the order is ``"fft"`` and n is not a power of two.
    """
    if order == "rectangular":
        return n
    n = int(n)  # While torch.jit.trace runs, sizes are tensors.
    if n & (n - 1):
        raise ValueError(
            f"order='fft': expected a size that is a power of two, got n = {n}. Take n = "
            f"{2 ** (n.bit_length() - 1)} or {2 ** n.bit_length()}, or order='rectangular'."
        )
    return n.bit_length() - 1


def num_rotations(n: int, layers: int, order: Order) -> int:
    """Return the number of rotations in the first ``layers`` layers."""
    if order == "fft":
        return layers * (n // 2)
    return (layers + 1) // 2 * (n // 2) + layers // 2 * ((n - 1) // 2)


@with_arrays
def givens_operator(
    theta: Tensor, phi: Tensor | None, d: Tensor, *, order: Order = "rectangular"
) -> Callable[[Tensor], Tensor]:
    """Return the function h -> h Wᵀ on rows, for W = diag(d) F¹ ⋯ F^L, without forming W.

    The blocks that depend only on the angles are computed once, for all calls of the function.

    Args:
        theta: Angles of the r rotations, shape ``(..., r)``: first the angles of F¹, then the angles of F²
            and so on, each layer from top to bottom. The number L of layers follows from r; n rectangular
            layers have r = n(n-1)/2.
        phi: Phases of the rotations, in the shape of theta; None for real rotations.
        d: The diagonal of D, shape ``(..., n)``: signs, or complex numbers of modulus 1.
        order: ``"rectangular"``, the default, works for every n; ``"fft"`` needs a power of two. See
            :class:`spectral_param.Givens`.

    Returns:
        A function from tensors of shape ``(..., m, n)`` to tensors of this shape, with a cost of O(n L) for
        each row.

    Raises:
        ValueError: If no number of layers has r rotations, if the order is unknown, or if the order is
            ``"fft"`` and n is not a power of two.

    Example:
        >>> theta, d = torch.randn(15), torch.ones(6)  # n(n-1)/2 rotations: all of SO(6)
        >>> product = spectral_param.functional.givens_operator(theta, None, d)
        >>> W = product(torch.eye(6)).mT
        >>> torch.allclose(W @ W.mT, torch.eye(6), atol=1e-6)
        True
    """
    layers = _layers(d.shape[-1], theta.shape[-1], order)
    plan = _rectangular_stages if order == "rectangular" else _fft_stages
    stages = plan(d.shape[-1], layers, theta.device)
    blocks = [block for stage in stages for block in _blocks(theta, phi, stage).unbind(-4)][::-1]
    rows = [row for stage in stages for row in stage.rows.unbind(0)][::-1]
    n, padded = d.shape[-1], rows[0].numel()
    here = torch.arange(padded, device=theta.device)  # The coordinate that each row of X holds.
    sources = []
    for row in rows:
        sources.append(here.argsort()[row.flatten()])
        here = row.flatten()
    home = here.argsort()[:n]

    def multiply(h: Tensor) -> Tensor:
        dtype = promoted(h.dtype, d.dtype)
        X = pad(h, (0, padded - n)).mT.to(dtype)
        for block, source in zip(blocks, sources, strict=True):
            X = X.index_select(-2, source).unflatten(-2, block.shape[-3:-1])
            X = matmul(block.to(dtype), X).flatten(-3, -2)
        return (d[..., None] * X.index_select(-2, home)).mT

    return multiply


def _layers(n: int, rotations: int, order: Order) -> int:
    """Return the number L of layers for which the number of rotations is ``rotations``."""
    check_choices(order=(order, Order))
    most = max_layers(n, order)
    for layers in [most] if order == "fft" else range(1, most + 1):
        if num_rotations(n, layers, order) == rotations:
            return layers
    raise ValueError(
        f"theta: expected as many angles as a whole number of layers has (1 to {most}), got {rotations}. All "
        f"{most} layers have {num_rotations(n, most, order)}."
    )


class _Stages(NamedTuple):
    """Products with block-diagonal matrices: s stages from left to right, with w blocks each.

    A block merges K layers on b coordinates. The K layers are listed in the order in which they act on a
    column vector.
    """

    rows: Tensor  # (s, w, b): the coordinate that each row of a block holds
    entry: Tensor  # (s, w, K, b): index of the factors of each row in the tables of _factors
    partner: Tensor  # (K, b): index of the row in the block with which each row is rotated


def _rectangular_stages(n: int, layers: int, device: torch.device) -> list[_Stages]:
    rotations = num_rotations(n, layers, "rectangular")
    # K is even, so that all groups of K layers, and all windows of 2K coordinates, begin with the same pairs.
    K = 2 * max(1, min(_paths.GIVENS_LAYERS // 2, (layers + 1) // 2, n // 4))
    b = 2 * K
    groups, windows = -(-layers // K), -(-n // b)
    # Stages are listed from left to right in the product, so the stage that acts last comes first. For each
    # group, first come the blocks around the ends of windows, then the blocks inside windows.
    shift = torch.tensor([[K], [0]], dtype=torch.int64, device="cpu").to(device, non_blocking=True)
    rows = ((torch.arange(windows * b, device=device) + shift) % (windows * b)).reshape(2, windows, b)

    time = torch.arange(K, device=device)[:, None]
    # At time 0 the last layer of the group acts, on the pairs (1,2), (3,4), … of coordinates counted from 0.
    parity = (time + 1) % 2
    place = torch.arange(b, device=device)
    partner = ((place + parity) ^ 1) - parity
    first = torch.minimum(place, partner)
    around = (first >= K - 1 - time) & (first <= K - 1 + time)
    inside = (first >= time) & (first <= b - 2 - time)
    here = torch.stack([around, inside]) & (partner >= 0) & (partner < b)  # (2, K, b)

    layer = torch.arange(0, groups * K, K, device=device)[:, None, None, None, None] + K - 1 - time
    coordinate = rows[:, :, first.clamp(min=0)]  # (2, w, K, b)
    exists = here[:, None] & (coordinate < n - 1) & (layer < layers)
    before = layer // 2 * (n // 2 + (n - 1) // 2) + layer % 2 * (n // 2)
    index = before + (coordinate - parity) // 2 + rotations * (place != first)
    entry = torch.where(exists, index, 2 * rotations).flatten(0, 1)  # from (groups, 2, w, K, b)
    return [_Stages(rows.repeat(groups, 1, 1), entry, partner.clamp(0, b - 1))]


def _fft_stages(n: int, layers: int, device: torch.device) -> list[_Stages]:
    rotations = num_rotations(n, layers, "fft")
    stages = []
    parts = max(1, -(-layers // 5))  # Blocks of at most 2^5 rows.
    bounds = [layers * part // parts for part in range(parts + 1)]
    for low, high in itertools.pairwise(bounds):
        # A stage merges the layers whose pairs are 2^low, …, 2^(high - 1) apart. The layer of the smallest
        # distance acts first.
        b = 2 ** (high - low)
        rows = torch.arange(n, device=device).reshape(-1, b, 2**low).mT.reshape(-1, b)
        distance = 2 ** torch.arange(high - low, device=device)[:, None]
        place = torch.arange(b, device=device)
        first = rows[:, place & ~distance]  # (w, K, b)
        apart = distance * 2**low
        layer = layers - 1 - torch.arange(low, high, device=device)[:, None]
        index = layer * (n // 2) + first // (2 * apart) * apart + first % apart
        entry = index + rotations * ((place & distance) != 0)
        stages.append(_Stages(rows[None], entry[None], place ^ distance))
    return stages[::-1]


def _factors(theta: Tensor, phi: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return two tables for the rows of all rotations: the factors of the own coordinate and of the partner.

    Each table lists the first rows of all r rotations, then the second rows, then one entry for coordinates
    that are not rotated.
    """
    c, s, one = theta.cos(), theta.sin(), theta.new_ones((*theta.shape[:-1], 1))
    if phi is None:
        return torch.cat([c, c, one], dim=-1), torch.cat([-s, s, 0 * one], dim=-1)
    e = torch.polar(torch.ones_like(phi), phi)
    return torch.cat([e * c, c, one], dim=-1), torch.cat([-s, e * s, 0 * one], dim=-1)


def _blocks(theta: Tensor, phi: Tensor | None, stages: _Stages) -> Tensor:
    """Return the dense blocks of all stages, of shape (..., s, w, b, b)."""
    own, other = (
        table.index_select(-1, stages.entry.flatten()).unflatten(-1, stages.entry.shape)[..., None]
        for table in _factors(theta, phi)
    )  # (..., s, w, K, b, 1)
    b = stages.entry.shape[-1]
    X = torch.eye(b, dtype=own.dtype, device=own.device).expand(*own.shape[:-3], b, b)
    for time, partner in enumerate(stages.partner):
        X = own[..., time, :, :] * X + other[..., time, :, :] * X.index_select(-2, partner)
    return X


def eliminate(W: Array) -> tuple[Angles, Angles, Array]:  # (n, n)
    """Return θ, φ and d of n rectangular layers whose product is the unitary W.

    The angles θ and φ are in the order of the arguments of :func:`givens_operator`. For a real W, φ = 0.
    """
    n = len(W)
    W = W.copy()
    rotations = [(j, p) for j in range(1, n + 1) for p in range((j - 1) % 2, n - 1, 2)]
    index = {rotation: i for i, rotation in enumerate(rotations)}
    theta, phi = np.zeros(len(rotations)), np.zeros(len(rotations))
    rays: dict[int, list[tuple[int, int]]] = {}
    for j, p in rotations:
        rays.setdefault(p - j, []).append((j, p))
    todo = [rays[e] for e in sorted(rays)]
    undone_left = []
    while todo:
        above = len(todo) - 1
        if all(_reached(n, j, p, above) for j, p in todo[0]):
            for j, p in reversed(todo.pop(0)):
                theta[index[j, p]], phi[index[j, p]] = _undo_right(W, p, _reached(n, j, p, above))
        else:
            for j, p in todo.pop():
                mirrored = _reached(n, n + 1 - j, n - 2 - p, above)
                theta[index[j, p]], psi = _undo_left(W, p, [n - 1 - row for row in mirrored])
                undone_left.append((index[j, p], p, psi))

    d = _phase(W.diagonal())
    for i, p, psi in reversed(undone_left):
        theta[i], phi[i], a, b = _move_left(theta[i], d[p], d[p + 1])
        d[p], d[p + 1] = a, psi * b
    return theta, phi, d


def _reached(n: int, j: int, p: int, above: int) -> range:
    """Return the rows from which the angles of rotation (j, p) are read, if ``above`` rays have larger e."""
    return range(min(p + min(max(j - 2, 0), above), n - 1) + 1, min(p + 1 + min(j - 1, above), n - 1) + 1)


def _undo_right(W: Array, p: int, rows: range) -> tuple[float, float]:
    """Find R(θ, φ) from the row with the largest entries, replace W by WRᴴ, and return θ and φ."""
    a, b = max((W[row, p : p + 2].tolist() for row in rows), key=lambda pair: abs(pair[0]) + abs(pair[1]))
    theta, e = _angle_and_phase(a, b)
    c, s = math.cos(theta), math.sin(theta)
    W[:, p : p + 2] = W[:, p : p + 2] @ np.array([[c / e, s / e], [-s, c]])
    return theta, cmath.phase(e)


def _undo_left(W: Array, p: int, columns: list[int]) -> tuple[float, complex]:
    """Find G = diag(1, e^{iψ}) R(θ, 0) that undoes a rotation of rows p and p + 1.

    G is found from the one of ``columns`` with the largest entries in these rows, which are multiplied by Gᴴ.

    Returns:
        θ and e^{iψ}.
    """
    pairs = (W[p : p + 2, column].tolist() for column in columns)
    a, b = max(pairs, key=lambda pair: abs(pair[0]) + abs(pair[1]))
    theta, e = _angle_and_phase(b, a)
    c, s = math.cos(theta), math.sin(theta)
    W[p : p + 2] = np.array([[c, s / e], [-s, c / e]]) @ W[p : p + 2]
    return theta, e


def _angle_and_phase(a: complex, b: complex) -> tuple[float, complex]:
    """Return θ and e of modulus 1 with (a, b) = m (e sin θ, cos θ) for some m; e = 1 for real a and b."""
    if isinstance(a, complex):
        e = a / abs(a) * (b / abs(b)).conjugate() if a and b else 1
        return math.atan2(abs(a), abs(b)), e
    return math.atan2(a, b.real), 1


def _move_left(theta: Angles, a: Array, b: Array) -> tuple[Angles, Angles, Array, Array]:
    """Return θ', φ, a', b' with R(θ, 0) diag(a, b) = diag(a', b') R(θ', φ); φ = 0 if a and b are real."""
    if np.iscomplexobj(a):
        return theta, np.angle(a * b.conj()), b, b
    return a * b * theta, 0 * theta, a, b


def _phase(z: Array) -> Array:
    """Return z / |z|, and 1 for 0."""
    return np.where(z == 0, 1, z / np.where(z == 0, 1, np.abs(z)))
