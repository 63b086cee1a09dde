"""The modes of a fitted model: eigenvalues in the units of a user, and what each has of a recording."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from spectral_param._matrices import Array, least_squares
from spectral_param.dynamics._model.rollout import driven_states
from spectral_param.dynamics._model.use import Fitted


class Modes(Fitted):
    """The part of :class:`StableLinearModel` that is about eigenvalues and their modes."""

    eigenvalues_: Array
    natural_frequencies_: Array
    natural_frequency_errors_: Array | None
    damping_ratio_errors_: Array | None
    _damping: Array
    _doubts: list[str]  # of the damping
    _unasked: tuple[Any, ...] | None  # what a further doubt is asked of, once the damping is read
    _vectors: Array  # of the eigenvalues, in the coordinates of A_
    _spread: tuple[Array, Array] | None  # of hidden states: eigenvalues, and covariances of their logarithms

    @property
    def damping_ratios_(self) -> Array:
        r"""−Re s / \|s\| of each eigenvalue; a warning says where the rows do not support it."""
        self._ask()
        for doubt in self._doubts:
            warnings.warn(f"StableLinearModel.damping_ratios_: {doubt}", stacklevel=2)
        return self._damping

    def _ask(self) -> float:
        """Note this doubt, if it was not asked."""
        raise NotImplementedError

    def amplitudes(self, X: Any, U: Any = None) -> Array:
        """Return how much of each mode is in a recording, at its first state.

        The recording is x_k = x* + Σ b_j λ_j^k φ_j, and the response to the inputs: x* is the point where the
        offset holds the states still, and φ_j are the columns of ``modes_``. The amplitudes b are those that
        fit all rows best. What no point holds still, a drift, is part of the response.

        Args:
            X: Recording ``(rows, n)``, in order of time.
            U: Inputs, one row for each row of X or one less.

        Returns:
            Complex array, one entry for each of ``eigenvalues_``. Those of a pair are conjugate.

        Raises:
            ValueError: If the model is not fitted, or the shapes differ from those of the fit.
        """
        return self._free(X, U, "amplitudes")[0]

    def reconstruct(self, X: Any, U: Any = None, modes: Any = None) -> Array:
        """Return a recording as these modes describe it, from its amplitudes.

        Args:
            X: Recording ``(rows, n)``, in order of time.
            U: Inputs, one row for each row of X or one less.
            modes: Indices of ``eigenvalues_``; each brings its conjugate along. None, the default, takes all.

        Returns:
            Array ``(rows − delays + 1, n)``, with the larger of ``delays`` and ``input_delays``: x*, the
            response to the inputs, and the sum over these modes.

        Raises:
            ValueError: If the model is not fitted, the shapes differ from those of the fit, or there is no
                such mode.
        """
        b, center, forced = self._free(X, U, "reconstruct")
        system = self._measured("reconstruct")
        number = len(b)
        chosen = np.ones(number, dtype=bool)
        if modes is not None:
            asked = np.atleast_1d(np.asarray(modes))
            asked = asked if asked.size else asked.astype(int)
            if asked.dtype.kind not in "iu" or not np.isin(asked, np.arange(-number, number)).all():
                raise ValueError(
                    f"StableLinearModel.reconstruct: expected modes to be indices of the {number} "
                    f"eigenvalues, got {modes!r}."
                )
            chosen[:] = False
            for i in asked % number:
                # The two of a pair stand together, the positive frequency first.
                chosen[[i, i + int(np.sign(self.eigenvalues_[i].imag))]] = True
        steps = np.arange(len(forced))[:, None]
        of_step = self.eigenvalues_ if self.time == "discrete" else np.exp(self.dt * self.eigenvalues_)
        powers = of_step[chosen] ** steps
        states = center + forced + ((powers * b[chosen]) @ self._vectors[:, chosen].T).real
        return system.coordinates.newest(states)

    def _free(self, X: Any, U: Any, method: str) -> tuple[Array, Array, Array]:
        """Return the amplitudes, the point at rest, and the response to the inputs."""
        system = self._measured(method)
        rows = self._states(X, "X", method, system.memory)
        # The last row of inputs acts on no state of X.
        inputs = self._inputs(U, len(rows) - 1, method, exact=False)
        A, driven = system.of_one_step(system.driven(inputs)[: len(rows) - system.memory])
        c = system.of_one_step(self.offset_[None])[1][0]
        center = least_squares(np.eye(len(A)) - A, c)
        forced = driven_states(A, np.zeros(len(A)), driven - (center - A @ center))
        states = system.states(rows) - center - forced
        first = system.first(states, A)
        return least_squares(self._vectors, first.astype(np.complex128)), center, forced

    def _set_spectrum(self) -> None:
        discrete = self.time == "discrete"
        eigenvalues, vectors = np.linalg.eig(self.A_)
        height, largest = np.abs(eigenvalues) if discrete else eigenvalues.real, np.abs(eigenvalues).max()
        # The two of a pair stand together, the positive frequency first.
        rounded = (height / (largest or 1.0)).round(12)
        order = np.lexsort((-eigenvalues.imag, np.abs(eigenvalues.imag), -rounded))
        self.eigenvalues_ = eigenvalues[order].astype(np.complex128)
        self._vectors = self.modes_ = vectors[:, order].astype(np.complex128)
        if self.components_ is not None:
            self.modes_ = self.components_.T @ self._vectors
        elif self.states_ is not None:
            self.modes_ = self.C_ @ self._vectors
        with np.errstate(divide="ignore"):  # The growth rate of an eigenvalue 0 is −∞.
            rates, unit = (np.log(self.eigenvalues_), self.dt) if discrete else (self.eigenvalues_, 1.0)
        self.growth_rates_, self.frequencies_ = rates.real / unit, rates.imag / (2 * np.pi * unit)
        scale = 1 / self.dt if discrete else largest
        kept = np.abs(self.growth_rates_) <= 10 * len(self.A_) * np.finfo(float).eps * scale
        with np.errstate(divide="ignore"):  # What does not decay, up to rounding, has the time ∞.
            self.decay_times_ = np.where(kept, np.inf, -1 / self.growth_rates_)
        self._set_damping(self.growth_rates_ + 2j * np.pi * self.frequencies_)

    def _set_damping(self, s: Array) -> None:
        """Set natural frequencies, damping ratios and their deviations, from eigenvalues s per time."""
        size = np.abs(s)
        with np.errstate(invalid="ignore"):
            self.natural_frequencies_ = size / (2 * np.pi)
            self._damping = np.where(size > 0, np.where(np.isinf(size), 1.0, -s.real / size), 0.0)
        self.natural_frequency_errors_ = self.damping_ratio_errors_ = None
        if self._spread is not None:
            eigenvalues, spread = self._spread
            at = [int(np.argmin(np.abs(eigenvalues - of))) for of in self.eigenvalues_]
            covariance = spread[at] / self.dt**2
            with np.errstate(divide="ignore", invalid="ignore"):
                along = np.stack([s.real, s.imag], axis=1) / size[:, None]  # the gradient of |s|
                across = (s.real / size**2)[:, None] * along - np.eye(2)[0] / size[:, None]  # of −Re s / |s|
                both = [np.sqrt(np.einsum("ki,kij,kj->k", g, covariance, g)) for g in (along, across)]
            self.natural_frequency_errors_, self.damping_ratio_errors_ = both[0] / (2 * np.pi), both[1]
