"""Running a row: progress, metrics, checkpoints, signals, and the result."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import spectral_param as sp
from examples.papers import checkpoint, measures, networks, origin, record
from examples.papers.config import Row
from examples.papers.parallel import Processes, processes
from examples.papers.tasks import dynamics
from examples.papers.trainer import DivergedError, Trainer

RUNS = Path(__file__).parent / "runs"
LOG_EVERY = 20
QUIET = 60.0  # Seconds between two lines of the bar where nobody sees it move: in a pipe, in a log.


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run, as opposed to what.

    Attributes:
        seed: Seed of initial weights, generated data and order.
        resume: Whether to go on from the checkpoint, if there is one.
        device: ``"cpu"`` or ``"cuda"``.
        dtype: Real dtype.
        results: Folder of the result.
        work: Folder of checkpoint and metrics.
        save_seconds: Seconds from one checkpoint to the next.
    """

    seed: int = 0
    resume: bool = False
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    results: Path = record.RESULTS
    work: Path = RUNS
    save_seconds: float = 180.0

    def folder(self, row: Row) -> Path:
        """Return the folder of a row's checkpoint and metrics.

        Args:
            row: The row.
        """
        return self.work / f"{row.name}-seed{self.seed}"


@dataclasses.dataclass(frozen=True)
class Course:
    """How a run went.

    Attributes:
        sessions: The environment of each start, with the step that it began from.
        diverged: Where and how, empty if it did not.
    """

    sessions: list[dict[str, Any]]
    diverged: str = ""


