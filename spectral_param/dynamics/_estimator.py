"""A stable linear model with scikit-learn's conventions."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import (
    Coordinates,
    Missing,
    Part,
    Recording,
    Units,
    as_matrix,
    constant_columns,
    names_of,
    parts_of,
    recordings_of,
    remarks_on_columns,
    remarks_on_pairs,
    side_by_side,
    stacked,
)
from spectral_param.dynamics._forecast.descent import ForecastFit, Model, Start, climb, restored
from spectral_param.dynamics._forecast.windows import Objective
from spectral_param.dynamics._intervals import residuals, sorted_sizes
from spectral_param.dynamics._one_step.fit import StableFit, Time, bound_of, fit_stable, remarks_on_inputs
from spectral_param.dynamics._selection.choose import Choice, Chosen, choose, choose_ridge
from spectral_param.dynamics._selection.held import Fold, Seen, checked, no_better
from spectral_param.dynamics._states.fit import Options, result
from spectral_param.dynamics._states.held import fit_states
from spectral_param.dynamics._use import Fitted
from spectral_param.functional._checks import is_finite, whole_number

_LEAD = 50  # default of the lead, at most a quarter of the longest recording


class _Fitted(NamedTuple):
    """A fit, whose last input is constant where there is an offset, and what belongs to it."""

    fit: StableFit | ForecastFit
    coordinates: Coordinates
    deviation: Array  # of the states
    choice: Choice | None = None
    forecast_error: dict[str, Array] | None = None
    period: int | None = None
    noise: Array | None = None  # covariance of the residuals of one step
    residuals: Array | None = None  # of forecasts of held-out rows, (origins, lead, columns)


class StableLinearModel(Fitted):
    r"""Stable linear dynamics :math:`x_{k+1} = A x_k + B u_k + c`, or :math:`\dot x = A x + B u + c`.

    With ``states``, the rows are outputs of hidden states: :math:`x_{k+1} = A x_k + B u_k + K e_k`,
    :math:`y_k = C x_k + D u_k + c + e_k`, where the innovation e is the error of the best prediction of one
    step. A and A − KC, the state matrix of the filter, are stable.

    It follows scikit-learn's conventions (``fit``, ``predict``, ``score``, ``get_params``, ``set_params``,
    metadata routing of U) and works with ``clone``, ``GridSearchCV`` and ``Pipeline``. scikit-learn itself is
    not needed. Data are numpy arrays, tensors or pandas frames with one sample a row.

    Args:
        radius: Largest modulus of an eigenvalue of A, for discrete time. None, the default, means 1.
        time: ``"discrete"``, or ``"continuous"``, where Y holds derivatives.
        abscissa: Largest real part of an eigenvalue of A, for continuous time. None, the default, means 0.
        horizon: Number of steps over which forecasts have the least error. None, the default, is the one step
            of :func:`fit_stable`, best if the states are measured without noise. ``"cv"`` chooses horizon,
            start, shrinkage and radius by forecasts of ``lead`` steps on rows that it holds out; take it for
            forecasts. A number takes :func:`fit_forecast` with this horizon, of states and inputs in units of
            their standard deviations; one as large as the number of rows means whole recordings. A horizon
            needs recordings, not pairs. In continuous time only ``"cv"`` is allowed, and chooses the
            shrinkage.
        start: Where the forecasts of the fit begin, with a horizon. ``"measured"``: at a measured row, for
            noise that drives the system. ``"estimated"``: where they fit best, for noise of the measurements.
            None, the default, means ``"measured"``; with ``"cv"``, both are tried.
        lead: Steps of the forecasts by which ``"cv"`` chooses, and of ``forecast_error_``. None, the default,
            means the horizon, or 50 for ``"cv"``, but at most a quarter of the longest recording. With a lead
            (given, or from a horizon or ``"cv"``) rows are held out, from which the bands of ``simulate``
            follow.
        towards: Matrix A₀ ``(n, n)`` towards which ``ridge`` shrinks A. None, the default, means 0, and for
            ``"cv"`` the best of 0, the identity (no change) and a regression of each state on itself.
        states: Number of hidden states, for recordings of outputs that are not states: it allows no delays,
            rank, horizon, start, towards and ridge. ``"cv"`` chooses the number by predictions of held-out
            rows. None, the default, takes the rows as states. The fit begins with canonical variates
            (Larimore, "Canonical variate analysis in identification, filtering, and adaptive control", CDC
            1990; Van Overschee and De Moor, "Subspace Identification for Linear Systems", 1996) and goes on
            to the least prediction error (Ljung, "System Identification", 1999) by Levenberg-Marquardt.
        feedthrough: Whether inputs act on the outputs of the same row: D, for hidden states. False by
            default: sampled plants have none.
        delays: Number of successive rows that are one state (time-delay coordinates), for states that are not
            measured whole. 1 by default.
        input_delays: Number of successive rows of U that act on a state, the newest included, for inputs
            whose past matters. 1 by default.
        rank: Number of leading singular vectors of the states to project on, as in dynamic mode
            decomposition: for states with more dimensions than there are samples. None, the default, does not
            project. With delays, the stacked rows are projected.
        offset: Whether to fit c, for dynamics about a point other than 0; with hidden states, c is added to
            the outputs.
        dt: Time between two samples. It sets the unit of ``frequencies_`` and ``growth_rates_`` in discrete
            time, and the step of ``simulate`` in continuous time.
        max_iter: Largest number of iterations: of the search of one step, 8 by default (see
            :func:`fit_stable`), or at a given horizon, 30 by default (see :func:`fit_forecast`), and with
            hidden states 30 by default.
        ridge: Weight of the squared entries of A − A₀, B and c in the objective. With a horizon, states and
            inputs are in units of their standard deviations (one unit for all states with ``rank``). 0 by
            default; ``"cv"`` chooses it.
        missing: What to do with rows that have NaN: ``"raise"``, the default, or ``"split"``, which cuts them
            out and fits the rest as several recordings.
        period: Rows of a season, for ``forecast_error_`` to compare with. None, the default, looks for one.
        verbose: 1 shows how far ``horizon="cv"`` or ``states="cv"`` is, if tqdm is installed; 0, the default,
            does not.

    Attributes:
        A_: State matrix ``(n, n)``, or ``(rank, rank)`` in the coordinates of ``components_``. With delays,
            n is the number of columns times ``delays``, the newest row last.
        B_: Input matrix ``(n, m)`` or ``(rank, m)``; None without inputs.
        C_: Output matrix ``(p, n)`` of hidden states; else None.
        D_: Feedthrough ``(p, m)`` of hidden states, zeros unless it is fitted; None without inputs.
        K_: Gain ``(n, p)`` of the filter of hidden states; else None.
        offset_: c, or zeros.
        states_: Number of hidden states; None without them.
        order_errors_: Error on held-out rows of each number of states that ``states="cv"`` tried: the mean
            of −log p of a row, without its constant; else None.
        components_: Orthonormal rows ``(rank, n)`` on which states are projected; None without ``rank``.
        radius_: The radius used; None in continuous time.
        eigenvalues_: Eigenvalues of A, in descending order of modulus (real part in continuous time).
        modes_: Eigenvectors as columns, in the coordinates of the states: ``(n, number)``; of hidden states,
            what each does to the outputs, ``(p, number)``.
        frequencies_: Frequency of each eigenvalue, in cycles per unit of time: Hz if ``dt`` is in seconds.
        growth_rates_: Growth rate of each eigenvalue: log\|λ\| / dt, or Re λ in continuous time.
        decay_times_: Time in which each mode falls to 1/e, −1 / growth rate; infinity for one that does not
            decay, up to rounding, negative for one that grows.
        fit_: The :class:`StableFit`, :class:`ForecastFit` with a horizon, or :class:`StatesFit` of hidden
            states. ``bound_active`` says whether
            an eigenvalue lies on the bound. Noise of the measurements draws a fit of one step inwards, away
            from it.
        choice_: The :class:`Choice` of ``horizon="cv"``; else None.
        lagged_inputs_: Input matrix of the rows of U before the newest, the oldest first:
            ``(n, m·(input_delays − 1))``, or ``(n, m·(delays − 1))`` if ``"cv"`` chose them; else None.
        period_: The period of ``"one period ago"``; None without one.
        forecast_error_: Errors of forecasts of 1, 2, ..., ``lead`` steps on rows held out from the fit, as a
            dict of arrays: ``"model"``, ``"no change"``, ``"mean"`` and, where rows repeat after a period,
            ``"one period ago"``. Each is relative to forecasting the mean, so that 1 is no skill; NaN for
            leads longer than what was held out. With ``rank`` they include what the projection leaves out.
            None without a horizon and a lead, or if the rows are too few to hold any out.
        n_features_in_: Number of columns of the states.
        feature_names_in_: Names of the columns, if the states were a pandas frame with strings as names.

    Example:
        >>> import numpy as np
        >>> rotation = np.array([[0.8, -0.6], [0.6, 0.8]])
        >>> rows = [np.array([1.0, 0.0])]
        >>> for _ in range(20):
        ...     rows.append(rotation @ rows[-1])
        >>> model = spectral_param.dynamics.StableLinearModel(dt=0.1).fit(np.array(rows))
        >>> model.simulate(rows[0], steps=3).round(3)
        array([[ 0.8  ,  0.6  ],
               [ 0.28 ,  0.96 ],
               [-0.352,  0.936]])
        >>> model.frequencies_.round(3)
        array([ 1.024, -1.024])
    """

    def __init__(
        self,
        radius: float | None = None,
        *,
        time: Time = "discrete",
        abscissa: float | None = None,
        horizon: int | Literal["cv"] | None = None,
        start: Start | None = None,
        lead: int | None = None,
        towards: Any = None,
        states: int | Literal["cv"] | None = None,
        feedthrough: bool = False,
        delays: int = 1,
        input_delays: int = 1,
        rank: int | None = None,
        offset: bool = False,
        dt: float = 1.0,
        max_iter: int | None = None,
        ridge: float = 0.0,
        missing: Missing = "raise",
        period: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.radius = radius
        self.time = time
        self.abscissa = abscissa
        self.horizon = horizon
        self.start = start
        self.lead = lead
        self.towards = towards
        self.states = states
        self.feedthrough = feedthrough
        self.delays = delays
        self.input_delays = input_delays
        self.rank = rank
        self.offset = offset
        self.dt = dt
        self.max_iter = max_iter
        self.ridge = ridge
        self.missing = missing
        self.period = period
        self.verbose = verbose

    # Fitting ------------------------------------------------------------------------------------------

    def fit(self, X: Any, Y: Any = None, U: Any = None) -> StableLinearModel:
        """Fit A, B and c.

        Args:
            X: States. With Y, an array ``(N, n)``. Without Y, a recording ``(N, n)`` with rows in order of
                time, or a list of recordings; the last row of one and the first row of the next do not form a
                pair.
            Y: The states one step after those of X or, in continuous time, their derivatives: ``(N, n)``, or
                a list like X.
            U: Inputs ``(N, m)``, one row for each row of X, or a list like X. Without Y, the last row of each
                recording is not used and may be left out.

        Returns:
            This model.

        Raises:
            ValueError: If the data or an argument differ from this description.
        """
        self._check(Y is not None)
        if Y is None and self.time == "continuous":
            raise ValueError(
                "StableLinearModel: expected derivatives Y in continuous time, got none (requires y to be "
                "passed, but the target y is None). Measure them. From samples of the states alone, fit in "
                "discrete time with dt=: frequencies_ and decay_times_ are then those of continuous time, "
                "and scipy.linalg.logm(A_) / dt is its A. (Differences of samples are biased.)"
            )
        memory = max(self.delays, self.input_delays)
        recordings = recordings_of(
            "StableLinearModel",
            X,
            Y,
            U,
            missing=self.missing,
            least=memory + 1,
            whole_inputs=self.feedthrough,
        )
        names = names_of(X)
        _say(remarks_on_columns([r.x for r in recordings], names, self.offset, self.rank))
        if Y is not None and self.time == "discrete":
            _say(remarks_on_pairs(recordings))
        self.n_features_in_ = recordings[0].x.shape[1]
        if self.states is None:
            self._set(
                self._fit_recordings(recordings) if Y is None else self._fit_pairs(recordings), recordings
            )
        else:
            self._fit_states(recordings)
        self._set_spectrum()
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _set(self, fitted: _Fitted, recordings: list[Recording]) -> None:
        """Set what is known of measured states."""
        self.fit_ = fitted.fit
        self.C_ = self.D_ = self.K_ = self._filter = None
        self.states_: int | None = None
        self.order_errors_: dict[int, float] | None = None
        self.choice_: Choice | None = fitted.choice
        self.forecast_error_: dict[str, Array] | None = fitted.forecast_error
        self.period_: int | None = fitted.period
        self.A_ = fitted.fit.A
        n, m = len(self.A_), 0 if recordings[0].u is None else recordings[0].u.shape[1]
        B = np.zeros((n, 0)) if fitted.fit.B is None else fitted.fit.B
        self.offset_ = B[:, -1] if self.offset else np.zeros(n)
        B = B[:, :-1] if self.offset else B
        lagged = B.shape[1] > m
        self.B_ = B[:, B.shape[1] - m :] if m else None
        self.lagged_inputs_ = B[:, : B.shape[1] - m] if lagged else None
        self.radius_ = fitted.fit.bound if self.time == "discrete" else None
        self._coordinates = fitted.coordinates
        self.components_: Array | None = fitted.coordinates.components
        self._scale = np.where(fitted.deviation > 0, fitted.deviation, 1.0)
        self._noise = fitted.noise
        self._sizes = None if fitted.residuals is None else sorted_sizes(fitted.residuals)

    def _check(self, pairs: bool) -> None:
        """Raise a ValueError if an argument is out of range or does not go with the others or with pairs."""
        name = "StableLinearModel"
        if isinstance(self.radius, str):
            raise ValueError(
                f"{name}: expected a radius or None, got {self.radius!r}. horizon='cv' chooses the radius "
                "too."
            )
        bound_of(name, self.time, self.radius, self.abscissa)
        if not (is_finite(self.dt) and self.dt > 0):
            raise ValueError(f"{name}: expected dt > 0, got {self.dt!r}.")
        if not (is_finite(self.ridge) and self.ridge >= 0):
            raise ValueError(f"{name}: expected 0 <= ridge < inf, got {self.ridge!r}.")
        for argument, of in (("rank", self.rank), ("lead", self.lead), ("period", self.period)):
            if of is not None:
                whole_number(of, f"{name}: {argument}", otherwise=" or None")
        if self.max_iter is not None:
            whole_number(self.max_iter, f"{name}: max_iter", least=0, otherwise=" or None")
        whole_number(self.delays, f"{name}: delays")
        whole_number(self.input_delays, f"{name}: input_delays")
        self._check_states(pairs)
        whole_number(int(self.verbose), f"{name}: verbose", least=0)
        if self.start not in (None, *get_args(Start)):
            raise ValueError(f"{name}: expected start 'measured', 'estimated' or None, got {self.start!r}.")
        chosen = isinstance(self.horizon, str)
        if chosen and self.horizon != "cv":
            raise ValueError(f"{name}: expected a horizon, None or 'cv', got {self.horizon!r}.")
        if chosen and self.ridge != 0:
            raise ValueError(
                f"{name}: expected no ridge for horizon='cv', which chooses it, got {self.ridge!r}."
            )
        if self.horizon is not None and not chosen:
            whole_number(self.horizon, f"{name}: horizon", otherwise=", None or 'cv'")
        if self.time == "continuous":
            if self.horizon is not None and not chosen:
                raise ValueError(
                    f"{name}: expected no horizon in continuous time, got horizon={self.horizon!r}. Pass "
                    "horizon='cv' to choose the shrinkage, or sample at equal steps and fit in discrete time."
                )
            if (self.lead, self.start, self.delays, self.input_delays) != (None, None, 1, 1):
                raise ValueError(
                    f"{name}: expected no lead, no start and no delays in continuous time, got "
                    f"lead={self.lead!r}, start={self.start!r}, delays={self.delays!r}, "
                    f"input_delays={self.input_delays!r}."
                )
        elif self.horizon is None and self.start is not None:
            raise ValueError(f"{name}: expected a horizon with start={self.start!r}, got None.")
        elif pairs and (self.horizon, self.lead, self.delays, self.input_delays) != (None, None, 1, 1):
            raise ValueError(
                f"{name}: expected recordings for a horizon, a lead or delays, fit(X) with rows in order of "
                "time or a list of such, got pairs X, Y. Leave out Y (inputs are U=...)."
            )
        if self.towards is not None and self.horizon is None:
            raise ValueError(f"{name}: expected a horizon with towards, got None. horizon=1 is one step.")

    def _check_states(self, pairs: bool) -> None:
        """Raise a ValueError if ``states`` is out of range, or something does not go with it."""
        name = "StableLinearModel"
        if self.states is None:
            if self.feedthrough:
                raise ValueError(f"{name}: expected states with feedthrough=True, got states=None.")
            return
        if isinstance(self.states, str) and self.states != "cv":
            raise ValueError(f"{name}: expected a number of states, None or 'cv', got {self.states!r}.")
        if not isinstance(self.states, str):
            whole_number(self.states, f"{name}: states", otherwise=", None or 'cv'")
        if self.time == "continuous" or pairs:
            raise ValueError(
                f"{name}: expected recordings in discrete time for states={self.states!r}, got "
                f"{'pairs X, Y' if pairs else 'continuous time'}. Call fit(outputs, U=inputs)."
            )
        others = {
            "horizon": None,
            "start": None,
            "towards": None,
            "delays": 1,
            "input_delays": 1,
            "rank": None,
            "ridge": 0,
            "period": None,
        }
        given = [of for of, default in others.items() if getattr(self, of) is not default]
        given = [of for of in given if of == "towards" or getattr(self, of) != others[of]]
        if given:
            raise ValueError(
                f"{name}: expected no {given[0]} with states={self.states!r}, got "
                f"{getattr(self, given[0])!r}. Hidden states hold what earlier rows say."
            )

    def _fit_states(self, recordings: list[Recording]) -> None:
        """Fit hidden states and set what is known of them."""
        radius = bound_of("StableLinearModel", "discrete", self.radius, None)
        max_iter = 30 if self.max_iter is None else self.max_iter
        options = Options(radius, self.feedthrough, self.offset, max_iter)
        assert self.states is not None
        found = fit_states(recordings, self.states, options, self.lead, int(self.verbose))
        self.fit_ = result(found.model, radius)
        self.A_, self.B_, self.C_, self.D_, self.K_ = (getattr(self.fit_, name) for name in "ABCDK")
        self.offset_, self.radius_ = found.model.d, radius
        self.states_, self.order_errors_ = len(found.model.A), found.order_errors
        self.choice_ = self.period_ = self.lagged_inputs_ = self.components_ = self._noise = None
        self._filter = found.model
        self._coordinates, self._scale = Coordinates(self.n_features_in_), np.ones(len(self.A_))
        self._sizes = None if found.residuals is None else sorted_sizes(found.residuals)
        self.forecast_error_ = found.forecast_error
        if found.forecast_error is not None:
            _say(no_better(found.forecast_error), 4)

    def _fit_pairs(self, recordings: list[Recording]) -> _Fitted:
        """Return the fit of one step, of pairs or of derivatives."""
        X, Y, U = (stacked(of) for of in zip(*recordings, strict=True))
        assert X is not None
        assert Y is not None
        coordinates = Coordinates.of([X], 1, self.rank)
        X, Y = coordinates.into(X), coordinates.into(Y)
        choice, ridge = None, self.ridge
        if self.horizon == "cv":
            choice = choose_ridge(X, Y, U, self.offset, self._one_step)
            ridge = choice.ridge
        fit = self._one_step(X, Y, U, ridge)
        noise = None
        if self.time == "discrete":
            inputs = np.zeros((len(X), 0)) if U is None else U
            noise = self._noise_of(fit, X, Y, inputs)
        return _Fitted(fit, coordinates, X.std(axis=0), choice, noise=noise)

    def _noise_of(self, fit: StableFit | ForecastFit, X: Array, Y: Array, U: Array) -> Array:
        """Return the covariance of the residuals of one step; unknowns are taken from the rows."""
        r = Y - X @ fit.A.T
        if fit.B is not None:
            r = r - np.hstack([U, np.ones((len(U), int(self.offset)))]) @ fit.B.T
        noise: Array = r.T @ r / max(len(X) - fit.A.shape[1] - (0 if fit.B is None else fit.B.shape[1]), 1)
        return noise

    def _fit_recordings(self, recordings: list[Recording]) -> _Fitted:
        """Return the fit of one step, of a number of steps, or what is chosen."""
        rows = [r.x for r in recordings]
        longest = max(map(len, rows))
        inputs = [U for _, U in parts_of(recordings)]
        coordinates = Coordinates.of([r[:-1] for r in rows], self.delays, self.rank)
        memory, lags = max(self.delays, self.input_delays), self.input_delays
        rows = [Y[memory - self.delays :] for Y in rows]
        parts = [
            (coordinates.into(Y), side_by_side(U, lags)[memory - lags :])
            for Y, U in zip(rows, inputs, strict=True)
        ]
        _say(remarks_on_inputs(parts), 4)
        self._require_variation(rows, inputs)
        lead = self.lead
        if lead is None:
            lead = min(_LEAD, max(1, longest // 4))
            if isinstance(self.horizon, int | np.integer):
                lead = int(self.horizon)
        if longest <= lead and self.lead is not None:
            remark = (
                f"the recordings have at most {longest} rows, too few to check forecasts of lead={lead} "
                "steps. forecast_error_ is NaN for the leads that were not checked."
            )
            _say([remark], 4)
        fit: StableFit | ForecastFit
        choice, error = None, None
        held: list[Fold] = []
        models: list[Model] = []
        units = of_units = self._units(parts)
        seen = Seen(coordinates, units, rows, lead, self.period)
        if self.horizon == "cv":
            (parts, of_units), found = self._chosen(parts, units, inputs, seen)
            fit, choice = restored(found.fit, of_units, self.offset), found.choice
            held, models = found.folds, found.models
            error = seen.errors(held, models)
        else:
            fit = self._fit_of(parts, units)
            if self.horizon is not None or self.lead is not None:
                error, held, models = checked(
                    seen, parts, self.offset, lambda kept: self._fit_of(kept, units), units
                )
        if error is not None:
            _say(no_better(error), 4)
        deviation = np.vstack([Y for Y, _ in parts]).std(axis=0)
        newest = [Y[self.delays - 1 :] for Y in rows]
        left = None
        if models:
            places = [fold.where for fold in held]
            in_units = [of_units.restored(*model) for model in models]
            left = residuals(in_units, places, parts, coordinates, newest, lead)
        X, after = (np.vstack([Y[part] for Y, _ in parts]) for part in (slice(None, -1), slice(1, None)))
        noise = self._noise_of(fit, X, after, np.vstack([U for _, U in parts]))
        return _Fitted(fit, coordinates, deviation, choice, error, seen.period, noise, left)

    def _require_variation(self, rows: list[Array], inputs: list[Array]) -> None:
        """Raise a ValueError if a column is constant and the fit needs its unit."""
        if self.horizon is None:
            return
        # Constant columns of a projection do not matter.
        for name, data in (("states", rows), ("inputs", inputs))[self.rank is not None :]:
            if constant := constant_columns(np.vstack(data))[0]:
                raise ValueError(
                    f"StableLinearModel: expected {name} that vary, got constant columns {constant}. Remove "
                    "them; offset=True fits a constant."
                )

    def _units(self, parts: list[Part]) -> Units:
        X, U = (np.vstack(M) for M in zip(*parts, strict=True))
        return Units.of(X, U, centred=self.offset, common=self.rank is not None)

    def _fit_of(self, parts: list[Part], units: Units) -> StableFit | ForecastFit:
        """Return the fit of recordings by one step or by a number of steps, in the user's units."""
        if self.horizon is None:
            X, Y = (np.vstack(M) for M in zip(*((Y[:-1], Y[1:]) for Y, _ in parts), strict=True))
            U = np.vstack([U for _, U in parts])
            return self._one_step(X, Y, U if U.shape[1] else None, self.ridge)
        assert isinstance(self.horizon, int | np.integer)
        n = len(units.x)
        A0 = self._towards(units)
        radius = bound_of("StableLinearModel", "discrete", self.radius, None)
        objective = Objective(
            self.start or "measured", radius, self.ridge, self.ridge, np.zeros((n, n)) if A0 is None else A0
        )
        max_iter = 30 if self.max_iter is None else self.max_iter
        fit = climb(units.parts(parts, self.offset), int(self.horizon), objective, max_iter)
        return restored(fit, units, self.offset)

    def _one_step(self, X: Array, Y: Array, U: Array | None, ridge: float) -> StableFit:
        inputs = [] if U is None else [U]
        if self.offset:
            inputs.append(np.ones((len(X), 1)))
        return fit_stable(
            X,
            Y,
            np.hstack(inputs) if inputs else None,
            time=self.time,
            radius=self.radius,
            abscissa=self.abscissa,
            max_iter=8 if self.max_iter is None else self.max_iter,
            ridge=ridge,
        )

    def _towards(self, units: Units) -> Array | None:
        """Return A₀ in units of the standard deviations."""
        if self.towards is None:
            return None
        n = len(units.x)
        A0 = as_matrix(self.towards, "towards", "StableLinearModel", (n, n))
        return A0 / units.x[:, None] * units.x

    def _chosen(
        self, parts: list[Part], units: Units, inputs: list[Array], seen: Seen
    ) -> tuple[tuple[list[Part], Units], Chosen]:
        """Return the recordings that were chosen, with their units, and the fit that forecasts best."""
        variants = [(parts, units)]
        if self.delays > 1 and self.input_delays == 1 and inputs[0].shape[1]:
            lagged = [(Y, side_by_side(U, self.delays)) for (Y, _), U in zip(parts, inputs, strict=True)]
            variants.append((lagged, self._units(lagged)))
        # Of the rows stacked for delays only the newest is forecast.
        shown = slice(None) if self.rank is not None else slice(-seen.coordinates.width, None)
        starts = get_args(Start) if self.start is None else (self.start,)
        found = choose(
            [of_units.parts(of, self.offset) for of, of_units in variants],
            seen.lead,
            bound_of("StableLinearModel", "discrete", self.radius, None),
            self._towards(units),
            starts,
            shown,
            self.verbose,
        )
        return variants[int(found.choice.lagged_inputs)], found

    def _set_spectrum(self) -> None:
        eigenvalues, vectors = np.linalg.eig(self.A_)
        height = np.abs(eigenvalues) if self.time == "discrete" else eigenvalues.real
        # The two of a pair stand together, the positive frequency first.
        rounded = (height / (np.abs(eigenvalues).max() or 1.0)).round(12)
        order = np.lexsort((-eigenvalues.imag, np.abs(eigenvalues.imag), -rounded))
        self.eigenvalues_ = eigenvalues[order].astype(np.complex128)
        self._vectors = vectors[:, order].astype(np.complex128)
        vectors = self._vectors
        if self.C_ is not None:
            self.modes_ = self.C_ @ vectors
        else:
            self.modes_ = vectors if self.components_ is None else self.components_.T @ vectors
        if self.time == "discrete":
            with np.errstate(divide="ignore"):  # The growth rate of an eigenvalue 0 is −∞.
                self.growth_rates_ = np.log(np.abs(self.eigenvalues_)) / self.dt
            self.frequencies_ = np.angle(self.eigenvalues_) / (2 * np.pi * self.dt)
        else:
            self.growth_rates_ = self.eigenvalues_.real
            self.frequencies_ = self.eigenvalues_.imag / (2 * np.pi)
        scale = 1 / self.dt if self.time == "discrete" else np.abs(self.eigenvalues_).max(initial=0.0)
        kept = np.abs(self.growth_rates_) <= 10 * len(self.A_) * np.finfo(float).eps * scale
        with np.errstate(divide="ignore"):  # What does not decay, up to rounding, has the time ∞.
            self.decay_times_ = np.where(kept, np.inf, -1 / self.growth_rates_)


def _say(remarks: list[str], stacklevel: int = 3) -> None:
    """Warn the line that called ``fit``, which is so many frames away."""
    for remark in remarks:
        warnings.warn(f"StableLinearModel: {remark}", stacklevel=stacklevel)
