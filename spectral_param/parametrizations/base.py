"""The base class of all constraints, and helpers for constraints nested in others."""

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
    """The last evaluation of a constraint: all that it depended on, and the weight."""

    edits: list[int]  # How often attributes of this constraint and of nested ones have been set.
    marks: list[tuple[int, int] | None]  # Addresses and versions of the originals and buffers.
    values: list[Tensor]  # Copies of the originals and buffers.
    weight: Tensor  # A copy of the weight.


class Parametrization(nn.Module, abc.ABC):
    """Abstract constraint: ``forward(right_inverse(W)) == W`` for every W in its set.

    The weight is computed from unconstrained tensors, the *originals*, which the optimizer trains. Use one
    instance for each weight, with :func:`spectral_param.constrain` or
    :func:`torch.nn.utils.parametrize.register_parametrization`. Registration projects the weight onto the
    set. A weight assigned later must be in the set, and have the same shape, dtype and device.

    A subclass defines :meth:`constrain`, :meth:`unconstrain`, :meth:`start` and :meth:`free_parameters`.
    These get square matrices ``(..., n, n)`` in float32 or better, with autocast off; the gates of an LSTM
    or GRU are a batch dimension. A subclass does not override ``forward`` and ``right_inverse``.

    Attributes:
        gates: Number k of square blocks in a weight ``(..., k·n, n)``, each constrained separately. The
            default is 1, for square weights. :func:`spectral_param.constrain` sets it from the module.
    """

    _like: Tensor
    _like_real: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gates = 1
        # The weight's shape, known after registration. Its dtype and device are those of an empty buffer,
        # because Module.to converts buffers as it converts the weight. The second buffer has the dtype of
        # the real originals of a complex weight.
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
        self._attributes: list[Tensor] | None = None  # The tensors among the attributes of this constraint.
        self._is_alone = True

    # A subclass defines -------------------------------------------------------------------------------

    @abc.abstractmethod
    def constrain(self, *originals: Tensor) -> Tensor:
        """Return the constrained matrices ``(..., n, n)`` for originals shaped as by :meth:`unconstrain`."""

    @abc.abstractmethod
    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor | tuple[Tensor, ...]:
        """Return originals that :meth:`constrain` maps to W. They share no memory with W.

        Args:
            W: Matrices ``(..., n, n)``.
            eps: Relative rounding error of the dtype in which the user gave W.
            project: Whether to replace a W outside the set by the nearest matrix in the set, instead of
                raising :class:`~spectral_param.errors.InManifoldError`.
        """

    @abc.abstractmethod
    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return new originals, initialized as in the constraint's paper.

        Args:
            like: Matrices ``(..., n, n)`` of the shape, dtype and device of the weight.
        """

    @abc.abstractmethod
    def free_parameters(self, *originals: Tensor) -> int:
        """Return the number of independent real parameters of the weight, without those of frozen originals.

        Called only if at least one original is trained.
        """

    def from_matrix(self, X: Tensor) -> tuple[Tensor, ...]:
        """Return the originals that a matrix stands for, if the constraint acts behind another one.

        By default the matrix is the only original. A constraint with more originals takes them from the
        entries of the matrix. So every constraint works behind every parametrization.

        Args:
            X: Matrices ``(..., n, n)``.
        """
        return (X,)

    def constrain_known(self, W: Tensor, *originals: Tensor) -> Tensor:
        """Return ``constrain(*originals)``, with its derivatives, when its value W is known.

        A subclass overrides this method if the derivatives can be computed from W with less work.

        Args:
            W: Matrices ``(..., n, n)``.
            originals: The tensors that W was computed from.
        """
        return self.constrain(*originals)

    #: Whether a weight can be assigned if the constraint acts behind another one.
    assignable_behind = False

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return pairs of a constraint and the originals that it reads: this one, and nested ones."""
        return [(self, originals)]

    def fast_operator(self, *originals: Tensor) -> Callable[[Tensor], Tensor] | None:
        """Return a function h -> h Wᵀ on rows ``(batch, n)``, or None.

        None, the default, means that no function is faster than a product with W. A recurrence uses the
        function, because W acts in every time step.
        """
        return None

    # PyTorch and users call ---------------------------------------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weight, known after registration."""
        return self._like.dtype

    def forward(self, *originals: Tensor) -> Tensor:
        """Return the constrained weight, in the dtype and on the device of the originals.

        The constraint is evaluated if the originals have changed since the last read. Otherwise the weight
        is known, and the constraint is evaluated again only for a backward pass.

        Args:
            originals: The tensors that the optimizer trains. Behind another parametrization, the one weight
                X that it returns.

        Raises:
            NotAMatrixError: If X has fewer than two dimensions or no entries.
            NotSquareError: If X is not square.
            UnsupportedDtypeError: If X is not floating point or complex.
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
        """Return originals for the weight W.

        Args:
            W: Weight of shape ``(..., n, n)``, or ``(..., k·n, n)`` with ``gates`` = k.

        Raises:
            NotAMatrixError: If W has fewer than two dimensions or no entries.
            NotSquareError: If W is not square, or not a stack of ``gates`` square blocks.
            UnsupportedDtypeError: If W is not floating point or complex.
            InManifoldError: If W is outside the set; at registration, where W is projected, only if
                :class:`spectral_param.ScaledCayley` cannot project it for the given ``negative_ones``.
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
        """Return whether X is in the set, up to rounding. geotorch has the same method.

        For :class:`spectral_param.FourierUnitary`, and :class:`spectral_param.Givens` with few layers, the
        result is False also if the originals of X cannot be found.

        Args:
            X: Weight of shape ``(..., n, n)``, or ``(..., k·n, n)`` with ``gates`` = k.
            eps: Relative rounding error that X may have; by default that of its dtype.
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
        """Return a weight initialized as in the constraint's paper. geotorch has the same method.

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
        """Overwrite the originals with the initialization of the constraint's paper.

        For a layer's ``reset_parameters``, for instance after ``to_empty`` of a layer built on the meta
        device.

        Args:
            originals: The tensors that the optimizer trains. Their values are replaced.

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
        """Return :meth:`from_matrix` of the weight that the parametrization before this one returns."""
        return self.from_matrix(self._split(at_least_float32(X)))

    # Implementation -----------------------------------------------------------------------------------

    @full_precision
    def _evaluate(self, *originals: Tensor, known: Tensor | None = None) -> Tensor:
        exact = tuple(map(at_least_float32, originals))
        if self._is_behind and len(exact) == 1:
            exact = self.read_matrix(exact[0])
        if known is not None and exact[0] is originals[0]:  # Not in half precision, where W is rounded.
            W = self.constrain_known(self._split(known), *exact)
        else:
            W = self.constrain(*exact)
        if self.gates > 1:
            W = W.flatten(-3, -2)
        dtype = originals[0].dtype
        if W.is_complex() and not dtype.is_complex:
            # All originals are real, and their dtype does not determine the weight's: Module.double converts
            # real tensors, but not a complex weight.
            dtype = self._like.dtype if self._like.is_complex() else W.dtype
        return W.to(dtype)

    def _keep(self, originals: tuple[Tensor, ...], W: Tensor) -> None:
        """Remember the weight and its dependencies, read after the evaluation, which may change a latch."""
        tensors, edits, marks = self._dependencies(originals)
        values = [t.detach().clone() for t in tensors]
        vars(self)["_last"] = _Read(edits, marks, values, W.detach().clone())

    def _known(self, originals: tuple[Tensor, ...]) -> Tensor | None:
        """Return the remembered weight, with a new graph, if nothing that it depends on has changed."""
        last = self._last
        # If a version or address differs, evaluate again, which is always right. If they are equal, compare
        # the values, too: writes through `.data` leave the version alone.
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

        It may not if there are parameters beside the originals; if a module of another library is nested,
        whose dependencies are not known; or if hooks save the tensors of the graph, as in
        ``torch.utils.checkpoint``, which needs the same graph in its second forward pass.
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
        """Return the address and version of a tensor, if they can be compared between reads."""
        # The parametrization before this one returns a new tensor at each read.
        return None if self._is_behind or t.is_inference() else (t.data_ptr(), t._version)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        vars(self).update(_edits=vars(self).get("_edits", 0) + 1, _members=None, _attributes=None)

    def _split(self, W: Tensor) -> Tensor:  # (..., k n, n) -> (..., k, n, n)
        return W if self.gates == 1 else W.unflatten(-2, (self.gates, W.shape[-1]))

    def _start_on_meta(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals on the meta device; :meth:`restart` gives them values later."""
        originals = self.start(self._split(at_least_float32(torch.zeros_like(W, device="cpu"))))
        self.to("meta")
        if isinstance(originals, Tensor):
            return originals.to("meta")
        return tuple(t.to("meta") for t in originals)

    def _assign_behind(self, W: Tensor) -> Tensor:
        name = type(self).__name__
        if not self.assignable_behind:
            raise NotImplementedError(
                f"{name}: expected no assignment behind another parametrization, got one: {name} cannot "
                f"compute the other one's originals. Assign the original tensors instead, or register {name} "
                "first."
            )
        originals = self.unconstrain(
            self._split(at_least_float32(W.detach())), eps=finfo_eps(W.dtype), project=False
        )
        assert isinstance(originals, Tensor)
        return originals.reshape(W.shape).to(W.dtype)

    def _check_no_gates(self) -> None:
        """Raise if the weight is a stack of gates: there is no product with one square matrix."""
        if self.gates > 1:
            raise ValueError(
                f"{type(self).__name__}.operator: expected a square weight, got one of stacked gates of "
                f"shape {tuple(self._shape or ())}. Multiply by the weight instead."
            )

    def _check_shape(self, W: Tensor) -> None:
        """Raise unless W is a stack of ``gates`` square blocks."""
        name = type(self).__name__
        rows, n = W.shape[-2:]
        if n == 1 and W.ndim > 2:
            # As a batch of 1 x 1 matrices each number would be constrained separately.
            raise NotSquareError(
                f"{name}: expected square weights (..., n, n), got shape {tuple(W.shape)}, as a convolution "
                "of kernel size 1 has. Constrain a recurrent or a linear layer."
            )
        if self.gates > 1 and rows != self.gates * n:
            raise NotSquareError(
                f"{name}: expected {self.gates} gates, so a weight (..., {self.gates}*n, n), got shape "
                f"{tuple(W.shape)}. Pass gates = number of rows / number of columns."
            )
        if self.gates == 1 and rows != n:
            remedy = (
                f"If the weight is a stack of {rows // n} gates, as weight_hh of LSTM and GRU is, use "
                f"spectral_param.constrain, which knows the gates, or pass gates={rows // n} to it."
                if rows % n == 0
                else "Only square matrices have eigenvalues; constrain the recurrent weight, not the input "
                "weight."
            )
            raise NotSquareError(
                f"{name}: expected a square weight (..., n, n), got shape {tuple(W.shape)}. {remedy}"
            )

    def _check_same_kind(self, W: Tensor) -> None:
        """Raise before anything changes; PyTorch would notice these errors only afterwards."""
        name = type(self).__name__
        if torch._C._functorch.is_functorch_wrapped_tensor(W):
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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_outputs": [], "_last": None, "_members": None, "_attributes": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Parametrization:
        _give_classes_of_their_own(memo)
        # torch.nn.RNN keeps the weight that it read last in a list, and deepcopy refuses a tensor with a
        # graph. Parametrizations are copied before that list, so the memo can be given a copy of such a
        # weight's values here. The next forward pass replaces the copy.
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
    " (torch.func.functional_call takes the originals of a constrained weight: pass "
    "'parametrizations.weight.original' instead of 'weight'.)"
)


