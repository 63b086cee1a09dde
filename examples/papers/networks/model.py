"""A row's network: an embedding for symbols, a recurrent layer, and an output, linear as a rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

import spectral_param as sp
from examples.papers.networks import full_capacity, gated, linear_stack, state_space, unconstrained
from examples.papers.tasks import Task

# What the library's networks are compared with.
BASELINES: dict[str, Callable[..., nn.Module]] = {
    "FullCapacityURNN": full_capacity.FullCapacityURNN,
    "GRU": gated.GRU,
    "IRNN": unconstrained.IRNN,
    "LSTM": gated.LSTM,
    "RNNOrth": unconstrained.RNNOrth,
}
# Built from the library's cells.
BUILT = {"LinearStack": linear_stack.LinearStack, "StateSpaceStack": state_space.StateSpaceStack}
COMPLEX = ("EUNN", "URNN", "FullCapacityURNN", "ScuRNN")

State = Any
"""A tensor ``(layers, batch, n)``, a pair of them for the LSTM, or None for zeros."""


class SequenceModel(nn.Module):
    """Recurrent network with a linear output, or with hidden layers before it.

    Args:
        recurrent: Layer with the interface of :class:`torch.nn.RNN`.
        output_size: Number of outputs.
        last: Whether to read the last state alone.
        embedding: Of symbols; None for inputs that are features.
        readout_size: Units of a hidden layer of ReLU before the output, or of each such layer.
        readout_dropout: Probability of dropout before each layer of such an output.
    """

    def __init__(
        self,
        recurrent: Any,
        output_size: int,
        last: bool,
        embedding: nn.Embedding | None,
        readout_size: int | list[int] | None = None,
        readout_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.last = last
        self.embedding = embedding
        weight = next(p for p in recurrent.parameters() if p.is_floating_point())
        hidden = [readout_size] if isinstance(readout_size, int) else readout_size or []
        sizes = [recurrent.output_size, *hidden]
        # The output first: seeds of rows that have results give the same initial weights.
        self.output: nn.Module = nn.Linear(sizes[-1], output_size, dtype=weight.dtype)
        if hidden:
            dropout = nn.Dropout(readout_dropout)
            layers = [nn.Linear(m, n, dtype=weight.dtype) for m, n in itertools.pairwise(sizes)]
            below = [module for layer in layers for module in (dropout, layer, nn.ReLU())]
            self.output = nn.Sequential(*below, dropout, self.output)

    def forward(self, x: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Return outputs ``(time, batch, output)``, time 1 for the last state alone, and the last state.

        Args:
            x: Features ``(time, batch, feature)``, or symbols ``(time, batch)``.
            state: The state to begin with.
        """
        states, h_n = self.recurrent(x if self.embedding is None else self.embedding(x), state)
        if self.last:
            # From h_n, so that the backward pass need not walk through a tensor like all states.
            h = (h_n[0] if isinstance(h_n, tuple) else h_n)[-1:]
            states = torch.cat([h.real, h.imag], dim=-1) if h.is_complex() else h
        return self.output(states), h_n


