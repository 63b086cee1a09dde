"""Settings and strategies of the properties: ``$SPECTRAL_PARAM_EXAMPLES=20`` draws 20 times as many."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

#: With 1, the default, the examples are the same in each run.
FACTOR = int(os.environ.get("SPECTRAL_PARAM_EXAMPLES", "1"))
#: Arguments of gradcheck and gradgradcheck: one random direction by default, every entry in a nightly run.
FAST = {"fast_mode": FACTOR == 1}

REAL = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
DOUBLE = (torch.float64, torch.complex128)
DTYPES = (*REAL, *COMPLEX)

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)
double = st.sampled_from(DOUBLE)


def examples(n: int) -> settings:
    """Return the settings of a property with n examples, times the factor."""
    return settings(
        max_examples=n * FACTOR,
        deadline=None,
        derandomize=FACTOR == 1,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


def powers_of_ten(low: float, high: float) -> st.SearchStrategy[float]:
    """Return a strategy for numbers 10^x with low <= x <= high."""
    return st.floats(low, high).map(lambda x: 10.0**x)


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return a normal tensor that depends on the seed alone."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def exact(X: Tensor) -> Tensor:
    """Return X in double precision."""
    return X.to(torch.promote_types(X.dtype, torch.float64))
