"""Networks that follow a shuffle: which of three cards lies where, after all shuffles that were read."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp

SHUFFLES = torch.tensor(list(itertools.permutations(range(3))))
GUESSING = 1 / 6
LENGTHS = (16, 64, 256)
LONGEST, STEPS, BATCH = 16, 150, 32
NETWORKS = ("DeltaProduct", "one reflection", "ScoRNN")


class Reader(nn.Module):
    """A recurrent layer that reads the numbers of shuffles, and a linear map of its output.

    Args:
        name: One of ``NETWORKS``.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        size = len(SHUFFLES)
        if name == "ScoRNN":
            self.layer: nn.Module = sp.nn.ScoRNN(size, 24)
        else:
            reflections = 1 if name == "one reflection" else 2
            self.layer = sp.nn.DeltaProduct(
                size, 24, num_heads=4, reflections=reflections, strength="reflection", values=False
            )
        self.head = nn.Linear(24, size)

    def forward(self, chosen: Tensor) -> Tensor:
        """Return logits ``(length, count, orders)``.

        Args:
            chosen: Numbers of shuffles, ``(length, count)``.
        """
        logits: Tensor = self.head(self.layer(nn.functional.one_hot(chosen, len(SHUFFLES)).float())[0])
        return logits


def decks(length: int, count: int) -> tuple[Tensor, Tensor]:
    """Return random shuffles and the order of the cards after each, both as numbers ``(length, count)``.

    Args:
        length: Number of shuffles.
        count: Number of decks.
    """
    chosen = torch.randint(len(SHUFFLES), (length, count))
    deck, found = torch.arange(3).expand(count, 3), []
    for step in chosen:
        deck = deck.gather(1, SHUFFLES[step])
        found.append((deck[:, None] == SHUFFLES).all(dim=-1).int().argmax(dim=-1))
    return chosen, torch.stack(found)


def compare(seed: int, quick: bool = False) -> list[dict[str, Any]]:
    """Return the numbers of each network: which share of the orders is right, for each number of shuffles.

    Args:
        seed: Seed of initial weights and shuffles.
        quick: Whether to take a few steps.
    """
    found = []
    for name in NETWORKS:
        torch.manual_seed(seed)
        network, began = Reader(name), time.perf_counter()
        _train(network, 3 if quick else STEPS)
        seconds = time.perf_counter() - began
        right = []
        with torch.no_grad():
            for length in LENGTHS:
                chosen, orders = decks(length, 64)
                right.append((network(chosen).argmax(dim=-1) == orders).float().mean().item())
        found.append(
            {"network": name, "seed": seed, "lengths": list(LENGTHS), "right": right, "seconds": seconds}
        )
    return found


def _train(network: Reader, steps: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 * (1 - step / steps)))
    for step in range(steps):
        # Of long sequences nothing is learned as long as short ones are not.
        chosen, orders = decks(4 if step < steps * 2 // 3 else LONGEST, BATCH)
        loss = nn.functional.cross_entropy(network(chosen).flatten(0, 1), orders.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
