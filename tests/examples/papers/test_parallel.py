"""Two processes of torchrun train as one does with the same batches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from examples.papers import cli

from .helpers import CHARACTERS, ROOT, arguments, read_curve, write_row

# Utterances of different lengths, so that each process has another number of frames, and a complex network.
SPEECH = """
label = "speech"
section = "speech"

[task]
name = "speech"
corpus = "an4"
batch_size = 3
tiny = true

[network]
name = "ScuRNN"
hidden_size = 8

[[optimizer]]
name = "Adam"
lr = 1e-3

[training]
steps = 6
evaluate_every = 2
clip_norm = 1.0
"""


# One of the processes is asked to stop after step 8; both have to.
STOPPED = """
import os, signal, sys
from examples.papers import cli
from examples.papers.trainer import Trainer
step = Trainer.train_step
def stopped(self):
    step(self)
    if self.step == 8 and self.processes.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
Trainer.train_step = stopped
sys.exit(cli.main())
"""


def torchrun(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*start, *command],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def assert_same(found, expected) -> None:
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5, rel=1e-5)


# The characters' rates are so high that training amplifies float32's rounding errors beyond 1e-5.
@pytest.mark.parametrize(
    ("text", "dtype"), [(CHARACTERS, "float64"), (SPEECH, "float32")], ids=["characters", "speech"]
)
def test_two_processes_give_the_curve_of_one(text, dtype, tmp_path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    row = write_row(tmp_path, text)
    assert cli.main(arguments(one, row, "--dtype", dtype)) == 0
    done = torchrun("-m", "examples.papers", *arguments(two, row, "--dtype", dtype))
    assert done.returncode == 0, done.stderr
    assert_same(read_curve(two), read_curve(one))


def test_two_processes_stop_together_and_go_on(tmp_path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    row = write_row(tmp_path, CHARACTERS)
    assert cli.main(arguments(one, row, "--dtype", "float64")) == 0
    (tmp_path / "stopped.py").write_text(STOPPED)
    options = arguments(two, row, "--dtype", "float64")
    stopped = torchrun(str(tmp_path / "stopped.py"), *options)
    assert stopped.stdout.count("Stopped at step 8 of 16.") == 1, stopped.stderr
    done = torchrun("-m", "examples.papers", *options, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(read_curve(two), read_curve(one))
