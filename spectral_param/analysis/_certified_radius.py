r"""The distance within which no input changes the class.

If the difference of the outputs i and j changes by at most c_ij times the distance of two inputs, no input
nearer than min_j (l_i - l_j)/c_ij changes the largest logit i. A constant L of the network gives c_ij = √2 L.
With the rows w_i of the last layer and the constant K of all layers before it, c_ij = K ‖w_i - w_j‖; by the
matrix inequality (4) of :mod:`spectral_param.analysis._chain`, c_ij² is the form (e_i - e_j)ᵀ K (e_i - e_j).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constants.network import (
    NEUTRAL,
    ROUNDING,
    Layer,
    at_scale,
    checked_shape,
    layers_of,
    product,
)
from spectral_param._precision import to_double
from spectral_param.analysis import _chain
from spectral_param.analysis._lipschitz import Method, rule
from spectral_param.analysis._parts import number_by_norms, number_of_part, parts_of, proven_forms
from spectral_param.functional._checks import check_real, described, is_finite, with_arrays

_EPS = torch.finfo(torch.float64).eps


@with_arrays
def certified_radius(
    logits: Tensor,
    lipschitz: float | nn.Module,
    method: Method = "norms",
    constants: Mapping[str, float] | None = None,
    input_shape: Sequence[int] | None = None,
    steps: int = 0,
) -> Tensor:
    r"""Return the distance within which no input changes the class of a network.

    For a constant L, this distance is :math:`(l_1 - l_2)/(\sqrt 2\, L)` for the two largest logits: two
    logits together change by at most √2 L times the distance of the inputs in the 2-norm. For a model whose
    last layer is a ``torch.nn.Linear``, each pair of classes has a constant of its own, :math:`K ‖w_i -
    w_j‖_2` for the rows w of this layer's weight and the constant K of the layers before it, or the constant
    that the matrix inequality of ``method="lmi"`` gives. The radius is the least of :math:`(l_1 -
    l_j)/c_{1j}` over all other classes j, and never smaller than the radius from the model's constant L. A
    tie has the radius 0. Rounding errors of the logits are not included.

    Sources: Tsuzuku, Sato and Sugiyama, "Lipschitz-Margin Training" (NeurIPS 2018), sections 3 and 4; the
    inequality as in :func:`lipschitz`.

    Args:
        logits: Real ``(..., classes)``, of two or more classes, before a softmax or after
            ``torch.nn.LogSoftmax``.
        lipschitz: L ≥ 0 of the network in the 2-norm, as from :func:`lipschitz`; or the network itself, in
            evaluation mode, which gave the logits.
        method: For a network, ``"norms"``, the default, or ``"lmi"``, as in :func:`lipschitz`.
        constants: For a network, constants that you state.
        input_shape: For a network, the shape of one input.
        steps: For a network, the Newton steps of ``"lmi"``.

    Returns:
        The radius, ``(...)``, rounded down, in float32 for half precision; infinite where the constant is 0
        and there is no tie, NaN where a logit is NaN.

    Raises:
        ValueError: If the logits are complex, of fewer than two classes, or of another number of classes than
            the network, or L is neither a finite number ≥ 0 nor a network that :func:`lipschitz` takes.

    Example:
        >>> logits = torch.tensor([[3.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
        >>> spectral_param.analysis.certified_radius(logits, 1.0)
        tensor([1.4142, 0.0000])
        >>> layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)]
        >>> model = torch.nn.Sequential(*layers).eval()
        >>> logits = model(torch.randn(5, 8))
        >>> of_pairs = spectral_param.analysis.certified_radius(logits, model, "lmi")
        >>> L = spectral_param.analysis.lipschitz(model, method="lmi")
        >>> bool((of_pairs >= spectral_param.analysis.certified_radius(logits, L)).all())
        True
    """
    check_real(logits, "logits", "Take their real parts, if these decide.")
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise ValueError(
            f"logits: expected shape (..., classes) with at least 2 classes, got {tuple(logits.shape)}. For "
            "one logit z of two classes pass torch.stack([z, -z], dim=-1) and 2 ** 0.5 times the constant."
        )
    values = to_double(logits.detach())
    # Rounded down: half precision would be wrong by a per cent.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if isinstance(lipschitz, nn.Module):
        layers = layers_of(lipschitz, dict(constants or {}), checked_shape(input_shape), rule(method, steps))
        radius = _of_pairs(values, layers, method, steps)
    else:
        radius = _of_a_number(values, lipschitz, (constants, input_shape, steps or None))
    return (radius * (1 - torch.finfo(dtype).eps)).to(dtype)


def _of_a_number(logits: Tensor, constant: float, others: tuple[object, ...]) -> Tensor:
    if not (is_finite(constant) and constant >= 0):
        got = repr(constant) if isinstance(constant, (int, float)) else described(constant)
        raise ValueError(f"lipschitz: expected a finite number >= 0, or the network, got {got}.")
    if any(each is not None for each in others):
        raise ValueError(
            f"lipschitz: expected the network with constants, input_shape or steps, got the number "
            f"{constant}. "
            "Pass these to analysis.lipschitz."
        )
    first, second = logits.topk(2, dim=-1).values.unbind(-1)
    return _quotient(first - second, torch.full_like(first, math.sqrt(2) * constant))


def _quotient(margin: Tensor, constant: Tensor) -> Tensor:
    """Return margin/constant, 0 for a tie, infinite for a positive margin if the constant is 0."""
    return torch.where(margin > 0, margin / constant, margin.clamp(min=0))


def _of_pairs(logits: Tensor, layers: list[Layer], method: Method, steps: int) -> Tensor:
    """Return the radii by the constants of pairs."""
    number = rule(method, steps)(layers)
    common = math.sqrt(2) * number * ROUNDING
    first, predicted = logits.max(dim=-1)
    margin = first[..., None] - logits
    margin.scatter_(-1, predicted[..., None], math.inf)
    constants = torch.full_like(margin, common)
    pairs = _pairs(layers, method, steps)
    if pairs is not None:
        if len(pairs) != logits.shape[-1]:
            raise ValueError(
                f"logits: expected the outputs of the network, (..., {len(pairs)}), got "
                f"{tuple(logits.shape)}. "
                "Pass model(x)."
            )
        constants = torch.minimum(constants, pairs.to(logits.device)[predicted])
    radius = _quotient(margin, constants).amin(dim=-1)
    return torch.where(logits.isnan().any(dim=-1), math.nan, radius)


def _pairs(layers: list[Layer], method: Method, steps: int) -> Tensor | None:
    """Return c (classes, classes), None if the last layer is not linear."""
    while layers and _kind(layers[-1]) in (*NEUTRAL, nn.LogSoftmax):  # Differences of logits stay.
        layers = layers[:-1]
    if not layers or _kind(layers[-1]) is not nn.Linear:
        return None
    last_layer: Any = layers[-1].module
    W = to_double(last_layer.weight.detach()).cpu()
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(W, W, compute_mode=exact) * (1 + (W.shape[1] + 8) * _EPS)
    found = _times(distances, number_by_norms(layers[:-1]))
    if method == "norms":
        return found
    *before, last = parts_of(layers)
    factor = product(number_of_part(part, steps) for part in before)
    if last.chain is None:
        return torch.minimum(found, _times(distances, factor))
    for form in proven_forms(last.chain, steps):
        K = _chain.output_form(form.form, form.chain.maps[-1], form.chain.errors[-1])
        if K is not None:
            d = K.diagonal()
            square = d[:, None] + d[None] - 2 * K
            square = square.clamp(min=0) + 8 * _EPS * (d[:, None] + d[None])
            found = torch.minimum(found, _times(square.sqrt(), at_scale(factor, form.exponent)))
    return found


def _times(distances: Tensor, factor: float) -> Tensor:
    """Return the product, rounded up; equal rows give 0, even if the factor is infinite."""
    return torch.where(distances > 0, distances * (factor * ROUNDING**2), 0.0)


def _kind(layer: Layer) -> type[nn.Module] | None:
    return None if layer.module is None else type_before_parametrizations(layer.module)
