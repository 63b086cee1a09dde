"""A stand-in for an accelerator: PyTorch's hook for Python backends makes a device with the host's numbers.

A library notices of it what it would notice of a GPU: ``.numpy()`` fails, a product with a tensor on the host
fails, every operation is a launch, and a look at a value makes the host wait. Both are counted. Operations
use the host's kernels, so results can be compared. It says nothing about speed.

Launches are all operations that the device is asked for. Views are among them, though a GPU has nothing to do
for one: they cost the host its time. Waits are transfers to the host, questions for a value, blocking
transfers from the host, for which PyTorch synchronizes the stream of a GPU, too, and operations whose kernels
on a GPU do.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from spectral_param import _context as context
from spectral_param import _precision as precision


class _Module(_DummyBackendModule):
    """``torch.standin``. The device draws its random numbers from the host's generator."""

    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    # torch.utils.checkpoint saves the autocast of this device, even if no tensor lies on it.
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


_setup_privateuseone_for_python_backend("standin", _Module())
DEVICE = torch.device("standin", 0)
_aten = torch.ops.aten
_LOOKS = (_aten._local_scalar_dense.default, _aten.equal.default)
# Operations that CUDA's kernels look at values for, or check the success of (torch 2.13).
_WAITING = {
    "nonzero",
    "masked_select",
    "unique_consecutive",
    "_unique2",
    "linalg_matrix_exp",
    "_linalg_eigh",
    "_linalg_svd",
    "_linalg_eigvals",
    "linalg_eig",
}
# Operations that take a tensor of the host beside those of a device.
_OF_BOTH = {"_pack_padded_sequence"}


@dataclasses.dataclass
class Count:
    """What a device was asked for."""

    launches: int = 0
    waits: int = 0


_count = Count()
# Operations that the device refuses, by name: a device need not have all.
_refused: frozenset[str] = frozenset()
# Dtypes that it refuses, as Apple's MPS does those of double precision.
_unknown: frozenset[torch.dtype] = frozenset()


class OnDevice(Tensor):
    """A tensor on the device. ``host`` has its numbers."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> OnDevice:
        """Return a tensor on the device with these numbers."""
        _check_known(host.dtype)
        t: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
        t.host = host
        # Conjugation and negation are bits of a tensor, which PyTorch resolves before it asks the device.
        torch._C._set_conj(t, host.is_conj())
        torch._C._set_neg(t, host.is_neg())
        return t

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    # PyTorch's wrapper has no memory, and knows nothing of the host's numbers.

    @property
    def data(self) -> Tensor:
        """The tensor without its graph."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: OnDevice) -> None:
        Tensor.data.__set__(self, other)
        self.host = other.host

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        if not self.is_leaf:
            return Tensor.__deepcopy__(self, memo)  # It raises.
        copy = memo[id(self)] = OnDevice(self.host.detach().clone()).requires_grad_(self.requires_grad)
        copy.__dict__.update({k: v for k, v in vars(self).items() if k != "host"})
        return copy

    def set_(self, other: OnDevice) -> OnDevice:
        """Take the memory of another tensor; return this one."""
        self.data = other
        return self

    def data_ptr(self) -> int:
        """The address of the numbers."""
        return self.host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory of the numbers."""
        return self.host.untyped_storage()

    def tolist(self) -> Any:
        """The numbers as Python has them."""
        return self.cpu().tolist()


def _host(x: Any) -> Any:
    return x.host if isinstance(x, OnDevice) else x


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of which an argument, or the result, is on the device."""
    if function is _aten._to_copy.default:
        return _transferred(function, args[0], dict(kwargs))
    if function is _aten.copy_.default and isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice):
        blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        if isinstance(args[1], OnDevice):
            _check_known(args[0].dtype)
        _asked(wait=blocking or not isinstance(args[0], OnDevice))
        _host(args[0]).copy_(_host(args[1]))
        return args[0]
    if function in _LOOKS:
        _asked(wait=True)
        return function(*tree_map(_host, args), **kwargs)
    name = function.name().removeprefix("aten::").split(".")[0]
    if name in _refused:
        raise NotImplementedError(f"The operator {name!r} is not implemented for the stand-in device.")
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if name not in _OF_BOTH and any(isinstance(t, OnDevice) for t in tensors):
        stray = [t for t in tensors if not isinstance(t, OnDevice) and t.ndim > 0]
        if stray:
            raise RuntimeError(f"{name}: expected all tensors on the device, got one on {stray[0].device}")
    # A mask as an index is a question for its nonzero entries.
    masked = name in ("index", "index_put", "index_put_") and any(t.dtype == torch.bool for t in tensors)
    _asked(wait=name in _WAITING or masked)
    if function is _aten._efficientzerotensor.default:  # Zeros without memory: no kernel can read them.
        return OnDevice(torch.zeros(args[0], dtype=kwargs.get("dtype")))
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": "cpu"}
    if torch.Tag.inplace_view in function.tags:  # As squeeze_: the shape that PyTorch sees changes, too.
        with no_dispatch():
            function(*args, **kwargs)
    result = function(*tree_map(_host, args), **tree_map(_host, kwargs))
    same = {id(t.host): t for t in tensors if isinstance(t, OnDevice)}  # What works in place returns itself.
    return tree_map(lambda x: same.get(id(x), OnDevice(x)) if type(x) is Tensor else x, result)


