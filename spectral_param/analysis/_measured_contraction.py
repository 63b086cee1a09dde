"""How fast runs of a recurrent network approach each other on given inputs: a measurement, beside a proof."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spectral_param._precision import double_device
from spectral_param.analysis._stepper import Stepper, evaluating
from spectral_param.functional._checks import check_finite, check_tensor, whole_number
from spectral_param.functional._network_contraction import summary

_NAME = "contraction"
# Runs that are this much closer than at the start are no longer compared, because rounding errors come near.
_CLOSE = 1e-9


class MeasuredContraction(NamedTuple):
    """What is proven, as in :class:`Contraction`, and what was measured on given inputs.

    Attributes:
        rate: The proven rate, or None.
        scaling: The d of the proof.
        starts: The starts for which the rate holds.
        norm: The norm of the proven rate.
        obstacle: The reason if no rate is proven.
        worst: The largest measured rate of all pairs of runs; above 1 if the pair moved apart.
        median: The median of the rates of all pairs.
        steps: The number of steps over which the worst pair was followed.
        pairs: The number of pairs.
    """

    rate: float | None
    scaling: object
    starts: object
    norm: str
    obstacle: str | None
    worst: float
    median: float
    steps: int
    pairs: int

    def __repr__(self) -> str:
        return summary(self)


class Measured(NamedTuple):
    """The numbers that were measured."""

    worst: float
    median: float
    steps: int
    pairs: int


@torch.no_grad()
def measured(module: nn.Module, inputs: Tensor, runs: int, bound: float | None) -> Measured:
    """Return the rates of a network on inputs; see :func:`spectral_param.analysis.contraction`."""
    check_tensor(inputs, "inputs")
    check_finite(inputs, "inputs")
    if bound is not None and bool((inputs.abs() > bound).any()):
        largest = float(inputs.abs().max())
        raise ValueError(
            f"{_NAME}: inputs: expected entries of at most input_bound={bound}, for which a rate is proven, "
            f"got {largest}. Pass input_bound={largest}, or None."
        )
    runs = whole_number(runs, "runs", least=2)
    if isinstance(module, nn.ModuleList):
        raise ValueError(
            f"{_NAME}: inputs: expected one network for a measurement, got a ModuleList. Measure each module "
            "on the outputs of the one before."
        )
    device = double_device(inputs.device)
    exact = copy.deepcopy(module).to(device).double()
    with evaluating(exact), torch.no_grad():
        stepper = Stepper(exact, inputs.to(device).double(), None, None, _NAME)
        first = _visited(stepper)
        batch, size = stepper.start.shape
        generator = torch.Generator("cpu").manual_seed(0)
        points = 2 * torch.rand(runs, batch, size, dtype=torch.float64, device="cpu", generator=generator) - 1
        state = (points.to(first.device) * first).flatten(0, 1)
        steps = len(stepper.x)
        rates = state.new_full((runs - 1, batch), torch.nan)
        counts = torch.zeros_like(rates)
        start = _distances(state, runs)
        for t in range(steps):
            state = stepper.step(stepper.x[t].repeat(runs, 1), state)
            distance = (_distances(state, runs) / start).clamp(min=1e-16)
            # A pair that has come close keeps its last rate.
            followed = counts == t
            ends = followed & ((distance > _CLOSE) | rates.isnan())
            rates = torch.where(ends, distance ** (1 / (t + 1)), rates)
            counts = torch.where(followed & (distance > _CLOSE), t + 1, counts)
    worst = int(rates.argmax())
    pairs = rates.flatten()
    taken = int(counts.flatten()[worst].clamp(min=1))
    return Measured(float(pairs[worst]), float(pairs.median()), taken, len(pairs))


def _visited(stepper: Stepper) -> Tensor:
    """Return the largest modulus of each state on the way from zero, at least 1."""
    state, most = stepper.start, torch.ones_like(stepper.start[:1])
    for x in stepper.x:
        state = stepper.step(x, state)
        most = torch.maximum(most, state.abs().amax(dim=0, keepdim=True))
    return most


def _distances(state: Tensor, runs: int) -> Tensor:
    """Return the largest difference between a state of each run and the first run, ``(runs - 1, batch)``."""
    each = state.unflatten(0, (runs, -1))
    return (each[1:] - each[0]).abs().amax(dim=-1)
