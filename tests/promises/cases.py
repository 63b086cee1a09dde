"""The one table of parametrizations that the conformance suite runs over."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

import spectral_param as sp
from spectral_param.testing import Case, Shape

#: Shapes of single matrices that are not square, nearly square ones and a batch among them.
RECTANGLES: tuple[Shape, ...] = ((5, 3), (1, 7), (7, 1), (60, 59), (64, 16), (16, 64), (2, 3, 6))


def blocks_of(W: Tensor) -> Tensor:
    """(..., k n, n) -> (..., k, n, n), and single matrices as tall ones, written apart from the library."""
    rows, n = W.shape[-2:]
    if W.shape in RECTANGLES:
        return W if rows >= n else W.mT
    return W.reshape(*W.shape[:-2], rows // n, n, n)


def radii(W: Tensor) -> Tensor:
    return torch.linalg.eigvals(blocks_of(W)).abs().amax(dim=-1)


def with_radius(shape: Shape, dtype: torch.dtype, radius: float) -> Tensor:
    W = blocks_of(torch.randn(shape, dtype=dtype))
    W = W * (radius / torch.linalg.eigvals(W).abs().amax(dim=-1))[..., None, None]
    return W.reshape(shape)


def with_absolute_radius(shape: Shape, dtype: torch.dtype, radius: float) -> Tensor:
    W = torch.randn(shape, dtype=dtype)
    factor = radius / torch.linalg.eigvals(blocks_of(W.abs())).abs().amax(dim=-1)
    return (blocks_of(W) * factor[..., None, None]).reshape(shape)


def as_shape(W: Tensor, shape: Shape) -> Tensor:
    """The way back from blocks_of."""
    return W.mT.contiguous() if shape in RECTANGLES and shape[-2] < shape[-1] else W.reshape(shape)


def orthogonal(shape: Shape, dtype: torch.dtype) -> Tensor:
    return as_shape(torch.linalg.qr(blocks_of(torch.randn(shape, dtype=dtype))).Q, shape)


def orthogonality_defect(W: Tensor) -> Tensor:
    W = blocks_of(W)
    identity = torch.eye(W.shape[-1], dtype=W.dtype)
    return (W.mH @ W - identity).abs().amax(dim=(-2, -1))


def two_layers(shape: Shape, dtype: torch.dtype) -> Tensor:
    """D F1 F2: rotations of (1,2), (3,4), ... and of (2,3), (4,5), ..."""
    W = torch.zeros_like(blocks_of(torch.empty(shape, dtype=dtype)))
    n = W.shape[-1]
    first, second = W + torch.eye(n, dtype=dtype), W + torch.eye(n, dtype=dtype)
    for i in range(n - 1):
        factor = second if i % 2 else first
        factor[..., i : i + 2, i : i + 2] = orthogonal((*W.shape[:-2], 2, 2), dtype)
    return (first @ second).reshape(shape)


def two_layers_violation(W: Tensor) -> Tensor:
    distant = blocks_of(W).triu(3).abs() + blocks_of(W).tril(-3).abs()
    return orthogonality_defect(W).maximum(distant.amax(dim=(-2, -1)))


def moving_two_dimensions(shape: Shape, dtype: torch.dtype) -> Tensor:
    """Orthogonal, and the identity on a subspace of n - 2 dimensions."""
    Q = blocks_of(orthogonal(shape, dtype))
    C = blocks_of(torch.zeros(shape, dtype=dtype)) + torch.eye(shape[-1], dtype=dtype)
    C[..., :2, :2] = torch.linalg.qr(torch.randn((*C.shape[:-2], 2, 2), dtype=dtype)).Q
    return (Q @ C @ Q.mH).reshape(shape)


def third_moved(W: Tensor) -> Tensor:
    """The third singular value of I - W."""
    W = blocks_of(W)
    return torch.linalg.svdvals(torch.eye(W.shape[-1], dtype=W.dtype) - W)[..., 2]


def with_singular_values(shape: Shape, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """The least and the largest singular value are given."""
    U = blocks_of(orthogonal(shape, dtype))
    n = U.shape[-1]
    V = torch.linalg.qr(torch.randn_like(U[..., :n, :])).Q
    sigma = torch.linspace(low, high, n, dtype=dtype)
    return as_shape(U * sigma @ V, shape)


def norms(W: Tensor) -> Tensor:
    return torch.linalg.svdvals(blocks_of(W))[..., 0]


def with_norm(shape: Shape, dtype: torch.dtype, norm: float) -> Tensor:
    W = blocks_of(torch.randn(shape, dtype=dtype))
    return as_shape(W * (norm / torch.linalg.svdvals(W)[..., 0])[..., None, None], shape)


def slices(W: Tensor, dim: int | None) -> Tensor:
    """The slices along an axis, as rows; of each gate."""
    rows, n = W.shape[-2:]
    gates = 1 if W.ndim > 2 or W.shape in RECTANGLES else rows // n
    blocks = W.reshape(gates, rows // gates, n) if gates > 1 else W[None]
    return blocks.reshape(gates, 1, -1) if dim is None else blocks.movedim(dim + 1, 1).flatten(2)


def lengths(W: Tensor, dim: int | None) -> Tensor:
    return slices(W, dim).abs().square().sum(dim=-1).sqrt()


def with_lengths(shape: Shape, dtype: torch.dtype, length: float, dim: int | None) -> Tensor:
    """Random slices of this length."""
    W = torch.randn(shape, dtype=dtype)
    wanted = length / lengths(W, dim)[..., None] * slices(W, dim)
    if dim is None:
        return wanted.reshape(shape)
    rows, n = shape[-2:]
    gates = len(wanted)
    block = (rows // gates, n) if gates > 1 else shape
    moved = [size for axis, size in enumerate(block) if axis != dim]
    return wanted.reshape(gates, block[dim], *moved).movedim(1, dim + 1).reshape(shape).contiguous()


def block_member(shape: Shape, dtype: torch.dtype) -> Tensor:
    """[[orthogonal, C], [0, radius 1]]"""
    W = torch.zeros_like(blocks_of(torch.empty(shape, dtype=dtype)))
    batch, n = W.shape[:-2], W.shape[-1]
    q = n - 2
    W[..., :q, :q] = orthogonal((*batch, q, q), dtype)
    W[..., q:, q:] = with_radius((*batch, 2, 2), dtype, 1.0)
    W[..., :q, q:] = torch.randn((*batch, q, 2), dtype=dtype)
    return W.reshape(shape)


def block_violation(W: Tensor) -> Tensor:
    W = blocks_of(W)
    q = W.shape[-1] - 2
    parts = (
        orthogonality_defect(W[..., :q, :q])[..., 0],
        (radii(W[..., q:, q:])[..., 0] - 1).abs(),
        W[..., q:, :q].abs().amax(dim=(-2, -1)),
    )
    return torch.stack(parts).amax(dim=0)


def make_blocks(shape: Shape) -> sp.BlockTriangular:
    blocks = [(shape[-1] - 2, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm())]
    return sp.BlockTriangular(blocks, coupling=True)


def stability_violation(W: Tensor) -> Tensor:
    """Spectral radius <= 0.9, departure from normality sqrt(|W|² - Σ|λ|²) <= 6."""
    eigenvalues = torch.linalg.eigvals(blocks_of(W))
    departure = blocks_of(W).square().sum(dim=(-2, -1)) - eigenvalues.abs().square().sum(dim=-1)
    return torch.maximum(torch.relu(radii(W) / 0.9 - 1), torch.relu(departure / 36 - 1))


def abscissas(W: Tensor) -> Tensor:
    return torch.linalg.eigvals(blocks_of(W)).real.amax(dim=-1)


def with_abscissa(shape: Shape, dtype: torch.dtype, abscissa: float) -> Tensor:
    W = torch.randn(shape, dtype=dtype)
    shift = abscissa - abscissas(W)
    return (blocks_of(W) + shift[..., None, None] * torch.eye(shape[-1], dtype=dtype)).reshape(shape)


def contracting(shape: Shape, dtype: torch.dtype) -> Tensor:
    """S⁻¹CS for a contraction C of norm 0.7 and an S of condition at most 2."""
    C, S = (blocks_of(torch.randn(shape, dtype=dtype)) for _ in range(2))
    C = 0.7 * C / torch.linalg.matrix_norm(C, 2, keepdim=True)
    S = torch.eye(shape[-1], dtype=dtype) + S / (3 * torch.linalg.matrix_norm(S, 2, keepdim=True))
    return torch.linalg.solve(S, C @ S).reshape(shape)


def growth_violation(W: Tensor) -> Tensor:
    """‖Wᵏ‖ <= 3·0.9ᵏ."""
    W = blocks_of(W) / 0.9
    power, worst = W, torch.zeros_like(W.real[..., 0, 0])
    for _ in range(50):
        worst = torch.maximum(worst, torch.linalg.matrix_norm(power, 2) / 3 - 1)
        power = power @ W
    return worst


def decaying(shape: Shape, dtype: torch.dtype) -> Tensor:
    """A matrix with exp(Wt) of norm at most 2 exp(-0.2 t)."""
    C = blocks_of(contracting(shape, dtype))
    return (C - 0.9 * torch.eye(shape[-1], dtype=dtype)).reshape(shape)


def exponential_growth_violation(W: Tensor) -> Tensor:
    """‖exp(Wt)‖ <= 2 exp(-0.1 t)."""
    W = blocks_of(W)
    shifted = W + 0.1 * torch.eye(W.shape[-1], dtype=W.dtype)
    unit = torch.linalg.matrix_norm(W, 2, keepdim=True).clamp(min=1)
    norms = [
        torch.linalg.matrix_norm(torch.matrix_exp(shifted * t / unit), 2) for t in (0.1, 0.5, 1.0, 4.0, 10.0)
    ]
    return torch.stack(norms).amax(dim=0) / 2 - 1


def with_scaled_norm(shape: Shape, dtype: torch.dtype, norm: float) -> Tensor:
    """Θ⁻¹CΘ for a C of this norm and a Θ of condition 2."""
    C = blocks_of(with_norm(shape, dtype, norm))
    theta = torch.linspace(0.0, math.log(2), shape[-1], dtype=dtype).exp()
    return (C * theta / theta[:, None]).reshape(shape)


def masked_violation(W: Tensor) -> Tensor:
    """ρ(DW) <= 0.95 for diagonal D with entries in [-1, 1]."""
    masks = torch.rand(30, 1, W.shape[-1], dtype=W.dtype).mul(4).sub(2).clamp(-1, 1)
    blocks = blocks_of(W).reshape(-1, *W.shape[-1:], W.shape[-1])
    values = torch.linalg.eigvals(masks[..., None] * blocks).abs().amax(dim=(0, 2))
    return torch.relu(values / 0.95 - 1)


def as_masked(shape: Shape, dtype: torch.dtype, size: float) -> Tensor:
    """aI + Θ⁻²(Z - Zᵀ - c) for a = 0.5: in coordinates of condition 2 its symmetric part is a - c."""
    W = blocks_of(torch.randn(shape, dtype=dtype))
    theta = torch.linspace(0.0, math.log(2), shape[-1], dtype=dtype).exp()
    W = W - W.mT - size * torch.eye(shape[-1], dtype=dtype)
    W = W * theta / theta[:, None] + 0.5 * torch.eye(shape[-1], dtype=dtype)
    return W.reshape(shape)


def masked_abscissa_violation(W: Tensor) -> Tensor:
    """D(W - I/2) has no eigenvalue right of the axis for positive diagonal D."""
    blocks = blocks_of(W).reshape(-1, *W.shape[-1:], W.shape[-1])
    masks = torch.rand(30, 1, W.shape[-1], dtype=W.dtype).mul(3).exp()
    shifted = masks[..., None] * (blocks - 0.5 * torch.eye(W.shape[-1], dtype=W.dtype))
    sizes = torch.linalg.matrix_norm(shifted, 2).clamp(min=1)
    return torch.relu(torch.linalg.eigvals(shifted).real.amax(dim=-1) / sizes).amax(dim=0)


def gains(W: Tensor, states: int) -> Tensor:
    """H∞ norm of [[A, B], [C, D]]."""
    blocks = blocks_of(W) if W.shape[-2] % W.shape[-1] == 0 else W
    flat = blocks.reshape(-1, *blocks.shape[-2:])
    n = states
    found = [sp.analysis.h_infinity(V[:n, :n], V[:n, n:], V[n:, :n], V[n:, n:]) for V in flat]
    return torch.tensor(found).reshape(blocks.shape[:-2])


def slowed(W: Tensor, states: int, factor: float) -> Tensor:
    """A and B times a factor."""
    W = W.clone()
    blocks_of(W)[..., :states, :] *= factor
    return W


def with_gain(shape: Shape, dtype: torch.dtype, gain: float, states: int, radius: float) -> Tensor:
    """A random system of this gain and this radius of A."""
    W = torch.randn(shape, dtype=dtype)
    blocks = blocks_of(W) if shape[-2] % shape[-1] == 0 else W
    n = states
    sizes = torch.linalg.eigvals(blocks[..., :n, :n]).abs().amax(dim=-1)
    blocks[..., :n, :n] *= (radius / sizes)[..., None, None]
    scale = (gain / gains(W, n)).to(dtype)[..., None, None]
    blocks[..., :n, n:] *= scale
    blocks[..., n:, n:] *= scale
    return W


def checkered(n: int) -> Tensor:
    """Columns of one sign each, by turns; zeros below the diagonal, one row free."""
    pattern = torch.ones(n, n, dtype=torch.float32, device="cpu")
    pattern[:, 1::2] = -1
    pattern = pattern.triu()
    pattern[0] = torch.nan
    return pattern


def signed(W: Tensor) -> Tensor:
    """W with zeros where the pattern forbids its sign."""
    shape, pattern = W.shape, checkered(W.shape[-1])
    W = blocks_of(W)
    wrong = ((pattern == 0) & (W != 0)) | (pattern.nan_to_num(0) * W < 0)
    return torch.where(wrong, 0, W).reshape(shape)


def chain(shape: Shape, dtype: torch.dtype, floor: float) -> Tensor:
    """Rows of sum 1, with some entries that are no more than floor/n."""
    W = torch.rand(shape, dtype=dtype)
    W[..., 0, 0] = 0.0 if shape[-1] > 1 else 1.0
    return (1 - floor) * W / W.sum(dim=-1, keepdim=True) + floor / shape[-1]


def stochastic_violation(W: Tensor, floor: float) -> Tensor:
    """|rows - 1|, and n times what entries lack to floor/n."""
    lacking = torch.relu(floor - W.shape[-1] * W.amin(dim=-1))
    return torch.maximum((W.sum(dim=-1) - 1).abs(), lacking)


def mixing(shape: Shape, dtype: torch.dtype, floor: float) -> Tensor:
    """A mean of permutations (Birkhoff)."""
    blocks = torch.zeros_like(blocks_of(torch.empty(shape, dtype=dtype)))
    for matrix in blocks.reshape(-1, *blocks.shape[-2:]):
        for weight in torch.rand(4, dtype=dtype).softmax(dim=0):
            matrix += weight * torch.eye(shape[-1], dtype=dtype)[torch.randperm(shape[-1])]
    return ((1 - floor) * blocks + floor / shape[-1]).reshape(shape)


def doubly_stochastic_violation(W: Tensor, floor: float) -> Tensor:
    W = blocks_of(W)
    return torch.maximum(stochastic_violation(W, floor), stochastic_violation(W.mT, floor))


CASES = (
    Case(
        name="SpectralRadiusNorm",
        make=lambda shape: sp.SpectralRadiusNorm(),
        member=lambda shape, dtype: with_radius(shape, dtype, 1.0),
        violation=lambda W: (radii(W) - 1).abs(),
        outside=lambda shape, dtype: with_radius(shape, dtype, 0.7),
    ),
    Case(
        name="SpectralRadiusNorm-radius",
        variant=True,
        make=lambda shape: sp.SpectralRadiusNorm(radius=0.5),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.5),
        violation=lambda W: (radii(W) / 0.5 - 1).abs(),
        outside=lambda shape, dtype: with_radius(shape, dtype, 0.7),
    ),
    Case(
        name="SpectralRadiusNorm-at_most",
        variant=True,
        make=lambda shape: sp.SpectralRadiusNorm(mode="at_most"),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.9),
        violation=lambda W: torch.relu(radii(W) - 1),
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
    ),
    Case(
        name="SpectralRadiusNorm-latched",
        variant=True,
        make=lambda shape: sp.SpectralRadiusNorm(mode="latched"),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.99),
        violation=lambda W: torch.relu(radii(W) - 1),
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
    ),
    Case(
        name="SpectralRadiusNorm-absolute",
        variant=True,
        make=lambda shape: sp.SpectralRadiusNorm(0.9, of="absolute"),
        member=lambda shape, dtype: with_absolute_radius(shape, dtype, 0.9),
        violation=lambda W: (radii(W.abs()) / 0.9 - 1).abs(),
        outside=lambda shape, dtype: with_absolute_radius(shape, dtype, 0.7),
    ),
    Case(
        name="SpectralAbscissa",
        make=lambda shape: sp.SpectralAbscissa(-0.5),
        member=lambda shape, dtype: with_abscissa(shape, dtype, -0.5),
        violation=lambda W: (abscissas(W) + 0.5).abs(),
        outside=lambda shape, dtype: with_abscissa(shape, dtype, 0.3),
    ),
    Case(
        name="SpectralAbscissa-at_most",
        variant=True,
        make=lambda shape: sp.SpectralAbscissa(mode="at_most"),
        member=lambda shape, dtype: with_abscissa(shape, dtype, -0.1),
        violation=lambda W: torch.relu(abscissas(W)),
        outside=lambda shape, dtype: with_abscissa(shape, dtype, 0.3),
    ),
    Case(
        name="ScaledCayley",
        make=lambda shape: sp.ScaledCayley(),
        member=orthogonal,
        violation=orthogonality_defect,
        outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
        rectangles=RECTANGLES,
    ),
    Case(
        name="Givens",
        make=lambda shape: sp.Givens(),
        member=orthogonal,
        violation=orthogonality_defect,
        outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
    ),
    Case(
        name="Givens-two-layers",
        variant=True,
        make=lambda shape: sp.Givens(layers=2),
        member=two_layers,
        violation=two_layers_violation,
        recovers=False,
    ),
    Case(
        name="FourierUnitary",
        make=lambda shape: sp.FourierUnitary(),
        member=orthogonal,
        violation=orthogonality_defect,
        outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
        recovers=False,
        dtypes=(torch.complex64, torch.complex128),
    ),
    Case(
        name="Householder",
        make=lambda shape: sp.Householder(),
        member=orthogonal,
        violation=orthogonality_defect,
        outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
        rectangles=RECTANGLES,
    ),
    Case(
        name="Householder-two",
        variant=True,
        make=lambda shape: sp.Householder(reflections=2),
        member=moving_two_dimensions,
        violation=lambda W: torch.maximum(orthogonality_defect(W), third_moved(W)),
        recovers=False,
    ),
    Case(
        name="SingularValues",
        make=lambda shape: sp.SingularValues(margin=0.3, center=1.2),
        member=lambda shape, dtype: with_singular_values(shape, dtype, 0.91, 1.49),
        violation=lambda W: torch.relu((torch.linalg.svdvals(blocks_of(W)) - 1.2).abs().amax(dim=-1) - 0.3),
        outside=lambda shape, dtype: with_singular_values(shape, dtype, 0.7, 1.6),
        rectangles=RECTANGLES,
    ),
    Case(
        name="SpectralNorm",
        make=lambda shape: sp.SpectralNorm(0.7, mode="equal"),
        member=lambda shape, dtype: with_norm(shape, dtype, 0.7),
        violation=lambda W: (norms(W) / 0.7 - 1).abs(),
        outside=lambda shape, dtype: with_norm(shape, dtype, 0.5),
        rectangles=RECTANGLES,
    ),
    Case(
        name="SpectralNorm-at_most",
        variant=True,
        make=lambda shape: sp.SpectralNorm(),
        member=lambda shape, dtype: with_norm(shape, dtype, 0.9),
        violation=lambda W: torch.relu(norms(W) - 1),
        outside=lambda shape, dtype: with_norm(shape, dtype, 1.5),
        rectangles=RECTANGLES[:1],
    ),
    Case(
        name="SpectralNorm-tracking",
        variant=True,
        make=lambda shape: sp.SpectralNorm(0.7, mode="equal", solver="tracking"),
        member=lambda shape, dtype: with_norm(shape, dtype, 0.7),
        # In double precision a norm that is followed is known to 1e-10.
        violation=lambda W: torch.relu((norms(W) / 0.7 - 1).abs() - 1e-10),
        outside=lambda shape, dtype: with_norm(shape, dtype, 0.5),
        rectangles=((60, 59),),
    ),
    Case(
        name="BlockTriangular",
        make=make_blocks,
        member=block_member,
        violation=block_violation,
        outside=lambda shape, dtype: torch.randn(shape, dtype=dtype),
    ),
    Case(
        name="SkewExponential",
        make=lambda shape: sp.SkewExponential(),
        member=orthogonal,
        violation=orthogonality_defect,
        outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
        dtypes=(torch.float32, torch.float64),
        rectangles=RECTANGLES,
    ),
    Case(
        name="SchurForm-bounded",
        make=lambda shape: sp.SchurForm(radius=0.9, departure=6.0),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.8),
        violation=stability_violation,
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="SchurForm-abscissa",
        holds_far=False,  # Without a bound on the departure from normality.
        variant=True,
        make=lambda shape: sp.SchurForm(abscissa=-0.1),
        member=lambda shape, dtype: with_abscissa(shape, dtype, -0.2),
        violation=lambda W: torch.relu(abscissas(W) + 0.1),
        outside=lambda shape, dtype: with_abscissa(shape, dtype, 0.5),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="LyapunovForm",
        make=lambda shape: sp.LyapunovForm(0.95),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.9),
        violation=lambda W: torch.relu(radii(W) / 0.95 - 1),
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
    ),
    Case(
        name="LyapunovForm-growth",
        variant=True,
        make=lambda shape: sp.LyapunovForm(0.9, growth=3.0),
        member=contracting,
        violation=growth_violation,
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
    ),
    Case(
        name="LyapunovForm-contraction",
        variant=True,
        make=lambda shape: sp.LyapunovForm(growth=1.0),
        member=lambda shape, dtype: 0.6 * orthogonal(shape, dtype),
        violation=lambda W: torch.relu(torch.linalg.matrix_norm(blocks_of(W), 2) - 1),
        outside=lambda shape, dtype: 2 * orthogonal(shape, dtype),
    ),
    Case(
        name="LyapunovForm-abscissa",
        variant=True,
        make=lambda shape: sp.LyapunovForm(abscissa=-0.1),
        member=lambda shape, dtype: with_abscissa(shape, dtype, -0.2),
        violation=lambda W: torch.relu(abscissas(W) + 0.1),
        outside=lambda shape, dtype: with_abscissa(shape, dtype, 0.5),
    ),
    Case(
        name="LyapunovForm-abscissa-growth",
        variant=True,
        make=lambda shape: sp.LyapunovForm(abscissa=-0.1, growth=2.0),
        member=decaying,
        violation=exponential_growth_violation,
        outside=lambda shape, dtype: with_abscissa(shape, dtype, 0.5),
    ),
    Case(
        name="LyapunovForm-diagonal",
        variant=True,
        make=lambda shape: sp.LyapunovForm(0.95, metric="diagonal"),
        member=lambda shape, dtype: with_scaled_norm(shape, dtype, 0.9),
        violation=masked_violation,
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="LyapunovForm-diagonal-growth",
        variant=True,
        make=lambda shape: sp.LyapunovForm(0.95, growth=3.0, metric="diagonal"),
        member=lambda shape, dtype: with_scaled_norm(shape, dtype, 0.9),
        violation=masked_violation,
        outside=lambda shape, dtype: with_radius(shape, dtype, 1.5),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="LyapunovForm-diagonal-abscissa",
        variant=True,
        make=lambda shape: sp.LyapunovForm(abscissa=0.5, metric="diagonal"),
        member=lambda shape, dtype: as_masked(shape, dtype, 0.1),
        violation=masked_abscissa_violation,
        outside=lambda shape, dtype: with_abscissa(shape, dtype, 1.5),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="BoundedGain",
        make=lambda shape: sp.BoundedGain(1.5, states=2),
        member=lambda shape, dtype: with_gain(shape, dtype, 1.2, 2, 0.8),
        violation=lambda W: torch.relu(gains(W, 2) / 1.5 - 1),
        outside=lambda shape, dtype: with_gain(shape, dtype, 2.0, 2, 0.8),
        dtypes=(torch.float32, torch.float64),
        rectangles=((5, 3), (3, 5), (60, 59), (2, 3, 6)),
    ),
    Case(
        name="BoundedGain-radius",
        variant=True,
        make=lambda shape: sp.BoundedGain(1.5, states=3, radius=0.9),
        # The gain on the circle of radius 0.9 is that of A/0.9 and B/0.9.
        member=lambda shape, dtype: slowed(with_gain(shape, dtype, 1.2, 3, 0.8), 3, 0.9),
        violation=lambda W: torch.relu(gains(slowed(W, 3, 1 / 0.9), 3) / 1.5 - 1),
        outside=lambda shape, dtype: slowed(with_gain(shape, dtype, 2.0, 3, 0.8), 3, 0.9),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="FrobeniusNorm",
        make=lambda shape: sp.FrobeniusNorm(1.5),
        member=lambda shape, dtype: with_lengths(shape, dtype, 1.5, None),
        violation=lambda W: (lengths(W, None) / 1.5 - 1).abs(),
        outside=lambda shape, dtype: with_lengths(shape, dtype, 1.0, None),
        shapes=((4, 4), (5, 5), (16, 4)),  # Three dimensions are one weight, not a batch.
        rectangles=RECTANGLES[:-1],
    ),
    Case(
        name="FrobeniusNorm-rows",
        variant=True,
        make=lambda shape: sp.FrobeniusNorm(0.5, dim=0),
        member=lambda shape, dtype: with_lengths(shape, dtype, 0.5, 0),
        violation=lambda W: (lengths(W, 0) / 0.5 - 1).abs(),
        outside=lambda shape, dtype: with_lengths(shape, dtype, 0.4, 0),
        rectangles=RECTANGLES[:1],
    ),
    Case(
        name="FrobeniusNorm-columns-at_most",
        variant=True,
        make=lambda shape: sp.FrobeniusNorm(1.0, "at_most", dim=1),
        member=lambda shape, dtype: with_lengths(shape, dtype, 0.9, 1),
        violation=lambda W: torch.relu(lengths(W, 1) - 1),
        outside=lambda shape, dtype: with_lengths(shape, dtype, 1.5, 1),
        shapes=((4, 4), (5, 5), (16, 4)),
        rectangles=RECTANGLES[:1],
    ),
    Case(
        name="SignPattern",
        make=lambda shape: sp.SignPattern(checkered(shape[-1])),
        member=lambda shape, dtype: signed(torch.randn(shape, dtype=dtype)),
        violation=lambda W: (signed(W) - W).abs().amax(dim=(-2, -1)),
        outside=lambda shape, dtype: torch.randn(shape, dtype=dtype),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="DoublyStochastic",
        make=lambda shape: sp.DoublyStochastic(),
        member=lambda shape, dtype: mixing(shape, dtype, 0.0),
        violation=lambda W: doubly_stochastic_violation(W, 0.0),
        outside=lambda shape, dtype: torch.rand(shape, dtype=dtype),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="DoublyStochastic-floor",
        variant=True,
        make=lambda shape: sp.DoublyStochastic(0.2),
        member=lambda shape, dtype: mixing(shape, dtype, 0.2),
        violation=lambda W: doubly_stochastic_violation(W, 0.2),
        outside=lambda shape, dtype: torch.rand(shape, dtype=dtype),
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="Stochastic",
        make=lambda shape: sp.Stochastic(),
        member=lambda shape, dtype: chain(shape, dtype, 0.0),
        violation=lambda W: stochastic_violation(W, 0.0),
        outside=lambda shape, dtype: torch.rand(shape, dtype=dtype),
        dtypes=(torch.float32, torch.float64),
        rectangles=RECTANGLES,
    ),
    Case(
        name="Stochastic-floor",
        variant=True,
        make=lambda shape: sp.Stochastic(0.2),
        member=lambda shape, dtype: chain(shape, dtype, 0.2),
        violation=lambda W: stochastic_violation(W, 0.2),
        outside=lambda shape, dtype: torch.rand(shape, dtype=dtype),
        dtypes=(torch.float32, torch.float64),
        rectangles=RECTANGLES[:1],
    ),
    Case(
        name="SchurForm-paper",
        make=lambda shape: sp.SchurForm(sp.ScaledCayley(), form="paper"),
        member=lambda shape, dtype: torch.randn(shape, dtype=dtype),
        violation=lambda W: torch.where(W.isfinite(), 0.0, torch.inf).amax(dim=(-2, -1)),
        dtypes=(torch.float32, torch.float64),
    ),
)


def from_any(case: Case) -> Literal["paper"] | None:
    """The start of a case for a weight of any kind: some refuse negative entries."""
    return "paper" if case.name.startswith(("Stochastic", "DoublyStochastic")) else case.init


# Whose set is that of the weight at registration: the member that a check starts from.
FROM_THE_START = (
    Case(
        name="SpectralRadiusNorm-present",
        variant=True,
        make=lambda shape: sp.SpectralRadiusNorm("present"),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.8),
        violation=lambda W: (radii(W) / 0.8 - 1).abs(),
    ),
    Case(
        name="SpectralAbscissa-present",
        variant=True,
        make=lambda shape: sp.SpectralAbscissa("present"),
        member=lambda shape, dtype: with_abscissa(shape, dtype, -0.2),
        violation=lambda W: (abscissas(W) + 0.2).abs(),
    ),
    Case(
        name="SpectralNorm-present",
        variant=True,
        make=lambda shape: sp.SpectralNorm("present", mode="equal"),
        member=lambda shape, dtype: with_norm(shape, dtype, 0.8),
        violation=lambda W: (norms(W) / 0.8 - 1).abs(),
        rectangles=RECTANGLES[:1],
    ),
    Case(
        name="FrobeniusNorm-present",
        variant=True,
        make=lambda shape: sp.FrobeniusNorm("present", dim=0),
        member=lambda shape, dtype: with_lengths(shape, dtype, 0.8, 0),
        violation=lambda W: (lengths(W, 0) / 0.8 - 1).abs(),
        rectangles=RECTANGLES[:1],
    ),
    Case(
        name="LyapunovForm-present",
        variant=True,
        make=lambda shape: sp.LyapunovForm("present"),
        member=lambda shape, dtype: with_radius(shape, dtype, 0.8),
        violation=lambda W: torch.relu(radii(W) / 0.8 - 1),
    ),
    Case(
        name="LyapunovForm-diagonal-present",
        variant=True,
        make=lambda shape: sp.LyapunovForm("present", metric="diagonal"),
        # Orthogonal matrices have the least norm in every coordinates.
        member=lambda shape, dtype: 0.95 * orthogonal(shape, dtype),
        violation=masked_violation,
        dtypes=(torch.float32, torch.float64),
    ),
    Case(
        name="LyapunovForm-abscissa-present",
        variant=True,
        make=lambda shape: sp.LyapunovForm(abscissa="present"),
        member=lambda shape, dtype: with_abscissa(shape, dtype, -0.2),
        violation=lambda W: torch.relu(abscissas(W) + 0.2),
    ),
)
