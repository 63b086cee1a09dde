"""The page of hidden states, with the numbers of ``benchmarks/results/states.json``."""

from __future__ import annotations

import statistics
from typing import Any

import scipy.stats

from benchmarks.costs_table import origin

Result = dict[str, Any]

OURS, CHOSEN = "states=n", "states='cv'"
COVERAGES = ("0.5", "0.8", "0.95")
BAND = 0.99  # binomial, for each lead
OVERLAP = 5  # windows of the families of measured states overlap: so many count as one

HEAD = """# Hidden states, and bands of forecasts

<!-- Written by `python -m benchmarks.table` from benchmarks/results/states.json. Do not edit. -->

A recording of inputs and outputs is rarely one of states. `states=n` finds states that the sensors do not
see, and `coverage=` says how far to trust a forecast:

```{testcode}
import numpy as np
from scipy.signal import lfilter

rng = np.random.default_rng(0)
U = rng.standard_normal((600, 1))  # what was done, and what one sensor saw of a resonance
Y = lfilter([0, 1, 0.5], [1, -1.6, 0.9], U, axis=0)
Y += 0.05 * Y.std() * rng.standard_normal(Y.shape)

plant = sp.dynamics.StableLinearModel(states=2, lead=40, dt=0.1).fit(Y[:500], U=U[:500])
forecast = plant.simulate(Y[:500], steps=40, U=U[:540], coverage=0.9)
```

```{doctest}
>>> inside = (forecast.lower <= Y[500:540]) & (Y[500:540] <= forecast.upper)
>>> print(f"{inside.mean():.2f}")
0.97
>>> plant.frequencies_.round(2)  # Hz
array([ 0.9, -0.9])
>>> import scipy.signal
>>> _, (answer,) = scipy.signal.dstep(plant.to_dlti(), n=4)
>>> answer[:, 0].round(1)
array([0. , 1. , 3.1, 5.5])
```

The model is in innovation form, $x_{k+1} = A x_k + B u_k + K e_k$ and $y_k = C x_k + D u_k + c + e_k$:
`A_`, `B_`, `C_`, `D_`, `K_`. $e$ is what the best prediction of one step leaves. $A$ is stable, so a
simulation stays bounded; $A - KC$, the matrix of the filter, is stable, so it forgets where it began.

## When to take it

| you have | take |
|---|---|
| rows that are states, or delays that make them so | [`horizon="cv"`](dynamics.md) |
| a recording of inputs and outputs of a plant | `states="cv"` |
| measured states, but inputs that act late | `input_delays=5`: rows of U that act on a state |
| a transfer function for a controller | `states="cv"`, then `to_dlti()` or the matrices |

- `states="cv"` fits 1, 2, 3, ... states, until three orders in a row predict held-out rows no better.
  It takes the smallest that predicts as well as the best, but for chance. `order_errors_` has the errors.
- `fit` takes the outputs and `U=`, or lists of recordings; each recording has a first state of its own. The
  last input of a recording matters only with `feedthrough=True`, which fits $D$ (a sampled plant has none).
- `offset=True` fits the constant $c$ of the outputs; `radius=` bounds $A$.
- `predict(Y, U)` is one step ahead: row k uses rows 0 to k. `simulate(Y, steps, U)` begins at the state
  that the filter finds in these rows; the inputs are those of the rows and of the steps.
- Inputs have to excite the plant. A constant, or a sine with more than one state, is refused.
- python-control takes `control.ss(plant.A_, plant.B_, plant.C_, plant.D_, plant.dt)`.
- Without inputs, the same call fits noise or vibrations. Where noise alone drives many states, a smaller
  model forecasts as well, and `"cv"` takes it.

{doc}`A tutorial <tutorials/plot_13_hidden_states>` goes from a recording to a controller.

## What a band is worth

`simulate(..., coverage=0.9)` returns `mean`, `lower` and `upper`, with hidden and with measured states.

- `interval="conformal"`, the default, is as wide as the errors of forecasts of held-out rows, for each lead
  and output: split conformal prediction. Pass `lead=` to the fit, which holds rows out. If the errors of
  these forecasts and of the next one were exchangeable, the coverage would be at least 0.9 whatever the
  noise. They are not quite: forecasts from successive rows overlap, models of the folds saw fewer rows than
  the one that is used, and a system may change. So it is approximate, and the table below says how far off
  it was.
- `interval="gaussian"` adds up the noise of the steps, $Σ^+ = A Σ A^T + Q$. It is exact for Gaussian noise
  and the true model. It needs no held-out rows and takes any number of steps; it leaves out the error of
  the fit. With *measured* states whose measurement is noisy, $Q$ has the noise of the measurements, and
  bands of later steps are too wide; where the dynamics are not linear, they are too narrow.
- A conformal band is infinite where the held-out forecasts are too few for the coverage: 0.95 needs 19.
- A band is for one number, not for a whole path, and for what would be measured, noise included.

"""

