"""Whole sequences and whole training steps of recurrent networks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import spectral_param as sp
from benchmarks.cases.case import Case, Run, require_close, training
from benchmarks.problems import characters
from spectral_param._recurrence.node import rnn_fused
from spectral_param._recurrence.reference import rnn_reference
from spectral_param._recurrence.sequence import Cell, Rows


def _training(module: nn.Module, x: Tensor) -> Run:
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
    rows = Rows(short.flatten(0, 1), None, [batch] * len(short))
    reference = rnn_reference(cell.recurrence()[0], rows)
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

    return Case(contenders | {"three products per step": floor})


def cell_in_a_loop(n: int, batch: int = 16, steps: int = 200) -> Case:
    """Return a training step of an RNNCell whose weight a loop reads at every time step.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The case: constraints of this library and of torch, with and without torch's cache.
    """
    torch.manual_seed(0)
    x = torch.randn(steps, batch, 8)
    kinds: dict[str, Callable[[nn.Module], object]] = {
        "ScaledCayley": lambda cell: sp.constrain(cell, "weight_hh", sp.ScaledCayley()),
        "Householder(16)": lambda cell: sp.constrain(
            cell, "weight_hh", sp.Householder(min(16, n)), init="paper"
        ),
        "LyapunovForm": lambda cell: sp.constrain(cell, "weight_hh", sp.LyapunovForm()),
        "torch, orthogonal": lambda cell: parametrizations.orthogonal(cell, "weight_hh"),
        "unconstrained": lambda cell: cell,
    }
    contenders = {}
    for name, constrain in kinds.items():
        for is_cached in (False, True) if name != "unconstrained" else (False,):
            cell = nn.RNNCell(8, n)
            constrain(cell)

            def output(cell: nn.Module = cell, is_cached: bool = is_cached) -> Tensor:
                h = torch.zeros(batch, n)
                with parametrize.cached() if is_cached else contextlib.nullcontext():
                    for x_t in x:
                        h = cell(x_t, h)
                return h

            contenders[f"{name}, cached" if is_cached else name] = training(cell, output)
    return Case(contenders)


def growing_sequence(n: int, batch: int, steps: int) -> Case:
    """Return the contenders of :func:`sequence`, without the products.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The case.
    """
    return Case(_contenders(n, batch, steps))


def linear_sequence(n: int, batch: int, steps: int, read: Literal["last", "all"]) -> Case:
    """A whole sequence without an activation, forward and backward.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.
        read: Which states are.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    x, h0 = torch.randn(steps * batch, 2), torch.zeros(batch, n)
    U, W = (torch.randn(n, 2) / 2**0.5).requires_grad_(), sp.init.henaff_(torch.empty(n, n)).requires_grad_()
    sizes, is_last = [batch] * steps, read == "last"

    def ours() -> Tensor:
        states, last = sp.functional.rnn(x, h0, U, W, None, "identity", sizes, return_output=not is_last)
        return last if states is None else states

    def one_by_one() -> Tensor:
        rows = Rows(x, h0, sizes, return_output=not is_last)
        states, last = rnn_fused(Cell(U, W, None, "identity"), rows)
        return last if states is None else states

    def training(forward: Callable[[], Tensor]) -> Run:
        return lambda: torch.autograd.grad(forward().mean(), (U, W))

    require_close(ours(), one_by_one(), 1e-4, "states")
    return Case(
        {
            "many steps at a time": training(ours),
            "one step after the other": training(one_by_one),
            "torch.nn.RNN, with its activation": _training(nn.RNN(2, n), x.unflatten(0, (steps, batch))),
        },
    )


class CharacterTraining:
    """Training on characters, four steps for each call.

    Args:
        model: The network.
        text: Parts of the text, ``(part, 32, 51)``, over and over.
    """

    AT_ONCE = 4

    def __init__(self, model: nn.ModuleDict, text: torch.Tensor) -> None:
        self._model, self._text = model, text
        self._optimizer = characters.optimizer_for(model)
        self._position, self._state = 0, None

    def __call__(self) -> None:
        """Take four steps."""
        self.take(self.AT_ONCE)

    def take(self, steps: int) -> None:
        """Take some steps.

        Args:
            steps: How many.
        """
        for _ in range(steps):
            part = self._text[self._position % len(self._text)]
            last = characters.step(self._model, self._optimizer, part.mT, self._state)
            self._state = tuple(s.detach() for s in last) if isinstance(last, tuple) else last.detach()
            self._position += 1

    def go_on_from(self, other: CharacterTraining) -> None:
        """Take up what another one has reached.

        Args:
            other: It trains a network of the same parameters.
        """
        self._model.load_state_dict(other._model.state_dict())
        self._optimizer.load_state_dict(copy.deepcopy(other._optimizer.state_dict()))
        self._position, self._state = other._position, other._state


def character_step(long: int, short: int, past: int) -> Case:
    """A whole training step on characters, optimizer included: batch 32, 50 steps.

    Args:
        long: Size of the orthogonal block.
        short: Size of the normalised block.
        past: Steps taken before: the spectrum of the first ones is not that of all others.

    Returns:
        The case.
    """
    n, symbols = long + short, characters.SYMBOLS
    text = characters.characters(32 * 51 * (past + 40)).reshape(-1, 32, 51)
    torch.manual_seed(0)
    tracked, dense = (
        CharacterTraining(characters.model(long, short, solver), text) for solver in ("auto", "dense")
    )
    tracked.take(past)
    dense.go_on_from(tracked)
    lstm = nn.ModuleDict(
        {"embed": nn.Embedding(symbols, n), "rnn": nn.LSTM(n, n), "head": nn.Linear(n, symbols)}
    )
    contenders: dict[str, Run] = {
        "ENRNN": tracked,
        "ENRNN, solver dense": dense,
        f"torch.nn.LSTM({n})": CharacterTraining(lstm, text),
    }
    return Case(
        contenders,
        dict.fromkeys(contenders, CharacterTraining.AT_ONCE),
    )
