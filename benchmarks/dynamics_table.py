"""The page of stable fits beside their rivals, from ``benchmarks/results/dynamics.json``."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import Any

Result = dict[str, Any]
Row = dict[str, Any]

UNSTABLE = 1e-9  # beyond the bound
DISCRETE = (
    "least squares",
    "rescaling",
    "clipping",
    "constraint generation",
    "SOC",
    "fit_stable, steps=0",
    "fit_stable",
    "fit_stable, radius=0.999",
)
CONTINUOUS = (
    "least squares",
    "shifting",
    "clipping",
    "alpha_stable, trained",
    "fit_stable",
    "fit_stable, abscissa=-0.001",
)

HEAD = """# Stable fits compared

<!-- Written by `python -m benchmarks.table` from benchmarks/results/dynamics.json. Do not edit. -->

{{py:func}}`~spectral_param.dynamics.fit_stable` beside what else returns a stable $A$ from data. `python -m
benchmarks.dynamics` measures all of it anew.

- **Rescaling** divides the $A$ of least squares by its spectral radius; **shifting**, in continuous time,
  subtracts its abscissa. **Clipping** moves each eigenvalue to the nearest point of the region.
- **Constraint generation**: Siddiqi, Boots and Gordon (NeurIPS 2007). **SOC**, $A = S^{{-1}} O C S$:
  Mamakoukas, Xherija and Murphey (NeurIPS 2020). Both are written anew from the papers
  (`benchmarks/dynamics_rivals.py`), and neither may take more than {seconds:g} CPU seconds. An asterisk
  marks a result that this limit cut short; SOC's authors allow it half an hour.
- **alpha_stable, trained**: geotorch's constraint and L-BFGS, with the same limit.
- `steps=0` is the closed form alone.

Errors are those of one step on the data of the fit: excess over least squares,
$(\\text{{error}} / \\text{{error of least squares}} - 1) · 10^6$. "Unstable" stands where the spectral radius
stays above one.
"""

ARM = """## A robot arm, {title}

17 states and 7 inputs of the recordings of Mamakoukas et al., {rows}. Excess error in millionths:
"""

DRIVEN = """### Roll-outs

The last two of the eight recordings are held out. Error of {horizon} steps from a recorded state, with the
recorded inputs, over the size of what happened. The least error of one step is not the least error of
many.
"""

FREE = """Without inputs, from the same states: the largest $‖x_k‖ / ‖x_0‖$ in 1000 steps:
"""

GROWTH = """### Growth

The largest $‖A^k‖$, $k ≤ 1000$:
"""

TEXTURES = """## Synthetic dynamic textures

The leading principal coordinates of short videos of moving waves. Excess error in millionths:
"""

FORECASTS = """Error of the frames that follow the video, predicted from its last one, over their size:
"""

STORED = """### The rivals, checked

Excess error in millionths: the results that SOC's authors keep for both rivals, and ours.
"""

COSTS = """CPU seconds on one thread, and the most memory allocated at a time (rivals that search: in their
first second), in MiB:
"""

OSCILLATORS = """## Continuous time

Weakly damped oscillators, and a substance carried round a ring (advection and diffusion); random states and
their derivatives, both with noise. Excess error in millionths:
"""

RANDOM = """## Random problems

{problems:,} of each kind of time, $n$ from 1 to 12, with few and many samples, with and without inputs, well
and badly scaled: {broken} fits broke the bound and {lost} had a larger error than rescaling (shifting) or
clipping where these keep it. The slowest took {slowest:.2g} CPU seconds.
"""


def page(results: dict[str, Result]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks.dynamics`` wrote.
    """
    fitted = {name: result for name, result in results.items() if "fits" in result}
    parts = [HEAD.format(seconds=max(result["seconds_allowed"] for result in fitted.values()))]
    serial, shuffled = (_group(fitted, f"arm, {order}, ") for order in ("serial", "shuffled"))
    if serial:
        parts += _arm(serial, shuffled)
        parts += [STORED, _stored(results["the authors' results of the arm"], fitted)]
    if textures := _group(fitted, "texture, "):
        parts += [TEXTURES, _table("video", DISCRETE, textures, _excess)]
        parts += [FORECASTS, _table("video", DISCRETE, textures, _number("driven"))]
        parts += [_who_predicts(textures)]
        parts += [COSTS, _table("video", DISCRETE[2:-1], textures, _cost)]
    continuous = {name: result for name, result in fitted.items() if "shifting" in result["fits"]}
    if continuous:
        parts += [OSCILLATORS, _table("problem", CONTINUOUS, continuous, _excess)]
        roll_outs = _table("problem", CONTINUOUS, continuous, _number("driven"))
        parts += ["Error of roll-outs over 10 units of time from new states:\n", roll_outs]
        parts += [_who_predicts(continuous)]
        parts += [COSTS, _table("problem", CONTINUOUS[1:-1], continuous, _cost)]
    drawn = [result for name, result in results.items() if name.startswith("random problems")]
    if drawn:
        parts.append(
            RANDOM.format(
                problems=min(result["problems"] for result in drawn),
                broken=sum(result["bound_broken"] for result in drawn),
                lost=sum(result["lost"] for result in drawn),
                slowest=max(result["slowest_cpu_seconds"] for result in drawn),
            )
        )
    environments = {_origin(result): None for result in results.values() if "environment" in result}
    return "\n".join([*parts, "## Where it was measured\n", "\n\n".join(environments), ""])


