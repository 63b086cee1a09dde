"""A sample of the results, measured once more and compared with what is recorded."""

from __future__ import annotations

import datetime
import re
import sys
import zlib
from collections.abc import Iterator
from typing import Any

from benchmarks.measures import measure
from benchmarks.results import RESULTS, read
from benchmarks.task import NotHereError, Result, Task, measured
from examples.papers.data import DataError

#: How far a number may be off, relatively.
TOLERANCE = 0.01
# The names of times, and of memory, which the allocator decides.
COSTS = r"seconds|bytes|^contenders|^environment"


def numbers(content: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a result, each with the names that lead to it.

    Args:
        content: The result.
        name: Names that led here.
    """
    if isinstance(content, dict):
        for key, value in content.items():
            yield from numbers(value, f"{name}: {key}" if name else str(key))
    elif isinstance(content, list | tuple):  # A file has lists alone.
        for i, value in enumerate(content):
            yield from numbers(value, f"{name} {i}")
    elif isinstance(content, int | float):
        yield name, content


def lasting(subject: str, task: str, result: Result) -> dict[str, float]:
    """Return the numbers of a result that another measurement should find again.

    Args:
        subject: Its subject.
        task: Its name.
        result: The result.
    """
    varies = getattr(measure(subject), "VARIES", None)
    return {
        name: value
        for name, value in numbers(result)
        if not re.search(COSTS, name) and not (varies and re.search(varies, f"{task}: {name}"))
    }


def chosen(subject: str, one_in: int, day: str) -> Iterator[tuple[Task, dict[str, float]]]:
    """Yield the tasks of a day's sample, with what is recorded of each.

    Args:
        subject: The subject.
        one_in: One of so many is taken.
        day: Decides which.
    """
    recorded = read(RESULTS, subject)
    for task in measure(subject).tasks(False):
        known = lasting(subject, task.name, recorded.get(task.name, {}))
        if known and zlib.crc32(f"{day} {subject} {task.name}".encode()) % one_in == 0:
            yield task, known


def compared(subjects: list[str], one_in: int, day: str | None = None) -> int:
    """Measure a sample once more, and print what differs.

    Args:
        subjects: Their names.
        one_in: One of so many results is taken.
        day: Decides which; today by default.

    Returns:
        The exit code: 1 if something differs.
    """
    day = day or datetime.date.today().isoformat()
    count = 0
    differing, absent = [], []
    for subject in subjects:
        for task, known in chosen(subject, one_in, day):
            try:
                found = lasting(subject, task.name, measured(task))
            except (DataError, NotHereError) as error:
                absent.append(f"{subject}: {task.name}: {error}")
                continue
            lines = list(differences(known, found))
            differing += [f"{subject}: {task.name}: {line}" for line in lines]
            count += len(known)
            print(f"{subject}: {task.name}: {len(known) - len(lines)} of {len(known)}", flush=True)
    print(f"\n{count - len(differing)} of {count} numbers are the same to {TOLERANCE:.0%}. Not the same:")
    print(*differing, sep="\n")
    if absent:
        print("Not measured:", *absent, sep="\n", file=sys.stderr)
    return 1 if differing else 0


def differences(known: dict[str, float], found: dict[str, float]) -> Iterator[str]:
    """Yield what is not the same.

    Args:
        known: Numbers by name.
        found: The same, measured once more.
    """
    for name, before in known.items():
        now = found.get(name)
        if now is None or not abs(now - before) <= TOLERANCE * max(abs(before), abs(now)):
            yield f"{name}: recorded {before:.6g}, now {'none' if now is None else f'{now:.6g}'}"
