"""Checks of a constraint's set: members, distances, projections, refused weights, the start of training."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor

from spectral_param._parametrizations import Parametrization
from spectral_param._parametrizations.bound import is_present
from spectral_param._parametrizations.tensors import real_entries
from spectral_param._register.constrain import constrain
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError
from spectral_param.testing._asserts import assert_close, assert_inside, largest_entry
from spectral_param.testing._case import (
    Case,
    Holder,
    Shape,
    assignable,
    draw,
    holder,
    list_of,
    originals,
    tolerance,
    train_steps,
)


def check_right_inverse(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``forward(right_inverse(W)) == W`` for a member W, at registration and at assignment.

    If ``case.recovers`` is False, registration may replace W by another member. Afterwards the present weight
    can be assigned, and other weights are refused.
    """
    first = case.member(shape, dtype)
    module = holder(case, first)
    assert module.weight.dtype == dtype, f"expected dtype {dtype}, got {module.weight.dtype}"
    if not case.recovers:
        assert_inside(case, module.weight, "weight after registration")
        _assert_refused(module, first)
        first = module.weight.detach().clone()
    second = assignable(case, module)
    scale = max(1.0, first.abs().max().item(), second.abs().max().item())
    atol = tolerance(dtype, shape[-1]) * scale
    assert_close(module.weight, first, atol, "weight after registration")
    module.weight = second  # type: ignore[assignment]
    assert_close(module.weight, second, atol, "weight after assignment")


