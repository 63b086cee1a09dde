"""Check, then time all cases, and write the numbers as JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import timeit
from pathlib import Path
from typing import Any

import geotorch
import torch

from benchmarks.case import Case, held_bytes
from benchmarks.cases import cases, groups
from benchmarks.table import RESULTS
from examples.papers import record

# Seconds of a turn, within which shorter calls are repeated.
TURN = 0.02


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Return seconds per unit and memory of each contender.

    All take their turns one after the other, again and again, so that drift is shared.

    Args:
        case: The case.
        repeats: How many turns each has.
    """
    calls: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in case.contenders}
    for name, run in case.contenders.items():
        run()  # A first call may prepare what the others use.
        calls[name] = max(1, round(TURN / timeit.timeit(run, number=1)))
    for _ in range(repeats):
        for name, run in case.contenders.items():
            seconds = timeit.timeit(run, number=calls[name]) / calls[name]
            times[name].append(seconds / case.units.get(name, 1))
    return {
        name: {
            "median": statistics.median(t),
            "least": min(t),
            "most": max(t),
            "bytes": held_bytes(case.contenders[name]),
            "registration": case.registration.get(name),
        }
        for name, t in times.items()
    }


def check_tree(output: Path) -> None:
    """Refuse to write numbers among the committed ones if no commit has the code that they would come from.

    Args:
        output: The file to write.

    Raises:
        SystemExit: If the code has changed since its commit, or has none.
    """
    commit = record.commit()
    if output.resolve().is_relative_to(RESULTS) and (commit == "unknown" or commit.endswith("-dirty")):
        raise SystemExit(
            f"{output}: expected numbers of committed code, got commit {commit}. "
            "Commit the changes first, or write elsewhere with --output"
        )


def present(output: Path) -> dict[str, Any]:
    """Return the results in a file, none if there is no such file.

    Args:
        output: The file.
    """
    return json.loads(output.read_text()) if output.is_file() else {}


def write(output: Path, name: str, result: dict[str, Any]) -> None:
    """Write a result beside those that are in the file.

    Args:
        output: The file.
        name: Of the result.
        result: The numbers.
    """
    temporary = output.with_suffix(f".{os.getpid()}.tmp")  # Several may run at a time.
    temporary.write_text(json.dumps(present(output) | {name: result}, indent=1) + "\n")
    temporary.replace(output)


def environment() -> dict[str, Any]:
    """Return what the numbers depend on."""
    return record.environment(geotorch=geotorch.__version__)


def main() -> None:
    """Run all cases and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed turns of each contender")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the machinery")
    parser.add_argument("--only", help="groups with this in their name; the others keep their numbers")
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu.json", help="where the numbers go")
    arguments = parser.parse_args()
    names = groups(arguments.quick)
    if not any((arguments.only or "") in name for name in names):
        parser.error(f"--only: expected a part of one of {list(names)}, got {arguments.only!r}")
    check_tree(arguments.output)
    # After some steps, gradients of torch's orthogonal(cayley) have subnormal entries, with which a processor
    # takes ten times as long: the time would depend on the number of steps.
    torch.set_flush_denormal(True)
    try:
        _run(arguments)
    finally:
        torch.set_flush_denormal(False)  # For what the process does next.


def _run(arguments: argparse.Namespace) -> None:
    """Run the cases that are wanted, and write each result."""
    earlier = present(arguments.output) if arguments.only else {}
    results: dict[str, Any] = {}
    for case in cases(arguments.quick, arguments.only or ""):
        found = measure(case, arguments.repeats)
        results[case.name] = {
            "environment": {**environment(), "dtype": case.dtype},
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
