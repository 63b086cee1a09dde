"""How StableLinearModel fits pairs, derivatives and recordings."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Coordinates, Pairs, Part, Units, as_matrix, stacked
from spectral_param.dynamics._forecast.fit import ForecastFit, Start, climb, fit_of, restored
from spectral_param.dynamics._forecast.windows import Squares
from spectral_param.dynamics._one_step.fit import StableFit, Time, _bound, fit_stable
from spectral_param.dynamics._progress import progress_bar
from spectral_param.dynamics._selection.choose import LADDERS, Choice, choose, folds_of, number_of_fits
from spectral_param.functional._checks import is_finite, whole_number

_LEAD = 50  # default of the lead, at most a quarter of the longest recording
_CALLER = 4  # frames from a warning to the line that called StableLinearModel.fit


class Fitted(NamedTuple):
    """A fit, whose last input is constant where there is an offset, and what belongs to it."""

    fit: StableFit | ForecastFit
    coordinates: Coordinates
    deviation: Array  # of the states
    choice: Choice | None = None
    forecast_error: dict[str, Array] | None = None


@dataclasses.dataclass(frozen=True)
class Fitting:
    """The arguments of StableLinearModel."""

    radius: float | None
    time: Time
    abscissa: float | None
    horizon: int | Literal["cv"] | None
    start: Start | None
    lead: int | None
    towards: Any
    delays: int
    rank: int | None
    offset: bool
    dt: float
    steps: int
    ridge: float

    def check(self, pairs: bool) -> None:
        """Raise a ValueError if an argument is out of range or does not go with the others or with pairs."""
        name = "StableLinearModel"
        if isinstance(self.radius, str):
            raise ValueError(
                f"{name}: expected a radius or None, got {self.radius!r}. horizon='cv' chooses the radius "
                "too."
            )
        if not (is_finite(self.dt) and self.dt > 0):
            raise ValueError(f"{name}: expected dt > 0, got {self.dt!r}.")
        for argument, of in (("rank", self.rank), ("lead", self.lead)):
            if of is not None:
                whole_number(of, f"{name}: {argument}", otherwise=" or None")
        whole_number(self.delays, f"{name}: delays")
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
        elif self.horizon is None and self.start is not None:
            raise ValueError(f"{name}: expected a horizon with start={self.start!r}, got None.")
        elif pairs and (self.horizon, self.lead, self.delays) != (None, None, 1):
            raise ValueError(
                f"{name}: expected recordings for a horizon, a lead or delays, fit(X) with rows in order of "
                "time or a list of such, got pairs X, Y. Leave out Y (inputs are U=...)."
            )
        if self.time == "continuous" and (self.lead, self.start, self.delays) != (None, None, 1):
            raise ValueError(
                f"{name}: expected no lead, no start and no delays in continuous time, got "
                f"lead={self.lead!r}, start={self.start!r}, delays={self.delays!r}."
            )
        if self.towards is not None and self.horizon is None:
            raise ValueError(f"{name}: expected a horizon with towards, got None. horizon=1 is one step.")

    def of_pairs(self, recordings: list[Pairs]) -> Fitted:
        """Return the fit of one step, of as many pairs as there are, or of derivatives."""
        X, Y, U = (stacked([r[i] for r in recordings]) for i in range(3))
        coordinates = Coordinates.of([X], 1, self.rank)
        X, Y = coordinates.into(X), coordinates.into(Y)
        ridge = self._chosen_ridge(X, Y, U) if self.horizon == "cv" else self.ridge
        return Fitted(self._one_step(X, Y, U, ridge), coordinates, X.std(axis=0))

    def of_recordings(self, recordings: list[Pairs]) -> Fitted:
        """Return the fit of one step, of a number of steps, or what is chosen."""
        rows = [x for x, _, _ in recordings]
        longest = max(map(len, rows))
        short = [len(r) for r in rows if len(r) <= self.delays]
        if short:
            raise ValueError(
                f"StableLinearModel: expected recordings of more than {self.delays} rows for delays="
                f"{self.delays}, got {short[0]}. Leave out shorter recordings, or pass fewer delays."
            )
        coordinates = Coordinates.of([r[:-1] for r in rows], self.delays, self.rank)
        inputs = [np.zeros((len(x) - 1, 0)) if u is None else u for x, _, u in recordings]
        parts = [(coordinates.into(Y), U[self.delays - 1 :]) for Y, U in zip(rows, inputs, strict=True)]
        _bound("discrete", self.radius, self.abscissa)
        units = self._units(parts, rows, inputs)
        lead = self.lead
        if lead is None:
            lead = min(_LEAD, max(1, longest // 4))
            if isinstance(self.horizon, int | np.integer):
                lead = int(self.horizon)
        # Of the rows stacked for delays only the newest is forecast.
        shown = slice(None) if self.rank is not None else slice(-rows[0].shape[1], None)
        if longest <= lead and self.lead is not None:
            warnings.warn(
                f"StableLinearModel: the recordings have at most {longest} rows, too few to check forecasts "
                f"of lead={lead} steps. forecast_error_ is NaN for the leads that were not checked.",
                stacklevel=_CALLER - 1,
            )
        fit: StableFit | ForecastFit
        choice, error = None, None
        if self.horizon == "cv":
            fit, choice, error = self._chosen(parts, units, lead, shown)
        else:
            fit = self._fit_of(parts, units)
            if self.horizon is not None or self.lead is not None:
                error = self._held_out(parts, units, lead, shown)
        if error is not None:
            _warn_if_no_better(error)
        return Fitted(fit, coordinates, np.vstack([Y for Y, _ in parts]).std(axis=0), choice, error)

    def _units(self, parts: list[Part], rows: list[Array], inputs: list[Array]) -> Units:
        """Return the units of a fit of several steps.

        Raises:
            ValueError: If a column is constant and the fit needs its unit.
        """
        if self.horizon is not None:
            # Constant columns of a projection do not matter.
            for name, data in (("states", rows), ("inputs", inputs))[self.rank is not None :]:
                constant = np.flatnonzero(np.ptp(np.vstack(data), axis=0) == 0)
                if len(constant):
                    raise ValueError(
                        f"StableLinearModel: expected {name} that vary, got constant columns "
                        f"{constant.tolist()}. Remove them; offset=True fits a constant."
                    )
        X, U = (np.vstack(M) for M in zip(*parts, strict=True))
        return Units.of(X, U, centred=self.offset, common=self.rank is not None)

    def _fit_of(self, parts: list[Part], units: Units) -> StableFit | ForecastFit:
        """Return the fit of recordings by one step or by a number of steps, in the user's units."""
        if self.horizon is None:
            X, Y = (np.vstack(M) for M in zip(*((Y[:-1], Y[1:]) for Y, _ in parts), strict=True))
            U = np.vstack([U for _, U in parts])
            return self._one_step(X, Y, U if U.shape[1] else None, self.ridge)
        assert isinstance(self.horizon, int | np.integer)
        fit = climb(
            units.parts(parts, self.offset),
            int(self.horizon),
            self.start or "measured",
            _bound("discrete", self.radius, None),
            self.ridge,
            self._towards(units),
        )
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
            steps=self.steps,
            ridge=ridge,
        )

    def _chosen_ridge(self, X: Array, Y: Array, U: Array | None) -> float:
        """Return the ridge, of several, whose fits have the least error on blocks of rows held out."""
        blocks = np.array_split(np.arange(len(X)), 4)
        ridges = np.square(X).mean() * len(X) * np.array([1e-10, *10.0 ** np.arange(-8.0, 1.0)])
        size = np.where(Y.std(axis=0) > 0, Y.std(axis=0), 1)
        errors = np.zeros(len(ridges))
        for block in blocks:
            if not len(block):
                raise ValueError(f"StableLinearModel: expected 4 rows for horizon='cv', got {len(X)}.")
            kept = np.setdiff1d(np.arange(len(X)), block)
            for i, ridge in enumerate(ridges):
                fit = self._one_step(X[kept], Y[kept], None if U is None else U[kept], ridge)
                predicted = X[block] @ fit.A.T
                if fit.B is not None:
                    m = fit.B.shape[1] - self.offset
                    predicted = predicted + (0 if U is None else U[block] @ fit.B[:, :m].T)
                    predicted = predicted + fit.B[:, m:].sum(axis=1)
                errors[i] += np.square((predicted - Y[block]) / size).sum()
        return float(ridges[np.argmin(errors)])

    def _towards(self, units: Units) -> Array | None:
        """Return A₀ in units of the standard deviations."""
        if self.towards is None:
            return None
        n = len(units.x)
        A0 = as_matrix(self.towards, "towards", "StableLinearModel", (n, n))
        return A0 / units.x[:, None] * units.x

    def _chosen(
        self, parts: list[Part], units: Units, lead: int, shown: slice
    ) -> tuple[ForecastFit, Choice, dict[str, Array]]:
        """Return the fit that forecasts rows held out best, what was chosen, and the errors there."""
        scaled = units.parts(parts, self.offset)
        starts = tuple(LADDERS) if self.start is None else (self.start,)
        radius = _bound("discrete", self.radius, None)
        with progress_bar(number_of_fits(starts)) as advance:
            (A, B), choice, model, still = choose(
                scaled, lead, radius, self._towards(units), starts, shown, advance
            )
        fit = restored(fit_of(scaled, choice, A, B), units, self.offset)
        return fit, choice, _errors(model, still)

    def _held_out(self, parts: list[Part], units: Units, lead: int, shown: slice) -> dict[str, Array] | None:
        """Return the errors on the last block, None if the rows before do not suffice for a fit."""
        folds = folds_of(parts, lead)
        if not folds:
            return None
        try:
            fit = self._fit_of(folds[-1].kept, units)
        except ValueError:
            return None
        A, B = fit.A, np.zeros((len(fit.A), 0)) if fit.B is None else fit.B
        m = B.shape[1] - self.offset
        A, B = units.scaled(A, B[:, :m], B[:, m:].sum(axis=1))
        B = B if self.offset else B[:, :m]
        n, m = B.shape
        both = [(A, B), (np.eye(n), np.zeros((n, m)))]
        fold = folds_of(units.parts(parts, self.offset), lead)[-1]
        return _errors(*(fold.squares(*model, lead, shown) for model in both))


def _warn_if_no_better(errors: dict[str, Array]) -> None:
    means = {name: np.nanmean(error) for name, error in errors.items() if np.isfinite(error).any()}
    for name, trivial in (("no change", "no change"), ("mean", "the mean")):
        if means and means[name] < means["model"]:
            warnings.warn(
                f"StableLinearModel: forecasting {trivial} is better on the rows held out: an error of "
                f"{means[name]:.3g}, the model's is {means['model']:.3g}. See forecast_error_.",
                stacklevel=_CALLER,
            )


def _errors(model: Squares, still: Squares) -> dict[str, Array]:
    errors = {"model": model.relative(), "no change": still.relative()}
    return errors | {"mean": np.where(np.isnan(errors["model"]), np.nan, 1.0)}
