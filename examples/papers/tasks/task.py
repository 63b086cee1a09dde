"""What a task is: batches to train on, batches to measure on, a loss and a score."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

STREAMS = ("train", "validation", "test", "order", "shift")


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sequences side by side: the batch is the second dimension of every tensor.

    Attributes:
        inputs: Features ``(time, batch, feature)``, or symbols ``(time, batch)``.
        targets: ``(time, batch, ...)``, or ``(1, batch, ...)`` for tasks that read the last state.
        count: Number of targets that count, of the whole batch, also in a part of it.
        weights: 1 where a target counts and 0 where it is padding, ``(time, batch)``; None for all.
    """

    inputs: Tensor
    targets: Tensor
    count: int
    weights: Tensor | None = None

    def part(self, columns: slice) -> Batch:
        """Return some of the sequences.

        Args:
            columns: Which.
        """
        weights = None if self.weights is None else self.weights[:, columns]
        return dataclasses.replace(
            self, inputs=self.inputs[:, columns], targets=self.targets[:, columns], weights=weights
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return it on a device, in a dtype unless it is made of integers.

        Args:
            device: Where.
            dtype: Of what is not an integer.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

        weights = None if self.weights is None else move(self.weights)
        return dataclasses.replace(
            self, inputs=move(self.inputs), targets=move(self.targets), weights=weights
        )


class Task(abc.ABC):
    """Data, loss and score. All that is random follows from the seed and the number of the step.

    Attributes:
        input_size: Number of features of the input, or of symbols.
        output_size: Number of outputs.
        symbols: Whether the inputs are symbols.
        last: Whether the answer is read from the last state alone.
        carries_state: Whether each batch goes on where the one before ended, within an epoch.
        metric: What the score is.
        baseline: Loss of guessing: for numbers and for copying that of the best answer that ignores the
            input, for classes and characters that of taking all to be as likely.
        splits: What is held out, in order: ``"validation"`` and ``"test"``, or ``"test"`` alone.
        steps_per_epoch: Number of batches.
    """

    input_size: int
    output_size: int
    symbols = False
    last = False
    carries_state = False
    metric: str
    baseline: float
    splits: tuple[str, ...] = ("validation", "test")
    steps_per_epoch: int

    @abc.abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the training data of a step.

        Args:
            step: Number of the step, from 0 on, over all epochs.
        """

    @abc.abstractmethod
    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return held-out data in pieces.

        Args:
            split: Which.
        """

    @abc.abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the losses of all targets that count.

        Args:
            outputs: ``(time, batch, output)``; time is 1 if the last state alone is read.
            batch: The data.
        """

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the scores of all targets that count: the losses, unless overridden.

        Args:
            outputs: Like those of :meth:`loss`.
            batch: The data.
        """
        return self.loss(outputs, batch)

    def from_mean(self, mean: float) -> float:
        """Return what is reported, from the mean of the scores.

        Args:
            mean: The mean.
        """
        return mean

    def final_scores(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Return further scores on the test data of the network that was best on the validation data.

        Args:
            model: The network.
            device: Where it is.
            dtype: Its dtype.
        """
        return {}


def generator(seed: int, stream: str, index: int = 0) -> torch.Generator:
    """Return a generator of its own for each seed, purpose and index.

    Args:
        seed: The seed.
        stream: One of :data:`STREAMS`.
        index: Number of the epoch, for instance.
    """
    # PyTorch's generator on the CPU only looks at 32 bits of its seed, so the three are hashed.
    hashed = np.random.SeedSequence([seed, STREAMS.index(stream), index]).generate_state(1)
    return torch.Generator().manual_seed(int(hashed[0]))


class Order:
    """Which examples make up which batch: a new order in each epoch, and no batch that is not full.

    Args:
        count: Number of examples.
        batch_size: Examples in each batch.
        seed: Seed of the orders.

    Raises:
        ValueError: If a batch is larger than the data.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if not 1 <= batch_size <= count:
            raise ValueError(f"batch_size: expected 1 to {count}, got {batch_size}")
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.steps_per_epoch = count // batch_size
        self._epoch, self._order = -1, torch.empty(0)

    def __call__(self, step: int) -> Tensor:
        """Return the numbers of the examples of a step.

        Args:
            step: The step.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = torch.randperm(self.count, generator=generator(self.seed, "order", epoch))
            self._epoch = epoch
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]
