"""Small handwritten digits that come with scikit-learn, pixel by pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.papers.tasks.task import Batch, Order, Task, generator

CLASSES, EVALUATION_BATCH = 10, 500


class Digits(Task):
    """Classify the 1,797 images of 8 x 8 pixels of the UCI handwritten digits, read one by one, row by row.

    60 % to train on, 20 % for validation, 20 % to test, drawn by the seed. Cross-entropy at the last step;
    the score is the accuracy.

    Args:
        batch_size: Images in each step.
        seed: Seed of the split and of the order.
        tiny: Whether to take a few of the images only.
    """

    input_size, output_size = 1, CLASSES
    last = True
    metric = "accuracy"
    baseline = math.log(CLASSES)

    def __init__(self, batch_size: int, seed: int, tiny: bool = False) -> None:
        from sklearn.datasets import load_digits  # Not installed for the papers' rows alone.

        images, labels = load_digits(return_X_y=True)
        pixels = torch.tensor(images, dtype=torch.float32).div(16).T[..., None]  # (64, images, 1)
        shuffled = torch.randperm(len(labels), generator=generator(seed, "train"))
        if tiny:
            shuffled = shuffled[:60]
        held_out = len(shuffled) // 5
        parts = shuffled.split([held_out, held_out, len(shuffled) - 2 * held_out])
        self._parts = {
            split: (pixels[:, chosen], torch.tensor(labels)[chosen])
            for split, chosen in zip(("validation", "test", "train"), parts, strict=True)
        }
        self._order = Order(len(parts[-1]), batch_size, seed)
        self.steps_per_epoch = self._order.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """Return the images of a step; see :meth:`Task.batch`."""
        chosen = self._order(step)
        pixels, labels = self._parts["train"]
        return Batch(pixels[:, chosen], labels[None, chosen], len(chosen))

    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return held-out images in pieces; see :meth:`Task.evaluation`."""
        pixels, labels = self._parts[split]
        for first in range(0, len(labels), EVALUATION_BATCH):
            piece = slice(first, first + EVALUATION_BATCH)
            yield Batch(pixels[:, piece], labels[None, piece], len(labels[piece]))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies; see :meth:`Task.loss`."""
        return F.cross_entropy(outputs[0], batch.targets[0], reduction="sum")

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the number of images that are recognised; see :meth:`Task.score`."""
        return (outputs[0].argmax(dim=-1) == batch.targets[0]).sum()
