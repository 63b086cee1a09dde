"""Lipschitz constants of the layers of this package, for :func:`spectral_param.analysis.lipschitz`.

MaxMin sorts pairs, and sorting moves no two pairs apart, so its constant is 1.
"""

from __future__ import annotations

import math
from typing import Any

from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constants.layers import register
from spectral_param._constants.network import ROUNDING, register_around
from spectral_param._constants.slopes import UnknownConstantError
from spectral_param.functional._h_infinity import h_infinity
from spectral_param.functional._systems import system_of
from spectral_param.nn._max_min import MaxMin
from spectral_param.nn._modrelu import ModReLU
from spectral_param.nn._residual import Residual
from spectral_param.nn._state_space import StateSpace, StateSpaceCell


def _modrelu(module: Any) -> float:
    if not bool((module.bias <= 0).all()):
        raise UnknownConstantError("biases of at most 0: with a positive one modReLU jumps")
    return 1.0


def _residual(module: Any, rate: float) -> float:
    return (1 + rate) * (0.5 if module.mean else 1.0) * ROUNDING


def _state_space(module: Any) -> float:
    """Return the gain from a sequence to the outputs, from the same initial states."""
    if any(type_before_parametrizations(cell) is not StateSpaceCell for cell in module.cells):
        raise UnknownConstantError("cells of the class StateSpaceCell")
    result = 1.0
    for i in range(0, len(module.cells), module.num_directions):
        cells = module.cells[i : i + module.num_directions]
        # The search for a gain ends within 1e-10.
        result *= math.hypot(*(_gain(cell) for cell in cells)) * (1 + 1e-9)
    return result


def _gain(cell: Any) -> float:
    A, B, C, D = cell.system()
    return float(h_infinity(*system_of(A, B, C, D, dt=1.0)))


register(MaxMin, 1.0, keeps_shape=True)
register(ModReLU, _modrelu)
register(StateSpace, _state_space, has_shape=False)
register_around(Residual, _residual)