def check_assignment_copies(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Training does not change a tensor that was assigned to the weight."""
    module = holder(case, case.member(shape, dtype))
    mine = assignable(case, module)
    before = mine.clone()
    module.weight = mine  # type: ignore[assignment]
    train_steps(module, shape, dtype, steps=2)
    assert torch.equal(mine, before), "expected the assigned tensor unchanged after training"


def check_projection(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Registration takes a weight outside the set and moves it into the set."""
    assert case.outside is not None
    module = holder(case, case.outside(shape, dtype))
    assert_inside(case, module.weight, "weight after registration from outside the set")


def check_rejects_outside(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Assigning a weight outside the set raises ``InManifoldError`` and changes nothing."""
    assert case.outside is not None
    _assert_refused(holder(case, case.member(shape, dtype)), case.outside(shape, dtype))


def _assert_refused(module: Holder, W: Tensor) -> None:
    before = module.weight.detach().clone()
    try:
        module.weight = W  # type: ignore[assignment]
    except InManifoldError as error:
        message = str(error)
    else:
        message = ""
    assert message, "expected InManifoldError for a weight outside the set, got none"
    assert "expected" in message, f"expected a message with 'expected' and what was expected: {message}"
    assert "got" in message, f"expected a message with 'got' and what was given: {message}"
    assert torch.equal(module.weight, before), "expected the weight unchanged after the error"


def check_set(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A projected weight has the distance 0, keeps its bits if projected again, and can be assigned.

    Weights that the constraint refuses are skipped. A weight that no scaling brings into the set (a nilpotent
    matrix, if all members have the same spectral radius) may be left unchanged, outside the set. If
    ``case.recovers`` is False, only the present weight has to pass the check, and other weights have to raise
    ``InManifoldError``.
    """
    module = holder(case, case.member(shape, dtype))
    constraint, present = list_of(module)[0], module.weight.detach().clone()
    assert isinstance(constraint, Parametrization)
    assert constraint.in_manifold(present), "expected the present weight in the set"
    if not case.recovers:
        _assert_member(constraint, present, "present weight")
        _assert_unknown(constraint, case.member(shape, dtype))
        return
    member = case.member(shape, dtype)
    assert torch.equal(constraint.project(member), member), "expected the bits of a member"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateEigenvalueWarning)
        for name, W in {"member": member, **_hard(shape, dtype)}.items():
            given, P = W.clone(), _projection(constraint, W)
            assert torch.equal(W, given), f"{name}: expected the weight that was projected unchanged"
            if P is None:
                continue
            what = f"projection of a {name} weight"
            assert P.dtype == dtype, f"{what}: expected {dtype}, got {P.dtype}"
            if name in _WITHOUT_SIZE and bool(constraint.distance(P).any()):
                assert torch.equal(constraint.project(P), P), f"{what}: expected what stays to stay"
                continue
            _assert_member(constraint, P, what)
            assert_inside(case, P, what, max(1.0, largest_entry(P)))
            other = copy.deepcopy(module)
            other.weight = P  # type: ignore[assignment]
            # The limit is loose, because the map may be flat on the boundary of the set, and because a
            # certificate multiplies rounding errors.
            limit = max(1e-6, 10 * tolerance(dtype, max(shape[-2:]))) * max(1.0, largest_entry(P))
            assert_close(other.weight, P, max(limit, _resolution(constraint, P)), f"assigned {what}")
    assert torch.equal(module.weight, present), "expected project and distance to change nothing"


def _hard(shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return hard weights by name: random, not differentiable, of low rank, or zero."""
    ones = torch.ones(shape, dtype=dtype, device="cpu")
    return {
        "random": 3 * draw(shape, dtype),
        "constant": ones,
        "negative": -2 * ones,
        "nilpotent": ones.triu(1),
        "zero": 0 * ones,
        "large": 1e6 * draw(shape, dtype),
    }


def check_any_size(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Very large and very small weights can be projected, also by an optimizer after a step.

    A random weight W is multiplied by numbers c from 2⁻¹⁰⁰ to 2¹⁰⁰; in double precision also by 2⁻⁶⁰⁰ and
    2⁶⁰⁰, whose squares underflow or overflow. The projections for all large c have to agree, and so do the
    projections for all small c. If a set contains all multiples of its members, the projection of cW may
    instead be c times the projection of W.
    """
    member = case.member(shape, dtype)
    constraint, W = list_of(holder(case, member))[0], draw(shape, dtype)
    assert isinstance(constraint, Parametrization)
    if _projection(constraint, W) is None:  # The constraint refuses negative entries.
        W = W.abs()
    found = {}
    double = (-600, 600) if dtype in (torch.float64, torch.complex128) else ()
    for power in (-100, -67, 67, 100, *double):
        given, what = W * 2.0**power, f"projection of 2^{power} times a weight"
        found[power] = P = constraint.project(given)
        assert bool(P.isfinite().all()), f"{what}: expected finite entries, got others"
        _assert_member(constraint, P, what)
        assert_inside(case, P, what, max(1.0, largest_entry(P)))
        held = None if is_present(constraint) else _put_back(case, given)
        if held is not None:
            assert_inside(case, held, f"2^{power} times a weight after a step", max(1.0, largest_entry(held)))
    for first, second in ((67, 100), (-67, -100)):
        P, Q, size = found[first], found[second], 2.0 ** (first - second)
        errors = [largest_entry(P - Q) / largest_entry(P), largest_entry(P - Q * size) / largest_entry(P)]
        limit = 100 * tolerance(dtype, max(shape[-2:]))
        assert min(errors) <= limit, f"2^{first} and 2^{second}: expected one projection, got two: {errors}"


def _put_back(case: Case, W: Tensor) -> Tensor | None:
    """Return W after an optimizer step has put it back into the set; None if the constraint forbids this."""
    module = Holder(W.clone())
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    shape = tuple(W.shape)
    try:
        constrain(module, "weight", case.make(shape), gates=case.gates(shape), optimizer=optimizer)
    except ValueError:
        return None
    with torch.no_grad():
        module.weight.copy_(W)
    module.weight.grad = torch.zeros_like(W)
    optimizer.step()
    return module.weight.detach()


def check_tangent(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``tangent`` projects changes of the weight orthogonally onto the tangent space of the set.

    ``tangent`` is linear, idempotent and self-adjoint, both for the active parts of the boundary and for all
    parts. A tangent step of length t leaves the set by about t², and the step between two close members is
    nearly tangent.
    """
    constraint: Any = list_of(holder(case, case.member(shape, dtype)))[0]
    W = constraint.near(5 * constraint._matrices(case.member(shape, dtype)))  # on a boundary, if any
    D, E = (torch.randn_like(W) for _ in range(2))
    limit = 100 * tolerance(dtype, max(W.shape[-2:]))

    def inner(X: Tensor, Y: Tensor) -> float:
        return float((X.conj() * Y).real.sum())

    for active in (None, constraint.active(W, D)):
        P, Q = (constraint.tangent(W, X, active) for X in (D, E))
        what = "tangent" if active is None else "tangent with active parts"
        assert_close(constraint.tangent(W, P, active), P, limit, f"{what} of a tangent")
        assert_close(constraint.tangent(W, D + 2 * E, active), P + 2 * Q, limit, f"{what} of a sum")
        error = abs(inner(P, E) - inner(D, Q))
        assert error <= limit * W.numel(), f"{what}: expected a self-adjoint projection, got {error:.3g} off"
    P = constraint.tangent(W, D)
    along = [float(constraint.outside(W + t * P, 0.0)[0].abs().max()) for t in (1e-3, 1e-4)]
    assert along[1] <= 0.02 * along[0] + limit, f"tangent: expected to leave the set by squares, got {along}"
    if constraint.active(W, D) is not None:
        return  # W is on a boundary, and steps into the interior are not tangent.
    # A small step from one member to another is tangent, up to terms of second order.
    missing = []
    for t in (1e-3, 1e-4):
        step = constraint.near(W + t * D) - W
        missing.append(largest_entry(step - constraint.tangent(W, step)))
    assert missing[1] <= 0.02 * missing[0] + limit, f"tangent: expected steps between members, got {missing}"


#: Names of the weights W of which some sets contain no multiple c W. Such a weight is either a member, or a
#: projection leaves it unchanged.
_WITHOUT_SIZE = ("nilpotent", "zero")


def _projection(constraint: Parametrization, W: Tensor) -> Tensor | None:
    """Return the projection; None if the constraint refuses W, for instance because of negative entries."""
    try:
        return constraint.project(W)
    except ValueError as error:
        if isinstance(error, InManifoldError):
            raise
        return None


def _resolution(constraint: Parametrization, W: Tensor) -> float:
    """Return by how much rounding may change the distance of W. A read may scale W by the same amount."""
    trial, X = constraint._trial(W)
    resolution = trial.outside(X, torch.finfo(W.dtype).eps)[1]
    return float(resolution.max() if isinstance(resolution, Tensor) else resolution)


def _assert_member(constraint: Parametrization, W: Tensor, what: str) -> None:
    distance = constraint.distance(W)
    assert not bool(distance.any()), f"{what}: expected the distance 0, got {distance}"
    assert torch.equal(constraint.project(W), W), f"{what}: expected the same bits from another projection"


def _assert_unknown(constraint: Parametrization, W: Tensor) -> None:
    for method in (constraint.distance, constraint.project):
        raised = False
        try:
            method(W)
        except InManifoldError:
            raised = True
        assert raised, f"{method.__name__}: expected InManifoldError for a weight without known originals"


def check_paper_start(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """With ``init="paper"`` the weight starts in the set; the originals have an entry per free parameter."""
    parametrization = case.make(shape)
    assert isinstance(parametrization, Parametrization)
    module = Holder(case.member(shape, dtype))
    constrain(module, "weight", parametrization, init="paper", gates=case.gates(shape))
    constraint = list_of(module)[0]
    assert isinstance(constraint, Parametrization)
    W = module.weight
    assert W.shape == shape, f"expected shape {shape} at the paper's start, got {tuple(W.shape)}"
    assert W.dtype == dtype, f"expected {dtype} at the paper's start, got {W.dtype}"
    assert_inside(case, W, "weight at the paper's start")
    tensors = originals(module)
    count, entries = constraint.free_parameters(*tensors), sum(map(real_entries, tensors))
    assert 0 <= count <= entries, f"expected 0 to {entries} free parameters, got {count}"


def check_constraint_holds(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """The constraint holds after optimizer steps, and the steps change the weight."""
    module = holder(case, case.member(shape, dtype))
    before = module.weight.detach().clone()
    train_steps(module, shape, dtype, steps=10)
    assert_inside(case, module.weight, "weight after 10 steps")
    if shape[-1] > 1:  # 1 x 1 members may be isolated points.
        assert not torch.equal(module.weight, before), "expected training to change the weight"


def check_large_originals(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """The constraint holds for originals far from the start, up to rounding of the weight's entries."""
    for scale in (10.0, 1e2, 1e4):
        module = holder(case, case.member(shape, dtype))
        train_steps(module, shape, dtype, steps=1)
        for tensor in originals(module):
            tensor.data.mul_(scale)
        W = module.weight.detach()
        assert_inside(case, W, f"originals times {scale:.0e}", max(1.0, largest_entry(W)))
