"""What a user sees of a fit of hidden states, and what the data must have for it."""

from __future__ import annotations

import dataclasses

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import require_variation, side_by_side
from spectral_param.dynamics._forecast.descent import spectral_radius
from spectral_param.dynamics._growth import ReachedBound
from spectral_param.dynamics._states.model import Innovations, Rows
from spectral_param.dynamics._states.subspace import longest_span

_NAME = "StableLinearModel"
_SAME = 1e-9  # of the largest singular value of the inputs: a direction that is smaller is rounding


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


def largest_order(recordings: list[Rows]) -> int:
    """Return the most states that the rows allow."""
    p, m = (M.shape[1] for M in recordings[0])
    rows = sum(len(Y) for Y, _ in recordings)
    # n(2p + m) unknowns, and a first state of each recording.
    return min(longest_span(recordings) * p, (rows * p - 1) // (2 * p + m + len(recordings)))


def require(recordings: list[Rows], states: int) -> None:
    """Raise a ValueError unless outputs vary, and rows and inputs suffice for so many states."""
    Y, U = (np.vstack(M) for M in zip(*recordings, strict=True))
    require_variation("outputs", [Y])
    most = largest_order(recordings)
    if states > most:
        raise ValueError(
            f"{_NAME}: expected states <= {most}, as many as {len(Y)} rows in {len(recordings)} recordings "
            f"allow, got {states}. Pass fewer, or record more rows."
        )
    if U.shape[1] and excited(recordings, states) < states:
        raise ValueError(
            f"{_NAME}: expected inputs U that excite {states + 1} successive rows, got some that are "
            "constant, repeat each other, or follow from their last rows, as a sine does. Leave them out, "
            "pass fewer states, or record with inputs that change at random."
        )


def excited(recordings: list[Rows], most: int) -> int:
    """Return for how many states, at most so many, the inputs of successive rows are independent."""
    for n in range(most):
        stacked = [side_by_side(U, n + 2) for _, U in recordings if len(U) >= n + 2]
        if not stacked:
            return n
        s = np.linalg.svd(np.vstack(stacked), compute_uv=False)
        if len(s) < stacked[0].shape[1] or s[-1] <= _SAME * s[0]:
            return n
    return most
