"""The whole demo: train what is missing, print the table, draw the figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

import spectral_param as sp
from examples.demo import checkpoint, figures, report
from examples.demo.networks import build_network, eigenvalues
from examples.demo.settings import Job, fingerprint
from examples.demo.tasks import Task, build_task
from examples.demo.train import Trained, start, train

SAVE_EVERY_SECONDS = 10.0

Run = tuple[Job, Task, Trained]


def run_demo(
    chosen: list[Job],
    output: Path,
    seed: int,
    threads: int,
    resume: bool,
    stop: Callable[[], int | None],
) -> list[Run]:
    """Train all networks that are not finished yet.

    Args:
        chosen: What to train; see :func:`examples.demo.settings.jobs`.
        output: Folder of the checkpoint.
        seed: Seed of data and initial weights.
        threads: Number of threads that PyTorch was set to.
        resume: Whether to go on from the checkpoint in ``output``.
        stop: Asked after each step: the number of the signal to stop for, or None.

    Returns:
        All runs, trained to the end.
    """
    settings = fingerprint(chosen, seed, threads)
    results = checkpoint.load(output, settings) if resume else {}
    runs = []
    for number, job in enumerate(chosen, start=1):
        task = build_task(job.task, job.length, job.batch_size, seed)
        trained = start(job, task, seed)
        if job.key in results:
            trained.load(results[job.key])

        def save(key: str = job.key, trained: Trained = trained) -> None:
            results[key] = trained.state()
            checkpoint.save(output, settings, results)

        title = f"[{number}/{len(chosen)}] {task.title}, {job.network}"
        if trained.step < job.steps:
            _train_with_bar((job, task, trained), title, save, stop)
        runs.append((job, task, trained))
    return runs


def _train_with_bar(run: Run, title: str, save: Callable[[], None], stop: Callable[[], int | None]) -> None:
    """Train one network to the end, or save and raise when asked to stop."""
    job, task, trained = run
    saved = time.monotonic()
    with tqdm(total=job.steps, initial=trained.step, desc=title, unit="step") as bar:
        for _ in train(trained, job, task):
            bar.update()
            if trained.curve:
                score = report.score_text(trained.curve[-1][1], task.metric)
                bar.set_postfix_str(score, refresh=False)
            number = stop()
            done = trained.step == job.steps
            if number is not None or done or time.monotonic() - saved > SAVE_EVERY_SECONDS:
                save()
                saved = time.monotonic()
            if number is not None:
                where = f"{task.title}, {job.network}, step {trained.step:,} of {job.steps:,}"
                raise checkpoint.InterruptedRunError(where, number)


def write_results(runs: list[Run], output: Path, seed: int, threads: int) -> str:
    """Write ``results.json`` and the figures.

    Args:
        runs: What :func:`run_demo` returned. The last is the network whose gradients are drawn.
        output: Folder to write to.
        seed: Seed of the run.
        threads: Number of threads.

    Returns:
        The table.
    """
    records = {job.key: report.record(job, task, trained) for job, task, trained in runs}
    settings = fingerprint([job for job, _, _ in runs], seed, threads)
    report.write_json(output / "results.json", settings, records)
    *compared, small = runs
    names = list(dict.fromkeys(job.task for job, _, _ in compared))
    figures.learning_curves(
        output / "learning_curves.png",
        [[records[job.key] for job, _, _ in compared if job.task == name] for name in names],
    )
    _draw_eigenvalues(compared, seed, output / "eigenvalues.png")
    _draw_gradients(small, output / "gradient_norms.png")
    return report.table([records[job.key] for job, _, _ in compared])


def _draw_eigenvalues(runs: list[Run], seed: int, path: Path) -> None:
    networks = []
    for job, task, trained in runs:
        if job.network == "ENRNN":
            untrained = build_network(job.network, job.sizes, task.input_size, task.output_size, seed)
            networks.append((task.title, eigenvalues(untrained), eigenvalues(trained.model)))
    figures.eigenvalue_plane(path, networks)


def _draw_gradients(run: Run, path: Path) -> None:
    _, task, trained = run
    recurrent = trained.model.recurrent
    assert isinstance(recurrent, sp.nn.BlockRNN)
    inputs, _ = task.test
    sequence = inputs[:, 0]
    long, short = sp.analysis.gradient_norms(recurrent, sequence)
    marked = sequence[:, 1].nonzero().flatten().tolist()
    figures.gradient_maps(path, long, short, marked)
