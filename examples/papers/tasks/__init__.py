"""The papers' tasks, each by its name."""

from __future__ import annotations

from typing import Any

from examples.papers.tasks.adding import Adding
from examples.papers.tasks.copying import Copying
from examples.papers.tasks.digits import Digits
from examples.papers.tasks.mnist import PixelMNIST
from examples.papers.tasks.ptb import PTBCharacters
from examples.papers.tasks.speech import Speech
from examples.papers.tasks.task import Batch, Task

TASKS: dict[str, type[Task]] = {
    "adding": Adding,
    "copying": Copying,
    "digits": Digits,
    "mnist": PixelMNIST,
    "ptb": PTBCharacters,
    "speech": Speech,
}

__all__ = ["TASKS", "Batch", "Task", "build"]


def build(settings: dict[str, Any], seed: int) -> Task:
    """Return a task.

    Args:
        settings: ``name`` and arguments.
        seed: Seed of generated data, and of the order of all.

    Raises:
        ValueError: If there is no such task, or it has no such argument.
    """
    arguments = dict(settings)
    name = arguments.pop("name", None)
    if name not in TASKS:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {name!r}")
    try:
        return TASKS[name](**arguments, seed=seed)
    except TypeError as error:
        raise ValueError(f"task {name}: {error}") from error
