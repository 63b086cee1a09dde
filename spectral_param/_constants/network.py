"""The walk through a network of known modules: its layers in order, with their constants and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from spectral_param._constants.layers import KEEP, NO_SHAPE, classes, constant
from spectral_param._constants.repeats import Shape, is_known
from spectral_param._constants.slopes import UnknownConstantError, slopes
from spectral_param.functional._checks import described, is_finite

# The factor that covers the rounding error of a product of two constants.
ROUNDING = 1 + 4 * torch.finfo(torch.float64).eps
# Layers that act differently in training.
_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_OF_A_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_TINY = torch.finfo(torch.float64).tiny
# Attributes of a module that contain hooks, which may change the module's result.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


# Classes of modules that contain a module ``function``, such as a residual block. For each class, a function
# that computes the constant of such a module from the constant of its ``function``.
_AROUND: dict[type[nn.Module], Callable[[Any, float], float]] = {}


class Layer(NamedTuple):
    """A layer of a network.

    Attributes:
        module: The layer; None for a part of the network of which only the constant is needed.
        constant: The Lipschitz constant of the layer.
        before: The shape of one input, as far as this shape is known.
        after: The shape of one output, as far as this shape is known.
    """

    module: nn.Module | None
    constant: float
    before: Shape
    after: Shape


def register_around(kind: type[nn.Module], found: Callable[[Any, float], float]) -> None:
    """Register a class that contains a module ``function``, and whose output has the shape of its input.

    Args:
        kind: The class.
        found: A function that computes the constant of a module from the constant of its ``function``.
    """
    _AROUND[kind] = found


def product(factors: Iterable[float]) -> float:
    """Return the product, rounded up: infinity for an overflow, the least normal number for an underflow."""
    mantissa, exponent = 1.0, 0
    for factor in factors:
        if factor == 0:
            return 0.0
        rounding = 1.0 if mantissa in (0.5, 1.0) or factor == 1 else ROUNDING
        mantissa, shift = math.frexp(mantissa * factor * rounding)
        exponent += shift
    return at_scale(mantissa, exponent)


def at_scale(mantissa: float, exponent: int) -> float:
    """Return mantissa · 2^exponent, but at least the least normal number; infinity for an overflow."""
    try:
        return max(math.ldexp(mantissa, exponent), _TINY)
    except OverflowError:
        return math.inf


def layers_of(
    model: nn.Module, stated: dict[str, float], shape: Shape, number: Callable[[Sequence[Layer]], float]
) -> list[Layer]:
    """Return the layers of a network.

    Args:
        model: The network.
        stated: Constants that the user has given, by the names of the modules.
        shape: The shape of one input; None if the user has not given it.
        number: Returns the constant of several successive layers, for the function of a residual block.

    Raises:
        ValueError: As :func:`spectral_param.analysis.lipschitz` does.
    """
    for name, value in stated.items():
        if not (is_finite(value) and value >= 0):
            raise ValueError(f"constants[{name!r}]: expected a finite number >= 0, got {value!r}.")
    walk = _Walk(stated, number)
    with torch.no_grad():
        layers = walk.of(model, "", shape, inside_residual=False)
    if walk.left:
        names = ", ".join(map(repr, sorted(walk.left)))
        raise ValueError(
            "constants: expected names of modules that the bound needs, as in model.named_modules(), got "
            f"{names}. Leave out those of modules below one that is stated."
        )
    return layers


def rate_by_norms(function: nn.Module, caller: str) -> float:
    """Return the product of the constants of the layers of ``function``, a part of the caller's module.

    ``function`` may be in training mode if it acts as in evaluation mode.

    Raises:
        ValueError: If no constant is proven. The message begins with ``caller``.
    """

    def number(layers: Iterable[Layer]) -> float:
        return product(layer.constant for layer in layers)

    walk = _Walk({}, number, caller, in_training=True)
    with torch.no_grad():
        return number(walk.of(function, "function", None, inside_residual=True))


def checked_shape(shape: Any) -> Shape:
    """Return the shape of an input as a tuple of integers, or None.

    Raises:
        ValueError: If the shape is neither None nor a sequence of integers of at least 1.
    """
    if shape is None:
        return None
    if isinstance(shape, (list, tuple, torch.Size)) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in shape
    ):
        return tuple(shape) or None
    got = repr(shape) if isinstance(shape, (list, tuple, int)) else described(shape)
    raise ValueError(
        f"input_shape: expected the sizes of one input without the batch, such as (3, 32, 32), got {got}. "
        "Of a batch x pass x.shape[1:]."
    )


class _Walk:
    """A walk through a network, which collects the layers."""

    def __init__(
        self,
        stated: dict[str, float],
        number: Callable[[Sequence[Layer]], float],
        caller: str = "lipschitz",
        in_training: bool = False,
    ) -> None:
        self.stated, self.left, self.number = stated, set(stated), number
        self.caller, self.in_training = caller, in_training

    def of(self, module: nn.Module, name: str, shape: Shape, inside_residual: bool) -> list[Layer]:
        """Return the layers of a module."""
        if name in self.stated:
            self.left.discard(name)
            return [Layer(None, float(self.stated[name]), shape, None)]
        kind = type_before_parametrizations(module)
        known = {nn.Sequential, *_AROUND, *classes()}
        if kind not in known:
            names = sorted({each.__name__ for each in known - {nn.GLU}})
            remedy = f"{_UNKNOWN.get(kind, '')}{self.remedy(name)} Known are {', '.join(names)}."
            self.refuse(module, name, "a module whose forward is known", remedy)
        self.check(module, name, inside_residual)
        prefix = f"{name}." if name else ""
        if kind is nn.Sequential:
            layers: list[Layer] = []
            for child, part in _children(module):
                layers += self.of(part, prefix + child, shape, inside_residual)
                shape = layers[-1].after if layers else shape
            return layers
        if kind in _AROUND:
            function, inner = module.get_submodule("function"), f"{prefix}function"
            rate = self.number(self.of(function, inner, shape, inside_residual=True))
            return [Layer(None, _AROUND[kind](module, rate), shape, shape)]
        try:
            found = constant(module, shape)
        except UnknownConstantError as error:
            self.refuse(module, name, str(error), self.remedy(name))
        return [Layer(module, found, shape, _shape_after(module, name, shape))]

    def check(self, module: nn.Module, name: str, inside_residual: bool) -> None:
        """Raise if the module may not act as its class does (in training mode or by hooks, for instance)."""
        if module.training and not (self.in_training and _does_the_same(module)):
            expected = (
                "dropout and batch norms in evaluation" if self.in_training else "a module in evaluation"
            )
            remedy = (
                "In training, what it does is random or changes. Call eval() of it first."
                if self.in_training
                else "Call model.eval() first."
            )
            self.refuse(module, name, expected, remedy)
        if any(getattr(module, hooks) for hooks in _HOOKS) or any(
            getattr(torch_module, hooks) for hooks in _GLOBAL_HOOKS
        ):
            self.refuse(module, name, "a module without forward hooks", f"Remove them. {self.remedy(name)}")
        if "forward" in vars(module):
            self.refuse(module, name, "a module with the forward of its class", self.remedy(name))
        if inside_residual and getattr(module, "inplace", False):
            self.refuse(module, name, "inplace=False inside a Residual, whose x would change", "Set it.")

    def remedy(self, name: str) -> str:
        """Return advice on what to do about a module whose constant is not known."""
        return _stated(name) if self.caller == "lipschitz" else _BUILD

    def refuse(self, module: nn.Module, name: str, expected: str, remedy: str) -> NoReturn:
        """Raise an error about a module."""
        kind = type_before_parametrizations(module)
        got = repr(name) if name else "the model itself"
        raise ValueError(
            f"{self.caller}: expected {expected}, got {got}, a {kind.__module__}.{kind.__qualname__}. "
            f"{remedy}"
        )


def _does_the_same(module: Any) -> bool:
    """Return whether a module in training mode acts as in evaluation mode, each time that it is called."""
    if isinstance(module, _RANDOM):
        return bool(module.p == 0)
    if isinstance(module, _OF_A_BATCH):
        return False
    if not is_parametrized(module):
        return True
    # torch's spectral_norm takes a step of its iteration at each read, so two reads are compared.
    reads = [[getattr(module, name) for name in module.parametrizations] for _ in range(2)]
    return all(torch.equal(first, second) for first, second in zip(*reads, strict=True))


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return all children with their names; a child that occurs twice is returned twice."""
    parts = module.named_modules(remove_duplicate=False)  # A part may occur twice.
    return [(name, part) for name, part in parts if name and "." not in name]


