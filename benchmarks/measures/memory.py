"""Peak memory of one forward and backward pass of the recurrences.

Counted are the allocations of PyTorch's CPU allocator while the pass runs, in units of all states: T·B·n
numbers. Inputs, parameters and what the loss compares with exist before and are not counted; gradients
and the loss's own tensors are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.cases.case import peak_bytes
from benchmarks.measures.cpu import SEQUENCES
from benchmarks.table import Table, load, marked
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/_recurrence",
    "spectral_param/functional",
    "benchmarks/measures/memory.py",
    "benchmarks/cases/case.py",
)

Forward = Callable[[Tensor], tuple[Tensor | None, Tensor]]


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each size.

    Args:
        quick: Whether to take a tiny one.
    """
    for n, batch, steps in [(8, 4, 30)] if quick else SEQUENCES:
        yield Task(f"n = {n}, batch {batch}, {steps} steps", partial(contenders, n, batch, steps))


def states_held(
    forward: Forward, parameters: list[Tensor], x: Tensor, n: int, all_states: bool = True
) -> float:
    """Return the peak memory of forward and backward, in units of all states.

    Args:
        forward: Function of x that returns all states and the last ones.
        parameters: What to differentiate by.
        x: Inputs ``(T, B, m)``.
        n: Number of hidden units.
        all_states: Whether the loss reads all states or only the last ones.
    """
    T, B, _ = x.shape
    G = torch.randn(T, B, n) if all_states else torch.randn(B, n)

    def run() -> None:
        output, last = forward(x)
        loss = ((output if all_states else last) * G).sum()
        del output, last
        torch.autograd.grad(loss, parameters)

    return peak_bytes(run) / (4 * T * B * n)


def contenders(n: int, batch: int, steps: int) -> dict[str, float]:
    """Return the peak memory of each way to run a recurrence.

    Args:
        n: Number of hidden units.
        batch: Number of sequences B.
        steps: Number of time steps T.
    """
    torch.manual_seed(0)
    x, h0 = torch.randn(steps, batch, 2), torch.zeros(batch, n)
    W = nn.init.orthogonal_(torch.empty(n, n)).requires_grad_()
    U, b = (0.1 * torch.randn(n, 2)).requires_grad_(), (0.01 * torch.randn(n)).requires_grad_()

    def ours(**kwargs: Any) -> Forward:
        return lambda x: sp.functional.rnn(x, h0, U, W, b, **kwargs)

    def measure(forward: Forward, all_states: bool) -> float:
        return states_held(forward, [U, W, b], x, n, all_states)

    rnn = nn.RNN(2, n)
    checkpointed = {"checkpoint_every": "auto"}
    return {
        "all states read": measure(ours(), True),
        "all states read, checkpoint_every='auto'": measure(ours(**checkpointed), True),
        "last states read": measure(ours(), False),
        "last states read, checkpoint_every='auto'": measure(ours(**checkpointed), False),
        "last states read, checkpoint_every='auto', return_output=False": measure(
            ours(**checkpointed, return_output=False), False
        ),
        "torch.nn.RNN, all states read": states_held(rnn, list(rnn.parameters()), x, n),
    }


def peaks() -> Table:
    """Return the peaks of the recurrences, in units of all states."""
    found = load("memory")
    ways = [way for way in next(iter(found.values())) if way != "environment"]
    rows = [[way, *(f"{result[way]:.2f}" for result in found.values())] for way in ways]
    return ["", *(marked(name, result) for name, result in found.items())], rows