def _group(results: dict[str, Result], prefix: str) -> dict[str, Result]:
    """Return those whose names start so, without that, in the order of the numbers in them."""
    found = [name.removeprefix(prefix) for name in results if name.startswith(prefix)]
    found.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    return {name: results[prefix + name] for name in found}


def _arm(serial: dict[str, Result], shuffled: dict[str, Result]) -> list[str]:
    parts = [ARM.format(title="successive rows", rows="the first N pairs")]
    parts += [_table("", DISCRETE[1:], serial, _excess)]
    parts += [
        DRIVEN.format(horizon=100),
        _table("", DISCRETE, serial, _number("driven")),
        _who_predicts(serial),
    ]
    parts += [FREE, _table("", DISCRETE, serial, _number("free"))]
    parts += [GROWTH, _table("", DISCRETE[1:], serial, _number("growth")), _smaller_radius(serial)]
    if shuffled:
        parts += [ARM.format(title="shuffled rows", rows="N pairs drawn at random")]
        parts += [_table("", DISCRETE[1:], shuffled, _excess)]
    every = [*serial.values(), *shuffled.values()]
    lines = [
        "### Costs\n",
        "CPU seconds over all of these problems, one thread:\n",
        "| | median | most |\n|---|---:|---:|",
    ]
    for name in DISCRETE[3:-1]:
        seconds = [result["fits"][name]["cpu_seconds"] for result in every]
        lines.append(f"| {name} | {statistics.median(seconds):.2g} | {max(seconds):.2g} |")
    return [*parts, "\n".join(lines), ""]


def _stored(authors: Result, fitted: dict[str, Result]) -> str:
    names = ("SOC", "constraint generation")
    heads = [f"{name}, {whose}" for name in names for whose in ("theirs", "ours")]
    lines = [f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}"]
    for order, stored in authors["excess"].items():
        for i, samples in enumerate(authors["samples"]):
            result = fitted[f"arm, {order}, N = {samples}"]
            cells = []
            for name in names:
                theirs = stored[name][i]
                cells.append("unstable" if theirs is None else _short(theirs))
                cells.append(_excess(result["fits"][name], result))
            lines.append(f"| {order}, N = {samples} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _who_predicts(problems: dict[str, Result], ours: str = "fit_stable") -> str:
    """Say in which problems each rival predicts better than the least error."""
    said = []
    for rival in next(iter(problems.values()))["fits"]:
        won = [
            name
            for name, result in problems.items()
            if result["fits"][rival]["driven"] < result["fits"][ours]["driven"]
        ]
        if not rival.startswith("fit_stable"):
            said.append(f"{rival} in {len(won)}")
    return f"Of {len(problems)} problems, better than `{ours}`: {', '.join(said)}.\n"


def _smaller_radius(serial: dict[str, Result]) -> str:
    """Say where a smaller radius does not lower the growth."""
    pairs = {
        name: [result["fits"][fit]["growth"] for fit in ("fit_stable", "fit_stable, radius=0.999")]
        for name, result in serial.items()
    }
    raised = {name: pair for name, pair in pairs.items() if pair[1] > pair[0]}
    if not raised:
        return "A radius of 0.999 lowers the growth in all of them.\n"
    said = "; ".join(f"{name}: {before:,.0f} to {after:,.0f}" for name, (before, after) in raised.items())
    return f"A smaller radius does not always lower the growth. Raised by `radius=0.999`: {said}.\n"


def _table(
    title: str, names: tuple[str, ...], results: dict[str, Result], cell: Callable[[Row, Result], str]
) -> str:
    lines = [f"| {title} | {' | '.join(names)} |\n|---|{'---:|' * len(names)}"]
    for name, result in results.items():
        cells = (cell(result["fits"][fit], result) for fit in names)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _excess(row: Row, result: Result) -> str:
    bound = 0.0 if "shifting" in result["fits"] else 1.0
    text = "unstable" if row["reached"] > bound + UNSTABLE else _short(1e6 * (row["ratio"] - 1))
    return text + ("" if row["finished"] else "*")


def _number(key: str) -> Callable[[Row, Result], str]:
    return lambda row, _: "" if row[key] is None else _short(row[key])


def _cost(row: Row, _: Result) -> str:
    return f"{row['cpu_seconds']:.2g} s, {row['bytes'] / 2**20:.2g}"


def _short(value: float) -> str:
    if abs(value) < 5e-3:
        return "0"
    return f"{value:.2g}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.1e}"


def _origin(result: Result) -> str:
    return ", ".join(
        f"{name} {value[:12] if name == 'commit' else value}" for name, value in result["environment"].items()
    )