COMPARED = """## Forecasts, beside the true system and other packages

{systems} random systems of 2 to 8 states, 1 to 3 outputs and 0 to 2 inputs, with noise of 0.1 to 10 % and
300 to 2,000 rows. The error is over {lead} steps, relative to that of the true system with its Kalman
filter: 1 is as good as anything can be. All were given the true number of states, but for `states="cv"` and
the regression, whose lags AIC chooses.

| | median | largest | fitted | stable A | seconds, median |
|---|---:|---:|---:|---:|---:|
{rows}

- `states=n` was within 5 % of the best of the others in {near} of {compared} systems, the best in {best}.
  Most medians differ by less than 1 %: white inputs and hundreds of rows are kind to all methods.
- $A$ and $A - KC$ were stable in {steady} of {fitted} fits; where a filter hardly forgets, $A - KC$ may come
  within 1e-6 of a radius of 1.
- SIPPY takes no recording without inputs. {packages}

"""

ORDER = """## The order

At 1 % noise, `states="cv"` was within 2 of the true number in {near} of {systems} systems ({exact} exact);
with inputs in {near_u} of {with_u}. Without inputs noise alone moves the states, and a smaller model often
predicts as well: that is not an error of the forecast.

A fit of 2,000 rows, 8 states, 3 outputs and 2 inputs took {given:.1f} s of one core, `"cv"` {chosen:.0f} s.

"""

COVERED = """## Coverage

The share of measured values in the band, over {windows:,} windows of the {systems} systems above that do
not overlap, by the lead. In brackets: systems whose share is outside the binomial band of {band:.0%} of its
windows.

| | asked | {leads} |
|---|---:|{dashes}
{rows}

### Measured states

The same on {problems} problems of [forecasts compared](dynamics_compared.md), `horizon="cv"`, against
measured rows. Their windows overlap, so that {overlap} count as one in the binomial band. An infinite band
counts as one that covers. So few windows show gross misses alone: look at the shares.

| asked: 0.8 | problems | {family_leads} |
|---|---:|{family_dashes}
{families}

"""


MISSED = """- {kind}, below the binomial band at some lead: {low}.
"""


