"""The copying problem."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.papers.tasks.task import Batch, Order, Task, generator

TRAIN, TEST, EVALUATION_BATCH = 20_000, 1_000, 100
DIGITS, SYMBOLS, CLASSES = 10, 10, 9


class Copying(Task):
    """Remember ten digits for T steps.

    Of T + 20 inputs the first ten are uniform in 1 … 8, a marker 9 comes before the last ten, and all
    others are 0. The answer is 0 until the marker, and after it the ten digits. Cross-entropy, mean over
    all steps; 0 and then a guess has 10 ln(8)/(T + 20). 20,000 sequences to train on and 1,000 to test.

    ``markers=1`` is section 5.1 of Helfrich, Willmott and Ye (2018), and what the released code of both
    papers does. ``markers=2`` is the text of section 5.2 of Helfrich and Ye (2020), with another 9 right
    after the ten digits; of its "T zeros" two fewer remain, for the length to be its T + 20.

    Args:
        length: T.
        batch_size: Sequences in each step.
        seed: Seed of data and order.
        markers: 1 or 2.
        tiny: Whether to make a few short sequences only.
    """

    input_size, output_size = SYMBOLS, CLASSES
    metric = "cross-entropy"
    splits = ("test",)

    def __init__(self, length: int, batch_size: int, seed: int, markers: int = 1, tiny: bool = False) -> None:
        if length < 4:
            raise ValueError(f"length: expected at least 4, got {length}")
        if markers not in (1, 2):
            raise ValueError(f"markers: expected 1 or 2, got {markers}")
        self.length = min(length, 8) if tiny else length
        self.markers = markers
        self.baseline = DIGITS * math.log(CLASSES - 1) / (self.length + 2 * DIGITS)
        train, test = (32, 12) if tiny else (TRAIN, TEST)
        self._train, self._test = (
            torch.randint(1, CLASSES, (DIGITS, count), generator=generator(seed, stream))
            for count, stream in ((train, "train"), (test, "test"))
        )
        self._order = Order(train, batch_size, seed)
        self.steps_per_epoch = self._order.steps_per_epoch

    def _batch(self, digits: Tensor) -> Batch:
        inputs = digits.new_zeros(self.length + 2 * DIGITS, digits.shape[1])
        inputs[:DIGITS] = digits
        inputs[-DIGITS - 1] = 9
        if self.markers == 2:
            inputs[DIGITS] = 9
        targets = torch.zeros_like(inputs)
        targets[-DIGITS:] = digits
        return Batch(F.one_hot(inputs, SYMBOLS).float(), targets, targets.numel())

    def batch(self, step: int) -> Batch:
        """Return the sequences of a step; see :meth:`Task.batch`."""
        return self._batch(self._train[:, self._order(step)])

    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return the test sequences in pieces; see :meth:`Task.evaluation`."""
        yield from map(self._batch, self._test.split(EVALUATION_BATCH, dim=1))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies; see :meth:`Task.loss`."""
        return F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten(), reduction="sum")
