"""``python -m benchmarks.table``: write the documentation's page of costs from the committed numbers."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.__main__ import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "costs.md"

HEAD = """# What it costs

<!-- Written by `python -m benchmarks.table` from benchmarks/results. Do not edit. -->

Medians of several calls of each contender, all in turn in one process; the spread is that of the calls.
Before anything is timed, results and gradients are compared with a reference. The numbers are those of
one machine on one day; the ratios, in the last column, hold more widely. `make bench` measures them anew.
"""

MEMORY = """## Memory of the recurrences, forward and backward

Most that is allocated at a time beyond inputs and parameters, in units of all states: steps times batch
times n numbers. Gradients are counted, and the tensor like all states that a loss sends back where it
reads all of them.
"""


def page(results: dict[str, dict], memory: dict[str, dict]) -> str:
    """Return the page.

    Args:
        results: What ``python -m benchmarks`` wrote.
        memory: What ``python -m benchmarks.memory`` wrote.
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
        parts.append(f"\n{result['repeats']} repeats; {_environment(result)}.\n")
    parts.append(MEMORY)
    names = list(memory["peaks"])
    parts.append("| | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for way in memory["peaks"][names[0]]:
        parts.append(f"| {way} | " + " | ".join(f"{memory['peaks'][name][way]:.2f}" for name in names) + " |")
    parts.append(f"\n{_environment(memory)[0].upper()}{_environment(memory)[1:]}.\n")
    return "\n".join(parts)


def _environment(result: dict) -> str:
    return ", ".join(
        f"{name} {value[:12] if name == 'commit' else value}" for name, value in result["environment"].items()
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(*(json.loads((RESULTS / name).read_text()) for name in ("cpu.json", "memory.json"))))


if __name__ == "__main__":
    main()
