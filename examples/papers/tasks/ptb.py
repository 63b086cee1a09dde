"""Penn Treebank, character by character."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.papers import data
from examples.papers.tasks.task import Batch, Task, generator

FILES = {"train": 5_101_618, "valid": 399_782, "test": 449_945}
SYMBOLS = 50
SOURCE = (
    "Penn Treebank as Mikolov prepared it, the raw files at the level of words (part of his simple-examples "
    "archive), not the files named ptb.char, which have 49 symbols"
)
PADDING = -100  # What cross_entropy ignores.


class PTBCharacters(Task):
    """Predict the next character.

    Section 5.4 of Helfrich and Ye (2020): the raw files, 50 symbols, spaces and ends of lines included.
    Each text is cut into as many equal stretches as there are sequences in a batch; they are read side by
    side, so many characters in each step, and the state is carried on until the end of the text. Every
    character but the very first is predicted once, in training and in evaluation. Bits per character.

    Kerg et al. (2019) unroll 150 and 300 steps.

    Args:
        length: Characters of each sequence in each step.
        batch_size: Sequences side by side.
        seed: Without effect: nothing is random but the initial weights.
        tiny: Whether to make up a short text instead of reading the files.
    """

    input_size = output_size = SYMBOLS
    symbols = True
    carries_state = True
    metric = "bits per character"
    baseline = math.log(SYMBOLS)

    def __init__(self, length: int, batch_size: int, seed: int, tiny: bool = False) -> None:
        for name, value in (("length", length), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if tiny:
            length = min(length, 10)
            # Longer than a whole number of batches, as the real texts are.
            count = 12 * length * batch_size + 7
            texts = {
                part: torch.randint(SYMBOLS, (count,), generator=generator(seed, "train", number))
                for number, part in enumerate(FILES)
            }
        else:
            texts = read()
        batches = {part: _batches(text, batch_size, length) for part, text in texts.items()}
        self._train = batches["train"]
        self._held_out = {"validation": batches["valid"], "test": batches["test"]}
        self.steps_per_epoch = len(self._train)

    def batch(self, step: int) -> Batch:
        """Return the characters of a step; see :meth:`Task.batch`."""
        return self._train[step % self.steps_per_epoch]

    def evaluation(self, split: str) -> Iterator[Batch]:
        """Return a text in pieces, in order; see :meth:`Task.evaluation`."""
        yield from self._held_out[split]

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies, in nats; see :meth:`Task.loss`."""
        return F.cross_entropy(
            outputs.flatten(0, 1), batch.targets.flatten(), ignore_index=PADDING, reduction="sum"
        )

    def from_mean(self, mean: float) -> float:
        """Return bits; see :meth:`Task.from_mean`."""
        return mean / math.log(2)


def _batches(text: Tensor, batch_size: int, length: int) -> list[Batch]:
    """Return a text in batches of ``batch_size`` stretches, the last one padded."""
    predicted = len(text) - 1
    stretch = -(-predicted // batch_size)
    padding = stretch * batch_size - predicted
    inputs = F.pad(text[:-1], (0, padding)).view(batch_size, stretch).T
    targets = F.pad(text[1:], (0, padding), value=PADDING).view(batch_size, stretch).T
    return [
        Batch(x, y, int((y != PADDING).sum()))
        for x, y in zip(inputs.split(length), targets.split(length), strict=True)
    ]


def read() -> dict[str, Tensor]:
    """Return the three texts as numbers of symbols, in the order of the symbols' codes.

    Raises:
        DataError: If a file is missing, or is not what it should be.
    """
    texts, known = {}, torch.empty(0)
    for part, count in FILES.items():
        path = data.find(f"ptb/ptb.{part}.txt", SOURCE)
        text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        data.check(path, "number of characters", count, len(text))
        if part == "train":
            known = text.unique()
            data.check(path, "number of symbols", SYMBOLS, len(known))
        elif not torch.isin(text.unique(), known).all():
            raise data.DataError(f"{path}: expected the symbols of ptb.train.txt, got others")
        texts[part] = torch.searchsorted(known, text)
    return texts
