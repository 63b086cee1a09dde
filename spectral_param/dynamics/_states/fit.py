"""Fits of hidden states: so many, or the best number on held-out rows."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._eigenvalues import spectral_radius
from spectral_param.dynamics._growth import ReachedBound
from spectral_param.dynamics._intervals import Block
from spectral_param.dynamics._recordings import Recording, side_by_side
from spectral_param.dynamics._selection.folds import default_lead, folds_of
from spectral_param.dynamics._states.dead_time import shifted
from spectral_param.dynamics._states.model import Innovations, Options
from spectral_param.dynamics._states.modes import spread_of
from spectral_param.dynamics._states.order import OrderChoice, forecasts, order, require
from spectral_param.dynamics._states.refine import Likelihood


@dataclasses.dataclass(frozen=True)
class StatesFit(ReachedBound):
    """A stable model of hidden states, in innovation form, and the error of its filter.

    Attributes:
        A: State matrix ``(n, n)``, float64.
        B: Input matrix ``(n, m)``; None without inputs.
        C: Output matrix ``(p, n)``.
        D: Feedthrough ``(p, m)``, zeros unless it is fitted; None without inputs.
        K: Gain of the filter ``(n, p)``.
        noise: Covariance of the innovations e ``(p, p)``, in squared units of the outputs.
        bound: The radius that was required of A.
        reached: The largest modulus of an eigenvalue of A.
        predictor_reached: That of A − KC.
    """

    A: Array
    B: Array | None
    C: Array
    D: Array | None
    K: Array
    noise: Array
    bound: float
    reached: float
    predictor_reached: float


def result(model: Innovations, radius: float) -> StatesFit:
    """Return what a user sees of a fit."""
    B, D = (model.B, model.D) if model.B.shape[1] else (None, None)
    reached = spectral_radius(model.A), spectral_radius(model.predictor)
    return StatesFit(model.A, B, model.C, D, model.K, model.noise, radius, *reached)


class Found(NamedTuple):
    """What is found of hidden states."""

    model: Innovations
    feedthrough: bool
    dead_time: tuple[int, ...]
    choice: OrderChoice | None
    blocks: list[Block]  # forecasts of rows that were held out
    eigenvalues: Array
    spread: Array  # covariances of real and imaginary part of their logarithms


def fit_states(
    recordings: list[Recording],
    states: int | Literal["cv"],
    options: Options,
    lead: int | None,
    both: bool = False,
) -> Found:
    """Return the fit of so many states.

    With a lead, or for "cv", rows are held out and forecast. With ``both``, "cv" chooses whether there is
    feedthrough.

    Raises:
        ValueError: If rows or inputs do not suffice.
    """
    rows = []
    for r in recordings:
        U = side_by_side(np.pad(r.u, ((0, len(r.x) - len(r.u)), (0, 0)), mode="edge"), options.lags)
        rows.append((r.x[options.lags - 1 :], U))
    choice, dead = None, (0,) * recordings[0].u.shape[1]
    if states == "cv":
        if lead is None:
            lead = default_lead(max(len(Y) for Y, _ in rows))
        require(rows, 1, options.lags)
        choice = order(rows, options, lead, both)
        n, dead = choice.states, choice.dead_time
        options = options._replace(feedthrough=choice.feedthrough)
        rows = shifted(rows, dead)
    else:
        n = int(states)
        require(rows, n, options.lags)
    blocks = forecasts(folds_of(rows, lead), options, n, lead) if lead is not None else []
    problem = Likelihood(rows, options)
    point = problem.best(n)
    return Found(problem.model(point), options.feedthrough, dead, choice, blocks, *spread_of(problem, point))
