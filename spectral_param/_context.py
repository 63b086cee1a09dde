"""The surroundings of exact computations: autocast, TensorFloat-32, graphs and transforms.

Autocast and TensorFloat-32 must not reduce the precision of a constraint. A weight is remembered between
reads, and code may branch on values, only if all tensors are *plain* (:func:`plain`).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")

# Types of tensors whose values may be read. Tests that define a device add its tensor type.
PLAIN_TYPES: set[type] = {Tensor, torch.nn.Parameter}


def is_recorded() -> bool:
    """Return whether a compiler or tracer records a graph, or new tensors are fake."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]
        return True
    if not torch._C._len_torch_dispatch_stack():
        return False
    from torch.fx.experimental.proxy_tensor import get_proxy_mode  # Takes long to load.

    return get_proxy_mode() is not None or _is_fake_mode()


def _is_fake_mode() -> bool:
    with unset_fake_temporarily() as mode:
        return mode is not None


def has_no_values(*tensors: Tensor) -> bool:
    """Return whether a tensor is on the meta device or fake, or new tensors are."""
    if torch._C._len_torch_dispatch_stack() and _is_fake_mode():
        return True
    for t in tensors:  # noqa: SIM110
        if t.is_meta or isinstance(t, FakeTensor):
            return True
    return False


def is_traced(*tensors: Tensor) -> bool:
    """Return whether a graph is recorded or a tensor has no values, so that code cannot branch on values."""
    return is_recorded() or has_no_values(*tensors)


def _is_exporting() -> bool:
    """Return whether torch.export records."""
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    # torch 2.6. The first export imports this module, which has a hierarchy only during an export.
    return hasattr(torch.export, "_trace") and torch.export._trace._EXPORT_MODULE_HIERARCHY is not None


def is_compiled() -> bool:
    """Return whether torch.compile records a graph that may hold operators of this library.

    False in forward mode and in transforms of torch.func, where such an operator has no derivative. An
    exported program must run without this library.
    """
    if not torch.compiler.is_compiling() or _is_exporting():
        return False
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()


def plain(*tensors: Tensor) -> contextlib.AbstractContextManager[object] | None:
    """Return a context to compute with the values of plain tensors; None unless all tensors are plain.

    A tensor is plain, and its values may be read, if no compiler or tracer records a graph and neither a
    transform of torch.func nor forward mode is active. The context is :func:`precise`; it has no effect until
    it is entered.
    """
    if is_recorded() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None
    for t in tensors:
        if t.is_meta or type(t) not in PLAIN_TYPES:
            return None
    return precise(tensors[0])


def is_plain(*tensors: Tensor) -> bool:
    """Return whether tensors are plain, so that their values may be read; see :func:`plain`.

    Callers ask this before code that branches on values, for instance in ``_map.apply``, before a
    recurrence's path is chosen, and in the check that an argument is skew.
    """
    return plain(*tensors) is not None


HALF = {torch.bfloat16, torch.float16, torch.complex32}


def is_captured(t: Tensor) -> bool:
    """Return whether a CUDA graph captures operations on t. A replay of the graph runs no Python code."""
    return t.is_cuda and torch.cuda.is_current_stream_capturing()


def is_wrapped(t: Tensor) -> bool:
    """Return whether t is wrapped by autograd's older vmap, or may be wrapped by a torch.func transform."""
    return torch._C._are_functorch_transforms_active() or torch._C._functorch.is_legacy_batchedtensor(t)


def not_nested(jvp: Callable[P, R]) -> Callable[P, R]:
    """Return an autograd Function's ``jvp`` that raises inside a second forward-mode transform.

    PyTorch loses the outer derivative of ``jvp(jvp(f))`` when f contains an autograd Function: for x³ it
    returns 0 instead of 6x (torch 2.13). All other combinations of forward and reverse mode are right.
    """

    @functools.wraps(jvp)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        stack = torch._C._functorch.get_interpreter_stack() or []
        if sum(level.key().name == "Jvp" for level in stack) > 1:
            raise NotImplementedError(
                "Expected forward mode once, got a jvp or jacfwd inside another one, where PyTorch drops "
                "derivatives of autograd Functions. Use reverse mode for one of the two: torch.func.hessian, "
                "jacfwd(jacrev(f)), or a jvp of a grad."
            )
        return jvp(*args, **kwargs)

    return wrapped


