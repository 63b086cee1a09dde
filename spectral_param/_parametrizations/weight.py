"""The weight that a constraint belongs to."""

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

# Stack frames that are searched for torch's function that replaces a tensor. It calls right_inverse through
# four calls and a few decorators.
_CALLS = 12


class OfWeight(nn.Module):
    """The properties of a constraint's weight: shape, layout, dtype and device."""

    #: The matrices that the constraint takes. ``"square"``, the default: ``(..., n, n)``. ``"tall"``:
    #: ``(..., m, n)`` with m ≥ n; wide weights are transposed before and after. ``"any"``: matrices of any
    #: shape, not transposed.
    shapes: Literal["square", "tall", "any"] = "square"

    #: What the constraint acts on if the weight is the kernel of a convolution. ``"matrix"``, the default:
    #: the matrix by which the layer multiplies patches that do not overlap; other kernels are refused.
    #: ``"entries"``, for constraints on entries or rows: the matrix (output channels, input channels · kernel
    #: size) of each group, although the layer does not multiply by this matrix. ``"layer"``: the norm of the
    #: layer for images of every size, which the constraint computes itself.
    convolutions: Literal["matrix", "entries", "layer"] = "matrix"

    #: The fewest dimensions of a weight.
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
            The matrices of the weight, and whether it is the first weight.
        """
        check_matrix(W, type(self).__name__, self.least_dims)
        self._check_not_swapped()
        is_registered = isinstance(W, nn.Parameter)  # Assigned weights are plain tensors.
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
        """Return the originals as :meth:`reference` gets them."""
        if self._is_after and len(originals) == 1:
            return (self._matrices(originals[0]),)
        for t in originals:
            if t.dtype in HALF:
                return tuple(map(at_least_float32, originals))
        return originals

    def _as_weight(self, W: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight of these matrices, in its own dtype; ``dtype`` belongs to the first original."""
        if self._layout != PLAIN:
            W = self._layout.join(W)
        if W.is_complex() and not dtype.is_complex:
            # All originals are real, and their dtype does not determine the dtype of the weight:
            # Module.double converts real tensors, but not a complex weight.
            dtype = self._like.dtype if self._like.is_complex() else W.dtype
        return W if W.dtype == dtype else W.to(dtype)

    def _eps_of(self, X: Tensor) -> float:
        """Return the rounding error of the weight, which may be in half precision although X is not."""
        return max(torch.finfo(X.dtype).eps, torch.finfo(self.dtype).eps)

    def _become_like(self, W: Tensor) -> None:
        """Take the dtype and the device of a weight, and give them to nested constraints."""
        W = W.detach()
        for part in self.modules():
            if isinstance(part, OfWeight):
                # Not by setattr, which would mark the weight as changed. The weight does not depend on these
                # buffers.
                part._buffers.update(_like=W.new_empty(0), _like_real=W.real.new_empty(0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> OfWeight:
        if self._like.is_meta:
            try:
                fn(self._like)
            except NotImplementedError:
                # Module.to moves no tensor from the meta device, not even one without entries. A loader may
                # call Module.to after it has replaced originals on the meta device by originals with values.
                self._become_like(torch.empty_like(self._like, device="cpu"))
        self._check_stays_of_its_kind(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _check_stays_of_its_kind(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Raise if a conversion makes a real weight complex, or drops the imaginary parts of a complex one.

        PyTorch calls this method before it converts the originals.

        Raises:
            UnsupportedDtypeError: If the conversion does this.
        """
        if self._shape is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch itself warns of the conversion.
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
        """Raise for a wrong shape, dtype or device before anything changes; PyTorch would raise too late."""
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
        """Raise unless the weight is one square matrix, so that rows can be multiplied by it."""
        shape = tuple(self._shape or ())
        if self._layout != PLAIN or (shape and shape[-1] != shape[-2]):
            raise ValueError(
                f"{type(self).__name__}.operator: expected a square weight, got one of shape {shape} with "
                f"gates={self.gates}. Multiply by the weight instead."
            )

    def _check_not_swapped(self) -> None:
        """Raise if ``torch.func.functional_call`` assigns a weight: PyTorch would drop the weight's gradient.

        An assignment ``layer.weight = W`` calls the same setter of PyTorch; only the caller differs.

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
        """Return how a weight holds its matrices; raise if the constraint does not take them.

        Raises:
            NotAMatrixError: If the weight has fewer dimensions than its kernel and matrix need.
            NotSquareError: If the matrices have to be square and are not, or the rows do not fit the gates.
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
            # As a batch of matrices with one column, the weight would be constrained column by column.
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
            # The originals are no longer on the meta device. The next read runs on their device.
            self._become_like(torch.empty_like(self._like, device="cpu"))


_FUNCTIONAL_CALL = (
    " (torch.func.functional_call takes the originals of a constrained weight: pass "
    "'parametrizations.weight.original' instead of 'weight'.)"
)
