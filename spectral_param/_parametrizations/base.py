"""The contract of all constraints: what a subclass defines, and what PyTorch and users call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from spectral_param._context import HALF, full_precision, has_no_values, is_wrapped, plain, promoted
from spectral_param._map import Map, recorded
from spectral_param._parametrizations.copies import deep_copy
from spectral_param._parametrizations.degenerate import warn_degenerate
from spectral_param._parametrizations.layout import PLAIN, Layout, layout_of
from spectral_param._parametrizations.memory import Memory, frozen
from spectral_param._parametrizations.swapped import check_not_swapped
from spectral_param.errors import InManifoldError, UnsupportedDtypeError
from spectral_param.functional._checks import check_choices, check_finite, check_matrix


class Parametrization(nn.Module):
    """Base class of constraints: ``forward(right_inverse(W)) == W`` for every W in its set.

    The weight is computed from unconstrained tensors, the *originals*, which the optimizer trains. Use one
    instance for each weight, with :func:`spectral_param.constrain` or
    :func:`torch.nn.utils.parametrize.register_parametrization`. Registration projects the weight onto the
    set. A weight assigned later must be in the set, and have the same shape, dtype and device.

    A subclass defines a map and its set. The map is :meth:`reference`, with :meth:`invert`, :meth:`start` and
    :meth:`free_parameters`; the set is :meth:`outside` and :meth:`near`, if it is not all matrices. These get
    matrices ``(..., m, n)`` in float32 or better, with autocast off; the gates of an LSTM or GRU are a batch
    dimension. A subclass says in :attr:`shapes` which matrices it takes, and does not override ``forward``
    and ``right_inverse``.

    Attributes:
        gates: Number k of blocks in a weight ``(..., k·m, n)``, each constrained separately. The default is
            1. :func:`spectral_param.constrain` sets it from the module.
        kernel_dims: Number of spatial dimensions of a kernel that is a matrix, as that of a convolution of
            size 1. The default is 0. :func:`spectral_param.constrain` sets it from the module.
        strides: The stride of each axis of a convolution, without factors shared with its dilation. Empty by
            default. :func:`spectral_param.constrain` sets it from the module.
    """

    #: The matrices that the constraint takes. ``"square"``, the default: ``(..., n, n)``. ``"tall"``:
    #: ``(..., m, n)`` with m ≥ n; wide weights are transposed before and after. ``"any"``: weights of any
    #: shape, as they are.
    shapes: Literal["square", "tall", "any"] = "square"

    #: Whether the weight depends on ``training``, so that a switch to evaluation and back is a change.
    depends_on_training: bool = False

    #: Whether the weight may be the kernel of any convolution, or only one that acts as a matrix (default).
    takes_all_kernels = False

    _like: Tensor
    _like_real: Tensor
    #: The attribute that has the bound; see :class:`spectral_param._parametrizations.bound.Bounded`.
    _bound = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a new reference beside an inherited evaluation, which would give another weight."""
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
        """Construct a constraint without a weight.

        Args:
            choices: Arguments of the subclass's constructor that become attributes: the value, and the
                ``Literal`` that has the values allowed.

        Raises:
            ValueError: If a value is not allowed.
        """
        super().__init__()
        vars(self).update(check_choices(**choices))
        self.gates = 1
        self.kernel_dims = 0
        self.strides: tuple[int, ...] = ()
        # The weight's shape, known after registration. Its dtype and device are those of an empty buffer,
        # because Module.to converts buffers as it converts the weight. The second buffer has the dtype of
        # the real originals of a complex weight.
        self._shape: torch.Size | None = None
        self._layout = PLAIN
        for name in ("_like", "_like_real"):
            empty = torch.empty(0, dtype=torch.float32, device="cpu")
            self.register_buffer(name, empty, persistent=False)
        self._from_paper = False
        self._is_after = False
        self._warned = False  # Of a matrix without a derivative.
        self._use = ""  # The weight that the constraint belongs to, for a message.
        self._memory = Memory()

    # A subclass defines -------------------------------------------------------------------------------

    def reference(self, *originals: Tensor) -> Tensor:
        """Return the constrained matrices ``(..., m, n)`` by torch's operations.

        For graphs, transforms of torch.func and derivatives of higher order. No value may be looked at.
        """
        raise NotImplementedError

    def evaluate(self, *values: Tensor) -> Map:
        """Return the same for plain tensors without a graph, whose values may be looked at.

        It is called once after each change of the originals or buffers. It may change buffers, as a latch
        does; then the next read calls it again. By default the gradient is autograd's, of :meth:`reference`.

        Returns:
            A map that has captured all that its backward pass needs; see :class:`spectral_param.Map`.
        """
        return recorded(frozen(self).reference, *values)

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals that :meth:`reference` maps to W. They share no memory with W.

        Args:
            W: Members of the set ``(..., m, n)``, up to :meth:`outside`'s resolution.
        """
        raise NotImplementedError

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return how far each matrix is outside the set, and what rounding can do to this number.

        By default every matrix is in the set.

        Args:
            W: Finite matrices ``(..., m, n)``.
            eps: Relative rounding error of the entries of W.

        Returns:
            The distance ``(...)``, in a unit that the subclass chooses, and its resolution: W counts as a
            member if the distance is at most that.
        """
        return W.real.new_zeros(W.shape[:-2]), 0.0

    def near(self, W: Tensor) -> Tensor:
        """Return members of the set near finite matrices ``(..., m, n)`` outside of it."""
        raise NotImplementedError(f"{type(self).__name__}.near: expected beside outside, got none.")

    def check_matrices(self, W: Tensor) -> None:
        """Raise for matrices of a size or dtype that are not taken. By default all are."""

    def start(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return new originals, initialized as in the constraint's paper.

        Args:
            like: Matrices ``(..., m, n)`` of the shape, dtype and device of the weight.
        """
        raise NotImplementedError

    def _has_no_inverse(self, what: str, remedy: str) -> InManifoldError:
        """Return the error of :meth:`outside`, where the originals of a weight cannot be computed."""
        return InManifoldError(
            f"{type(self).__name__}: expected init='paper' or the weight that was read last, got one whose "
            f"{what} cannot be computed. Start with spectral_param.constrain(module, name, constraint, "
            f"init='paper'), copy trained originals by load_state_dict, or take {remedy}."
        )

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the number of independent real parameters of the weight, without those of frozen originals.

        Called only if at least one original is trained.
        """
        raise NotImplementedError

    #: Whether the constraint can act after another parametrization, on the weight that it returns. By default
    #: it can. One whose originals are not one matrix of the weight's shape cannot.
    acts_after = True

    #: Whether a weight can be assigned if the constraint acts after another one.
    assignable_after = False

    def check_after(self, links: list[nn.Module]) -> None:
        """Raise if this constraint would undo one of ``links``, which act before it in a chain.

        For :func:`spectral_param.constrain`. By default nothing is raised.
        """

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return pairs of a constraint and the originals that it reads: this one, and nested ones."""
        return [(self, originals)]

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
            originals: The tensors that the optimizer trains. After another parametrization, the one weight X
                that it returns.

        Raises:
            NotAMatrixError: If X has fewer than two dimensions or no entries.
            NotSquareError: If X is not square, and the constraint takes square weights only.
            UnsupportedDtypeError: If X is not floating point or complex.
        """
        if self._shape is None and len(originals) == 1:
            if not self._is_after:
                self._check_acts_after()
                self._is_after = True
            check_matrix(originals[0], type(self).__name__)
            layout = self._layout_of(originals[0])
            if layout != self._layout:
                self._layout = layout
        context = plain(*originals)
        if context is not None:
            return self._memory.read(self, originals, context)
        return self._evaluate(*originals)

    @full_precision
    def right_inverse(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals for the weight W.

        Args:
            W: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.

        Raises:
            NotAMatrixError: If W has fewer than two dimensions or no entries.
            NotSquareError: If the constraint takes square weights only, and W is neither square nor a stack
                of ``gates`` square blocks.
            UnsupportedDtypeError: If W is not floating point or complex.
            InManifoldError: If W is outside the set; at registration, where W is projected, only if
                :class:`spectral_param.ScaledCayley` cannot project it for the given ``negative_ones``.
            NotImplementedError: If the constraint acts after another parametrization and its originals
                cannot be written into one matrix.
            ValueError: If the constraint is registered on a second weight; if the rows of W are no multiple
                of ``gates``; if W differs from the weight in shape, dtype or device; if it comes from
                ``torch.func.functional_call``; at registration, if it is a lazily conjugated or negated view.
        """
        name = type(self).__name__
        check_matrix(W, name)
        check_not_swapped(name)
        if isinstance(W, nn.Parameter):  # Registration. What is assigned to a weight is no Parameter.
            self._check_unused()
            self._shape = None
        self._check_same_kind(W)
        layout = self._layout_of(W)
        if self._is_after and not isinstance(W, nn.Parameter):
            return self._assign_after(W)
        is_first = self._shape is None
        if is_first:
            self._layout = layout
            self._become_like(W)
        if has_no_values(W):
            originals = self._start_without_values(W)
        elif self._from_paper:
            originals = self._started(self._split(W.detach()))
        else:
            originals = self._adopted(W.detach(), is_first)
        self._shape, self._from_paper, self._is_after, self._warned = W.shape, False, False, False
        self._use = self._use or f"a weight of shape {tuple(W.shape)}"
        if isinstance(originals, Tensor):
            return originals.to(W.dtype).contiguous()
        like = (self._like_real.dtype, self._like.dtype)
        return tuple(t.to(like[t.is_complex()]).contiguous() for t in originals)

    @torch.no_grad()
    @full_precision
    def distance(self, W: Tensor) -> Tensor:
        """Return how far a weight is outside the set; 0 for a member.

        The unit is that of the constraint, see its page: for orthonormal columns ‖WᴴW - I‖, for a bound the
        excess. A distance within rounding counts as 0. Nothing that the weight depends on is changed.

        Args:
            W: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.

        Returns:
            One number for each matrix, of shape ``(...)`` or ``(..., k)``.

        Raises:
            InManifoldError: If the originals of a weight cannot be computed, as for
                :class:`spectral_param.FourierUnitary`, and W is not the weight that was read last.
            ValueError: If the constraint does not take weights of this kind, or W is not finite.

        Example:
            >>> spectral_param.SpectralNorm(1.0).distance(3 * torch.eye(4))
            tensor(2.)
        """
        return self._distance(W)

    def _distance(self, W: Tensor, eps: float | None = None) -> Tensor:
        trial, X = self._trial(W)
        eps = torch.finfo(W.dtype).eps if eps is None else eps
        try:
            distance, resolution = trial.outside(X, eps)
        except InManifoldError:
            if self._last_originals(W, eps) is None:
                raise
            return X.real.new_zeros(X.shape[:-2])
        return torch.where(distance <= resolution, 0, distance)

    @torch.no_grad()
    @full_precision
    def project(self, W: Tensor) -> Tensor:
        """Return a weight of the set near W, for instance of an average of weights; a member keeps its bits.

        It is the nearest one where the page of the constraint says so. Nothing that the weight depends on is
        changed.

        Args:
            W: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.

        Raises:
            InManifoldError: As ``distance``.
            ValueError: As ``distance``.

        Example:
            >>> spectral_param.SpectralNorm(1.0).project(3 * torch.eye(2))
            tensor([[1., 0.],
                    [0., 1.]])
        """
        trial, X = self._trial(W)
        eps = torch.finfo(W.dtype).eps
        try:
            member = trial.member(X, eps, is_first=True)
        except InManifoldError:
            if self._last_originals(W, eps) is None:
                raise
            return W.detach().clone()
        return trial._layout.join(member).to(W.dtype, copy=True).contiguous()

    def in_manifold(self, X: Tensor, eps: float | None = None) -> bool:
        """Return whether X is in the set, up to rounding. geotorch has the same method.

        Args:
            X: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.
            eps: Relative rounding error that X may have; by default that of its dtype.
        """
        try:
            with torch.no_grad():
                inside = full_precision(self._distance)(X, eps) == 0
        except ValueError:
            return False
        return bool(inside.all()) or self._last_originals(X, torch.finfo(X.dtype).eps) is not None

    def _trial(self, W: Tensor) -> tuple[Parametrization, Tensor]:
        """Return a copy that nobody else has, and the matrices of a weight; raise if it is not taken."""
        check_matrix(W, type(self).__name__)
        trial = copy.deepcopy(self)
        trial._layout = trial._layout_of(W)
        if self._shape is None:
            trial._become_like(W)
        X = trial._split(at_least_float32(W.detach()))
        trial._check(X)
        return trial, X

    def _check(self, X: Tensor) -> None:
        """Raise for matrices that the constraint does not take."""
        check_finite(X, type(self).__name__)
        self.check_matrices(X)

    @torch.no_grad()
    def sample(self) -> Tensor:
        """Return a weight initialized as in the constraint's paper. geotorch has the same method.

        Raises:
            ValueError: Before registration, when the shape is not known yet.
        """
        trial = copy.deepcopy(self)
        return trial(*trial._start_again("sample"))

    @torch.no_grad()
    def restart(self, *originals: Tensor) -> None:
        """Overwrite the originals with the initialization of the constraint's paper.

        :func:`spectral_param.constrain` lets a layer's ``reset_parameters`` call it, for instance after
        ``to_empty`` of a layer built on the meta device.

        Args:
            originals: The tensors that the optimizer trains. Their values are replaced.

        Raises:
            ValueError: Before registration, when the shape is not known yet.
        """
        for original, value in zip(originals, self._start_again("restart"), strict=True):
            original.copy_(value)

    def _start_again(self, method: str) -> tuple[Tensor, ...]:
        """Return the originals of the paper's start, for a method that needs a registered constraint."""
        if self._shape is None:
            raise ValueError(
                f"{type(self).__name__}.{method}: expected a registered constraint, whose weight has a "
                "shape, got one that is not registered. Register it first."
            )
        if has_no_values(self._like):
            return as_tuple(self._start_without_values(self._like.new_empty(self._shape)))
        return as_tuple(self._started(self._split(self._like.new_zeros(self._shape))))

    # Implementation -----------------------------------------------------------------------------------

    @full_precision
    def _evaluate(self, *originals: Tensor) -> Tensor:
        """Return the weight of originals as PyTorch holds them."""
        return self._as_weight(self.reference(*self._exact(originals)), originals[0].dtype).contiguous()

    def _exact(self, originals: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the originals as :meth:`reference` gets them."""
        if self._is_after and len(originals) == 1:
            return (self._split(at_least_float32(originals[0])),)
        for t in originals:
            if t.dtype in HALF:
                return tuple(map(at_least_float32, originals))
        return originals

    def _as_weight(self, W: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the matrices as PyTorch holds them, for a first original of this dtype."""
        if self._layout != PLAIN:
            W = self._layout.join(W)
        if W.is_complex() and not dtype.is_complex:
            # All originals are real, and their dtype does not determine the weight's: Module.double converts
            # real tensors, but not a complex weight.
            dtype = self._like.dtype if self._like.is_complex() else W.dtype
        return W if W.dtype == dtype else W.to(dtype)

    def _adopted(self, W: Tensor, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return originals of a weight: of its projection at registration, else of a weight of the set.

        The weight of the last read is always in the set. If W is refused, nothing has changed.

        Raises:
            InManifoldError: If W is outside the set, or has no originals.
        """
        X, eps = self._split(at_least_float32(W)), torch.finfo(W.dtype).eps
        before = _Contents(self)
        parts = [part for part in self.modules() if isinstance(part, Parametrization)]
        try:
            self._check(X)
            for part in parts:
                part._renew(is_first)
                vars(part)["_warned"] = True  # The first read warns, not what follows.
            # The rounding errors of half precision are for assignment. At registration they would hide
            # what is outside.
            originals = self.adopt(X, torch.finfo(X.dtype).eps if is_first else eps, is_first)
        except Exception as error:
            before.restore()
            if not isinstance(error, InManifoldError):
                raise
            known = None if is_first or self._is_after else self._last_originals(W, eps)
            if known is None:
                raise
            return known if len(known) > 1 else known[0]
        for part in parts:
            vars(part)["_warned"] = False
        return originals

    def _renew(self, is_first: bool) -> None:
        """Forget what is known of the weight before, at registration or assignment."""

    def adopt(self, W: Tensor, eps: float, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the originals of matrices, of a projection at registration; for constraints that nest."""
        return self.invert(self.member(W, eps, is_first))

    def member(self, W: Tensor, eps: float, is_first: bool) -> Tensor:
        """Return W with members in the place of matrices outside; where it is not the first weight, raise."""
        return self._with_members(W, *self.outside(W, eps), self.near, is_first)

    def _with_members(
        self,
        W: Tensor,
        distance: Tensor,
        resolution: Tensor | float,
        near: Callable[[Tensor], Tensor],
        is_first: bool,
    ) -> Tensor:
        """Return :meth:`member` of matrices at these distances, for which ``near`` gives members."""
        is_outside = ~(distance <= resolution)
        if not bool(is_outside.any()):
            return W
        has_warned, vars(self)["_warned"] = self._warned, True  # A projection has no derivative.
        members = torch.where(is_outside[..., None, None], near(W), W)
        vars(self)["_warned"] = has_warned
        stays = is_outside & (members == W).flatten(-2).all(dim=-1)
        if not (is_first or torch.equal(stays, is_outside)):
            raise self._refused(torch.where(is_outside, distance, 0))
        if not has_warned and bool(stays.any()):
            warn_degenerate(
                f"{type(self).__name__}: expected {self._set_name()}, got one that nothing scales or shifts "
                "into the set, as a nilpotent matrix. It stays as it is."
            )
        return members

    def _refused(self, distance: Tensor, expected: str = "") -> InManifoldError:
        """Return the error of an assignment of matrices at these distances from the set."""
        return InManifoldError(
            f"{type(self).__name__}: expected {expected or self._set_name()}, got one outside by "
            f"{readable(distance)}. Assign spectral_param.constraints(model)[name].project(W) instead, the "
            "projection."
        )

    def _set_name(self) -> str:
        """Return what a weight of the set is, for a message."""
        return "a weight of the set"

    def _last_originals(self, W: Tensor, eps: float) -> tuple[Tensor, ...] | None:
        return None if W.ndim < 2 else self._memory.originals_of(self, W, atol=10 * W.shape[-1] * eps)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == self._bound:
            value = self._as_bound(value)
        # numpy's numbers decide about dtypes where Python's do not.
        super().__setattr__(name, value.item() if isinstance(value, np.generic) else value)
        if name != "training":
            vars(self).update(_edits=vars(self).get("_edits", 0) + 1, _by_training=None)

    def _as_bound(self, value: Any) -> Any:
        """Return a value of the attribute ``_bound`` as it is kept."""
        return value

    def _eps_of(self, X: Tensor) -> float:
        """Return the rounding error of the weight, which may be in half precision where X is not."""
        return max(torch.finfo(X.dtype).eps, torch.finfo(self.dtype).eps)

    def _started(self, like: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return :meth:`start` for matrices in the dtype of a weight."""
        like = at_least_float32(like)
        self.check_matrices(like)
        return self.start(like)

    def _split(self, W: Tensor) -> Tensor:
        """Return the matrices of a weight of the registered shape."""
        return W if self._layout == PLAIN else self._layout.split(W)

    def _start_without_values(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals as W, on the meta device or fake; :meth:`restart` gives them values later."""
        with unset_fake_temporarily(), torch.device("cpu"):
            zeros = torch.zeros(W.shape, dtype=W.dtype, device="cpu")
            originals = self._started(self._split(zeros))

        def empty(t: Tensor) -> Tensor:
            return W.detach().new_empty(t.shape, dtype=t.dtype)

        self._apply(empty)  # The buffers.
        return empty(originals) if isinstance(originals, Tensor) else tuple(map(empty, originals))

    def _become_like(self, W: Tensor) -> None:
        """Take the dtype and the device of a weight, and give them to nested constraints."""
        W = W.detach()
        for part in self.modules():
            if isinstance(part, Parametrization):
                # Not setattr: the weight does not depend on these buffers.
                part._buffers.update(_like=W.new_empty(0), _like_real=W.real.new_empty(0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Parametrization:
        if self._like.is_meta:
            try:
                fn(self._like)
            except NotImplementedError:
                # Module.to moves no tensor from the meta device, not even one without entries. A loader that
                # has put originals with values in the place of those on the meta device may call it.
                self._become_like(torch.empty_like(self._like, device="cpu"))
        if self._like.is_complex():
            self._check_stays_complex(fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _check_stays_complex(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Raise if a conversion drops imaginary parts. PyTorch asks here before it converts the originals."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own warning of the same.
            dtype = fn(self._like).dtype
        if not dtype.is_complex:
            raise UnsupportedDtypeError(
                f"{type(self).__name__}: expected a conversion that keeps the complex weight complex, got "
                f"one to {dtype}, which drops imaginary parts. Convert to torch.complex64 or "
                "torch.complex128, or with .float() or .double(), which leave complex weights as they are. "
                "For a real weight remove the constraint, convert, and constrain again."
            )

    def _assign_after(self, W: Tensor) -> Tensor:
        name = type(self).__name__
        if not self.assignable_after:
            raise NotImplementedError(
                f"{name}: expected no assignment after another parametrization, got one: {name} cannot "
                f"compute the other one's originals. Assign the original tensors instead, or register {name} "
                "first."
            )
        if has_no_values(W):
            return W.detach().clone()
        originals = self._adopted(W.detach(), is_first=False)
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

    def _check_one_square(self) -> None:
        """Raise if the weight is not one square matrix, with which rows can be multiplied."""
        shape = tuple(self._shape or ())
        if self._layout != PLAIN or (shape and shape[-1] != shape[-2]):
            raise ValueError(
                f"{type(self).__name__}.operator: expected a square weight, got one of shape {shape} with "
                f"gates={self.gates}. Multiply by the weight instead."
            )

    def _layout_of(self, W: Tensor) -> Layout:
        return layout_of(W, type(self).__name__, self.shapes, self.gates, self.kernel_dims)

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
        """Raise before anything changes; PyTorch would notice these errors only afterwards."""
        name = type(self).__name__
        if is_wrapped(W):
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

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        metadata, _, _, unexpected, _ = args
        # Earlier versions saved what was tracked.
        unexpected[:] = [key for key in unexpected if not key.startswith(f"{prefix}tracking.")]
        if self._like.is_meta and metadata.get("assign_to_params_buffers", False):
            # The originals are no longer on the meta device. The next read tells where they are.
            self._become_like(torch.empty_like(self._like, device="cpu"))

    def __deepcopy__(self, memo: dict[int, Any]) -> Parametrization:
        return deep_copy(self, memo)


_FUNCTIONAL_CALL = (
    " (torch.func.functional_call takes the originals of a constrained weight: pass "
    "'parametrizations.weight.original' instead of 'weight'.)"
)


class _Contents:
    """The attributes and buffers of a constraint and of those nested in it."""

    def __init__(self, constraint: nn.Module) -> None:
        self._contents = [(part, dict(vars(part)), dict(part._buffers)) for part in constraint.modules()]

    def restore(self) -> None:
        for part, content, buffers in self._contents:
            vars(part).clear()
            vars(part).update(content)
            part._buffers.clear()
            part._buffers.update(buffers)


def as_tuple(originals: Tensor | Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the originals from ``invert``, ``start`` or ``right_inverse`` as a tuple."""
    return (originals,) if isinstance(originals, Tensor) else tuple(originals)


def readable(values: Tensor) -> str:
    """Return the numbers as text for a message."""
    return ", ".join(f"{value:.6g}" for value in values.flatten().tolist())


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
        result = product(exact.to(promoted(exact.dtype, dtype)))
        return result if exact is h or result.is_complex() != h.is_complex() else result.to(h.dtype)

    return apply


def real_entries(X: Tensor) -> int:
    """Return the number of real numbers in a tensor: a complex entry counts as two."""
    return X.numel() * (2 if X.is_complex() else 1)


def is_trained(X: Tensor) -> bool:
    """Return whether an original counts for ``free_parameters``: all do, except frozen parameters."""
    return X.requires_grad or not isinstance(X, nn.Parameter)
