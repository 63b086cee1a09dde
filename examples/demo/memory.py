"""Networks that remember: three with equally many parameters read images pixel by pixel."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spectral_param as sp
from examples.papers import checkpoint, runs
from examples.papers.config import Row
from examples.papers.networks import recurrent_blocks
from examples.papers.parallel import Processes
from examples.papers.trainer import DivergedError, Trainer

CHECKPOINTS = "checkpoints"
SAVE_EVERY_SECONDS = 10.0

# Of the recurrent weights, in the order of their blocks. An LSTM's gates lie below each other so.
BLOCKS = {"ENRNN": ("W(L)", "W(S)"), "ScoRNN": ("W",), "LSTM": ("i", "f", "g", "o")}


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network at the end of its training.

    Attributes:
        row: What was trained.
        seed: Seed of data and initial weights.
        trainer: The network and its curve.
        test: Accuracy on the test data.
        before: Eigenvalues of each recurrent block before training, by its name.
        after: The same after training.
    """

    row: Row
    seed: int
    trainer: Trainer
    test: float
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def train(
    rows: list[Row], output: Path, seeds: list[int], resume: bool, stop: Callable[[], int | None]
) -> list[Trained]:
    """Train all networks that are not finished yet.

    Args:
        rows: What to train; see :func:`examples.demo.settings.rows`.
        output: Folder of the checkpoints.
        seeds: Seeds of data and initial weights.
        resume: Whether to go on from the checkpoints in ``output``.
        stop: Asked after each step: the number of the signal to stop for, or None.

    Returns:
        All networks, trained to the end, seed by seed.

    Raises:
        CheckpointError: If there is no checkpoint to go on from.
        DivergedError: If a network diverges.
    """
    work = output / CHECKPOINTS
    planned = [
        (row, runs.Options(seed=seed, resume=resume, work=work, save_seconds=SAVE_EVERY_SECONDS))
        for seed in seeds
        for row in rows
    ]
    if resume and not any((o.folder(row) / checkpoint.CHECKPOINT).exists() for row, o in planned):
        raise checkpoint.CheckpointError(
            f"no checkpoint in {output} to go on from; run without --resume first"
        )
    finished = []
    with checkpoint.lock(output), runs.flushed_denormals():
        for number, (row, options) in enumerate(planned, start=1):
            trainer = Trainer(row, options.seed, Processes(0, 1, torch.device("cpu")), options.dtype)
            before = _spectra(trainer, row)
            title = f"[{number}/{len(planned)}] {row.label}, seed {options.seed}"
            course = runs.complete(trainer, row, options, stop, title)
            if course.diverged:
                raise DivergedError(f"{title}: {course.diverged}")
            test, after = trainer.evaluate("test"), _spectra(trainer, row)
            finished.append(Trained(row, options.seed, trainer, test, before, after))
    return finished


def _spectra(trainer: Trainer, row: Row) -> dict[str, Tensor]:
    blocks = recurrent_blocks(trainer.model).values()
    return {name: torch.linalg.eigvals(W) for name, W in zip(BLOCKS[row.label], blocks, strict=True)}


def record(trained: Trained) -> dict[str, Any]:
    """Return the numbers of a network.

    Args:
        trained: The network at the end of its training.
    """
    return {
        "network": trained.row.label,
        "seed": trained.seed,
        "test": trained.test,
        "free_parameters": sp.num_free_parameters(trained.trainer.model),
        "seconds": round(trained.trainer.seconds, 1),
        "spectral_radius": {name: values.abs().max().item() for name, values in trained.after.items()},
        "curve": [(point["step"], point["validation"]) for point in trained.trainer.curve],
    }
