"""Which implementation of a recurrence runs: all of the choice, and nothing else."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Implementation = Literal["torch", "resident", "stepwise"]

# What to use: the name of an implementation, or "auto". Without it torch's operations, on any device: the
# kernels have been tested in Triton's interpreter, and not yet on a GPU.
VARIABLE = "SPECTRAL_PARAM_RECURRENCE"
# With more sequences than this for each multiprocessor, their products fill the GPU step by step.
_SEQUENCES = 16


class Walks(NamedTuple):
    """The two walks of an implementation; see ``triton_recurrence`` for arguments and results.

    Attributes:
        forward: Replaces z_t by h_t.
        backward: Replaces G_t by δ_t, and returns the gradient of the states before the first step.
    """

    forward: Callable[..., None]
    backward: Callable[..., Tensor]


def choose(states: Tensor, batch: int) -> Implementation:
    """Return what computes the recurrence on states like these.

    Args:
        states: States ``(rows, n)``.
        batch: Number of sequences.

    Returns:
        ``"torch"``: torch's operations, on any device. ``"resident"``: one Triton kernel for all steps.
        ``"stepwise"``: a matrix product and a Triton kernel for each step.

    Raises:
        ValueError: If the environment variable asks for what is unknown or cannot run here.
    """
    wanted = os.environ.get(VARIABLE, "torch")
    if wanted == "torch":
        return "torch"
    if wanted not in ("auto", *get_args(Implementation)):
        names = ", ".join(get_args(Implementation))
        raise ValueError(f"{VARIABLE}: expected auto, {names}, got {wanted!r}.")

    missing = _missing(states)
    if wanted == "auto" and (missing is not None or not states.is_cuda):
        return "torch"
    if missing is not None:
        raise ValueError(f"{VARIABLE}={wanted}: expected {missing}. Set it to auto or torch.")

    from spectral_param.kernels import triton_recurrence

    n = states.shape[1]
    fits = states.dtype == torch.float32 and triton_recurrence.is_resident_size(n)
    if wanted == "resident" and not fits:
        raise ValueError(
            f"{VARIABLE}=resident: expected float32 and a state whose W fits into registers (n <= 192), got "
            f"{states.dtype} and n = {n}. Set it to auto or stepwise."
        )
    if wanted == "auto":
        few = batch <= _SEQUENCES * torch.cuda.get_device_properties(states.device).multi_processor_count
        return "resident" if fits and few else "stepwise"
    return "resident" if wanted == "resident" else "stepwise"


def load(implementation: Implementation) -> Walks:
    """Return the walks of a Triton implementation.

    Args:
        implementation: What :func:`choose` returned, other than ``"torch"``.
    """
    from spectral_param.kernels import triton_recurrence as t

    if implementation == "resident":
        return Walks(t.forward_resident, t.backward_resident)
    return Walks(t.forward_stepwise, t.backward_stepwise)


def _missing(states: Tensor) -> str | None:
    """Return what the Triton kernels would need and do not have, or None."""
    if not _has_triton():
        return "the package triton to be installed"
    if states.dtype not in (torch.float32, torch.float64):
        return f"float32 or float64, got {states.dtype}"
    if states.is_cuda:
        if torch.version.hip is not None or torch.cuda.get_device_capability(states.device) < (8, 0):
            return "an NVIDIA GPU of compute capability 8.0 or newer"
    elif os.environ.get("TRITON_INTERPRET") != "1":
        return f"tensors on a CUDA device (or Triton's interpreter, TRITON_INTERPRET=1), got {states.device}"
    return None


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