def build(settings: dict[str, Any], task: Task, seed: int, dtype: torch.dtype) -> SequenceModel:
    """Return a new network; the same seed gives the same initial weights.

    Args:
        settings: ``name`` of a class of :mod:`spectral_param.nn`, or of a network here that those are
            compared with, and its arguments. Besides:
            ``start``, the ``angles`` of :class:`spectral_param.nn.ExpRNN`; ``embedding``, the dimension of
            embedded symbols, by default the hidden size;
            ``truncated_orthogonal_coupling``, as section 5.4 of Helfrich and Ye (2020) starts W^(C);
            ``modrelu_bias``, where the bias of modReLU starts, by default at 0;
            ``readout_size`` and ``readout_dropout``, of a hidden layer before the output, or of several.
        task: The task.
        seed: Seed of the initial weights.
        dtype: Real dtype.

    Raises:
        ValueError: If there is no such network, or it has no such argument.
    """
    arguments = dict(settings)
    name = arguments.pop("name", None)
    others = {**BASELINES, **BUILT}
    kind = others.get(name) or (getattr(sp.nn, name) if name in sp.nn.__all__ else None)
    if kind is None:
        known = ", ".join(others)
        raise ValueError(f"network: expected {known} or a class of spectral_param.nn, got {name!r}")
    truncated = arguments.pop("truncated_orthogonal_coupling", False)
    modrelu_bias = arguments.pop("modrelu_bias", None)
    embedded = arguments.pop("embedding", None)
    readout = {key: arguments.pop(key) for key in ("readout_size", "readout_dropout") if key in arguments}
    sizes = readout.get("readout_size", 1)
    if not sizes or np.min(sizes) < 1:
        raise ValueError(f"network: readout_size: expected at least 1, got {sizes}")
    if "readout_dropout" in readout and "readout_size" not in readout:
        raise ValueError("network: readout_dropout: expected a hidden layer, whose size is readout_size")
    if "start" in arguments:  # Its name in rows that have results.
        arguments["angles"] = arguments.pop("start")
    arguments["dtype"] = dtype.to_complex() if name in COMPLEX else dtype
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding = None
        size = task.input_size
        if task.symbols:
            size = embedded or sum(arguments.get(k, 0) for k in ("hidden_size", "long_size", "short_size"))
            embedding = nn.Embedding(task.input_size, size, dtype=dtype)
            # It stands for an input map. How those start, the papers do not say; ours start so.
            nn.init.xavier_uniform_(embedding.weight)
        try:
            recurrent = kind(size, **arguments)
        except TypeError as error:
            raise ValueError(f"network {name}: {error}") from error
        if truncated:
            for cell in recurrent.cells:
                nn.init.orthogonal_(_coupling(cell))
        if modrelu_bias is not None:
            cells = getattr(recurrent, "cells", [])
            biases = [cell.bias for cell in cells if getattr(cell, "nonlinearity", None) == "modrelu"]
            if not biases or any(bias is None for bias in biases):
                raise ValueError(f"network: modrelu_bias: expected a network with that bias, got {name}")
            for bias in biases:
                nn.init.constant_(bias, modrelu_bias)
        return SequenceModel(recurrent, task.output_size, task.last, embedding, **readout)


def _coupling(cell: Any) -> Tensor:
    """Return the original behind the coupling of a cell of two blocks: that of no block."""
    chain = cell.parametrizations["weight_hh"]
    assert isinstance(chain, ParametrizationList)
    constraint = chain[0]
    assert isinstance(constraint, sp.BlockTriangular)
    originals = list(chain.parameters(recurse=False))
    owned = {id(own) for _, owns in constraint.parts(*originals) for own in owns}
    (coupling,) = (original for original in originals if id(original) not in owned)
    return coupling


@torch.no_grad()
def recurrent_blocks(model: nn.Module) -> dict[str, Tensor]:
    """Return the square blocks of each recurrent weight by name: its diagonal blocks, or its gates.

    Args:
        model: The network.
    """
    found: dict[str, Tensor] = {}
    for prefix, part in model.named_modules():
        names = [name for name, _ in part.named_parameters(recurse=False) if name.startswith("weight_hh")]
        if is_parametrized(part, "weight_hh"):
            names = ["weight_hh"]
        for name in names:
            W = getattr(part, name).detach()
            rows, n = W.shape
            sizes = getattr(part, "block_sizes", (n,))
            blocks = (
                W.split(n)
                if rows > n
                else [row.split(sizes, 1)[i] for i, row in enumerate(W.split(list(sizes)))]
            )
            for i, block in enumerate(blocks):
                found[f"{prefix}.{name}[{i}]" if len(blocks) > 1 else f"{prefix}.{name}"] = block
    return found


def spectral_radii(model: nn.Module) -> dict[str, float | None]:
    """Return the spectral radius of each block of the recurrent weights; None where it is not finite.

    Args:
        model: The network.
    """
    return {
        # LAPACK may kill the process for what is not finite.
        name: float(torch.linalg.eigvals(block).abs().max()) if block.isfinite().all() else None
        for name, block in recurrent_blocks(model).items()
    }
