"""What a measure gives to the runner: the name of a result, and how it is measured."""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from examples.papers import origin

Result = dict[str, Any]


class NotHereError(RuntimeError):
    """What a task needs is not here."""


class Task(NamedTuple):
    """A result that can be measured.

    Attributes:
        name: Of the result, in the file of its subject.
        run: Measures it. What stands under "environment" is recorded beside the facts that are always.
        threads: Of torch; None for torch's own choice.
        packages: Others that it is measured beside. Their versions are recorded, and without them it is not
            measured.
    """

    name: str
    run: Callable[[], Result]
    threads: int | None = None
    packages: tuple[str, ...] = ()


def measured(task: Task, quick: bool = False) -> Result:
    """Return the numbers of a task, with their origin and the seconds that they took.

    Args:
        task: The task.
        quick: Whether to do without other packages.

    Raises:
        NotHereError: If a package that it needs is not installed.
    """
    versions = {}
    for package in task.packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            if not quick:
                raise NotHereError(f"expected the package {package}, got none. Install it") from error
    with _threads(task.threads):
        began = time.perf_counter()
        found = task.run()
        took = round(time.perf_counter() - began, 2)
        environment = origin.environment(**versions) | found.pop("environment", {})
    return {"environment": environment | {"took": took}, **found}


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count or before)
        yield
    finally:
        torch.set_num_threads(before)
