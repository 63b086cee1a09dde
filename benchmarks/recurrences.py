"""Whole sequences and whole training steps of recurrent networks."""

from __future__ import annotations

import torch
from torch import nn

import spectral_param as sp
from benchmarks import characters
from benchmarks.case import Case, Run, require_close


def _training(module: nn.Module, x: torch.Tensor) -> Run:
    parameters = list(module.parameters())

    def run() -> None:
        module.zero_grad()
        output, _ = module(x)
        output.mean().backward()
        with torch.no_grad():  # a new matrix the next time, so that nothing is remembered
            torch._foreach_add_(parameters, 1e-7)

    return run


def _contenders(n: int, batch: int, steps: int) -> dict[str, Run]:
    """Return ours, checked against the reference, and its peers of the same n."""
    torch.manual_seed(0)
    x = torch.randn(steps, batch, 2)
    ours = sp.nn.ScoRNN(2, n)
    cell = ours.cells[0]
    short = x[: min(steps, 20)]
    reference = sp.functional.recurrence.rnn_reference(
        short.flatten(0, 1),
        torch.zeros(batch, n),
        cell.weight_ih,
        cell.weight_hh.detach(),
        cell.bias,
        "modrelu",
        [batch] * len(short),
    )
    require_close(ours(short)[1][0], reference[1], 1e-3, "last state")
    return {
        "ScoRNN": _training(ours, x),
        "torch.nn.RNN": _training(nn.RNN(2, n), x),
        "torch.nn.LSTM": _training(nn.LSTM(2, n), x),
    }


def sequence(n: int, batch: int, steps: int) -> Case:
    """A whole sequence, forward and backward, recurrent matrix included.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The case.
    """
    contenders = _contenders(n, batch, steps)
    W, h = torch.randn(n, n) / n**0.5, torch.randn(batch, n)
    rows = torch.randn(steps * batch, n)

    def floor() -> None:
        for _ in range(steps):
            torch.mm(h, W)  # forward
            torch.mm(h, W)  # back to the state before
        torch.mm(rows.mT, rows)  # dW, for all steps at once

    return Case(
        f"recurrence, forward and backward, n = {n}, batch {batch}, {steps} steps",
        contenders | {"three products per step": floor},
    )


def growing_sequence(n: int, batch: int, steps: int) -> Case:
    """The same, as a point of a growth curve.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The case.
    """
    title = f"recurrence, forward and backward, n = {n}, batch {batch}"
    return Case(f"{title}: {steps} steps", _contenders(n, batch, steps), curve=(title, "steps", steps))


def character_step(long: int, short: int) -> Case:
    """A whole training step on characters, optimizer included: batch 32, 50 steps; four for each call.

    Args:
        long: Size of the orthogonal block.
        short: Size of the normalised block.

    Returns:
        The case.
    """
    steps, at_once = 40, 4
    text = characters.characters(32 * 51 * steps).reshape(steps, 32, 51)

    def training(model: nn.ModuleDict) -> Run:
        optimizer = characters.optimizer_for(model)
        position, state = 0, None

        def run() -> None:
            nonlocal position, state
            for _ in range(at_once):
                last = characters.step(model, optimizer, text[position % steps].mT, state)
                state = tuple(s.detach() for s in last) if isinstance(last, tuple) else last.detach()
                position += 1

        for _ in range(3 if short > 100 else 0):  # past the first steps, the same for all
            run()
        return run

    n, symbols = long + short, characters.SYMBOLS
    torch.manual_seed(0)
    lstm = nn.ModuleDict(
        {"embed": nn.Embedding(symbols, n), "rnn": nn.LSTM(n, n), "head": nn.Linear(n, symbols)}
    )
    contenders = {
        "ENRNN": training(characters.model(long, short, "auto")),
        "ENRNN, solver dense": training(characters.model(long, short, "dense")),
        f"torch.nn.LSTM({n})": training(lstm),
    }
    return Case(
        f"training step on characters, ENRNN {long}/{short}, batch 32, 50 steps",
        contenders,
        dict.fromkeys(contenders, at_once),
    )
