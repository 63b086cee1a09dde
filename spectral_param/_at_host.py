"""Maps that are computed on the host where a device has no double precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from spectral_param._map import Map
from spectral_param._precision import double_device


def where_double(evaluate: Callable[..., Map]) -> Callable[..., Map]:
    """Return a function like ``evaluate`` that runs on the host if the device has no double precision.

    Each tensor is copied to the host once; the value and gradients are copied back.
    """

    @functools.wraps(evaluate)
    def wrapped(*values: Any, **options: Any) -> Map:
        device = values[0].device
        if device.type == "cpu" or double_device(device) == device:
            return evaluate(*values, **options)
        the = evaluate(*map(_on_host, values), **{name: _on_host(value) for name, value in options.items()})

        def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
            return tuple(None if g is None else g.to(device) for g in the.pull_back(G.cpu(), needed))

        def reference(*originals: Tensor) -> Tensor:
            return the.reference(*map(_on_host, originals)).to(device)

        return Map(the.value.to(device), pull_back, reference)

    return wrapped


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value
