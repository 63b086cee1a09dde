"""A stable linear model with scikit-learn's conventions."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Literal, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._choice.folds import cut, default_lead, folds_of
from spectral_param.dynamics._choice.numbers import LAST_GAIN, STEPS
from spectral_param.dynamics._choice.order import fit_hidden
from spectral_param.dynamics._choice.rule import Choice, Ranked, blocks_of, choose, models_of
from spectral_param.dynamics._choice.score import Block, forecast_errors, period_of
from spectral_param.dynamics._data.arrays import names_of
from spectral_param.dynamics._data.coordinates import Coordinates, Stacked, Units, above_noise
from spectral_param.dynamics._data.recordings import (
    Missing,
    Part,
    Recording,
    pairs_of,
    recordings_of,
    whole_inputs,
)
from spectral_param.dynamics._data.remarks import (
    nearly_unexplained,
    no_better,
    remark_on_damping,
    remark_on_states,
    remarks_on_columns,
    remarks_on_few,
    remarks_on_inputs,
    remarks_on_most,
    remarks_on_pairs,
    remarks_on_rest,
    remarks_on_shortfall,
    require_variation,
)
from spectral_param.dynamics._fits.check import SHORT, shortfall
from spectral_param.dynamics._fits.measured import Affine, Baseline, Candidate, Recordings
from spectral_param.dynamics._fits.measurement import Pieces, moved_states
from spectral_param.dynamics._fits.start import longest_span
from spectral_param.dynamics._model.bands import deviations, levels
from spectral_param.dynamics._model.hidden import HiddenSystem, Options
from spectral_param.dynamics._model.modes import Modes
from spectral_param.dynamics._model.protocol import Estimator
from spectral_param.dynamics._model.system import MeasuredSystem, SystemFit
from spectral_param.dynamics._one_step.eigenvalues import spectral_radius, within
from spectral_param.dynamics._one_step.fit import Time, bound_of, fit_stable, require_samples
from spectral_param.functional._checks import is_finite, whole_number

_NAME = "StableLinearModel"
# Whether rows are states is asked of recordings of so many rows at least, and of so many states and rows in
# all at most: the regression on their past is long.
_LEAST_ROWS, _MOST_STATES, _MOST_ROWS = 50, 10, 5000
_MUCH = 0.5  # Share by which a longer past has to be better where this is said without being asked.
_TINY = 1e-30  # A ridge that makes dependent columns solvable, and changes nothing else.

Noise = Literal["process", "measurement", "both", "auto"]


class StableLinearModel(Modes, Estimator):
    r"""Stable linear dynamics :math:`x_{k+1} = A x_k + B u_k + c + K e_k`, :math:`y_k = C x_k + D u_k + e_k`.

    The innovation e is the error of the best prediction of one step, and K says where the noise is: it
    drives the system, :math:`K = A C^T`; it is in the measurements, K = 0; or both, K is free. Without
    ``states`` the rows are states, C = I (with ``delays`` or ``rank``, the matrix that gives the newest row).
    A and A − KC, the state matrix of the filter, are stable.

    It follows scikit-learn's conventions (``fit``, ``predict``, ``score``, ``get_params``, ``set_params``,
    metadata routing of U) and works with ``clone``, ``GridSearchCV`` and ``Pipeline``. scikit-learn itself is
    not needed. Data are numpy arrays, tensors or pandas frames with one sample a row.

    Args:
        radius: Largest modulus of an eigenvalue of A, for discrete time. None, the default, means 1.
        noise: Where the noise is. ``"process"``: it drives the system; the fit has the least error of one
            step (:func:`fit_stable`). ``"measurement"``: the rows are noisy and the system moves smoothly;
            the fit is over whole recordings, each from a start that is estimated (Askham and Kutz, "Variable
            projection methods for an optimized dynamic mode decomposition", 2018). K is then 0, unless errors
            of one step say that noise drives the system, too. ``"both"``: an innovations
            model, with a gain K of its own. ``"auto"`` chooses by forecasts of held-out rows; take it for
            forecasts. Without ``states`` it chooses among no change, a drift, each state by itself, and
            process and measurement noise with three ridges each; with ``states``, between measurement and
            both. None, the default, means ``"process"``, or with ``states`` ``"both"``.
        states: Number of hidden states, for recordings of outputs that are not states. ``"auto"`` chooses it
            by BIC, with the dead times of inputs and feedthrough. None, the default, takes the rows as
            states. The fit begins with canonical variates (Larimore, "Canonical variate analysis in
            identification, filtering, and adaptive control", CDC 1990; Van Overschee and De Moor, "Subspace
            Identification for Linear Systems", 1996) and goes on to the least prediction error (Ljung,
            "System Identification", 1999) by Levenberg-Marquardt.
        time: ``"discrete"``, or ``"continuous"``, where Y holds derivatives.
        abscissa: Largest real part of an eigenvalue of A, for continuous time. None, the default, means 0.
        lead: Steps of the forecasts by which ``"auto"`` chooses, and of ``forecast_error_``. With a lead,
            rows are held out; the errors of their forecasts give the bands of ``simulate``. None, the
            default, means 50, but at most a quarter of the longest recording, with ``"auto"`` and
            ``noise="measurement"``; else no row is held out.
        baseline: A forecast without a fit of A: ``"no change"``, ``"drift"`` (each row adds the mean
            difference) or ``"AR(1)"`` (a regression of each state on itself, without inputs). None, the
            default, fits A. ``choice_.params`` has it where ``"auto"`` chose one.
        ridge: Weight of the squared entries of A and B in the objective, in mean squares of a state; states
            and inputs are in units of their standard deviations (one unit for all states with ``rank``). 0 by
            default; ``"auto"`` chooses it.
        feedthrough: Whether inputs act on the outputs of the same row: D, for hidden states. None, the
            default, tries both with ``states="auto"``, where U has as many rows as the outputs, and else
            means False.
        dead_time: Rows by which each input acts late, in addition to the one row of every input without
            feedthrough: a number for each input, for hidden states. None, the default, means that
            ``states="auto"`` finds them; without ``"auto"`` they are 0.
        delays: Number of successive rows that are one state (time-delay coordinates), for states that are not
            measured whole. 1 by default.
        input_delays: Number of successive rows of U that act on a state, the newest included, for inputs
            whose past matters. 1 by default. With hidden states, B and D have ``input_delays`` times as many
            columns, and no dead time is looked for.
        rank: Number of leading singular vectors of the states to project on, as in dynamic mode
            decomposition: for states with more dimensions than there are samples. None, the default, does not
            project. With delays, the stacked rows are projected.
        offset: Whether to fit c, for dynamics about a point other than 0; with hidden states, c is added to
            the outputs.
        dt: Time between two samples. It sets the unit of ``frequencies_`` and ``growth_rates_`` in discrete
            time, and the step of ``simulate`` in continuous time.
        max_iter: Largest number of iterations: of the search of one step, 8 by default (see
            :func:`fit_stable`), and of the descent for other noise, 30 by default.
        missing: What to do with rows that have NaN: ``"raise"``, the default, or ``"split"``, which cuts them
            out and fits the rest as several recordings.
        period: Rows of a season, for ``forecast_error_`` to compare with. None, the default, looks for one.

    Attributes:
        A_: State matrix ``(n, n)``, or ``(rank, rank)`` in the coordinates of ``components_``. With delays,
            n is the number of columns times ``delays``, the newest row last.
        B_: Input matrix ``(n, m)`` or ``(rank, m)``; ``(n, m·k)`` where k = ``input_delays`` rows of U act,
            side by side and the newest last. None without inputs.
        C_: Output matrix ``(p, n)``.
        D_: Feedthrough ``(p, m)``, ``(p, m·input_delays)`` with input_delays, the newest last; zeros unless
            it is fitted; None without inputs.
        K_: Gain ``(n, p)`` of the filter.
        offset_: c ``(n,)``, or with hidden states ``(p,)``, of the outputs; zeros without ``offset`` and
            drift.
        noise_: Where the noise is, as K says: ``"process"``, ``"measurement"`` or ``"both"``.
        dead_time_: Rows by which each input acts late, ``(m,)``; None without hidden states.
        feedthrough_: Whether D is fitted.
        states_: Number of hidden states; None without them.
        components_: Orthonormal rows ``(rank, n)`` on which states are projected; None without ``rank``.
        radius_: The radius used; None in continuous time.
        eigenvalues_: Eigenvalues of A, in descending order of modulus (real part in continuous time).
        modes_: Eigenvectors as columns, in the coordinates of the states: ``(n, number)``; for hidden states,
            the effect of each mode on the outputs, ``(p, number)``.
        frequencies_: Damped frequency of each eigenvalue, Im s / 2π with s = log λ / dt (s = λ in continuous
            time), in cycles per unit of time: Hz if ``dt`` is in seconds.
        growth_rates_: Growth rate of each eigenvalue: log\|λ\| / dt, or Re λ in continuous time.
        natural_frequencies_: Natural (undamped) frequency of each eigenvalue, \|s\| / 2π, in the same unit.
        damping_ratios_: −Re s / \|s\| of each eigenvalue, 1 % being 0.01; 0 for s = 0. Reading them warns
            where rows are stacked by ``delays`` and some states hold only noise, which biases the ratios.
        natural_frequency_errors_: Standard deviations of the natural frequencies of hidden states, for
            Gaussian noise and many rows; else None.
        damping_ratio_errors_: Standard deviations of the damping ratios, likewise.
        decay_times_: Time in which each mode falls to 1/e, −1 / growth rate; infinity for one that does not
            decay, up to rounding, negative for one that grows.
        fit_: The :class:`SystemFit`: all matrices, the covariance of e, and the bound. ``bound_active`` says
            whether an eigenvalue lies on the bound. Noise in the measurements moves the eigenvalues of a fit
            for process noise inwards, away from the bound.
        choice_: The :class:`Choice` if something was chosen, else None.
        period_: The period of ``"one period ago"``; None without one.
        forecast_error_: Errors of forecasts of 1, 2, ..., ``lead`` steps on rows held out from the fit, as a
            dict of arrays: ``"model"``, ``"no change"``, ``"mean"`` and, where rows repeat after a period,
            ``"one period ago"``. Each is relative to forecasting the mean, so that 1 is no skill; NaN for
            leads longer than the held-out blocks. The forecasts of the model begin as :meth:`forecast` does:
            at the last row, or after a fit of whole recordings where a filter of the rows of the block before
            says. With ``rank`` the errors include what the projection leaves out. None if no rows, or too
            few, are held out.
        n_features_in_: Number of columns of the states.
        feature_names_in_: Names of the columns, if the states were a pandas frame with strings as names.

    Example:
        >>> import numpy as np
        >>> rotation = np.array([[0.8, -0.6], [0.6, 0.8]])
        >>> rows = [np.array([1.0, 0.0])]
        >>> for _ in range(20):
        ...     rows.append(rotation @ rows[-1])
        >>> model = spectral_param.dynamics.StableLinearModel(dt=0.1).fit(np.array(rows))
        >>> model.forecast(steps=2).shape
        (2, 2)
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
        noise: Noise | None = None,
        states: int | Literal["auto"] | None = None,
        time: Time = "discrete",
        abscissa: float | None = None,
        lead: int | None = None,
        baseline: Baseline | None = None,
        ridge: float = 0.0,
        feedthrough: bool | None = None,
        dead_time: Any = None,
        delays: int = 1,
        input_delays: int = 1,
        rank: int | None = None,
        offset: bool = False,
        dt: float = 1.0,
        max_iter: int | None = None,
        missing: Missing = "raise",
        period: int | None = None,
    ) -> None:
        self.radius = radius
        self.noise = noise
        self.states = states
        self.time = time
        self.abscissa = abscissa
        self.lead = lead
        self.baseline = baseline
        self.ridge = ridge
        self.feedthrough = feedthrough
        self.dead_time = dead_time
        self.delays = delays
        self.input_delays = input_delays
        self.rank = rank
        self.offset = offset
        self.dt = dt
        self.max_iter = max_iter
        self.missing = missing
        self.period = period

    # Fitting ------------------------------------------------------------------------------------------

    def fit(self, X: Any, Y: Any = None, U: Any = None) -> StableLinearModel:
        """Fit the model.

        Args:
            X: States. With Y, an array ``(N, n)``. Without Y, a recording ``(N, n)`` with rows in order of
                time, or a list of recordings; the last row of one and the first row of the next do not form a
                pair.
            Y: The states one step after those of X or, in continuous time, their derivatives: ``(N, n)``, or
                a list like X.
            U: Inputs ``(N, m)``, one row for each row of X, or a list like X. Without Y, the last row of each
                recording is used only with feedthrough, and may be left out without feedthrough.

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
        both = self.feedthrough is None and self.states == "auto" and whole_inputs(X, U)
        recordings = recordings_of(
            _NAME,
            X,
            Y,
            U,
            missing=self.missing,
            least=max(self.delays, self.input_delays) + 1,
            whole_inputs=both or bool(self.feedthrough),
        )
        names = names_of(X)
        _say(remarks_on_columns([r.x for r in recordings], names, self.offset, self.rank))
        if Y is not None and self.time == "discrete":
            _say(remarks_on_pairs(recordings))
        self.n_features_in_ = recordings[0].x.shape[1]
        self._doubts, self._unasked = [], None
        self._spread, self._end = None, None
        self.choice_: Choice | None = None
        self.states_ = self.dead_time_ = self.components_ = None
        self.feedthrough_ = False
        if Y is None:
            last = recordings[-1]
            self._end = last.x, last.u[: len(last.x) - 1]
        if self._hidden:
            self._fit_hidden(recordings, both)
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

    @property
    def _hidden(self) -> bool:
        """Whether the states are those of a filter."""
        return self.states is not None or self.noise == "both"

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
        if self.states is not None and not _is(self.states, ("auto",)):
            whole_number(self.states, f"{_NAME}: states", otherwise=", None or 'auto'")
        for argument, values in (
            ("noise", (None, *get_args(Noise))),
            ("baseline", (None, *get_args(Baseline))),
            ("feedthrough", (None, True, False)),
        ):
            if not _is(value := getattr(self, argument), values):
                raise ValueError(f"{_NAME}: expected {argument} to be one of {values}, got {value!r}.")
        if self.noise == "process" and self.states is not None:
            raise ValueError(
                f"{_NAME}: expected noise 'measurement', 'both' or 'auto' with states={self.states!r}, got "
                "'process': hidden states are not measured, so that no row is where a step begins. Leave out "
                "states, with delays= for rows that are no states, or pass noise='both'."
            )
        if self.baseline in ("no change", "drift") and bound < 1:
            raise ValueError(
                f"{_NAME}: expected radius >= 1 with baseline={self.baseline!r}, which has the eigenvalue 1, "
                f"got {bound}. Leave out one of them."
            )
        of_rows = ("noise", "lead", "baseline", "dead_time", "delays", "input_delays", "states")
        parameters = inspect.signature(type(self)).parameters
        for holds, arguments, where, remedy in (
            (
                pairs and self.time == "discrete",
                of_rows if self.noise != "process" else of_rows[1:],
                "pairs X, Y",
                "Leave out Y: recordings, with rows in order of time, are fit(X) (inputs are U=...).",
            ),
            (
                self.time == "continuous",
                of_rows,
                "time='continuous'",
                "Choose a ridge by GridSearchCV, or sample at equal steps and leave out time.",
            ),
            (
                self._hidden,
                ("baseline", "delays", "rank", "ridge"),
                f"states={self.states!r}, noise={self.noise!r}",
                "Hidden states hold what earlier rows say: pass states=, a number, without it.",
            ),
            (
                not self._hidden,
                ("feedthrough", "dead_time"),
                "no states",
                "Pass states=..., a number or 'auto'.",
            ),
            (
                self.noise == "auto",
                ("ridge", "baseline"),
                "noise='auto'",
                "It is chosen.",
            ),
            (
                self.baseline is not None,
                ("ridge", *(["noise"] if self.noise != "process" else [])),
                f"baseline={self.baseline!r}",
                "A baseline is not fitted.",
            ),
        ):
            for argument in arguments if holds else ():
                value, default = getattr(self, argument), parameters[argument].default
                if value is not default and (argument == "dead_time" or value != default):
                    raise ValueError(
                        f"{_NAME}: expected no {argument} with {where}, got {argument}={value!r}. {remedy}"
                    )
        return bound

    # Hidden states

    def _fit_hidden(self, recordings: list[Recording], both: bool) -> None:
        """Fit hidden states, with feedthrough and without if ``both`` are tried."""
        max_iter = 30 if self.max_iter is None else self.max_iter
        options = Options(self._bound, bool(self.feedthrough), self.offset, max_iter, lags=self.input_delays)
        m = recordings[0].u.shape[1]
        states = self.n_features_in_ if self.states is None else self.states
        noise: Any = "both" if self.noise is None else self.noise
        found = fit_hidden(recordings, states, noise, options, self.lead, self._dead_times(m), both)
        model, order = found.model, found.order
        if self.states is None:
            model = model.of_outputs()
        else:
            self.states_, self._spread = len(model.A), (found.eigenvalues, found.spread)
        self.noise_: str = order.noise
        self.feedthrough_ = order.feedthrough
        self.dead_time_ = np.array(order.dead_time, dtype=int)
        model = model._replace(A=within(model.A, self._bound))
        self._system = HiddenSystem(model, order.dead_time, self.input_delays)
        inputs = (model.B, model.D) if m else (None, None)
        self._set_fit(model.A, inputs[0], model.C, inputs[1], model.K, model.d, model.noise)
        if found.choice is not None:
            params: dict[str, Any] = {"noise": order.noise, "states": order.states}
            params["feedthrough"] = order.feedthrough
            params["dead_time"] = order.dead_time if any(order.dead_time) else None
            self.choice_ = Choice(self.get_params() | params, *found.choice)
            _say(remarks_on_most(found.most), 4)
        if (share := found.shortfall) > SHORT and found.most is None:
            _say(remarks_on_shortfall(share, order.states, self.states == "auto", order.noise), 4)
        tried = self.states == "auto", self.offset, self.input_delays, both or bool(self.feedthrough)
        self._set_held(found.blocks, [r.x for r in recordings], tried=tried if m else None)

    def _dead_times(self, m: int) -> tuple[int, ...] | None:
        """Return the dead times that were given."""
        if self.dead_time is None:
            return None
        dead = np.atleast_1d(np.asarray(self.dead_time))
        if dead.shape != (m,) or dead.dtype.kind not in "iu" or (dead < 0).any():
            raise ValueError(
                f"{_NAME}: expected dead_time to have a whole number >= 0 for each of {m} inputs, got "
                f"{self.dead_time!r}."
            )
        return tuple(dead.tolist())

    # Measured states

    def _fit_pairs(self, recordings: list[Recording]) -> None:
        """Fit one step to pairs, or to derivatives."""
        X, U, Y = (np.vstack(M) for M in zip(*recordings, strict=True))
        coordinates = Coordinates.of([X], 1, self.rank)
        X, Y = coordinates.into(X), coordinates.into(Y)
        units = Units.of(X, U, self.offset, self.rank is not None)
        if self.time == "discrete":
            self._require_samples(X, U)
            pairs = [(np.stack([x, y]), u[None]) for x, y, u in zip(X, Y, U, strict=True)]
            data = Recordings([units.scaled(*pair) for pair in pairs], self._bound, self.offset)
            model = units.restored(*data.fit(Candidate(None, "process", self.ridge), max_iter=self._steps(8)))
        else:
            model = self._of_derivatives(X, Y, U, units)
        residuals = Y - X @ model[0].T - U @ model[1].T - model[2]
        self._set_measured(model, coordinates, [], units.x, residuals=residuals)
        self._set_held([], [])

    def _of_derivatives(self, X: Array, Y: Array, U: Array, units: Units) -> Affine:
        """Return A, B and c of derivatives Y."""
        n, m = X.shape[1], U.shape[1]
        inputs = np.hstack([U / units.u, np.ones((len(U), int(self.offset)))])
        fit = fit_stable(
            X / units.x,
            Y / units.x,
            inputs,
            time=self.time,
            abscissa=self.abscissa,
            max_iter=self._steps(8),
            ridge=self.ridge * float(np.square(X / units.x).sum()) / n,
        )
        B = np.zeros((n, m + 1))
        if fit.B is not None:
            B[:, : inputs.shape[1]] = units.x[:, None] * fit.B
        return units.x[:, None] * fit.A / units.x, B[:, :m] / units.u, B[:, m]

    def _fit_recordings(self, recordings: list[Recording]) -> None:
        """Fit a baseline, one step, whole recordings, or what is chosen."""
        rows, inputs = [r.x for r in recordings], [r.u for r in recordings]
        coordinates = Coordinates.of([Y[:-1] for Y in rows], self.delays, self.rank)
        stacked = Stacked.of(rows, inputs, coordinates, self.input_delays, self.offset)
        _say(remarks_on_inputs(stacked.parts), 4)
        if self.delays > 1:
            self._doubt_damping(rows, inputs, stacked)
        chosen, measurement = self.noise == "auto", self.noise == "measurement"
        if chosen or measurement:
            if self.rank is None:
                require_variation("states", rows)
            require_variation("inputs", inputs)
        lead = self._lead_of(max(map(len, rows))) if chosen or measurement or self.lead is not None else None
        parts, ranked = stacked.scaled(), None
        measured = coordinates.measured(parts[0][0].shape[1])
        candidate = Candidate(self.baseline, "measurement" if measurement else "process", self.ridge)
        if chosen:
            assert lead is not None
            # Of the rows stacked for delays only the newest is forecast.
            shown = measured[measured.any(axis=1)]
            candidate, ranked = choose(parts, lead, self._bound, self.offset, shown)
        folds = [] if lead is None else folds_of(parts, lead)
        kept = [Recordings(cut(parts, fold.kept), self._bound, self.offset) for fold in folds]
        of_folds = models_of(candidate, kept, quick=False)
        model, candidate = self._of_all(stacked, candidate, of_folds)
        A, B, c = stacked.units.restored(*model)
        restored = within(A, self._bound), B, c  # Rounding in badly scaled units may cross the bound.
        weight = Recordings(parts, self._bound, self.offset).weight(candidate, model, measured)
        self._set_measured(restored, coordinates, stacked.parts, stacked.units.x, weight)
        if ranked is not None:
            self._set_choice(ranked, candidate)
        elif candidate == Candidate(None) and self.delays == 1 and self.rank is None:
            self._doubt_states(parts, model)
        unit = stacked.units.x[-coordinates.width :] if self.rank is None else np.ones(1)
        # Rows less the mean are C x of the states in their units.
        newest, C = [Y - self.C_ @ stacked.units.mean_x for Y in stacked.newest], self.C_ * stacked.units.x
        blocks: list[Block] = []
        for fold, data, of in zip(folds, kept, of_folds, strict=True):
            assert lead is not None
            weight = data.weight(candidate, of, measured)
            blocks += blocks_of(parts, newest, fold, of, C, unit, lead, measured, weight)
        self._set_held(blocks, stacked.newest, unit)
        if self.forecast_error_ is not None and (self.delays > 1 or self.input_delays > 1):
            states = max(len(Y) for Y, _ in parts), max(map(len, rows))
            _say(remarks_on_few(*states, self.forecast_error_["model"]), 4)

    def _doubt_states(self, parts: list[Part], model: Affine) -> None:
        """Keep what says whether a longer past predicts a step far better; ask now if no mode was found."""
        A, B, c = model
        (n, m), kept, spare = (M.shape[1] for M in parts[0]), [], _MOST_ROWS
        if n > _MOST_STATES or max(len(Y) for Y, _ in parts) < _LEAST_ROWS:
            return
        for Y, U in parts:
            if spare > 1:
                kept.append((Y[:spare], U[: spare - 1]))
                spare -= len(Y)
        recordings = [(Y, np.pad(U, ((0, 1), (0, 0)), mode="edge")) for Y, U in kept]
        if longest_span(recordings, self.input_delays) < n + 2:
            return
        left = [np.vstack([0 * Y[:1], Y[1:] - Y[:-1] @ A.T - U @ B.T - c]) for Y, U in kept]
        options = Options(self._bound, False, self.offset, 0, lags=self.input_delays)
        self._unasked = recordings, left, n * (n + m), n, options
        if not np.linalg.eigvals(A).imag.any() and period_of([Y for Y, _ in parts]) and self._ask() > _MUCH:
            _say(self._doubts, 5)

    def _ask(self) -> float:
        """Return by how much a longer past predicts a step better, if it is not known; note it."""
        if self._unasked is None:
            return 0.0
        share, self._unasked = shortfall(*self._unasked), None
        if share > SHORT:
            self._doubts = [remark_on_states(share)]
        return share

    def _doubt_damping(self, rows: list[Array], inputs: list[Array], stacked: Stacked) -> None:
        """Note for the damping whether some of the stacked states hold noise alone."""
        number = stacked.parts[0][0].shape[1]
        if self.rank is not None:  # Of a few directions two may be as loud, as those of a mode are.
            plain = Coordinates(stacked.coordinates.width, self.delays)
            stacked = Stacked.of(rows, inputs, plain, self.input_delays, False)
        above = above_noise(stacked.scaled())
        if above is not None and above < number:
            self._doubts = [remark_on_damping(number, above)]

    def _lead_of(self, longest: int) -> int:
        """Return the lead for recordings of at most so many rows; warn if they are too few."""
        if self.lead is None:
            return default_lead(longest)
        if longest <= self.lead:
            remark = (
                f"the recordings have at most {longest} rows, too few to check forecasts of lead={self.lead} "
                "steps. forecast_error_ is NaN for the leads that were not checked."
            )
            _say([remark], 5)
        return int(self.lead)

    def _of_all(
        self, stacked: Stacked, candidate: Candidate, of_folds: list[Affine]
    ) -> tuple[Affine, Candidate]:
        """Return the fit of a candidate to all rows, and the candidate, with the ridge that it needed."""
        if candidate.baseline is None and not candidate.ridge:
            try:
                self._require_samples(*pairs_of(stacked.parts)[::2])
            except ValueError:
                if self.noise != "auto":
                    raise
                candidate = candidate._replace(ridge=_TINY)
        data = Recordings(stacked.scaled(), self._bound, self.offset)
        process = candidate.noise == "process"
        model = data.fit(candidate, max_iter=self._steps(8) if process else 8)
        if not process:
            model = data.descend(candidate.ridge, [model, *of_folds], self._steps(2 * STEPS), LAST_GAIN)
        return model, candidate

    def _steps(self, default: int) -> int:
        return default if self.max_iter is None else self.max_iter

    def _require_samples(self, X: Array, U: Array) -> None:
        """Raise a ValueError unless pairs of states and inputs determine A and B, or there is a ridge."""
        if not self.ridge:
            require_samples(X, np.hstack([U, np.ones((len(U), int(self.offset)))]))

    def _residuals(self, parts: list[Part], model: Affine, weight: float | None) -> Array:
        """Return what a step leaves of the states or, with noise in the measurements, whole recordings."""
        A, B, c = model
        if weight is None:
            X, Y, U = pairs_of(parts)
            return Y - X @ A.T - U @ B.T - c
        found = []
        both = np.hstack([B, c[:, None]])
        for Y, U in parts:
            whole = Pieces(Y[None], np.hstack([U, np.ones((len(U), 1))])[None])
            found.append(Y - moved_states(A, both, whole)[0, :, : len(A)])
        return np.vstack(found)

    def _set_measured(
        self,
        model: Affine,
        coordinates: Coordinates,
        parts: list[Part],
        scale: Array,
        weight: float | None = None,
        residuals: Array | None = None,
    ) -> None:
        """Set what is known of measured states, whose forecasts begin by a filter of this weight.

        ``residuals`` are what the model leaves of the states, if they are no recordings.
        """
        A, B, c = model
        self.components_ = coordinates.components
        step = None if self.time == "discrete" else self.dt
        system = MeasuredSystem(A, B, c, coordinates, self.input_delays, scale, 0 * A, step, weight)
        if weight:
            residuals = np.vstack([system.innovations(Y, U @ B.T + c) for Y, U in parts])
        elif residuals is None:
            residuals = self._residuals(parts, model, weight)
        unknowns = len(A) + B.shape[1] + bool(c.any())  # of a row of A, B and c
        covariance = residuals.T @ residuals / max(len(residuals) - unknowns, 1)
        gain, noise = system.gain(covariance)
        self._system, C = system._replace(noise=noise), system.C
        self.noise_ = "process" if weight is None else "both" if weight else "measurement"
        inputs = (B, np.zeros((len(C), B.shape[1]))) if B.shape[1] else (None, None)
        self._set_fit(A, inputs[0], C, inputs[1], gain, c, C @ covariance @ C.T)

    def _set_choice(self, ranked: Ranked, candidate: Candidate) -> None:
        """Set the choice; its arguments give the same fit again."""
        self.choice_ = ranked.choice(self.get_params() | candidate._asdict())

    # What is known of each fit

    def _set_fit(
        self, A: Array, B: Array | None, C: Array, D: Array | None, K: Array, c: Array, noise: Array
    ) -> None:
        """Set the matrices."""
        self.A_, self.B_, self.C_, self.D_, self.K_, self.offset_ = A, B, C, D, K, c
        reached = spectral_radius(A)
        if self.time == "continuous":
            reached = float(np.linalg.eigvals(A).real.max())
        predictor = spectral_radius(A - K @ C)
        self.fit_ = SystemFit(A, B, C, D, K, c, noise, self._bound, reached, predictor, self.time)

    def _set_held(
        self,
        blocks: list[Block],
        rows: list[Array],
        unit: Array | float = 1.0,
        tried: tuple[bool, bool, int, bool] | None = None,
    ) -> None:
        """Set what is known from forecasts of rows that were held out; ``tried`` is what was of inputs."""
        self.forecast_error_, self._sizes, self.period_ = None, None, self.period if blocks else None
        if blocks:
            if self.period is None:
                self.period_ = period_of([Y / unit for Y in rows])
            self.forecast_error_ = forecast_errors(blocks, self.period_)
            each = [forecast_errors([block], self.period_) for block in blocks]
            remarks = no_better(self.forecast_error_, each, self._hidden or self.delays > 1)
            if tried is not None:
                remarks += nearly_unexplained(self.forecast_error_["model"], *tried)
            if remarks:  # Rows at rest do not call a fit poor.
                held = [of.rows[of.begins[0] : of.end] for of in blocks if len(of.begins)]
                _say(remarks_on_rest(held, rows) or remarks, 5)
            self._deviations = deviations(self._system.after, blocks[0].residuals.shape[1])
            self._sizes = np.concatenate(
                [np.abs(of.residuals) / self._deviations[levels(of.begins - of.first + 1)] for of in blocks]
            )
            self._sizes.sort(axis=0)  # unknown ones last


def _is(value: object, values: tuple[object, ...]) -> bool:
    """Return whether it is one of these values, whatever its type."""
    return any(value is of or (isinstance(value, str) and value == of) for of in values)


def _say(remarks: list[str], stacklevel: int = 3) -> None:
    """Warn with the line that called ``fit``, so many frames above, as the place."""
    for remark in remarks:
        warnings.warn(f"StableLinearModel: {remark}", stacklevel=stacklevel)
