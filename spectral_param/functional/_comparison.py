r"""Comparison functions bound how a recurrent network changes the difference of two states, for each unit.

Two runs of a network read the same inputs, and d >= \|δ\| bounds the difference of their states. Each layer
has a monotone and homogeneous comparison function g that bounds the difference after a step:
\|δ⁺\| <= g(d, e). Here e bounds the difference of the inputs of the layer, which are the new states of the
layer before. (For the first layer there is no e.) If some d > 0 has g(d) <= r d for all layers together, the
network contracts at the rate r in the norm max \|δ_i\|/d_i. The least rate r over all d is the Perron root of
g. All comparison functions here have the form

.. math:: g(v)_i = (P v)_i + \max_{0 ≤ ν ≤ 1} \big(ν (Q v)_i + (1 - ν^2) (S v)_i\big), \qquad v = (d, e),

with matrices P, Q, S >= 0 of the layer. The maximum over ν is (Sv)_i + (Qv)_i²/(4 (Sv)_i), at
ν = (Qv)_i/(2 (Sv)_i). If this ν exceeds 1, the maximum is (Qv)_i.

For a network without gates, whose activation has slopes in [-1, 1], P = (\|U\|, \|W\|) with the recurrent
matrix U and the input matrix W, and Q = S = 0.

For a GRU, ``_gru_growth.py`` derives the bounds and defines q. Let A = (\|U_z\|, \|W_z\|) and C = (\|U_n\|,
\|W_n\|) + ¼ diag(q) (\|U_r\|, \|W_r\|). If the update gates are at most z̄, then g = z̄ d + (1 - z̄) f, where
f is the largest z̄ (1 + ν) A v + (1 - ν²) C v over 0 <= ν <= 1. If g(d) <= r d holds for z̄ and r <= 1, the
same inequality holds for every smaller z, because (r - z)/(1 - z) falls with z and z (1 + ν) A v rises with
z. If z̄ = 1, for instance because no bound of the inputs is known, f(v) <= d proves the rate 1. Then
g = max(d, f).

For an LSTM with forget gates of at most f̄, the cell stays within κ = 1/(1 - f̄) if it starts there. Let
ν = \|g\| for the candidate g. Because i(1 - i), f(1 - f), o(1 - o) <= 1/4,

.. math:: δc^+ ≤ \bar f\, δc + \max_ν \big(¼ ν\, |U_i| + (1 - ν^2)\, |U_g|\big) v + ¼ κ\, |U_f| v, \qquad
          δh^+ ≤ δc^+ + ¼ |U_o| v.

For \|x\| <= x̄ and \|h\| <= 1, a gate σ(a) has a <= ‖row of W‖₁ x̄ + ‖row of U‖₁ + b. Here b may be negative.

All sums have non-negative terms, so their relative rounding errors are at most the number of terms times the
unit roundoff. Rates are enlarged by these errors. So every d, even a rounded d, gives a valid proof.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array

_EPS = float(np.finfo(np.float64).eps)
# Relative size of a constant that is added to g. If no path leads from some state to another, it can happen
# that no d attains the least rate. Then the constant keeps quotients of entries of d below about 1e12.
_FLOOR = 1e-12
# Largest number of steps of Noda's iteration. If the matrix of the slopes of g is nearly reducible, each of
# the first steps only halves the error.
_STEPS = 100


class Layer(NamedTuple):
    """A comparison function.

    Attributes:
        linear: The matrix P, ``(m, m + inputs)``.
        crossed: The matrix Q, which is multiplied by ν.
        squared: The matrix S, which is multiplied by 1 - ν².
        outputs: The indices of the states that the next layer reads.
        holds: Whether gates may keep a state unchanged. If so, the next layer reads max(d, g(v)), not g(v).
    """

    linear: Array
    crossed: Array
    squared: Array
    outputs: slice
    holds: bool = False


class Root(NamedTuple):
    """A proven rate, and the d that proves it.

    Attributes:
        rate: An upper bound of all quotients g(d)_i/d_i that is also valid in exact arithmetic.
        scaling: The d of all layers, one after the other. The largest entry is 1.
    """

    rate: float
    scaling: Array


def comparison_root(layers: Sequence[Layer], goal: float | None = None, start: Array | None = None) -> Root:
    """Return the least rate that a search finds for stacked layers, with the d that proves it.

    Args:
        layers: The comparison functions of the layers.
        goal: The search stops once it is proven whether the least rate is at most this number. (The least
            rate is above the goal if some d has min_i g(d)_i/d_i above the goal.)
        start: A first d. The rate of the result is at most the rate of this d.
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

    A step is d <- (σI - B)⁻¹ d, where σ = max g(d)_i/d_i and B is the matrix of the slopes of g at d. Because
    g is not linear, a step may fail to lower σ. Then the next step is d <- d + g(d)/σ from the best d so far.
    A step of this second kind never raises σ.
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
        if P.shape[1] == m:  # The inputs of this layer are the same in both runs.
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
