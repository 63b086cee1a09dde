"""Two processes as of torchrun train as one does with the same batches."""

from __future__ import annotations

import os
import signal

import pytest

from examples.papers import cli
from examples.papers.trainer import Trainer
from tests.launch import free_ports, ranked

from .helpers import CHARACTERS, arguments, read_curve, write_row

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


TEXTS = {"characters": CHARACTERS, "speech": SPEECH}


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """What two processes printed, and the curves of one process and of two."""
    folder = tmp_path_factory.mktemp("parallel")
    one, two = folder / "one", folder / "two"
    # The characters' rates are so high that training amplifies float32's rounding errors beyond 1e-5.
    dtypes = {"characters": "float64", "speech": "float32"}
    given = {}
    for name, text in TEXTS.items():
        row = write_row(folder, text, name)
        assert cli.main(arguments(one, row, "--dtype", dtypes[name])) == 0
        given[name] = arguments(two, row, "--dtype", dtypes[name])

    ports = dict(zip(("speech", "stopped", "resumed"), free_ports(3), strict=True))

    def main(run, *options):
        os.environ["MASTER_PORT"] = ports[run]
        return cli.main(options)

    def both(rank):
        """Train speech, and characters that stop after step 8 and go on: one is asked to, both have to."""
        assert main("speech", *given["speech"]) == 0
        step = Trainer.train_step

        def stopped(self):
            step(self)
            if self.step == 8 and self.processes.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)

        Trainer.train_step = stopped
        assert main("stopped", *given["characters"]) == 128 + signal.SIGTERM
        Trainer.train_step = step
        assert main("resumed", *given["characters"], "--resume") == 0

    printed = ranked(both, folder / "printed")
    return printed, {name: (read_curve(one, name), read_curve(two, name)) for name in TEXTS}


@pytest.mark.nightly
@pytest.mark.fresh
@pytest.mark.parametrize("name", TEXTS)
def test_two_processes_give_the_curve_of_one(name, curves) -> None:
    expected, found = curves[1][name]
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.fresh
def test_two_processes_stop_together(curves) -> None:
    assert curves[0].count("step 8 of 16. Go on with: torchrun") == 1
