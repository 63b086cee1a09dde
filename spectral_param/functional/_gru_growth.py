r"""Differentiable bounds on how a gated recurrent unit changes the difference of two states.

A GRU computes h⁺ = (1 - z) ν + z h with r = σ(x_r + U_r h), z = σ(x_z + U_z h) and ν = tanh(x_n + r (U_n h +
b)), where x_r, x_z and x_n come from the input. The cube \|h_i\| <= 1 is invariant. In the cube
\|h - ν\| <= 1 + \|ν\|, and \|U_n h + b\| <= q, where q_i is the sum of row i of \|U_n\| plus \|b_i\|. The
slopes of z, r and ν are z(1 - z), r(1 - r) <= 1/4 and 1 - ν². Let d >= \|δh\| bound the difference of two
states that read the same input. Then, entry by entry,

.. math:: |δh^+| ≤ z d + (1 - z) f(d), \qquad f(d)_i = \max_{0 ≤ ν ≤ 1} (1 + ν) (A d)_i + (1 - ν^2) (C d)_i,

with A = \|U_z\| and C = \|U_n\| + ¼ diag(q) \|U_r\|, because z(1 - z) <= 1 - z. The maximum over ν is
(Ad)_i + (Cd)_i + (Ad)_i²/(4 (Cd)_i), at ν = (Ad)_i/(2 (Cd)_i). If this ν exceeds 1, the maximum is 2 (Ad)_i.

The function f is monotone and homogeneous. For any d > 0 let s_i = f(d)_i/d_i. For fixed d, s_i depends only
on the rows of U that belong to unit i. Let the update gate of unit i be at most z̄_i, and s_i <= 1. In the
norm max \|x_i\|/d_i the network then contracts at the rate max_i (z̄_i + (1 - z̄_i) s_i). So the rate is r if

.. math:: \bar z_i = \frac{r - s_i}{1 - s_i} = σ(L_i), \qquad L_i = \log\frac{r - s_i}{1 - r}.

The rows of each unit may be scaled separately: because q is a sum over a row, multiplying the rows of unit i
by t <= 1 gives at most t s_i. The least s for which some d has s_i <= s for all i is the Perron root of f.

The idea is from Bonassi, Farina and Scattolini, "On the stability properties of gated recurrent units neural
networks" (2021), whose condition is the case d = 1.
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
# Entries of d lie between e^-14 and e^14, so quotients of entries stay below about 1e12.
_RANGE = 14.0


def scaling_of(logarithm: Tensor) -> Tensor:
    """Return d in double precision from its trained logarithm, which is bent smoothly into the range."""
    return (_RANGE * torch.tanh(to_double(logarithm) / _RANGE)).exp()


def logarithm_of(scaling: Tensor) -> Tensor:
    """Return an argument for which :func:`scaling_of` gives d, up to a factor; clip log d to the range."""
    centered = scaling.log() - (scaling.log().amax() + scaling.log().amin()) / 2
    return _RANGE * torch.atanh((centered / _RANGE).clamp(-1 + 1e-12, 1 - 1e-12))


def gru_growth(weight_hh: Tensor, bias: Tensor | None, d: Tensor) -> Tensor:  # (3n, n), (n,), (n,) -> (n,)
    """Return s_i = f(d)_i/d_i for every unit, in double precision, rounded up.

    Args:
        weight_hh: The recurrent weights U_r, U_z and U_n, stacked.
        bias: The recurrent bias b of the candidate ν.
        d: The positive divisors of the states in the norm, in double precision.
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
    """Return the least s for all units together, and its d; stop once s <= ``goal`` is proven or refuted."""
    U_r, A, U_n = abs(weight_hh).reshape(3, -1, weight_hh.shape[1])
    C = U_n + ((U_n.sum(axis=1) + abs(bias)) / 4)[:, None] * U_r
    return comparison_root([Layer(A, A, C, slice(None))], goal)


def largest_factor(weight_hh: Array, bias: Array, most: float) -> float:
    """Return the largest t <= 1, to 1e-9, for which the least s of tU is at most ``most``."""
    s = least_growth(weight_hh, bias).rate
    if s <= most:
        return 1.0
    inside, outside = most / s, min(1.0, math.sqrt(most / s))  # t² s <= least s of tU <= t s.
    inside *= 1 - 1e-12
    while outside > inside * (1 + 1e-9):
        t = (inside + outside) / 2
        is_inside = least_growth(t * weight_hh, bias, most).rate <= most
        inside, outside = (t, outside) if is_inside else (inside, t)
    return inside
