"""Handwritten digits, pixel by pixel."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from examples.papers import data
from examples.papers.tasks.task import Batch, Order, Task, generator

SIDE, CLASSES, VALIDATION, EVALUATION_BATCH = 28, 10, 5_000, 500
SOURCE = "MNIST in its original IDX files (yann.lecun.com/exdb/mnist, or any mirror)"
FILES = {"train": (60_000, "train"), "test": (10_000, "t10k")}


class PixelMNIST(Task):
    """Classify images of 28 x 28 pixels in [0, 1], read one by one, row by row or permuted.

    Section 5.3 of Helfrich, Willmott and Ye (2018): 55,000 images to train on and 10,000 to test. The
    other 5,000, the first of the training file, are for validation, as in the loader of the authors'.
    Cross-entropy at the last step; the score is the accuracy.

    Args:
        batch_size: Images in each step.
        seed: Seed of the order.
        permutation_seed: Seed of one permutation of the pixels for all images, or None for no permutation.
            The papers' authors took 92916 with the same generator of NumPy.
        shift: Each time that an image is trained on, it is moved by up to so many pixels each way, before the
            permutation, and zeros come in. The papers do not do so.
        tiny: Whether to make up a few images of 7 x 7 pixels instead of reading the files.

    Raises:
        ValueError: If an image can be moved out of sight, or a batch is larger than the data.
    """

    input_size, output_size = 1, CLASSES
    last = True
    metric = "accuracy"
    baseline = math.log(CLASSES)

    def __init__(
        self,
        batch_size: int,
        seed: int,
        permutation_seed: int | None = None,
        shift: int = 0,
        tiny: bool = False,
    ) -> None:
        if tiny:
            source = generator(seed, "train")
            images = torch.randint(256, (64, 49), generator=source).byte()
            labels = torch.randint(CLASSES, (64,), generator=source)
            self._held_out = {"validation": (images[:8], labels[:8]), "test": (images[8:16], labels[8:16])}
            self._train = (images[16:], labels[16:])
        else:
            images, labels = read("train")
            self._held_out = {"validation": (images[:VALIDATION], labels[:VALIDATION]), "test": read("test")}
            self._train = (images[VALIDATION:], labels[VALIDATION:])
        pixels = images.shape[1]
        self._seed, self._shift, self._side = seed, shift, math.isqrt(pixels)
        if not (isinstance(shift, int) and 0 <= shift < self._side):
            raise ValueError(f"shift: expected 0 to {self._side - 1} pixels, got {shift!r}")
        self.permutation = torch.arange(pixels)
        if permutation_seed is not None:
            # RandomState, not default_rng: its stream is frozen.
            permutation = np.random.RandomState(permutation_seed).permutation(pixels)
            self.permutation = torch.from_numpy(permutation)
        self._order = Order(len(self._train[0]), batch_size, seed)
        self.steps_per_epoch = self._order.steps_per_epoch

    def _batch(self, images: Tensor, labels: Tensor) -> Batch:
        pixels = images[:, self.permutation].T.float() / 255
        return Batch(pixels[..., None], labels[None], len(labels))

    def batch(self, step: int) -> Batch:
        """Return the images of a step; see :meth:`Task.batch`."""
        chosen = self._order(step)
        images, labels = self._train
        moved = images[chosen]
        if self._shift:
            source = generator(self._seed, "shift", step)
            down, right = torch.randint(2 * self._shift + 1, (2, len(chosen)), generator=source)
            moved = self._moved(moved, down, right)
        return self._batch(moved, labels[chosen])

    def _moved(self, images: Tensor, down: Tensor, right: Tensor) -> Tensor:
        """Return each image moved by so many pixels less ``shift``."""
        padded = F.pad(images.view(-1, self._side, self._side), [self._shift] * 4)
        size = padded.shape[-1]
        # Entry (i, j) comes from (i - down + shift, j - right + shift), in padded from shift more of each.
        sources = torch.arange(self._side) + 2 * self._shift
        i, j = sources - down[:, None], sources - right[:, None]
        return padded.flatten(1).gather(1, (i[:, :, None] * size + j[:, None]).flatten(1))

    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return held-out images in pieces; see :meth:`Task.evaluation`."""
        images, labels = (tensor.split(EVALUATION_BATCH) for tensor in self._held_out[split])
        yield from (self._batch(*piece) for piece in zip(images, labels, strict=True))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies; see :meth:`Task.loss`."""
        return F.cross_entropy(outputs[0], batch.targets[0], reduction="sum")

    def score(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the number of images that are recognised; see :meth:`Task.score`."""
        return (outputs[0].argmax(dim=-1) == batch.targets[0]).sum()


def read(part: str) -> tuple[Tensor, Tensor]:
    """Return images ``(count, 784)`` as bytes and labels ``(count,)``.

    Args:
        part: ``"train"`` or ``"test"``.
    """
    count, prefix = FILES[part]
    images = _read_idx(f"mnist/{prefix}-images-idx3-ubyte.gz", (count, SIDE, SIDE))
    labels = _read_idx(f"mnist/{prefix}-labels-idx1-ubyte.gz", (count,))
    return images.flatten(1), labels.long()


def _read_idx(relative: str, shape: tuple[int, ...]) -> Tensor:
    """Return an IDX file of bytes: zero, zero, 8, the number of dimensions, each dimension, the entries."""
    path = data.find(relative, SOURCE)
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise data.DataError(f"{path}: expected a file compressed by gzip ({error})") from error
    head = 4 + 4 * len(shape)
    data.check(path, "magic number", 0x800 + len(shape), int.from_bytes(content[:4], "big"))
    data.check(path, "shape", shape, tuple(np.frombuffer(content[4:head], ">u4").tolist()))
    data.check(path, "number of bytes", head + math.prod(shape), len(content))
    entries = torch.frombuffer(bytearray(content[head:]), dtype=torch.uint8).view(shape)
    if len(shape) == 1 and entries.max() >= CLASSES:
        raise data.DataError(f"{path}: expected labels 0 … 9, got {int(entries.max())}")
    return entries
