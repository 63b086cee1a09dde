"""One number for a whole network: a proven Lipschitz constant, and the certified radius that follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param.analysis._layer_constants import KNOWN, UnknownConstantError, constant
from spectral_param.functional._checks import check_module, check_real, is_finite, with_arrays
from spectral_param.nn._residual import Residual

# The relative rounding error of a product of two constants.
_ROUNDING = 1 + 4 * torch.finfo(torch.float64).eps
# What a module may have on it that changes its result.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


def lipschitz(model: nn.Module, constants: Mapping[str, float] | None = None) -> float:
    r"""Return a proven Lipschitz constant of a network in the 2-norm: :math:`‖f(x) - f(y)‖_2 ≤ L ‖x - y‖_2`.

    It is the product of the constants of the layers. (Of :class:`spectral_param.nn.Residual` 1 + that of its
    function; of :class:`spectral_param.nn.StateSpace` the gain from a sequence to the outputs, from the same
    initial states.) Constrained or not, a linear layer has the norm of its weight, a convolution the bound
    that :class:`spectral_param.SpectralNorm` uses, for images of every size. Each is proven from above, up to
    the rounding errors of the forward pass of the network. A product is rarely the least constant of the
    network.

    Only what is known counts: ``torch.nn.Sequential`` and the layers of torch.nn that the message lists, in
    evaluation. Of other modules, subclasses among them, and of hooks nobody knows what they do with their
    children and results. They raise, and the message says how to state a constant.

    Args:
        model: The network, in evaluation: ``model.eval()``.
        constants: Constants that you state, by the names of ``model.named_modules()``, the model itself being
            ``""``. Nothing below such a module is looked at.

    Returns:
        The constant L.

    Raises:
        ValueError: If there is a module without a proven or a stated constant; if a module is in training, or
            has hooks or an own ``forward``; if a stated constant is no number ≥ 0, or of no module that
            counts.

    Example:
        >>> layers = [torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
        >>> model = torch.nn.Sequential(*layers).eval()
        >>> model = spectral_param.constrain(model, "*.weight", spectral_param.ScaledCayley())
        >>> round(spectral_param.analysis.lipschitz(model), 5)
        1.0
        >>> model = torch.nn.Sequential(model, torch.nn.LayerNorm(4)).eval()
        >>> round(spectral_param.analysis.lipschitz(model, {"1": 3.0}), 5)
        3.0
    """
    check_module(model, "model")
    stated = dict(constants or {})
    for name, value in stated.items():
        if not (is_finite(value) and value >= 0):
            raise ValueError(f"constants[{name!r}]: expected a finite number >= 0, got {value!r}.")
    walk = _Walk(stated)
    with torch.no_grad():
        result = walk.of(model, "", inside_residual=False)
    if walk.left:
        names = ", ".join(map(repr, sorted(walk.left)))
        raise ValueError(
            "constants: expected names of modules that the bound needs, as in model.named_modules(), got "
            f"{names}. Leave out those of modules below one that is stated."
        )
    return result


class _Walk:
    """The way through a network of known modules."""

    def __init__(self, stated: dict[str, float]) -> None:
        self.stated, self.left = stated, set(stated)

    def of(self, module: nn.Module, name: str, inside_residual: bool) -> float:
        """Return the constant of a module."""
        if name in self.stated:
            self.left.discard(name)
            return float(self.stated[name])
        self.check(module, name, inside_residual)
        kind = type_before_parametrizations(module)
        prefix = f"{name}." if name else ""
        if kind is nn.Sequential:
            result = 1.0
            for child, part in _children(module):
                result *= self.of(part, prefix + child, inside_residual) * _ROUNDING
            return result
        if kind is Residual:
            function = self.of(module.get_submodule("function"), f"{prefix}function", inside_residual=True)
            return (1 + function) * (0.5 if module.mean else 1.0) * _ROUNDING
        try:
            known = constant(module)
        except UnknownConstantError as error:
            _refuse(module, name, str(error), _stated(name))
        if known is None:
            expected = "a module whose forward is known"
            remedy = f"{_UNKNOWN.get(kind, '')}{_stated(name)} Known are {', '.join(sorted(KNOWN))}."
            _refuse(module, name, expected, remedy)
        return known

    def check(self, module: nn.Module, name: str, inside_residual: bool) -> None:
        """Raise if the module does not do what its class says."""
        if module.training:
            _refuse(module, name, "a module in evaluation", "Call model.eval() first.")
        if any(getattr(module, hooks) for hooks in _HOOKS) or any(
            getattr(torch_module, hooks) for hooks in _GLOBAL_HOOKS
        ):
            _refuse(module, name, "a module without forward hooks", f"Remove them. {_stated(name)}")
        if "forward" in vars(module):
            _refuse(module, name, "a module with the forward of its class", _stated(name))
        if inside_residual and getattr(module, "inplace", False):
            _refuse(module, name, "inplace=False inside a Residual, whose x would change", "Set it.")


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return all children with their names, one that occurs twice as often as it occurs."""
    parts = module.named_modules(remove_duplicate=False)  # A part may stand there twice.
    return [(name, part) for name, part in parts if name and "." not in name]


_NORMALISED = "It divides by a deviation that can be near 0, so it has no useful constant. "
_UNKNOWN: dict[type[nn.Module], str] = {nn.LayerNorm: _NORMALISED, nn.GroupNorm: _NORMALISED}


def _stated(name: str) -> str:
    """Return what to do about a module without a constant."""
    if name == "":
        return (
            "Pass the torch.nn.Sequential inside it, or a new one of its layers, in the order in which its "
            "forward calls them. Constants of its children alone would not help: nobody knows what it does "
            "with their results. For x + f(x) take spectral_param.nn.Residual."
        )
    return (
        f"State its constant, if you know one: lipschitz(model, {{{name!r}: L}}). For x + f(x) take "
        "spectral_param.nn.Residual."
    )


def _refuse(module: nn.Module, name: str, expected: str, remedy: str) -> NoReturn:
    kind = type_before_parametrizations(module)
    raise ValueError(
        f"lipschitz: expected {expected}, got {name!r}, a {kind.__module__}.{kind.__qualname__}. {remedy}"
    )


@with_arrays
def certified_radius(logits: Tensor, lipschitz: float) -> Tensor:
    r"""Return the distance within which no input changes the class of a network with this Lipschitz constant.

    :math:`(l_1 - l_2)/(\sqrt 2\, L)` for the two largest logits: two logits together change by at most √2 L
    times the distance of the inputs in the 2-norm. A tie has the radius 0. Source: Tsuzuku, Sato and
    Sugiyama, "Lipschitz-Margin Training" (NeurIPS 2018). Rounding errors of the logits are not included.

    Args:
        logits: Real ``(..., classes)``, of two or more classes, before a softmax.
        lipschitz: L ≥ 0 of the network in the 2-norm, as from :func:`lipschitz`.

    Returns:
        The radius, ``(...)``, rounded down, in float32 for half precision; infinite where L = 0 and there is
        no tie, NaN where a logit is NaN.

    Raises:
        ValueError: If the logits are complex or of fewer than two classes, or L is no finite number ≥ 0.

    Example:
        >>> logits = torch.tensor([[3.0, 1.0, 0.0], [2.0, 2.0, 0.0]])
        >>> spectral_param.analysis.certified_radius(logits, 1.0)
        tensor([1.4142, 0.0000])
    """
    check_real(logits, "logits", "Take their real parts, if these decide.")
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise ValueError(
            f"logits: expected shape (..., classes) with at least 2 classes, got {tuple(logits.shape)}. For "
            "one logit z of two classes pass torch.stack([z, -z], dim=-1) and 2 ** 0.5 times the constant."
        )
    if not (is_finite(lipschitz) and lipschitz >= 0):
        raise ValueError(f"lipschitz: expected a finite number >= 0, got {lipschitz!r}.")
    first, second = logits.detach().double().topk(2, dim=-1).values.unbind(-1)
    margin = first - second
    radius = (
        torch.where(margin > 0, math.inf, margin) if lipschitz == 0 else margin / (math.sqrt(2) * lipschitz)
    )
    # Rounded down: half precision would be wrong by a per cent.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return (radius * (1 - torch.finfo(dtype).eps)).to(dtype)
