"""Where double precision is computed: on the tensor's device, or on the host if the device has none.

Apple's MPS, for instance, has no double precision, and does not even convert a tensor while copying it to the
host. Only this module asks whether a device has double precision. Results go back to the device by
:func:`to_like`, in one transfer for each tensor. A result that itself is in double precision, such as a
certificate, stays on the host.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

# Devices of these types need not be tried.
_WITH, _WITHOUT = ("cpu", "cuda", "meta"), ("mps",)


def to_double(X: Tensor) -> Tensor:
    """Return X in double precision, on its device or on the host."""
    return X.to(double_device(X.device)).to(torch.complex128 if X.is_complex() else torch.float64)


def to_like(X: Tensor, Y: Tensor) -> Tensor:
    """Return ``X.to(Y)``, converted on the host because a device may lack one of the dtypes.

    The backward pass converts on the host, too.
    """
    on_host = torch.compiler.is_compiling() or Y.is_cpu
    return X.to(Y.device).to(Y.dtype) if on_host else X.to(Y.dtype).to(Y.device)


def relative_rounding(n: int, eps: float, dtype: torch.dtype) -> float:
    """Return the largest relative change of a norm by rounding, for matrices with n columns.

    Products in the working precision have relative errors of at most 10·n·eps, for the eps of this precision.
    Larger errors ``eps`` of the entries, as in half precision, change W by at most ‖W‖_F·eps/2 ≤
    √n·‖W‖₂·eps/2. (10·n·eps is more than 1 from n = 13 on in bfloat16, so that every weight would count as a
    member.)
    """
    own = torch.finfo(dtype).eps
    return 10 * n * min(eps, own) + (n**0.5 * eps if eps > own else 0.0)


def double_device(device: torch.device) -> torch.device:
    """Return where to compute in double precision for tensors on this device."""
    if device.type in _WITH or (device.type not in _WITHOUT and _has_double(device)):
        return device
    return torch.device("cpu")


def _has_double(device: torch.device) -> bool:
    # Fake tensors can be in double precision on every device.
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or has_double(device)


@functools.cache
def has_double(device: torch.device) -> bool:
    """Return whether a device has double precision, by trying."""
    try:
        torch.ones(1, dtype=torch.float64, device=device).add(1)
    except (TypeError, RuntimeError):
        return False
    return True
