"""The files of numbers: for each subject a JSON file of results by name, each with its origin."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from benchmarks.measures import measure
from benchmarks.task import Result
from examples.papers import origin

RESULTS = Path(__file__).resolve().parent / "results"


def read(folder: Path, subject: str) -> dict[str, Result]:
    """Return the results of a subject by name, none if it has no file.

    Args:
        folder: Of the files.
        subject: Name of the subject.
    """
    file = folder / f"{subject}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def write(folder: Path, subject: str, name: str, result: Result) -> None:
    """Write a result beside those that are in the file of its subject.

    Args:
        folder: Of the files.
        subject: Name of the subject.
        name: Of the result.
        result: The numbers, with their origin. Infinity becomes null, since JSON has none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{subject}.{os.getpid()}.tmp"  # Several may run at a time.
    temporary.write_text(text(read(folder, subject) | {name: _finite(result)}), encoding="utf-8")
    temporary.replace(folder / f"{subject}.json")


def text(results: dict[str, Result]) -> str:
    """Return what stands in a file: JSON, each origin on one line.

    Args:
        results: The results by name.
    """
    lines = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
    origins = r'"environment": \{(?:[^{}]|\{[^{}]*\})*\}'
    return re.sub(origins, lambda found: re.sub(r"\s*\n\s*", " ", found[0]), lines)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and abs(content) == float("inf") else content


def is_stale(subject: str, result: Result) -> bool:
    """Return whether a number has to be measured again, see :func:`examples.papers.origin.is_stale`.

    Args:
        subject: Its subject.
        result: The number, with its origin.
    """
    return origin.is_stale(result["environment"]["commit"], measure(subject).DEPENDS)


def list_stale(subjects: list[str], folder: Path = RESULTS) -> int:
    """Print the stale numbers of each subject.

    Args:
        subjects: Names of the subjects.
        folder: Of the files.

    Returns:
        How many there are.
    """
    count = 0
    for subject in subjects:
        found = read(folder, subject)
        old = [name for name, result in found.items() if is_stale(subject, result)]
        print(f"{subject}: {len(old)} of {len(found)}")
        for name in old:
            facts = found[name]["environment"]
            print(f"  {name}: {facts['date']}, {origin.fact('commit', facts['commit'])}")
        count += len(old)
    return count
