"""The table at the end, and ``results.json``."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spectral_param as sp
from examples.demo.settings import TASKS
from examples.papers.config import Row
from examples.papers.trainer import Trainer

HEADER = ("task", "network", "test score", "baseline", "parameters", "seconds", "spectral radius")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network at the end of its training.

    Attributes:
        row: What was trained.
        trainer: The network and its curve.
        test: Score on the test data.
        before: Eigenvalues of each recurrent block before training, by its name.
        after: The same after training.
    """

    row: Row
    trainer: Trainer
    test: float
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def record(trained: Trained) -> dict[str, Any]:
    """Return the numbers of a network.

    Args:
        trained: The network at the end of its training.
    """
    task = TASKS[trained.row.section]
    return {
        "task": task.title,
        "network": trained.row.label,
        "metric": task.metric,
        "test": trained.test,
        "baseline": task.baseline,
        "free_parameters": sp.num_free_parameters(trained.trainer.model),
        "seconds": round(trained.trainer.seconds, 1),
        "spectral_radius": {name: values.abs().max().item() for name, values in trained.after.items()},
        "curve": [(point["step"], point["validation"]) for point in trained.trainer.curve],
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


def write_json(path: Path, finished: list[Trained], seed: int, records: dict[str, dict[str, Any]]) -> None:
    """Write settings and numbers of all runs.

    Args:
        path: The file.
        finished: The networks.
        seed: Seed of the run.
        records: The numbers of each by the name of its row.
    """
    contents = {
        "settings": {
            "seed": seed,
            "threads": torch.get_num_threads(),
            "rows": {trained.row.name: trained.row.settings for trained in finished},
        },
        "versions": {
            "spectral_param": sp.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "runs": records,
    }
    path.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
