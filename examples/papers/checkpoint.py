"""Checkpoints that are whole or absent, folders that one run has to itself, and signals between two steps."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch

if sys.platform == "win32":
    import msvcrt

    def _take(file: IO[str]) -> None:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: IO[str]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


CHECKPOINT, LOCK = "checkpoint.pt", "lock"

UNREADABLE = (OSError, RuntimeError, EOFError, pickle.UnpicklingError)
"""What ``torch.load`` raises for a file that is not one of its own."""
MISFITS = (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError)
"""What comes of a state that is not that of this network, optimizer or version."""


class CheckpointError(Exception):
    """A checkpoint belongs to another run, or cannot be read, or its folder is in use."""


class InterruptedRunError(Exception):
    """A signal asked to stop; everything so far is in the checkpoint.

    Args:
        where: Which network at which step.
        signal_number: The signal.
    """

    def __init__(self, where: str, signal_number: int) -> None:
        super().__init__(where)
        self.signal_number = signal_number


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep a folder to this run. The system frees it when the process ends, however that ends.

    Args:
        folder: The folder, which is made if it is missing.

    Yields:
        Nothing.

    Raises:
        CheckpointError: If another run has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a", encoding="utf-8") as file:
        try:
            _take(file)
        except OSError as error:
            raise CheckpointError(
                f"another run is writing to {folder}; wait for its end, stop it, or choose another folder"
            ) from error
        yield


def save(folder: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
    """Replace the checkpoint in one move, so that a crash leaves the one before.

    Args:
        folder: Where it is.
        settings: What decides about the result, in plain types.
        state: How far the run has come, in plain types and tensors.
    """
    temporary = folder / f"{CHECKPOINT}.new"
    with temporary.open("wb") as file:
        torch.save({"settings": settings, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / CHECKPOINT)


def load(folder: Path, settings: dict[str, Any], restore: Callable[[dict[str, Any]], None]) -> None:
    """Go on from what an earlier run of the same settings left.

    Args:
        folder: Where its checkpoint is.
        settings: The settings of this run.
        restore: Takes the state that was saved.

    Raises:
        CheckpointError: If the checkpoint is of other settings, damaged, or does not fit.
    """
    path = folder / CHECKPOINT
    try:
        saved = torch.load(path, weights_only=True)
    except UNREADABLE as error:
        raise CheckpointError(f"cannot read {path}; run without --resume to begin anew") from error
    found = saved.get("settings") if isinstance(saved, dict) else None
    if not isinstance(found, dict) or not isinstance(saved.get("state"), dict):
        raise CheckpointError(f"{path} is no checkpoint of a run; run without --resume to begin anew")
    if differing := [name for name in settings if found.get(name) != settings[name]]:
        described = ", ".join(
            "another row (its file has changed, or --quick)"
            if name == "row"
            else f"{name} {found.get(name)} instead of {settings[name]}"
            for name in differing
        )
        raise CheckpointError(
            f"the checkpoint in {folder} has different settings: {described}. "
            "Repeat its options, choose another folder, or run without --resume to begin anew"
        )
    try:
        restore(saved["state"])
    except MISFITS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"{path} has another structure than this version's ({type(error).__name__}: {reason:.200}); "
            "run without --resume to begin anew"
        ) from error


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
