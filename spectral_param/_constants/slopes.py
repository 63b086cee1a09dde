"""The least and the largest slopes of entrywise activations.

For GELU the largest slope is Φ(√2) + √2 φ(√2) = (1 + erf 1)/2 + 1/(e√π). For SiLU, Mish and the approximation
of GELU by tanh, the largest slope is where the second derivative is 0. GELU, its approximation and SiLU have
the form x σ(x) with σ(x) + σ(-x) = 1, so their slopes at x and -x add up to 1, and the least slope is 1 minus
the largest slope. Mish does not have this form, so its least slope is computed separately. All numbers are
rounded outwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._precision import to_double

GELU, GELU_TANH = 1.1289041451851549, 1.1289930686587719
SILU, MISH = 1.0998393201288670, 1.0884981612517280
LEAST_MISH = -0.11252612238946258
SELU = 1.7580993408473769
_UNIT = (0.0, 1.0)

Slopes = tuple[float, float]


class UnknownConstantError(ValueError):
    """No constant of a known layer is proven; the message says what was expected."""


def slopes(module: nn.Module) -> Slopes | None:
    """Return the least and the largest slope of an entrywise activation, or None for other classes.

    Raises:
        UnknownConstantError: If no slopes are proven.
    """
    found = _SLOPES.get(type_before_parametrizations(module))
    return found(module) if callable(found) else found


def check_weight(W: Any) -> None:
    """Raise unless a weight is real and finite."""
    if W.is_complex():
        raise UnknownConstantError("a real weight")
    if not bool(W.isfinite().all()):
        raise UnknownConstantError("a weight of finite entries")


def _softplus(module: Any) -> Slopes:
    if module.threshold < 20:
        raise UnknownConstantError("a threshold of at least 20, below which softplus jumps")
    return _UNIT


def _celu(module: Any) -> Slopes:
    if not module.alpha > 0:
        raise UnknownConstantError("a positive alpha")
    return _UNIT


def _finite(slope: float) -> float:
    if not math.isfinite(slope):
        raise UnknownConstantError("a finite slope")
    return slope


def _leaky(module: Any) -> Slopes:
    slope = _finite(module.negative_slope)
    return min(slope, 1.0), max(slope, 1.0)


def _prelu(module: Any) -> Slopes:
    check_weight(module.weight)
    W = to_double(module.weight.detach())
    return min(1.0, float(W.min())), max(1.0, float(W.max()))


def _elu(module: Any) -> Slopes:
    alpha = _finite(module.alpha)
    return min(0.0, alpha), max(1.0, alpha)


def _gelu(module: Any) -> Slopes:
    largest = GELU if module.approximate == "none" else GELU_TANH
    return 1 - largest, largest


_SLOPES: dict[type[nn.Module], Slopes | Callable[[Any], Slopes]] = {
    nn.ReLU: _UNIT,
    nn.ReLU6: _UNIT,
    nn.LeakyReLU: _leaky,
    nn.PReLU: _prelu,
    nn.ELU: _elu,
    nn.CELU: _celu,
    nn.SELU: (0.0, SELU),
    nn.GELU: _gelu,
    nn.SiLU: (1 - SILU, SILU),
    nn.Mish: (LEAST_MISH, MISH),
    nn.Sigmoid: (0.0, 0.25),
    nn.LogSigmoid: _UNIT,
    nn.Hardsigmoid: (0.0, 0.16666668),  # Kernels round 1/6 in single precision; rounded up.
    nn.Tanh: _UNIT,
    nn.Hardtanh: _UNIT,
    nn.Hardswish: (-0.5000001, 1.5),  # Less than -1/2, because kernels round 1/6 in single precision.
    nn.Softplus: _softplus,
    nn.Softsign: _UNIT,
    nn.Softshrink: _UNIT,
    nn.Tanhshrink: _UNIT,
}
ACTIVATIONS = frozenset(_SLOPES)
