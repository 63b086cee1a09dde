"""Constraints with a bound on the spectral radius, norm or abscissa of a matrix, here called its *size*.

A bound is a number, one number for each matrix, or the size of the weight at registration (``"present"``).

A number given to the constructor is an ordinary attribute. All other bounds are stored in a buffer in double
precision: a tensor, the sizes found by ``"present"``, and numbers set later, for instance by a schedule. So
checkpoints, averaged models and distributed modules contain these bounds, and no conversion rounds them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from spectral_param._context import has_no_values
from spectral_param._map import Map
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.in_set import unless_rounding
from spectral_param._parametrizations.tensors import at_least_float32, readable, real_entries
from spectral_param._precision import double_device
from spectral_param._scale import change_and_size
from spectral_param.functional._checks import as_numbers

Bound = float | Tensor | Literal["present"]

_SHOWN = 20  # The largest number of entries that a ``repr`` shows.


class _Kind(NamedTuple):
    above: float  # Exclusive lower limit of the bound.
    default: float  # The bound for "present" until the weight has values.
    remedy: str

    def allows(self, values: Tensor) -> bool:
        return bool((values.isfinite() & (values > self.above)).all())

    @property
    def positive(self) -> str:
        return "positive " if self.above == 0 else ""


_KINDS = {
    "radius": _Kind(0.0, 1.0, "If the state should decay fast, take a small radius instead of 0."),
    "norm": _Kind(0.0, 1.0, "For a weight of zeros, which has the norm 0, take no constraint."),
    "abscissa": _Kind(-math.inf, 0.0, "For stable dynamics take a negative number."),
}


class Bounded(Parametrization):
    """A constraint with one bound, in the attribute ``radius``, ``norm`` or ``abscissa``."""

    _is_present = False  # Whether the bound was given as ``"present"``: the weight determines the number.

    #: Whether the weight alone determines the bound of "present", so that a checkpoint need not save the
    #: bound.
    present_is_plain = False

    def __init__(self, name: str, value: Bound, **choices: tuple[str, Any]) -> None:
        # There is no docstring here, because help() of a subclass would show it. A ValueError is raised if
        # the value is not a valid bound, or a choice (see the base class) is not allowed.
        super().__init__(**choices)
        vars(self).update(_bound=name, _is_present=isinstance(value, str))
        if isinstance(value, float) and _KINDS[name].above < value < math.inf:
            vars(self)[name] = value
            return
        values = self._checked(value)
        if isinstance(values, Tensor) and (values.ndim or isinstance(value, Tensor)):
            self._take_numbers(values)
        else:
            vars(self)[name] = values.item() if isinstance(values, Tensor) else values

    def _as_bound(self, value: Any) -> Any:
        """Return "present" unchanged; store numbers in the buffer of the bound, and return the buffer."""
        name, values = self._bound, self._checked(value)
        if not isinstance(values, Tensor):
            return values
        buffer = self._buffers.get(name)
        if values.ndim == 0 and buffer is not None:
            values = values.expand(buffer.shape).clone()
        self._take_numbers(values)
        return self._buffers[name]

    def _take_numbers(self, values: Tensor) -> None:
        """Store the numbers in the buffer of the bound."""
        vars(self).pop(self._bound, None)
        self.register_buffer(self._bound, self._beside_weight(values))

    def _checked(self, value: Any) -> Tensor | Literal["present"]:
        """Return "present", or a copy of the numbers in double precision; raise if the bound is not valid."""
        name, kind = self._bound, _KINDS[self._bound]
        if isinstance(value, str) and value == "present":
            return "present"
        if isinstance(value, nn.Parameter):
            raise ValueError(
                f"{name}: expected a number or a tensor, got a Parameter. A bound is not trained: pass "
                f"{name}.detach()."
            )
        expected = "a number, a tensor or 'present'"
        given = value.cpu() if isinstance(value, Tensor) else value
        values = as_numbers(given, name, expected, dtype=torch.float64).clone()
        if not kind.allows(values):
            raise ValueError(f"{name}: expected finite {kind.positive}numbers, got {value!r}. {kind.remedy}")
        return values

    def _beside_weight(self, values: Tensor) -> Tensor:
        """Return the numbers on the weight's device, or unchanged if the weight is on the meta device."""
        device = self._like.device
        if isinstance(self._like, FakeTensor):
            return self._like.new_empty(values.shape, dtype=values.dtype)
        if device.type == "meta":
            return values
        return (values if double_device(device) == device else values.float()).to(device)

    def _take_present(self, size: Tensor) -> None:
        """Set the bound to ``size``, the radii, abscissas or norms that the matrices have now."""
        name, kind = self._bound, _KINDS[self._bound]
        if not kind.allows(size):
            what = name if name == "norm" else f"spectral {name}"
            raise ValueError(
                f"{name}: expected a weight of {kind.positive}finite {what} with 'present', got "
                f"{readable(size)}. Pass a number."
            )
        self._buffers.pop(name, None)
        setattr(self, name, size.detach())

    def _bound_at(self, W: Tensor, size: Tensor) -> Tensor:
        """Return :meth:`_bound_for` for the matrices W; a bound "present" is first set to ``size``."""
        if isinstance(getattr(self, self._bound), str):
            self._take_present(size)
        return self._bound_for(W, size)

    def _renew(self) -> None:
        """Let the next weight determine the bound, if the bound was given as "present"."""
        if self._is_present:
            self._buffers.pop(self._bound, None)
            setattr(self, self._bound, "present")

    def _start_bound(self) -> None:
        """Replace the bound "present" by its default number, for a weight that is about to be initialized."""
        if isinstance(getattr(self, self._bound), str):
            setattr(self, self._bound, _KINDS[self._bound].default)

    def _bound_for(self, T: Tensor, like: Tensor | None = None) -> Tensor:  # -> () or (...)
        """Return the bound for matrices T, in the real dtype and on the device of ``like``, by default T.

        A bound that is a tensor is copied. So a read and its backward pass use the same numbers, even if the
        bound is changed in between.

        Raises:
            ValueError: If the bound is a tensor that does not broadcast to the batch of matrices.
        """
        name, value = self._bound, getattr(self, self._bound)
        like = T if like is None else like
        if isinstance(value, str):
            assert has_no_values(T), "'present' is a number from the first weight with values on"
            value = _KINDS[name].default
        if isinstance(value, Tensor) and isinstance(T, FakeTensor) != isinstance(value, FakeTensor):
            # PyTorch does not combine fake and real tensors, so the default number of
            # this kind of bound is used in place of the bound.
            value = _KINDS[name].default
        if not isinstance(value, Tensor):
            # The number is created on the device, because a copy from the host would make the host wait.
            return like.real.new_full((), value)
        try:
            torch.broadcast_to(value, T.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"{name}: expected a number or a tensor that broadcasts to {tuple(T.shape[:-2])}, one "
                f"{name} for each matrix, got shape {tuple(value.shape)}."
            ) from None
        if like.is_cpu:  # First copy, then convert: the bound's device may lack double precision.
            value = value.to(like.device)
        return value.to(like.real.dtype, copy=True).to(like.device, non_blocking=True)

    def _number(self) -> float | None:
        """Return the bound if it is one number on the host, else None."""
        value = getattr(self, self._bound)
        if isinstance(value, Tensor) and value.ndim == 0 and value.is_cpu:
            return value.item()
        return value if isinstance(value, float) else None

    def _shown(self) -> str:
        """Return the bound for ``repr``."""
        value = getattr(self, self._bound)
        if isinstance(value, Tensor) and not has_no_values(value):
            value = value.tolist() if value.numel() <= _SHOWN else f"{value.numel()} numbers"
        return f"{self._bound}={value!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Bounded:
        values = self._buffers.pop(self._bound, None)
        try:
            super()._apply(fn, recurse)
        finally:  # The buffer is put back even if the conversion is refused.
            if values is not None:
                self._buffers[self._bound] = self._beside_weight(values)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        _, _, missing, unexpected, errors = args
        name, kind = self._bound, _KINDS[self._bound]
        key, present = prefix + name, self._buffers.pop(name, None)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if present is not None:
            self._buffers[name] = present
        if key not in state_dict:
            # Only a bound found by "present" has to be in a checkpoint. A number given to the constructor is
            # not saved, and earlier versions did not save a tensor given to the constructor.
            if self._is_present:
                missing.append(key)
            return
        if key in unexpected:
            unexpected.remove(key)
        value = state_dict[key]
        known = (torch.Size(), self._batch()) if self._shape else (value.shape,)
        if not (value.shape in known and kind.allows(value)):
            errors.append(
                f"{key}: expected finite {kind.positive}numbers, one or one for each matrix, got {value}. To "
                "keep the bound of the module, load the checkpoint without this key, with strict=False."
            )
        elif present is not None and present.shape == value.shape:
            present.copy_(value)  # In place, because compiled graphs refer to this tensor.
        else:
            self._buffers.pop(name, None)
            setattr(self, name, value)

    def _batch(self) -> torch.Size:
        """Return the shape of the batch of matrices of the registered weight."""
        assert self._shape is not None
        return self._matrices(torch.empty(self._shape, dtype=torch.float32, device="meta")).shape[:-2]