def run(row: Row, options: Options) -> dict[str, Any] | None:
    """Run a row to its end and write the result.

    Args:
        row: What to run.
        options: How.

    Returns:
        The result; None in all processes of torchrun but the first.
    """
    with flushed_denormals(), processes(options.device) as together, checkpoint.stop_signal() as stop:
        if row.task.get("name") == "dynamics":
            result = _fit(row, together, options) if together.is_first else None
        else:
            trainer = Trainer(row, options.seed, together, options.dtype)
            course = complete(trainer, row, options, stop)
            result = _summed_up(trainer, course, row, options) if together.is_first else None
        if together.is_first:
            assert result is not None
            record.write(record.path(options.results, row.name, options.seed), result)
        together.wait()
        return result


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take denormal numbers for zero.

    A gradient that vanishes over hundreds of steps becomes denormal, as an LSTM's on pixel-by-pixel MNIST
    does, and CPUs can be much slower with such numbers.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def complete(
    trainer: Trainer, row: Row, options: Options, stop: Callable[[], int | None], title: str = ""
) -> Course:
    """Train to the last step, from the checkpoint if that is asked for; log and save on the way.

    Args:
        trainer: Before its first step.
        row: What it trains.
        options: How to run.
        stop: Asked after each step: the number of the signal to stop for, or None.
        title: What the progress bar and an interruption call the run; row and seed by default.

    Returns:
        How it went.
    """
    title = title or f"{row.name}, seed {options.seed}"
    together, folder = trainer.processes, options.folder(row)
    settings = {
        "row": json.dumps(row.settings, sort_keys=True),
        "seed": options.seed,
        "dtype": str(options.dtype),
        "device": together.device.type,
        "processes": together.size,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
    sessions: list[dict[str, Any]] = []

    def restore(state: dict[str, Any]) -> None:
        trainer.load(state["trainer"])
        sessions.extend(state["sessions"])

    def save() -> None:
        state = trainer.state()  # All processes take part in it.
        if together.is_first:
            checkpoint.save(folder, settings, {"trainer": state, "sessions": sessions})

    with checkpoint.lock(folder) if together.is_first else contextlib.nullcontext():
        if options.resume and (folder / checkpoint.CHECKPOINT).exists():
            checkpoint.load(folder, settings, restore)
        if not sessions or trainer.step < trainer.steps:
            environment = _environment(together, options)
            sessions.append({"from step": trainer.step, **environment})
        with Metrics(folder, trainer, title, together.is_first) as metrics:
            try:
                _loop(trainer, metrics, save, options.save_seconds, stop, title)
            except DivergedError as divergence:
                return Course(sessions, f"diverged at {divergence}")
    return Course(sessions)


def _loop(
    trainer: Trainer,
    metrics: Metrics,
    save: Callable[[], None],
    save_seconds: float,
    stop: Callable[[], int | None],
    title: str,
) -> None:
    """Train to the last step; save every so often, when asked to stop, and at the end."""
    saved = time.monotonic()
    while trainer.step < trainer.steps:
        trainer.train_step()
        metrics.log()
        due = time.monotonic() - saved >= save_seconds or trainer.step == trainer.steps
        number, save_now = trainer.processes.largest([stop() or 0, int(due)])
        if number or save_now:
            if not trainer.is_finite():
                raise DivergedError(f"step {trainer.step}: weights that are not finite")
            save()
            saved = time.monotonic()
        if number:
            where = f"{title}, step {trainer.step:,} of {trainer.steps:,}"
            raise checkpoint.InterruptedRunError(where, number)


def _result(row: Row, options: Options, status: str, environment: dict[str, Any]) -> dict[str, Any]:
    return {
        "row": row.name,
        "label": row.label,
        "seed": options.seed,
        "status": status,
        "config": row.settings,
        "changed": row.changed,
        "command": f"{row.command} --seed {options.seed}",
        "environment": environment,
    }


def _environment(together: Processes, options: Options) -> dict[str, Any]:
    device = together.device
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    dtype = str(options.dtype).removeprefix("torch.")
    return origin.environment(**gpu, device=device.type, dtype=dtype, processes=together.size)


def _fit(row: Row, together: Processes, options: Options) -> dict[str, Any]:
    began = time.perf_counter()
    environment = _environment(together, options)
    summary = dynamics.fit(row.task.get("tiny", False))
    return {
        **_result(row, options, "finished", environment),
        "metric": "residual",
        "wall_seconds": time.perf_counter() - began,
        "summary": summary,
        "curve": [],
    }


def _summed_up(trainer: Trainer, course: Course, row: Row, options: Options) -> dict[str, Any]:
    """Return the result of a run that was trained to its end, or diverged."""
    task, per_step = trainer.task, trainer.seconds_per_step
    # The numbers are those of the last session, also where nothing was left to train.
    environment = {name: value for name, value in course.sessions[-1].items() if name != "from step"}
    summary = {
        **measures.summary(trainer.curve, task.metric, task.from_mean(task.baseline)),
        **({} if course.diverged else trainer.final_scores()),
        "minutes per epoch": per_step * task.steps_per_epoch / 60,
    }
    result = _result(row, options, "diverged" if course.diverged else "finished", environment)
    if course.diverged:
        result |= {"diverged": course.diverged, "spectral radii": networks.spectral_radii(trainer.model)}
    return {
        **result,
        "metric": task.metric,
        "baseline": task.from_mean(task.baseline),
        "parameters": sp.num_free_parameters(trainer.model),
        "steps": trainer.step,
        "epochs": trainer.epoch,
        "wall_seconds": trainer.seconds,
        "seconds_per_step": per_step,
        "sessions": course.sessions,
        "summary": summary,
        "curve": trainer.curve,
    }


class Metrics(contextlib.AbstractContextManager["Metrics"]):
    """The progress bar, ``metrics.jsonl``, and TensorBoard's file where that is installed.

    Args:
        folder: Folder of the files.
        trainer: What is trained.
        title: For the bar.
        active: Whether to do anything.
    """

    def __init__(self, folder: Path, trainer: Trainer, title: str, active: bool) -> None:
        self._trainer, self._file, self._board = trainer, None, None
        self._bar = tqdm(
            total=trainer.steps,
            initial=trainer.step,
            desc=title,
            unit="step",
            disable=not active,
            mininterval=0.1 if sys.stderr.isatty() else QUIET,
        )
        self._logged = len(trainer.curve)
        if not active:
            return
        path = folder / "metrics.jsonl"
        # After a crash there may be lines beyond the checkpoint; they will be written again.
        lines = path.read_text(encoding="utf-8").splitlines() if trainer.step and path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= trainer.step]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8", buffering=1)
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder), purge_step=trainer.step)

    def log(self) -> None:
        """Say how far the trainer is."""
        trainer = self._trainer
        self._bar.update()
        measured = trainer.curve[-1] if len(trainer.curve) > self._logged else None
        self._logged = len(trainer.curve)
        if self._file is None or not (measured or trainer.step % LOG_EVERY == 0):
            return
        entry = {"step": trainer.step, **trainer.last, **(measured or {})}
        self._file.write(json.dumps(entry) + "\n")
        if self._board is not None:
            for name, value in entry.items():
                if name != "step" and math.isfinite(value):
                    self._board.add_scalar(name, value, trainer.step)
        shown = trainer.curve[-1] if trainer.curve else trainer.last
        names = [name for name in ("loss", "validation", "test") if name in shown]
        self._bar.set_postfix_str(", ".join(f"{name} {shown[name]:.5g}" for name in names), refresh=False)

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._bar.close()
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
