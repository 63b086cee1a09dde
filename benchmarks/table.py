"""``python -m benchmarks.table``: write the documentation's page of costs from the committed numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "costs.md"

HEAD = """# What it costs

<!-- Written by `python -m benchmarks.table` from benchmarks/results/cpu.json. Do not edit. -->

Medians of several calls of each contender, all in turn in one process; the spread is that of the calls.
Before anything is timed, results and gradients are compared with a reference. The numbers are those of
one machine on one day; the ratios hold more widely. `make bench` measures them anew.
"""

FIGURE = """```{{eval-rst}}
.. plot::

   from benchmarks import plot

   plot.growth({title!r})
```
"""

Result = dict[str, Any]


def curves(results: dict[str, Result]) -> dict[str, list[tuple[str, int, Result]]]:
    """Return the points of each growth curve: what grows, its value, the result.

    Args:
        results: What ``python -m benchmarks`` wrote.
    """
    found: dict[str, list[tuple[str, int, Result]]] = {}
    for result in results.values():
        if result["curve"]:
            title, label, x = result["curve"]
            found.setdefault(title, []).append((label, x, result))
    return {title: sorted(points, key=lambda point: point[1]) for title, points in found.items()}


def page(results: dict[str, Result]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks`` wrote.
    """
    parts = [HEAD]
    drawn: set[str] = set()
    for name, result in results.items():
        if not result["curve"]:
            parts.append(_section(name, result))
        elif (title := result["curve"][0]) not in drawn:
            drawn.add(title)
            parts.append(_curve(title, curves(results)[title]))
    return "\n".join(parts)


def _section(name: str, result: Result) -> str:
    rows = result["contenders"]
    ours = next(iter(rows.values()))["median"]
    lines = [f"## {_capitalised(name)}\n"]
    lines.append("| | milliseconds | spread | relative to ours |\n|---|---:|---:|---:|")
    for contender, row in rows.items():
        spread = f"{_milliseconds(row['least'])} to {_milliseconds(row['most'])}"
        lines.append(
            f"| {contender} | {_milliseconds(row['median'])} | {spread} | {row['median'] / ours:.3g} |"
        )
    lines += [""] + [f"{_capitalised(fact)}: {value:.2g}.\n" for fact, value in result["facts"].items()]
    return "\n".join([*lines, _origin(result)])


def _curve(title: str, points: list[tuple[str, int, Result]]) -> str:
    names: dict[str, None] = {}
    for _, _, result in points:
        names |= dict.fromkeys(result["contenders"])
    lines = [f"## {_capitalised(title)}\n", FIGURE.format(title=title), "Milliseconds:\n"]
    lines.append(f"| {points[0][0]} | {' | '.join(names)} |\n|---:|{'---:|' * len(names)}")
    for _, x, result in points:
        rows = result["contenders"]
        cells = (_milliseconds(rows[name]["median"]) if name in rows else "" for name in names)
        lines.append(f"| {x} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _origin(points[-1][2])])


def _origin(result: Result) -> str:
    environment = (
        f"{name} {value[:12] if name == 'commit' else value}" for name, value in result["environment"].items()
    )
    return f"{result['repeats']} repeats; {', '.join(environment)}.\n"


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads((RESULTS / "cpu.json").read_text())))


if __name__ == "__main__":
    main()
