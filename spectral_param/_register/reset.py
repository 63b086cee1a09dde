"""How ``reset_parameters`` of a module renews its constrained weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.copies import RESETS
from spectral_param._parametrizations.tensors import originals_of


def let_reset_renew(owner: nn.Module) -> None:
    """Let ``reset_parameters`` of a parametrized module renew its constrained weights, too.

    PyTorch's method only overwrites the tensor that a read returns, and so leaves a trained weight unchanged.
    The new method is added to the class that PyTorch created for this module alone.
    """
    kind: Any = type(owner)
    for name in RESETS:
        if hasattr(kind, name) and name not in vars(kind):
            setattr(kind, name, _renewing(getattr(kind.__bases__[0], name)))


def _renewing(reset: Callable[[nn.Module], object]) -> Callable[[nn.Module], None]:
    """Return a module's ``reset_parameters`` that also restarts its constraints."""

    @functools.wraps(reset)
    def renew(self: nn.Module) -> None:
        lists: Any = self.parametrizations if is_parametrized(self) else {}
        chains = {
            name: links
            for name, links in lists.items()
            if any(isinstance(link, Parametrization) for link in links)
        }
        for name, links in chains.items():
            if not isinstance(links[0], Parametrization):
                raise ValueError(
                    f"{reset.__name__}: expected constraints of this library as the first ones, got a "
                    f"{type(links[0]).__name__} as the first one of {name!r}, whose originals only it knows. "
                    "Call spectral_param.remove, reset the parameters, then constrain the weight again."
                )
        # A cell of spectral_param.nn initializes its recurrent matrix itself.
        starts = [links for name, links in chains.items() if name not in getattr(self, "_starts_itself", ())]
        # The restart comes first, because reset reads the weight, whose originals may have no values yet.
        for links in starts:
            links[0].restart(*originals_of(links))
        reset(self)

    return renew
