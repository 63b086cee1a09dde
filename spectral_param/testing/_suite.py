"""The list of all checks, and the choice of checks for a case."""

from __future__ import annotations

import inspect
import itertools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from spectral_param._parametrizations import Parametrization
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.testing._case import Case, Shape
from spectral_param.testing._derivatives import (
    check_cached,
    check_gradient_of_the_read,
    check_gradients,
    check_repeated_reads,
    check_torch_func,
    check_write_during_a_read,
)
from spectral_param.testing._input import check_bad_input, check_nan, check_nan_in_a_batch, check_random_state
from spectral_param.testing._sets import (
    check_any_size,
    check_assignment_copies,
    check_constraint_holds,
    check_large_originals,
    check_paper_start,
    check_projection,
    check_rejects_outside,
    check_right_inverse,
    check_set,
    check_tangent,
)
from spectral_param.testing._use import (
    LAYERS,
    check_autocast,
    check_averaging,
    check_bfloat16,
    check_compile,
    check_deepcopy,
    check_deepcopy_of_rnn,
    check_export,
    check_half_and_back,
    check_remove,
    check_state_dict,
    check_to,
)

_T = TypeVar("_T")


def _always(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return True


def _with_outside(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return case.outside is not None


def _with_start(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return isinstance(case.make(shape), Parametrization)


def _with_originals(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return case.recovers and _with_start(case, shape, dtype)


def _in_double_precision(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.complex128)


def _with_tangent(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    has_one = getattr(case.make(shape), "has_tangent", False)
    return has_one and case.recovers and _in_double_precision(case, shape, dtype)


def _in_a_layer(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    fits = len(shape) == 2 and not dtype.is_complex and shape not in case.rectangles
    fits = fits and shape[0] // shape[1] in LAYERS
    return fits and isinstance(case.make(shape), Parametrization)


@dataclass(frozen=True)
class Check:
    """A check of a contract, and the axes that the contract depends on.

    Attributes:
        function: Takes a case, a shape and a dtype. Raises an ``AssertionError`` if the contract is broken.
        axes: Which of ``"shape"`` (even, odd, a batch, not square), ``"gates"``, ``"dtype"`` and ``"mode"``
            may decide whether the contract holds. The check runs on pairs of a shape and a dtype: every value
            of these axes occurs in a pair, but only two values of each other axis. Slow checks also have
            ``"few"``, which tests two of the rectangles, or ``"once"``, which tests a single pair, different
            from case to case.
        applies: Whether the contract is meant for a case, shape and dtype.
    """

    function: Callable[[Case, Shape, torch.dtype], None]
    axes: frozenset[str]
    applies: Callable[[Case, Shape, torch.dtype], bool] = _always

    def __call__(self, case: Case, shape: Shape, dtype: torch.dtype) -> None:
        """Run the check."""
        self.function(case, shape, dtype)

    def __str__(self) -> str:
        return self.function.__name__.removeprefix("check_")


@dataclass(frozen=True)
class Trial:
    """A check of a case with one shape and one dtype. Call the trial to run it.

    Attributes:
        case: The parametrization.
        check: The check.
        shape: Shape of the weight.
        dtype: Dtype of the weight.
    """

    case: Case
    check: Check
    shape: Shape
    dtype: torch.dtype

    @property
    def expected_failure(self) -> str | None:
        """The reason why the check is expected to fail; None if it is expected to pass."""
        return self.case.expected_failed_checks.get(str(self.check))

    def __call__(self) -> None:
        """Run the check."""
        self.check(self.case, self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.case.name}-{self.check}-{'x'.join(map(str, self.shape))}-{str(self.dtype)[6:]}"


def _check(
    function: Callable[[Case, Shape, torch.dtype], None],
    axes: str,
    applies: Callable[[Case, Shape, torch.dtype], bool] = _always,
) -> Check:
    return Check(function, frozenset(axes.split()), applies)


#: All checks, in the order of the contracts.
CHECKS: tuple[Check, ...] = (
    _check(check_right_inverse, "shape gates dtype mode"),
    _check(check_assignment_copies, ""),
    _check(check_projection, "dtype mode", _with_outside),
    _check(check_set, "mode once", _with_start),
    _check(check_any_size, "mode once", _with_originals),
    _check(check_tangent, "dtype mode few", _with_tangent),
    _check(check_paper_start, "gates", _with_start),
    _check(check_rejects_outside, "mode", _with_outside),
    _check(check_constraint_holds, "dtype mode"),
    _check(check_large_originals, "dtype mode", lambda case, shape, dtype: case.holds_far),
    _check(check_gradients, "shape dtype mode few", _in_double_precision),
    _check(check_state_dict, "mode once"),
    _check(check_deepcopy, ""),
    _check(check_deepcopy_of_rnn, "gates", _in_a_layer),
    _check(check_to, "dtype"),
    _check(check_remove, ""),
    _check(check_cached, ""),
    _check(check_repeated_reads, "mode"),
    _check(check_averaging, "mode once"),
    _check(check_half_and_back, "mode", lambda case, shape, dtype: dtype.to_real() == torch.float32),
    _check(check_write_during_a_read, "mode once", _with_start),
    _check(check_gradient_of_the_read, "mode once"),
    _check(check_torch_func, "shape gates"),
    _check(check_compile, "once"),
    _check(check_export, "once"),
    _check(check_autocast, ""),
    _check(check_bfloat16, "gates", lambda case, shape, dtype: dtype == torch.float32),
    _check(check_nan, "dtype mode"),
    _check(check_nan_in_a_batch, "shape dtype mode", lambda case, shape, dtype: len(shape) > 2),
    _check(check_bad_input, ""),
    _check(check_random_state, ""),
)

Case.checks = frozenset(map(str, CHECKS))


def conformance(case: Case, *, thorough: bool = False) -> list[Trial]:
    """Return the trials of a case: each check that applies, over the axes that it depends on.

    Args:
        case: The parametrization.
        thorough: Take every shape with every dtype, instead of a few pairs in which each shape and each dtype
            occurs.
    """
    trials = []
    for check in CHECKS:
        if case.variant and "mode" not in check.axes and not (thorough and "once" in check.axes):
            continue
        # `turn` makes the pairs of shapes and dtypes differ from case to case and from check to check.
        turn = zlib.crc32(f"{case.name} {check}".encode())
        square, rectangles = (
            [(s, d) for s in shapes for d in case.dtypes if check.applies(case, s, d)]
            for shapes in (case.shapes, case.rectangles)
        )
        if thorough:
            chosen = square + rectangles
        elif "once" in check.axes:
            every = square + rectangles
            chosen = [every[turn % len(every)]] if every else []
        else:
            axes = frozenset[str]() if case.variant else check.axes
            chosen = _paired(square, axes, turn)
            shapes = _distinct(s for s, _ in rectangles)
            dtypes = _turned(_distinct(d for _, d in rectangles), turn)
            # Take the first rectangle, two rectangles, or all rectangles.
            if "few" in axes:
                shapes = _turned(shapes, turn)[:2]
            elif not axes & {"shape", "gates"}:
                shapes = shapes[:1]
            chosen += zip(shapes, itertools.cycle(dtypes), strict=False)
        trials += [Trial(case, check, shape, dtype) for shape, dtype in chosen]
    return trials


def _distinct(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))


def _turned(values: list[_T], turn: int) -> list[_T]:
    start = turn % max(1, len(values))
    return values[start:] + values[:start]


def _paired(
    possible: list[tuple[Shape, torch.dtype]], axes: frozenset[str], turn: int
) -> list[tuple[Shape, torch.dtype]]:
    """Return pairs in which each value of the given axes occurs, but only two values of each other axis."""
    shapes, dtypes = _distinct(s for s, _ in possible), _distinct(d for _, d in possible)
    stacked = [shape for shape in shapes if shape[-2] != shape[-1]]
    square = [shape for shape in shapes if shape not in stacked]
    if axes & {"shape", "gates"}:
        shapes = (square if "shape" in axes else square[:1]) + (stacked if "gates" in axes else [])
    else:
        shapes = square[:1] + stacked[:1]
    if "dtype" not in axes:
        # If possible, take a real and a complex dtype of different precision.
        dtypes = sorted(dtypes, key=lambda d: d not in (torch.float64, torch.complex64))[:2]
    count = max(len(shapes), len(dtypes)) if shapes else 0
    pairs = zip(itertools.cycle(shapes), itertools.cycle(_turned(dtypes, turn)), strict=False)
    return [pair for pair in _distinct(itertools.islice(pairs, count)) if pair in possible]


def check_constraint(constraint: Case | Callable[[Shape], nn.Module]) -> None:
    """Run all checks of a constraint.

    Args:
        constraint: A case, or a function that returns a new constraint for a weight of the given shape. For a
            function, a dtype is skipped if the constraint refuses it at registration with
            :class:`~spectral_param.errors.UnsupportedDtypeError`.

    Raises:
        AssertionError: If the constraint breaks a contract or raises an error, or if a check that is expected
            to fail passes. The message begins with the names of the case and the check, the shape and the
            dtype.
    """
    if isinstance(constraint, Case):
        case = constraint
    else:
        case = Case("constraint", constraint)
        case = replace(case, dtypes=tuple(dtype for dtype in case.dtypes if _is_taken(case, dtype)))
    for trial in conformance(case):
        if trial.expected_failure is None:
            try:
                trial()
            except Exception as error:
                what = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                raise AssertionError(f"{trial}: {what}{error}") from error
            continue
        try:
            trial()
        except Exception:
            continue
        raise AssertionError(f"{trial}: expected a failure ({trial.expected_failure}), got none")


def _is_taken(case: Case, dtype: torch.dtype) -> bool:
    """Return whether the constraint takes weights of this dtype."""
    try:
        case.member(case.shapes[0], dtype)
    except UnsupportedDtypeError:
        return False
    return True


def parametrize_with_checks(cases: Iterable[Case], *, thorough: bool = False) -> Any:
    """Return a decorator for a test function with one argument: pytest runs the test with each trial.

    Trials that are expected to fail are marked with ``pytest.mark.xfail(strict=True)`` and the reason.

    Args:
        cases: The constraints.
        thorough: As in :func:`conformance`.
    """
    import pytest

    def marks(trial: Trial) -> Any:
        reason = trial.expected_failure
        return () if reason is None else pytest.mark.xfail(reason=reason, strict=True)

    trials = [trial for case in cases for trial in conformance(case, thorough=thorough)]
    parameters = [pytest.param(trial, marks=marks(trial), id=str(trial)) for trial in trials]

    def decorator(test: Callable[..., None]) -> Any:
        (name,) = inspect.signature(test).parameters
        return pytest.mark.parametrize(name, parameters)(test)

    return decorator
