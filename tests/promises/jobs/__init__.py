"""What users do with the library, as a table by name: every constraint, network, function, analysis and fit.

A job takes a function that moves a tensor to a device, and returns numbers. All tensors that it makes itself
are on the host and have a dtype, so what PyTorch's defaults change is the library's doing.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.promises.jobs.analyses import ANALYSES
from tests.promises.jobs.constraints import CONSTRAINTS, VARIANTS
from tests.promises.jobs.fits import FITS
from tests.promises.jobs.functions import FUNCTIONS
from tests.promises.jobs.networks import NETWORKS, TRAINED
from tests.promises.jobs.tensors import Job

__all__ = ["JOBS", "NETWORKS", "numbers", "on_the_host", "parametrized", "same"]

JOBS: dict[str, Job] = {**CONSTRAINTS, **TRAINED, **FUNCTIONS, **ANALYSES, **FITS}


# What takes long beside what it finds, because others are made of the same parts.
_NETWORKS = ("BlockRNN", "EUNN", "NNRNN", "ORNN", "ScuRNN", "SpectralRNN", "StateSpace")
LONG = {
    *VARIANTS,
    *(f"network: {name}" for name in _NETWORKS),
    *("constraint: Givens", "constraint: circular kernel", "analysis: pictures", "testing"),
    "constraint: DoublyStochastic",
    *("analysis: gradient_norms, state", "functional: scaled_cayley, large", "functional: rnn, long"),
}


def parametrized(*daily: str) -> list[Any]:
    """The names of the jobs for pytest: the long ones for the night, and those that begin otherwise."""
    long = {name for name in JOBS if name in LONG or (daily and not name.startswith(daily))}
    return [pytest.param(name, marks=pytest.mark.nightly if name in long else ()) for name in JOBS]


def numbers(found: Any) -> list[Any]:
    """The numbers of a result, in order, on the host."""
    if isinstance(found, Tensor):
        return [found.detach().cpu()]
    if isinstance(found, np.ndarray):
        return [torch.from_numpy(np.ascontiguousarray(found))]
    if isinstance(found, dict):
        return [n for value in found.values() for n in numbers(value)]
    if isinstance(found, (list, tuple)):
        return [n for value in found for n in numbers(value)]
    return [] if found is None else [found]


@functools.cache
def on_the_host(name: str) -> list[Any]:
    """The numbers of a job on the host, under PyTorch's usual defaults."""
    torch.manual_seed(0)
    return numbers(JOBS[name](lambda thing: thing))


def same(found: list[Any], expected: list[Any]) -> bool:
    """Whether all numbers have the same bits."""
    return len(found) == len(expected) and all(
        (torch.equal(a.nan_to_num(), b.nan_to_num()) and a.dtype == b.dtype)
        if isinstance(a, Tensor)
        else a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))
        for a, b in zip(found, expected, strict=True)
    )