def _check_known(dtype: torch.dtype) -> None:
    if dtype in _unknown:
        raise TypeError(f"Cannot convert a tensor to {dtype}: the stand-in device doesn't support it.")


def _transferred(function: Any, x: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """Return ``x.to(...)``."""
    target = torch.device(kwargs.pop("device", None) or x.device)
    non_blocking = kwargs.pop("non_blocking", False)
    leaves, arrives = isinstance(x, OnDevice), target.type == DEVICE.type
    if leaves:  # A device converts before it sends.
        _check_known(kwargs.get("dtype") or x.dtype)
    _asked(wait=leaves != arrives and (leaves or not non_blocking))
    result: Tensor = function(_host(x), **kwargs)
    return OnDevice(result) if arrives else result


def _asked(wait: bool = False) -> None:
    _count.launches += 1
    _count.waits += wait


_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda function, *args, **kwargs: _run(function, args, kwargs), "PrivateUse1")
context.PLAIN_TYPES.add(OnDevice)


class _Factories(TorchFunctionMode):
    """``torch.tensor(..., device=DEVICE)``, which PyTorch's hook for such devices does not know."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if function in (torch.tensor, torch.as_tensor) and device is not None:
            on_host = function(*args, **{**kwargs, "device": "cpu"})
            return on_host.to(device)
        if function is torch.arange and device is not None and torch.device(device).type == DEVICE.type:
            # PyTorch fills an empty tensor, whose wrapper would keep the size 0.
            _asked()
            return OnDevice(function(*args, **{**kwargs, "device": "cpu"}))
        return function(*args, **kwargs)


@contextlib.contextmanager
def counting() -> Iterator[Count]:
    """Count what the device is asked for inside the block."""
    before, found = dataclasses.replace(_count), Count()
    with _Factories():
        yield found
    found.launches, found.waits = _count.launches - before.launches, _count.waits - before.waits


@contextlib.contextmanager
def without_double() -> Iterator[None]:
    """Make the device one without float64 and complex128, also in transfers that leave it, as MPS is."""
    global _unknown
    _unknown = frozenset({torch.float64, torch.complex128})
    precision.has_double.cache_clear()
    try:
        yield
    finally:
        _unknown = frozenset()
        precision.has_double.cache_clear()


@contextlib.contextmanager
def refusing(*names: str) -> Iterator[None]:
    """Make the device one that lacks these operations, for instance ``"linalg_eig"``."""
    global _refused
    _refused = frozenset(names)
    try:
        yield
    finally:
        _refused = frozenset()
