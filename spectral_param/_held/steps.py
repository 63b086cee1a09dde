r"""The steps of weights that an optimizer keeps in a set: the kinds of steps, their optimizers, their sizes.

Notation: W is a member of the set, D the optimizer's change of W, G the gradient, P_W the orthogonal
projection on the tangent space at W, and η the learning rate of the weight's parameter group. After each step
of the optimizer, the following matrix is put back into the set:

- ``"project"``: W + D.
- ``"tangent"``: W + D, where the optimizer gets the gradient P_W G in place of G.
- ``"relative"``: :math:`W + η ‖W‖_F\, P_W D / ‖P_W D‖_F`, where the optimizer gets P_W G in place of G.
- ``"msign"``: :math:`W + η ‖W‖_2\, P_W\, \mathrm{msign}(P_W D)` with msign(UΣVᴴ) = UVᴴ, where the optimizer
  gets P_W G in place of G.

**Why the gradient is projected.** At a minimum over the set, the gradient is normal to the set, not zero. An
optimizer such as Adam divides the gradient entry by entry, which changes its direction. So with ``"project"``
the weight stops where the divided gradient is normal to the set, which is not the minimum. The tangent part
P_W G is zero only at such a minimum, and the division does not change this.

**Parts.** A weight can consist of several parts, such as rows or gates, each with a set of its own. A
relative step is sized for the whole weight. If each part were sized by itself, rounding would move a part
without gradient as far as all other parts. In addition, no part turns by more than arctan η. Without this
limit, a single row with a gradient among a thousand rows would turn by √1000 η.

**Rounding.** D is known only up to rounding errors of W. If the tangent part of D has the size of a few
rounding errors, its direction is random, and the weight stays unchanged. Without this rule, AdamW would turn
a W without gradient by η, because weight decay gives a tangent part that consists of rounding errors.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from spectral_param._context import HALF
from spectral_param._matrices import decomposed
from spectral_param._parametrizations.base import Parametrization
from spectral_param._sets import orthonormal, spheres

Kind = Literal["project", "tangent", "relative", "msign"]
Step = Kind | None

# Optimizers that by default add the weight decay to the gradient, and then divide the sum entry by entry.
_DIVIDING = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam")
# A tangent part counts as zero if its norm is at most this number times eps times the norm of the weight.
_ROUNDINGS = 4
# If a change in single precision is smaller than this fraction of the weight's norm, fewer than two digits of
# the change are known.
_WELL_KNOWN = 1e-6


def chosen(step: Step, constraint: Parametrization, weight: Tensor, X: Tensor, optimizer: Optimizer) -> Kind:
    """Return the kind of step for a weight.

    ``step=None`` selects "tangent" if the set has known tangent spaces and the optimizer needs this step, and
    "project" otherwise. The argument X is the weight as matrices, moved into the set.

    Raises:
        ValueError: If the requested step does not keep the weight in its set, or stops the weight
            elsewhere than at a minimum.
    """
    is_lbfgs = isinstance(optimizer, torch.optim.LBFGS)
    if step == "project" or (step is None and (is_lbfgs or not constraint.has_tangent)):
        return "project"
    if step is None and isinstance(optimizer, torch.optim.SGD) and _has_inside(constraint, X):
        return "project"  # SGD with a projection after each step converges to a minimum over the set.
    kind: Kind = step or "tangent"
    project = "step='project', which may stop short of the minimum"
    asked = f"step: expected 'project' or None, got {step!r}"
    if not constraint.has_tangent:
        raise ValueError(
            f"{asked} for {type(constraint).__name__}, whose set has no tangent space that is known. Leave "
            "step out, or hold the weight by its map: leave out the optimizer."
        )
    if is_lbfgs:
        raise ValueError(
            f"{asked} for LBFGS, which evaluates the loss at weights outside of the set, where no direction "
            "is tangent. Leave step out, or take another optimizer."
        )
    group = group_of(optimizer, weight)
    decay = 0 if group.get("decoupled_weight_decay") else group.get("weight_decay", 0)
    if isinstance(optimizer, _dividing()) and decay:
        raise ValueError(
            f"weight_decay: expected 0 or decoupled decay for a weight that is held, got {decay} with "
            f"{type(optimizer).__name__}, which divides it entry by entry, so that the weight stops beside "
            "the minimum. Take torch.optim.AdamW, decoupled_weight_decay=True where the optimizer has it, "
            f"a group of weight_decay=0 for this weight, or {project}."
        )
    if kind != "tangent":
        _check_sized(kind, constraint, weight, X, optimizer, group)
    return kind


def _check_sized(
    kind: Kind,
    constraint: Parametrization,
    weight: Tensor,
    X: Tensor,
    optimizer: Optimizer,
    group: dict[str, Any],
) -> None:
    """Raise if the learning rate cannot be the size of a step of the kind "relative" or "msign"."""
    asked = f"step: expected 'tangent', 'project' or None, got {kind!r}"
    if weight.dtype in HALF:
        raise ValueError(
            f"{asked} for a weight in {weight.dtype}, whose steps have lost their direction by rounding. "
            "Keep the weight in single precision, under torch.autocast for instance, or leave step out."
        )
    rate = group["lr"]
    is_multiplier = isinstance(optimizer, torch.optim.Adafactor) or "d" in group
    if rate is None or is_multiplier:
        raise ValueError(
            f"{asked} for {type(optimizer).__name__}, whose lr is no angle: the optimizer multiplies it by a "
            "size of its own. Take SGD, AdamW or Muon, or leave step out."
        )
    if _has_inside(constraint, X):
        raise ValueError(
            f"{asked} for a set with an inside, {type(constraint).__name__} of mode 'at_most', whose weights "
            "have no size of their own. Take mode='equal', or leave step out."
        )
    if kind == "msign" and constraint.as_matrices(X) is None:
        raise ValueError(
            f"{asked} for slices or a vector, got a weight of shape {tuple(weight.shape)}. Take 'relative', "
            "or constrain a matrix as a whole."
        )


def _has_inside(constraint: Parametrization, X: Tensor) -> bool:
    """Return whether the set has an interior, where small changes of any direction stay in the set."""
    return constraint.active(X, X) is not None


@functools.cache
def _dividing() -> tuple[type, ...]:
    return tuple(getattr(torch.optim, name) for name in _DIVIDING)


def group_of(optimizer: Optimizer, weight: Tensor) -> dict[str, Any]:
    """Return the parameter group of the optimizer that contains a weight."""
    return next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))


def groups_of(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return a dictionary from each parameter of the optimizer to its parameter group."""
    return {p: group for group in optimizer.param_groups for p in group["params"]}


