r"""A Lipschitz constant of linear maps with activations between them, by a chain of quadratic forms.

Problem
-------
z_k = W_k v_{k-1} + b_k and v_k = φ_k(z_k) for k = 1 … L - 1, y = W_L v_{L-1} + b_L, of the input v_0. Each
entry of φ_k has slopes in [α, β]. From here on v, z, y are differences of their values for two inputs.

One layer
---------
Let V(v) = vᵀMv, M ≥ 0, be given, z = Wv and w_i = s_i z_i with s_i ∈ [α, β]. Then (w_i - αz_i)(βz_i - w_i) =
(s_i - α)(β - s_i) z_i² ≥ 0, and with a diagonal Λ ≥ 0

    -wᵀΛw + (α + β) wᵀΛz - αβ zᵀΛz ≥ 0.                                                            (1)

So wᵀM⁺w ≤ vᵀMv for all such pairs if vᵀMv - wᵀM⁺w is at least the left side of (1) for all v and w, which is

    B = [[N, -½(α + β) WᵀΛ], [-½(α + β) ΛW, Λ - M⁺]] ≥ 0,    N = M + αβ WᵀΛW.                       (2)

With N > 0 the Schur complement of N in B says which M⁺ is the largest:

    M⁺ = Λ - ¼(α + β)² ΛPΛ,    P = WN⁻¹Wᵀ.                                                         (3)

The chain
---------
From M_0 = I on, v_kᵀM_k v_k ≤ … ≤ ‖v_0‖². If also

    ρ M_{L-1} - W_LᵀW_L ≥ 0,    or    [[M_{L-1}, W_Lᵀ], [W_L, K]] ≥ 0,                             (4)

then ‖y‖² ≤ ρ ‖v_0‖², or (cᵀy)² ≤ cᵀKc ‖v_0‖² for every c, such as c = e_i - e_j for the difference of two
outputs. Every Λ for which (2) holds is a proof. M_k > 0 need not be shown: only (2) and (4) are used.

A closed choice
---------------
Let Λ = λI, G = WM⁻¹Wᵀ, γ an eigenvalue of G and g the largest. P is G(I + αβλG)⁻¹, so M⁺ has the eigenvalues

    λ (1 + αβλγ - ¼(α + β)²λγ)/(1 + αβλγ) = λ (1 - ¼(β - α)²λγ)/(1 + αβλγ),                        (5)

which fall with γ, since αβ + ¼(β - α)² = ¼(α + β)². The least eigenvalue belongs to γ = g. As a function of λ
this eigenvalue is largest where 1 - 2aλg - acλ²g² = 0 for a = ¼(β - α)², c = αβ, a + c = ¼(α + β)², so at

    λ = 2/(s (β - α) g),    s = max(|α|, |β|),                                                     (6)

where it is 1/(s²g). Hence M⁺ ≥ I/(s²g): up to rounding this choice is at most the product of norms and
slopes. N > 0 needs 1 + αβλg > 0, which is |α + β|/(β - α) here. For slopes that are symmetric, α = -β, N is
singular at this λ; then (2) asks N ≥ 0 and Λ ≥ M⁺ alone, and M⁺ = Λ. Slopes may always be widened. They are
made symmetric where |α + β| is small beside β - α, and are widened where β - α is small.

Scales
------
Units may be scaled, v_k → c v_k, W_k → c W_k, W_{k+1} → W_{k+1}/c; slopes stay. Here c is the power of two
for which Λ is about 1. So nothing overflows, and the scales enter the result as an exponent.

A wide first map
----------------
Only W_1W_1ᵀ counts: if it is at most CCᵀ, W_1 = CK with ‖K‖ ≤ 1 (Douglas' lemma), and C may take its place.

Rounding
--------
If Cholesky's factorisation of a symmetric C of size n succeeds, C ≥ -n (n + 1) u diag(C), u the unit
roundoff (Higham, "Accuracy and Stability of Numerical Algorithms", theorem 10.3, with |RᵀR| ≤ √(c_ii c_jj)).
An entry of WᵀΛW is wrong by at most (n + 2) u √(q_ii q_jj), q its diagonal, and all other entries by a few
u. Together this is below (n + 3)² ε D, ε = 2u, for

    D = diag(M) + (|αβ| + |α + β|) diag(WᵀΛW) for v,    D = Λ for w,

which are subtracted from B before it is factorised. If W itself is a product of matrices, it is wrong by E,
‖E‖_F ≤ e, and B by at most ½|α + β| e √(max Λ) (‖v‖² + ‖Λ^½ w‖²) + |αβ| max Λ (2e‖W‖_F + e²)‖v‖². This bound
is subtracted, too.

Sources: Fazlyab, Robey, Hassani, Morari and Pappas, "Efficient and accurate estimation of Lipschitz constants
for deep neural networks" (NeurIPS 2019), have one matrix inequality for all layers; Xu and Sivaranjani,
"ECLipsE: efficient compositional Lipschitz constant estimation for deep neural networks" (NeurIPS 2024), have
the chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param._matrices import decomposed

_EPS = torch.finfo(torch.float64).eps
# Slopes [α, β] become symmetric if |α + β| is less than the first number times β - α; β - α becomes at least
# the second number times the largest slope.
_SYMMETRIC, _RANGE = 1e-3, 1e-2
# By how much λ is below (6): for symmetric slopes, whose N is singular at (6), and for others.
_BELOW_SYMMETRIC, _BELOW = 1e-6, 0.0
# The largest part of Λ that may be lost to rounding.
_MOST = 1e-3

Slopes = tuple[float, float]


class Chain(NamedTuple):
    """Linear maps with activations between them.

    Attributes:
        maps: W_1 … W_L, float64 on the host, finite.
        slopes: [α, β] of the L - 1 activations between them.
        errors: A bound of ‖E‖_F for each map.
    """

    maps: Sequence[Tensor]
    slopes: Sequence[Slopes]
    errors: Sequence[float]


class Scaled(NamedTuple):
    """A chain in the units in which Λ is about 1.

    Attributes:
        chain: The chain, whose constant is the original constant times 2^-exponent.
        exponent: A power of two.
        weights: The diagonals of Λ.
        form: M_{L-1}, proven.
    """

    chain: Chain
    exponent: int
    weights: Sequence[Tensor]
    form: Tensor


def scaled(chain: Chain) -> Scaled | None:
    """Return the chain in good units, with the closed choice (6); None if it is not proven.

    No map is zero.
    """
    maps, slopes, errors, weights = [], [widened(*each) for each in chain.slopes], [], []
    W, error, exponent = _unit(chain.maps[0], chain.errors[0])
    if W.shape[0] < W.shape[1]:
        W, error = _narrow(W, error)
    form = torch.eye(W.shape[1], dtype=torch.float64, device="cpu")
    for k, (low, high) in enumerate(slopes):
        root, failed = torch.linalg.cholesky_ex(form)
        if failed:
            return None
        g = _largest(torch.linalg.solve_triangular(root, W.mT, upper=False))
        steepest = max(abs(low), abs(high))
        goal = 2 / (steepest * (high - low))
        unit = round(math.log2(goal / g) / 2) if g > 0 else 0
        W, error, g = (
            torch.ldexp(W, torch.tensor(unit, dtype=torch.int64, device="cpu")),
            math.ldexp(error, unit),
            math.ldexp(g, 2 * unit),
        )
        below = _BELOW_SYMMETRIC if low + high == 0 else _BELOW
        weight = torch.full((len(W),), (1 - below) * goal / g, dtype=torch.float64, device="cpu")
        following = step(form, W, error, weight, (low, high))
        if following is None:
            return None
        form = following
        maps.append(W)
        errors.append(error)
        weights.append(weight)
        W, error, own = _unit(chain.maps[k + 1], chain.errors[k + 1])
        exponent += own - unit
    return Scaled(Chain([*maps, W], slopes, [*errors, error]), exponent, weights, form)


def proven(chain: Chain, weights: Sequence[Tensor]) -> Tensor | None:
    """Return M_{L-1} for these Λ, None if (2) is not proven."""
    form: Tensor | None = torch.eye(chain.maps[0].shape[1], dtype=torch.float64, device="cpu")
    for W, error, weight, slopes in zip(chain.maps, chain.errors, weights, chain.slopes, strict=False):
        if form is not None:
            form = step(form, W, error, weight, slopes)
    return form


def step(form: Tensor, W: Tensor, error: float, weight: Tensor, slopes: Slopes) -> Tensor | None:
    """Return M⁺ of (3), less a margin for rounding, with (2) proven; None if (2) is not proven."""
    total, product = sum(slopes), slopes[0] * slopes[1]
    most = float(weight.max())
    if not (bool((weight > 0).all()) and most < math.inf):
        return None
    room = (sum(W.shape) + 3) ** 2 * _EPS
    wrong = abs(total) / 2 * error * math.sqrt(most)
    wrong_v = wrong + abs(product) * most * error * (2 * float(torch.linalg.norm(W)) + error)
    N = form + product * (W.mT @ (weight[:, None] * W)) if product else form.clone()
    D = form.diagonal() + (abs(product) + abs(total)) * (weight[:, None] * W.square()).sum(dim=0)
    N.diagonal().sub_(room * D + wrong_v)
    root, failed = torch.linalg.cholesky_ex(N)
    if failed:
        return None
    if total == 0:
        return torch.diag_embed((1 - room) * weight)
    half = torch.linalg.solve_triangular(root, -total / 2 * (weight[:, None] * W).mT, upper=False)
    lost = half.mT @ half
    extra = 4 * room
    while extra < _MOST:
        following = torch.diag_embed((1 - extra) * weight - 2 * wrong * weight) - lost
        # The Schur complement of N in (2). If Cholesky can factorise this complement, (2) is proven.
        rest = torch.diag_embed((1 - room) * weight - wrong * weight) - following - lost
        if not torch.linalg.cholesky_ex(rest).info:
            return following
        extra *= 4
    return None


def bound(form: Tensor, W: Tensor, error: float) -> float | None:
    """Return √ρ of (4), proven; None if (4) is not proven."""
    root, failed = torch.linalg.cholesky_ex(form)
    if failed:
        return None
    gram, size = W.mT @ W, float(torch.linalg.norm(W))
    least = _largest(torch.linalg.solve_triangular(root, W.mT, upper=False))
    room = (sum(W.shape) + 3) ** 2 * _EPS
    wrong = error * (2 * size + error)
    extra = 4 * room
    while extra < _MOST:
        square = least * (1 + extra)
        T = square * form - gram
        T.diagonal().sub_(room * (square * form.diagonal() + gram.diagonal()) + wrong)
        if not torch.linalg.cholesky_ex(T).info:
            return math.sqrt(square) * (1 + _EPS)
        extra *= 4
    return None


def output_form(form: Tensor, W: Tensor, error: float) -> Tensor | None:
    """Return K of (4), proven; None if (4) is not proven."""
    root, failed = torch.linalg.cholesky_ex(form)
    if failed:
        return None
    half = torch.linalg.solve_triangular(root, W.mT, upper=False)
    K, n = half.mT @ half, W.shape[1]
    room = (sum(W.shape) + 3) ** 2 * _EPS
    upper = form.clone()
    upper.diagonal().mul_(1 - room).sub_(error)
    extra = 4 * room
    while extra < _MOST:
        larger = K.clone()
        larger.diagonal().add_(extra * (K.diagonal() + K.diagonal().max()) + error)
        block = torch.empty(sum(W.shape), sum(W.shape), dtype=torch.float64, device="cpu")
        block[:n, :n], block[n:, :n], block[:n, n:], block[n:, n:] = upper, W, W.mT, larger
        block[n:, n:].diagonal().sub_(room * larger.diagonal() + error)
        if not torch.linalg.cholesky_ex(block).info:
            return larger
        extra *= 4
    return None


def widened(low: float, high: float) -> Slopes:
    """Return slopes that contain [low, high] and are either symmetric or clearly not."""
    steepest = max(abs(low), abs(high))
    if high - low < _RANGE * steepest:
        low, high = min(low, high - _RANGE * steepest), max(high, low + _RANGE * steepest)
    if abs(low + high) < _SYMMETRIC * (high - low):
        return -steepest, steepest
    return low, high


def _unit(W: Tensor, error: float) -> tuple[Tensor, float, int]:
    """Return W' with W = 2^e W', its error, and e."""
    exponent = int(torch.frexp(W.abs().max()).exponent)
    inverse = torch.tensor(-exponent, dtype=torch.int64, device="cpu")
    return torch.ldexp(W, inverse), math.ldexp(error, -exponent), exponent


def _narrow(W: Tensor, error: float) -> tuple[Tensor, float]:
    """Return a square C with CCᵀ ≥ WWᵀ, and the error of C, which is 0."""
    gram, n = W @ W.mT, len(W)
    room = n * (sum(W.shape) + 3) * _EPS
    d = gram.diagonal()
    size = float(torch.linalg.norm(W))
    d.mul_(1 + 2 * room).add_(2 * room * d.mean() + error * (2 * size + error))
    return torch.linalg.cholesky(gram), 0.0


def _largest(half: Tensor) -> float:
    """Return about the square of the norm."""
    gram = half.mT @ half if half.shape[0] >= half.shape[1] else half @ half.mT
    return float(decomposed(torch.linalg.eigvalsh, gram)[-1].clamp(min=0))
