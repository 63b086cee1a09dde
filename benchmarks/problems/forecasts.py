"""Problems of forecasting: recordings to fit, and later or other rows to forecast from measured starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from benchmarks.problems.one_step import texture
from examples.papers.tasks.dynamics import load_arm
from spectral_param.dynamics import StableLinearModel

Array = NDArray[Any]  # float64


class Problem(NamedTuple):
    """Data of one problem."""

    recordings: list[Array]  # (rows, n)
    inputs: list[Array] | None  # (rows, m)
    starts: Array  # (windows, n), measured
    following: (
        Array  # (windows, lead, n): the truth without noise, or what was measured where it is not known
    )
    driven: Array  # (windows, lead, m)
    common: bool  # whether all states are in one unit: coordinates of a projection
    measured: Array | None = None  # the same rows as ``following``, as they were measured

    @property
    def lead(self) -> int:
        """Steps of a forecast."""
        return self.following.shape[1]

    def units(self) -> Array:
        """Return the standard deviation of each state of the recordings, or of all."""
        deviation = np.vstack(self.recordings).std(axis=0)
        return np.full_like(deviation, np.sqrt(np.square(deviation).mean())) if self.common else deviation


def cut_into(
    recordings: list[Array],
    inputs: list[Array] | None,
    tests: list[tuple[Array, Array, Array]],  # truth, measured, inputs
    lead: int,
    common: bool = False,
) -> Problem:
    """Return a problem whose rows to forecast are windows, a fifth of the lead apart.

    Args:
        recordings: To fit.
        inputs: Their inputs, or None.
        tests: Truth, measured rows and inputs of what is forecast.
        lead: Steps of a forecast.
        common: Whether all states are in one unit.
    """
    cuts = [
        (
            measured[s],
            truth[s + 1 : s + lead + 1],
            U[s : s + lead],
            measured[s + 1 : s + lead + 1],
        )
        for truth, measured, U in tests
        for s in range(0, len(truth) - lead, max(1, lead // 5))
    ]
    starts, following, driven, after = (np.stack(parts) for parts in zip(*cuts, strict=True))
    return Problem(recordings, inputs, starts, following, driven, common, after)


def _without_inputs(truth: Array, measured: Array) -> tuple[Array, Array, Array]:
    return truth, measured, np.zeros((len(truth), 0))


def _powers(A: Array, x: Array, rows: int) -> Array:
    states = [x]
    for _ in range(rows - 1):
        states.append(A @ states[-1])
    return np.array(states)


def oscillators(rows: int, noise: float, seed: int) -> Problem:
    """Return four hardly damped oscillations, seen by eight sensors; five new recordings are forecast.

    Args:
        rows: Rows of the recording.
        noise: Standard deviation of the noise, relative to that of each state.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(1000 + seed)
    turns = [
        0.999 * np.array([[np.cos(w), -np.sin(w)], [np.sin(w), np.cos(w)]]) for w in rng.uniform(0.1, 1.0, 4)
    ]
    P = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    A = P @ scipy.linalg.block_diag(*turns) @ P.T
    clean = _powers(A, rng.standard_normal(8), rows)
    unit = noise * clean.std(axis=0)
    tests = []
    for _ in range(5):
        truth = _powers(A, rng.standard_normal(8), 160)
        tests.append(_without_inputs(truth, truth + unit * rng.standard_normal(truth.shape)))
    return cut_into([clean + unit * rng.standard_normal(clean.shape)], None, tests, 100)


def string(rows: int, noise: float, seed: int) -> Problem:
    """Return positions and velocities of a string of 64 nodes, on ten leading directions; later rows follow.

    Args:
        rows: Rows of the recording.
        noise: Standard deviation of the noise, relative to that of positions or velocities.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(2000 + seed)
    nodes, z = 64, np.linspace(0, 1, 64)
    K = (nodes / 10) ** 2 * (2 * np.eye(nodes) - np.eye(nodes, k=1) - np.eye(nodes, k=-1))
    F = np.block([[np.zeros((nodes, nodes)), np.eye(nodes)], [-K, -0.01 * np.eye(nodes)]])
    shapes = [np.sin(np.pi * k * z) for k in range(1, 6)]
    position = sum(rng.standard_normal() / k * shape for k, shape in enumerate(shapes, 1))
    velocity = sum(0.3 * rng.standard_normal() * shape for shape in shapes)
    X = _powers(scipy.linalg.expm(0.4 * F), np.concatenate([position, velocity]), rows + 300)
    X /= np.repeat([X[:, :nodes].std(), X[:, nodes:].std()], nodes)
    return _projected(X, X + noise * rng.standard_normal(X.shape), rows, 10, 50)


def waves(rows: int, noise: float, seed: int) -> Problem:
    """Return waves that travel round a ring and slowly steepen (Burgers), on eight directions.

    Later rows are forecast.

    Args:
        rows: Rows of the recording.
        noise: Standard deviation of the noise, relative to that of the wave.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(4000 + seed)
    k, z = np.fft.fftfreq(64, 1 / 64), 2 * np.pi * np.arange(64) / 64
    u = sum(rng.standard_normal() / j * np.cos(j * z + rng.uniform(0, 7)) for j in range(1, 5))
    h = 0.02

    def change(v: Array) -> Array:
        V, square = np.fft.fft(v), np.fft.fft(v * v)
        V[np.abs(k) > 20] = 0
        return np.fft.ifft(-1j * k * (V + 0.025 * square) - 0.0005 * k * k * V).real

    states = [np.asarray(u)]
    for _ in range(rows + 299):
        v = states[-1]
        for _ in range(10):  # Runge and Kutta
            k1 = change(v)
            k2 = change(v + h / 2 * k1)
            k3 = change(v + h / 2 * k2)
            k4 = change(v + h * k3)
            v = v + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(v)
    X = np.array(states)
    return _projected(X, X + noise * X.std() * rng.standard_normal(X.shape), rows, 8, 30)


