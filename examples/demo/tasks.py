"""The two tasks: the adding problem, and handwritten digits read pixel by pixel.

A batch is a function of the seed and the number of the step alone. So all networks see the same
data, and a run that goes on from a checkpoint needs no state of a random generator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

Sequences = tuple[Tensor, Tensor]
"""Inputs (time, batch, feature) and targets (batch,)."""

VALIDATION_SIZE = 500
TEST_SIZE = 5000
STREAMS = ("train", "validation", "test", "split")


@dataclasses.dataclass(frozen=True)
class Task:
    """Data, loss and score of one task.

    Attributes:
        title: Name for people.
        metric: What ``score`` is: ``"MSE"`` or ``"accuracy"``.
        baseline: Score of the best answer that ignores the input.
        input_size: Number of features in each time step.
        output_size: Number of outputs.
        batch: From the number of a step to its training data.
        validation: Held out for the learning curves.
        test: Held out for the table.
        loss: From outputs and targets to the number to minimise.
        score: From outputs and targets to the number to report.
    """

    title: str
    metric: str
    baseline: float
    input_size: int
    output_size: int
    batch: Callable[[int], Sequences]
    validation: Sequences
    test: Sequences
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]


def build_task(name: str, length: int, batch_size: int, seed: int) -> Task:
    """Return the task of that name.

    Args:
        name: ``"adding"`` or ``"digits"``.
        length: Length T of the sequences; 64 for the digits.
        batch_size: Sequences in each training batch.
        seed: Seed of the data.
    """
    return adding(length, batch_size, seed) if name == "adding" else digits(batch_size, seed)


def adding(length: int, batch_size: int, seed: int) -> Task:
    """Return the adding problem (ENRNN paper, section 5.1), with new sequences in every step.

    Args:
        length: Length T of the sequences.
        batch_size: Sequences in each training batch.
        seed: Seed of the data.
    """
    return Task(
        title=f"Adding problem, T = {length}",
        metric="MSE",
        baseline=1 / 6,  # The variance of a sum of two uniform numbers: always answering 1.
        input_size=2,
        output_size=1,
        batch=lambda step: adding_sequences(length, batch_size, _generator(seed, "train", step)),
        validation=adding_sequences(length, VALIDATION_SIZE, _generator(seed, "validation")),
        test=adding_sequences(length, TEST_SIZE, _generator(seed, "test")),
        loss=mean_squared_error,
        score=mean_squared_error,
    )


def adding_sequences(length: int, count: int, generator: torch.Generator) -> Sequences:
    """Return sequences of uniform numbers, two of them marked, and the sums of the marked ones.

    Args:
        length: Length T. One mark is in the first half, one in the second.
        count: Number of sequences.
        generator: Source of randomness.
    """
    numbers = torch.rand(length, count, generator=generator)
    marks = torch.zeros(length, count)
    half = length // 2
    for low, high in ((0, half), (half, length)):
        marks.scatter_(0, torch.randint(low, high, (1, count), generator=generator), 1.0)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(dim=0)


def digits(batch_size: int, seed: int) -> Task:
    """Return the UCI handwritten digits, 8 x 8 pixels read one by one: 64 steps, 10 classes.

    Args:
        batch_size: Images in each training batch.
        seed: Seed of the split (60 % training, 20 % validation, 20 % test) and of the order.
    """
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).div(16).T[..., None]  # (64, images, 1)
    targets = torch.tensor(labels)
    shuffled = torch.randperm(len(targets), generator=_generator(seed, "split"))
    held_out = len(targets) // 5
    validation, test, train = shuffled.split([held_out, held_out, len(targets) - 2 * held_out])
    batches_per_epoch = len(train) // batch_size

    def batch(step: int) -> Sequences:
        epoch, position = divmod(step, batches_per_epoch)
        order = torch.randperm(len(train), generator=_generator(seed, "train", epoch))
        chosen = train[order[position * batch_size : (position + 1) * batch_size]]
        return inputs[:, chosen], targets[chosen]

    return Task(
        title="Digits, pixel by pixel",
        metric="accuracy",
        baseline=0.1,  # Ten classes of nearly equal size.
        input_size=1,
        output_size=10,
        batch=batch,
        validation=(inputs[:, validation], targets[validation]),
        test=(inputs[:, test], targets[test]),
        loss=F.cross_entropy,
        score=accuracy,
    )


def mean_squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error.

    Args:
        output: Answers ``(batch, 1)``.
        target: Sums ``(batch,)``.
    """
    return F.mse_loss(output[:, 0], target)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of the images whose largest output is their class.

    Args:
        output: Logits ``(batch, classes)``.
        target: Classes ``(batch,)``.
    """
    return (output.argmax(dim=-1) == target).float().mean()


def _generator(seed: int, stream: str, index: int = 0) -> torch.Generator:
    """Return a generator of its own for each seed, purpose and step."""
    # PyTorch's generator on the CPU only looks at 32 bits of its seed, so the three are hashed.
    hashed = np.random.SeedSequence([seed, STREAMS.index(stream), index]).generate_state(1)
    return torch.Generator().manual_seed(int(hashed[0]))
