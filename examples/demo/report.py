"""The table at the end, and ``results.json``."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import spectral_param as sp
from examples.demo.networks import spectral_radii
from examples.demo.settings import Job
from examples.demo.tasks import Task
from examples.demo.train import Trained

HEADER = ("task", "network", "test score", "baseline", "parameters", "seconds", "spectral radius")


def record(job: Job, task: Task, trained: Trained) -> dict[str, Any]:
    """Return the numbers of one finished run.

    Args:
        job: What was trained.
        task: Its task.
        trained: The result.
    """
    return {
        "task": task.title,
        "network": job.network,
        "metric": task.metric,
        "test": trained.test,
        "baseline": task.baseline,
        "free_parameters": sp.num_free_parameters(trained.model),
        "seconds": round(trained.seconds, 1),
        "spectral_radius": spectral_radii(trained.model),
        "curve": trained.curve,
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return the table as text, a line for each run.

    Args:
        records: What :func:`record` returned for each.
    """
    rows = [HEADER, *(_row(entry) for entry in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    radii = ", ".join(f"{name} {radius:.3f}" for name, radius in entry["spectral_radius"].items())
    return (
        entry["task"],
        entry["network"],
        score_text(entry["test"], entry["metric"]),
        score_text(entry["baseline"], entry["metric"]),
        f"{entry['free_parameters']:,}",
        f"{entry['seconds']:.0f}",
        radii,
    )


def score_text(value: float, metric: str) -> str:
    """Return a score as people write it.

    Args:
        value: The score.
        metric: ``"MSE"`` or ``"accuracy"``.
    """
    return f"accuracy {value:.1%}" if metric == "accuracy" else f"MSE {value:.5f}"


def write_json(path: Path, settings: dict[str, Any], records: dict[str, dict[str, Any]]) -> None:
    """Write settings and numbers of all runs.

    Args:
        path: The file.
        settings: See :func:`examples.demo.settings.fingerprint`.
        records: The numbers of each run by its key.
    """
    contents = {
        "settings": settings,
        "versions": {
            "spectral_param": sp.__version__,
            "torch": settings["torch"],
            "python": platform.python_version(),
        },
        "runs": records,
    }
    path.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
