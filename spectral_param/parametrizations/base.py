"""What all parametrizations of this library share."""

from __future__ import annotations

import abc
import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.functional.checks import check_gate_blocks, finfo_eps, is_plain
from spectral_param.precision import full_precision


def split_gates(W: Tensor) -> Tensor:  # (..., k n, n) -> (..., k, n, n); square: unchanged
    """Return the k square blocks of a weight of shape (..., k·n, n) as a batch.

    Args:
        W: The weight. A square one (k = 1) is returned as it is.
    """
    rows, n = W.shape[-2:]
    return W if rows == n else W.unflatten(-2, (rows // n, n))


def join_gates(W: Tensor, like: torch.Size) -> Tensor:  # the inverse of split_gates
    """Return the blocks of ``split_gates`` as one weight again.

    Args:
        W: Square matrices.
        like: Shape of the weight.
    """
    return W if W.shape == like else W.flatten(-3, -2)


def at_least_float32(X: Tensor) -> Tensor:
    """Return X in a precision that LAPACK has: half precisions become single.

    Args:
        X: A floating point or complex tensor.
    """
    if X.dtype in (torch.bfloat16, torch.float16):
        return X.float()
    return X.to(torch.complex64) if X.dtype == torch.complex32 else X


def as_real(X: Tensor) -> Tensor:
    """Undo what Module.to does to the real tensors of a complex module, which it makes complex.

    Args:
        X: A real tensor, or one that was.

    Returns:
        The real tensor.
    """
    return X.real if X.is_complex() else X


def on_rows(product: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return a product with a matrix as the function that ``operator`` and ``fast_operator`` promise.

    Half precision rows are multiplied in float32, as constrained weights are built, and come back in half
    precision; real rows are made complex for a complex matrix.

    Args:
        product: Function h -> h Wᵀ for rows of the matrix's dtype.
        dtype: That dtype, float32 or better.
    """

    def apply(h: Tensor) -> Tensor:
        exact = at_least_float32(h)
        result = product(exact.to(torch.promote_types(exact.dtype, dtype)))
        return result if exact is h or result.is_complex() != h.is_complex() else result.to(h.dtype)

    return apply


def real_entries(X: Tensor) -> int:
    """Return the number of real numbers in a tensor: a complex entry is two.

    Args:
        X: Any tensor.
    """
    return X.numel() * (2 if X.is_complex() else 1)


def is_trained(X: Tensor) -> bool:
    """Return whether an original counts for ``free_parameters``: all but frozen parameters do.

    Args:
        X: An original.
    """
    return X.requires_grad or not isinstance(X, nn.Parameter)


def originals_of(weight: ParametrizationList) -> tuple[Tensor, ...]:
    """Return the tensors that a parametrized weight is computed from, be they parameters or buffers.

    Args:
        weight: The list of its parametrizations.
    """
    if weight.is_tensor:
        return (weight.original,)
    return tuple(getattr(weight, f"original{i}") for i in range(weight.ntensors))


def constraints_of(module: nn.Module) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Yield each constraint in a model, nested ones too, with the originals that it reads.

    Args:
        module: Any model.
    """
    for weight in module.modules():
        if isinstance(weight, ParametrizationList) and isinstance(weight[0], Parametrization):
            yield from weight[0].parts(*originals_of(weight))


def num_free_parameters(module: nn.Module) -> int:
    """Return how many independent real numbers a model trains.

    Tensors constrained by this library count as what their set has, as the papers count: an
    orthogonal n x n matrix as n(n-1)/2. Everything else counts its entries. Frozen parameters and
    shared ones do not count again.

    Args:
        module: Any model.

    Example:
        >>> layer = spectral_param.scaled_cayley(torch.nn.Linear(6, 6))
        >>> spectral_param.num_free_parameters(layer)  # 15 for the weight, 6 for the bias
        21
    """
    total = 0
    counted: set[Tensor] = set()
    for part in module.modules():
        if isinstance(part, ParametrizationList) and isinstance(part[0], Parametrization):
            originals = originals_of(part)
            if any(t.requires_grad for t in originals) and counted.isdisjoint(originals):
                total += part[0].free_parameters(*originals)
            counted.update(originals)
    for parameter in module.parameters():
        if parameter.requires_grad and parameter not in counted:
            total += real_entries(parameter)
    return total


class Parametrization(nn.Module, abc.ABC):
    """Abstract parametrization: ``forward(right_inverse(W)) == W`` for every W in the set.

    Used with :func:`torch.nn.utils.parametrize.register_parametrization`, one instance for each
    weight. The first weight it is given, at registration, is projected onto the set; a weight assigned
    later has to be in it, and to have the same shape, dtype and device.

    A subclass writes :meth:`constrain`, :meth:`unconstrain`, :meth:`paper_start` and
    :meth:`free_parameters`. What a user calls is final.
    """

    _like: Tensor
    _like_real: Tensor

    def __init__(self) -> None:
        super().__init__()
        # The weight's shape, known from registration on. Its dtype and device are those of an empty
        # buffer, which Module.to and its kin convert as they do the weight; another one stands for
        # originals that are real beside a complex weight.
        self._shape: torch.Size | None = None
        self.register_buffer("_like", torch.empty(0), persistent=False)
        self.register_buffer("_like_real", torch.empty(0), persistent=False)
        # Precision of the weight being assigned, which decides what rounding may do to it.
        self._eps = 0.0
        self._from_paper = False
        self._outputs: list[weakref.ref[Tensor]] = []

    @abc.abstractmethod
    def constrain(self, *originals: Tensor) -> Tensor:
        """Map the unconstrained tensors to the constrained weight.

        Args:
            originals: The tensors the optimizer trains, as :meth:`unconstrain` shaped them.
        """

    @abc.abstractmethod
    def unconstrain(self, W: Tensor, project: bool) -> Tensor | tuple[Tensor, ...]:
        """Return unconstrained tensors that :meth:`constrain` maps to W. They share no memory with W.

        Args:
            W: The weight, in its own shape, float32 or better.
            project: Whether to take the nearest weight in the set for one outside it, instead of
                raising :class:`~spectral_param.errors.InManifoldError`.
        """

    @abc.abstractmethod
    def paper_start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return new unconstrained tensors with the start that the paper uses.

        Args:
            like: A weight with the shape, dtype and device that are wanted.
        """

    @abc.abstractmethod
    def free_parameters(self, *originals: Tensor) -> int:
        """Return how many independent real numbers the constrained weight has, frozen originals left out.

        Args:
            originals: The tensors the optimizer trains, at least one of them.
        """

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return the parametrizations that this one is made of, itself alone or nested ones, too.

        Args:
            originals: The tensors the optimizer trains.

        Returns:
            Pairs of a parametrization and the originals that it reads.
        """
        return [(self, originals)]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weight; known from registration on."""
        return self._like.dtype

    def fast_operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return the function h -> h Wᵀ on rows ``(batch, n)`` where it is faster than a product with W.

        For a recurrence, where W acts once in each time step. None, the default, where W itself is faster.

        Args:
            originals: The tensors the optimizer trains.
        """
        return None

    def start_from_paper(self) -> None:
        """Ignore the next weight except for its shape, and start as the paper does.

        Called before registration; ``init="paper"`` of the verbs does it.
        """
        self._from_paper = True

    def forward(self, *originals: Tensor) -> Tensor:
        """Return the constrained weight, in the dtype and on the device of the originals.

        Args:
            originals: The tensors the optimizer trains.
        """
        W = self.constrain(*map(at_least_float32, originals))
        dtype = originals[0].dtype
        if W.is_complex() and not dtype.is_complex:
            # Originals that are all real do not say which complex dtype the weight has: Module.double
            # converts them, but not a complex weight.
            dtype = self._like.dtype if self._like.is_complex() else W.dtype
        W = W.to(dtype)
        if is_plain(W):
            self._outputs = [ref for ref in self._outputs if ref() is not None]
            self._outputs.append(weakref.ref(W))
        return W

    @full_precision
    def right_inverse(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return unconstrained tensors for the weight W.

        Args:
            W: Weight of shape ``(..., n, n)``, or ``(..., k·n, n)`` as LSTM and GRU hold it: k
                blocks, each constrained by itself.

        Raises:
            NotAMatrixError: If W has fewer than two dimensions or no entries.
            NotSquareError: If W is neither square nor a stack of square blocks.
            UnsupportedDtypeError: If W is not floating point or complex.
            InManifoldError: If W is outside the set, except at registration; there only where a part of the
                set was asked for that nothing near W is in (:class:`spectral_param.ScaledCayley`).
            ValueError: If W is on the meta device, or differs from the weight in shape, dtype or device; at
                registration, if it is a lazily conjugated or negated view.
        """
        check_gate_blocks(W, type(self).__name__)
        self._check_same_kind(W)
        originals = self.invert(W, finfo_eps(W.dtype))
        if isinstance(originals, Tensor):
            return originals
        return tuple(o.to((self._like if o.is_complex() else self._like_real).dtype) for o in originals)

    def invert(self, W: Tensor, eps: float) -> Tensor | tuple[Tensor, ...]:
        """Do what :meth:`right_inverse` does, for a weight that is accurate to eps only.

        Args:
            W: The weight.
            eps: Relative rounding error that W may have: that of the dtype it was given in.

        Returns:
            Unconstrained tensors.
        """
        self._eps = eps
        if self._shape is None:
            self._like, self._like_real = W.detach().new_empty(0), W.detach().real.new_empty(0)
        weight = at_least_float32(W.detach())
        if self._from_paper:
            originals = self.paper_start(weight)
        else:
            originals = self.unconstrain(weight, project=self._shape is None)
        self._shape = W.shape
        self._from_paper = False
        if isinstance(originals, Tensor):
            return originals.to(W.dtype)
        return tuple(o.to(W.dtype) if o.is_complex() == W.is_complex() else o for o in originals)

    def _check_no_gates(self) -> None:
        """Raise where there is no product with one matrix.

        Raises:
            ValueError: If the weight is a stack of gates.
        """
        if self._has_gates():
            raise ValueError(
                f"{type(self).__name__}.operator: expected a square weight, got one of stacked gates of "
                f"shape {tuple(self._shape or ())}. Multiply by the weight instead."
            )

    def _has_gates(self) -> bool:
        """Return whether the weight is a stack of gates; not known, so False, before registration."""
        return self._shape is not None and self._shape[-2] != self._shape[-1]

    def _check_same_kind(self, W: Tensor) -> None:
        """Raise before anything changes, where PyTorch would only notice afterwards."""
        name = type(self).__name__
        if W.is_meta:
            raise ValueError(
                f"{name}: expected a weight with values, got one on the meta device. Materialise and "
                "initialise the module first, then register the constraint."
            )
        if self._shape is None and (W.is_conj() or W.is_neg()):
            # register_parametrization exchanges the storage of the parameter, not these marks.
            raise ValueError(
                f"{name}: expected a weight that holds its own values, got a lazily conjugated or negated "
                "view, which PyTorch would conjugate or negate once more. Make the parameter of "
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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_outputs": []}

    def __deepcopy__(self, memo: dict[int, Any]) -> Parametrization:
        _give_classes_of_their_own(memo)
        # torch.nn.RNN keeps the weight that it read last in a list of its own, and a tensor with a
        # graph cannot be deep-copied. Parametrizations are copied before that list, so it is enough
        # to say here what the copy of such a weight is: its value, until the next forward pass.
        for ref in self._outputs:
            W = ref()
            if W is not None and id(W) not in memo:
                memo[id(W)] = W.detach().clone()
                memo.setdefault(id(memo), []).append(W)
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        clone.__dict__.update(copy.deepcopy(self.__getstate__(), memo))
        return clone


def _give_classes_of_their_own(memo: dict[int, Any]) -> None:
    """Give the parametrized modules that are being copied classes apart from those of the originals.

    PyTorch puts the property that computes a weight into a class made for the one module, which deepcopy
    then shares with the copy. To remove a parametrization from the copy takes it from the original, too,
    whose weight in ``torch.nn.RNN`` stays as it is from then on, without a word; and ``parametrize.cached``
    gives the copy the weight of the original.

    Args:
        memo: That of the copy. A module on its way into it has a class and no attributes yet.
    """
    for module in list(memo.values()):
        if isinstance(module, nn.Module) and not vars(module):
            shared = type(module)
            names = [
                name
                for name, member in vars(shared).items()
                if isinstance(member, property) and member.fget.__module__ == parametrize.__name__
            ]
            if names:
                module.__class__ = shared.__bases__[0]
                parametrize._inject_new_class(module)
                for name in names:
                    parametrize._inject_property(module, name)
