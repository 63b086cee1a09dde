"""What all constraints share: gates, precision, starts, assignment, and one evaluation per forward pass."""

from __future__ import annotations

import abc
import copy
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.context import full_precision, is_plain
from spectral_param.errors import InManifoldError, NotSquareError
from spectral_param.functional.checks import check_matrix, finfo_eps


class _Read(NamedTuple):
    """The last evaluation of a constraint: what it depended on, and what came out."""

    edits: list[int]  # How often attributes have been set, of this constraint and of nested ones.
    marks: list[tuple[int, int] | None]  # Addresses and versions of the originals and buffers,
    values: list[Tensor]  # copies of them,
    weight: Tensor  # and a copy of the weight.


class Parametrization(nn.Module, abc.ABC):
    """Abstract constraint: ``forward(right_inverse(W)) == W`` for every W in its set.

    Used with :func:`spectral_param.constrain` or with
    :func:`torch.nn.utils.parametrize.register_parametrization`, one instance for each weight. The first
    weight that it is given, at registration, is projected onto the set; a weight assigned later has to be
    in it, and to have the same shape, dtype and device.

    A subclass writes :meth:`constrain`, :meth:`unconstrain`, :meth:`start` and :meth:`free_parameters`.
    They see square matrices ``(..., n, n)`` in float32 or better, with autocast off: the gates of an LSTM or
    GRU are a batch dimension, made and undone here. What a user calls is final.

    Attributes:
        gates: Number k of square blocks in a weight ``(..., k·n, n)``, each constrained by itself. 1, the
            default, for square weights. :func:`spectral_param.constrain` sets it from the module.
    """

    _like: Tensor
    _like_real: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gates = 1
        # The weight's shape, known from registration on. Its dtype and device are those of an empty
        # buffer, which Module.to and its kin convert as they do the weight; another one stands for
        # originals that are real beside a complex weight.
        self._shape: torch.Size | None = None
        self.register_buffer("_like", torch.empty(0), persistent=False)
        self.register_buffer("_like_real", torch.empty(0), persistent=False)
        self._from_paper = False
        self._is_behind = False
        self._last: _Read | None = None
        self._outputs: list[weakref.ref[Tensor]] = []
        self._edits: int
        # The constraints whose buffers and attributes the weight depends on: this one and nested ones.
        self._members: list[Parametrization] | None = None
        self._attributes: list[Tensor] | None = None  # Those of this one.
        self._is_alone = True

    # What a subclass writes ---------------------------------------------------------------------------

    @abc.abstractmethod
    def constrain(self, *originals: Tensor) -> Tensor:
        """Map the unconstrained tensors to the constrained matrices ``(..., n, n)``.

        Args:
            originals: The tensors the optimizer trains, as :meth:`unconstrain` shaped them.
        """

    @abc.abstractmethod
    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor | tuple[Tensor, ...]:
        """Return unconstrained tensors that :meth:`constrain` maps to W. They share no memory with W.

        Args:
            W: Matrices ``(..., n, n)``.
            eps: Relative rounding error that W may have: that of the dtype it was given in.
            project: Whether to take the nearest weight in the set for one outside it, instead of
                raising :class:`~spectral_param.errors.InManifoldError`.
        """

    @abc.abstractmethod
    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return new unconstrained tensors with the start that the constraint's paper uses.

        Args:
            like: Matrices ``(..., n, n)`` with the shape, dtype and device that are wanted.
        """

    @abc.abstractmethod
    def free_parameters(self, *originals: Tensor) -> int:
        """Return how many independent real numbers the constrained weight has, frozen originals left out.

        Args:
            originals: The tensors the optimizer trains, at least one of them.
        """

    def from_matrix(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return the originals that a matrix stands for, where the constraint acts behind another one.

        By default the matrix is the only original. A constraint with other originals reads them out of its
        entries, so that each works behind any parametrization.

        Args:
            X: Matrices ``(..., n, n)``.
        """
        return (X,)

    def constrain_known(self, W: Tensor, *originals: Tensor) -> Tensor:
        """Return what :meth:`constrain` returns, whose values are W: for its derivatives.

        For a map whose derivatives need the weight and not what it was computed from.

        Args:
            W: Matrices ``(..., n, n)``.
            originals: The tensors the optimizer trains.
        """
        return self.constrain(*originals)

    #: Whether a weight can be assigned where the constraint acts behind another one.
    assignable_behind = False

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return the constraints that this one is made of, itself alone or nested ones, too.

        Args:
            originals: The tensors the optimizer trains.

        Returns:
            Pairs of a parametrization and the originals that it reads.
        """
        return [(self, originals)]

    def fast_operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return the function h -> h Wᵀ on rows ``(batch, n)`` where it is faster than a product with W.

        For a recurrence, where W acts once in each time step. None, the default, where W itself is faster.

        Args:
            originals: The tensors the optimizer trains.
        """
        return None

    # What PyTorch and users call ----------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weight; known from registration on."""
        return self._like.dtype

    def forward(self, *originals: Tensor) -> Tensor:
        """Return the constrained weight, in the dtype and on the device of the originals.

        The constraint is evaluated when the originals have changed since the last read. Otherwise the
        weight is known, and only its backward pass evaluates the constraint.

        Args:
            originals: The tensors the optimizer trains; or the one weight that another parametrization,
                registered before, returns.

        Raises:
            NotAMatrixError: If it is such a weight, and has fewer than two dimensions or no entries.
            NotSquareError: If it is such a weight, and not square.
            UnsupportedDtypeError: If it is such a weight, and not floating point or complex.
        """
        if self._shape is None and len(originals) == 1:
            if not self._is_behind:
                self._is_behind = True
            check_matrix(originals[0], type(self).__name__)
            self._check_shape(originals[0])
        if not (is_plain(*originals) and self._is_remembered()):
            return self._evaluate(*originals)
        W = self._known(originals)
        if W is None:
            W = self._evaluate(*originals)
            if torch.is_inference_mode_enabled():
                # A tensor made in inference mode could not be saved for a later backward pass.
                with torch.inference_mode(False):
                    self._keep(originals, W)
            else:
                self._keep(originals, W)
        outputs = [ref for ref in self._outputs if ref() is not None]
        outputs.append(weakref.ref(W))
        vars(self)["_outputs"] = outputs
        return W

    @full_precision
    def right_inverse(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return unconstrained tensors for the weight W.

        Args:
            W: Weight of shape ``(..., n, n)``, or ``(..., k·n, n)`` with ``gates`` = k.

        Raises:
            NotAMatrixError: If W has fewer than two dimensions or no entries.
            NotSquareError: If W is not square, or not the stack of square blocks that ``gates`` says.
            UnsupportedDtypeError: If W is not floating point or complex.
            InManifoldError: If W is outside the set, except at registration; there only where a part of the
                set was asked for that nothing near W is in (:class:`spectral_param.ScaledCayley`).
            NotImplementedError: If the constraint acts behind another parametrization and its originals
                cannot be written into one matrix.
            ValueError: If W differs from the weight in shape, dtype or device; if it comes from
                ``torch.func.functional_call``; at registration, if it is a lazily conjugated or negated view.
        """
        name = type(self).__name__
        check_matrix(W, name)
        self._check_same_kind(W)
        self._check_shape(W)
        if self._is_behind and not isinstance(W, nn.Parameter):
            return self._assign_behind(W)
        is_first = self._shape is None
        if is_first:
            self._like, self._like_real = W.detach().new_empty(0), W.detach().real.new_empty(0)
        eps = finfo_eps(W.dtype)
        if W.is_meta:
            originals = self._start_on_meta(W)
        elif self._from_paper:
            originals = self.start(self._split(at_least_float32(W.detach())))
        else:
            matrices = self._split(at_least_float32(W.detach()))
            try:
                originals = self.unconstrain(matrices, eps=eps, project=is_first)
            except InManifoldError as error:
                raise InManifoldError(f"{error}{'' if is_first else _FUNCTIONAL_CALL}") from None
        self._shape, self._from_paper, self._is_behind = W.shape, False, False
        if isinstance(originals, Tensor):
            return originals.to(W.dtype).contiguous()
        like = (self._like_real.dtype, self._like.dtype)
        return tuple(t.to(like[t.is_complex()]).contiguous() for t in originals)

    def in_manifold(self, X: Tensor, eps: float | None = None) -> bool:
        """Return whether X is in the set, up to rounding. The protocol of geotorch.

        Args:
            X: Weight of shape ``(..., n, n)``, or ``(..., k·n, n)`` with ``gates`` = k.
            eps: Relative rounding error that X may have; by default that of its dtype. Of constraints that
                cannot be inverted (few layers of :class:`spectral_param.Givens`,
                :class:`spectral_param.FourierUnitary`) only weights whose originals can be found count.
        """
        trial = copy.deepcopy(self)
        try:
            check_matrix(X, type(self).__name__)
            self._check_shape(X)
            matrices = self._split(at_least_float32(X.detach()))
            trial.unconstrain(matrices, eps=finfo_eps(X.dtype) if eps is None else eps, project=False)
        except ValueError:
            return False
        return True

    @torch.no_grad()
    def sample(self) -> Tensor:
        """Return a weight of the set, drawn as the constraint's paper starts. The protocol of geotorch.

        Raises:
            ValueError: Before registration, when the shape is not known yet.
        """
        if self._shape is None:
            raise ValueError(
                f"{type(self).__name__}.sample: expected a registered constraint, whose weight has a shape, "
                "got one that is not registered. Register it first."
            )
        trial = copy.deepcopy(self)
        originals = trial.start(trial._split(_new_like(self._like, self._shape)))
        return trial._evaluate(*as_tuple(originals))

    @torch.no_grad()
    def restart(self, *originals: Tensor) -> None:
        """Start anew, as the constraint's paper does, in the tensors that the optimizer trains.

        For ``reset_parameters`` of a layer, after ``to_empty`` of one that was built on the meta device for
        instance.

        Args:
            originals: The tensors the optimizer trains. Their values are replaced.

        Raises:
            ValueError: Before registration, when the shape is not known yet.
        """
        if self._shape is None:
            raise ValueError(
                f"{type(self).__name__}.restart: expected a registered constraint, got one that is not "
                "registered. Register it first."
            )
        found = self.start(self._split(_new_like(self._like, self._shape)))
        for original, value in zip(originals, as_tuple(found), strict=True):
            original.copy_(value)

    def read_matrix(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return the originals that a weight stands for, where the constraint acts behind another one.

        Args:
            X: The weight that the parametrization before returns.
        """
        return self.from_matrix(self._split(at_least_float32(X)))

    # How ----------------------------------------------------------------------------------------------

    @full_precision
    def _evaluate(self, *originals: Tensor, known: Tensor | None = None) -> Tensor:
        exact = tuple(map(at_least_float32, originals))
        if self._is_behind and len(exact) == 1:
            exact = self.read_matrix(exact[0])
        if known is not None and exact[0] is originals[0]:  # A rounded weight says too little.
            W = self.constrain_known(self._split(known), *exact)
        else:
            W = self.constrain(*exact)
        if self.gates > 1:
            W = W.flatten(-3, -2)
        dtype = originals[0].dtype
        if W.is_complex() and not dtype.is_complex:
            # Originals that are all real do not say which complex dtype the weight has: Module.double
            # converts them, but not a complex weight.
            dtype = self._like.dtype if self._like.is_complex() else W.dtype
        return W.to(dtype)

    def _keep(self, originals: tuple[Tensor, ...], W: Tensor) -> None:
        """Remember the weight, and what it depends on: evaluating may have changed that, a latch for one."""
        tensors, edits, marks = self._dependencies(originals)
        values = [t.detach().clone() for t in tensors]
        vars(self)["_last"] = _Read(edits, marks, values, W.detach().clone())

    def _known(self, originals: tuple[Tensor, ...]) -> Tensor | None:
        """Return the weight if it has been evaluated for these originals last, with a graph of its own."""
        last = self._last
        # Another version or address says that the values may be new: evaluating again is always right. The
        # same ones do not say that they are old, since edits through `.data` leave them alone.
        if last is None or last.marks[0] != self._mark(originals[0]):  # An optimizer has stepped.
            return None
        tensors, edits, marks = self._dependencies(originals)
        if edits != last.edits or marks != last.marks or not all(map(_same, tensors, last.values)):
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in originals):
            W: Tensor = _ReadAgain.apply(self, last.weight, *originals)  # type: ignore[no-untyped-call]
            return W
        return last.weight.clone()

    def _is_remembered(self) -> bool:
        """Return whether the last weight may be used again.

        Not with parameters beside the originals, nor around a module of another library, of which nobody
        knows what its result depends on; nor where the tensors of a graph are saved by hooks, as
        ``torch.utils.checkpoint`` does, which has to find the same graph again.
        """
        if self._members is None:
            modules = [part for part in self.modules() if not getattr(part, "is_memory", False)]
            ours = all(isinstance(part, (Parametrization, nn.ModuleList, nn.Identity)) for part in modules)
            members = [part for part in modules if isinstance(part, Parametrization)]
            alone = ours and next(self.parameters(), None) is None
            vars(self).update(_members=members, _is_alone=alone)
        return self._is_alone and torch._C._autograd._top_saved_tensors_default_hooks(False) is None

    def _dependencies(
        self, originals: tuple[Tensor, ...]
    ) -> tuple[list[Tensor], list[int], list[tuple[int, int] | None]]:
        """Return the tensors that the weight depends on, and the edits and marks of :class:`_Read`."""
        tensors, edits = list(originals), []
        for part in self._members or ():
            edits.append(part._edits)
            tensors += [t for t in part._buffers.values() if t is not None and t.numel()]
            if part._attributes is None:
                vars(part)["_attributes"] = [t for t in vars(part).values() if isinstance(t, Tensor)]
            tensors += part._attributes or ()
        return tensors, edits, list(map(self._mark, tensors))

    def _mark(self, t: Tensor) -> tuple[int, int] | None:
        """Return the address and version of a tensor that has them from one read to the next."""
        # What another parametrization returns is a new tensor each time.
        return None if self._is_behind or t.is_inference() else (t.data_ptr(), t._version)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        vars(self).update(_edits=vars(self).get("_edits", 0) + 1, _members=None, _attributes=None)

    def _split(self, W: Tensor) -> Tensor:  # (..., k n, n) -> (..., k, n, n)
        return W if self.gates == 1 else W.unflatten(-2, (self.gates, W.shape[-1]))

    def _start_on_meta(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals without values, of the shapes that a start has; see :meth:`restart`."""
        originals = self.start(self._split(at_least_float32(torch.zeros_like(W, device="cpu"))))
        self.to("meta")
        if isinstance(originals, Tensor):
            return originals.to("meta")
        return tuple(t.to("meta") for t in originals)

    def _assign_behind(self, W: Tensor) -> Tensor:
        name = type(self).__name__
        if not self.assignable_behind:
            raise NotImplementedError(
                f"{name}: expected a weight to be read, got an assignment, which cannot be undone through a "
                f"parametrization before {name}. Assign the original tensors instead, or register {name} "
                "first."
            )
        originals = self.unconstrain(
            self._split(at_least_float32(W.detach())), eps=finfo_eps(W.dtype), project=False
        )
        assert isinstance(originals, Tensor)
        return originals.reshape(W.shape).to(W.dtype)

    def _check_no_gates(self) -> None:
        """Raise where there is no product with one matrix."""
        if self.gates > 1:
            raise ValueError(
                f"{type(self).__name__}.operator: expected a square weight, got one of stacked gates of "
                f"shape {tuple(self._shape or ())}. Multiply by the weight instead."
            )

    def _check_shape(self, W: Tensor) -> None:
        """Raise unless W holds the square blocks that ``gates`` says."""
        name = type(self).__name__
        rows, n = W.shape[-2:]
        if n == 1 and W.ndim > 2:
            # Read as a batch, each number would be constrained by itself.
            raise NotSquareError(
                f"{name}: expected square weights (..., n, n), got shape {tuple(W.shape)}, as a convolution "
                "of kernel size 1 has. Constrain a recurrent or a linear layer."
            )
        if self.gates > 1 and rows != self.gates * n:
            raise NotSquareError(
                f"{name}: expected {self.gates} gates, so a weight (..., {self.gates}*n, n), got shape "
                f"{tuple(W.shape)}. Pass the number of rows over the number of columns as gates."
            )
        if self.gates == 1 and rows != n:
            remedy = (
                f"If its rows are {rows // n} gates, as those of weight_hh of LSTM and GRU are, use "
                "spectral_param.constrain, which knows them, or pass it gates=" + f"{rows // n}."
                if rows % n == 0
                else "Eigenvalues exist for square matrices only; constrain the recurrent weight, not the "
                "input weight."
            )
            raise NotSquareError(
                f"{name}: expected a square weight (..., n, n), got shape {tuple(W.shape)}. {remedy}"
            )

    def _check_same_kind(self, W: Tensor) -> None:
        """Raise before anything changes, where PyTorch would only notice afterwards."""
        name = type(self).__name__
        if torch._C._functorch.is_functorch_wrapped_tensor(W):
            raise ValueError(
                f"{name}: expected the tensors behind the weight, got the weight itself inside a transform "
                f"of torch.func.{_FUNCTIONAL_CALL}"
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
        return {**self.__dict__, "_outputs": [], "_last": None, "_members": None, "_attributes": None}

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


_FUNCTIONAL_CALL = (
    " (torch.func.functional_call takes the tensors behind a constrained weight: name "
    "'parametrizations.weight.original' instead of 'weight'.)"
)


class _ReadAgain(torch.autograd.Function):
    """The weight of originals for which it is known. Backward evaluates the constraint, once it is needed."""

    @staticmethod
    def forward(ctx: Any, constraint: Parametrization, weight: Tensor, *originals: Tensor) -> Tensor:
        ctx.constraint = constraint
        ctx.save_for_backward(weight, *originals)
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        create_graph = torch.is_grad_enabled()
        needed = ctx.needs_input_grad[2:]
        weight, *saved = ctx.saved_tensors
        with torch.enable_grad():
            # Aliases: only what goes through this read belongs into its gradient.
            originals = [
                t.view_as(t) if create_graph else t.detach().requires_grad_(wanted)
                for t, wanted in zip(saved, needed, strict=True)
            ]
            W = ctx.constraint._evaluate(*originals, known=weight)
        wanted = [t for t, is_needed in zip(originals, needed, strict=True) if is_needed]
        found = iter(torch.autograd.grad(W, wanted, G, create_graph=create_graph, allow_unused=True))
        return None, None, *(next(found) if is_needed else None for is_needed in needed)


def _same(X: Tensor, Y: Tensor) -> bool:
    return X.dtype == Y.dtype and X.device == Y.device and torch.equal(X, Y)


def _new_like(like: Tensor, shape: torch.Size) -> Tensor:
    """Return a weight without values, float32 or better."""
    return at_least_float32(like.new_zeros(shape))


def as_tuple(originals: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return originals as a tuple, a single one too.

    Args:
        originals: What ``unconstrain``, ``start`` or ``right_inverse`` returned.
    """
    return (originals,) if isinstance(originals, Tensor) else tuple(originals)


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


# A constraint inside another one: a block, a P, a left or right factor. One of another library, of geotorch
# for instance, has ``forward`` and ``right_inverse``, and if it refuses a matrix, ``sample``.


def nested_originals(part: nn.Module, W: Tensor, *, eps: float, project: bool) -> tuple[Tensor, ...]:
    """Return the originals of a nested constraint for matrices W.

    Args:
        part: The constraint, of this library or another.
        W: Matrices ``(..., n, n)``.
        eps: Relative rounding error that W may have.
        project: Whether W may be outside the set. One of another library that refuses it then starts from
            its ``sample()``.
    """
    found: Any
    if isinstance(part, Parametrization):
        found = part.unconstrain(W, eps=eps, project=project)
    else:
        found = foreign_originals(part, W, project=project)
    return as_tuple(found)


def foreign_originals(part: nn.Module, W: Tensor, *, project: bool) -> Any:
    """Return ``part.right_inverse(W)`` for a parametrization of another library.

    Args:
        part: The parametrization. Without ``right_inverse`` W itself is its original, as PyTorch has it.
        W: The weight.
        project: Whether W may be outside the set; ``part`` then starts from its ``sample()`` if it refuses W.
    """
    inverse: Any = getattr(part, "right_inverse", None)
    if inverse is None:
        return W
    sample: Any = getattr(part, "sample", None)
    if not project or sample is None:
        return inverse(W)
    try:
        return inverse(W)
    except ValueError:
        return inverse(sample().to(W.device, W.dtype).expand_as(W).clone())


def nested_weight(part: nn.Module, originals: tuple[Tensor, ...]) -> Tensor:
    """Return the matrices of a nested constraint.

    Args:
        part: The constraint.
        originals: What :func:`nested_originals` returned.
    """
    W: Tensor = part.constrain(*originals) if isinstance(part, Parametrization) else part(*originals)
    return W


def nested_weight_known(part: nn.Module, W: Tensor, originals: tuple[Tensor, ...]) -> Tensor:
    """Return the matrices of a nested constraint, whose values are known, for their derivatives.

    Args:
        part: The constraint.
        W: The values.
        originals: Its originals.
    """
    if isinstance(part, Parametrization):
        return part.constrain_known(W, *originals)
    return nested_weight(part, originals)


def nested_start(part: nn.Module, like: Tensor) -> tuple[Tensor, ...]:
    """Return the originals with which a nested constraint starts as its paper does.

    Args:
        part: The constraint. One of another library starts from ``like``.
        like: Matrices ``(..., n, n)``.
    """
    if isinstance(part, Parametrization):
        return as_tuple(part.start(like))
    return nested_originals(part, like, eps=finfo_eps(like.dtype), project=True)


def nested_count(part: nn.Module, originals: tuple[Tensor, ...]) -> int:
    """Return the free parameters of a nested constraint, frozen originals left out.

    Args:
        part: The constraint. Of one of another library all entries count.
        originals: Its originals.
    """
    if not any(map(is_trained, originals)):
        return 0
    if isinstance(part, Parametrization):
        return part.free_parameters(*originals)
    return sum(real_entries(t) for t in originals if is_trained(t))


def nested_parts(
    part: nn.Module, originals: tuple[Tensor, ...]
) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the parametrizations that a nested constraint is made of.

    Args:
        part: The constraint.
        originals: Its originals.
    """
    return part.parts(*originals) if isinstance(part, Parametrization) else [(part, originals)]


def nested_from_matrix(part: nn.Module, X: Tensor) -> tuple[Tensor, ...]:
    """Return the originals that a matrix stands for.

    Args:
        part: The constraint.
        X: Matrices ``(..., n, n)``.
    """
    return part.from_matrix(X) if isinstance(part, Parametrization) else (X,)


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