def _shape_after(module: Any, name: str, shape: Shape) -> Shape:
    """Return the shape of an output, as far as it is known, from the shape of an input."""
    kind = type_before_parametrizations(module)
    if kind in NO_SHAPE:
        return None
    if is_known(shape):
        return _tried(module, name, shape)
    if kind is nn.Linear:
        return (module.out_features,) if shape == (-1,) else (..., module.out_features)
    if kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return (-1,)
    if kind is nn.BatchNorm1d and shape == (-1,):
        return (module.num_features,)
    return shape if kind in _KEEP or kind in KEEP or slopes(module) is not None else None


# NEUTRAL: layers that do nothing in evaluation mode. _KEEP: layers, other than activations, whose output has
# the shape of their input.
NEUTRAL = (nn.Identity, *_RANDOM)
_KEEP = (*NEUTRAL, nn.BatchNorm1d, nn.Softmax, nn.Softmin, nn.LogSoftmax)


def _tried(module: nn.Module, name: str, shape: Shape) -> Shape:
    """Return the shape of an output by running the module on zeros."""
    assert shape is not None
    weight = getattr(module, "weight", None)
    weight = getattr(module, "running_var", None) if weight is None else weight
    dtype, device = (torch.float32, torch.device("cpu")) if weight is None else (weight.dtype, weight.device)
    try:
        output = module(torch.zeros((1, *shape), dtype=dtype, device=device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        kind = type_before_parametrizations(module).__name__
        raise ValueError(
            f"input_shape: expected the shape of one input of the model without the batch, got one for which "
            f"{name!r}, a {kind}, gets {shape} and refuses: {error} Of a batch x pass x.shape[1:]."
        ) from error
    return tuple(output.shape[1:]) or None if len(output) == 1 else None


_BUILD = (
    "Its constant has to be proven: build the function of a torch.nn.Sequential of known layers, without "
    "hooks, subclasses or a forward of your own."
)
_NORMALISED = "It divides by a deviation that can be near 0, so it has no useful constant. "
_RECURRENT = "How fast it forgets is what analysis.contraction proves. "
_UNKNOWN: dict[type[nn.Module], str] = {
    nn.LayerNorm: _NORMALISED,
    nn.GroupNorm: _NORMALISED,
    nn.RNN: _RECURRENT,
    nn.GRU: _RECURRENT,
    nn.LSTM: _RECURRENT,
}


def _stated(name: str) -> str:
    """Return advice on how to state the constant of a module, or how to do without it."""
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
