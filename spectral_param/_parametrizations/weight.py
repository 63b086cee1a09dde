"""Facts about the weight of a constraint (shape, layout, dtype, device), and checks of weights."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import _named_member_accessor as accessor

from spectral_param._context import HALF
from spectral_param._parametrizations.layout import PLAIN, Layout, Slices, no_stack
from spectral_param._parametrizations.tensors import at_least_float32
from spectral_param.errors import NotAMatrixError, NotSquareError, UnsupportedDtypeError
from spectral_param.functional._checks import check_matrix

# Number of stack frames that are searched for torch's `swap_tensor`, which replaces a tensor of a module.
# Four calls and a few decorators lie between `swap_tensor` and right_inverse.
_CALLS = 12


class OfWeight(nn.Module):
    """The properties of a constraint's weight: shape, layout, dtype and device."""

    #: The shape of the matrices that the constraint takes. ``"square"``, the default, means ``(..., n, n)``.
    #: ``"tall"`` means ``(..., m, n)`` with m ≥ n; wide weights are transposed before and after the map.
    #: ``"any"`` means ``(..., m, n)`` with any m and n; wide weights are not transposed.
    shapes: Literal["square", "tall", "any"] = "square"

    #: What the constraint acts on if the weight is the kernel of a convolution. ``"matrix"``, the default,
    #: means the matrix by which the layer multiplies patches that do not overlap; a convolution whose patches
    #: overlap is refused. ``"entries"``, for constraints on entries or rows, means the matrix (output
    #: channels, input channels · kernel size) of each group, although the layer does not multiply by this
    #: matrix. ``"layer"`` means the norm of the layer for images of every size, which the constraint computes
    #: itself.
    convolutions: Literal["matrix", "entries", "layer"] = "matrix"

    #: The smallest number of dimensions that a weight may have.
    least_dims = 2

    gates: int
    kernel_dims: int
    strides: tuple[int, ...]
    transposed: bool
    padding_idx: int | None
    _like: Tensor
    _like_real: Tensor
    _shape: torch.Size | None
    _layout: Layout | Slices
    _is_after: bool
    _use: str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weight, known after registration."""
        return self._like.dtype

    def _take(self, W: Tensor) -> tuple[Tensor, bool]:
        """Check a weight, and store its layout if it is the first weight of the constraint.

        Returns:
            The matrices of the weight, and whether W is the first weight.
        """
        check_matrix(W, type(self).__name__, self.least_dims)
        self._check_not_swapped()
        is_registered = isinstance(W, nn.Parameter)  # An assigned weight is never a Parameter.
        if is_registered:
            self._check_unused()
            vars(self)["_shape"] = None
        self._check_same_kind(W)
        layout = self._layout_of(W)
        is_first = self._shape is None and (is_registered or not self._is_after)
        if is_first:
            vars(self)["_layout"] = layout
            self._become_like(W)
        return self._matrices(W.detach()), is_first

    def _matrices(self, W: Tensor) -> Tensor:
        """Return the matrices of a weight of the registered shape, in single precision or better."""
        X = W if self._layout == PLAIN else self._layout.split(W)
        return at_least_float32(X) if X.dtype in HALF else X

    def _exact(self, originals: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the originals in the form that :meth:`reference` gets: in float32 or better."""
        if self._is_after and len(originals) == 1:
            return (self._matrices(originals[0]),)
        for t in originals:
            if t.dtype in HALF:
                return tuple(map(at_least_float32, originals))
        return originals

    def _as_weight(self, W: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight that has the matrices W; ``dtype`` is the dtype of the first original."""
        if self._layout != PLAIN:
            W = self._layout.join(W)
        if W.is_complex() and not dtype.is_complex:
            # This complex weight has real originals, whose dtype does not determine the dtype of the weight:
            # Module.double converts real originals, but would not convert a complex weight.
            dtype = self._like.dtype if self._like.is_complex() else W.dtype
        return W if W.dtype == dtype else W.to(dtype)

    def _eps_of(self, X: Tensor) -> float:
        """Return the larger one of two rounding errors, of the weight's dtype and of the dtype of X.

        The matrices X of a weight in half precision are in float32.
        """
        return max(torch.finfo(X.dtype).eps, torch.finfo(self.dtype).eps)

    def _become_like(self, W: Tensor) -> None:
        """Store the dtype and the device of W in this constraint and in all nested constraints."""
        W = W.detach()
        for part in self.modules():
            if isinstance(part, OfWeight):
                # Written to _buffers, because setattr would mark the constraint as changed. The weight does
                # not depend on the values of _like and _like_real.
                part._buffers.update(_like=W.new_empty(0), _like_real=W.real.new_empty(0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OfWeight:
        if self._like.is_meta:
            try:
                fn(self._like)
            except NotImplementedError:
                # Module.to cannot move a tensor from the meta device, even if the tensor has no entries. A
                # loader may call Module.to after replacing originals on the meta device by originals with
                # values. So _like is first made anew on the CPU.
                self._become_like(torch.empty_like(self._like, device="cpu"))
        self._check_stays_of_its_kind(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _check_stays_of_its_kind(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Raise if a conversion makes a real weight complex, or a complex weight real.

        PyTorch converts the constraint before the originals, so the originals are still unchanged here.

        Raises:
            UnsupportedDtypeError: If the weight would change from real to complex or from complex to real.
        """
        if self._shape is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The conversion is only tried here, so torch need not warn.
            dtype = fn(self._like).dtype
        if dtype.is_complex == self._like.is_complex():
            return
        if dtype.is_complex:
            raise UnsupportedDtypeError(
                f"{type(self).__name__}: expected a conversion that keeps the real weight real, got one to "
                f"{dtype}. Convert this module with .double() or .float(), and the others by themselves. For "
                "a complex weight remove the constraint, convert, and constrain again."
            )
        raise UnsupportedDtypeError(
            f"{type(self).__name__}: expected a conversion that keeps the complex weight complex, got "
            f"one to {dtype}, which drops imaginary parts. Convert to torch.complex64 or "
            "torch.complex128, or with .float() or .double(), which leave complex weights as they are. "
            "For a real weight remove the constraint, convert, and constrain again."
        )

    def _check_unused(self) -> None:
        if self._use:
            name = type(self).__name__
            raise ValueError(
                f"{name}: expected an instance for each weight, got one that belongs to {self._use} already. "
                "Construct another one, or register a copy.deepcopy of it. For quantization-aware training, "
                "and wherever a model is rebuilt from another one, call spectral_param.remove before and "
                "constrain the new model."
            )

    def _check_same_kind(self, W: Tensor) -> None:
        """Raise for a wrong shape, dtype or device of W before the constraint changes.

        PyTorch would raise only after :meth:`right_inverse`, which changes the constraint.

        Raises:
            ValueError: If the shape, dtype or device is wrong; at registration, if W is a lazily conjugated
                or negated view; or inside a transform of ``torch.func``.
        """
        name = type(self).__name__
        if torch._C._are_functorch_transforms_active():
            raise ValueError(
                f"{name}: expected the original tensors, got the weight itself inside a transform of "
                f"torch.func.{_FUNCTIONAL_CALL}"
            )
        if self._shape is None and (W.is_conj() or W.is_neg()):
            # register_parametrization replaces the parameter's data, but not its conjugate and negative bits.
            raise ValueError(
                f"{name}: expected a weight that holds its own values, got a lazily conjugated or negated "
                "view, which PyTorch would conjugate or negate twice. Make the parameter from "
                "W.resolve_conj() or W.resolve_neg()."
            )
        if self._shape is not None and W.shape != self._shape:
            raise ValueError(
                f"{name}: expected a weight of shape {tuple(self._shape)}, got {tuple(W.shape)}. Remove "
                "the parametrization to change the shape."
            )
        if self._shape is not None and (W.dtype, W.device) != (self._like.dtype, self._like.device):
            raise ValueError(
                f"{name}: expected a weight of {self._like.dtype} on {self._like.device}, got {W.dtype} on "
                f"{W.device}. "
                "Convert it first with .to(), or convert the module."
            )

    def _check_one_square(self) -> None:
        """Raise if the weight is not one square matrix: an operator multiplies rows by one matrix."""
        shape = tuple(self._shape or ())
        if self._layout != PLAIN or (shape and shape[-1] != shape[-2]):
            raise ValueError(
                f"{type(self).__name__}.operator: expected a square weight, got one of shape {shape} with "
                f"gates={self.gates}. Multiply by the weight instead."
            )

    def _check_not_swapped(self) -> None:
        """Raise if ``torch.func.functional_call`` assigns a weight: PyTorch would drop the weight's gradient.

        An assignment ``layer.weight = W`` calls the same setter of PyTorch, so the stack of callers is
        searched for the function that ``functional_call`` uses.

        Raises:
            ValueError: If ``torch.func.functional_call`` is the caller.
        """
        frame = sys._getframe(1)
        for _ in range(_CALLS):
            if frame.f_code is accessor.swap_tensor.__code__:
                break
            if frame.f_back is None:
                return
            frame = frame.f_back
        else:
            return
        name = frame.f_locals["name"]
        weight = frame.f_locals["module"].parametrizations[name]
        originals = [""] if weight.is_tensor else range(weight.ntensors)
        keys = ", ".join(f"'parametrizations.{name}.original{i}'" for i in originals)
        raise ValueError(
            f"{type(self).__name__}: expected the originals of the weight from torch.func.functional_call, "
            f"got a tensor for the weight itself, {name!r}, which PyTorch would detach: its gradient would "
            f"be lost. Pass {keys} with the same prefix instead of {name!r}."
        )

    def _layout_of(self, W: Tensor) -> Layout | Slices:
        """Return the layout of a weight's matrices; raise if the constraint does not take such matrices.

        Raises:
            NotAMatrixError: If the weight has fewer than 2 + ``kernel_dims`` dimensions.
            NotSquareError: If the matrices have to be square and are not, if the number of rows is not a
                multiple of ``gates``, or if the weight looks like a convolution kernel of size 1.
        """
        name, shape, gates, kernel_dims = type(self).__name__, tuple(W.shape), self.gates, self.kernel_dims
        if W.ndim < 2 + kernel_dims:
            raise NotAMatrixError(
                f"{name}: expected a weight with {kernel_dims} spatial dimensions, got shape {shape}. "
                "Leave kernel_dims to spectral_param.constrain."
            )
        rows, columns, *kernel = shape[W.ndim - kernel_dims - 2 :]
        m = rows // gates
        is_swapped, is_square = self.transposed and self.convolutions == "entries", self.shapes == "square"
        if is_swapped:
            m, columns = columns, m
        n = columns * math.prod(kernel)
        if n == 1 and W.ndim > 2 and not kernel_dims:
            # The weight would count as a batch of matrices with one column, and each column would be
            # constrained separately.
            raise NotSquareError(
                f"{name}: expected matrices (..., m, n), got shape {shape}, as a convolution of kernel size "
                "1 has. Use spectral_param.constrain, which knows kernels."
            )
        if rows % gates or (is_square and gates > 1 and m != n):
            raise NotSquareError(no_stack(name, shape, gates, "n" if is_square else "m"))
        if is_square and m != n:
            raise NotSquareError(
                f"{name}: expected a square weight (..., n, n), got shape {shape}. Only square matrices have "
                "eigenvalues. For a weight of any shape take a constraint on singular values: ScaledCayley "
                "or Householder, with which they are 1, SingularValues, with which they lie in an "
                "interval, or SpectralNorm, a bound on the largest; for rows of sum 1 take Stochastic."
            )
        return Layout(gates, tuple(kernel), self.shapes == "tall" and m < n, is_swapped)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        metadata = args[0]
        if self._like.is_meta and metadata.get("assign_to_params_buffers", False):
            # Loading has replaced the originals, so they are no longer on the meta device. The next read
            # moves _like to the device of the new originals.
            self._become_like(torch.empty_like(self._like, device="cpu"))


_FUNCTIONAL_CALL = (
    " (torch.func.functional_call takes the originals of a constrained weight: pass "
    "'parametrizations.weight.original' instead of 'weight'.)"
)
