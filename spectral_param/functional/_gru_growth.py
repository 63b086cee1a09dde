r"""Differentiable bounds on how a gated recurrent unit changes the difference of two states.

With h⁺ = (1 - z) ν + z h, r = σ(. + U_r h), z = σ(. + U_z h), ν = tanh(. + r (U_n h + b)), the cube
\|h_i\| <= 1 is invariant. On it \|h - ν\| <= 1 + \|ν\|, and \|U_n h + b\| <= q, the sum of a row of \|U_n\|
and \|b\|. The slopes of the gates are z(1 - z), r(1 - r) <= 1/4 and 1 - ν². So two states that read the same
input obey, entry by entry for every d >= \|δh\|,

.. math:: |δh^+| ≤ z d + (1 - z) f(d), \qquad f(d)_i = \max_{0 ≤ ν ≤ 1} (1 + ν) (A d)_i + (1 - ν^2) (C d)_i,

with A = \|U_z\| and C = \|U_n\| + ¼ diag(q) \|U_r\| (z(1 - z) <= 1 - z was used). The maximum is
(Ad)_i + (Cd)_i + (Ad)_i²/(4 (Cd)_i), at ν = (Ad)_i/(2 (Cd)_i), or 2 (Ad)_i if this ν exceeds 1.

f is monotone and homogeneous. For any d > 0 let s_i = f(d)_i/d_i. For fixed d this number depends only on the
rows of U that belong to unit i. In the norm max \|x_i\|/d_i the rate is the largest z̄_i + (1 - z̄_i) s_i,
for update gates of at most z̄_i and s_i <= 1. So gates of at most

.. math:: \bar z_i = \frac{r - s_i}{1 - s_i} = σ(L_i), \qquad L_i = \log\frac{r - s_i}{1 - r},

have the rate r. The rows of each unit may be scaled separately: q is a sum over a row, so rows multiplied by
t <= 1 have at most t s_i. The least s with s_i <= s for all i and some d is the Perron root of f.

The idea is from Bonassi, Farina and Scattolini, "On the stability properties of gated recurrent units neural
networks" (2021); their condition is the case d = 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectral_param._context import precise
from spectral_param._matrices import Array
from spectral_param._precision import to_double
from spectral_param.functional._comparison import Layer, Root, comparison_root

_EPS = torch.finfo(torch.float64).eps
# Entries of d are between e^-14 and e^14, so that their quotients stay below about 1e12.
_RANGE = 14.0


def scaling_of(logarithm: Tensor) -> Tensor:
    """Return d in double precision; the parameters are nearly log d."""
    return (_RANGE * torch.tanh(to_double(logarithm) / _RANGE)).exp()


def logarithm_of(scaling: Tensor) -> Tensor:
    """Return the parameters of d, clipped to the range."""
    centered = scaling.log() - (scaling.log().amax() + scaling.log().amin()) / 2
    return _RANGE * torch.atanh((centered / _RANGE).clamp(-1 + 1e-12, 1 - 1e-12))


def gru_growth(weight_hh: Tensor, bias: Tensor | None, d: Tensor) -> Tensor:  # (3n, n), (n,), (n,) -> (n,)
    """Return s in double precision, rounded up.

    Args:
        weight_hh: U_r, U_z and U_n stacked.
        bias: b, the recurrent bias of ν.
        d: The units of the states, in double precision.
    """
    with precise(weight_hh):
        U_r, A, U_n = to_double(weight_hh).abs().chunk(3)
        q = U_n.sum(dim=1)
        if bias is not None:
            q = q + to_double(bias).abs()
        a, c = A @ d, U_n @ d + q * (U_r @ d) / 4
        at_end = a >= 2 * c
        divisor = torch.where(at_end, 1, 4 * c)
        s = (a + torch.where(at_end, a, c + a * (a / divisor))) / d
        # All sums have non-negative terms, so the relative rounding error is at most eps for each operation.
        return s * (1 + 2 * (len(d) + 20) * _EPS)


def least_growth(weight_hh: Array, bias: Array, goal: float | None = None) -> Root:
    """Return the least s for all rows together, and its d; with ``goal``, stop when s <= goal is decided."""
    U_r, A, U_n = abs(weight_hh).reshape(3, -1, weight_hh.shape[1])
    C = U_n + ((U_n.sum(axis=1) + abs(bias)) / 4)[:, None] * U_r
    return comparison_root([Layer(A, A, C, slice(None))], goal)


def largest_factor(weight_hh: Array, bias: Array, most: float) -> float:
    """Return the largest t <= 1, to 1e-9, for which the least s of tU is at most ``most``."""
    s = least_growth(weight_hh, bias).rate
    if s <= most:
        return 1.0
    inside, outside = most / s, min(1.0, math.sqrt(most / s))  # t² s <= least growth <= t s.
    inside *= 1 - 1e-12
    while outside > inside * (1 + 1e-9):
        t = (inside + outside) / 2
        is_inside = least_growth(t * weight_hh, bias, most).rate <= most
        inside, outside = (t, outside) if is_inside else (inside, t)
    return inside
