"""A stable linear model with scikit-learn's conventions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from torch import nn

from spectral_param.dynamics._data import as_array, require_finite
from spectral_param.dynamics._fit import StableFit, Time, fit_stable
from spectral_param.dynamics._module import StableLinear
from spectral_param.functional.checks import whole_number

Array = NDArray[Any]  # float64

_RADII = (1.0, 0.9999, 0.999, 0.995, 0.99, 0.98, 0.95, 0.9)  # tried by radius="cv"; of ties the first wins
_HELD_OUT = 4  # "cv" holds out one recording in 4, or the last quarter of a single recording


class StableLinearModel:
    r"""Stable linear dynamics :math:`x_{k+1} = A x_k + B u_k + c`, or :math:`\dot x = A x + B u + c`.

    It follows scikit-learn's conventions (``fit``, ``predict``, ``score``, ``get_params``, ``set_params``)
    and works with ``clone``, ``GridSearchCV`` and ``Pipeline``. scikit-learn itself is not needed. Data are
    numpy arrays with one sample a row.

    Args:
        radius: Largest modulus of an eigenvalue of A, for discrete time. None, the default, means 1. ``"cv"``
            fits with several radii from 1 to 0.9, simulates held-out recordings with each fit, and takes the
            radius with the smallest error; this needs recordings (``fit(X)``), not pairs.
        time: ``"discrete"``, or ``"continuous"``, where Y holds derivatives.
        abscissa: Largest real part of an eigenvalue of A, for continuous time. None, the default, means 0.
        rank: Number of leading singular vectors of the states to project on, as in dynamic mode
            decomposition: for states with more dimensions than there are samples. None, the default, does not
            project.
        offset: Whether to fit c, for dynamics about a point other than 0.
        dt: Time between two samples. It sets the unit of ``frequencies_`` and ``growth_rates_`` in discrete
            time, and the step of ``simulate`` in continuous time.
        steps: Steps of the search; see :func:`fit_stable`.
        ridge: Weight of the squared entries of A, B and c in the objective; see :func:`fit_stable`.

    Attributes:
        A_: State matrix ``(n, n)``, or ``(rank, rank)`` in the coordinates of ``components_``.
        B_: Input matrix ``(n, m)`` or ``(rank, m)``; None without inputs.
        offset_: c, or zeros.
        components_: Orthonormal rows ``(rank, n)`` on which states are projected; None without ``rank``.
        radius_: The radius used; None in continuous time.
        eigenvalues_: Eigenvalues of A, in descending order of modulus (real part in continuous time).
        modes_: Eigenvectors as columns, in the coordinates of the states: ``(n, number)``.
        frequencies_: Frequency of each eigenvalue, in cycles per unit of time.
        growth_rates_: Growth rate of each eigenvalue: log\|λ\| / dt, or Re λ in continuous time.
        fit_: The :class:`StableFit`.

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
        radius: float | Literal["cv"] | None = None,
        *,
        time: Time = "discrete",
        abscissa: float | None = None,
        rank: int | None = None,
        offset: bool = False,
        dt: float = 1.0,
        steps: int = 8,
        ridge: float = 0.0,
    ) -> None:
        self.radius = radius
        self.time = time
        self.abscissa = abscissa
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

    # Fitting ------------------------------------------------------------------------------------------

    def fit(self, X: Any, Y: Any = None, U: Any = None) -> StableLinearModel:
        """Fit A, B and c.

        Args:
            X: States. With Y, an array ``(N, n)``. Without Y, a recording ``(N, n)`` with rows in order of
                time, or a list of recordings; the last row of one and the first row of the next do not form a
                pair.
            Y: The states one step after those of X or, in continuous time, their derivatives: ``(N, n)``, or
                a list like X.
            U: Inputs, one row for each row of X, or a list like X. Without Y, the last row of each recording
                is not used.

        Returns:
            This model.

        Raises:
            ValueError: If the data or an argument differ from this description.
        """
        recordings = _recordings(X, Y, U, self.time)
        self._require_arguments()
        radius = self.radius
        if isinstance(radius, str):
            if Y is not None or self.time != "discrete":
                raise ValueError(
                    "StableLinearModel: expected recordings in discrete time for radius='cv', fit(X) with "
                    "rows in order of time, got "
                    f"{'pairs' if Y is not None else 'continuous time'}. Pass a number as radius."
                )
            radius = self._chosen_radius(recordings)
        self._fit_recordings(recordings, radius)
        return self

    def _require_arguments(self) -> None:
        if isinstance(self.radius, str) and self.radius != "cv":
            raise ValueError(f"StableLinearModel: expected a radius, None or 'cv', got {self.radius!r}.")
        if not (np.isfinite(self.dt) and self.dt > 0):
            raise ValueError(f"StableLinearModel: expected dt > 0, got {self.dt!r}.")
        if self.rank is not None:
            whole_number(self.rank, "StableLinearModel: rank", otherwise=" or None")

    def _fit_recordings(self, recordings: list[_Recording], radius: float | None) -> None:
        X, Y, U = (_stacked([r[i] for r in recordings]) for i in range(3))
        assert X is not None
        assert Y is not None
        self.components_ = None
        if self.rank is not None:
            if self.rank > min(X.shape):
                raise ValueError(
                    f"StableLinearModel: expected rank <= {min(X.shape)}, the smaller of the numbers of "
                    f"samples and of state entries, got {self.rank}."
                )
            self.components_ = np.linalg.svd(X, full_matrices=False)[2][: self.rank]
            X, Y = X @ self.components_.T, Y @ self.components_.T
        inputs = [] if U is None else [U]
        if self.offset:
            inputs.append(np.ones((len(X), 1)))
        self.fit_: StableFit = fit_stable(
            X,
            Y,
            np.hstack(inputs) if inputs else None,
            time=self.time,
            radius=radius,
            abscissa=self.abscissa,
            steps=self.steps,
            ridge=self.ridge,
        )
        self.A_: Array = self.fit_.A
        B = np.zeros((len(self.A_), 0)) if self.fit_.B is None else self.fit_.B
        self.offset_: Array = B[:, -1] if self.offset else np.zeros(len(self.A_))
        self.B_: Array | None = None if U is None else B[:, : U.shape[1]]
        self.radius_ = self.fit_.bound if self.time == "discrete" else None
        self.n_features_in_ = self.A_.shape[0] if self.components_ is None else self.components_.shape[1]
        self._set_spectrum()

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

    def _chosen_radius(self, recordings: list[_Recording]) -> float:
        """Return the radius whose fits predict held-out recordings best, simulated from their first state."""

        def fitted(kept: list[_Recording], radius: float) -> StableLinearModel:
            model = type(self)(**self.get_params())
            model._fit_recordings(kept, radius)
            return model

        fitted(recordings, _RADII[0])  # Raises for what is wrong without folds.
        if len(recordings) == 1:
            X, Y, U = recordings[0]
            split = len(X) - len(X) // _HELD_OUT
            parts = [slice(None, split), slice(split, None)]
            kept, held = ([(X[p], Y[p], None if U is None else U[p])] for p in parts)
            folds = [(kept, held)]
        else:
            parts_of = min(_HELD_OUT, len(recordings))
            folds = [
                (
                    [r for i, r in enumerate(recordings) if i % parts_of != fold],
                    [r for i, r in enumerate(recordings) if i % parts_of == fold],
                )
                for fold in range(parts_of)
            ]
        errors = []
        for radius in _RADII:
            total = 0.0
            for kept, held in folds:
                try:
                    model = fitted(kept, radius)
                except ValueError as error:
                    raise ValueError(
                        "StableLinearModel: radius='cv' also fits with a quarter of the recordings held out, "
                        f"and that failed. Pass a number as radius, or more data. {error}"
                    ) from error
                for X, Y, U in held:
                    if len(X):
                        total += float(np.square(model.simulate(X[0], len(X), U) - Y).sum())
            errors.append(total)
        return _RADII[int(np.argmin(errors))]

    # Use ----------------------------------------------------------------------------------------------

    def predict(self, X: Any, U: Any = None) -> Array:
        """Return the state that follows each given state or, in continuous time, its derivative.

        Args:
            X: States ``(N, n)``.
            U: Inputs ``(N, m)``.

        Returns:
            Array ``(N, n)``.

        Raises:
            ValueError: If the model is not fitted, or the shapes differ from those of the fit.
        """
        self._require_fit("predict")
        X = as_array(X, "X", "StableLinearModel.predict")
        self._require_states(X)
        reduced = X if self.components_ is None else X @ self.components_.T
        following = reduced @ self.A_.T + self._driven(U, len(X))
        rows: Array = following if self.components_ is None else following @ self.components_
        return rows

    def simulate(self, x0: Any, steps: int, U: Any = None) -> Array:
        """Return the states that follow x0, each computed from the previous one.

        Args:
            x0: State ``(n,)``.
            steps: Number of states to return.
            U: Inputs ``(steps, m)``; further rows are ignored. The first row acts on x0. In continuous time
                each row is held for ``dt``.

        Returns:
            Array ``(steps, n)``, without x0.

        Raises:
            ValueError: If the model is not fitted, or the shapes differ from those of the fit.
        """
        self._require_fit("simulate")
        x = as_array(x0, "x0", "StableLinearModel.simulate", ndim=1)
        self._require_states(x)
        steps = whole_number(steps, "StableLinearModel.simulate: steps", least=0)
        if U is not None:
            U = as_array(U, "U", "StableLinearModel.simulate")
            if len(U) < steps:
                raise ValueError(
                    f"StableLinearModel.simulate: expected {steps} rows of U, one a step, got {len(U)}."
                )
            U = U[:steps]
        driven = self._driven(U, steps)
        A, n = self.A_, len(self.A_)
        if self.time == "continuous":  # A step of dt with constant input is one exponential.
            both = scipy.linalg.expm(self.dt * np.block([[A, np.eye(n)], [np.zeros((n, 2 * n))]]))
            A, driven = both[:n, :n], driven @ both[:n, n:].T
        if self.components_ is not None:
            x = self.components_ @ x
        rows = np.empty((steps, n))
        for k in range(steps):
            x = A @ x + driven[k]
            rows[k] = x
        return rows if self.components_ is None else rows @ self.components_

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
        recordings = _recordings(X, Y, U, self.time)
        X, Y, U = (_stacked([r[i] for r in recordings]) for i in range(3))
        left = float(np.square(Y - self.predict(X, U)).sum())
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
        driven: Array = c + U @ self.B_.T
        return driven

    def _require_fit(self, method: str) -> None:
        if not hasattr(self, "fit_"):
            raise ValueError(
                f"StableLinearModel.{method}: expected a fitted model, got one before fit. Call fit first."
            )

    def _require_states(self, X: Array) -> None:
        if X.shape[-1] != self.n_features_in_:
            raise ValueError(
                f"StableLinearModel: expected states of {self.n_features_in_} entries, got {X.shape[-1]}."
            )


