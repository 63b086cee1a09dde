"""Check, then time all cases, and write the numbers as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import geotorch

from benchmarks.case import Case
from benchmarks.cases import cases
from benchmarks.table import RESULTS
from examples.papers import record


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Return seconds per unit of each contender: all in turn, again and again, so that drift is shared.

    Args:
        case: The case.
        repeats: How often each is timed, after one call that is not.
    """
    times: dict[str, list[float]] = {name: [] for name in case.contenders}
    for repeat in range(repeats + 1):
        for name, run in case.contenders.items():
            began = time.perf_counter()
            run()
            if repeat > 0:
                times[name].append((time.perf_counter() - began) / case.units.get(name, 1))
    return {
        name: {"median": statistics.median(t), "least": min(t), "most": max(t)} for name, t in times.items()
    }


def environment() -> dict[str, Any]:
    """Return what the numbers depend on."""
    return record.environment(geotorch=geotorch.__version__)


def main() -> None:
    """Run all cases and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each contender")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the machinery")
    parser.add_argument("--only", help="groups with this in their name; the others keep their numbers")
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu.json", help="where the numbers go")
    arguments = parser.parse_args()
    earlier: dict[str, Any] = {}
    if arguments.only and arguments.output.is_file():
        earlier = json.loads(arguments.output.read_text())
    results: dict[str, Any] = {}
    for case in cases(arguments.quick, arguments.only or ""):
        found = measure(case, arguments.repeats)
        results[case.name] = {
            "environment": environment(),
            "repeats": arguments.repeats,
            "contenders": found,
            "facts": case.facts,
            "curve": case.curve,
        }
        ours = next(iter(found.values()))["median"]
        print(case.name)
        for name, row in found.items():
            spread = f"{1e3 * row['least']:.3f} to {1e3 * row['most']:.3f}"
            print(f"  {name:40} {1e3 * row['median']:10.3f} ms  ({spread})  {row['median'] / ours:7.2f}")
        for name, value in case.facts.items():
            print(f"  {name}: {value:.2g}")
        temporary = arguments.output.with_suffix(".tmp")
        temporary.write_text(json.dumps(earlier | results, indent=1) + "\n")
        temporary.replace(arguments.output)


if __name__ == "__main__":
    main()
