"""Result files: one JSON file for each run, with everything that its numbers depend on (:mod:`.origin`)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
REQUIRED = {"row", "seed", "status", "environment", "metric", "wall_seconds", "summary", "curve"}


class ResultError(ValueError):
    """A result file is not what a run writes."""


def path(folder: Path, row: str, seed: int) -> Path:
    """Return where the result of a run is.

    Args:
        folder: Folder of results.
        row: Name of the row.
        seed: Its seed.
    """
    return folder / f"{row}-seed{seed}.json"


def write(file: Path, content: Any) -> None:
    """Write JSON, whole or not at all. What is not finite becomes null.

    Args:
        file: The file.
        content: Plain types.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(json.dumps(_finite(content), indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_all(folder: Path = RESULTS) -> dict[str, list[dict[str, Any]]]:
    """Return all results by row, in the order of their seeds.

    Args:
        folder: Folder of results.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        result = _read(file)
        found.setdefault(result["row"], []).append(result)
    return {row: sorted(runs, key=lambda run: run["seed"]) for row, runs in found.items()}


def _read(file: Path) -> dict[str, Any]:
    """Return a result, or raise a ResultError that names the file."""
    remedy = "Take it back from git, or run its row anew"
    try:
        result: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultError(f"{file}: expected JSON ({error}). {remedy}") from error
    absent = sorted(REQUIRED - result.keys()) if isinstance(result, dict) else ["an object"]
    if absent:
        raise ResultError(f"{file}: expected a run's result, got none of: {', '.join(absent)}. {remedy}")
    return result
