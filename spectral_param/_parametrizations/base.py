"""The base class of all constraints: methods that a subclass defines, and methods for PyTorch and users."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from spectral_param._context import full_precision, has_no_values, plain, precise
from spectral_param._map import Map, recorded
from spectral_param._parametrizations.copies import deep_copy
from spectral_param._parametrizations.in_set import InSet, frozen
from spectral_param._parametrizations.layout import PLAIN
from spectral_param._parametrizations.memory import Memory
from spectral_param._parametrizations.tensors import as_tuple
from spectral_param.functional._checks import check_choices, check_matrix


class Parametrization(InSet):
    """Base class of constraints: ``forward(right_inverse(W)) == W`` for every W in its set.

    The weight is computed from unconstrained tensors, the *originals*, which the optimizer trains. Use one
    instance for each weight, with :func:`spectral_param.constrain` or
    :func:`torch.nn.utils.parametrize.register_parametrization`. Registration projects the weight onto the
    set. A weight assigned later must be in the set, and have the shape, dtype and device of the registered
    weight.

    A subclass defines a map by :meth:`reference`, :meth:`invert`, :meth:`start` and :meth:`free_parameters`,
    and the set of the map's values by :meth:`outside` and :meth:`near`. If the map reaches all matrices,
    :meth:`outside` and :meth:`near` are not needed. The methods of the map and of the set get matrices
    ``(..., m, n)`` in float32 or better, with autocast off; the gates of an LSTM or GRU are a batch
    dimension. The attribute :attr:`shapes` says which matrices a subclass takes. A subclass does not override
    ``forward`` and ``right_inverse``. :func:`spectral_param.constrain` sets all attributes below from the
    module.

    Attributes:
        gates: Number k of blocks in a weight ``(..., k·m, n)``, each constrained separately. The default is
            1.
        kernel_dims: Number of spatial dimensions of a kernel that acts as a matrix, such as a 1 x 1
            convolution. The default is 0.
        strides: The stride of each axis of a convolution, divided by the greatest common divisor of stride
            and dilation; with circular padding, 1 for each axis. Empty by default.
        transposed: Whether the weight is the kernel of a transposed convolution, whose input channels come
            first. The default is False.
        padding_idx: The row of an embedding that may be zero. None by default.
    """

    #: Whether the weight depends on the attribute ``training``. If so, a switch between training and
    #: evaluation mode counts as a change of the constraint, and the next read evaluates the constraint again.
    depends_on_training: bool = False

    #: Name of the attribute with the bound; see :class:`spectral_param._parametrizations.bound.Bounded`.
    _bound = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise if a subclass defines ``reference`` but inherits an ``evaluate`` of another map."""
        super().__init_subclass__(**kwargs)
        if (
            "reference" in vars(cls)
            and "evaluate" not in vars(cls)
            and cls.evaluate is not Parametrization.evaluate
        ):
            owner = next(kind for kind in cls.__mro__ if "evaluate" in vars(kind))
            raise ValueError(
                f"{cls.__name__}: expected evaluate beside the new reference, got that of {owner.__name__}, "
                "which computes another weight. Define evaluate, too, or write evaluate = "
                "spectral_param.Parametrization.evaluate to differentiate the reference by autograd."
            )

    def __init__(self, **choices: tuple[str, Any]) -> None:
        # There is no docstring here, because help() of a subclass would show it. Each entry of ``choices`` is
        # an argument of the subclass's constructor that becomes an attribute: a pair of the value and the
        # Literal of allowed values. A value that is not allowed raises a ValueError.
        super().__init__()
        # Written to vars(self), because setattr would count these assignments as edits.
        vars(self).update(gates=1, kernel_dims=0, strides=(), transposed=False, padding_idx=None)
        vars(self).update(check_choices(**choices), _memory=Memory(), _edits=0, _by_training=None)
        # _shape: the weight's shape, known after registration. _is_after: whether the constraint acts after
        # another parametrization. _use: a name of the weight, for messages. _from_paper: whether the next
        # weight is initialized as in the constraint's paper. _warned: whether the constraint has already
        # warned of a matrix without a derivative.
        vars(self).update(
            _shape=None, _layout=PLAIN, _is_after=False, _use="", _from_paper=False, _warned=False
        )
        # The empty buffer _like stores the weight's dtype and device, because Module.to converts buffers as
        # it converts the weight. The empty buffer _like_real stores the dtype that real originals of a
        # complex weight have.
        for name in ("_like", "_like_real"):
            empty = torch.empty(0, dtype=torch.float32, device="cpu")
            self.register_buffer(name, empty, persistent=False)

    # Methods of the map, for subclasses -----------------------------------------------------------------

    def reference(self, *originals: Tensor) -> Tensor:
        """Return the constrained matrices ``(..., m, n)`` by torch's operations.

        Compilers, exporters, transforms of torch.func and derivatives of higher order use this method. So an
        implementation must not branch on the values of tensors.
        """
        raise NotImplementedError(self._lacks("reference(*originals)", "maps the originals to the weight"))

    def evaluate(self, *values: Tensor) -> Map:
        """Return the matrices of :meth:`reference` for tensors without a graph, whose values may be read.

        A read of the weight calls this method only if the originals, buffers or attributes have changed. If
        the method itself changes a buffer (such as a latch), the next read calls the method again. By default
        autograd differentiates :meth:`reference`.

        Returns:
            A map that holds all numbers that its backward pass needs; see :class:`spectral_param.Map`.
        """
        return recorded(frozen(self).reference, *values)

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return new originals, initialized as in the constraint's paper.

        Args:
            like: Matrices ``(..., m, n)`` of the shape, dtype and device of the weight.
        """
        raise NotImplementedError(self._lacks("start(like)", "returns originals, as for init='paper'"))

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the number of independent real parameters of the weight; frozen originals do not count.

        This method is called only if at least one original is trained.
        """
        what = "counts the independent real numbers of the weight"
        raise NotImplementedError(self._lacks("free_parameters(*originals)", what))

    #: Whether the constraint can act after another parametrization, on the weight that the other
    #: parametrization returns. The default is True. Set False if the originals are not one matrix of the
    #: weight's shape.
    acts_after = True

    #: Whether a weight can be assigned if the constraint acts after another parametrization.
    assignable_after = False

    def penalty(self, *originals: Tensor) -> Tensor | None:
        """Return the term that :func:`spectral_param.penalty` adds to the loss for this weight, or None."""
        return None

    def rebase(self, *originals: Tensor) -> None:
        """Make the present weight the base point of the map; :func:`spectral_param.rebase` calls this method.

        By default nothing is changed, because a map need not have a base point.
        """

    def check_after(self, links: list[nn.Module]) -> None:
        """Raise if this constraint would undo one of ``links``, which act before it in a chain.

        :func:`spectral_param.constrain` calls this method, which by default raises nothing.
        """

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return pairs of a constraint and its originals, for this constraint and for nested constraints."""
        return [(self, originals)]

    # PyTorch and users call ---------------------------------------------------------------------------

    def forward(self, *originals: Tensor) -> Tensor:
        """Return the constrained weight, in the dtype and on the device of the originals.

        The constraint is evaluated if the originals or the constraint have changed since the last read.
        Otherwise a copy of the weight of the last read is returned, and only a backward pass may evaluate the
        constraint again.

        Args:
            originals: The tensors that the optimizer trains. If the constraint acts after another
                parametrization, the weight X that the other parametrization returns.

        Raises:
            NotAMatrixError: If X has fewer than two dimensions or no entries.
            NotSquareError: If X is not square, and the constraint takes square weights only.
            UnsupportedDtypeError: If X is not floating point or complex.
        """
        if self._shape is None and len(originals) == 1:
            if not self._is_after:
                self._check_acts_after()
                self._is_after = True
            check_matrix(originals[0], type(self).__name__, self.least_dims)
            layout = self._layout_of(originals[0])
            if layout != self._layout:
                self._layout = layout
        context = plain(*originals)
        if context is not None:
            return self._memory.read(self, originals, context)
        return self._evaluate(*originals)

    def right_inverse(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals for the weight W.

        Args:
            W: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.

        Raises:
            NotAMatrixError: If W has fewer than two dimensions or no entries.
            NotSquareError: If the constraint takes square weights only, and W is neither square nor a stack
                of ``gates`` square blocks.
            UnsupportedDtypeError: If W is not floating point or complex.
            InManifoldError: If an assigned W is outside the set. Registration projects W, and raises the
                error if W cannot be projected, for instance by a constraint that needs ``init="paper"``, or
                by :class:`spectral_param.ScaledCayley` for the given ``negative_ones``.
            NotImplementedError: If the constraint acts after another parametrization, and
                :attr:`assignable_after` is False.
            ValueError: If the constraint is registered on a second weight; if the number of rows of W is no
                multiple of ``gates``; if a method such as :meth:`invert` is missing or raises a
                NotImplementedError; if W differs from the registered weight in shape, dtype or device; if W
                comes from ``torch.func.functional_call``; at registration, if W is a lazily conjugated or
                negated view.
        """
        X, is_first = self._take(W)
        context = plain(W)
        has_values = context is not None or not has_no_values(W)
        with context or precise(W):
            if self._is_after and not isinstance(W, nn.Parameter):
                return self._assign_after(W, X if has_values else None)
            try:
                if not has_values:
                    originals = self._start_without_values(W)
                elif self._from_paper:
                    originals = self._started(X)
                else:
                    originals = self._originals_of(W.detach(), X, is_first)
            except NotImplementedError as error:
                raise self._without_originals(error) from error
        self._shape = W.shape
        use = self._use or f"a weight of shape {tuple(W.shape)}"
        vars(self).update(_from_paper=False, _is_after=False, _warned=False, _use=use)
        if isinstance(originals, Tensor):
            return originals.to(W.dtype).contiguous()
        like = (self._like_real.dtype, self._like.dtype)
        return tuple(t.to(like[t.is_complex()]).contiguous() for t in originals)

    @torch.no_grad()
    def sample(self) -> Tensor:
        """Return a weight initialized as in the constraint's paper. geotorch has a method of this name.

        Raises:
            ValueError: If the constraint is not registered yet, so that no shape is known.
        """
        trial = copy.deepcopy(self)
        return trial(*trial._start_again("sample"))

    @torch.no_grad()
    def restart(self, *originals: Tensor) -> None:
        """Overwrite the originals with the initialization of the constraint's paper.

        :func:`spectral_param.constrain` lets a layer's ``reset_parameters`` call this method, for instance
        after ``to_empty`` of a layer built on the meta device.

        Args:
            originals: The tensors that the optimizer trains. Their values are replaced.

        Raises:
            ValueError: If the constraint is not registered yet, so that no shape is known.
        """
        for original, value in zip(originals, self._start_again("restart"), strict=True):
            original.copy_(value)

    # Implementation -----------------------------------------------------------------------------------

    def _start_again(self, method: str) -> tuple[Tensor, ...]:
        """Return the originals of the paper's initialization; raise before registration."""
        if self._shape is None:
            raise ValueError(
                f"{type(self).__name__}.{method}: expected a registered constraint, whose weight has a "
                "shape, got one that is not registered. Register it first."
            )
        if has_no_values(self._like):
            return as_tuple(self._start_without_values(self._like.new_empty(self._shape)))
        return as_tuple(self._started(self._matrices(self._like.new_zeros(self._shape))))

    def _without_originals(self, error: NotImplementedError) -> ValueError:
        """Return the error to raise in place of a NotImplementedError.

        PyTorch's registration ignores a NotImplementedError, and takes the given weight as the original.
        """
        return ValueError(
            f"{type(self).__name__}: expected originals of the weight, got NotImplementedError: {error}."
        )

    @full_precision
    def _evaluate(self, *originals: Tensor) -> Tensor:
        """Return the weight, in its own shape and dtype, for the originals that the optimizer trains."""
        return self._as_weight(self.reference(*self._exact(originals)), originals[0].dtype).contiguous()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == self._bound:
            value = self._as_bound(value)
        # Numpy scalars are stored as Python numbers, because numpy scalars would promote dtypes.
        super().__setattr__(name, value.item() if isinstance(value, np.generic) else value)
        if name != "training":
            vars(self).update(_edits=vars(self).get("_edits", 0) + 1, _by_training=None)

    def _as_bound(self, value: Any) -> Any:
        """Return what is stored when ``value`` is assigned to the attribute with the bound."""
        return value

    def _started(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return :meth:`start`, after a check that the constraint takes matrices such as ``like``."""
        self.check_matrices(like)
        return self.start(like)

    def _start_without_values(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals without values for a W that is a FakeTensor or on the meta device."""
        with unset_fake_temporarily(), torch.device("cpu"):
            zeros = torch.zeros(W.shape, dtype=W.dtype, device="cpu")
            originals = self._started(self._matrices(zeros))

        def empty(t: Tensor) -> Tensor:
            return W.detach().new_empty(t.shape, dtype=t.dtype)

        self._apply(empty)  # The buffers lose their values, too.
        return empty(originals) if isinstance(originals, Tensor) else tuple(map(empty, originals))

    def _assign_after(self, W: Tensor, X: Tensor | None) -> Tensor:
        """Return the original for a W assigned after another parametrization.

        X has the matrices of W, or is None if W has no values.
        """
        name = type(self).__name__
        if not self.assignable_after:
            raise NotImplementedError(
                f"{name}: expected no assignment after another parametrization, got one: {name} cannot "
                f"compute the other one's originals. Assign the original tensors instead, or register {name} "
                "first."
            )
        if X is None:
            return W.detach().clone()
        try:
            originals = self._originals_of(W.detach(), X, is_first=False)
        except NotImplementedError as error:
            raise self._without_originals(error) from error
        assert isinstance(originals, Tensor)
        return self._layout.join(originals).to(W.dtype)

    def _check_acts_after(self) -> None:
        if not self.acts_after:
            name = type(self).__name__
            raise ValueError(
                f"{name}: expected to be the first parametrization of a weight, got another one before it: "
                f"the originals of {name} are not one matrix of the weight's shape. Register {name} alone, "
                "or ScaledCayley, SkewExponential or SpectralRadiusNorm, for instance, after the other one."
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Parametrization:
        return deep_copy(self, memo)