class Measurement(NamedTuple):
    """The sizes of matrices, the rounding errors of the sizes, and the solution that gave the sizes.

    Attributes:
        size: The size of each matrix.
        rounding: How much rounding errors of the entries may change the size.
        solution: The eigenvalues with eigenvectors, or the norms, for :meth:`Measured.made`; None if unknown.
    """

    size: Tensor
    rounding: Tensor | float
    solution: Any = None


class Measured(Bounded):
    """A constraint that scales or shifts matrices according to their size.

    The map is a projection: a member of the set is its own original. The distance from the set is
    ``|size - bound|`` in the mode ``"equal"``, and max(size - bound, 0) in the mode ``"at_most"``. In the
    mode ``"latched"`` each matrix has a latch, an entry of a buffer. While the latch of a matrix is closed,
    the mode ``"equal"`` applies to this matrix; while the latch is open, ``"at_most"`` applies.
    """

    #: A size may differ from its bound by this many rounding errors before a matrix is moved.
    ROUNDINGS: ClassVar[int]

    assignable_after = True
    keeps_members = True

    mode: str
    latched: Tensor | None

    def measure(self, W: Tensor, eps: float) -> Measurement:
        """Return the size of each matrix, and its error if the entries have relative errors ``eps``."""
        raise NotImplementedError

    def made(self, T: Tensor, solution: Any) -> Map:
        """Return T scaled or shifted to the bound, using the solution that :meth:`measure` found for T."""
        raise NotImplementedError

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return the distance that the docstring of this class defines, and its resolution."""
        return self._judged(W, self.measure(W, eps), eps)

    def _judged(self, W: Tensor, measured: Measurement, eps: float) -> tuple[Tensor, Tensor]:
        """Return the distance and its resolution for matrices that have been measured."""
        size, rounding, _ = measured
        bound = self._bound_at(W, size)
        excess = size - bound
        distance = excess.abs() if self.mode == "equal" else excess.clamp(min=0)
        if self.mode == "latched" and self.latched is not None:
            closed = self.latched.real > 0.5
            distance = torch.where(closed.to(excess.device), excess.abs(), distance)
        resolution = self.ROUNDINGS * eps * bound.abs() + rounding
        # The dtype is converted before the device, because a device may have no double precision.
        kind = W.real.dtype
        return distance.to(kind).to(W.device), resolution.to(kind).to(W.device)

    def members(self, W: Tensor, eps: float, is_first: bool) -> Tensor:
        """Return W with matrices outside the set replaced by members; each matrix is measured once."""
        measured = self.measure(W, eps)
        near = functools.partial(self.near, solution=measured.solution)
        return self._with_members(W, *self._judged(W, measured, eps), near, is_first)

    def near(self, W: Tensor, eps: float | None = None, solution: Any = None) -> Tensor:
        """Return matrices scaled or shifted as by the map, but unchanged if they are members up to rounding.

        Args:
            W: Finite matrices ``(..., m, n)``.
            eps: After a step of an optimizer, the relative rounding error of the entries: a matrix that would
                move only by rounding keeps its bits.
            solution: The attribute ``solution`` of the :class:`Measurement` of W, if W has been measured.
        """
        made = (self.evaluate(W) if solution is None else self.made(W, solution)).value
        found = torch.where(self._stays(W, made)[..., None, None], W, made)
        return found if eps is None else unless_rounding(found, W, eps)

    def _stays(self, W: Tensor, made: Tensor) -> Tensor:
        """Return which matrices differ only by rounding from their images under the map; False for NaN."""
        change, size = change_and_size(W, made)
        return change <= self._least_change(W.dtype) * size

    def _least_change(self, dtype: torch.dtype) -> float:
        """Return the largest relative change of a matrix that counts as rounding."""
        return self.ROUNDINGS * torch.finfo(dtype).eps

    def originals_for(self, W: Tensor, eps: float, is_first: bool) -> Tensor:
        """Return originals T; close the latch of each matrix that registration moves, and open the others."""
        if is_first:
            self._renew()
        if self._buffers.get("latched") is not None:
            self.latched = None
        T = self.invert(self.members(W, eps, is_first))
        if self.mode == "latched":
            self.latched = (T != W).flatten(-2).any(dim=-1).to(W.real.dtype)
        return T

    def invert(self, W: Tensor) -> Tensor:
        """Return T = W."""
        return W.clone()

    def rebase(self, T: Tensor) -> None:  # type: ignore[override]
        """Copy the weight to the original in the mode ``"at_most"``.

        Training hardly shrinks an original above the bound, so without the copy the weight would stay on the
        bound.
        """
        if self.mode == "at_most":
            with torch.no_grad():
                W = self.evaluate(at_least_float32(T)).value
                if bool(W.isfinite().all()):
                    T.copy_(W)

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries of T; a complex entry counts as two."""
        return real_entries(T)

    def _set_name(self) -> str:
        name = self._bound if self._bound == "norm" else f"spectral {self._bound}"
        bound = getattr(self, self._bound)
        number = readable(bound) if isinstance(bound, Tensor) else f"{bound:.6g}"
        return f"a weight of {name} {'=' if self.mode == 'equal' else '<='} {number}"


def is_present(constraint: nn.Module) -> bool:
    """Return whether the bound was given as "present", so that another weight may give another bound."""
    return isinstance(constraint, Bounded) and constraint._is_present


def lost_bounds(constraint: nn.Module) -> Iterator[tuple[Bounded, str]]:
    """Yield constraints whose bound "present" is lost if only the weight is saved, and the bounds' names."""
    bounded = (part for part in constraint.modules() if isinstance(part, Bounded))
    for part in bounded:
        if isinstance(getattr(part, part._bound), str) and not part.present_is_plain:
            yield part, part._bound
