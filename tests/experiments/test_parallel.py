"""Two processes of torchrun train as one does with the same batches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from experiments import cli

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


def torchrun(*options: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "-m", "experiments", *options],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


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
    torchrun(*arguments(two, row, "--dtype", dtype))
    assert_same(read_curve(two), read_curve(one))
