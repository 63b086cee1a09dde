"""The candidates of measured states, and the fit of each: three baselines, and noise of two kinds."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import numpy as np

from spectral_param._matrices import Array, least_squares, singular_values
from spectral_param.dynamics._data.recordings import Part, pairs_of
from spectral_param.dynamics._fits.measurement import Model, Objective, descend, pieces_of
from spectral_param.dynamics._fits.process import Pairs
from spectral_param.dynamics._fits.start import longest_span, starts_of
from spectral_param.dynamics._model.hidden import Options
from spectral_param.dynamics._model.weighed import weight_of

Baseline = Literal["no change", "drift", "AR(1)"]
Affine = tuple[Array, Array, Array]  # A, B, c

# The largest condition of an output matrix whose states are measured in other coordinates.
_CONDITION = 1e6


class Candidate(NamedTuple):
    """What is fitted: a baseline, or the kind of noise and a ridge in mean squares of a state."""

    baseline: Baseline | None
    noise: Literal["process", "measurement"] = "process"
    ridge: float = 0.0


class Recordings:
    """Recordings in units of their standard deviations, and the fits to them: A, B and c in these units."""

    def __init__(self, parts: list[Part], radius: float, offset: bool) -> None:
        self.radius, self.offset = radius, offset
        self.m = parts[0][1].shape[1]
        rows = np.vstack([Y for Y, _ in parts])
        self.centre = rows.mean(axis=0) if offset else np.zeros(rows.shape[1])
        one = int(offset)  # The last input is constant then.
        self.parts = [(Y - self.centre, np.hstack([U, np.ones((len(U), one))])) for Y, U in parts]
        self.pairs = Pairs(*pairs_of(self.parts), radius)

    def fit(self, candidate: Candidate, quick: bool = False, max_iter: int = 8) -> Affine:
        """Return the fit of a baseline or of one step; ``quick`` clips eigenvalues in place of a search."""
        if candidate.baseline is not None:
            return self._baseline(candidate.baseline)
        pairs, ridge = self.pairs, candidate.ridge
        return self._affine(pairs.clipped(ridge) if quick else pairs.stable(ridge, max_iter))

    def descend(self, ridge: float, models: list[Affine], steps: int, gain: float) -> Affine:
        """Return the fit of whole recordings, from the best of these models and of those of several rows."""
        aim = Objective(pieces_of(self.parts), self.radius, ridge * self.pairs.unit)
        starts = [*map(self._centred, models), *self.of_pasts]
        return self._affine(descend(aim, starts, steps, gain))

    def weight(self, candidate: Candidate, model: Affine, measured: Array) -> float | None:
        """Return the weight of the filter that begins a forecast, None where the last row does."""
        if candidate.noise == "process":
            return None
        A, B = self._centred(model)
        return weight_of(A, [(Y, U @ B.T) for Y, U in self.parts], measured)

    @functools.cached_property
    def of_pasts(self) -> list[Model]:
        """The starts of hidden states, in the coordinates of the measured ones.

        Noise in the measurements shrinks the eigenvalues of a fit to one step, from which a descent may end
        in a poor minimum. What several rows tell of later ones has none of it. For B one step is enough:
        inputs and noise are independent.
        """
        n, m = len(self.centre), self.m
        last = np.zeros((1, m))  # Of the last row, from which no step begins.
        rows = [(Y, np.vstack([U[:, :m], last])) for Y, U in self.parts]
        if longest_span(rows) < 1:
            return []
        X, Y, inputs = pairs_of(self.parts)
        found = []
        for A, C, *_ in starts_of(rows, n, Options(self.radius, False, self.offset, 0)):
            if C.shape != (n, n):
                continue
            sigma = singular_values(C)
            if sigma[0] < _CONDITION * sigma[-1]:
                A = C @ np.linalg.solve(C.T, A.T).T
                found.append((A, least_squares(inputs, Y - X @ A.T).T))
        return found

    def _baseline(self, name: Baseline) -> Affine:
        n = len(self.centre)
        B = np.zeros((n, self.m))
        if name == "AR(1)":
            X, Y, _ = pairs_of(self.parts)
            squares = np.square(X).sum(axis=0)
            a = (X * Y).sum(axis=0) / np.where(squares > 0, squares, 1)
            a = np.clip(a, -self.radius, self.radius)
            return np.diag(a), B, self.centre - a * self.centre
        rise = np.zeros(n)
        if name == "drift":
            rise = np.vstack([np.diff(Y, axis=0) for Y, _ in self.parts]).mean(axis=0)
        return np.eye(n), B, rise

    def _affine(self, model: Model) -> Affine:
        """Return A, B and c of states from which the centre is not subtracted."""
        A, B = model
        c = self.centre - A @ self.centre
        return A, B[:, : self.m], c + B[:, -1] if self.offset else c

    def _centred(self, model: Affine) -> Model:
        """Return A and B of states about the centre; with an offset, the last input is constant."""
        A, B, c = model
        if not self.offset:
            return A, B
        return A, np.hstack([B, (c + A @ self.centre - self.centre)[:, None]])
