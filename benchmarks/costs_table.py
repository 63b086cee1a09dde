"""Tables of times, memory and launches: ``cpu.json``, ``memory.json``, ``device.json``, ``norms.json``."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.table import Result, Table, load, shown


def cases(key: str) -> dict[str, Result]:
    """Return the results whose names begin so, by the rest of the name; points of a curve come last.

    Args:
        key: The beginning of the name of a case, or of the title of a curve.

    Raises:
        ValueError: If there are none.
    """
    results = sorted(load("cpu").items(), key=lambda item: item[1]["curve"][2] if item[1]["curve"] else 0)
    named = {shown(name, result): result for name, result in results}
    found = {name.removeprefix(key).lstrip(",: "): r for name, r in named.items() if name.startswith(key)}
    if not found:
        raise ValueError(f"key: expected the beginning of a name in cpu.json, got {key!r}")
    return found


def times(key: str) -> Table:
    """Return the milliseconds of each contender, and what was checked.

    Args:
        key: As for :func:`cases`.
    """
    rows = cases(key)
    names = dict.fromkeys(name for result in rows.values() for name in result["contenders"])
    # What was checked at each step of some, at every eighth of others, is one column.
    facts = dict.fromkeys(fact.split(",")[0] for result in rows.values() for fact in result["facts"])
    cells = []
    for label, result in rows.items():
        medians = {name: milliseconds(row["median"]) for name, row in result["contenders"].items()}
        checked = {fact.split(",")[0]: _fact(value) for fact, value in result["facts"].items()}
        cells.append(
            [label, *(medians.get(name, "") for name in names), *(checked.get(f, "") for f in facts)]
        )
    return ["", *names, *facts], cells


def registration(key: str) -> Table:
    """Return the milliseconds to put each constraint on, and the megabytes of a step.

    Args:
        key: As for :func:`cases`.
    """
    rows = cases(key)
    columns: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for result in rows.values() for name in result["contenders"]):
        for quantity, unit, scale in (("registration", "registration", 1e3), ("bytes", "megabytes", 1e-6)):
            found = [result["contenders"].get(name, {}).get(quantity) for result in rows.values()]
            if any(value is not None for value in found):
                columns[f"{name}: {unit}"] = ["" if x is None else f"{scale * x:.3g}" for x in found]
    return ["", *columns], [[label, *cells] for label, *cells in zip(rows, *columns.values(), strict=True)]


def ratios(*pairs: str) -> Table:
    """Return the time of this library over that of another, at the smallest and at the largest size.

    Args:
        *pairs: The beginning of the names of cases, a slash, and the other contender.
    """
    rows = []
    for pair in pairs:
        key, rival = pair.split(" / ")
        found: dict[int, list[float]] = {}
        for label, result in cases(key).items():
            (ours, row), *_ = result["contenders"].items()
            if rival in result["contenders"]:
                n = int(re.findall(r"n = (\d+)", label)[0])
                found.setdefault(n, []).append(row["median"] / result["contenders"][rival]["median"])
        ends = [text for n in sorted({min(found), max(found)}) for text in (str(n), _range(found[n]))]
        rows.append([key, ours, rival, *[*ends, "", ""][:4]])
    return ["", "this library", "alternative", "smallest n", "ratio", "largest n", "ratio"], rows


def memory() -> Table:
    """Return the peaks of the recurrences, in units of all states."""
    peaks = load("memory")["peaks"]
    ways = next(iter(peaks.values()))
    return ["", *peaks], [[way, *(f"{peak[way]:.2f}" for peak in peaks.values())] for way in ways]


def device() -> Table:
    """Return what a training step asks of a device."""
    steps = load("device")["steps"]
    rows = [[name, str(row["launches"]), str(row["waits"])] for name, row in steps.items()]
    return ["a training step", "launches", "waits"], rows


def norms() -> Table:
    """Return the milliseconds of steps with bounded norms, of each kind from the smallest to the largest."""
    results = load("norms")

    def order(name: str) -> tuple[Any, ...]:
        sizes = [int(number) for number in re.findall(r"\d+", name)]
        return "default threads" in name, not name.startswith("Conv"), name[:6], sizes, name

    rows = []
    for name in sorted(results.keys() - {"attack"}, key=order):
        ours, torchs, none = results[name]["contenders"].values()
        cells = [milliseconds(way["start"]) for way in (none, torchs, ours)]
        cells += [f"{ours[key] / torchs[key]:.2g}" for key in ("start", "later")]
        rows.append([name, *cells, *(milliseconds(ours[key]) for key in ("most", "registration"))])
    times = ["no bound", "torch", "this library"]
    return ["", *times, "over torch", "over torch, later", "longest", "registration"], rows


def exactness() -> Table:
    """Return by how much norms exceeded their bound, and stayed below it, in an attack."""
    found = load("norms")["attack"]
    row = [f"{found['reads']:,}", f"{found['above']:.1e}", f"{-found['below']:.1e}"]
    return ["kernels", "largest norm, above the bound", "largest norm, below the bound"], [row]


def milliseconds(seconds: float) -> str:
    """Return a time as text, to three digits at least.

    Args:
        seconds: The time.
    """
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _range(values: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.2g}" for value in (min(values), max(values))))


def _fact(value: float) -> str:
    return f"{value:.1e}" if abs(value) < 1e-2 else f"{value:.2f}"
