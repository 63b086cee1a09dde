"""Measure what is asked for, and write each result with its origin.

Measured is what has no number yet, or a stale one: an interrupted run goes on where it was. A number is stale
if a path that it depends on has changed since its commit, or if that commit is unknown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import sample, written
from benchmarks.measures import measure, subjects
from benchmarks.results import RESULTS, is_stale, list_stale, read, write
from benchmarks.task import NotHereError, Task, measured
from examples.papers import origin
from examples.papers.data import DataError

#: Where numbers of tiny sizes go.
QUICK = origin.ROOT / "build" / "quick"


def run(subject: str, options: argparse.Namespace) -> list[str]:
    """Measure what is wanted of a subject, and write it.

    Args:
        subject: Its name.
        options: Those of the command line.

    Returns:
        What could not be measured, and why.
    """
    failed = []
    tasks = list(measure(subject).tasks(options.quick))
    if not tasks:
        print(f"{subject}: nothing that can be measured on this machine")
    for task in tasks:
        if not _is_wanted(subject, task, options):
            continue
        try:
            found = measured(task, options.quick)
        except (AssertionError, DataError, NotHereError) as error:
            failed.append(f"{subject}: {task.name}: {error}")
            print(failed[-1], flush=True)
            continue
        write(options.output, subject, task.name, found)
        took = found.pop("environment")["took"]
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in sample.numbers(found))
        print(f"{subject}: {task.name}, {took:.1f} s: {numbers[:400]}", flush=True)
    return failed


def _is_wanted(subject: str, task: Task, options: argparse.Namespace) -> bool:
    if not all(part in task.name for part in options.only):
        return False
    known = read(options.output, subject).get(task.name)
    return known is None or options.again or (not options.new and is_stale(subject, known))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, or exit with a message and code 2.

    Args:
        arguments: What stands after ``python -m benchmarks``; what the process was given by default.
    """
    known = subjects()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="subject", help=f"some of {', '.join(known)} (all)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="results with this in their name"
    )
    parser.add_argument("--new", action="store_true", help="what has no number yet, nothing that is stale")
    parser.add_argument("--again", action="store_true", help="also what has a number that is not stale")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the machinery")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the numbers go")
    parser.add_argument("--stale", action="store_true", help="list the stale numbers, and measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables of pages, measure nothing")
    parser.add_argument(
        "--sample",
        type=int,
        nargs="?",
        const=20,
        metavar="N",
        help="measure one in N results (%(const)s) again, write nothing, and compare all but times",
    )
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.subjects) - set(known)):
        parser.error(f"subject: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    options.subjects = options.subjects or known
    options.output = options.output or (QUICK if options.quick else RESULTS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: As for :func:`parse`.

    Returns:
        The exit code: 1 if something could not be measured, or if a sample differs.

    Raises:
        SystemExit: If numbers of changed code would be written among the committed ones.
    """
    options = parse(arguments)
    if options.stale:
        print(f"{list_stale(options.subjects, options.output)} numbers are stale")
        return 0
    if options.write:
        written.write()
        return 0
    if options.sample:
        return sample.compared(options.subjects, options.sample)
    try:
        origin.require_commit(options.output, RESULTS, "--output")
    except ValueError as error:
        raise SystemExit(f"{error}.") from error
    for subject in options.subjects:
        measure(subject)  # It may register a device. Autograd counts devices at its first backward pass.
    failed = [line for subject in options.subjects for line in run(subject, options)]
    if options.output == RESULTS:
        written.write()
    if failed:
        print("Not measured:", *failed, sep="\n", file=sys.stderr)
    return 1 if failed else 0