_Recording = tuple[Array, Array, Array | None]


def _recordings(X: Any, Y: Any, U: Any, time: str) -> list[_Recording]:
    """Return triples of states, next states or derivatives, and inputs."""
    several = isinstance(X, (list, tuple)) and len(X) > 0 and np.ndim(X[0]) == 2
    lists: list[Any] = [M if several else None if M is None else [M] for M in (X, Y, U)]
    for name, M in zip("YU", lists[1:], strict=True):
        if M is not None and not (isinstance(M, Sequence) and len(M) == len(lists[0])):
            raise ValueError(
                f"StableLinearModel: expected {name} to be a list of {len(lists[0])} arrays, as X is, got "
                f"{type(M).__name__}."
            )
    if Y is None and time == "continuous":
        raise ValueError(
            "StableLinearModel: expected derivatives Y in continuous time, got none. Measure them, or pass "
            "Y=numpy.gradient(X, dt, axis=0)."
        )
    remedy = "Remove these rows from X, Y and U."
    if Y is None:
        remedy = "Split the recording there: fit([X[:{row}], X[{row} + 1:]]), and U in the same way."
    recordings: list[_Recording] = []
    for i in range(len(lists[0])):
        names = [f"{name}[{i}]" if several else name for name in "XYU"]
        x, y, u = (
            None if M is None else as_array(M[i], name, "StableLinearModel")
            for M, name in zip(lists, names, strict=True)
        )
        assert x is not None
        if Y is None and u is not None:
            if len(u) not in (len(x), len(x) - 1):
                raise ValueError(f"StableLinearModel: expected {len(x)} rows of U, as X has, got {len(u)}.")
            u = u[: len(x) - 1]
        for M, name in zip((x, y, u), names, strict=True):
            if M is not None:
                require_finite(M, name, "StableLinearModel", remedy)
        if y is None:
            if len(x) < 2:
                raise ValueError(f"StableLinearModel: expected recordings of at least 2 rows, got {len(x)}.")
            x, y = x[:-1], x[1:]
        if len(x) != len(y) or (u is not None and len(u) != len(x)):
            raise ValueError(
                f"StableLinearModel: expected as many rows in Y and U as in X, {len(x)}, got {len(y)}"
                f"{'' if u is None else f' and {len(u)}'}."
            )
        recordings.append((x, y, u))
    for name, parts in zip("XYU", zip(*recordings, strict=True), strict=True):
        widths = sorted({M.shape[1] for M in parts if M is not None})
        if len(widths) > 1:
            raise ValueError(
                f"StableLinearModel: expected as many columns in each recording of {name}, got {widths}."
            )
    return recordings


def _stacked(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.vstack(parts)
