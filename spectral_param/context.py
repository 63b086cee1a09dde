"""What surrounds a computation: tracers, transforms, autocast, lowered precision, and PyTorch's Functions.

Neither autocast nor TensorFloat-32 may touch the mathematics of a constraint; what is kept between reads, and
every choice that depends on values, is for ordinary tensors only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")

# Modes of PyTorch that record a graph, or that compute without values.
_TRACERS = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def is_traced(*tensors: Tensor) -> bool:
    """Return whether a graph is recorded, or the tensors have no values: no choice can depend on values then.

    Args:
        tensors: The tensors to look at.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if torch._C._len_torch_dispatch_stack() and any(map(torch._C._get_dispatch_mode, _TRACERS)):
        return True
    for t in tensors:  # noqa: SIM110
        if t.is_meta or isinstance(t, FakeTensor):
            return True
    return False


def is_plain(*tensors: Tensor) -> bool:
    """Return whether these are ordinary tensors, whose values can be looked at and kept.

    They are not while a graph is recorded, inside torch.func's transforms, or in forward mode.

    Args:
        tensors: The tensors to look at.
    """
    if is_traced(*tensors) or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    for t in tensors:  # noqa: SIM110 -- a generator takes longer than all of this
        if type(t) is not Tensor and type(t) is not torch.nn.Parameter:
            return False
    return True


def not_nested(jvp: Callable[P, R]) -> Callable[P, R]:
    """Let an autograd Function's ``jvp`` refuse to be differentiated in forward mode once more.

    Of a ``jvp(jvp(f))`` with such a Function, x³ for instance, the outer derivative is lost: 0 instead of 6x
    (torch 2.13; ``torch.linalg.solve`` by itself loses a part, too). Each other order of modes is right.

    Args:
        jvp: The static method.

    Returns:
        A method that raises ``NotImplementedError`` inside a second forward-mode transform.
    """

    @functools.wraps(jvp)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        stack = torch._C._functorch.get_interpreter_stack() or []
        if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1:
            raise NotImplementedError(
                "Expected forward mode once, got a jvp or jacfwd of a jvp or jacfwd, for which PyTorch drops "
                "derivatives of autograd Functions. Take one of both in reverse mode: torch.func.hessian, "
                "jacfwd(jacrev(f)), or a jvp of a grad."
            )
        return jvp(*args, **kwargs)

    return wrapped


class _Bound(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def apply_defaults(self) -> None:
        """Do nothing: all arguments are there."""


class _AllGiven(inspect.Signature):
    """A signature whose arguments are always all given, by position."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the arguments as they are."""
        return super().bind(*args, **kwargs) if kwargs else _Bound(args, {})


def known_signature(forward: Callable[P, R]) -> Callable[P, R]:
    """Let an autograd Function's ``forward``, which is given all arguments by position, say its signature.

    ``Function.apply`` of a Function with ``setup_context`` finds it out and binds the arguments at each call,
    which takes longer than the eigenvalues of a matrix with 8 rows.

    Args:
        forward: The static method.

    Returns:
        The same method.
    """
    parameters = inspect.signature(forward).parameters.values()
    forward.__signature__ = _AllGiven(list(parameters))  # type: ignore[attr-defined]
    return forward


def autocast_off(like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a context that switches autocast off on the device of a tensor."""
    device = like.device.type
    # Where autocast does not exist, as on the meta device, it cannot be switched off.
    if is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return _NOTHING


_NOTHING = contextlib.nullcontext()


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with autocast and TensorFloat-32 switched off while it runs.

    An orthogonal matrix built from products in bfloat16 or TensorFloat-32 is orthogonal to three digits only.
    The device is that of the first tensor among the positional arguments. In torch.compile the products
    follow ``torch.set_float32_matmul_precision``, because a graph cannot change that setting.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        for argument in args:
            if isinstance(argument, Tensor):
                override = _OVERRIDES.get(argument.device.type)
                if override is None or torch.compiler.is_compiling() or override.is_idle():
                    with autocast_off(argument):
                        return function(*args, **kwargs)
                with override(), autocast_off(argument):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapped


class _Override:
    """A process-wide setting that has another value while at least one thread wants it to.

    Args:
        settings: What has the setting as an attribute.
        name: Of the attribute.
        value: Its value meanwhile.
        parent: What it takes its value from while it has none of its own, if there is such.
    """

    def __init__(self, settings: Any, name: str, value: Any, parent: Any = None) -> None:
        self._settings, self._name, self._value, self._parent = settings, name, value, parent
        self._lock, self._users, self._before = threading.Lock(), 0, value

    def _own(self) -> Any:
        """Return the setting's value; "none" where it has the parent's, which reading it gives."""
        value = getattr(self._settings, self._name)
        inherited = self._parent is not None and value == getattr(self._parent, self._name)
        return "none" if inherited else value

    def is_idle(self) -> bool:
        """Return whether the setting has its value anyway, and no thread keeps it from another one."""
        return self._users == 0 and getattr(self._settings, self._name) in (self._value, "none")

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            active = self._users > 0 or getattr(self._settings, self._name) not in (self._value, "none")
            if active:
                if self._users == 0:
                    self._before = self._own()
                    setattr(self._settings, self._name, self._value)
                self._users += 1
        try:
            yield
        finally:
            if active:
                with self._lock:
                    self._users -= 1
                    if self._users == 0:
                        setattr(self._settings, self._name, self._before)


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


class _Matmul(torch.autograd.Function):
    """(A, X) -> AX. PyTorch's own backward pass follows the autocast that it is called under."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, X: Tensor) -> Tensor:
        return A @ X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @full_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
        A, X = ctx.saved_tensors
        g_A = matmul(G, X.mH) if ctx.needs_input_grad[0] else None
        g_X = matmul(A.mH, G) if ctx.needs_input_grad[1] else None
        return g_A, g_X

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dA: Tensor | None, dX: Tensor | None) -> Tensor | None:
        A, X = ctx.saved_tensors
        left = None if dA is None else dA @ X
        right = None if dX is None else A @ dX
        return left + right if left is not None and right is not None else left if right is None else right


@full_precision
def matmul(A: Tensor, X: Tensor) -> Tensor:
    """Return AX in the precision of its factors, whatever autocast says, and so the derivatives.

    Args:
        A: Matrices ``(..., k, n)``.
        X: Matrices ``(..., n, m)``.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or not torch.is_grad_enabled():
        # torch.compile takes no autograd Function with forward-mode derivatives, torch.jit.trace none at all;
        # and without a graph none is needed.
        return A @ X
    batch = torch.broadcast_shapes(A.shape[:-2], X.shape[:-2])
    A, X = A.expand(*batch, *A.shape[-2:]), X.expand(*batch, *X.shape[-2:])
    product: Tensor = _Matmul.apply(A, X)  # type: ignore[no-untyped-call]
    return product