def sized(
    kind: Kind, constraint: Parametrization, W: Tensor, A: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return steps whose size is the learning rate times the size of W, and the size of A relative to W.

    Args:
        kind: The kind of step, "relative" or "msign".
        constraint: The constraint of the weights, or another constraint with the same set.
        W: The matrices of k weights, which are members of the set, ``(k, ..., m, n)``.
        A: Tangent parts of the optimizer's changes of the k weights.
        rates: The learning rate η of each weight, ``(k)``.

    Returns:
        Steps of the shape of W, and the relative size of A: a number for each weight, or for each matrix with
        "msign", with trailing dimensions of size 1. Where A consists only of rounding errors, the step is
        zero.
    """
    shape = W.shape if kind == "msign" else (len(W), *[1] * (W.ndim - 2), W[0].numel())
    (U, size), (V, length) = (spheres.polar_of_values(X.reshape(shape)) for X in (A, W))
    U, V, length = U.reshape(W.shape), V.reshape(W.shape), length[..., None, None]
    eta = rates.reshape(-1, *[1] * (W.ndim - 1))
    if kind == "msign":
        matrices, of = constraint.as_matrices(U), constraint.as_matrices(V)
        assert matrices is not None
        assert of is not None
        S = constraint.tangent(W, orthonormal.msign(matrices).reshape(W.shape))
        sigma = decomposed(torch.linalg.svdvals, of)[..., 0]
        step = eta * length * sigma[..., None, None] * S
    else:
        part, share = (spheres.norms(Z)[..., None, None] for Z in (U, V))
        step = eta * length * torch.where(part > share, share / part, 1) * U
    ratio = size[..., None, None] / length
    return torch.where(ratio > _ROUNDINGS * torch.finfo(W.dtype).eps, step, 0), ratio


UNKNOWN = (
    "expected steps of the optimizer of at least 1e-6 of the weight, got smaller ones, of which rounding in "
    "single precision has taken the direction. With SGD multiply the loss by a large number, which leaves "
    "the size of a step as it is; else keep the weight in double precision."
)


def is_unknown(ratio: Tensor) -> bool:
    """Return whether a step in single precision is so small that its direction is lost in rounding errors."""
    return ratio.dtype == torch.float32 and bool((ratio < _WELL_KNOWN).any())
