r"""For a given GRU or LSTM, the nearest weights for which a contraction rate r is proven.

For a fixed scaling d of the states, the rate r is proven if g_i <= r for each unit i, with the comparison
functions g_i of ``_comparison.py``. Here g_i depends only on the rows of unit i: of \|U\| in all gates, and
of \|W\| and b in the gate that holds the state (z of a GRU, f of an LSTM). So the nearest weights for this d
are found unit by unit. Let X be the entries on which g_i depends, and X⁰ their values for the given weights.
The nearest X is max(X⁰ - λ ∂g/∂X, 0) (without the maximum for the entry b), for the λ >= 0 with g(X) = r.
Each sweep takes the slopes ∂g/∂X at the X where the last sweep ended, and finds λ by bisection. The outer
search is over log d, by L-BFGS. Half the squared distance of X from X⁰ has the derivative
Σ_i λ_i ∂g_i/∂ log d.

Each unit of an LSTM has the states h and c. For a scaling d of h, the best scaling of c has a formula. Let
the forget gates be at most f̄, and let R be the part of δc⁺ that comes from differences of h. Then the least
d_c with δc⁺ <= r d_c is R/(r - f̄), and so g = (r R/(r - f̄) + ¼ \|U_o\| d)/d.

The set of weights with a proven rate r is not convex, so the result is only a local optimum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from spectral_param._matrices import Array
from spectral_param._precision import to_like
from spectral_param.errors import NotProvenError
from spectral_param.functional._checks import check_module
from spectral_param.functional._gate_scaling import scale_gates_
from spectral_param.functional._gate_weights import Weights, layer_is_bounded
from spectral_param.functional._network_contraction import Contraction, Proof, prove, shaped, starts_of
from spectral_param.functional._recurrent_modules import check_input_bound, torch_layers

_NAME = "contracting_"
# Number of sweeps for each d, where the slopes for the previous d are the start, and for the last d.
_SWEEPS, _LAST = 2, 20
_BISECTIONS, _STEPS = 30, 40
# Largest modulus of an entry of log d, so that quotients of entries of d are below e^23, about 1e10.
_REACH = 11.5
# Recurrent weights are finally scaled by 1 minus one of these margins, tried in order. A stack needs a
# margin, because the rate proven for the stack is slightly larger than the rates of its layers.
_MARGINS = (0.0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)

#: X ``(n, k)`` and log d ``(n,)`` -> h ``(n,)``.
Growth = Callable[[Tensor, Tensor], Tensor]


class _Tensors(NamedTuple):
    """The parameters of one layer of a network, in one direction."""

    W: Tensor
    U: Tensor
    biases: tuple[Tensor, ...]


@torch.no_grad()
def move_gates_(module: nn.Module, rate: float, input_bound: float | None) -> Contraction:
    """Move weights in place; see :func:`spectral_param.init.contracting_`."""
    check_module(module, "module")
    _check(module, rate, input_bound)
    bound, every = check_input_bound(input_bound), _tensors(module)
    layers = torch_layers(module, bound, _NAME)
    proof = prove(layers)
    if not _is_proven(proof, rate):
        given = [_Tensors(t.W.clone(), t.U.clone(), tuple(map(torch.clone, t.biases))) for t in every]
        flat = [each for row in layers for each in row]
        found = [_Search(layer, rate, bool(t.biases)).run() for t, layer in zip(every, flat, strict=True)]
        for margin in _MARGINS:
            for tensors, start, layer, X in zip(every, given, flat, found, strict=True):
                _write(tensors, start, layer, X, margin)
            layers = torch_layers(module, bound, _NAME)
            proof = prove(layers)
            if _is_proven(proof, rate):
                break
        else:
            for tensors, start in zip(every, given, strict=True):
                tensors.W.copy_(start.W)
                tensors.U.copy_(start.U)
                for bias, old in zip(tensors.biases, start.biases, strict=True):
                    bias.copy_(old)
            raise NotProvenError(
                f"{_NAME}: expected layers that have the rate {rate} together, got none for layers that each "
                "have half of it. Scale down weight_ih of the later layers, or take fewer."
            )
    is_cell = isinstance(module, nn.RNNCellBase)
    starts = shaped([[starts_of(each) for each in row] for row in layers], layers, is_cell)
    scaling: Any = shaped(proof.scalings, layers, is_cell)
    return Contraction(proof.rate, scaling, starts, proof.norm, proof.obstacle)  # type: ignore[arg-type]


def _check(module: nn.Module, rate: float, input_bound: float | None) -> None:
    """Raise the errors of :func:`scale_gates_`, except errors about the gate that holds the state.

    The check runs on a copy with recurrent weights of zero and biases of -1000, so that this gate is closed
    if a bound of the inputs is known.
    """
    trial = copy.deepcopy(module)
    if not is_parametrized(trial):
        for name, parameter in trial.named_parameters():
            if name.startswith("weight_hh") or (name.startswith("weight_ih") and input_bound is not None):
                parameter.zero_()
            elif name.startswith("bias"):
                parameter.fill_(-1e3)
    scale_gates_(trial, rate, input_bound)


def _is_proven(proof: Proof, rate: float) -> bool:
    return proof.rate is not None and proof.rate <= rate


def _tensors(module: Any) -> list[_Tensors]:
    if isinstance(module, nn.RNNCellBase):
        biases = (module.bias_ih, module.bias_hh) if module.bias else ()
        return [_Tensors(module.weight_ih, module.weight_hh, biases)]
    return [_Tensors(parts[0], parts[1], tuple(parts[2:4])) for parts in module.all_weights]


def _write(tensors: _Tensors, start: _Tensors, layer: Weights, X: Tensor, margin: float) -> None:
    """Write the weights found, slightly reduced to allow for rounding; keep weights that did not move."""
    n, rows, eps = layer.units, _held(layer), torch.finfo(tensors.U.dtype).eps
    U, W, b = (torch.from_numpy(part) for part in (layer.hidden, layer.inputs[rows], layer.bias[rows]))
    p = X[:, : len(U)].unflatten(1, (-1, n)).transpose(0, 1).flatten(0, 1)
    u = torch.where((p == U.abs()) & (margin == 0), U, torch.copysign(p * ((1 - 4 * eps) * (1 - margin)), U))
    w = X[:, len(U) : -1]
    w = torch.where(w == W.abs(), W, torch.copysign(w * (1 - 4 * eps), W))
    tensors.U.copy_(to_like(u, tensors.U))
    tensors.W[rows] = to_like(w, tensors.W)
    change = X[:, -1] * 2**0.5 - b
    for bias, old in zip(tensors.biases, start.biases, strict=True):
        # Each of the two biases gets half of the change, minus a margin for the rounding of both biases.
        half = to_like(change / 2 - 8 * eps * (1 + b.abs()), old)
        bias[rows] = torch.where(to_like(change, old) < -8 * eps, old[rows] + half, old[rows])


def _held(layer: Weights) -> slice:
    """Return the rows of the gate that holds the state: the second gate, z of a GRU or f of an LSTM."""
    return slice(layer.units, 2 * layer.units)


class _Search:
    r"""The search for the nearest weights of one layer in one direction.

    X consists of \|U\| of all gates, and of \|W\| and b/√2 of the gate that holds the state. Here b is the
    sum of two biases. If each bias moves by half the change of b, the sum of the two squared changes is the
    squared change of b/√2.
    """

    def __init__(self, layer: Weights, rate: float, has_bias: bool) -> None:
        n, rows = layer.units, _held(layer)
        U = torch.from_numpy(np.abs(layer.hidden)).unflatten(0, (-1, n)).transpose(0, 1).flatten(1)
        W, b = torch.from_numpy(np.abs(layer.inputs[rows])), torch.from_numpy(layer.bias[rows])
        self.given = torch.cat([U, W, b[:, None] / 2**0.5], dim=1)
        self.lower = torch.zeros_like(self.given)
        self.lower[:, -1] = -math.inf
        # Entries of X on which the proof does not depend, and entries for missing biases, do not move.
        self.moves = torch.ones_like(self.given)
        holds = layer.kind == "GRU" and not layer_is_bounded(layer)
        if holds:
            self.moves[:, U.shape[1] :] = 0
        if not has_bias:
            self.moves[:, -1] = 0
        self.rate, self.growth = rate, _growth(layer, rate, holds)
        self.last = torch.cat([0.05 * U, W, b[:, None] / 2**0.5], dim=1)
        if not holds:
            bound = layer.input_bound if math.isfinite(layer.input_bound) else 0.0
            most = math.log(rate / (2 - rate)) - 0.05 * U[:, n : 2 * n].sum(dim=1)
            if has_bias:
                self.last[:, -1] = torch.minimum(b, most - bound * W.sum(dim=1)) / 2**0.5
            else:
                self.last[:, U.shape[1] : -1] *= 0.05
        self.slopes: Tensor | None = None
        self.best, self.least = self.last, math.inf

    def run(self) -> Tensor:
        """Return the nearest X found."""
        bounds = scipy.optimize.Bounds(-_REACH, _REACH)
        options = {"maxiter": _STEPS, "maxls": 8}
        log_d = np.zeros(len(self.given))
        self.distance(log_d, _LAST)
        found = scipy.optimize.minimize(
            self.distance, log_d, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        self.distance(found.x, _LAST)
        return self.best

    def distance(self, log_d: Array, sweeps: int = _SWEEPS) -> tuple[float, Array]:
        """Return half the squared distance of the nearest X for this d, and the derivative by log d."""
        x = torch.from_numpy(np.array(log_d))
        for _ in range(sweeps):
            slopes = self._slopes(self.last, x)[0] * self.moves
            # Slopes are averaged over sweeps, because the slopes of g jump where the maximizing ν jumps.
            self.slopes = slopes if self.slopes is None else (self.slopes + slopes) / 2
            self.last, multiplier = self._along(self.slopes, x)
            value = float((self.last - self.given).square().sum()) / 2
            if value < self.least:
                self.best, self.least = self.last, value
        return value, self._slopes(self.last, x, multiplier)[1].numpy()

    def _slopes(self, X: Tensor, x: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the derivatives of Σ_i weights_i g_i by X and by log d; no weights mean weights of 1."""
        with torch.enable_grad():
            X, x = X.clone().requires_grad_(), x.clone().requires_grad_()
            h = self.growth(X, x)
            of_X, of_x = torch.autograd.grad((h if weights is None else h * weights).sum(), (X, x))
        return of_X, of_x

    def _along(self, slopes: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return X = X⁰ - λ slopes, clamped, and λ of each unit, for the least λ >= 0 with g(X) <= r."""
        floor = 1e-6 * slopes.amax(dim=1, keepdim=True) * self.moves
        slopes = torch.maximum(slopes, floor)
        low = torch.zeros_like(x)
        high = torch.where(self.growth(self.given, x) > self.rate, 1e-3, 0.0).to(low)
        for _ in range(60):
            outside = self.growth(self._at(slopes, high), x) > self.rate
            if not bool(outside.any()):
                break
            low, high = torch.where(outside, high, low), torch.where(outside, 4 * high, high)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            inside = self.growth(self._at(slopes, middle), x) <= self.rate
            low, high = torch.where(inside, low, middle), torch.where(inside, middle, high)
        return self._at(slopes, high), high

    def _at(self, slopes: Tensor, multiplier: Tensor) -> Tensor:
        return torch.maximum(self.given - multiplier[:, None] * slopes, self.lower)


def _growth(layer: Weights, rate: float, holds: bool) -> Growth:
    """Return the comparison function g(X, log d) of a layer: g_i <= r for all units i proves the rate r."""
    n, gates = layer.units, len(layer.hidden) // layer.units
    bound = layer.input_bound if math.isfinite(layer.input_bound) else 0.0
    candidate = torch.from_numpy(np.abs(layer.candidate_bias))

    def parts(X: Tensor, log_d: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        r"""Return (\|U\| d)/d and row sums of \|U\| for each gate, and a bound of the argument of z or f."""
        d = log_d.exp()
        U = [X[:, k * n : (k + 1) * n] for k in range(gates)]
        sums = [each.sum(dim=1) for each in U]
        argument = sums[1] + bound * X[:, gates * n : -1].sum(dim=1) + X[:, -1] * 2**0.5
        return [(each @ d) / d for each in U], sums, argument

    def of_gru(X: Tensor, log_d: Tensor) -> Tensor:
        (r, z, u), sums, argument = parts(X, log_d)
        most = torch.ones_like(argument) if holds else torch.sigmoid(argument)
        A, C = most * z, u + (sums[2] + candidate) * r / 4
        f = A + _largest(A, C)
        return f if holds else most + (1 - most) * f

    def of_lstm(X: Tensor, log_d: Tensor) -> Tensor:
        (i, f, g, o), _, argument = parts(X, log_d)
        held = torch.sigmoid(argument)
        R = _largest(i / 4, g) + (1 + argument.clamp(max=50).exp()) * f / 4
        # If the forget gate of a unit reaches the rate, no d_c exists. Then g is set to a value that exceeds
        # every rate and increases with the argument of the gate.
        outside = 1e3 + argument + R
        return torch.where(held < rate, rate * R / (rate - held).clamp(min=1e-9) + o / 4, outside)

    return of_gru if layer.kind == "GRU" else of_lstm


def _largest(q: Tensor, s: Tensor) -> Tensor:
    """Return the maximum of ν q + (1 - ν²) s over 0 <= ν <= 1."""
    at_end = q >= 2 * s
    safe = torch.where(at_end, torch.ones_like(s), s)
    return torch.where(at_end, q, s + q.square() / (4 * safe))
