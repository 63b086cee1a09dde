"""Times of a training step on a GPU, beside the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.measures.device import DEPENDS, VARIES
from benchmarks.problems.device import Case, cases, compare, seconds
from benchmarks.table import Result
from benchmarks.task import Task

__all__ = ["DEPENDS", "VARIES", "tasks", "timed"]

REPEATS = 50


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each case, none without a GPU.

    Args:
        quick: Whether to take one alone.
    """
    if not torch.cuda.is_available():
        return
    for case in [case for case in cases() if not quick or case.name.startswith("ScaledCayley")]:
        yield Task(case.name, partial(timed, case, "cuda", 2 if quick else REPEATS))


def timed(case: Case, device: str, repeats: int) -> Result:
    """Return the seconds of a step there and here, and how far its numbers are from the host's.

    Args:
        case: What is trained.
        device: Where.
        repeats: How many steps are timed.
    """
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return {
        "environment": {"device": name},
        "difference": compare(case, device),
        "contenders": {"device": seconds(case, device, repeats), "host": seconds(case, "cpu", repeats)},
    }