class _ReadAgain(torch.autograd.Function):
    """The known weight of these originals. Only backward evaluates the constraint."""

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
            # Aliases, so that autograd.grad finds only the paths through this read.
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
    """Return zeros of this shape, float32 or better."""
    return at_least_float32(like.new_zeros(shape))


def as_tuple(originals: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the originals from ``unconstrain``, ``start`` or ``right_inverse`` as a tuple."""
    return (originals,) if isinstance(originals, Tensor) else tuple(originals)


def at_least_float32(X: Tensor) -> Tensor:
    """Return X in a precision that LAPACK has: half precision becomes single."""
    if X.dtype in (torch.bfloat16, torch.float16):
        return X.float()
    return X.to(torch.complex64) if X.dtype == torch.complex32 else X


def as_real(X: Tensor) -> Tensor:
    """Return the real part of an original that is real, but that Module.to(complex) has made complex."""
    return X.real if X.is_complex() else X


def on_rows(product: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """Return ``product``, a function h -> h Wᵀ for rows of W's dtype, as a function of rows of any dtype.

    Rows in half precision are multiplied in float32, and the result is rounded to half precision. Real rows
    become complex for a complex W.
    """

    def apply(h: Tensor) -> Tensor:
        exact = at_least_float32(h)
        result = product(exact.to(torch.promote_types(exact.dtype, dtype)))
        return result if exact is h or result.is_complex() != h.is_complex() else result.to(h.dtype)

    return apply


def real_entries(X: Tensor) -> int:
    """Return the number of real numbers in a tensor: a complex entry counts as two."""
    return X.numel() * (2 if X.is_complex() else 1)


def is_trained(X: Tensor) -> bool:
    """Return whether an original counts for ``free_parameters``: all do, except frozen parameters."""
    return X.requires_grad or not isinstance(X, nn.Parameter)


# Constraints nested in another one: a block, the P of a Schur form, a left or right factor. ``part`` is the
# nested constraint. A constraint of another library, such as geotorch, has ``forward`` and ``right_inverse``,
# and ``sample`` if it refuses matrices outside its set.


def nested_originals(part: nn.Module, W: Tensor, *, eps: float, project: bool) -> tuple[Tensor, ...]:
    """Return the originals for matrices W ``(..., n, n)``; see :meth:`Parametrization.unconstrain`."""
    found: Any
    if isinstance(part, Parametrization):
        found = part.unconstrain(W, eps=eps, project=project)
    else:
        found = foreign_originals(part, W, project=project)
    return as_tuple(found)


def foreign_originals(part: nn.Module, W: Tensor, *, project: bool) -> Any:
    """Return ``part.right_inverse(W)`` for a parametrization of another library.

    Without ``right_inverse`` W itself is the original, as in PyTorch. If ``project`` is true and ``part``
    refuses W, its ``sample()`` takes the place of W.
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
    """Return the constrained matrices."""
    W: Tensor = part.constrain(*originals) if isinstance(part, Parametrization) else part(*originals)
    return W


def nested_weight_known(part: nn.Module, W: Tensor, originals: tuple[Tensor, ...]) -> Tensor:
    """Return the constrained matrices if W are their values; see :meth:`Parametrization.constrain_known`."""
    if isinstance(part, Parametrization):
        return part.constrain_known(W, *originals)
    return nested_weight(part, originals)


def nested_start(part: nn.Module, like: Tensor) -> tuple[Tensor, ...]:
    """Return the originals of the paper's initialization; for another library's constraint, of ``like``."""
    if isinstance(part, Parametrization):
        return as_tuple(part.start(like))
    return nested_originals(part, like, eps=finfo_eps(like.dtype), project=True)


def nested_count(part: nn.Module, originals: tuple[Tensor, ...]) -> int:
    """Return the number of free parameters; for another library's constraint, of all trained entries."""
    if not any(map(is_trained, originals)):
        return 0
    if isinstance(part, Parametrization):
        return part.free_parameters(*originals)
    return sum(real_entries(t) for t in originals if is_trained(t))


def nested_parts(
    part: nn.Module, originals: tuple[Tensor, ...]
) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return pairs of a constraint and its originals; see :meth:`Parametrization.parts`."""
    return part.parts(*originals) if isinstance(part, Parametrization) else [(part, originals)]


def nested_from_matrix(part: nn.Module, X: Tensor) -> tuple[Tensor, ...]:
    """Return the originals that a matrix stands for; see :meth:`Parametrization.from_matrix`."""
    return part.from_matrix(X) if isinstance(part, Parametrization) else (X,)


def _give_classes_of_their_own(memo: dict[int, Any]) -> None:
    """Give the parametrized modules that deepcopy is creating a class of their own.

    PyTorch makes a class for each parametrized module, with a property that computes the weight, and deepcopy
    shares this class between module and copy. Removing a parametrization from the copy would then remove it
    from the module, too, whose weight in ``torch.nn.RNN`` would silently stay constant; and
    ``parametrize.cached`` would give the copy the module's weight. ``memo`` is deepcopy's. A module in it
    that has no attributes yet is being created.
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
