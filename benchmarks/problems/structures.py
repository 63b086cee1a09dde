"""Structures that are pushed, shaken or let go, whose modes are known: accelerations with noise."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[Any]  # float64

Drive = Literal["recorded", "unknown", "none"]  # the force that acts

DT = 0.01  # seconds


@dataclasses.dataclass(frozen=True)
class Structure:
    """A recording, and the modes of what made it.

    Attributes:
        Y: Accelerations, with noise.
        U: Forces, of as many rows; None where none are recorded.
        frequencies: Natural frequencies in Hz.
        damping: Damping ratios.
        noise: Standard deviation of the noise relative to that of each sensor.
    """

    Y: Array
    U: Array | None
    frequencies: Array
    damping: Array
    noise: float


def structure(seed: int, drive: Drive, rows: int | None = None) -> Structure:
    """Return 3 to 5 modes from 2 to 40 Hz, damped by 0.5 to 2 %, on 3 to 5 accelerometers.

    A white force acts, held for each step, or none: then the structure is struck and rings. Noise is 1 to
    5 %. Frequencies are 10 % or more apart.

    Args:
        seed: Of all that is random.
        drive: The force: whether it is recorded, or none acts.
        rows: Of the recording. None draws 2,000 to 4,000.
    """
    rng = np.random.default_rng(seed)
    modes = int(rng.integers(3, 6))
    while True:
        frequencies = np.sort(np.exp(rng.uniform(np.log(2.0), np.log(40.0), modes)))
        if (frequencies[1:] > 1.1 * frequencies[:-1]).all():
            break
    damping, noise = rng.uniform(0.005, 0.02, modes), float(rng.uniform(0.01, 0.05))
    drawn, sensors = int(rng.integers(2000, 4001)), int(rng.integers(3, 6))
    rows = drawn if rows is None else rows
    w, n = 2 * np.pi * frequencies, 2 * modes
    F, G = np.zeros((n, n)), np.zeros((n, 1))
    F[1::2, ::2], F[1::2, 1::2], F[::2, 1::2] = np.diag(-(w**2)), np.diag(-2 * w * damping), np.eye(modes)
    # Modes are seen and pushed to a similar degree, none of them is in a node of every sensor.
    G[1::2, 0] = rng.choice([-1, 1], modes) * rng.uniform(0.5, 1.5, modes)
    shapes = rng.choice([-1, 1], (sensors, modes)) * rng.uniform(0.3, 1.0, (sensors, modes))
    step = scipy.linalg.expm(DT * np.block([[F, G], [np.zeros((1, n + 1))]]))
    U, x, Y = rng.standard_normal((rows, 1)), np.zeros(n), []
    if drive == "none":
        U, x = 0 * U, G[:, 0]
    for u in U:
        Y.append(shapes @ (F[1::2] @ x + G[1::2] @ u))
        x = step[:n, :n] @ x + step[:n, n:] @ u
    measured = np.array(Y)
    measured += noise * measured.std(axis=0) * rng.standard_normal(measured.shape)
    return Structure(measured, U if drive == "recorded" else None, frequencies, damping, noise)
