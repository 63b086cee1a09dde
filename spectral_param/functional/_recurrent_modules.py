"""The weights, in double precision, of the layers of torch's recurrent networks and cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._matrices import Array
from spectral_param.errors import NotFiniteError, UnsupportedDtypeError
from spectral_param.functional._checks import described, is_finite
from spectral_param.functional._gate_weights import Kind, Weights, as_array

#: Modules of torch, with the kind of their recurrence.
KINDS: dict[type[nn.Module], Kind] = {
    nn.RNN: "RNN",
    nn.RNNCell: "RNN",
    nn.GRU: "GRU",
    nn.GRUCell: "GRU",
    nn.LSTM: "LSTM",
    nn.LSTMCell: "LSTM",
}


def check_input_bound(input_bound: Any) -> float:
    """Return the bound of the inputs as a float; None (no known bound) becomes infinity."""
    if input_bound is None:
        return math.inf
    if not (is_finite(input_bound) and input_bound > 0):
        raise ValueError(
            f"input_bound: expected a finite number > 0 or None, got {input_bound!r}. It is the largest "
            "entry that an input can have: of data x, x.abs().max()."
        )
    return float(input_bound)


def torch_layers(module: nn.Module, input_bound: float, name: str) -> list[list[Weights]]:
    """Return the weights of a torch network or cell: for each layer, a list of one or two directions.

    Args:
        module: A module whose class is one of ``KINDS``.
        input_bound: A bound on the moduli of the entries of the inputs.
        name: The name of the calling function, for messages.
    """
    kind = KINDS[type_before_parametrizations(module)]
    check_settings(module, name)
    tensors: Any = module
    activation = getattr(module, "nonlinearity", "tanh")
    if isinstance(module, nn.RNNCellBase):
        parts = _parts(tensors, "", module.bias)
        return [[layer(kind, "the cell", parts, input_bound, activation)]]
    found: list[list[Weights]] = []
    for k in range(tensors.num_layers):
        directions = []
        for suffix, label in (("", ""), ("_reverse", ", backwards"))[: 2 if tensors.bidirectional else 1]:
            bound = input_bound if k == 0 else found[-1][0].output_bound
            parts = _parts(tensors, f"_l{k}{suffix}", tensors.bias)
            directions.append(layer(kind, f"layer {k}{label}", parts, bound, activation))
        found.append(directions)
    return found


def layer(
    kind: Kind,
    label: str,
    parts: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    input_bound: float,
    activation: str = "tanh",
    limit: Array | float = math.inf,
    scaling: Array | None = None,
) -> Weights:
    """Return the ``Weights`` of one layer, made of weight_ih, weight_hh, bias_ih and bias_hh.

    Raises:
        NotFiniteError: If a weight is not finite.
        UnsupportedDtypeError: If a weight is complex.
    """
    for tensor in parts:
        if tensor is not None and tensor.is_complex():
            raise UnsupportedDtypeError(
                f"{label}: expected real weights, got {tensor.dtype}. Comparison of states is for real units."
            )
    W, U, *biases = (None if tensor is None else as_array(tensor) for tensor in parts)
    assert W is not None
    assert U is not None
    n = U.shape[1]
    b_ih, b_hh = (np.zeros(len(U)) if b is None else b for b in biases)
    if not all(np.isfinite(array).all() for array in (W, U, b_ih, b_hh)):
        raise NotFiniteError(f"{label}: expected finite weights, got NaN or infinite ones.")
    output = 1.0 if kind != "RNN" or activation == "tanh" else math.inf
    return Weights(label, kind, U, W, b_ih + b_hh, b_hh[-n:], input_bound, output, limit, scaling)


def check_settings(module: nn.Module, name: str) -> None:
    """Raise for settings to which the proof does not apply: dropout in training mode, and projections."""
    settings: Any = module
    if module.training and getattr(module, "dropout", 0) > 0 and getattr(module, "num_layers", 1) > 1:
        raise ValueError(
            f"{name}: expected a network without dropout between its layers, got dropout={settings.dropout} "
            "in training, where two runs read different states. Call module.eval() first."
        )
    if getattr(module, "proj_size", 0):
        raise ValueError(
            f"{name}: expected proj_size=0, got {settings.proj_size}. Projected states have no known bound: "
            "take a smaller hidden_size."
        )


def refuse(module: object, name: str, expected: str, remedy: str) -> None:
    """Raise an error for a module of a kind that the caller does not support."""
    raise ValueError(f"{name}: module: expected {expected}, got {described_module(module)}. {remedy}")


def described_module(module: object) -> str:
    """Return a description of a module, for messages."""
    if isinstance(module, nn.Module):
        kind = type_before_parametrizations(module)
        return f"a {kind.__module__}.{kind.__qualname__}"
    return described(module)


def _parts(module: Any, suffix: str, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    names = (f"weight_ih{suffix}", f"weight_hh{suffix}")
    W, U = (getattr(module, name) for name in names)
    if not bias:
        return W, U, None, None
    return W, U, getattr(module, f"bias_ih{suffix}"), getattr(module, f"bias_hh{suffix}")
