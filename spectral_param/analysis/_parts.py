"""The parts of a network whose constants multiply: linear maps with activations, and single layers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constants.network import NEUTRAL, Layer, at_scale, product
from spectral_param._constants.repeats import Shape, is_known
from spectral_param._constants.slopes import Slopes, slopes
from spectral_param.analysis import _chain
from spectral_param.analysis._chain import Chain, Scaled
from spectral_param.analysis._chain_newton import tightened
from spectral_param.analysis._linear_maps import CONVOLUTIONS, matrix

_EPS = torch.finfo(torch.float64).eps
#: Largest number of units between the maps of a part for Newton's method.
MOST_UNITS = 2000
# Two maps are multiplied if the relative error of the product is at most this.
_EXACT = 1e-7
_SHAPES = (nn.Flatten, nn.Unflatten)


class Part(NamedTuple):
    """A part of a network.

    Attributes:
        constant: The product of the constants of its layers.
        chain: Its maps and activations; None for a single layer.
    """

    constant: float
    chain: Chain | None


def number_by_norms(layers: Iterable[Layer]) -> float:
    """Return the product of the constants."""
    return product(layer.constant for layer in layers)


def number(layers: Iterable[Layer], steps: int) -> float:
    """Return the product of the constants of the parts."""
    return product(number_of_part(part, steps) for part in parts_of(layers))


def number_of_part(part: Part, steps: int) -> float:
    """Return the least constant that is proven for a part."""
    if part.chain is None:
        return part.constant
    found = [constant_of(each) for each in proven_forms(part.chain, steps)]
    return min([part.constant, *found])


def proven_forms(chain: Chain, steps: int) -> list[Scaled]:
    """Return the chain in good units: by the closed choice, and by the best of ``steps`` Newton steps.

    Raises:
        ValueError: If there are too many units for steps.
    """
    if not all(bool(W.any()) for W in chain.maps):
        return []  # The product of norms is 0.
    closed = _chain.scaled(chain)
    if closed is None:
        return []
    square = _square(closed)
    units = sum(len(W) for W in chain.maps[:-1])
    if not steps or square is None or not units:
        return [closed]
    if units > MOST_UNITS:
        raise ValueError(
            f"steps: expected 0 for layers in a row of more than {MOST_UNITS} units together, got {steps} "
            f"for "
            f"{units}. Leave it out."
        )
    best, least = None, square
    for weights in tightened(closed.chain, closed.weights, square, steps):
        form = _chain.proven(closed.chain, weights)
        if form is not None:
            trial = closed._replace(weights=weights, form=form)
            found = _square(trial)
            if found is not None and found < least:
                best, least = trial, found
    return [closed] if best is None else [closed, best]


def constant_of(found: Scaled) -> float:
    """Return the constant that a form proves."""
    size = _chain.bound(found.form, found.chain.maps[-1], found.chain.errors[-1])
    return math.inf if size is None else at_scale(size, found.exponent)


def _square(found: Scaled) -> float | None:
    size = _chain.bound(found.form, found.chain.maps[-1], found.chain.errors[-1])
    return None if size is None else size * size


def parts_of(layers: Iterable[Layer]) -> list[Part]:
    """Return the parts of a network in their order; warn of convolutions without the size of their inputs."""
    builder = _Builder()
    layers = list(layers)
    unknown = [of.module for of in layers if of.module is not None and not is_known(of.before)]
    if any(type_before_parametrizations(module) in CONVOLUTIONS for module in unknown):
        warnings.warn(
            "without the size of its inputs, a convolution counts by its norm, as with method='norms'. Pass "
            "input_shape, the shape of one input without the batch.",
            stacklevel=4,
        )
    for layer in layers:
        builder.take(layer)
    builder.close()
    return builder.parts


class _Builder:
    """Groups the layers of a network into parts, layer by layer."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._start()

    def _start(self) -> None:
        self.maps: list[Tensor] = []
        self.errors: list[float] = []
        self.slopes: list[Slopes] = []
        self.constants: list[float] = []
        self.pending: Slopes | None = None  # Slopes of the activations since the last map.
        self.shape: Shape = None  # The shape that the last map returns.
        self.is_merged = False

    def take(self, layer: Layer) -> None:
        """Add a layer."""
        kind = None if layer.module is None else type_before_parametrizations(layer.module)
        if kind in NEUTRAL:
            return
        own = None if layer.module is None else slopes(layer.module)
        if own is not None and self.maps:
            self.pending = own if self.pending is None else _composed(self.pending, own)
            self.constants.append(layer.constant)
        elif kind in _SHAPES:
            self._reshape(layer)
        else:
            found = None if own is not None else matrix(layer)
            if found is None:
                self.close()
                self.parts.append(Part(layer.constant, None))
            else:
                self._map(layer, *found)

    def _reshape(self, layer: Layer) -> None:
        """Follow a change of shape that keeps the order of the entries."""
        if is_known(layer.before) and self.shape == layer.before:
            self.shape = layer.after
        elif layer.after == (-1,) and self.shape is not None:
            # If the next layer has as many inputs, there was no other dimension to flatten.
            self.shape = (self.shape[-1],)
        else:
            self.shape = None

    def _map(self, layer: Layer, W: Tensor, error: float, shape: Shape) -> None:
        """Add a linear map, or merge it with the map before."""
        if self.maps and (self.shape is None or self.shape != shape):
            self.close()
        if self.maps and self.pending is None:
            merged = _merged(self.maps[-1], self.errors[-1], W, error)
            if merged is None:
                self.close()
            else:
                self.maps.pop(), self.errors.pop()
                W, error = merged
                self.is_merged = True
        if self.maps and self.pending is not None:
            self.slopes.append(self.pending)
        self.maps.append(W)
        self.errors.append(error)
        self.constants.append(layer.constant)
        self.pending = None
        self.shape = (..., len(W)) if shape is not None and shape[0] is ... else _after(layer, len(W))

    def close(self) -> None:
        """End the part."""
        if not self.maps:
            return
        if self.pending is not None and (len(self.maps) > 1 or self.is_merged):
            self.slopes.append(self.pending)
            self.maps.append(torch.eye(len(self.maps[-1]), dtype=torch.float64, device="cpu"))
            self.errors.append(0.0)
        is_chain = len(self.maps) > 1 or self.is_merged
        chain = Chain(self.maps, self.slopes, self.errors) if is_chain else None
        self.parts.append(Part(product(self.constants), chain))
        self._start()


def _after(layer: Layer, size: int) -> Shape:
    """Return the shape of an output."""
    return layer.after if is_known(layer.after) else (size,)


def _composed(first: Slopes, second: Slopes) -> Slopes:
    """Return the slopes of one activation after another."""
    ends = [a * b for a in first for b in second]
    return min(ends) - _EPS * abs(min(ends)), max(ends) + _EPS * abs(max(ends))


def _merged(first: Tensor, error: float, second: Tensor, other: float) -> tuple[Tensor, float] | None:
    """Return the product of two maps and its error; None if the error is not small."""
    W = second @ first
    a, b = (1.01 * float(each.norm()) for each in (second, first))
    wrong = first.shape[0] * _EPS * a * b + a * error + b * other + error * other
    return (W, wrong) if wrong <= _EXACT * float(W.norm()) else None
