"""``python -m benchmarks.table``: write the documentation's page of costs from the committed numbers."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.__main__ import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "costs.md"

HEAD = """# What it costs

<!-- Written by `python -m benchmarks.table` from benchmarks/results/cpu.json. Do not edit. -->

Medians of several calls of each contender, all in turn in one process; the spread is that of the calls.
Before anything is timed, results and gradients are compared with a reference. The numbers are those of
one machine on one day; the ratios, in the last column, hold more widely. `make bench` measures them anew.
"""


def page(results: dict[str, dict]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks`` wrote.
    """
    parts = [HEAD]
    for case, result in results.items():
        rows = result["contenders"]
        ours = next(iter(rows.values()))["median"]
        parts.append(f"## {case[0].upper()}{case[1:]}\n")
        parts.append("| | milliseconds | spread | relative to ours |\n|---|---:|---:|---:|")
        for name, row in rows.items():
            spread = f"{_milliseconds(row['least'])} to {_milliseconds(row['most'])}"
            relative = row["median"] / ours
            parts.append(f"| {name} | {_milliseconds(row['median'])} | {spread} | {relative:.3g} |")
        environment = (
            f"{name} {value[:12] if name == 'commit' else value}"
            for name, value in result["environment"].items()
        )
        parts.append(f"\n{result['repeats']} repeats; {', '.join(environment)}.\n")
    return "\n".join(parts)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads((RESULTS / "cpu.json").read_text())))


if __name__ == "__main__":
    main()
