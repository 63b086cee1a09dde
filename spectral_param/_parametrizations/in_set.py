"""The set of a constraint: distance and projection of a weight, membership, and originals of a member."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param._context import full_precision
from spectral_param._eigen.solver import Follower
from spectral_param._parametrizations.degenerate import warn_of_weight
from spectral_param._parametrizations.memory import Memory
from spectral_param._parametrizations.tensors import at_least_float32, readable
from spectral_param._parametrizations.weight import OfWeight
from spectral_param._precision import relative_rounding
from spectral_param._scale import change_and_size
from spectral_param.errors import InManifoldError
from spectral_param.functional._checks import check_finite, check_matrix

# A weight that a projection would move by at most this many rounding errors is left unchanged.
_ROUNDINGS = 32


class InSet(OfWeight):
    """The set of a constraint: which weights are members, and which member replaces a weight outside.

    A subclass defines the set for matrices; this class converts weights with gates or kernels to matrices and
    back. Three methods find a member near W: :meth:`near` for matrices, :meth:`project` for a whole weight,
    and ``search`` for constraints that have to search for originals
    (:mod:`spectral_param._parametrizations.searched`).
    """

    _memory: Memory
    _warned: bool

    def __init_subclass__(cls, same_set: bool = False, **kwargs: Any) -> None:
        """Inherit facts about the set of the base class only if the subclass has the same set.

        A class that redefines ``outside`` or ``near`` has another set than its base class. Such a class
        inherits the tangent space and other facts about the base class's set only if ``same_set`` is True.
        """
        super().__init_subclass__(**kwargs)
        own = vars(cls).keys()
        if not same_set and own & {"outside", "near"}:
            for name in {"keeps_members", "keeps_non_finite", "one_set", "tangent"} - own:
                setattr(cls, name, getattr(InSet, name))

    # A subclass defines -------------------------------------------------------------------------------

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return how far each matrix is outside the set, and the rounding error of this distance.

        By default every matrix is in the set.

        Args:
            W: Finite matrices ``(..., m, n)``.
            eps: Relative rounding error of the entries of W.

        Returns:
            The distance ``(...)``, in a unit that the subclass chooses, and its resolution: W counts as a
            member if the distance is at most the resolution.
        """
        return W.real.new_zeros(W.shape[:-2]), 0.0

    def near(self, W: Tensor) -> Tensor:
        """Return members of the set near finite matrices ``(..., m, n)``.

        The result is used only for matrices that :meth:`outside` finds outside the set; members are kept.
        """
        raise NotImplementedError(f"{type(self).__name__}.near: expected beside outside, got none.")

    #: Whether :meth:`near` itself keeps the bits of members. If so, ``near(W, eps)`` is called after a step
    #: of an optimizer, without a call of :meth:`outside`. W has single or double precision and is not changed
    #: by the caller; eps is the relative rounding error of the entries of W. The result of :meth:`near` may
    #: depend on W and on earlier steps of this weight, but on nothing else. So processes with equal weights
    #: keep equal weights.
    keeps_members = False

    def tangent(self, W: Tensor, D: Tensor, active: Any = None) -> Tensor:
        """Return the orthogonal projection of changes D onto the tangent space of the set at W.

        The inner product is Re⟨X, Y⟩, so the projection is linear, idempotent and self-adjoint. At a
        constrained optimum the gradient is normal to the set, and the gradient's projection is zero. So an
        optimizer that gets the projection stays at the optimum, even if the optimizer scales the entries of a
        gradient differently, as Adam does.

        Args:
            W: Members of the set ``(..., m, n)``, in single or double precision.
            D: Changes of the matrices W, of the same shape.
            active: For a set with an interior, the result of :meth:`active`. By default, all parts of the
                boundary that contain W are active.
        """
        raise NotImplementedError(f"{type(self).__name__}.tangent: expected a set that has one, got none.")

    @property
    def has_tangent(self) -> bool:
        """Whether :meth:`tangent` is defined."""
        return type(self).tangent is not InSet.tangent

    def active(self, W: Tensor, G: Tensor) -> Any:
        """Return which parts of the boundary steps along ``-G`` would cross, for a set with an interior.

        Changes are made tangent only to the parts that this method returns. None, the default, means that the
        set has no interior: every change is made tangent.

        Args:
            W: Members of the set ``(..., m, n)``.
            G: Gradients, of the same shape.
        """
        return None

    #: Whether the optimizer's step is made tangent to the active parts, as the gradient always is. True is
    #: right for a set with one smooth boundary. False is right for a set with several boundaries: where
    #: boundaries meet, a step must be able to leave one boundary.
    stays_active = True

    def as_matrices(self, W: Tensor) -> Tensor | None:
        """Return the matrices by which the layer multiplies; None if W consists of slices or vectors.

        The default is W itself.
        """
        return W

    #: Whether :meth:`near` also takes matrices with NaN or infinity, and returns such matrices unchanged. If
    #: so, the host need not wait for a device to know whether the weight is finite after a step.
    keeps_non_finite = False

    #: Whether distance, members and tangents need only sums over all entries of a matrix. If so, processes
    #: that have shards of a weight exchange sums instead of the weight.
    adds_up = False

    #: Whether :meth:`outside` may miss members, because it searches for their originals. If so, the weight of
    #: the last read counts as a member, wherever :meth:`outside` finds it.
    misses_members = False

    #: A key of the set. Weights of constraints with equal keys are put back into the set in one call. None if
    #: it is unknown whether two constraints have the same set.
    one_set: object = None

    #: The reason, for a message, why no optimizer can hold a weight in this set; empty if an optimizer can.
    by_map_alone = ""

    def check_start(self, W: Tensor) -> None:
        """Raise for finite matrices from which no member of the set can be found. By default, do nothing."""

    def check_matrices(self, W: Tensor) -> None:
        """Raise for matrices of a size or dtype that the constraint does not take. By default, do nothing."""

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return originals that :meth:`reference` maps to W. The originals share no memory with W.

        Args:
            W: Members of the set ``(..., m, n)``, up to the resolution that :meth:`outside` returns.
        """
        raise NotImplementedError(self._lacks("invert(W)", "returns originals of a given weight"))

    def _lacks(self, method: str, what: str) -> str:
        """Return the message for a method that a subclass has not defined."""
        name, (short, *_) = type(self).__name__, method.split("(")
        return f"{name}.{short}: expected a method that {what}, got none. Write {method} in {name}"

    def _has_no_inverse(self, what: str, remedy: str) -> InManifoldError:
        """Return the error of a constraint that can neither compute originals nor recognise members."""
        return InManifoldError(
            f"{type(self).__name__}: expected init='paper' or the weight that was read last, got one whose "
            f"{what} cannot be computed. Start with spectral_param.constrain(module, name, constraint, "
            f"init='paper'), copy trained originals by load_state_dict, or take {remedy}."
        )

    # Users call ---------------------------------------------------------------------------------------

    @torch.no_grad()
    @full_precision
    def distance(self, W: Tensor) -> Tensor:
        """Return how far a weight is outside the set; 0 for a member.

        The documentation of each constraint defines the distance: for instance ‖WᴴW - I‖ for orthonormal
        columns, or the excess of a norm over its bound. A distance within rounding counts as 0. The
        constraint and its weight do not change.

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

    @torch.no_grad()
    @full_precision
    def project(self, W: Tensor) -> Tensor:
        """Return a weight of the set near W; a member is returned bit for bit.

        A typical W is an average of several weights, which may be outside the set. The result is the nearest
        member if the constraint's documentation says so. The constraint and its weight do not change.

        Args:
            W: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.

        Raises:
            InManifoldError: In the same case as :meth:`distance`.
            ValueError: In the same cases as :meth:`distance`.

        Example:
            >>> spectral_param.SpectralNorm(1.0).project(3 * torch.eye(2)).round(decimals=4)
            tensor([[1., 0.],
                    [0., 1.]])
        """
        trial, X = self._trial(W)
        eps = torch.finfo(W.dtype).eps
        try:
            found = trial.members(X, eps, is_first=True)
        except InManifoldError:
            if self._last_originals(W, eps) is None:
                raise
            return W.detach().clone()
        if not torch.equal(found, X) and self._is_missed(W, eps):
            return W.detach().clone()
        return trial._layout.join(found).to(W.dtype, copy=True).contiguous()

    def in_manifold(self, X: Tensor, eps: float | None = None) -> bool:
        """Return whether X is in the set, up to rounding. geotorch has a method of this name.

        Args:
            X: Weight of shape ``(..., m, n)``, or ``(..., k·m, n)`` with ``gates`` = k.
            eps: Relative rounding error that the entries of X may have; by default the rounding error of the
                dtype of X.
        """
        try:
            with torch.no_grad():
                inside = full_precision(self._distance)(X, eps) == 0
        except ValueError:
            return False
        return bool(inside.all()) or self._last_originals(X, torch.finfo(X.dtype).eps) is not None

    # Implementation -----------------------------------------------------------------------------------

    def _distance(self, W: Tensor, eps: float | None = None) -> Tensor:
        trial, X = self._trial(W)
        eps = torch.finfo(W.dtype).eps if eps is None else eps
        try:
            distance, resolution = trial.outside(X, eps)
        except InManifoldError:
            if self._last_originals(W, eps) is None:
                raise
            return X.real.new_zeros(X.shape[:-2])
        outside = torch.where(is_inside(distance, resolution), 0, distance)
        if bool((outside > 0).any()) and self._is_missed(W, eps):
            return torch.zeros_like(outside)
        return outside

    def _trial(self, W: Tensor) -> tuple[InSet, Tensor]:
        """Return a copy of the constraint, and the matrices of W; raise if the constraint does not take W."""
        check_matrix(W, type(self).__name__, self.least_dims)
        trial: InSet = frozen(self)
        for part in trial.modules():
            for name, value in vars(part).items():
                if isinstance(value, Follower):  # Copied, because measuring W changes a Follower.
                    vars(part)[name] = copy.copy(value)
        trial._layout = trial._layout_of(W)
        if self._shape is None:
            trial._become_like(W)
        X = trial._matrices(W.detach())
        trial._check(X)
        return trial, X

    def _check(self, X: Tensor) -> None:
        """Raise for matrices that the constraint does not take."""
        check_finite(X, type(self).__name__)
        self.check_matrices(X)

    def _originals_of(self, W: Tensor, X: Tensor, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return originals of W. At registration, a W outside the set is first projected onto the set.

        The weight of the last read always counts as a member. If W is refused, the constraint is unchanged.

        Args:
            W: The weight.
            X: The matrices of W.
            is_first: True if W is being registered, False if W is being assigned.

        Raises:
            InManifoldError: If W is outside the set, or has no originals.
        """
        eps = torch.finfo(W.dtype).eps
        trial: InSet = frozen(self, shares_buffers=True)
        parts = [vars(part) for part in trial.modules() if isinstance(part, InSet)]
        try:
            self._check(X)
            if is_first:
                self.check_start(X)
            for content in parts:
                content["_warned"] = True  # No warning here: the first read will warn.
            # The rounding errors of half precision are allowed only at assignment. At registration this large
            # tolerance would keep a matrix that is outside the set.
            originals = trial.originals_for(X, torch.finfo(X.dtype).eps if is_first else eps, is_first)
        except InManifoldError:
            known = None if is_first or self._is_after else self._last_originals(W, eps)
            if known is None:
                raise
            return known if len(known) > 1 else known[0]
        for content in parts:
            content["_warned"] = False
        take_over(self, trial)
        return originals

    def originals_for(self, W: Tensor, eps: float, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return originals of the members that :meth:`members` finds for W.

        A constraint with nested constraints overrides this method, and calls it for each of them.
        """
        return self.invert(self.members(W, eps, is_first))

    def members(self, W: Tensor, eps: float, is_first: bool) -> Tensor:
        """Return W with matrices outside the set replaced by members; raise for such a W at assignment."""
        return self._with_members(W, *self.outside(W, eps), self.near, is_first)

    def after_step(self, W: Tensor, eps: float) -> Tensor:
        """Return members near the matrices after a step of an optimizer; members keep their bits."""
        if self.keeps_members:
            near: Callable[..., Tensor] = self.near
            return near(W, eps)
        # The rounding error of W's dtype is used, because eps is large for a weight in half precision and
        # would hide the change by the step.
        return self.members(W, torch.finfo(W.dtype).eps, is_first=True)

    def _with_members(
        self,
        W: Tensor,
        distance: Tensor,
        resolution: Tensor | float,
        near: Callable[[Tensor], Tensor],
        is_first: bool,
    ) -> Tensor:
        """Return :meth:`members` for matrices with these distances; ``near`` replaces matrices outside."""
        is_outside = ~is_inside(distance, resolution)
        if not bool(is_outside.any()):
            return W
        has_warned, vars(self)["_warned"] = self._warned, True  # near must not warn of missing derivatives.
        found = torch.where(is_outside[..., None, None], near(W), W)
        vars(self)["_warned"] = has_warned
        stays = is_outside & (found == W).flatten(-2).all(dim=-1)
        if not (is_first or torch.equal(stays, is_outside)):
            raise self._refused(torch.where(is_outside, distance, 0))
        if not has_warned and bool(stays.any()):
            warn_of_weight(
                f"{type(self).__name__}: expected {self._set_name()}, got one that nothing scales or shifts "
                "into the set, as a nilpotent matrix. It stays as it is."
            )
        return found

    def _refused(self, distance: Tensor, expected: str = "") -> InManifoldError:
        """Return the error for an assigned weight whose matrices have these distances from the set."""
        return InManifoldError(
            f"{type(self).__name__}: expected {expected or self._set_name()}, got one {self._judgement()} "
            f"{readable(distance)}. Assign spectral_param.constraints(model)[name].project(W) instead, the "
            "projection."
        )

    def _judgement(self) -> str:
        """Return what a refused weight is found to be, for a message; the distance follows."""
        return "outside by"

    def _set_name(self) -> str:
        """Return a description of a member of the set, for a message."""
        return "a weight of the set"

    def _is_missed(self, W: Tensor, eps: float) -> bool:
        """Return whether a search has missed a member: the weight of the last read, whose originals prove it.

        Where :meth:`outside` measures without a search, what it finds outside is outside.
        """
        searches = any(isinstance(part, InSet) and part.misses_members for part in self.modules())
        return searches and self._last_originals(W, eps) is not None

    def _last_originals(self, W: Tensor, eps: float) -> tuple[Tensor, ...] | None:
        """Return the originals of the last read if W is its weight up to rounding, else None."""
        if W.ndim < self.least_dims:
            return None
        working = at_least_float32(W).dtype
        own = torch.finfo(working).eps
        # A second evaluation may round an entry of a weight in half precision the other way.
        rounding = relative_rounding(W.shape[-1], own, working) + (2 * eps if eps > own else 0.0)
        return self._memory.originals_of(self, W, rounding)


def is_inside(distance: Tensor, resolution: Tensor | float) -> Tensor:
    """Return which distances are at most their resolution. NaN is not, and ∞ is not although ∞ <= ∞.

    Both numbers are infinite for a finite matrix whose norm overflows.
    """
    return distance - resolution <= 0


def unless_rounding(near: Tensor, X: Tensor, eps: float) -> Tensor:
    """Return ``near``, but keep matrices of X that differ from ``near`` only by rounding.

    A relative difference of at most 32 rounding errors of X's dtype counts as rounding; for a weight in half
    precision, its rounding error ``eps`` is added to this limit.
    """
    move, size = change_and_size(X, near)
    own = torch.finfo(X.dtype).eps
    limit = _ROUNDINGS * own + (eps if eps > own else 0.0)
    # A comparison with NaN is False, so a matrix with a `move` of NaN is kept.
    return torch.where((move > limit * size)[..., None, None], near, X)


def frozen(module: nn.Module, shares_buffers: bool = False) -> Any:
    """Return a copy of the module.

    An attribute that is set later on the module does not change the copy. An attribute that is set on the
    copy does not change the module.

    Args:
        module: A constraint.
        shares_buffers: Whether the copy shares the module's buffers; by default the buffers are copied.
    """
    clone: Any = object.__new__(type(module))
    content = vars(clone)
    content.update(vars(module))
    for kind in ("_buffers", "_modules"):
        content[kind] = dict(content[kind])
    for name, buffer in content["_buffers"].items():
        if buffer is not None and not shares_buffers:
            content["_buffers"][name] = buffer.detach().clone()
    for name, part in content["_modules"].items():
        if part is not None:
            content["_modules"][name] = frozen(part, shares_buffers)
    return clone


def take_over(module: nn.Module, trial: nn.Module) -> None:
    """Copy all attributes and buffers of a frozen copy back to the module."""
    pairs = zip(module.named_modules(), trial.named_modules(), strict=True)
    for (_, part), (_, tried) in pairs:
        content, new = vars(part), vars(tried)
        for name in content.keys() - new.keys():
            del content[name]
        content.update(new, _modules=content["_modules"])
