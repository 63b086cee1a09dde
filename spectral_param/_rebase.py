"""New bases of the maps of a model, once or after the steps of an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import Optimizer

from spectral_param._held.hooks import forget_curvature
from spectral_param._held.optimizers import checked_optimizers
from spectral_param._model import constraints_of
from spectral_param._parametrizations import Parametrization
from spectral_param._parametrizations.scaled_cayley import ScaledCayley
from spectral_param._parametrizations.tensors import originals_of
from spectral_param.functional._checks import check_module

# The originals are checked once in this many steps. A step of Adam changes an entry by about the learning
# rate: from at most 1, after new signs, an entry needs many steps to reach the limit.
_STEPS = 10


def rebase(model: nn.Module, optimizer: Optimizer | None = None) -> None:
    r"""Make the present weights of a model the bases of its maps; weights change only by rounding.

    - :class:`spectral_param.SkewExponential`: the weight becomes the base B. This is dynamic trivialization
      (Lezcano-Casado 2019): A in W = B e^A is trained for K optimizer steps. Then W becomes the new B, and A
      = 0, where the derivative of the exponential is the identity. K = 1 is Riemannian gradient descent. K =
      ∞, without any call of this function, is the static parametrization. The paper compares K = 1, 100, ∞.
    - :class:`spectral_param.ScaledCayley`: where an entry of A exceeds 1.5, a new D is chosen, as in
      registration. With ``negative_ones``, the new D has the same number of -1s, and is taken only if it
      makes the entries smaller. As an eigenvalue of WD tends to -1, A grows without bound and the weight
      hardly moves: some orthogonal matrices are not reached without new signs.
    - :class:`spectral_param.SpectralNorm`, :class:`spectral_param.SpectralRadiusNorm` and
      :class:`spectral_param.SpectralAbscissa` with ``mode="at_most"``: the original becomes the weight. An
      original beyond the bound is scaled (shifted) in each read, and the loss does not see its size. The new
      original is on the bound, so training can move it inside.

    Call ``rebase`` between an optimizer step and the next forward pass. The optimizer's moments are not
    changed, although they are directions at the old base. The moments differ from directions at the new base
    by terms of the size of A, and fade within a few steps (ten for a momentum of 0.9). The author's code
    keeps the moments, too. To drop the moments, remove the original from ``optimizer.state``. Restart a
    running average (EMA) of the originals.

    Args:
        model: Any model. Parametrizations nested in :class:`spectral_param.SchurForm` and
            :class:`spectral_param.BlockTriangular` are included. Parametrizations that act after another
            parametrization are skipped, because their originals are results of the other.
        optimizer: ``None``, the default: rebase once, now. With an optimizer, only ``ScaledCayley`` is
            rebased, automatically: after every tenth step, weights of the optimizer whose A exceeds 1.5 get a
            new D. This does not hold for a copy of the optimizer, nor after unpickling.

    Raises:
        ValueError: If FSDP2 shards parameters of the model: a new base would be lost with the next gathering.
            If the optimizer has no original of a ``ScaledCayley`` of the model.

    Example:
        >>> rnn = spectral_param.nn.ExpRNN(1, 16)
        >>> optimizer = torch.optim.RMSprop(rnn.parameters(), lr=1e-3)
        >>> for step in range(1, 11):
        ...     loss = rnn(torch.randn(20, 4, 1))[0].square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     if step % 5 == 0:
        ...         spectral_param.rebase(rnn)
        >>> layer = spectral_param.constrain(torch.nn.Linear(8, 8), "weight", spectral_param.ScaledCayley())
        >>> optimizer = torch.optim.Adam(layer.parameters())
        >>> spectral_param.rebase(layer, optimizer)  # from now on, where it is time
    """
    check_module(model, "model")
    # Not imported here: loading torch.distributed takes a second.
    if any(kind.__name__ == "FSDPModule" for module in model.modules() for kind in type(module).__mro__):
        raise ValueError(
            "rebase: expected parameters that are not sharded, got a model of fully_shard. Call rebase "
            "before fully_shard, or on an ordinary model into which the checkpoint was loaded."
        )
    if optimizer is None:
        for constraint, originals in _of_parameters(model):
            constraint.rebase(*originals)
        return
    (chosen,) = checked_optimizers([optimizer])
    trained = {id(p) for group in chosen.param_groups for p in group["params"]}
    lists = [
        module
        for module in model.modules()
        if isinstance(module, ParametrizationList) and any(id(T) in trained for _, T in _cayley(module))
    ]
    if not lists:
        if any(map(_cayley_of, model.modules())):
            remedy = "Construct the optimizer from model.parameters() after constrain, then call rebase."
        else:
            remedy = (
                "Call rebase(model) without the optimizer, from time to time, for other constraints. Weights "
                "that constrain(..., optimizer=) holds after the step have no base, and need no rebase."
            )
        raise ValueError(
            f"optimizer: expected one that trains a weight of ScaledCayley, got {type(chosen).__name__} "
            f"without any. {remedy}"
        )
    chosen.register_step_post_hook(_Hook(lists))


def _of_parameters(model: nn.Module) -> Iterator[tuple[Parametrization, tuple[Tensor, ...]]]:
    """Yield constraints whose originals are parameters or buffers, not results of another parametrization."""
    lists = [module for module in model.modules() if isinstance(module, ParametrizationList)]
    own = {id(t) for weight in lists for t in originals_of(weight)}
    for constraint, originals in constraints_of(model):
        if isinstance(constraint, Parametrization) and all(id(t) in own for t in originals):
            yield constraint, originals


def _cayley_of(module: nn.Module) -> bool:
    return isinstance(module, ParametrizationList) and any(True for _ in _cayley(module))


def _cayley(weight: ParametrizationList) -> Iterator[tuple[ScaledCayley, Tensor]]:
    for constraint, (T, *_) in _of_parameters(weight):
        if isinstance(constraint, ScaledCayley):
            yield constraint, T


class _Hook:
    """The hook that an optimizer calls after each step. The hook holds weak references to the weights."""

    def __init__(self, weights: list[ParametrizationList]) -> None:
        self._weights = [weakref.ref(weight) for weight in weights]
        self._steps = 0
        # Not as a decorator, which would import torch's compiler and double the import time of this package.
        self._eager: Callable[[Optimizer], None] = torch.compiler.disable(self._rebase)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._steps += 1
        if self._steps % _STEPS == 0:
            self._eager(optimizer)

    def _rebase(self, optimizer: Optimizer) -> None:
        has_moved = False
        for weight in filter(None, (known() for known in self._weights)):
            for constraint, originals in _of_parameters(weight):
                if isinstance(constraint, ScaledCayley):
                    has_moved |= constraint.choose_again(*originals)
        if has_moved:
            forget_curvature(optimizer)
