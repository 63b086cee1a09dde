"""What a fitted model does: predictions, simulations, their score, and what others take it as."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data.arrays import as_array, names_of, require_finite
from spectral_param.dynamics._data.recordings import Missing, recordings_of, whole_inputs
from spectral_param.dynamics._model.bands import (
    Forecast,
    Interval,
    check_interval,
    conformal,
    gaussian,
    levels,
)
from spectral_param.dynamics._model.hidden import HiddenSystem
from spectral_param.dynamics._model.module import StableLinear
from spectral_param.dynamics._model.protocol import not_fitted
from spectral_param.dynamics._model.rollout import variances, with_late_inputs
from spectral_param.dynamics._model.system import MeasuredSystem, SystemFit
from spectral_param.dynamics._one_step.fit import Time
from spectral_param.functional._checks import whole_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn


class Fitted:
    """The part of :class:`StableLinearModel` that reads what ``fit`` set, and changes nothing."""

    time: Time
    delays: int
    offset: bool
    dt: float
    missing: Missing
    feedthrough_: bool
    fit_: SystemFit
    A_: Array
    B_: Array | None
    C_: Array
    D_: Array | None
    K_: Array
    offset_: Array
    radius_: float | None
    states_: int | None
    dead_time_: Array | None
    forecast_error_: dict[str, Array] | None
    period_: int | None
    components_: Array | None
    n_features_in_: int
    _system: MeasuredSystem | HiddenSystem
    _end: tuple[Array, Array] | None  # the last recording, and its inputs but for the last row's
    _sizes: Array | None  # of the residuals of forecasts of held-out rows, sorted: (origins, lead, n)
    _deviations: Array  # by which they are divided, for levels of the rows before: (levels, lead, n)

    def predict(self, X: Any, U: Any = None) -> Array:
        """Return the state that follows each given state or, in continuous time, its derivative.

        Args:
            X: States ``(N, n)``. With delays or hidden states (outputs ``(N, p)``), in order of time.
            U: Inputs ``(N, m)``, or one row more: with feedthrough the last prediction needs it, and without
                it the last row acts again.

        Returns:
            Array ``(N − delays + 1, n)``, with the larger of ``delays`` and ``input_delays``. Each prediction
            needs so many successive rows of X, and is what follows the last of them. With hidden states,
            each prediction uses all rows up to its own. Inputs with a dead time count as constant before the
            first row.

        Raises:
            ValueError: If the model is not fitted, or the shapes differ from those of the fit.
        """
        self._require_fit("predict")
        rows = self._states(X, "X", "predict", self._system.memory)
        return self._system.predicted(rows, self._inputs(U, len(rows), "predict"))

    @overload
    def simulate(self, x0: Any, steps: int, U: Any = None) -> Array: ...

    @overload
    def simulate(
        self, x0: Any, steps: int, U: Any = None, *, coverage: float, interval: Interval = "conformal"
    ) -> Forecast: ...

    def simulate(
        self,
        x0: Any,
        steps: int,
        U: Any = None,
        *,
        coverage: float | None = None,
        interval: Interval = "conformal",
    ) -> Array | Forecast:
        """Return the states that follow x0, each computed from the previous one, perhaps with a band.

        Args:
            x0: State ``(n,)``, or the last measured rows ``(rows, n)``: as many as the larger of ``delays``
                and ``input_delays``, or more. With noise that drives the system the forecast begins at the
                last row; after a fit of whole recordings where a filter of all these rows says, which with
                noise in the measurements alone (K = 0) is where it fits them best. With
                hidden states, the last rows of the outputs: the more, the better the filter knows the state;
                about 20 or twice the number of states suffice where A − KC decays fast.
            steps: Number of states to return.
            U: Inputs, as many rows as those of x0 (1 for a single state) plus ``steps`` less one:
                ``(rows + steps - 1, m)``. The first row acts on the first of x0. With feedthrough, the last
                output needs the inputs of its own row: one row more or, without it, the last row again.
                Further rows are ignored. In continuous time each row is held for ``dt``.
            coverage: Share of the measured rows, for each step and state, that are to lie in a band around
                the forecast, between 0 and 1. None, the default, for no band.
            interval: ``"conformal"``, the default: the band is as wide as the errors of forecasts of held-out
                rows. This needs recordings, a fit that holds rows out (``lead``, ``noise="auto"``), and at
                most ``lead`` steps. Coverage is exact, or more, if forecasts of held-out rows and this one
                are exchangeable; as windows overlap, models differ and rows may drift, it is approximate.
                Where measurements are noisy, fewer rows of x0 have a wider band, by what the fitted noise
                says of so many rows. A band is infinite where there are too few held-out forecasts for the
                coverage.
                ``"gaussian"``: from the covariance of the noise, for any number of steps. It is exact for
                Gaussian noise of the kind that was fitted and the true model; with noise that drives the
                system, for a start that is measured without noise. It leaves out the error of the fit itself.

        Returns:
            Array ``(steps, n)``, without x0. With a coverage, a named tuple of three such arrays: the
            forecast ``mean``, and ``lower`` and ``upper``. The band is that of each number by itself, not of
            the whole path.

        Raises:
            ValueError: If the model is not fitted, the shapes differ from those of the fit, or the band
                cannot be given.
        """
        self._require_fit("simulate")
        steps = whole_number(steps, "StableLinearModel.simulate: steps", least=0)
        rows = self._states(x0, "x0", "simulate", self._system.memory, one=True)
        inputs = self._inputs(U, len(rows) - 1 + steps, "simulate", exact=False)
        return self._rolled("simulate", rows, steps, inputs, coverage, interval)

    @overload
    def forecast(self, steps: int, U: Any = None) -> Array: ...

    @overload
    def forecast(
        self, steps: int, U: Any = None, *, coverage: float, interval: Interval = "conformal"
    ) -> Forecast: ...

    def forecast(
        self,
        steps: int,
        U: Any = None,
        *,
        coverage: float | None = None,
        interval: Interval = "conformal",
    ) -> Array | Forecast:
        """Return what follows the last recording of the fit: :meth:`simulate` from all of its rows.

        Args:
            steps: Number of rows to return.
            U: Inputs of the steps to come ``(steps, m)``: the first row acts on the last measured row, in
                place of what ``fit`` was given for it. With feedthrough perhaps one row more, as in
                :meth:`simulate`. Needed if the model has inputs.
            coverage: As in :meth:`simulate`.
            interval: As in :meth:`simulate`.

        Returns:
            Array ``(steps, n)``, or with a coverage ``mean``, ``lower`` and ``upper``.

        Raises:
            ValueError: If the model is not fitted to recordings, inputs are missing, or the band cannot be
                given.
        """
        self._require_fit("forecast")
        if self._end is None:
            raise ValueError(
                "StableLinearModel.forecast: expected a fit of recordings, got one of pairs X, Y, which have "
                "no end. Call simulate(x0, steps) with a row to begin at."
            )
        steps = whole_number(steps, "StableLinearModel.forecast: steps", least=0)
        rows, past = self._end
        given = self._inputs(U, steps, "forecast", exact=False)
        return self._rolled("forecast", rows, steps, np.vstack([past, given]), coverage, interval)

    def plot_forecast(
        self,
        steps: int,
        U: Any = None,
        *,
        coverage: float | None = 0.9,
        interval: Interval = "conformal",
        column: int = 0,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the last rows of the fit, :meth:`forecast` and its band. It needs matplotlib.

        Args:
            steps: Number of rows to forecast.
            U: As in :meth:`forecast`.
            coverage: As in :meth:`forecast`; 0.9 by default, None for no band.
            interval: As in :meth:`forecast`.
            column: Column of the rows that is drawn, the first by default.
            ax: Axes to draw on; None, the default, makes new ones.

        Returns:
            The axes. Times are multiples of ``dt`` from the end of the recording.

        Raises:
            ValueError: As :meth:`forecast`, or if there is no such column.
            ImportError: If matplotlib is not installed.
        """
        caller = "StableLinearModel.plot_forecast"
        self._require_fit("plot_forecast")
        if not (
            isinstance(column, (int, np.integer)) and -self.n_features_in_ <= column < self.n_features_in_
        ):
            raise ValueError(f"{caller}: expected column < {self.n_features_in_}, got {column!r}.")
        found: Any = (
            self.forecast(steps, U)
            if coverage is None
            else self.forecast(steps, U, coverage=coverage, interval=interval)
        )
        mean = found if coverage is None else found.mean
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError(
                f"{caller}: expected matplotlib for plots, got none. Run pip install matplotlib."
            ) from error
        if ax is None:
            ax = plt.subplots()[1]
        assert self._end is not None
        shown = self._end[0][-3 * max(steps, 10) :, column]
        ahead = self.dt * np.arange(1, steps + 1)
        ax.plot(self.dt * np.arange(1 - len(shown), 1), shown, ".", color="0.5", label="measured")
        (line,) = ax.plot(ahead, mean[:, column], label="forecast")
        if coverage is not None:
            band = found.lower[:, column], found.upper[:, column]
            ax.fill_between(
                ahead, *band, color=line.get_color(), alpha=0.25, linewidth=0, label=f"{coverage:.0%}"
            )
        ax.axvline(0, color="0.5", linewidth=0.8)
        ax.set(xlabel="time from the last row")
        ax.legend(frameon=False, fontsize="small")
        return ax

    def _rolled(
        self,
        method: str,
        rows: Array,
        steps: int,
        inputs: Array,
        coverage: float | None,
        interval: Interval,
    ) -> Array | Forecast:
        """Return what follows these rows, perhaps with a band."""
        caller = f"StableLinearModel.{method}"
        coverage = check_interval(caller, coverage, interval)
        mean = self._system.rolled_out(rows, inputs, steps)
        if coverage is None:
            return mean
        known = len(rows) - self._system.memory + 1
        if interval == "gaussian":
            noise = self._system.after(known)
            if noise is None:
                raise ValueError(f"{caller}: expected no coverage in continuous time, got {coverage!r}.")
            half = gaussian(variances(noise, steps), coverage)
        elif self._sizes is None:
            raise ValueError(
                f"{caller}: expected a fit that holds rows out, for coverage={coverage!r}, got none. Fit "
                "recordings with lead=steps and more rows, or pass interval='gaussian'."
            )
        elif steps > (lead := self._sizes.shape[1]):
            raise ValueError(
                f"{caller}: expected steps <= {lead}, the lead of the fit, with a coverage, got {steps}. Fit "
                "with a longer lead, or pass interval='gaussian'."
            )
        else:
            half = conformal(self._sizes, steps, coverage) * self._deviations[levels(known), :steps]
        return Forecast(mean, mean - half, mean + half)

    def score(self, X: Any, Y: Any = None, U: Any = None, sample_weight: None = None) -> float:
        """Return R² of ``predict``: 1 is exact, 0 is as good as the mean of Y.

        Args:
            X: As for ``fit``.
            Y: As for ``fit``.
            U: As for ``fit``.
            sample_weight: None: all rows count alike. scikit-learn's ``Pipeline`` passes it.

        Returns:
            1 − Σ(Y − prediction)² / Σ(Y − mean)², over all columns.

        Raises:
            ValueError: If the model is not fitted, ``fit`` would not take the data, or rows have weights.
        """
        self._require_fit("score")
        if sample_weight is not None:
            raise ValueError(
                "StableLinearModel.score: expected no sample_weight, since all rows count alike, got some. "
                "Leave it out, or pass predictions to sklearn.metrics.r2_score with weights."
            )
        if U is None and self.B_ is not None:
            raise ValueError(
                "StableLinearModel.score: expected inputs U, as in the fit, got none. For GridSearchCV, call "
                "sklearn.set_config(enable_metadata_routing=True) and "
                "model.set_fit_request(U=True).set_score_request(U=True)."
            )
        after, predicted = [], []
        memory = self._system.memory
        for r in recordings_of(
            "StableLinearModel.score",
            X,
            Y,
            U,
            missing=self.missing,
            least=memory + 1,
            whole_inputs=self.feedthrough_ and whole_inputs(X, U),
        ):
            x, y = (r.x[:-1], r.x[1:]) if r.y is None else (r.x, r.y)
            found, late = self.predict(x, None if U is None else r.u), self._late(len(y) - memory)
            predicted.append(found[late:])
            after.append(y[memory - 1 + late :])
        Y = np.vstack(after)
        left = float(np.square(Y - np.vstack(predicted)).sum())
        total = float(np.square(Y - Y.mean(axis=0)).sum())
        return 1.0 - left / total if total > 0 else (1.0 if left == 0 else -np.inf)

    def _late(self, most: int) -> int:
        """Return the rows at the beginning, at most so many, whose inputs are not all known."""
        dead = 0 if self.dead_time_ is None else int(max(self.dead_time_, default=0))
        return min(dead, most)

    def to_module(self) -> nn.Module:
        """Return these dynamics as a torch module that can be trained; the bound on A stays in force.

        Returns:
            The module. ``module(x, u)`` is the next state (or the derivative), in the coordinates of ``A_``.
            u has as many rows of inputs side by side as ``B_``, the newest last.

        Raises:
            ValueError: If the model is not fitted, or has hidden states.
        """
        self._measured(
            "to_module",
            " Train a spectral_param.nn.StateSpace instead, whose cells[0] starts as this model by "
            "start_from(model.to_dlti()).",
        )
        c = self.offset_ if self.offset or self.offset_.any() else None
        return StableLinear(self.A_, self.B_, c, self.time, self.fit_.bound)

    def to_dlti(self) -> Any:
        """Return these dynamics as ``scipy.signal.dlti``, from inputs to outputs, with time step ``dt``.

        The outputs are those of hidden states or, without them, the newest measured row. Without inputs in
        the fit, the input is the innovation e (for measured states, what drives each state). The offset is
        left out: y is measured from it, or from the point at rest. Inputs that act late, by ``dead_time_`` or
        ``input_delays``, have a state for each row, behind those of ``A_``. python-control takes
        ``control.ss(system.A, system.B, system.C, system.D, system.dt)``.

        Returns:
            The system, with A, B, C and D.

        Raises:
            ValueError: If the model is not fitted, or is one of continuous time.
        """
        from scipy.signal import dlti

        self._require_fit("to_dlti")
        if self.time == "continuous":
            raise ValueError(
                "StableLinearModel.to_dlti: expected discrete time, got a model of continuous time. Pass its "
                "matrices to scipy.signal.lti."
            )
        n, given = len(self.A_), self.B_
        lags = 1 if given is None else self._system.lags  # An innovation acts in its own row.
        if isinstance(self._system, HiddenSystem):
            C, D = self.C_, np.eye(self.n_features_in_) if self.D_ is None else self.D_
            B = self.K_ if given is None else given
        else:
            C = self.C_
            B = np.eye(n) if given is None else given
            D = np.zeros((len(C), B.shape[1]))
        m = B.shape[1] // lags
        dead = np.zeros(m, dtype=int) if self.dead_time_ is None or given is None else self.dead_time_
        late = [int(dead[j % m]) + lags - 1 - j // m for j in range(B.shape[1])]
        return dlti(*with_late_inputs(self.A_, B, C, D, late, m), dt=self.dt)

    def _inputs(self, U: Any, rows: int, method: str, exact: bool = True) -> Array:
        """Return so many rows of inputs, or one more if it is given; if ``exact``, further rows are refused.

        Raises:
            ValueError: If there are inputs and the fit had none, or the other way round, or too few rows.
        """
        caller = f"StableLinearModel.{method}"
        m = 0 if self.B_ is None else self.B_.shape[1] // self._system.lags
        if (U is None) != (m == 0):
            raise ValueError(
                f"{caller}: expected {'' if m else 'no '}inputs U, as in the fit, got "
                f"{'none' if U is None else 'some'}."
            )
        U = np.zeros((rows, 0)) if U is None else as_array(U, "U", caller)
        if U.shape[1] != m or len(U) < rows or (exact and len(U) > rows + 1):
            raise ValueError(
                f"{caller}: expected U of shape {(rows, m)}, one row for each step, or one row more, got "
                f"{U.shape}."
            )
        require_finite(U[:rows], "U", caller, "Fill in what is missing.")
        further = U[rows : rows + 1]  # acts with feedthrough alone
        return U[: rows + bool(np.isfinite(further).all())]

    def _require_fit(self, method: str) -> None:
        if not hasattr(self, "fit_"):
            raise not_fitted(
                f"StableLinearModel.{method}: expected a fitted model, got one before fit. Call fit first."
            )

    def _measured(self, method: str, remedy: str = "") -> MeasuredSystem:
        """Return the system; raise a ValueError unless the model is fitted, and to measured states."""
        self._require_fit(method)
        if isinstance(self._system, HiddenSystem):
            got = "noise='both', whose states a filter estimates" if self.states_ is None else "hidden states"
            raise ValueError(
                f"StableLinearModel.{method}: expected a model of measured states, got {got}."
                f"{remedy or ' Fit without states=, with another noise.'}"
            )
        return self._system

    def _states(self, X: Any, name: str, method: str, least: int, one: bool = False) -> Array:
        """Return states as rows, at least so many; ``one`` allows a single state of one axis."""
        caller = f"StableLinearModel.{method}"
        names = names_of(X)
        expected = getattr(self, "feature_names_in_", None)
        if names is not None and expected is not None and list(names) != list(expected):
            raise ValueError(f"{caller}: expected {name} with columns {list(expected)}, got {list(names)}.")
        rows = (
            as_array(X, name, caller, ndim=1)[None] if one and np.ndim(X) == 1 else as_array(X, name, caller)
        )
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"{caller}: expected states of {self.n_features_in_} entries, got {rows.shape[1]}. {name} "
                f"has {rows.shape[1]} features, but StableLinearModel is expecting {self.n_features_in_} "
                "features as input."
            )
        require_finite(rows, name, caller, "Fill in what is missing, or begin after it.")
        if len(rows) < least:
            raise ValueError(
                f"{caller}: expected at least {least} rows of {name}, in order of time, got {len(rows)}."
            )
        return rows
