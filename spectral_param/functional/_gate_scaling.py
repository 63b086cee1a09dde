"""Recurrent weights of a given GRU or LSTM, scaled by the largest factors with a proven rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from spectral_param._matrices import Array
from spectral_param.errors import NotProvenError
from spectral_param.functional._checks import check_module, is_finite
from spectral_param.functional._gate_weights import Weights, has_rate
from spectral_param.functional._network_contraction import Contraction, Proof, prove, shaped, starts_of
from spectral_param.functional._recurrent_modules import check_input_bound, refuse, torch_layers

_NAME = "contracting_"
_KINDS = (nn.GRU, nn.GRUCell, nn.LSTM, nn.LSTMCell)
# Each layer by itself gets the requested rate times 1 minus a margin. Margins are tried in order. For a
# single layer the margin 0 is enough. A stack needs a larger margin, because the rate proven for the stack is
# slightly larger than the rates of its layers. Bisection between the last two margins tried finds the least
# margin to ``_CLOSE``.
_MARGINS = (0.0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)
_CLOSE = 1e-8


@torch.no_grad()
def scale_gates_(module: nn.Module, rate: float, input_bound: float | None) -> Contraction:
    """Scale recurrent weights in place; see :func:`spectral_param.init.contracting_`."""
    check_module(module, "module")
    if type_before_parametrizations(module) not in _KINDS:
        refuse(
            module,
            _NAME,
            "a torch.nn.GRU or LSTM, or a cell of them",
            "The weight of a network without gates is scaled by spectral_param.init.echo_state_, and "
            "spectral_param.nn.ContractingGRU contracts as it is.",
        )
    if is_parametrized(module):
        raise ValueError(
            f"{_NAME}: module: expected a module without parametrizations, got one with some. Scale first, "
            "or call spectral_param.remove(module)."
        )
    if not (is_finite(rate) and 0 < rate <= 1):
        raise ValueError(
            f"rate: expected a number, 0 < rate <= 1, got {rate!r}. Beyond 1 nothing is forgotten."
        )
    bound = check_input_bound(input_bound)
    is_cell = isinstance(module, nn.RNNCellBase)
    layers = torch_layers(module, bound, _NAME)
    flat = [each for row in layers for each in row]
    for layer in flat:
        _check_possible(layer, rate)
    proof = prove(layers)
    if not _is_proven(proof, rate):
        _Scaling(module, layers, rate).search()
        layers = torch_layers(module, bound, _NAME)
        proof = prove(layers)
    starts = shaped([[starts_of(each) for each in row] for row in layers], layers, is_cell)
    scaling: Any = shaped(proof.scalings, layers, is_cell)
    return Contraction(proof.rate, scaling, starts, proof.norm, proof.obstacle)  # type: ignore[arg-type]


class _Scaling:
    """Scales the recurrent weights of each layer, so that the stack of all layers has the requested rate."""

    def __init__(self, module: nn.Module, layers: Sequence[Sequence[Weights]], rate: float) -> None:
        self.module, self.rate, self.bound = module, rate, layers[0][0].input_bound
        self.layers = [each for row in layers for each in row]
        self.weights = _recurrent(module)
        self.kept = [weight.clone() for weight in self.weights]

    def search(self) -> None:
        """Scale the recurrent weights by the largest factors found.

        Raises:
            NotProvenError: If no factors give the rate. The weights are then unchanged.
        """
        least, most = [0.0] * len(self.weights), [1.0] * len(self.weights)
        failed = 0.0
        for margin in _MARGINS:
            factors = self.scale(margin, least, most)
            if self.is_proven():
                break
            failed, most = margin, factors
        else:
            self.multiply([1.0] * len(self.weights))
            raise NotProvenError(
                f"{_NAME}: expected layers that have the rate {self.rate} together, got none for recurrent "
                "weights that give each of them half of it. Scale down weight_ih of the later layers, or "
                "take fewer."
            )
        while margin - failed > _CLOSE:
            middle = (failed + margin) / 2
            tried = self.scale(middle, factors, most)
            if self.is_proven():
                margin, factors = middle, tried
            else:
                failed, most = middle, tried
        self.multiply(factors)

    def scale(self, margin: float, least: Sequence[float], most: Sequence[float]) -> list[float]:
        """Scale each layer to the rate times 1 - ``margin``, by factors from ``least`` to ``most``."""
        rate, ranges = self.rate * (1 - margin), zip(self.layers, self.weights, least, most, strict=True)
        factors = [_factor(layer, rate, weight.dtype, low, high) for layer, weight, low, high in ranges]
        self.multiply(factors)
        return factors

    def multiply(self, factors: Sequence[float]) -> None:
        for weight, start, t in zip(self.weights, self.kept, factors, strict=True):
            weight.copy_(start * t)

    def is_proven(self) -> bool:
        """Return whether the stack of all layers is proven to have the rate."""
        return _is_proven(prove(torch_layers(self.module, self.bound, _NAME)), self.rate)


def _is_proven(proof: Proof, rate: float) -> bool:
    return proof.rate is not None and proof.rate <= rate


def _recurrent(module: Any) -> list[Tensor]:
    """Return the recurrent weights, in the order of layers and directions."""
    if isinstance(module, nn.RNNCellBase):
        return [module.weight_hh]
    return [tensors[1] for tensors in module.all_weights]


def _check_possible(layer: Weights, rate: float) -> None:
    """Raise if the layer does not have the rate even with recurrent weights of zero."""
    reach = layer.scaled(0.0).reach()[0]
    unit = int(np.argmax(reach))
    if reach[unit] < rate or (layer.kind == "GRU" and rate == 1):
        return
    gate, suffix = ("update", "z") if layer.kind == "GRU" else ("forget", "f")
    _, W, b = layer.gate(suffix)
    if not math.isfinite(layer.input_bound) and W[unit].any():
        remedy = "Pass input_bound, the largest entry that an input has."
    else:
        remedy = (
            f"Its biases b_ih + b_hh = {b[unit]:.3g} and inputs of at most {layer.input_bound:.3g} give an "
            f"argument of {_argument(W[unit], b[unit], layer.input_bound):.3g} without any recurrent weight: "
            "lower that bias, take a larger rate, or spectral_param.nn.ContractingGRU, which clamps gates."
        )
    raise ValueError(
        f"rate: expected one above the largest value of the {gate} gates, got {rate!r} for {layer.name}, "
        f"where the {gate} gate of unit {unit} can reach {reach[unit]:.6g}. {remedy}"
    )


def _argument(inputs: Array, bias: float, input_bound: float) -> float:
    return float(inputs.sum() * input_bound if inputs.any() else 0.0) + float(bias)


def _factor(layer: Weights, rate: float, dtype: torch.dtype, least: float, most: float) -> float:
    """Return the largest factor t, to 1e-8, for which a layer with the rounded weights tU has the rate.

    The layer must have the rate for t = ``least``. The result is at most ``most``.
    """
    if has_rate(layer.scaled(most), rate):
        return most
    inside, outside = least, most
    while outside - inside > 1e-8 * outside:
        t = (inside + outside) / 2
        inside, outside = (t, outside) if has_rate(layer.scaled(t), rate) else (inside, t)
    return inside * (1 - 4 * torch.finfo(dtype).eps)