def solve(A: Tensor, B: Tensor, check: bool = False) -> Tensor:  # (..., n, n), (..., n, m) -> (..., n, m)
    """Return A⁻¹B. Where A is singular the result is not finite, or with ``check`` an error is raised.

    PyTorch differentiates ``torch.linalg.solve`` in forward mode with factors of A that it treats as
    constant. Reverse mode over forward mode is then wrong: in ``grad(jvp(f))`` for f = ‖A⁻¹B‖² a term is
    missing (torch 2.13). ``lu_factor_ex`` and ``lu_solve`` below are differentiated correctly, but take
    longer.
    """
    if forward_ad._current_level < 0:
        return torch.linalg.solve_ex(A, B, check_errors=check).result
    factors, pivots, _ = torch.linalg.lu_factor_ex(A, check_errors=check)
    return torch.linalg.lu_solve(factors, pivots, B)


def promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """Return ``torch.promote_types(a, b)``, a call that breaks exported programs in torch 2.6."""
    if torch.compiler.is_compiling():
        return (torch.empty(0, dtype=a, device="cpu") * torch.empty(0, dtype=b, device="cpu")).dtype
    return torch.promote_types(a, b)


def autocast_off(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context that switches autocast off on the device of a tensor."""
    return _autocast_off(like.device.type)


def _autocast_off(device: str) -> contextlib.AbstractContextManager[object]:
    # Devices without autocast, such as the meta device, raise if it is switched off. torch 2.6 does not
    # compile is_autocast_available.
    if device == "cpu":
        exists = True
    elif torch.compiler.is_compiling():
        exists = device != "meta"
    else:
        exists = is_autocast_available(device)
    if exists and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return _NOTHING


_NOTHING = contextlib.nullcontext()


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with autocast and TensorFloat-32 switched off while it runs.

    Both are switched off for the device of the first tensor among the positional arguments; see
    :func:`precise`.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        for argument in args:
            if isinstance(argument, Tensor):
                with precise(argument):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapped


def precise(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context that switches autocast and TensorFloat-32 off on the device of a tensor.

    An orthogonal matrix built from products in bfloat16 or TensorFloat-32 is orthogonal to three digits only.
    In torch.compile the products follow ``torch.set_float32_matmul_precision``, because a graph cannot change
    that setting.
    """
    device = like.device.type
    override = _OVERRIDES.get(device)
    if (
        override is None
        or torch.compiler.is_compiling()
        or (override.users == 0 and getattr(override.settings, override.name) in (override.value, "none"))
    ):
        return _autocast_off(device)
    return _both_off(override, device)


@contextlib.contextmanager
def _both_off(override: _Override, device: str) -> Iterator[None]:
    with override(), _autocast_off(device):
        yield


class _Override:
    """A process-wide setting that has ``value`` while at least one thread needs it.

    ``parent`` holds the setting of the same name, which ``settings`` inherits if its own is not set.
    """

    def __init__(self, settings: Any, name: str, value: Any, parent: Any = None) -> None:
        self.settings, self.name, self.value, self._parent = settings, name, value, parent
        self._lock, self.users, self._before = threading.Lock(), 0, value

    def _own(self) -> Any:
        """Return the value to restore: "none" if inherited, because reading shows the parent's value."""
        value = getattr(self.settings, self.name)
        inherited = self._parent is not None and value == getattr(self._parent, self.name)
        return "none" if inherited else value

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            active = self.users > 0 or getattr(self.settings, self.name) not in (self.value, "none")
            if active:
                if self.users == 0:
                    self._before = self._own()
                    setattr(self.settings, self.name, self.value)
                self.users += 1
        try:
            yield
        finally:
            if active:
                with self._lock:
                    self.users -= 1
                    if self.users == 0:
                        setattr(self.settings, self.name, self._before)


def _overrides() -> dict[str, _Override]:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch < 2.9
        return {"cuda": _Override(torch.backends.cuda.matmul, "allow_tf32", False)}
    backends: dict[str, tuple[Any, Any]] = {
        "cuda": (torch.backends.cuda.matmul, torch.backends.cudnn),
        "cpu": (torch.backends.mkldnn.matmul, torch.backends.mkldnn),  # type: ignore[attr-defined]
    }
    return {
        device: _Override(own, "fp32_precision", "ieee", parent) for device, (own, parent) in backends.items()
    }


_OVERRIDES = _overrides()
