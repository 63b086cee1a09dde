"""The whole demo: train what is missing, print the table, draw the figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import spectral_param as sp
from examples.demo import figures, report
from examples.demo.report import Trained
from examples.demo.settings import TASKS
from examples.papers import checkpoint, runs
from examples.papers.config import Row
from examples.papers.networks import recurrent_blocks
from examples.papers.parallel import Processes
from examples.papers.trainer import DivergedError, Trainer

CHECKPOINTS = "checkpoints"
SAVE_EVERY_SECONDS = 10.0

# Of the recurrent weights, in the order of their blocks. An LSTM's gates lie below each other so.
BLOCKS = {"ENRNN": ("W(L)", "W(S)"), "ScoRNN": ("W",), "LSTM": ("i", "f", "g", "o")}


def run_demo(
    rows: list[Row], output: Path, seed: int, resume: bool, stop: Callable[[], int | None]
) -> list[Trained]:
    """Train all networks that are not finished yet.

    Args:
        rows: What to train; see :func:`examples.demo.settings.rows`.
        output: Folder of the checkpoints.
        seed: Seed of data and initial weights.
        resume: Whether to go on from the checkpoints in ``output``.
        stop: Asked after each step: the number of the signal to stop for, or None.

    Returns:
        All networks, trained to the end.

    Raises:
        CheckpointError: If there is no checkpoint to go on from.
        DivergedError: If a network diverges.
    """
    work = output / CHECKPOINTS
    options = runs.Options(seed=seed, resume=resume, work=work, save_seconds=SAVE_EVERY_SECONDS)
    if resume and not any((options.folder(row) / checkpoint.CHECKPOINT).exists() for row in rows):
        raise checkpoint.CheckpointError(
            f"no checkpoint in {output} to go on from; run without --resume first"
        )
    finished = []
    with checkpoint.lock(output), runs.flushed_denormals():
        for number, row in enumerate(rows, start=1):
            trainer = Trainer(row, seed, Processes(0, 1, torch.device("cpu")), options.dtype)
            before = _spectra(trainer, row)
            title = f"[{number}/{len(rows)}] {TASKS[row.section].title}, {row.label}"
            course = runs.complete(trainer, row, options, stop, title)
            if course.diverged:
                raise DivergedError(f"{title}: {course.diverged}")
            finished.append(Trained(row, trainer, trainer.evaluate("test"), before, _spectra(trainer, row)))
    return finished


def _spectra(trainer: Trainer, row: Row) -> dict[str, Tensor]:
    blocks = recurrent_blocks(trainer.model).values()
    return {name: torch.linalg.eigvals(W) for name, W in zip(BLOCKS[row.label], blocks, strict=True)}


def write_results(finished: list[Trained], output: Path, seed: int) -> str:
    """Write ``results.json`` and the figures.

    Args:
        finished: What :func:`run_demo` returned. The last is the network whose gradients are drawn.
        output: Folder to write to.
        seed: Seed of the run.

    Returns:
        The table.
    """
    records = {trained.row.name: report.record(trained) for trained in finished}
    report.write_json(output / "results.json", finished, seed, records)
    *compared, small = finished
    tasks = list(dict.fromkeys(trained.row.section for trained in compared))
    figures.learning_curves(
        output / "learning_curves.png",
        [
            [records[trained.row.name] for trained in compared if trained.row.section == task]
            for task in tasks
        ],
    )
    figures.eigenvalue_plane(
        output / "eigenvalues.png",
        [
            (TASKS[trained.row.section].title, trained.before, trained.after)
            for trained in compared
            if trained.row.label == "ENRNN"
        ],
    )
    _draw_gradients(small.trainer, output / "gradient_norms.png")
    return report.table([records[trained.row.name] for trained in compared])


def _draw_gradients(trainer: Trainer, path: Path) -> None:
    recurrent = trainer.model.recurrent
    assert isinstance(recurrent, sp.nn.BlockRNN)
    sequence = next(trainer.task.evaluation("test")).inputs[:, 0]
    long, short = sp.analysis.gradient_norms(recurrent, sequence)
    marked = sequence[:, 1].nonzero().flatten().tolist()
    figures.gradient_maps(path, long, short, marked)
