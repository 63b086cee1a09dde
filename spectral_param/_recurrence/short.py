"""The recurrence of a small real network in numpy, whose calls take a third of the time of torch's calls.

The formulas are in :mod:`spectral_param._recurrence.fused`. Numpy computes the single steps. Torch computes
products and sums over all steps, on memory that numpy and torch share. Numpy gets copies of the parameters,
because FSDP frees the memory of parameters between uses, and PyTorch refuses to free memory that numpy has
seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param._recurrence.activation import Named
from spectral_param._recurrence.reference import rnn_reference
from spectral_param._recurrence.sequence import (
    Cell,
    Gradients,
    Passed,
    Rows,
    Tensors,
    add_to_last,
    previous,
    whole,
)


class Plan(NamedTuple):
    """Runs a small real cell forward and backward over a sequence, for the tensors x, h0, U, W and b.

    Attributes:
        nonlinearity: The activation.
        sizes: Number of rows of each step.
        return_output: Whether all states are returned. All states are stored for the backward pass anyway.
    """

    nonlinearity: str
    sizes: list[int]
    return_output: bool

    def forward(self, tensors: Tensors) -> Passed:
        """Return all states, the last states and, for the backward pass, all states again."""
        x, h0, U, W, b, *_ = tensors
        sizes = self.sizes
        # The rows of h first contain U x_t, and are then overwritten by h_t.
        h = x.clone(memory_format=torch.contiguous_format) if U is None else torch.mm(x, U.mT)
        if b is not None and self.nonlinearity != "modrelu":
            h += b
        # The bias gets a row for each sequence, because numpy takes twice as long to broadcast one row.
        bias = None if b is None else _copy(b.expand(sizes[0], -1))
        matrix, state, last = _copy(W).T, None if h0 is None else _copy(h0), []
        with np.errstate(all="ignore"):  # NaN and infinity are passed on without a warning.
            for size, steps in itertools.groupby(_steps(h, sizes), len):
                activate_ = _activation(self.nonlinearity, None if bias is None else bias[:size])
                if state is not None:
                    last.append(state[size:])
                    state = state[:size]
                for z in steps:
                    if state is not None:
                        z += state.dot(matrix)
                    if activate_ is not None:
                        activate_(z)
                    state = z
        # The sequences that end last come first.
        ended = torch.from_numpy(np.concatenate([state, *last[::-1]]))
        return h if self.return_output else None, ended, h, None, None

    def backward(self, tensors: Tensors, kept: Tensors, grads: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of x, h0, U, W and b that are needed."""
        x, h0, U, W, b, *_ = tensors
        h, sizes, nonlinearity = kept[0], self.sizes, self.nonlinearity
        g_states, g_last = grads
        # `delta` first contains G_t (see the formulas in fused), and is then overwritten by δ_t.
        delta = (
            torch.zeros_like(h) if g_states is None else g_states.clone(memory_format=torch.contiguous_format)
        )
        if g_last is not None:
            add_to_last(delta, g_last, whole(sizes))
        factor = None
        if nonlinearity == "tanh":
            factor = (h * h).neg_().add_(1)
        elif nonlinearity != "identity":
            factor = torch.ne(h, 0, out=torch.empty_like(h))
        matrix, later = _copy(W), None
        factors: Sequence[Any] = [None] * len(sizes) if factor is None else _steps(factor, sizes)
        with np.errstate(all="ignore"):
            for step, f in zip(_steps(delta, sizes)[::-1], factors[::-1], strict=True):
                if later is not None:
                    earlier = step if len(step) == len(later) else step[: len(later)]
                    earlier += later.dot(matrix)
                if f is not None:
                    step *= f
                later = step
        first = delta[: sizes[0]]
        g_W = g_b = None
        if needs[3]:
            g_W = delta[sizes[0] :].mT @ previous(h, sizes)
            if h0 is not None:
                g_W.addmm_(first.mT, h0)
        if b is not None and needs[4]:
            g_b = (h.sgn().mul_(delta) if nonlinearity == "modrelu" else delta).sum(dim=0)
        return (
            None if not needs[0] else delta if U is None else delta @ U,
            first @ W if needs[1] and h0 is not None else None,
            # The gradient δᵀx of U is computed as (xᵀδ)ᵀ, which is several times faster with few features.
            (x.mT @ delta).mT.contiguous() if needs[2] and U is not None else None,
            g_W,
            g_b,
        )

    def reference(
        self, x: Tensor, h0: Tensor, U: Tensor, W: Tensor, b: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor]:
        """Return all states and the last states, computed by a loop of autograd operations."""
        return rnn_reference(Cell(U, W, b, cast("Named", self.nonlinearity)), Rows(x, h0, self.sizes))


def _copy(A: Tensor) -> Array:
    return A.clone(memory_format=torch.contiguous_format).numpy()


def _steps(t: Tensor, sizes: list[int]) -> list[Array]:
    """Return a numpy view of the rows of each step."""
    array = t.numpy()
    if sizes[0] == sizes[-1]:
        return list(array.reshape(len(sizes), sizes[0], -1))
    stops = itertools.accumulate(sizes)
    return [array[stop - size : stop] for stop, size in zip(stops, sizes, strict=True)]


def _activation(nonlinearity: str, bias: Array | None) -> Callable[[Array], object] | None:
    """Return the in-place activation for rows shaped like ``bias``; None for the identity."""
    if nonlinearity == "relu":
        return lambda z: np.maximum(z, 0, out=z)
    if nonlinearity == "tanh":
        return lambda z: np.tanh(z, out=z)
    if nonlinearity == "identity" or bias is None:
        return None
    if bool(bias.max() <= 0):
        minus_bias = -bias

        # For b ≤ 0, modReLU(z) = z - clamp(z, b, -b).
        def modrelu_(z: Array) -> None:
            middle = np.maximum(z, bias)
            z -= np.minimum(middle, minus_bias, out=middle)
    else:
        zeros = np.zeros_like(bias)  # An array, because numpy takes twice as long with the Python number 0.

        def modrelu_(z: Array) -> None:
            sign = np.sign(z)
            z *= sign
            z += bias
            np.maximum(z, zeros, out=z)
            z *= sign

    return modrelu_
