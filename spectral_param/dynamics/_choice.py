"""The choice of horizon, start, shrinkage and radius, by forecasts of rows that were held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectral_param.dynamics._measure import Part, Squares, squares
from spectral_param.dynamics._multistep import Problem, descend
from spectral_param.dynamics._one_step import OneStep
from spectral_param.dynamics._rollout import windows_of

Array = NDArray[Any]  # float64
Model = tuple[Array, Array]  # A, B

RIDGES = 10.0 ** np.arange(-8, 3.5)
RADII = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9)
NORMS = (1.0, 1.1, 1.3)
LADDERS = {"measured": (5, 12, 30), "estimated": (12, 30, 75, 200, None)}
_FLOPS = 1e10  # of a Gauss-Newton matrix
_WORSE = 3.0  # a ladder ends at this multiple of the error of one step
_BETTER = 0.98  # several steps have to be this much better than one
_ITERATIONS = 10


@dataclasses.dataclass(frozen=True)
class Choice:
    """What ``horizon="cv"`` chose."""

    horizon: int | None
    start: str
    ridge: float
    towards: str
    radius: float
    norm: float | None
    score: float
    scores: dict[str, float]


@dataclasses.dataclass
class Fold:
    kept: list[Part]
    held: list[Part]
    weight: float

    def __post_init__(self) -> None:
        self.mean = np.vstack([Y for Y, _ in self.kept]).mean(axis=0)
        self.data = OneStep(self.kept)

    def squares(self, A: Array, B: Array, lead: int) -> Squares:
        return squares(A, B, self.held, lead, self.mean).times(self.weight)


def folds_of(parts: list[Part], lead: int) -> list[Fold]:
    if len(parts) >= 8:
        groups = [list(range(i, len(parts), 4)) for i in range(4)]
        return [
            Fold([p for i, p in enumerate(parts) if i not in g], [parts[i] for i in g], 1.0) for g in groups
        ]
    rows = sum(len(Y) for Y, _ in parts)
    count = 4 if rows >= 4 * lead else 3
    edges = np.linspace(0, rows, count + 1).astype(int)
    folds = []
    for fold in range(count):
        kept, held, first = [], [], 0
        for Y, U in parts:
            low, high = (int(np.clip(e - first, 0, len(Y))) for e in edges[fold : fold + 2])
            first += len(Y)
            for s, to in ((slice(0, low), kept), (slice(low, high), held), (slice(high, len(Y)), kept)):
                if s.stop - s.start >= 2:
                    to.append((Y[s], U[s.start : s.stop - 1]))
        weight = count - 1.0 if len(parts) == 1 and fold == count - 1 else 1.0
        if kept and held:
            folds.append(Fold(kept, held, weight))
    return folds


def total(each: Iterator[Squares]) -> Squares:
    found = list(each)
    result = found[0]
    for f in found[1:]:
        result = result + f
    return result
