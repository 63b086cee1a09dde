"""A stable linear model with scikit-learn's conventions."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Literal, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._arrays import as_matrix, names_of
from spectral_param.dynamics._forecast.descent import ForecastFit, Start, climb, restored
from spectral_param.dynamics._forecast.windows import Objective
from spectral_param.dynamics._intervals import Block, forecast_errors, period_of
from spectral_param.dynamics._measured import (
    Coordinates,
    MeasuredSystem,
    Units,
    Variant,
    above_noise,
    blocks_of,
)
from spectral_param.dynamics._modes import Modes
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._one_step.fit import StableFit, Time, bound_of, fit_stable
from spectral_param.dynamics._recordings import (
    Missing,
    Part,
    Recording,
    pairs_of,
    recordings_of,
    whole_inputs,
)
from spectral_param.dynamics._remarks import (
    nearly_unexplained,
    no_better,
    remark_on_damping,
    remarks_on_columns,
    remarks_on_inputs,
    remarks_on_most,
    remarks_on_pairs,
    require_variation,
)
from spectral_param.dynamics._selection.choose import Choice, Way, choose, choose_ridge
from spectral_param.dynamics._selection.folds import Fold, default_lead, folds_of
from spectral_param.dynamics._sklearn import Estimator
from spectral_param.dynamics._states.fit import fit_states, result
from spectral_param.dynamics._states.model import HiddenSystem, Options
from spectral_param.functional._checks import is_finite, whole_number

_NAME = "StableLinearModel"


class StableLinearModel(Modes, Estimator):
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
            ``"cv"`` the best of 0, the identity (no change), a regression of each state on itself and, where
            rows trend, a drift. If it is given, only that is tried.
        states: Number of hidden states, for recordings of outputs that are not states: it allows no delays,
            rank, horizon, start, towards and ridge. ``"cv"`` chooses the number by predictions of held-out
            rows, and finds the dead times of inputs. None, the default, takes the rows as states. The fit
            begins with canonical variates (Larimore, "Canonical variate analysis in identification,
            filtering, and adaptive control", CDC 1990; Van Overschee and De Moor, "Subspace Identification
            for Linear Systems", 1996) and goes on to the least prediction error (Ljung, "System
            Identification", 1999) by Levenberg-Marquardt.
        feedthrough: Whether inputs act on the outputs of the same row: D, for hidden states. ``"cv"`` tries
            both, where U has as many rows as the outputs. None, the default, means ``"cv"`` with
            ``states="cv"``, else False.
        delays: Number of successive rows that are one state (time-delay coordinates), for states that are not
            measured whole. 1 by default.
        input_delays: Number of successive rows of U that act on a state, the newest included, for inputs
            whose past matters. 1 by default. With hidden states, B and D have as many times the columns, and
            no dead time is looked for.
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

    Attributes:
        A_: State matrix ``(n, n)``, or ``(rank, rank)`` in the coordinates of ``components_``. With delays,
            n is the number of columns times ``delays``, the newest row last; with the drift that "cv" may
            choose (``choice_.towards == "drift"``), times ``delays + 1``: forecasts need one row more.
        B_: Input matrix ``(n, m)`` or ``(rank, m)``; ``(n, m·k)`` where k rows of U act, side by side and the
            newest last: k is ``input_delays``, or ``delays`` if ``choice_.lagged_inputs``. None without
            inputs.
        C_: Output matrix ``(p, n)`` of hidden states; else None.
        D_: Feedthrough ``(p, m)`` of hidden states, ``(p, m·input_delays)`` with input_delays, the newest
            last; zeros unless it is fitted; None without inputs.
        dead_time_: Rows by which each input acts late, ``(m,)``, beside the one row by which every input
            without feedthrough does: found by ``states="cv"``, else 0; None without hidden states.
        feedthrough_: Whether D is fitted.
        K_: Gain ``(n, p)`` of the filter of hidden states; else None.
        offset_: c, or zeros: without ``offset``, "cv" may choose a drift, whose c is that of one row.
        states_: Number of hidden states; None without them.
        components_: Orthonormal rows ``(rank, n)`` on which states are projected; None without ``rank``.
        radius_: The radius used; None in continuous time.
        eigenvalues_: Eigenvalues of A, in descending order of modulus (real part in continuous time).
        modes_: Eigenvectors as columns, in the coordinates of the states: ``(n, number)``; of hidden states,
            what each does to the outputs, ``(p, number)``.
        frequencies_: Damped frequency of each eigenvalue, Im s / 2π with s = log λ / dt (s = λ in continuous
            time), in cycles per unit of time: Hz if ``dt`` is in seconds.
        growth_rates_: Growth rate of each eigenvalue: log\|λ\| / dt, or Re λ in continuous time.
        natural_frequencies_: Natural (undamped) frequency of each eigenvalue, \|s\| / 2π, in the same unit.
        damping_ratios_: −Re s / \|s\| of each eigenvalue, 1 % being 0.01; 0 for s = 0. Reading it warns where
            rows are stacked by ``delays`` and some states hold noise alone, which biases it.
        natural_frequency_errors_: Standard deviations of the natural frequencies of hidden states, for
            Gaussian noise and many rows; else None.
        damping_ratio_errors_: Those of the damping ratios.
        decay_times_: Time in which each mode falls to 1/e, −1 / growth rate; infinity for one that does not
            decay, up to rounding, negative for one that grows.
        fit_: The :class:`StableFit`, :class:`ForecastFit` with a horizon, or :class:`StatesFit` of hidden
            states. ``bound_active`` says whether
            an eigenvalue lies on the bound. Noise of the measurements draws a fit of one step inwards, away
            from it.
        choice_: The :class:`Choice` of ``horizon="cv"``, or the :class:`OrderChoice` of ``states="cv"``;
            else None.
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
        feedthrough: bool | Literal["cv"] | None = None,
        delays: int = 1,
        input_delays: int = 1,
        rank: int | None = None,
        offset: bool = False,
        dt: float = 1.0,
        max_iter: int | None = None,
        ridge: float = 0.0,
        missing: Missing = "raise",
        period: int | None = None,
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
        self._bound = self._check(Y is not None)
        if Y is None and self.time == "continuous":
            raise ValueError(
                "StableLinearModel: expected derivatives Y in continuous time, got none (requires y to be "
                "passed, but the target y is None). Measure them. From samples of the states alone, fit in "
                "discrete time with dt=: frequencies_ and decay_times_ are then those of continuous time, "
                "and scipy.linalg.logm(A_) / dt is its A. (Differences of samples are biased.)"
            )
        both = self.feedthrough in (None, "cv") and self.states == "cv" and whole_inputs(X, U)
        recordings = recordings_of(
            _NAME,
            X,
            Y,
            U,
            missing=self.missing,
            least=max(self.delays, self.input_delays) + 1,
            whole_inputs=both or self._has_feedthrough(),
        )
        names = names_of(X)
        _say(remarks_on_columns([r.x for r in recordings], names, self.offset, self.rank))
        if Y is not None and self.time == "discrete":
            _say(remarks_on_pairs(recordings))
        self.n_features_in_, self._constant = recordings[0].x.shape[1], self.offset
        self._doubts: list[str] = []
        if self.states is not None:
            self._fit_states(recordings, both)
        elif Y is None:
            self._fit_recordings(recordings)
        else:
            self._fit_pairs(recordings)
        self.radius_ = self._bound if self.time == "discrete" else None
        self._set_spectrum()
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _check(self, pairs: bool) -> float:
        """Return the bound; raise a ValueError if arguments are out of range or do not go with each other."""
        bound = bound_of(_NAME, self.time, self.radius, self.abscissa)
        if not (is_finite(self.dt) and self.dt > 0):
            raise ValueError(f"{_NAME}: expected dt > 0, got {self.dt!r}.")
        if not (is_finite(self.ridge) and self.ridge >= 0):
            raise ValueError(f"{_NAME}: expected 0 <= ridge < inf, got {self.ridge!r}.")
        for argument in ("delays", "input_delays"):
            whole_number(getattr(self, argument), f"{_NAME}: {argument}")
        for argument in ("rank", "lead", "period", "max_iter"):
            if (value := getattr(self, argument)) is not None:
                whole_number(value, f"{_NAME}: {argument}", int(argument != "max_iter"), " or None")
        for argument in ("horizon", "states"):
            if (value := getattr(self, argument)) is not None and value != "cv":
                whole_number(value, f"{_NAME}: {argument}", otherwise=", None or 'cv'")
        allowed = (None, True, False, "cv") if self.states == "cv" else (None, True, False)
        if self.feedthrough not in allowed:
            raise ValueError(
                f"{_NAME}: expected feedthrough True or False, or 'cv' with states='cv', got "
                f"{self.feedthrough!r} with states={self.states!r}. Pass True or False."
            )
        if self.start not in (None, *get_args(Start)):
            raise ValueError(f"{_NAME}: expected start 'measured', 'estimated' or None, got {self.start!r}.")
        of_rows = ("lead", "start", "towards", "delays", "input_delays", "states")
        parameters = inspect.signature(type(self)).parameters
        for holds, arguments, where, remedy in (
            (
                self.states is not None,
                ("horizon", "start", "towards", "delays", "rank", "ridge", "period"),
                f"states={self.states!r}",
                "Hidden states hold what earlier rows say.",
            ),
            (
                self.time == "continuous",
                of_rows if self.horizon == "cv" else ("horizon", *of_rows),
                "time='continuous'",
                "Pass horizon='cv' to choose the shrinkage, or sample at equal steps and leave out time.",
            ),
            (
                pairs and self.time == "discrete",
                ("horizon", *of_rows),
                "pairs X, Y",
                "Leave out Y: recordings, with rows in order of time, are fit(X) (inputs are U=...).",
            ),
            (self.horizon is None, ("start", "towards"), "no horizon", "horizon=1 is one step."),
            (self.horizon == "cv", ("ridge",), "horizon='cv'", "It chooses the ridge."),
            (self.states is None, ("feedthrough",), "no states", "Pass states=..., a number or 'cv'."),
        ):
            for argument in arguments if holds else ():
                value, default = getattr(self, argument), parameters[argument].default
                if value is not default and (argument == "towards" or value != default):
                    raise ValueError(
                        f"{_NAME}: expected no {argument} with {where}, got {argument}={value!r}. {remedy}"
                    )
        return bound

    def _has_feedthrough(self) -> bool:
        """Return whether every fit has D."""
        return self.feedthrough not in (None, False, "cv")

    def _fit_states(self, recordings: list[Recording], both: bool) -> None:
        """Fit hidden states, with feedthrough and without if ``both`` are tried."""
        max_iter = 30 if self.max_iter is None else self.max_iter
        through = self._has_feedthrough()
        options = Options(self._bound, through, self.offset, max_iter, lags=self.input_delays)
        assert self.states is not None
        found = fit_states(recordings, self.states, options, self.lead, both)
        model, blocks = found.model, found.blocks
        self.feedthrough_, self.choice_ = found.feedthrough, found.choice
        self._spread = found.eigenvalues, found.spread
        if found.choice is not None:
            _say(remarks_on_most(found.choice.most), 4)
        self.fit_ = result(model, self._bound)
        self.A_, self.B_, self.C_, self.D_, self.K_ = (getattr(self.fit_, name) for name in "ABCDK")
        self.offset_, self.states_ = model.d, len(model.A)
        self.components_, self.dead_time_ = None, np.array(found.dead_time, dtype=int)
        self._system = HiddenSystem(model, found.dead_time, self.input_delays)
        self._set_held(blocks, np.concatenate([b.residuals for b in blocks] or [np.zeros(0)]), None)
        if self.B_ is not None and self.forecast_error_ is not None:
            error = self.forecast_error_["model"]
            _say(nearly_unexplained(error, self.states == "cv", self.offset, self.input_delays), 4)

    def _fit_pairs(self, recordings: list[Recording]) -> None:
        """Fit one step to pairs, or to derivatives."""
        X, U, Y = (np.vstack(M) for M in zip(*recordings, strict=True))
        coordinates = Coordinates.of([X], 1, self.rank)
        X, Y = coordinates.into(X), coordinates.into(Y)
        choice, ridge = None, self.ridge
        if self.horizon == "cv":
            choice = choose_ridge(X, Y, U, lambda *data: self._split(self._one_step(*data)))
            ridge = choice.ridge
        self._set(self._one_step(X, Y, U, ridge), coordinates, X, Y, U, X.std(axis=0), choice)
        self._set_held([], np.zeros(0), None)

    def _fit_recordings(self, recordings: list[Recording]) -> None:
        """Fit one step, or a number of steps, or what is chosen."""
        rows, inputs = [r.x for r in recordings], [r.u for r in recordings]
        coordinates = Coordinates.of([Y[:-1] for Y in rows], self.delays, self.rank)
        variant = Variant.of(rows, inputs, coordinates, self.input_delays, self.offset)
        _say(remarks_on_inputs(variant.parts), 4)
        above, number = None, variant.parts[0][0].shape[1]
        if self.delays > 1:
            every = variant
            if self.rank is not None:  # Of a few directions two may be as loud, as those of a mode are.
                plain = Coordinates(coordinates.width, self.delays)
                every = Variant.of(rows, inputs, plain, self.input_delays, False)
            above = above_noise(every.scaled())
        if above is not None and above < number:
            self._doubts = [remark_on_damping(number, above)]
        if self.horizon is not None:  # It has units, a projection one for all states.
            if self.rank is None:
                require_variation("states", rows)
            require_variation("inputs", inputs)
        lead, choice = self._lead_of(max(map(len, rows))), None
        folds: list[Fold] = []
        models: list[tuple[Array, Array, Array]] = []
        if self.horizon == "cv":
            variants = self._variants(rows, inputs, variant, above)
            # Of the rows stacked for delays only the newest is forecast.
            found = choose(
                {way: of.scaled() for way, of in variants.items()},
                lead,
                self._bound,
                self._towards(variant.units),
                get_args(Start) if self.start is None else (self.start,),
                slice(None) if self.rank is not None else slice(-coordinates.width, None),
                self.offset,
            )
            choice, way = found.choice, found.best.way
            variant = variants[way]
            self._constant = variant.offset
            if way.rank is not None:
                self._doubts = []
            whole, folds, of_folds = found.fitted(found.best)
            fit: StableFit | ForecastFit = restored(whole, variant.units, variant.offset)
            models = [variant.units.restored(*model) for model in of_folds]
        else:
            parts, units = variant.parts, variant.units
            fit = self._fit_of(parts, units)
            if self.horizon is not None or self.lead is not None:
                folds = folds_of(parts, lead)[-1:]
            try:
                models = [self._split(self._fit_of(fold.kept, units)) for fold in folds]
            except ValueError:  # The rows before do not suffice for a fit.
                folds = []
        coordinates, lags, parts, newest, units, _ = variant
        unit = units.x[-coordinates.width :] if self.rank is None else np.ones(1)
        blocks, residuals = blocks_of(folds, models, unit, parts, coordinates, newest, lead)
        deviation = np.vstack([Y for Y, _ in parts]).std(axis=0)
        self._set(fit, coordinates, *pairs_of(parts), deviation, choice, lags)
        period = period_of([Y / unit for Y in newest]) if blocks and self.period is None else self.period
        self._set_held(blocks, residuals, period)

    def _variants(
        self, rows: list[Array], inputs: list[Array], variant: Variant, above: int | None
    ) -> dict[Way, Variant]:
        """Return what "cv" tries: earlier inputs, too, the directions above noise, levels that drift."""
        lags, coordinates = self.input_delays, variant.coordinates
        found = {Way(lags): variant}
        if self.delays > 1 and lags == 1 and inputs[0].shape[1]:
            found[Way(self.delays)] = Variant.of(rows, inputs, coordinates, self.delays, self.offset)
        if above is not None and self.rank is None and self.towards is None:
            found |= {way._replace(rank=above): of for way, of in found.items()}
        count = self.delays + 1
        long = min(map(len, rows)) > max(count, lags) + 1  # for a pair of differences
        may_drift = self.rank is None and self.towards is None and (self.radius or 1.0) >= 1
        if may_drift and long and count * coordinates.width <= NUMBERS.many:
            found[Way(lags, count)] = Variant.of_levels(rows, inputs, self.delays, lags)
        return found

    def _lead_of(self, longest: int) -> int:
        """Return the lead for recordings of at most so many rows; warn if they are too few."""
        if self.lead is None:
            return default_lead(longest) if self.horizon in (None, "cv") else int(self.horizon)
        if longest <= self.lead:
            remark = (
                f"the recordings have at most {longest} rows, too few to check forecasts of lead={self.lead} "
                "steps. forecast_error_ is NaN for the leads that were not checked."
            )
            _say([remark], 5)
        return int(self.lead)

    def _fit_of(self, parts: list[Part], units: Units) -> StableFit | ForecastFit:
        """Return the fit of recordings by one step or by a number of steps, in the user's units."""
        if self.horizon is None:
            return self._one_step(*pairs_of(parts), self.ridge)
        A0 = self._towards(units)
        objective = Objective(
            self.start or "measured",
            self._bound,
            self.ridge,
            self.ridge,
            np.zeros((len(units.x), len(units.x))) if A0 is None else A0,
        )
        max_iter = 30 if self.max_iter is None else self.max_iter
        fit = climb(units.parts(parts, self.offset), int(self.horizon), objective, max_iter)
        return restored(fit, units, self.offset)

    def _one_step(self, X: Array, Y: Array, U: Array, ridge: float) -> StableFit:
        """Return the fit of one step; the last input is constant where there is an offset."""
        inputs = np.hstack([U, np.ones((len(U), int(self.offset)))])
        return fit_stable(
            X,
            Y,
            inputs,
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
        A0 = as_matrix(self.towards, "towards", _NAME, (n, n))
        return A0 / units.x[:, None] * units.x

    def _split(self, fit: StableFit | ForecastFit) -> tuple[Array, Array, Array]:
        """Return A, B and c of a fit, whose last input is constant where there is an offset."""
        n = len(fit.A)
        B = np.zeros((n, 0)) if fit.B is None else fit.B
        return (fit.A, B[:, :-1], B[:, -1]) if self._constant else (fit.A, B, np.zeros(n))

    def _set(
        self,
        fit: StableFit | ForecastFit,
        coordinates: Coordinates,
        X: Array,
        Y: Array,
        U: Array,
        deviation: Array,
        choice: Choice | None,
        lags: int = 1,
    ) -> None:
        """Set what is known of measured states, from the fit and the pairs X, Y with the inputs U."""
        self.fit_, self.choice_, self.feedthrough_ = fit, choice, False
        self.C_ = self.D_ = self.K_ = self.states_ = self.dead_time_ = self._spread = None
        self.components_ = coordinates.components
        self.A_, B, self.offset_ = self._split(fit)
        self.B_ = B if B.shape[1] else None
        scale = np.where(deviation > 0, deviation, 1.0)
        r = Y - X @ self.A_.T - U @ B.T - self.offset_
        unknowns = len(self.A_) + U.shape[1] + self._constant  # of a row of A, B and c
        discrete = self.time == "discrete"
        noise = r.T @ r / max(len(X) - unknowns, 1) if discrete else None
        step = None if discrete else self.dt
        smooth = isinstance(fit, ForecastFit) and fit.start == "estimated"
        self._system = MeasuredSystem(self.A_, B, self.offset_, coordinates, lags, scale, noise, step, smooth)

    def _set_held(self, blocks: list[Block], residuals: Array, period: int | None) -> None:
        """Set what is known from forecasts of rows that were held out; the residuals are overwritten."""
        self.forecast_error_, self._sizes, self.period_ = None, None, period
        if blocks:
            self.forecast_error_ = forecast_errors(blocks, period)
            _say(no_better(self.forecast_error_), 5)
            np.abs(residuals, out=residuals).sort(axis=0)  # unknown ones last
            self._sizes = residuals


def _say(remarks: list[str], stacklevel: int = 3) -> None:
    """Warn the line that called ``fit``, which is so many frames away."""
    for remark in remarks:
        warnings.warn(f"StableLinearModel: {remark}", stacklevel=stacklevel)
