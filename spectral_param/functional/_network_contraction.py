"""The contraction certificate of a recurrent network, or the reason why none is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param.functional._comparison import Layer, comparison_root
from spectral_param.functional._contraction import coordinates
from spectral_param.functional._diagonal_scaling import scaled
from spectral_param.functional._gate_weights import Weights, layer_is_bounded
from spectral_param.functional._proven_norm import norm_bound

_EPS = float(np.finfo(np.float64).eps)


class Contraction(NamedTuple):
    r"""A proof of contraction, or what prevents a proof; see :func:`spectral_param.analysis.contraction`.

    Attributes:
        rate: A number r <= 1 such that each step multiplies the distance of two states by at most r. None if
            no such number is proven.
        scaling: The positive divisors d of the entries of the state in the norm. A tensor of the shape of the
            state without the batch; for an LSTM a pair of tensors, for h and c; for a ``ModuleList`` a list.
            None if no rate is proven.
        starts: The rate holds for initial states whose moduli are at most these bounds, in the layout of
            ``scaling``. The bounds are 1 for h of a gated network, κ (the bound of the cells) for c of an
            LSTM, and infinite for a network without gates.
        norm: The norm in which the difference δ of two states is measured. ``"max"`` is
            :math:`\max_i |δ_i|/d_i` over all states. ``"2"`` is the largest 2-norm of δ/d over the layers; a
            network without gates uses this norm if the proven rate is smaller.
        obstacle: The layer, and its gate or bias, that prevents a proof. None if a rate is proven.
    """

    rate: float | None
    scaling: Tensor | tuple[Tensor, Tensor] | list[object] | None
    starts: Tensor | tuple[Tensor, Tensor] | list[object]
    norm: Literal["max", "2"]
    obstacle: str | None

    def __repr__(self) -> str:
        return summary(self)


def summary(result: Any) -> str:
    """Return the repr of a named tuple, with the shapes of tensors in place of their entries."""

    def text(value: object) -> str:
        if isinstance(value, Tensor):
            return f"<tensor of shape {tuple(value.shape)}>"
        if isinstance(value, (tuple, list)):
            return f"[{', '.join(map(text, value))}]"
        return repr(value)

    fields = ", ".join(f"{name}={text(value)}" for name, value in result._asdict().items())
    return f"{type(result).__name__}({fields})"


@dataclasses.dataclass(frozen=True)
class Proof:
    """A rate, and one array d for each layer and direction; see :class:`Contraction`."""

    rate: float | None
    scalings: list[list[Array]]
    norm: Literal["max", "2"] = "max"
    obstacle: str | None = None


def prove(layers: Sequence[Sequence[Weights]]) -> Proof:
    """Return the least rate that is found for layers of one or two directions.

    Layers of one direction are proven together, in one norm of the states of all layers. With two directions,
    each layer and direction has its own proof, which treats the inputs of the layer as given.
    """
    if all(len(layer) == 1 for layer in layers):
        chain = [layer[0] for layer in layers]
        rate, found, norm = _chain(chain)
        if rate is None:
            return Proof(None, [], obstacle=_obstacle(chain))
        return Proof(rate, [[d] for d in found], norm)
    each = [[_chain([direction]) for direction in layer] for layer in layers]
    kinds = {norm for layer in each for _, _, norm in layer}
    norm = "2" if kinds == {"2"} else "max"
    if len(kinds) > 1:  # One norm for all layers.
        each = [[_chain([direction], only_max=True) for direction in layer] for layer in layers]
    rates = [rate for layer in each for rate, _, _ in layer]
    proven = [rate for rate in rates if rate is not None]
    if len(proven) < len(rates):
        return Proof(None, [], obstacle=_obstacle([direction for layer in layers for direction in layer]))
    return Proof(max(proven), [[found[0] for _, found, _ in layer] for layer in each], norm)


def _chain(
    chain: list[Weights], only_max: bool = False
) -> tuple[float | None, list[Array], Literal["max", "2"]]:
    """Return a rate of at most 1 (None if none is proven), the scaling d of each layer, and the norm."""
    rate, found = _in_max_norm(chain)
    if only_max or any(layer.kind != "RNN" for layer in chain):
        return rate, found, "max"
    other, theirs = _in_2_norm(chain)
    if other is not None and (rate is None or other < rate):
        return other, theirs, "2"
    return rate, found, "max"


def _in_max_norm(chain: list[Weights]) -> tuple[float | None, list[Array]]:
    cuts = np.cumsum([layer.states for layer in chain])[:-1]
    for holds in (False, True):
        if not all((holds and layer.kind == "GRU") or layer_is_bounded(layer) for layer in chain):
            continue
        comparisons = [layer.comparison(k > 0, holds) for k, layer in enumerate(chain)]
        root = comparison_root(comparisons, start=_start(chain))
        if root.rate <= 1:
            # An update gate near 1 keeps the state as it is. So a GRU whose gates may reach 1 has no rate
            # below 1.
            held = holds and any(layer.kind == "GRU" for layer in chain)
            return 1.0 if held else root.rate, np.split(root.scaling, cuts)
    return None, []


def _start(chain: list[Weights]) -> Array | None:
    """Return a first scaling d of all layers, from the d of each layer.

    The d of layer k = 0, 1, ... is scaled to a largest entry of 1e4ᵏ, so that the inputs from the layer
    before have little weight.
    """
    known = [layer.scaling for layer in chain if layer.scaling is not None]
    if len(known) < len(chain):
        return None
    return np.concatenate([1e4**k * (d / d.max()) for k, d in enumerate(known)])


def _in_2_norm(chain: list[Weights]) -> tuple[float | None, list[Array]]:
    """Return a rate in diagonal coordinates Θ_l of each layer l, and d = g_l/Θ_l with a number g_l per layer.

    Let e_l be the 2-norm of Θ_l times the difference of two states of layer l, r_l = ‖Θ_l U_l Θ_l⁻¹‖ and
    k_l = ‖Θ_l W_l Θ_{l-1}⁻¹‖. Then e_l⁺ <= r_l e_l + k_l e_{l-1}⁺ after a step. The right side is a
    comparison function with one state for each layer; its root gives the rate and the g_l.
    """
    thetas = [coordinates(layer.hidden) for layer in chain]
    layers = []
    for k, (layer, theta) in enumerate(zip(chain, thetas, strict=True)):
        row = [norm_bound(scaled(layer.hidden, theta))]
        if k:
            row.append(norm_bound(theta[:, None] * layer.inputs / thetas[k - 1]))
        linear = np.array([row]) * (1 + 4 * _EPS)
        layers.append(Layer(linear, np.zeros_like(linear), np.zeros_like(linear), slice(None)))
    root = comparison_root(layers)
    if not root.rate <= 1:
        return None, []
    return root.rate, [g / theta for g, theta in zip(root.scaling, thetas, strict=True)]


def _obstacle(layers: Sequence[Weights]) -> str:
    """Return text that names the first layer for which no rate is proven, and says why."""
    for layer in layers:
        if layer.kind == "RNN":
            if _chain([layer])[0] is None:
                return (
                    f"{layer.name}: the recurrent weight is too large: no diagonal coordinates give it a "
                    "norm of at most 1. Take spectral_param.nn.ContractingRNN, or scale it by "
                    "spectral_param.init.echo_state_."
                )
            continue
        if _in_max_norm([layer])[0] is None:
            return _of_gates(layer)
    return (
        "the layers together: each one has a rate, but two of them have the rate 1, so that differences may "
        "grow on the way. Give an input_bound, or take a smaller rate."
    )


def _of_gates(layer: Weights) -> str:
    """Return text that says which gate and which bias of a layer prevent a proof."""
    gate, suffix = ("update", "z") if layer.kind == "GRU" else ("forget", "f")
    reach, rest = layer.reach()
    unit = int(np.argmin(rest))
    place = f"unit {unit}, where both biases together are {layer.gate(suffix)[2][unit]:.3g}"
    if not layer_is_bounded(layer) and layer.kind == "LSTM":
        return (
            f"{layer.name}: the forget gate can reach 1 ({place}): pass input_bound, the largest entry that "
            "an input has."
        )
    holds = not layer_is_bounded(layer)
    d = comparison_root([layer.comparison(False, holds)]).scaling
    parts = layer.parts(d[: layer.units])
    largest = max(parts, key=lambda name: parts[name])
    detail = f"The {gate} gate can reach {reach[unit]:.4g} ({place})."
    if layer.kind == "GRU" and largest == "reset":
        k = int(np.argmax(np.abs(layer.candidate_bias)))
        bias = layer.candidate_bias[k]
        detail += f" The candidate's recurrent bias adds to it, up to {bias:.3g} (unit {k})."
    return (
        f"{layer.name}: the recurrent weights are too large, most of all those of the {largest} gate. "
        f"{detail} init.contracting_ scales them; nn.ContractingGRU keeps a rate in training."
    )


def shaped(arrays: Sequence[Sequence[Array]], layers: Sequence[Sequence[Weights]], is_cell: bool) -> object:
    """Return the arrays of all layers and directions as tensors, in the shapes of torch's states."""
    flat = [array for layer in arrays for array in layer]
    kind, n = layers[0][0].kind, layers[0][0].units
    stacked = torch.from_numpy(np.stack(flat))
    parts = stacked.split(n, dim=1)
    found = tuple(part[0].clone() if is_cell else part.clone() for part in parts)
    return found if kind == "LSTM" else found[0]


def starts_of(layer: Weights) -> Array:
    """Return bounds on the moduli of a layer's initial states; within them a certificate holds."""
    if layer.kind == "RNN":
        return np.full(layer.units, np.inf)
    ones = np.ones(layer.units)
    return ones if layer.kind == "GRU" else np.concatenate([ones, layer.cell_bound()])
