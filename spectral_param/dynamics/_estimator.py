"""A stable linear model with scikit-learn's conventions."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from typing import Any, Literal

import numpy as np
import scipy.linalg
from torch import nn

from spectral_param._matrices import Array
from spectral_param.dynamics._data import as_array, names_of, pairs_of
from spectral_param.dynamics._fitting import Fitting
from spectral_param.dynamics._forecast.fit import ForecastFit, Start
from spectral_param.dynamics._forecast.windows import Windows, forecast
from spectral_param.dynamics._module import StableLinear
from spectral_param.dynamics._one_step.fit import StableFit, Time
from spectral_param.dynamics._selection.choose import Choice
from spectral_param.functional._checks import whole_number


class StableLinearModel:
    r"""Stable linear dynamics :math:`x_{k+1} = A x_k + B u_k + c`, or :math:`\dot x = A x + B u + c`.

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
            forecasts. A number takes :func:`fit_forecast` with this horizon; one as large as the number of
            rows means whole recordings. A horizon needs recordings, not pairs. In continuous time only
            ``"cv"`` is allowed, and chooses the shrinkage.
        start: Where the forecasts of the fit begin, with a horizon. ``"measured"``: at a measured row, for
            noise that drives the system. ``"estimated"``: where they fit best, for noise of the measurements.
            None, the default, means ``"measured"``; with ``"cv"``, both are tried.
        lead: Steps of the forecasts by which ``"cv"`` chooses, and of ``forecast_error_``. None, the default,
            means the horizon, or 50 for ``"cv"``, but at most a quarter of the longest recording.
        towards: Matrix A₀ ``(n, n)`` towards which ``ridge`` shrinks A. None, the default, means 0, and for
            ``"cv"`` the best of 0, the identity (no change) and a regression of each state on itself.
        delays: Number of successive rows that are one state (time-delay coordinates), for states that are not
            measured whole. 1 by default.
        rank: Number of leading singular vectors of the states to project on, as in dynamic mode
            decomposition: for states with more dimensions than there are samples. None, the default, does not
            project. With delays, the stacked rows are projected.
        offset: Whether to fit c, for dynamics about a point other than 0.
        dt: Time between two samples. It sets the unit of ``frequencies_`` and ``growth_rates_`` in discrete
            time, and the step of ``simulate`` in continuous time.
        steps: Steps of the search of one step; see :func:`fit_stable`.
        ridge: Weight of the squared entries of A − A₀, B and c in the objective. With a horizon, states and
            inputs are in units of their standard deviations (one unit for all states with ``rank``). 0 by
            default; ``"cv"`` chooses it.

    Attributes:
        A_: State matrix ``(n, n)``, or ``(rank, rank)`` in the coordinates of ``components_``. With delays,
            n is the number of columns times ``delays``, the newest row last.
        B_: Input matrix ``(n, m)`` or ``(rank, m)``; None without inputs.
        offset_: c, or zeros.
        components_: Orthonormal rows ``(rank, n)`` on which states are projected; None without ``rank``.
        radius_: The radius used; None in continuous time.
        eigenvalues_: Eigenvalues of A, in descending order of modulus (real part in continuous time).
        modes_: Eigenvectors as columns, in the coordinates of the states: ``(n, number)``.
        frequencies_: Frequency of each eigenvalue, in cycles per unit of time.
        growth_rates_: Growth rate of each eigenvalue: log\|λ\| / dt, or Re λ in continuous time.
        fit_: The :class:`StableFit`, or :class:`ForecastFit` with a horizon. ``bound_active`` says whether
            an eigenvalue lies on the bound. Noise of the measurements draws a fit of one step inwards, away
            from it.
        choice_: The :class:`Choice` of ``horizon="cv"``; else None.
        forecast_error_: Errors of forecasts of 1, 2, ..., ``lead`` steps on rows held out from the fit, as a
            dict of arrays: ``"model"``, ``"no change"`` and ``"mean"``. Each is relative to forecasting the
            mean, so that 1 is no skill; NaN for leads longer than what was held out. None without a horizon
            and a lead, or if the rows are too few to hold any out.
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
        delays: int = 1,
        rank: int | None = None,
        offset: bool = False,
        dt: float = 1.0,
        steps: int = 8,
        ridge: float = 0.0,
    ) -> None:
        self.radius = radius
        self.time = time
        self.abscissa = abscissa
        self.horizon = horizon
        self.start = start
        self.lead = lead
        self.towards = towards
        self.delays = delays
        self.rank = rank
        self.offset = offset
        self.dt = dt
        self.steps = steps
        self.ridge = ridge

    # scikit-learn's protocol --------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor by name; ``deep`` has no effect."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> StableLinearModel:
        """Return this model after setting arguments of the constructor by name.

        Raises:
            ValueError: If there is no such argument.
        """
        names = self.get_params()
        for name, value in params.items():
            if name not in names:
                raise ValueError(f"StableLinearModel: expected one of {', '.join(names)}, got {name!r}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = {name: value for name, value in self.get_params().items() if value != defaults[name]}
        return f"StableLinearModel({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a regressor that does not need targets."""
        from sklearn.utils import RegressorTags, Tags, TargetTags

        targets = TargetTags(required=False, multi_output=True)
        return Tags(estimator_type="regressor", target_tags=targets, regressor_tags=RegressorTags())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_")

    def set_fit_request(self, *, U: bool | str | None = None) -> StableLinearModel:
        """Say whether scikit-learn passes inputs U to ``fit``.

        This needs ``sklearn.set_config(enable_metadata_routing=True)``. After
        ``model.set_fit_request(U=True).set_score_request(U=True)``, a search by
        ``GridSearchCV(model, ...).fit(X, Y, U=U)`` splits U as it splits X.

        Args:
            U: True passes U; False does not; a name passes the argument of this name as U; None raises an
                error if U is given.

        Returns:
            This model.
        """
        return self._requesting("fit", U)

    def set_predict_request(self, *, U: bool | str | None = None) -> StableLinearModel:
        """Say whether scikit-learn passes inputs U to ``predict``; see :meth:`set_fit_request`.

        Args:
            U: As for :meth:`set_fit_request`.

        Returns:
            This model.
        """
        return self._requesting("predict", U)

    def set_score_request(self, *, U: bool | str | None = None) -> StableLinearModel:
        """Say whether scikit-learn passes inputs U to ``score``; see :meth:`set_fit_request`.

        Args:
            U: As for :meth:`set_fit_request`.

        Returns:
            This model.
        """
        return self._requesting("score", U)

    def _requesting(self, method: str, alias: bool | str | None) -> StableLinearModel:
        self._metadata_request = self.get_metadata_routing()
        getattr(self._metadata_request, method).add_request(param="U", alias=alias)
        return self

    def get_metadata_routing(self) -> Any:
        """Return scikit-learn's request for metadata: U, as ``set_fit_request`` and the like say."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return copy.deepcopy(self._metadata_request)
        request = MetadataRequest(owner=self)
        for method in ("fit", "predict", "score"):
            getattr(request, method).add_request(param="U", alias=None)
        return request

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
        recordings = pairs_of(X, Y, U, self.time)
        fitting = Fitting(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Fitting)})
        fitting.check(Y is not None)
        if self.time == "continuous" or (self.horizon is None and Y is not None):
            fitted = fitting.of_pairs(recordings)
        else:
            fitted = fitting.of_recordings(recordings)
        self.fit_: StableFit | ForecastFit = fitted.fit
        self.choice_: Choice | None = fitted.choice
        self.forecast_error_: dict[str, Array] | None = fitted.forecast_error
        self.A_: Array = fitted.fit.A
        n, m = len(self.A_), 0 if recordings[0][2] is None else recordings[0][2].shape[1]
        B = np.zeros((n, 0)) if fitted.fit.B is None else fitted.fit.B
        self.offset_: Array = B[:, -1] if self.offset else np.zeros(n)
        self.B_: Array | None = None if recordings[0][2] is None else B[:, :m]
        self.radius_ = fitted.fit.bound if self.time == "discrete" else None
        self._coordinates = fitted.coordinates
        self.components_: Array | None = fitted.coordinates.components
        self.n_features_in_ = fitted.coordinates.width
        # The unit in which an estimated start is the nearest.
        self._scale = np.where(fitted.deviation > 0, fitted.deviation, 1.0)
        self._set_spectrum()
        names = names_of(X)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _set_spectrum(self) -> None:
        eigenvalues, vectors = np.linalg.eig(self.A_)
        height = np.abs(eigenvalues) if self.time == "discrete" else eigenvalues.real
        # The two of a pair stand together, the positive frequency first.
        rounded = (height / (np.abs(eigenvalues).max() or 1.0)).round(12)
        order = np.lexsort((-eigenvalues.imag, np.abs(eigenvalues.imag), -rounded))
        self.eigenvalues_ = eigenvalues[order].astype(np.complex128)
        vectors = vectors[:, order].astype(np.complex128)
        self.modes_ = vectors if self.components_ is None else self.components_.T @ vectors
        if self.time == "discrete":
            with np.errstate(divide="ignore"):  # The growth rate of an eigenvalue 0 is −∞.
                self.growth_rates_ = np.log(np.abs(self.eigenvalues_)) / self.dt
            self.frequencies_ = np.angle(self.eigenvalues_) / (2 * np.pi * self.dt)
        else:
            self.growth_rates_ = self.eigenvalues_.real
            self.frequencies_ = self.eigenvalues_.imag / (2 * np.pi)

    # Use ----------------------------------------------------------------------------------------------

    def predict(self, X: Any, U: Any = None, window: int = 1) -> Array:
        """Return the state that follows each given state or, in continuous time, its derivative.

        Args:
            X: States ``(N, n)``. With delays or a window, in order of time.
            U: Inputs ``(N, m)``.
            window: Number of states from which each prediction starts: more than 1, the default, reduce noise
                of the measurements. The start is the one that fits the window best.

        Returns:
            Array ``(N − delays − window + 2, n)``. Each prediction needs delays + window − 1 successive rows
            of X, and is what follows the last of them.

        Raises:
            ValueError: If the model is not fitted, or the shapes differ from those of the fit.
        """
        self._require_fit("predict")
        window = whole_number(window, "StableLinearModel.predict: window")
        if self.time == "continuous" and window > 1:
            raise ValueError("StableLinearModel.predict: expected window=1 in continuous time.")
        rows = self._states(X, "X", "predict", self.delays + window - 1)
        driven = self._driven(U, len(rows))[self.delays - 1 :]
        states = self._coordinates.into(rows)
        if window > 1:
            states, driven = self._last(states, driven, window), driven[window - 1 :]
        return self._coordinates.newest(states @ self.A_.T + driven)

    def simulate(self, x0: Any, steps: int, U: Any = None) -> Array:
        """Return the states that follow x0, each computed from the previous one.

        Args:
            x0: State ``(n,)``, or the last measured rows ``(rows, n)``: as many as there are delays, or more
                to reduce noise of the measurements. Then the simulation starts where it fits these rows best.
            steps: Number of states to return.
            U: Inputs ``(rows - 1 + steps, m)``, with rows = 1 for a single state x0; further rows are
                ignored. The first row acts on the first of x0. In continuous time each row is held for
                ``dt``.

        Returns:
            Array ``(steps, n)``, without x0.

        Raises:
            ValueError: If the model is not fitted, or the shapes differ from those of the fit.
        """
        self._require_fit("simulate")
        steps = whole_number(steps, "StableLinearModel.simulate: steps", least=0)
        rows = self._states(x0, "x0", "simulate", self.delays, one=True)
        before = len(rows) - 1
        if U is not None:
            U = as_array(U, "U", "StableLinearModel.simulate")
            if len(U) < before + steps:
                between = (
                    f", {before} between the rows of x0 and {steps} after them" if before else ", one a step"
                )
                raise ValueError(
                    f"StableLinearModel.simulate: expected {before + steps} rows of U{between}, got {len(U)}."
                )
            U = U[: before + steps]
        driven = self._driven(U, before + steps)
        A, n = self.A_, len(self.A_)
        if self.time == "continuous":  # A step of dt with constant input is one exponential.
            both = scipy.linalg.expm(self.dt * np.block([[A, np.eye(n)], [np.zeros((n, 2 * n))]]))
            A, driven = both[:n, :n], driven @ both[:n, n:].T
        states = self._coordinates.into(rows)
        x = self._last(states, driven[self.delays - 1 : before], len(states), A)[0]
        simulated = np.empty((steps, n))
        for k in range(steps):
            x = A @ x + driven[before + k]
            simulated[k] = x
        return self._coordinates.newest(simulated)

    def _last(self, states: Array, driven: Array, window: int, A: Array | None = None) -> Array:
        """Return the last state of each window of so many successive rows, estimated from the window."""
        if window == 1:
            return states
        A = (self.A_ if A is None else A) / self._scale[:, None] * self._scale
        first = np.arange(len(states) - window + 1)
        windows = Windows(states / self._scale, driven / self._scale, first, window - 1)
        return forecast(A, np.eye(len(A)), windows, True)[:, -1, : len(A)] * self._scale

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
        for x, y, u in pairs_of(X, Y, U, self.time):
            if y is None:
                x, y = x[:-1], x[1:]
            predicted.append(self.predict(x, u))
            after.append(y[self.delays - 1 :])
        Y = np.vstack(after)
        left = float(np.square(Y - np.vstack(predicted)).sum())
        total = float(np.square(Y - Y.mean(axis=0)).sum())
        return 1.0 - left / total if total > 0 else (1.0 if left == 0 else -np.inf)

    def to_module(self) -> nn.Module:
        """Return these dynamics as a torch module that can be trained; the bound on A stays in force.

        Returns:
            The module. ``module(x, u)`` is the next state (or the derivative), in the coordinates of ``A_``.

        Raises:
            ValueError: If the model is not fitted.
        """
        self._require_fit("to_module")
        return StableLinear(
            self.A_, self.B_, self.offset_ if self.offset else None, self.time, self.fit_.bound
        )

    def _driven(self, U: Any, rows: int) -> Array:
        """Return B u + c for each row."""
        if (U is None) != (self.B_ is None):
            raise ValueError(
                f"StableLinearModel: expected {'no ' if self.B_ is None else ''}inputs U, as in the fit, got "
                f"{'none' if U is None else 'some'}."
            )
        c = np.broadcast_to(self.offset_, (rows, len(self.A_)))
        if self.B_ is None:
            return c
        U = as_array(U, "U", "StableLinearModel")
        if U.shape != (rows, self.B_.shape[1]):
            raise ValueError(
                f"StableLinearModel: expected U of shape {(rows, self.B_.shape[1])}, got {U.shape}."
            )
        return c + U @ self.B_.T

    def _require_fit(self, method: str) -> None:
        if not hasattr(self, "fit_"):
            raise ValueError(
                f"StableLinearModel.{method}: expected a fitted model, got one before fit. Call fit first."
            )

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
                f"{caller}: expected states of {self.n_features_in_} entries, got {rows.shape[1]}."
            )
        if len(rows) < least:
            raise ValueError(
                f"{caller}: expected at least {least} rows of {name}, in order of time, got {len(rows)}."
            )
        return rows