def page(results: dict[str, Result]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks.states`` wrote.
    """
    systems, orders, families = (
        {name: result for name, result in results.items() if name.startswith(kind)}
        for kind in ("system", "order", "coverage")
    )
    times = results["times"]
    parts = (HEAD, _compared(systems), _order(orders, times), _covered(systems, families))
    return f"{''.join(parts)}\n{origin(times)}.\n"


def _compared(systems: dict[str, Result]) -> str:
    ratios: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    stable: dict[str, int] = {}
    near = best = compared = 0
    for result in systems.values():
        others = []
        for name, fit in result["fits"].items():
            if "failed" in fit:
                continue
            ratios.setdefault(name, []).append(fit["error"] / result["true"])
            seconds.setdefault(name, []).append(fit["cpu_seconds"])
            stable[name] = stable.get(name, 0) + (fit["radius"] <= 1 + 1e-9)
            if name not in (OURS, CHOSEN):
                others.append(fit["error"])
        if others:
            ours = result["fits"][OURS]["error"]
            compared += 1
            near += ours <= 1.05 * min(others)
            best += ours <= min(others)
    rows = []
    for name, of in ratios.items():
        label, time = f"`{name}`" if name in (OURS, CHOSEN) else name, statistics.median(seconds[name])
        figures = f"{statistics.median(of):.3f} | {_short(max(of))} | {len(of)} | {stable[name]} | {time:.2g}"
        rows.append(f"| {label} | {figures} |")
    own = [result["fits"][name] for result in systems.values() for name in (OURS, CHOSEN)]
    versions = next(iter(systems.values()))["environment"]["rivals"]
    packages = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    return COMPARED.format(
        systems=len(systems),
        lead=50,
        rows="\n".join(rows),
        near=near,
        best=best,
        compared=compared,
        steady=sum(fit["radius"] <= 1 + 1e-12 and fit["predictor"] < 1 for fit in own),
        fitted=len(own),
        packages=packages if versions else "",
    )


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else "above 100"


def _order(orders: dict[str, Result], times: Result) -> str:
    off = [(abs(result["order"] - result["states"]), result["inputs"]) for result in orders.values()]
    return ORDER.format(
        systems=len(off),
        near=sum(d <= 2 for d, _ in off),
        exact=sum(d == 0 for d, _ in off),
        near_u=sum(d <= 2 for d, m in off if m),
        with_u=sum(m > 0 for _, m in off),
        given=times["states=8"],
        chosen=times["states='cv'"],
    )


def _covered(systems: dict[str, Result], families: dict[str, Result]) -> str:
    found = [result["coverage"] for result in systems.values()]
    leads = found[0]["leads"]
    rows = []
    for kind in ("conformal", "gaussian"):
        for share in COVERAGES:
            cells = []
            for i in range(len(leads)):
                each = [(of[f"{kind}, {share}"][i], of["windows"]) for of in found]
                pooled = sum(hit * number for hit, number in each) / sum(number for _, number in each)
                outside = sum(_outside(hit, number, float(share)) != 0 for hit, number in each)
                cells.append(f"{pooled:.3f} ({outside})")
            rows.append(f"| {kind} | {share} | {' | '.join(cells)} |")
    by_family: dict[str, list[tuple[str, Result]]] = {}
    for name, result in families.items():
        problem = name.removeprefix("coverage, ")
        by_family.setdefault(problem.split(",")[0], []).append((problem, result["coverage"]))
    most = max((of["leads"] for pairs in by_family.values() for _, of in pairs), key=len, default=[])
    lines, missed = [], []
    for kind in ("conformal", "gaussian"):
        low = []
        for family, pairs in by_family.items():
            cells = []
            for lead in most:
                known = [
                    of[f"{kind}, 0.8"][of["leads"].index(lead)] for _, of in pairs if lead in of["leads"]
                ]
                cells.append(f"{statistics.mean(known):.2f}" if known else "")
            lines.append(f"| {family}, {kind} | {len(pairs)} | {' | '.join(cells)} |")
            for problem, of in pairs:
                number = max(1, of["windows"] // OVERLAP)
                sides = [_outside(hit, number, 0.8) for hit in of[f"{kind}, 0.8"]]
                if min(sides) < 0:
                    low.append(problem)
        missed.append(MISSED.format(kind=kind, low="; ".join(low) or "none"))
    text = COVERED.format(
        systems=len(found),
        windows=sum(of["windows"] for of in found),
        band=BAND,
        leads=" | ".join(f"{lead} step{'s' if lead > 1 else ''}" for lead in leads),
        dashes="---:|" * len(leads),
        rows="\n".join(rows),
        problems=len(families),
        overlap=OVERLAP,
        family_leads=" | ".join(f"lead {lead}" for lead in most),
        family_dashes="---:|" * len(most),
        families="\n".join(lines),
    )
    return text + "".join(missed)


def _outside(share: float, windows: int, coverage: float) -> int:
    """Return −1 or 1 where the share is below or above the binomial band, 0 inside."""
    low, high = scipy.stats.binom.interval(BAND, windows, coverage)
    return -1 if share * windows < low else 1 if share * windows > high else 0
