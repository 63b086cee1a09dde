"""The weights of recurrent layers in double precision, and their comparison functions."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param._precision import to_double
from spectral_param.functional._comparison import Layer, comparison_root

_EPS = float(np.finfo(np.float64).eps)
Kind = Literal["RNN", "GRU", "LSTM"]
_LABELS = {
    "GRU": {"r": "reset", "z": "update", "n": "candidate"},
    "LSTM": {"i": "input", "f": "forget", "g": "candidate", "o": "output"},
}


def as_array(t: Tensor) -> Array:
    """Return a copy of the values of a tensor in double precision."""
    found: Array = to_double(t.detach()).cpu().numpy().copy()
    return found


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of one layer in one direction, in double precision.

    Attributes:
        name: The name of the layer, for messages.
        kind: The kind of recurrence: "RNN", "GRU" or "LSTM".
        hidden: The recurrent weight U, ``(gates · n, n)``, in torch's order of the gates.
        inputs: The input weight W, ``(gates · n, m)``, in the same order of the gates.
        bias: The sum of the input bias and the recurrent bias, ``(gates · n,)``. Not used for "RNN".
        candidate_bias: The recurrent bias b_hn of the candidate of a GRU, ``(n,)``.
        input_bound: A bound on the moduli of the entries of an input; infinite if no bound is known.
        output_bound: A bound on the moduli of the entries of h; infinite for ReLU.
        limit: The largest arguments of the update gates, ``(n,)``, if the arguments are clamped.
        scaling: A scaling d of the states that proves a rate, ``(n,)``, or None if no such d is known.
    """

    name: str
    kind: Kind
    hidden: Array
    inputs: Array
    bias: Array
    candidate_bias: Array
    input_bound: float
    output_bound: float = 1.0
    limit: Array | float = math.inf
    scaling: Array | None = None

    @property
    def units(self) -> int:
        """Number of hidden units."""
        return int(self.hidden.shape[1])

    @property
    def states(self) -> int:
        """Number of states: the entries of h, and for an LSTM also the entries of c."""
        return self.units * (2 if self.kind == "LSTM" else 1)

    def scaled(self, factor: float) -> Weights:
        """Return the layer with its recurrent weights multiplied by a factor."""
        return dataclasses.replace(self, hidden=factor * self.hidden)

    def gate(self, name: str) -> tuple[Array, Array, Array]:
        """Return |U|, |W| and b of the gate ``name``: r, z or n of a GRU, and i, f, g or o of an LSTM."""
        names = {"GRU": "rzn", "LSTM": "ifgo", "RNN": "n"}[self.kind]
        n = self.units
        rows = slice(names.index(name) * n, (names.index(name) + 1) * n)
        return np.abs(self.hidden[rows]), np.abs(self.inputs[rows]), self.bias[rows]

    def reach(self) -> tuple[Array, Array]:
        """Return the largest values (z̄ or f̄) of the gate that holds the state, and 1 minus these values."""
        U, W, b = self.gate("z" if self.kind == "GRU" else "f")
        rows, inputs = U.sum(axis=1), W.sum(axis=1)
        # A gate whose input weights are zero is bounded even if no bound of the inputs is known.
        with np.errstate(invalid="ignore"):
            inputs = np.where(inputs > 0, inputs * self.input_bound, 0.0)
        # The bias b can be negative, so terms of this sum can cancel. So the rounding error is relative to
        # the sum of the moduli.
        rounding = (sum(U.shape) + W.shape[1] + 8) * _EPS
        a = np.minimum(inputs + rows + b + rounding * (inputs + rows + np.abs(b)), self.limit)
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-a)), 1 / (1 + np.exp(a))

    def cell_bound(self) -> Array:
        """Return the bound κ of the cells of an LSTM; it is infinite where a forget gate can reach 1."""
        with np.errstate(divide="ignore"):
            return 1 / self.reach()[1]

    def comparison(self, reads: bool, holds: bool = False) -> Layer:
        """Return the comparison function of the layer.

        Args:
            reads: Whether the inputs of the two compared runs may differ, as for every layer after the first.
            holds: Whether to prove only the rate 1, for which the update gates of a GRU may reach 1.
        """
        if self.kind == "RNN":
            linear = self._beside(self.gate("n"), reads)
            nothing = np.zeros_like(linear)
            return Layer(linear, nothing, nothing, slice(None))
        return self._gru(reads, holds) if self.kind == "GRU" else self._lstm(reads)

    def parts(self, d: Array) -> dict[str, float]:
        """Return the contribution of each gate to g(d)/d, averaged over the units, for messages."""
        h = d[: self.units]
        found = {}
        for name, label in _LABELS[self.kind].items():
            factor = np.ones(self.units)
            if name == "r":
                factor = self._products() / 4
            elif name == "f":
                factor = self.cell_bound() / 4
            elif name in "io":
                factor = factor / 4
            found[label] = float((factor * (self.gate(name)[0] @ h) / h).mean())
        return found

    def _beside(self, gate: tuple[Array, Array, Array], reads: bool) -> Array:
        U, W, _ = gate
        return np.concatenate([U, W], axis=1) if reads else U

    def _products(self) -> Array:
        """Return the bounds q of |U_n h + b_hn| for all h with entries in [-1, 1]."""
        found: Array = self.gate("n")[0].sum(axis=1) + np.abs(self.candidate_bias)
        return found

    def _gru(self, reads: bool, holds: bool) -> Layer:
        z, rest = self.reach()
        A = z[:, None] * self._beside(self.gate("z"), reads)
        C = self._beside(self.gate("n"), reads) + self._products()[:, None] / 4 * self._beside(
            self.gate("r"), reads
        )
        if holds:
            return Layer(A, A, C, slice(None), holds=True)
        A, C = rest[:, None] * A, rest[:, None] * C
        linear = A.copy()
        linear[:, : self.units] += np.diag(z)
        return Layer(linear, A, C, slice(None))

    def _lstm(self, reads: bool) -> Layer:
        n = self.units
        f, _ = self.reach()
        i, forget, g, o = (self._beside(self.gate(name), reads) for name in "ifgo")

        def placed(of_h: Array, of_c: Array | None = None) -> Array:
            """Return a matrix with the columns in the order h, c, inputs."""
            c = np.zeros((n, n)) if of_c is None else of_c
            return np.concatenate([of_h[:, :n], c, of_h[:, n:]], axis=1)

        cell = placed(self.cell_bound()[:, None] / 4 * forget, np.diag(f))
        crossed, squared = placed(i / 4), placed(g)
        # The rows of h stand above the rows of c, in torch's order of the two states.
        return Layer(
            np.concatenate([cell + placed(o / 4), cell]),
            np.concatenate([crossed, crossed]),
            np.concatenate([squared, squared]),
            slice(0, n),
        )


def has_rate(layer: Weights, rate: float) -> bool:
    """Return whether a layer by itself is proven to contract at ``rate``, which must be at most 1."""
    if layer_is_bounded(layer) and comparison_root([layer.comparison(False)], rate).rate <= rate:
        return True
    if layer.kind != "GRU" or rate < 1:
        return False
    return comparison_root([layer.comparison(False, holds=True)], 1.0).rate <= 1


def layer_is_bounded(layer: Weights) -> bool:
    """Return whether the gate that holds the state stays below 1.

    An LSTM needs this property for every rate, and a GRU for rates below 1.
    """
    return layer.kind == "RNN" or bool((layer.reach()[1] > 0).all())