def _projected(X: Array, measured: Array, rows: int, rank: int, lead: int) -> Problem:
    P = np.linalg.svd(measured[:rows], full_matrices=False)[2][:rank].T
    tests = [_without_inputs(X[rows:] @ P, measured[rows:] @ P)]
    return cut_into([measured[:rows] @ P], None, tests, lead, common=True)


def chain(rows: int, noise: float, recordings: int, seed: int) -> Problem:
    """Return four masses on springs, the last one pushed at random; a new recording is forecast.

    Args:
        rows: Rows of all recordings.
        noise: Standard deviation of the noise, relative to that of each state.
        recordings: Number of recordings.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(3000 + seed)
    K = 2 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1)
    F = np.block([[np.zeros((4, 4)), np.eye(4)], [-K, -0.05 * np.eye(4)]])
    step = scipy.linalg.expm(0.3 * np.block([[F, np.eye(8)[:, [-1]]], [np.zeros((1, 9))]]))

    def record(count: int) -> tuple[Array, Array]:
        U, X = rng.standard_normal((count, 1)), [rng.standard_normal(8)]
        for u in U[:-1]:
            X.append(step[:8, :8] @ X[-1] + step[:8, 8:] @ u)
        return np.array(X), U

    parts = [record(rows // recordings) for _ in range(recordings)]
    unit = noise * np.vstack([X for X, _ in parts]).std(axis=0)
    truth, U = record(400)
    measured = truth + unit * rng.standard_normal(truth.shape)
    noisy = [X + unit * rng.standard_normal(X.shape) for X, _ in parts]
    return cut_into(noisy, [V for _, V in parts], [(truth, measured, U)], 40)


def driven_by_noise(rows: int, seed: int) -> Problem:
    """Return six states that noise drives, measured exactly; later rows follow.

    Args:
        rows: Rows of the recording.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(5000 + seed)
    A = rng.standard_normal((6, 6))
    A *= 0.97 / np.abs(np.linalg.eigvals(A)).max()
    states = [rng.standard_normal(6)]
    for _ in range(rows + 599):
        states.append(A @ states[-1] + rng.standard_normal(6))
    X = np.array(states)
    return cut_into([X[:rows]], None, [_without_inputs(X[rows:], X[rows:])], 20)


