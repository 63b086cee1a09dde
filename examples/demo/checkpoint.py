"""Checkpoints that are whole or absent, and signals that stop between two steps."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

CHECKPOINT = "checkpoint.pt"

Results = dict[str, dict[str, Any]]
"""The state of each run by its key; see :meth:`examples.demo.train.Trained.state`."""


class CheckpointError(Exception):
    """There is no checkpoint to go on from, or it belongs to another run."""


class InterruptedRunError(Exception):
    """A signal asked to stop; everything so far is in the checkpoint.

    Args:
        where: Which network at which step.
        signal_number: The signal.
    """

    def __init__(self, where: str, signal_number: int) -> None:
        super().__init__(where)
        self.signal_number = signal_number


def save(folder: Path, settings: dict[str, Any], results: Results) -> None:
    """Replace the checkpoint in one move, so that a crash leaves the one before.

    Args:
        folder: Where it is.
        settings: What decides about the result; see :func:`examples.demo.settings.fingerprint`.
        results: What there is so far.
    """
    temporary = folder / f"{CHECKPOINT}.new"
    with temporary.open("wb") as file:
        torch.save({"settings": settings, "results": results}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / CHECKPOINT)


def load(folder: Path, settings: dict[str, Any]) -> Results:
    """Return what an earlier run of the same settings left.

    Args:
        folder: Where its checkpoint is.
        settings: The settings of this run.

    Returns:
        The state of each network that was begun.

    Raises:
        CheckpointError: If there is no checkpoint, or one that is of other settings or damaged.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        raise CheckpointError(f"no checkpoint in {folder} to go on from; run without --resume first")
    try:
        saved = torch.load(path, weights_only=True)
        found, results = saved["settings"], saved["results"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot read {path}; run without --resume to begin anew") from error
    differing = [name for name in settings if found.get(name) != settings[name]]
    if differing:
        described = ", ".join(
            "other networks (--quick, or another version of the demo)"
            if isinstance(settings[name], list)
            else f"{name} {found.get(name)} instead of {settings[name]}"
            for name in differing
        )
        raise CheckpointError(
            f"the checkpoint in {folder} has different settings: {described}. "
            "Repeat its options, choose another folder, or run without --resume to begin anew"
        )
    checked: Results = results
    return checked


@contextlib.contextmanager
def stop_signal() -> Iterator[Callable[[], int | None]]:
    """Turn the first SIGINT or SIGTERM into a question that the training loop asks.

    A second one does what it always does.

    Yields:
        A function that returns the number of the signal, or None before there is one.
    """
    received: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def remember(number: int, _: FrameType | None) -> None:
        received.append(number)
        restore()

    for number in previous:
        signal.signal(number, remember)
    try:
        yield lambda: received[0] if received else None
    finally:
        restore()
