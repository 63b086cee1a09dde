"""What a fitted model does: predictions, simulations, their score, and what others take it as."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from torch import nn

from spectral_param._matrices import Array
from spectral_param.dynamics._arrays import as_array, names_of, require_finite
from spectral_param.dynamics._forecast.descent import ForecastFit
from spectral_param.dynamics._intervals import Forecast, Interval, check_interval, conformal, gaussian
from spectral_param.dynamics._measured import MeasuredSystem
from spectral_param.dynamics._module import StableLinear
from spectral_param.dynamics._one_step.fit import StableFit, Time
from spectral_param.dynamics._recordings import Missing, recordings_of
from spectral_param.dynamics._rollout import variances, with_late_inputs
from spectral_param.dynamics._selection.choose import Choice
from spectral_param.dynamics._sklearn import not_fitted
from spectral_param.dynamics._states.fit import StatesFit
from spectral_param.dynamics._states.model import HiddenSystem
from spectral_param.dynamics._states.order import OrderChoice
from spectral_param.functional._checks import whole_number


class Fitted:
    """The part of :class:`StableLinearModel` that reads what ``fit`` set, and changes nothing."""

    time: Time
    delays: int
    offset: bool
    dt: float
    missing: Missing
    feedthrough_: bool
    fit_: StableFit | ForecastFit | StatesFit
    A_: Array
    B_: Array | None
    C_: Array | None
    D_: Array | None
    K_: Array | None
    offset_: Array
    radius_: float | None
    states_: int | None
    dead_time_: Array | None
    choice_: Choice | OrderChoice | None
    forecast_error_: dict[str, Array] | None
    period_: int | None
    components_: Array | None
    n_features_in_: int
    _system: MeasuredSystem | HiddenSystem
    _constant: bool  # whether there is c
    _sizes: Array | None  # of the residuals of forecasts of held-out rows, sorted: (origins, lead, n)

    def predict(self, X: Any, U: Any = None) -> Array:
        """Return the state that follows each given state or, in continuous time, its derivative.

        Args:
            X: States ``(N, n)``. With delays or hidden states (outputs ``(N, p)``), in order of time.
            U: Inputs ``(N, m)``; with ``feedthrough`` one row more, for the last prediction.

        Returns:
            Array ``(N − delays + 1, n)``, with the larger of ``delays`` and ``input_delays``. Each prediction
            needs so many successive rows of X, and is what follows the last of them. With hidden states,
            ``(N, p)``: each prediction uses all rows up to its own. Inputs that act late leave fewer, those
            from the row on for which all inputs are known.

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
            x0: State ``(n,)``, or the last measured rows ``(rows, n)``: as many as there are delays, or more.
                A fit with estimated starts, for noise of the measurements, begins where it fits all these
                rows best, any other one at the last row: noise drives it away from those before.
                With hidden states, the last rows of the outputs: the more, the better the filter knows the
                state; about 20 or twice the number of states suffice where A − KC decays fast.
            steps: Number of states to return.
            U: Inputs, as many rows as those of x0 (1 for a single state) plus ``steps`` less one:
                ``(rows + steps - 1, m)``; further rows are ignored. The first row acts on the first of x0.
                With ``feedthrough`` one row more. In continuous time each row is held for ``dt``.
            coverage: Share of the measured rows, for each step and state, that are to lie in a band around
                the forecast, between 0 and 1. None, the default, for no band.
            interval: ``"conformal"``, the default: the band is as wide as the errors of forecasts of held-out
                rows. This needs recordings, and ``lead`` of the fit (or ``horizon``, or ``"cv"``), and at
                most so many steps. Coverage is exact, or more, if the forecasts of held-out rows and this one
                are exchangeable; as windows overlap, models differ and rows may drift, it is approximate. A
                band is infinite where there are too few held-out forecasts for the coverage.
                ``"gaussian"``: from the covariance of the residuals of one step, Σ⁺ = AΣAᵀ + Q, for any
                number of steps. It is exact for Gaussian noise and the true model, with hidden states for
                noise of states and outputs; without them, for noise that drives the system and a measured
                start. It leaves out the error of the fit itself.

        Returns:
            Array ``(steps, n)``, without x0. With a coverage, a named tuple of three such arrays: the
            forecast ``mean``, and ``lower`` and ``upper``. The band is that of each number by itself, not of
            the whole path.

        Raises:
            ValueError: If the model is not fitted, the shapes differ from those of the fit, or the band
                cannot be given.
        """
        self._require_fit("simulate")
        caller = "StableLinearModel.simulate"
        steps = whole_number(steps, f"{caller}: steps", least=0)
        coverage = check_interval(caller, coverage, interval)
        rows = self._states(x0, "x0", "simulate", self._system.memory, one=True)
        inputs = self._inputs(U, len(rows) - 1 + steps, "simulate", exact=False)
        mean, noise = self._system.rolled_out(rows, inputs, steps)
        if coverage is None:
            return mean
        if interval == "gaussian":
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
            half = conformal(self._sizes, steps, coverage)
        return Forecast(mean, mean - half, mean + half)

    def score(self, X: Any, Y: Any = None, U: Any = None) -> float:
        """Return R² of ``predict``: 1 is exact, 0 is as good as the mean of Y.

        Args:
            X: As for ``fit``.
            Y: As for ``fit``.
            U: As for ``fit``.

        Returns:
            1 − Σ(Y − prediction)² / Σ(Y − mean)², over all columns.

        Raises:
            ValueError: If the model is not fitted, or ``fit`` would not take the data.
        """
        self._require_fit("score")
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
            whole_inputs=self.feedthrough_,
        ):
            x, y = (r.x[:-1], r.x[1:]) if r.y is None else (r.x, r.y)
            predicted.append(self.predict(x, None if U is None else r.u))
            after.append(y[memory - 1 :])
        Y = np.vstack(after)
        left = float(np.square(Y - np.vstack(predicted)).sum())
        total = float(np.square(Y - Y.mean(axis=0)).sum())
        return 1.0 - left / total if total > 0 else (1.0 if left == 0 else -np.inf)

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
        return StableLinear(
            self.A_, self.B_, self.offset_ if self._constant else None, self.time, self.fit_.bound
        )

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
            C, D = self._system.model.C, np.eye(self.n_features_in_) if self.D_ is None else self.D_
            B = self._system.model.K if given is None else given
        else:
            C = self._system.coordinates.newest(np.eye(n)).T
            B = np.eye(n) if given is None else given
            D = np.zeros((len(C), B.shape[1]))
        m = B.shape[1] // lags
        dead = np.zeros(m, dtype=int) if self.dead_time_ is None or given is None else self.dead_time_
        late = [int(dead[j % m]) + lags - 1 - j // m for j in range(B.shape[1])]
        return dlti(*with_late_inputs(self.A_, B, C, D, late, m), dt=self.dt)

    def _inputs(self, U: Any, rows: int, method: str, exact: bool = True) -> Array:
        """Return so many rows of inputs, with feedthrough one more; if ``exact``, further rows are refused.

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
        needed = rows + self.feedthrough_
        U = np.zeros((needed, 0)) if U is None else as_array(U, "U", caller)
        if U.shape[1] != m or len(U) < needed or (exact and len(U) > needed):
            raise ValueError(
                f"{caller}: expected U of shape {(needed, m)}, one row for each step"
                f"{' and one more, with feedthrough' if self.feedthrough_ else ''}, got {U.shape}."
            )
        require_finite(U[:needed], "U", caller, "Fill in what is missing.")
        return U[:needed]

    def _require_fit(self, method: str) -> None:
        if not hasattr(self, "fit_"):
            raise not_fitted(
                f"StableLinearModel.{method}: expected a fitted model, got one before fit. Call fit first."
            )

    def _measured(self, method: str, remedy: str = "") -> MeasuredSystem:
        """Return the system; raise a ValueError unless the model is fitted, and to measured states."""
        self._require_fit(method)
        if isinstance(self._system, HiddenSystem):
            raise ValueError(
                f"StableLinearModel.{method}: expected a model of measured states, got states={len(self.A_)}."
                f"{remedy}"
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