def moving_texture(n: int, frames: int, seed: int) -> Problem:
    """Return leading coordinates of a synthetic video; the frames that follow are forecast.

    Args:
        n: Number of coordinates.
        frames: Frames of the video.
        seed: Of the random numbers.
    """
    X, Y, later = texture(n, frames, seed, held_out=frames)
    rows = np.vstack([Y[-1:], later])
    return cut_into([np.vstack([X[:1], Y])], None, [_without_inputs(rows, rows)], frames // 4, common=True)


def arm(samples: int) -> Problem:
    """Return the first pairs of the recordings of a robot arm; the last two recordings are forecast.

    Args:
        samples: Number of pairs.
    """
    states, length = [0, 1, 2, *range(6, 20)], 399
    X, Y, U = load_arm()
    whole = [
        (np.vstack([X[i : i + length], Y[i + length - 1 : i + length]])[:, states], U[i : i + length])
        for i in range(0, 8 * length, length)
    ]
    recordings, inputs, left = [], [], samples
    for rows, u in whole[:6]:
        if left > 1:
            recordings.append(rows[: left + 1])
            inputs.append(u[:left])
        left -= len(u)
    return cut_into(recordings, inputs, [(rows, rows, u) for rows, u in whole[6:]], 100)


def public(name: str, part: float) -> Problem:
    """Return series that come with statsmodels, in standard deviations; the rest of the series is forecast.

    Args:
        name: Of the data.
        part: How much of the rows is fitted.
    """
    from statsmodels import datasets  # type: ignore[import-not-found]

    def twelve(series: Array) -> Array:
        return np.lib.stride_tricks.sliding_window_view(series, 12).copy()

    data = getattr(datasets, name.partition(" ")[0]).load_pandas().data
    if name == "macrodata growth":
        logs = np.log(data[["realgdp", "realcons", "realinv", "realgovt", "realdpi", "cpi", "m1", "pop"]])
        rates = data[["tbilrate", "unemp", "infl", "realint"]].to_numpy()
        M, lead = np.hstack([np.diff(logs.to_numpy(), axis=0), rates[1:]]), 12
    elif name == "macrodata levels":
        logs = np.log(data[["realgdp", "realcons", "realinv", "realdpi"]].to_numpy())
        M, lead = np.hstack([logs, data[["tbilrate", "unemp"]].to_numpy() / 100]), 12
    elif name == "elnino":
        M, lead = twelve(data.iloc[:, 1:].to_numpy().ravel()), 24
    elif name == "sunspots":
        M, lead = twelve(data["SUNACTIVITY"].to_numpy()), 20
    else:
        M, lead = twelve(np.diff(data["co2"].resample("MS").mean().interpolate().to_numpy())), 24
    rows = int(part * len(M))
    M = (M - M[:rows].mean(axis=0)) / M[:rows].std(axis=0)
    return cut_into([M[:rows]], None, [_without_inputs(M[rows:], M[rows:])], lead)


def forecast_error(problem: Problem, A: Array, B: Array | None) -> float:
    """Return the error of the forecasts of a model.

    Args:
        problem: The problem.
        A: State matrix.
        B: Input matrix, or None.
    """
    x, found = problem.starts, []
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(problem.lead):
            x = x @ A.T if B is None else x @ A.T + problem.driven[:, k] @ B.T
            found.append(x)
    return _error_of(problem, np.stack(found, axis=1))


def model_error(problem: Problem, model: StableLinearModel) -> float:
    """Return the error of the forecasts of a fitted model, which begin at one row.

    Args:
        problem: The problem.
        model: The model.
    """
    found = [model.simulate(rows, problem.lead, U) for rows, U in begun(problem)]
    return _error_of(problem, np.stack(found))


def begun(problem: Problem) -> Iterator[tuple[Array, Array | None]]:
    """Yield the row at which each forecast begins, and the inputs from then on.

    Args:
        problem: The problem.
    """
    for rows, U in zip(problem.starts, problem.driven, strict=True):
        yield rows, None if problem.inputs is None else U


def _error_of(problem: Problem, found: Array) -> float:
    """Return the error of forecasts ``(windows, lead, n)``."""
    unit, mean = problem.units(), np.vstack(problem.recordings).mean(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        wrong, size = ((of - problem.following) / unit for of in (found, mean))
        errors = np.square(wrong).sum(axis=(0, 2)) / np.square(size).sum(axis=(0, 2))
    return float(np.sqrt(errors).mean())


def problems() -> dict[str, Callable[[], Problem]]:
    """Return a function that makes each problem, by its name, which begins with its family.

    Those of public data need statsmodels.
    """
    makers = drawn(0)
    for name in ("macrodata growth", "macrodata levels", "elnino", "sunspots", "co2"):
        for part in (0.5, 0.7):
            makers[f"public, {name}, {part:.0%} fitted"] = partial(public, name, part)
    for samples in (50, 100, 200, 400, 1000, 2000):
        makers[f"robot arm, {samples} pairs"] = partial(arm, samples)
    return makers


def drawn(first: int) -> dict[str, Callable[[], Problem]]:
    """Return a function that makes each problem whose truth is known.

    Args:
        first: The first of the seeds. Those from 0 on are what the choice was made with.
    """
    makers: dict[str, Callable[[], Problem]] = {}
    for seed in (first, first + 1):
        for rows in (60, 200, 800):
            for noise in (0.001, 0.01, 0.1):
                name = f"oscillators, {rows} rows, noise {noise:g}, seed {seed}"
                makers[name] = partial(oscillators, rows, noise, seed)
    for rows in (100, 300):
        for noise in (0.01, 0.05, 0.1):
            makers[f"string, {rows} rows, noise {noise:g}"] = partial(string, rows, noise, first)
    for seed, count in ((first, 1), (first + 1, 4)):
        for rows in (100, 300, 800):
            for noise in (0.02, 0.1):
                name = f"chain with inputs, {rows} rows in {count} recordings, noise {noise:g}"
                makers[name] = partial(chain, rows, noise, count, seed)
    for seed in (first, first + 1):
        for rows in (100, 300):
            for noise in (0.0, 0.02):
                name = f"waves, {rows} rows, noise {noise:g}, seed {seed}"
                makers[name] = partial(waves, rows, noise, seed)
            name = f"driven by noise, {2 * rows} rows, seed {seed}"
            makers[name] = partial(driven_by_noise, 2 * rows, seed)
    for n, frames in ((20, 60), (30, 45), (60, 80)):
        for seed in range(first, first + 3):
            name = f"textures, n = {n}, {frames} frames, seed {seed}"
            makers[name] = partial(moving_texture, n, frames, seed)
    return makers
