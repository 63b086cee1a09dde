"""Training one network, from any step on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import spectral_param as sp
from examples.demo.networks import SequenceModel, build_network
from examples.demo.settings import Job
from examples.demo.tasks import Sequences, Task

CURVE_POINTS = 40
EVALUATION_BATCH = 500


@dataclasses.dataclass
class Trained:
    """A network, how far it has come, and what was measured on the way.

    Attributes:
        model: The network.
        optimizer: Its optimizer.
        step: Number of optimizer steps taken.
        seconds: Time spent on them and on the evaluations.
        curve: Pairs of step and score on the validation data.
        test: Score on the test data, None until the last step.
    """

    model: SequenceModel
    optimizer: torch.optim.Optimizer
    step: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    test: float | None = None

    def state(self) -> dict[str, Any]:
        """Return everything in plain types and tensors, for a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "curve": self.curve,
            "test": self.test,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to a state.

        Args:
            state: What :meth:`state` returned.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.test = state["step"], state["seconds"], state["test"]
        self.curve = list(state["curve"])


def start(job: Job, task: Task, seed: int) -> Trained:
    """Return the network before its first step.

    Args:
        job: What to train.
        task: Its task.
        seed: Seed of the initial weights.
    """
    model = build_network(job.network, job.sizes, task.input_size, task.output_size, seed)
    groups = sp.param_groups(model, job.lr, job.orthogonal_lr, constrained=sp.ScaledCayley)
    for group in groups:
        group["initial_lr"] = group["lr"]
    return Trained(model, torch.optim.Adam(groups))


def train(trained: Trained, job: Job, task: Task) -> Iterator[None]:
    """Train to the last step, measuring on the way; yields after each step.

    Each step depends on ``trained`` alone, so it can be left after any of them and gone on with
    later, in another process too.

    Args:
        trained: Where to begin; changed in place.
        job: What to train.
        task: Its task.

    Yields:
        Nothing, after each step.
    """
    interval = max(1, job.steps // CURVE_POINTS)
    while trained.step < job.steps:
        began = time.perf_counter()
        _step(trained, job, task)
        trained.step += 1
        if trained.step % interval == 0 or trained.step == job.steps:
            trained.curve.append((trained.step, evaluate(trained.model, task, task.validation)))
        if trained.step == job.steps:
            trained.test = evaluate(trained.model, task, task.test)
        trained.seconds += time.perf_counter() - began
        yield


def evaluate(model: SequenceModel, task: Task, sequences: Sequences) -> float:
    """Return the score on held-out data.

    Args:
        model: The network.
        task: Its task.
        sequences: The data.
    """
    inputs, targets = sequences
    model.eval()
    with torch.no_grad():
        # In pieces: the states of all test sequences at once would take a gigabyte.
        outputs = torch.cat([model(part) for part in inputs.split(EVALUATION_BATCH, dim=1)])
        score = task.score(outputs, targets).item()
    model.train()
    return score


def _step(trained: Trained, job: Job, task: Task) -> None:
    """Take one optimizer step."""
    for group in trained.optimizer.param_groups:
        group["lr"] = group["initial_lr"] * (1 - trained.step / job.steps)
    inputs, targets = task.batch(trained.step)
    trained.optimizer.zero_grad()
    task.loss(trained.model(inputs), targets).backward()
    nn.utils.clip_grad_norm_(trained.model.parameters(), job.clip)
    trained.optimizer.step()
