"""Words of a group: which element is the product of all that was read, asked after each letter.

A network reads random elements x_1, x_2, ... and names x_t ... x_2 x_1 at each t. In training the length of
the words doubles, from 4 to the longest, whenever nearly all positions are right: of long words nothing is
learned as long as short ones are not.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spectral_param as sp

#: By name: on how many things the permutations act, and whether all or the even ones.
GROUPS = {"S3": (3, False), "S4": (4, False), "A5": (5, True), "S5": (5, False)}
# Words are longer where so many positions are right.
_RIGHT = 0.98
_SHORTEST = 4
_BATCH = 64
_EMBEDDING = 64


def products(name: str) -> Tensor:
    """Return the table of a group: entry (i, j) is the number of the element i after j.

    Args:
        name: A key of ``GROUPS``.
    """
    things, is_even = GROUPS[name]
    elements = [p for p in itertools.permutations(range(things)) if not is_even or _is_even(p)]
    numbers = {p: i for i, p in enumerate(elements)}
    return torch.tensor([[numbers[tuple(p[k] for k in q)] for q in elements] for p in elements])


def _is_even(p: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in itertools.combinations(p, 2)) % 2 == 0


def words(table: Tensor, length: int, count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random letters and the products up to each, both ``(length, count)``.

    Args:
        table: What :func:`products` returns.
        length: Number of letters of a word.
        count: Number of words.
        source: Of the random numbers.
    """
    letters = torch.randint(len(table), (length, count), generator=source)
    found = [letters[0]]
    for letter in letters[1:]:
        found.append(table[letter, found[-1]])
    return letters, torch.stack(found)


class Reader(nn.Module):
    """A network that names an element after each letter: an embedding, a recurrence, a norm, a linear map.

    Args:
        elements: Number of elements.
        recurrence: Makes a recurrent layer for this many features.
    """

    def __init__(self, elements: int, recurrence: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(elements, _EMBEDDING)
        self.recurrence = recurrence(_EMBEDDING)
        with torch.no_grad():
            features = self.recurrence(torch.zeros(1, 1, _EMBEDDING))[0].shape[-1]
        self.head = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, elements))

    def forward(self, letters: Tensor) -> Tensor:
        """Return logits ``(length, count, elements)``.

        Args:
            letters: ``(length, count)``.
        """
        logits: Tensor = self.head(self.recurrence(self.embedding(letters))[0])
        return logits


def delta(**options: object) -> Callable[[int], nn.Module]:
    """Return what makes a DeltaProduct of 4 heads.

    Args:
        options: Its arguments; ``size`` is d and e.
    """
    size = int(options.pop("size", 8))  # type: ignore[call-overload]
    return lambda features: sp.nn.DeltaProduct(features, 4 * size, num_heads=4, **options)  # type: ignore[arg-type]


def lstm(units: int) -> Callable[[int], nn.Module]:
    """Return what makes an LSTM.

    Args:
        units: Its hidden units.
    """
    return lambda features: nn.LSTM(features, units)


@dataclasses.dataclass
class Trained:
    """A network and how its training went.

    Attributes:
        network: The network.
        seconds: Of the process, in training.
        steps: Steps taken.
        length: Length of the words at the end.
        doubled: The step at which words got longer, and their length from then on.
    """

    network: Reader
    seconds: float = 0.0
    steps: int = 0
    length: int = _SHORTEST
    doubled: list[tuple[int, int]] = dataclasses.field(default_factory=list)


def train(
    name: str,
    recurrence: Callable[[int], nn.Module],
    seed: int,
    *,
    longest: int,
    steps: int,
    shortest: int = _SHORTEST,
    falling: bool = True,
    lr: float = 3e-3,
    seconds: float = math.inf,
) -> Trained:
    """Train a network on words of a group.

    Args:
        name: Of the group.
        recurrence: Makes the recurrent layer.
        seed: Of weights and words.
        longest: Length of the longest words.
        steps: How many steps to take.
        shortest: Length of the first words.
        falling: Whether the learning rate falls to zero along a cosine, or stays.
        lr: The learning rate at the start.
        seconds: Processor time after which to stop, at any step.

    Returns:
        The network, and how its training went.
    """
    table = products(name)
    torch.manual_seed(seed)
    source = torch.Generator().manual_seed(seed)
    found = Trained(Reader(len(table), recurrence), length=shortest)
    optimizer = torch.optim.AdamW(found.network.parameters(), lr=lr)
    began, right = time.process_time(), 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (0.5 * (1 + math.cos(math.pi * step / steps)) if falling else 1.0)
        letters, targets = words(table, found.length, _BATCH, source)
        logits = found.network(letters)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(found.network.parameters(), 1.0)
        optimizer.step()
        right = 0.8 * right + 0.2 * float((logits.argmax(dim=-1) == targets).float().mean())
        if right >= _RIGHT and found.length < longest:
            found.length, right = min(2 * found.length, longest), 0.0
            found.doubled.append((step + 1, found.length))
        found.steps, found.seconds = step + 1, time.process_time() - began
        if found.seconds > seconds:
            break
    return found


@torch.no_grad()
def accuracy(network: nn.Module, name: str, lengths: tuple[int, ...], count: int = 256) -> dict[str, float]:
    """Return which share of the positions is right, for words of each length.

    Args:
        network: Reads letters.
        name: Of the group.
        lengths: Lengths of the words.
        count: Number of words of each length.
    """
    table, source = products(name), torch.Generator().manual_seed(10_000)
    found = {}
    for length in lengths:
        letters, targets = words(table, length, count, source)
        right = network(letters).argmax(dim=-1) == targets
        found[str(length)] = float(right.float().mean())
    return found
