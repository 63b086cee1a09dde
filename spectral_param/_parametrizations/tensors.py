"""Functions with which constraints convert, count and print originals and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param._context import promoted

_SHOWN = 20


def as_tuple(originals: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the originals from ``invert``, ``start`` or ``right_inverse`` as a tuple."""
    return (originals,) if isinstance(originals, Tensor) else tuple(originals)


def readable(values: Tensor) -> str:
    """Return the entries as text for a message; if there are more than 20, only the first 20 entries."""
    shown = [f"{value:.6g}" for value in values.flatten()[:_SHOWN].tolist()]
    left = values.numel() - len(shown)
    return ", ".join([*shown, f"and {left} others"] if left else shown)


def at_least_float32(X: Tensor) -> Tensor:
    """Return X in a precision that LAPACK supports: half precision becomes single."""
    if X.dtype in (torch.bfloat16, torch.float16):
        return X.float()
    return X.to(torch.complex64) if X.dtype == torch.complex32 else X


def as_real(X: Tensor) -> Tensor:
    """Return a real original. If Module.to(complex) has made the original complex, take the real part.

    Users call Module.to(complex) because PyTorch has no other way to convert a complex weight to another
    precision.
    """
    return X.real if X.is_complex() else X


def is_sharded(X: object) -> bool:
    """Return whether X is a DTensor, as in FSDP2: each process has a part of the tensor."""
    # isinstance(X, DTensor) would need an import of torch.distributed.tensor, which is slow.
    return hasattr(X, "full_tensor")


def on_rows(product: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return ``product``, a function h -> h Wᵀ for rows of W's dtype, as a function of rows of any dtype.

    Rows in half precision are multiplied in float32, and the result is rounded to half precision. Real rows
    become complex for a complex W.
    """

    def apply(h: Tensor) -> Tensor:
        exact = at_least_float32(h)
        result = product(exact.to(promoted(exact.dtype, dtype)))
        return result if exact is h or result.is_complex() != h.is_complex() else result.to(h.dtype)

    return apply


def real_entries(X: Tensor) -> int:
    """Return the number of real numbers in a tensor: a complex entry counts as two."""
    return X.numel() * (2 if X.is_complex() else 1)


def is_trained(X: Tensor) -> bool:
    """Return whether an original counts for ``free_parameters``; frozen parameters do not count."""
    return X.requires_grad or not isinstance(X, nn.Parameter)


def originals_of(weight: ParametrizationList) -> tuple[Tensor, ...]:
    """Return the parameters or buffers from which a parametrized weight is computed."""
    if weight.is_tensor:
        return (weight.original,)
    return tuple(getattr(weight, f"original{i}") for i in range(weight.ntensors))
