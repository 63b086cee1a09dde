"""The adding problem."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from examples.papers.tasks.task import Batch, Order, Task, generator

TRAIN, TEST, EVALUATION_BATCH = 100_000, 10_000, 500


class Adding(Task):
    """Add the two numbers of a sequence that are marked.

    Section 5.1 of Helfrich and Ye (2020) and section 5.2 of Helfrich, Willmott and Ye (2018), which agree:
    numbers uniform in [0, 1); counting time from 1 to T, one mark is uniform in [1, T/2), the other in
    [T/2, T). 100,000 sequences to train on and 10,000 to test. Mean squared error at the last step;
    always answering 1 has 1/6. (In their released code the second mark may also be on the last step.)

    Args:
        length: T.
        batch_size: Sequences in each step.
        seed: Seed of data and order.
        validation: Number of sequences held out beside those of the test; the papers have none.
        test: Number of sequences of the test.
        tiny: Whether to make a few short sequences only.
    """

    input_size, output_size = 2, 1
    last = True
    metric = "MSE"
    baseline = 1 / 6

    def __init__(
        self,
        length: int,
        batch_size: int,
        seed: int,
        validation: int = 0,
        test: int = TEST,
        tiny: bool = False,
    ) -> None:
        if length < 4:
            raise ValueError(f"length: expected at least 4, got {length}")
        self.length = min(length, 20) if tiny else length
        train = 32 if tiny else TRAIN
        sizes = {"validation": validation, "test": test}
        self.splits = tuple(split for split, count in sizes.items() if count)
        self._train = self._make(train, generator(seed, "train"))
        self._held_out = {
            split: self._make(min(sizes[split], 12) if tiny else sizes[split], generator(seed, split))
            for split in self.splits
        }
        self._order = Order(train, batch_size, seed)
        self.steps_per_epoch = self._order.steps_per_epoch

    def _make(self, count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return numbers ``(time, count)`` and the two marked times ``(2, count)``, counted from 0."""
        numbers = torch.rand(self.length, count, generator=source)
        half = -(-self.length // 2)  # The first whole number that is at least T/2.
        first = torch.randint(1, half, (count,), generator=source)
        second = torch.randint(half, self.length, (count,), generator=source)
        return numbers, torch.stack([first, second]) - 1

    @staticmethod
    def _batch(numbers: Tensor, marked: Tensor) -> Batch:
        marks = torch.zeros_like(numbers).scatter_(0, marked, 1.0)
        targets = numbers.gather(0, marked).sum(dim=0)[None]
        return Batch(torch.stack([numbers, marks], dim=-1), targets, numbers.shape[1])

    def batch(self, step: int) -> Batch:
        """Return the sequences of a step; see :meth:`Task.batch`."""
        chosen = self._order(step)
        numbers, marked = self._train
        return self._batch(numbers[:, chosen], marked[:, chosen])

    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return held-out sequences in pieces; see :meth:`Task.evaluation`."""
        numbers, marked = (tensor.split(EVALUATION_BATCH, dim=1) for tensor in self._held_out[split])
        yield from (self._batch(*piece) for piece in zip(numbers, marked, strict=True))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of squared errors; see :meth:`Task.loss`."""
        return (outputs[..., 0] - batch.targets).square().sum()
