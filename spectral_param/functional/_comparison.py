r"""Comparison functions bound how a recurrent network changes the difference of two states, for each unit.

Two runs of a network read the same inputs, and d >= \|δ\| bounds the difference of their states. A comparison
function g of each layer, monotone and homogeneous, bounds the next difference: \|δ⁺\| <= g(d, e), where e
bounds the difference of the layer's inputs (the next states of the layer before; empty for the first layer).
If g(d) <= r d for one d > 0, for all layers together, the network contracts at the rate r in the norm max
\|δ_i\|/d_i. The least such r is the Perron root of g. All comparison functions here have the form

.. math:: g(v)_i = (P v)_i + \max_{0 ≤ ν ≤ 1} \big(ν (Q v)_i + (1 - ν^2) (S v)_i\big), \qquad v = (d, e),

with matrices P, Q, S >= 0 of a layer. (The maximum is (Sv)_i + (Qv)_i²/(4 (Sv)_i), at ν = (Qv)_i/(2 (Sv)_i),
or (Qv)_i if this ν > 1.)

A network without gates, slopes in [-1, 1]: P = (\|U\|, \|W\|) with the recurrent matrix U and the input
matrix W.

GRU: ``_gru_growth.py`` derives the Jacobian, and defines q. Let A = (\|U_z\|, \|W_z\|) and C = (\|U_n\|,
\|W_n\|) + ¼ diag(q) (\|U_r\|, \|W_r\|). If the update gates are at most z̄, then g = z̄ d + (1 - z̄) f, where
f is the largest z̄ (1 + ν) A v + (1 - ν²) C v over 0 <= ν <= 1. At rates r <= 1 smaller z fulfil g(d) <= r d,
too, since (r - z)/(1 - z) falls and z (1 + ν) A v rises with z. If z̄ = 1 (for instance without a bound of
the input), f(v) <= d proves the rate 1: then g is max(d, f).

LSTM: with forget gates of at most f̄ the cell stays within κ = 1/(1 - f̄) if it starts there. With
i(1 - i), f(1 - f), o(1 - o) <= 1/4 and ν = \|g\| for the candidate g,

.. math:: δc^+ ≤ \bar f\, δc + \max_ν \big(¼ ν\, |U_i| + (1 - ν^2)\, |U_g|\big) v + ¼ κ\, |U_f| v, \qquad
          δh^+ ≤ δc^+ + ¼ |U_o| v.

A gate σ(a) with \|x\| <= x̄, \|h\| <= 1 has a <= ‖row of W‖₁ x̄ + ‖row of U‖₁ + b, where b keeps its sign.

All sums have non-negative terms, so their relative rounding errors are at most the number of terms times the
unit roundoff. So any d, also a rounded one, gives a proof in double precision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array

_EPS = float(np.finfo(np.float64).eps)
# Relative size of a constant that is added to g. The constant keeps cond(d) below about 1e12 where no d
# attains the least rate because no path leads from some state to another.
_FLOOR = 1e-12
# Largest number of steps of Noda's iteration, which at first only halves its error if the matrix is nearly
# reducible.
_STEPS = 100


class Layer(NamedTuple):
    """A comparison function.

    Attributes:
        linear: P, ``(m, m + inputs)``.
        crossed: Q.
        squared: S.
        outputs: The states that the next layer reads.
        holds: Whether gates may keep a state unchanged, so that g(v) is taken as at least d.
    """

    linear: Array
    crossed: Array
    squared: Array
    outputs: slice
    holds: bool = False


class Root(NamedTuple):
    """A proven rate and its proof.

    Attributes:
        rate: At least the largest quotient g(d)_i/d_i, also in exact arithmetic.
        scaling: d, of all layers one after the other; the largest entry is 1.
    """

    rate: float
    scaling: Array


def comparison_root(layers: Sequence[Layer], goal: float | None = None, start: Array | None = None) -> Root:
    """Return the least rate that a search finds for stacked layers, with its proof d.

    Args:
        layers: Their comparison functions.
        goal: Stop as soon as the rate is known to be at most, or above, this number: no d has a rate below
            min g(d)_i/d_i.
        start: A d. The result's rate is at most the rate of this d.
    """
    size = sum(len(layer.linear) for layer in layers)
    rounding = 1 + (2 * sum(layer.linear.shape[1] for layer in layers) + 40) * _EPS
    best = Root(np.inf, np.ones(size))
    with np.errstate(all="ignore"):
        for d in [np.ones(size)] if start is None else [start / start.max(), np.ones(size)]:
            found = _searched(layers, d, None if goal is None else goal / rounding, rounding)
            best = min(best, found, key=lambda root: root.rate)
    return Root(best.rate * rounding, best.scaling)


def _searched(layers: Sequence[Layer], d: Array, goal: float | None, rounding: float) -> Root:
    """Return the rate and the d found by Noda's iteration, without a margin for rounding.

    A step is d <- (σI - B)⁻¹ d with σ = max g(d)_i/d_i and the matrix B of g at d. If a step does not lower
    σ, which happens because g is not linear, the next step is d <- d + g(d)/σ from the best d, which never
    raises σ.
    """
    best, values_of_best, is_safe = Root(np.inf, d), d, False
    for _ in range(_STEPS):
        values, B = _evaluated(layers, d)
        rate, x = float((values / d).max()), np.full(len(d), np.nan)
        if rate < best.rate * (1 - 1e-14):
            best, values_of_best, is_safe = Root(rate, d), values, False
            if goal is not None and (rate <= goal or float((values / d).min()) > goal * rounding**2):
                break
            floor = _FLOOR * rate
            shifted = np.diag(np.full(len(d), (rate + floor) * (1 + 4 * _EPS))) - B - floor / len(d)
            with contextlib.suppress(np.linalg.LinAlgError):
                x = np.linalg.solve(shifted, d)
        if not np.isfinite(x / x.max()).all():
            if is_safe:
                break
            x, is_safe = best.scaling + values_of_best / best.rate, True
        d = (x / x.max()).clip(min=_EPS)
    return best


def _evaluated(layers: Sequence[Layer], d: Array) -> tuple[Array, Array]:
    """Return g(d), and the matrix B of the slopes of g at d, for which Bd = g(d)."""
    values, rows, start = [], np.zeros((0, len(d))), 0
    read, of_read = np.zeros(0), np.zeros((0, len(d)))
    found = []
    for layer in layers:
        P, Q, S, outputs, holds = layer
        m = len(P)
        if P.shape[1] == m:  # The first layer's inputs are the same in both runs.
            v, of_v = d[start : start + m], np.eye(len(d))[start : start + m]
        else:
            v = np.concatenate([d[start : start + m], read])
            of_v = np.concatenate([np.eye(len(d))[start : start + m], of_read])
        q, s = Q @ v, S @ v
        at_end = q >= 2 * s
        half = np.where(at_end, 1.0, q / np.where(at_end, 1.0, 2 * s))
        value = P @ v + np.where(at_end, q, s + half * q / 2)
        slopes = P + half[:, None] * Q + (1 - half**2)[:, None] * S
        rows = slopes @ of_v
        values.append(value)
        found.append(rows)
        if holds:
            own, is_held = d[start : start + m], d[start : start + m] > value
            value = np.maximum(own, value)
            rows = np.where(is_held[:, None], np.eye(len(d))[start : start + m], rows)
        read, of_read = value[outputs], rows[outputs]
        start += m
    return np.concatenate(values), np.concatenate(found)
