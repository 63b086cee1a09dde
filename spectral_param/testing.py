"""A conformance suite for parametrizations: the contracts that every constraint has to keep.

>>> class Skew(spectral_param.Parametrization):
...     def reference(self, T):
...         return T.triu(1) - T.triu(1).mT
...
...     def outside(self, W, eps):
...         return (W + W.mT).abs().amax(dim=(-2, -1)), 100 * eps
...
...     def near(self, W):
...         return (W - W.mT) / 2
...
...     def invert(self, W):
...         return W.triu(1)
...
...     def start(self, like):
...         return torch.zeros_like(like)
...
...     def free_parameters(self, T):
...         return torch.ones_like(T).triu(1).count_nonzero().item()
>>> spectral_param.testing.check_constraint(lambda shape: Skew())

A check that fails raises an ``AssertionError`` that names the check, the shape and the dtype, and says what
was expected. An error of the constraint itself is its cause. A :class:`Case` says more than a function does:
what the members of the set are, which shapes and dtypes there are, which checks are expected to fail. With
pytest, each check is a test of its own::

    @spectral_param.testing.parametrize_with_checks([case])
    def test_contract(check):
        check()

All checks take the same arguments: a case, the shape of the weight and its dtype. :func:`conformance` returns
what is run, a :class:`Trial` each: the :data:`CHECKS` that apply, with shapes and dtypes in pairs. Only
:func:`parametrize_with_checks` imports pytest.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spectral_param._parametrizations import Parametrization
from spectral_param._parametrizations.tensors import real_entries
from spectral_param._register.constrain import constrain
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError, UnsupportedDtypeError

__all__ = [
    "CHECKS",
    "SHAPES",
    "Case",
    "Check",
    "Holder",
    "Trial",
    "assignable",
    "check_assignment_copies",
    "check_autocast",
    "check_averaging",
    "check_bad_input",
    "check_bfloat16",
    "check_cached",
    "check_compile",
    "check_constraint",
    "check_constraint_holds",
    "check_deepcopy",
    "check_deepcopy_of_rnn",
    "check_export",
    "check_gradient_of_the_read",
    "check_gradients",
    "check_half_and_back",
    "check_large_originals",
    "check_nan",
    "check_nan_in_a_batch",
    "check_paper_start",
    "check_projection",
    "check_random_state",
    "check_rejects_outside",
    "check_remove",
    "check_repeated_reads",
    "check_right_inverse",
    "check_set",
    "check_state_dict",
    "check_to",
    "check_torch_func",
    "check_write_during_a_read",
    "conformance",
    "holder",
    "originals",
    "parametrize_with_checks",
    "tolerance",
]

Shape = tuple[int, ...]
_T = TypeVar("_T")

#: The default shapes, which are even, odd, a batch, and the four gates of an LSTM.
SHAPES: tuple[Shape, ...] = ((4, 4), (5, 5), (2, 4, 4), (16, 4))


#: Entries of originals up to which derivatives are compared one by one.
SMALL = 20


@dataclass(frozen=True)
class Case:
    """One parametrization under test.

    Attributes:
        name: The name in reports.
        make: Returns a new parametrization for a weight of the given shape.
        member: Returns a random weight of the given shape and dtype that satisfies the constraint. The shape
            can be that of a stack of gates, ``(4·n, n)``. By default, what registration makes of a random
            weight.
        violation: Returns how far a weight is from satisfying the constraint, relative to its size; 0 for
            members. One number, or one for each matrix or row. The weight can be a stack of gates. By
            default, 0 for a weight that can be assigned, and infinity for one that is refused.
        outside: Returns a weight that does not satisfy the constraint, of the same shapes as ``member``.
            None, the default, if all weights satisfy it, or if the parametrization does not check.
        recovers: Whether ``right_inverse`` finds originals for every member. If not, ``init="paper"`` starts
            the weight, only the present weight can be assigned, and ``violation`` has to be given.
        dtypes: The supported dtypes.
        shapes: The shapes to test: square matrices and stacks of gates.
        rectangles: More shapes, of single matrices or batches that are not square. Without any, a rectangle
            has to raise an error, so name some for a constraint with ``shapes = "tall"`` or ``"any"``.
        holds_far: Whether the constraint holds to rounding for all finite originals.
        variant: Whether this is another mode of a parametrization that has its own case. Then only the checks
            that depend on the mode are run.
        expected_failed_checks: Names of checks that are expected to fail, without ``check_``, each with the
            reason. A check that passes all the same is an error: its line can go.

    Raises:
        ValueError: If ``expected_failed_checks`` names something that is no check.
    """

    name: str
    make: Callable[[Shape], nn.Module]
    member: Callable[[Shape, torch.dtype], Tensor] = None  # type: ignore[assignment]  # Set below.
    violation: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]
    outside: Callable[[Shape, torch.dtype], Tensor] | None = None
    recovers: bool = True
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.complex64, torch.complex128)
    shapes: tuple[Shape, ...] = SHAPES
    rectangles: tuple[Shape, ...] = ()
    holds_far: bool = True
    variant: bool = False
    expected_failed_checks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # After dataclasses.replace(case, make=...), too, the defaults are those of the new function.
        for name, default in (("member", _registered), ("violation", _refused)):
            given = getattr(self, name)
            if given is None or getattr(given, "func", None) is default:
                object.__setattr__(self, name, functools.partial(default, self))
        names = {str(check) for check in CHECKS}
        unknown = sorted(self.expected_failed_checks.keys() - names)
        if unknown:
            raise ValueError(
                f"expected_failed_checks: expected names of checks, got {', '.join(unknown)}. "
                f"The checks are {', '.join(sorted(names))}"
            )

    @property
    def init(self) -> Literal["paper"] | None:
        """The start of :func:`spectral_param.constrain`: a weight, if its originals can be found."""
        return None if self.recovers else "paper"

    def gates(self, shape: Shape) -> int:
        """Return the number of blocks in a weight of this shape."""
        return 1 if shape in self.rectangles else shape[-2] // shape[-1]


def _registered(case: Case, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Return a member of the set: what registration makes of a random weight."""
    return holder(case, _drawn(shape, dtype)).weight.detach().clone()


def _refused(case: Case, W: Tensor) -> Tensor:
    """Return 0 for a weight that can be assigned, infinity for one that is refused."""
    module = holder(case, torch.randn_like(W))
    try:
        module.weight = W.detach().clone()  # type: ignore[assignment]
    except InManifoldError:
        return torch.tensor(torch.inf, dtype=torch.float64, device="cpu")
    return torch.tensor(0.0, dtype=torch.float64, device="cpu")


class Holder(nn.Module):
    """A module with one weight, which multiplies its input from the left."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``weight @ x`` for x of shape ``(..., n, k)``."""
        return self.weight @ x


def tolerance(dtype: torch.dtype, n: int) -> float:
    """Return 100·n·eps, a bound on rounding errors for well-conditioned matrices of size n."""
    return 100 * n * float(torch.finfo(dtype).eps)


def holder(case: Case, weight: Tensor) -> Holder:
    """Return a module with a constrained weight that starts from ``weight``, if the constraint can."""
    module = Holder(weight.clone())
    shape = tuple(weight.shape)
    return constrain(module, "weight", case.make(shape), gates=case.gates(shape), init=case.init)


def assignable(case: Case, module: Holder) -> Tensor:
    """Return a new tensor that can be assigned to ``module.weight``."""
    W = module.weight.detach().clone()
    return case.member(tuple(W.shape), W.dtype) if case.recovers else W


def originals(module: nn.Module) -> list[nn.Parameter]:
    """Return the unconstrained tensors behind ``module.weight``."""
    return list(_list_of(module).parameters(recurse=False))


def _list_of(module: nn.Module) -> parametrize.ParametrizationList:
    found = module.parametrizations["weight"]  # type: ignore[index]
    assert isinstance(found, parametrize.ParametrizationList)
    return found


def _train(module: nn.Module, shape: Shape, dtype: torch.dtype, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    x = _drawn((*shape[:-2], shape[-1], 3), dtype, module, generator)
    y = _drawn((*shape[:-2], shape[-2], 3), dtype, module, generator)
    for _ in range(steps):
        optimizer.zero_grad()
        (module(x) - y).abs().square().mean().backward()
        optimizer.step()


def _drawn(
    shape: Shape, dtype: torch.dtype, like: nn.Module | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Return normal numbers, drawn on the host, on the device of a module."""
    drawn = torch.randn(shape, dtype=dtype, device="cpu", generator=generator)
    return drawn if like is None else drawn.to(next(like.parameters()).device)


def _largest(X: Tensor) -> float:
    return X.abs().max().item() if X.numel() else 0.0


def _assert_close(actual: Tensor, expected: Tensor, atol: float, what: str) -> None:
    error = _largest(actual - expected)
    assert error <= atol, f"{what}: expected agreement to {atol:.1e}, got {error:.1e}"


def _assert_all_close(actual: Iterable[Tensor], expected: Iterable[Tensor], atol: float, what: str) -> None:
    for each, other in zip(actual, expected, strict=True):
        _assert_close(each, other, atol, what)


def _varied(W: Tensor, G: Tensor) -> Tensor:
    """Return a function of W that is not constant on matrices of given norms, such as orthogonal ones."""
    return (W * G.to(W.device)).abs().square().sum()


def _assert_not_zero(gradients: Sequence[Tensor], shape: Shape) -> None:
    """Assert that there is something to compare; 1 x 1 members may be isolated points."""
    largest = max(map(_largest, gradients))
    assert min(shape[-2:]) == 1 or largest > 1e-3, f"expected a gradient that is not zero, got {largest:.1e}"


def _assert_inside(case: Case, W: Tensor, what: str, size: float = 1.0) -> None:
    limit = tolerance(W.dtype, max(W.shape[-2:])) * size
    violation = case.violation(W.detach()).max().item()
    assert violation <= limit, f"{what}: expected a violation <= {limit:.1e}, got {violation:.1e}"


def check_right_inverse(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``forward(right_inverse(W)) == W`` for a member W, at registration and at assignment.

    If the case does not recover members, registration starts from some member, the present weight can be
    assigned, and others are refused.
    """
    first = case.member(shape, dtype)
    module = holder(case, first)
    assert module.weight.dtype == dtype, f"expected dtype {dtype}, got {module.weight.dtype}"
    if not case.recovers:
        _assert_inside(case, module.weight, "weight after registration")
        _assert_refused(module, first)
        first = module.weight.detach().clone()
    second = assignable(case, module)
    scale = max(1.0, first.abs().max().item(), second.abs().max().item())
    atol = tolerance(dtype, shape[-1]) * scale
    _assert_close(module.weight, first, atol, "weight after registration")
    module.weight = second  # type: ignore[assignment]
    _assert_close(module.weight, second, atol, "weight after assignment")


def check_assignment_copies(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Training does not change a tensor that was assigned to the weight."""
    module = holder(case, case.member(shape, dtype))
    mine = assignable(case, module)
    before = mine.clone()
    module.weight = mine  # type: ignore[assignment]
    _train(module, shape, dtype, steps=2)
    assert torch.equal(mine, before), "expected the assigned tensor unchanged after training"


def check_projection(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Registration takes a weight outside the set and moves it into the set."""
    assert case.outside is not None
    module = holder(case, case.outside(shape, dtype))
    _assert_inside(case, module.weight, "weight after registration from outside the set")


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
    """A projection has the distance 0, keeps its bits in another one, and can be assigned.

    Weights that the constraint does not take are left out. One that no scaling brings into the set, as a
    nilpotent one into matrices of a given radius, may stay as it is, at a distance. If the case does not
    recover members, all that holds for the present weight, and others raise ``InManifoldError``.
    """
    module = holder(case, case.member(shape, dtype))
    constraint, present = _list_of(module)[0], module.weight.detach().clone()
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
            _assert_inside(case, P, what, max(1.0, _largest(P)))
            other = copy.deepcopy(module)
            other.weight = P  # type: ignore[assignment]
            # On the border a map may be flat, and a certificate multiplies rounding errors.
            limit = max(1e-6, 10 * tolerance(dtype, max(shape[-2:]))) * max(1.0, _largest(P))
            _assert_close(other.weight, P, max(limit, _resolution(constraint, P)), f"assigned {what}")
    assert torch.equal(module.weight, present), "expected project and distance to change nothing"


def _hard(shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return weights that are random, and such without a derivative, without full rank, without any size."""
    ones = torch.ones(shape, dtype=dtype, device="cpu")
    return {
        "random": 3 * _drawn(shape, dtype),
        "constant": ones,
        "negative": -2 * ones,
        "nilpotent": ones.triu(1),
        "zero": 0 * ones,
        "large": 1e6 * _drawn(shape, dtype),
    }


#: Weights of which no multiple may be in the set; they are members, or stay as they are.
_WITHOUT_SIZE = ("nilpotent", "zero")


def _projection(constraint: Parametrization, W: Tensor) -> Tensor | None:
    """Return the projection; None for a weight that is not taken, as one of negative entries."""
    try:
        return constraint.project(W)
    except ValueError as error:
        if isinstance(error, InManifoldError):
            raise
        return None


def _resolution(constraint: Parametrization, W: Tensor) -> float:
    """Return what rounding may do to the distance, by which a read may scale a member."""
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
    """``init="paper"`` starts in the set, with no more free parameters than entries of the originals."""
    parametrization = case.make(shape)
    assert isinstance(parametrization, Parametrization)
    module = Holder(case.member(shape, dtype))
    constrain(module, "weight", parametrization, init="paper", gates=case.gates(shape))
    constraint = _list_of(module)[0]
    assert isinstance(constraint, Parametrization)
    W = module.weight
    assert W.shape == shape, f"expected shape {shape} at the paper's start, got {tuple(W.shape)}"
    assert W.dtype == dtype, f"expected {dtype} at the paper's start, got {W.dtype}"
    _assert_inside(case, W, "weight at the paper's start")
    tensors = originals(module)
    count, entries = constraint.free_parameters(*tensors), sum(map(real_entries, tensors))
    assert 0 <= count <= entries, f"expected 0 to {entries} free parameters, got {count}"


def check_constraint_holds(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """The constraint holds after optimizer steps, and the steps change the weight."""
    module = holder(case, case.member(shape, dtype))
    before = module.weight.detach().clone()
    _train(module, shape, dtype, steps=10)
    _assert_inside(case, module.weight, "weight after 10 steps")
    if shape[-1] > 1:  # 1 x 1 members may be isolated points.
        assert not torch.equal(module.weight, before), "expected training to change the weight"


def check_large_originals(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """The constraint holds for originals far from the start, to rounding of the weight's entries."""
    for scale in (10.0, 1e2, 1e4):
        module = holder(case, case.member(shape, dtype))
        _train(module, shape, dtype, steps=1)
        for tensor in originals(module):
            tensor.data.mul_(scale)
        W = module.weight.detach()
        _assert_inside(case, W, f"originals times {scale:.0e}", max(1.0, _largest(W)))


def check_gradients(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """First and second derivatives, forward mode included, agree with finite differences.

    Finite differences need double precision. The first derivatives of a small weight are compared entry by
    entry. All others are compared along a random direction, in which a wrong derivative shows with
    probability 1.
    """
    module = holder(case, case.member(shape, dtype))
    _train(module, shape, dtype, steps=1)
    parametrization = _list_of(module)[0].eval()
    tensors = tuple(t.detach().clone().requires_grad_() for t in originals(module))
    entries = sum(map(real_entries, tensors))
    options = {"check_forward_ad": True, "fast_mode": entries > SMALL}
    _assert_derivatives(gradcheck, "first derivatives", parametrization, tensors, **options)
    single = tuple(t.detach().to(torch.complex64 if t.is_complex() else torch.float32) for t in tensors)
    W, tangent = torch.func.jvp(parametrization, single, single)[:2]
    assert tangent.dtype == W.dtype, f"expected a tangent of {W.dtype}, got {tangent.dtype}"
    _assert_derivatives(gradgradcheck, "second derivatives", parametrization, tensors, fast_mode=True)


def _assert_derivatives(check: Callable[..., bool], what: str, *args: Any, **kwargs: Any) -> None:
    try:
        check(*args, **kwargs)
    except GradcheckError as error:
        raise AssertionError(f"{what}: expected those of finite differences, got others: {error}") from error


def check_state_dict(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A module restored from a ``state_dict`` has the same weight, and trains on as the module itself."""
    module = holder(case, case.member(shape, dtype))
    _train(module, shape, dtype, steps=3)
    restored = holder(case, case.member(shape, dtype))
    restored.load_state_dict(module.state_dict())
    atol = tolerance(dtype, shape[-1])
    _assert_close(restored.weight, module.weight, atol, "after loading")
    for each in (module, restored):
        _train(each, shape, dtype, steps=3)
    _assert_close(restored.weight, module.weight, 10 * atol, "after resuming")


def check_deepcopy(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A deep copy, made after a forward pass, is equal and independent."""
    module = holder(case, case.member(shape, dtype))
    before = module.weight.detach().clone()
    clone = copy.deepcopy(module)
    _train(clone, shape, dtype, steps=2)
    assert torch.equal(module.weight, before), "expected training a copy to leave the original alone"
    assert not torch.equal(clone.weight, before), "expected the copy to train"


def check_deepcopy_of_rnn(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``torch.nn.RNN``, ``LSTM`` and ``GRU`` can be deep-copied after a forward pass.

    PyTorch alone cannot copy a parametrized weight then; :class:`spectral_param.Parametrization` makes it
    possible.
    """
    rows, n = shape
    member = case.member(shape, dtype)
    layer = LAYERS[rows // n](2, n, dtype=dtype, device=member.device)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(member)
    constrain(layer, "weight_hh_l0", case.make(shape))
    x = _drawn((3, 1, 2), dtype, layer)
    expected = layer(x)[0]
    actual = copy.deepcopy(layer)(x)[0]
    assert torch.equal(actual, expected), "expected the copy of a layer to compute the same"


def check_to(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``module.to(dtype)`` keeps the weight, which satisfies the constraint in the new precision."""
    module = holder(case, case.member(shape, dtype))
    before = module.weight.detach().clone()
    other = {
        torch.float32: torch.float64,
        torch.float64: torch.float32,
        torch.complex64: torch.complex128,
        torch.complex128: torch.complex64,
    }[dtype]
    with warnings.catch_warnings():
        # Module.to warns when it converts real tensors of a complex module to complex ones.
        warnings.simplefilter("ignore", UserWarning)
        module.to(other)
    assert module.weight.dtype == other, f"expected {other}, got {module.weight.dtype}"
    violation = case.violation(module.weight.detach()).max().item()
    assert violation <= tolerance(other, shape[-1]), f"expected the constraint in {other}"
    single = max(tolerance(each, shape[-1]) for each in (dtype, other))
    scale = max(1.0, before.abs().max().item())
    _assert_close(module.weight.to(dtype), before, 100 * single * scale, f"weight in {other}")


def check_remove(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``remove_parametrizations`` leaves the weight as an ordinary parameter, which can be exported."""
    module = holder(case, case.member(shape, dtype))
    expected = module.weight.detach().clone()
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    assert torch.equal(module.weight, expected), "expected the weight that the constraint gave"
    if not dtype.is_complex:
        x = _drawn((*shape[:-2], shape[-1], 2), dtype, module)
        exported = torch.export.export(module, (x,)).module()
        _assert_close(exported(x), module(x), tolerance(dtype, shape[-1]), "exported module")


def check_cached(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Inside ``parametrize.cached()`` two reads give the same tensor, with the right gradient."""
    module = holder(case, case.member(shape, dtype))
    G = _drawn(shape, dtype)
    plain = torch.autograd.grad(_varied(module.weight, G) * 2, originals(module))
    _assert_not_zero(plain, shape)
    with parametrize.cached():
        first, second = module.weight, module.weight
        assert first is second, "expected one tensor inside parametrize.cached()"
        cached = torch.autograd.grad(_varied(first, G) + _varied(second, G), originals(module))
    _assert_all_close(cached, plain, 10 * tolerance(dtype, shape[-1]), "gradient inside cached()")


def check_repeated_reads(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A second read is not affected by edits of the first one's result, and sees edits of the originals."""
    module = holder(case, case.member(shape, dtype))
    first = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.zero_()
        assert torch.equal(module.weight, first), "expected edits of a read weight to have no effect"
    assert torch.equal(module.weight, first), "expected edits of a read weight to have no effect"
    for tensor in originals(module):
        tensor.data.mul_(0.5).add_(0.01)
    edited = module.weight.detach()
    fresh = copy.deepcopy(_list_of(module)[0])
    expected = fresh(*(t.detach().clone() for t in originals(module)))
    _assert_close(edited, expected, tolerance(dtype, shape[-1]), "after an edit through .data")


def check_torch_func(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``torch.func.grad``, ``torch.func.vmap`` and batched gradients agree with eager autograd."""
    module = holder(case, case.member(shape, dtype))
    parametrization = _list_of(module)[0].eval()
    tensors = tuple(t.detach().clone() for t in originals(module))
    G = _drawn(shape, dtype)

    def loss(*tensors: Tensor) -> Tensor:
        return _varied(parametrization(*tensors), G)

    argnums = tuple(range(len(tensors)))
    functional = torch.func.grad(loss, argnums)(*tensors)
    leaves = [t.clone().requires_grad_() for t in tensors]
    eager = torch.autograd.grad(loss(*leaves), leaves)
    _assert_not_zero(eager, shape)
    atol = 100 * tolerance(dtype, shape[-1])
    _assert_all_close(functional, eager, atol, "torch.func.grad")

    outputs, directions = parametrization(*leaves), torch.stack([G, G.roll(1)])
    batched = torch.autograd.grad(outputs, leaves, directions, is_grads_batched=True, retain_graph=True)
    for i, direction in enumerate(directions):
        single = torch.autograd.grad(outputs, leaves, direction, retain_graph=True)
        _assert_all_close([a[i] for a in batched], single, atol, "is_grads_batched")

    stacked = tuple(torch.stack([t, 0.9 * t + 0.01]) for t in tensors)
    mapped = torch.func.vmap(parametrization)(*stacked)
    for i in range(2):
        one = parametrization(*(t[i] for t in stacked))
        _assert_close(mapped[i], one, tolerance(dtype, shape[-1]), "torch.func.vmap")


def check_compile(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``torch.compile(fullgraph=True)`` gives the same weight and the same gradient."""
    module = holder(case, case.member(shape, dtype))
    x = _drawn((*shape[:-2], shape[-1], 2), dtype, module)
    G = _drawn((*shape[:-1], 2), dtype)
    torch.compiler.reset()
    # "aot_eager" traces forward and backward like the default backend, but needs no C++ compiler.
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = []
    for each in (module, compiled):
        output = each(x)
        gradients = torch.autograd.grad(_varied(output, G), originals(module))
        _assert_not_zero(gradients, shape)
        results.append((output, *gradients))
    _assert_all_close(results[1], results[0], 100 * tolerance(dtype, shape[-1]), "torch.compile")


def check_export(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A program exported or traced in training follows the originals, with operators of torch alone."""
    module = holder(case, case.member(shape, dtype))
    x = _drawn((*shape[:-2], shape[-1], 2), dtype, module)
    exported = torch.export.export(module, (x,))
    with warnings.catch_warnings():
        # torch.jit is deprecated, and warns of shapes that are compared.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, (x,), check_trace=False)
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    names += [node.kind() for node in traced.inlined_graph.nodes()]
    foreign = [name for name in names if not name.startswith(_OF_TORCH)]
    assert not foreign, f"expected operators of torch in an exported program, got {', '.join(foreign)}"
    with torch.no_grad():
        for tensor in originals(module):  # Those of the traced program, too.
            tensor.mul_(0.9).add_(0.01)
    expected, program = module(x), exported.module()
    atol = 100 * tolerance(dtype, shape[-1]) * max(1.0, _largest(expected))
    _assert_close(traced(x), expected, atol, "traced program")
    program.load_state_dict(module.state_dict(), strict=False)
    _assert_close(program(x), expected, atol, "exported program")


# The beginnings of the names of torch's own operators, in both kinds of programs.
_OF_TORCH = ("aten.", "<built-in function getitem>", "aten::", "prim::")


def check_autocast(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Autocast to bfloat16 changes neither the weight nor its gradient."""
    if torch.float32 in case.dtypes:  # The one that it rounds.
        dtype = torch.float32
    module = holder(case, case.member(shape, dtype))
    G = _drawn(shape, dtype)
    expected_gradient = torch.autograd.grad((module.weight * G).abs().sum(), originals(module))
    expected = module.weight.detach().clone()
    fresh = copy.deepcopy(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        W = fresh.weight
        gradient = torch.autograd.grad((W * G).abs().sum(), originals(fresh))
    assert W.dtype == dtype, f"expected {dtype} under autocast, got {W.dtype}"
    _assert_close(W, expected, tolerance(dtype, shape[-1]), "weight under autocast")
    atol = 100 * tolerance(dtype, shape[-1])
    _assert_all_close(gradient, expected_gradient, atol, "gradient under autocast")


def check_bfloat16(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """bfloat16 weights are computed in float32 and returned in bfloat16."""
    W = case.member(shape, dtype)
    module = holder(case, W.bfloat16())
    assert module.weight.dtype == torch.bfloat16, f"expected bfloat16, got {module.weight.dtype}"
    scale = max(1.0, W.abs().max().item())
    if case.recovers:
        _assert_close(module.weight.float(), W, 0.1 * scale, "bfloat16 weight")
    _train(module, shape, torch.bfloat16, steps=2)
    assert bool(module.weight.isfinite().all()), "expected finite weights after training in bfloat16"


def check_nan(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """NaN in the originals gives NaN in the weight and in the gradient, without a crash."""
    module = holder(case, case.member(shape, dtype))
    for tensor in originals(module):
        tensor.data.fill_(torch.nan)
    W = module.weight
    assert bool(W.isnan().any()), "expected NaN in the weight"
    gradients = torch.autograd.grad(W.abs().square().sum(), originals(module))
    assert any(bool(g.isnan().any()) for g in gradients), "expected NaN in the gradient"


def check_nan_in_a_batch(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """NaN in the originals of one matrix leaves the others of its batch, and their gradients.

    The batch is the first dimension of each original.
    """
    module = holder(case, case.member(shape, dtype))
    G = _drawn(shape, dtype, generator=torch.Generator().manual_seed(1))

    def others() -> list[Tensor]:
        """Return the weight and the gradients without those of the first matrix."""
        W = module.weight
        gradients = torch.autograd.grad(_varied(W, G), originals(module))
        return [t.detach()[1:].clone() for t in (W, *gradients)]

    expected = others()
    for tensor in originals(module):
        tensor.data[0] = torch.nan
    assert bool(module.weight[0].isnan().any()), "expected NaN in the weight"
    for one, other in zip(others(), expected, strict=True):
        limit = tolerance(dtype, max(shape[-2:])) * max(1.0, _largest(other))
        _assert_close(one, other, limit, "beside NaN")


def check_bad_input(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Vectors, empty weights, integers and shapes that do not fit raise a ``ValueError``."""
    n = shape[-1]
    bad = [
        torch.zeros(n, dtype=dtype, device="cpu"),
        torch.zeros(0, 0, dtype=dtype, device="cpu"),
        torch.zeros(n, n, dtype=torch.int64, device="cpu"),
    ]
    if n > 1 and not case.rectangles:  # For n = 1, two rows are two gates.
        bad.append(torch.zeros(n + 1, n, dtype=dtype, device="cpu"))
    for weight in bad:
        given = f"{weight.dtype} of shape {tuple(weight.shape)}"  # Registration may replace the values.
        module = nn.Module()
        module.register_buffer("weight", weight)
        raised = False
        try:
            parametrize.register_parametrization(module, "weight", case.make(shape))
        except ValueError:
            raised = True
        rectangle = weight.ndim == 2 and weight.shape[0] != weight.shape[1]
        remedy = ". Name some rectangles in Case(rectangles=...) if it takes them." if rectangle else ""
        assert raised, f"expected ValueError for {given}{remedy}"


def check_random_state(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Reading the weight draws no random numbers and gives the same result each time."""
    module = holder(case, case.member(shape, dtype))
    before = torch.get_rng_state()
    first = module.weight
    clone = copy.deepcopy(module)
    assert torch.equal(torch.get_rng_state(), before), "expected no use of the global generator"
    assert torch.equal(first, clone.weight), "expected the same weight from the same originals"


def _weight_of(averaged: AveragedModel) -> Tensor:
    module = averaged.module
    assert isinstance(module, Holder)
    return module.weight.detach()


def check_averaging(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """The mean of two models, buffers included, is in the set, and the mean of equal models is the model."""
    first, second = (holder(case, case.member(shape, dtype)) for _ in range(2))
    other = copy.deepcopy(first)
    try:
        other.load_state_dict(second.state_dict())
    except RuntimeError:  # The number of originals may depend on the weight.
        other = first
    averaged = AveragedModel(first, use_buffers=True)
    for model in (first, other):
        averaged.update_parameters(model)
    _assert_inside(case, _weight_of(averaged), "mean of two models")
    rule = get_ema_multi_avg_fn(0.9) if not dtype.is_complex else None
    averaged = AveragedModel(first, multi_avg_fn=rule, use_buffers=True)
    for _ in range(100):
        averaged.update_parameters(first)
    expected = first.weight.detach()
    # A moving average of equal numbers ends within eps/(1 - 0.9) of them.
    atol = 10 * tolerance(dtype, shape[-1]) * max(1.0, _largest(expected))
    _assert_close(_weight_of(averaged), expected, atol, "mean of equal models")
    _assert_inside(case, _weight_of(averaged), "mean of equal models")
    mean = {
        key: torch.lerp(value, other.state_dict()[key], 0.25) for key, value in first.state_dict().items()
    }
    first.load_state_dict(mean)
    _assert_inside(case, first.weight, "state of two models after lerp")


def check_half_and_back(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A model cast to half precision and back is in the set, and close to the model before."""
    for half in (nn.Module.half, nn.Module.bfloat16):
        module = holder(case, case.member(shape, dtype))
        before = module.weight.detach().clone()
        half(module).float()
        W, what = module.weight.detach(), f"weight after {half.__name__}() and float()"
        _assert_inside(case, W, what)
        # Rounding errors of bfloat16 are 4e-3 of the originals; the rest is for their condition.
        _assert_close(W, before, 0.2 * max(1.0, _largest(before)), what)


def check_write_during_a_read(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A write to originals or buffers during a read leaves later reads right, wherever in it it happens."""
    for name, early, what in itertools.product(
        ("evaluate", "reference"), (True, False), ("originals", "buffers")
    ):
        module = holder(case, case.member(shape, dtype))
        constraint, tensors = _list_of(module)[0], originals(module)
        for tensor in tensors:
            tensor.data.add_(0.01 * torch.randn_like(tensor))
        written = tensors if what == "originals" else list(constraint.buffers())
        setattr(constraint, name, _disturbed(getattr(constraint, name), early, written))
        with torch.no_grad():
            module.weight  # noqa: B018
        delattr(constraint, name)
        if what == "originals":  # A buffer may say which set it is.
            _assert_inside(case, module.weight, f"read after a write in {name}")
        fresh = copy.deepcopy(constraint)
        atol = 100 * tolerance(dtype, shape[-1]) * max(1.0, _largest(module.weight.detach()))
        expected = fresh(*(t.detach().clone() for t in tensors))
        _assert_close(module.weight.detach(), expected, atol, f"read after a write to {what} in {name}")


def _disturbed(function: Callable[..., Any], early: bool, tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """Return ``function`` with a write to originals or buffers before or after it."""

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        result = None if early else function(*args, **kwargs)
        for tensor in tensors:
            if isinstance(tensor, nn.Parameter):
                tensor.data.add_(0.1 * torch.randn_like(tensor))
            else:
                tensor.data.neg_()
        return function(*args, **kwargs) if early else result

    return disturbed


def check_gradient_of_the_read(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """An edit of the originals or buffers between a read and its backward pass changes no gradient.

    It may be an error, as PyTorch's version counter gives.
    """
    G = _drawn(shape, dtype)
    for reads in (1, 2):  # The first read, and one from the memory.
        for what in ("originals", "buffers"):
            module = holder(case, case.member(shape, dtype))
            _train(module, shape, dtype, steps=1)
            tensors = originals(module)
            clone = copy.deepcopy(module)
            expected = torch.autograd.grad(_varied(clone.weight, G), originals(clone))
            for _ in range(reads):
                W = module.weight
            loss = _varied(W, G)
            edited = tensors if what == "originals" else list(_list_of(module)[0].buffers())
            with torch.no_grad():
                for tensor in edited:
                    if tensor.is_floating_point() or tensor.is_complex():
                        tensor.mul_(-0.5)
            message, found = "", None
            try:
                found = torch.autograd.grad(loss, tensors)
            except RuntimeError as error:
                message = str(error)
            if found is None:
                known = ("modified by an inplace operation", "attributes and buffers of the read")
                assert any(text in message for text in known), f"expected a gradient, got {message}"
                continue
            for a, b in zip(found, expected, strict=True):
                atol = 100 * tolerance(dtype, shape[-1]) * max(1.0, _largest(b))
                _assert_close(a, b, atol, f"gradient after an edit of the {what}")


LAYERS: dict[int, Any] = {1: nn.RNN, 3: nn.GRU, 4: nn.LSTM}


def _always(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return True


def _with_outside(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return case.outside is not None


def _with_start(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return isinstance(case.make(shape), Parametrization)


def _in_double_precision(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.complex128)


def _in_a_layer(case: Case, shape: Shape, dtype: torch.dtype) -> bool:
    fits = len(shape) == 2 and not dtype.is_complex and shape not in case.rectangles
    fits = fits and shape[0] // shape[1] in LAYERS
    return fits and isinstance(case.make(shape), Parametrization)


@dataclass(frozen=True)
class Check:
    """A contract, and what it depends on.

    Attributes:
        function: Takes a case, a shape and a dtype. Raises an ``AssertionError`` if the contract is broken.
        axes: Those of ``"shape"`` (even, odd, a batch, not square), ``"gates"``, ``"dtype"`` and ``"mode"``
            that may decide whether the contract holds. Each value of these axes is tested, and two
            representatives of the others, in pairs of a shape and a dtype. Checks that take long have
            ``"few"``: two of the rectangles are tested; or ``"once"``: one pair, another one for each case.
        applies: Whether the contract is meant for a case, shape and dtype.
    """

    function: Callable[[Case, Shape, torch.dtype], None]
    axes: frozenset[str]
    applies: Callable[[Case, Shape, torch.dtype], bool] = _always

    def __call__(self, case: Case, shape: Shape, dtype: torch.dtype) -> None:
        """Run the check."""
        self.function(case, shape, dtype)

    def __str__(self) -> str:
        return self.function.__name__.removeprefix("check_")


@dataclass(frozen=True)
class Trial:
    """A check of a case with one shape and one dtype. Call the trial to run it.

    Attributes:
        case: The parametrization.
        check: The check.
        shape: Shape of the weight.
        dtype: Its dtype.
    """

    case: Case
    check: Check
    shape: Shape
    dtype: torch.dtype

    @property
    def expected_failure(self) -> str | None:
        """Why the check is expected to fail, or None."""
        return self.case.expected_failed_checks.get(str(self.check))

    def __call__(self) -> None:
        """Run the check."""
        self.check(self.case, self.shape, self.dtype)

    def __str__(self) -> str:
        return f"{self.case.name}-{self.check}-{'x'.join(map(str, self.shape))}-{str(self.dtype)[6:]}"


def _check(
    function: Callable[[Case, Shape, torch.dtype], None],
    axes: str,
    applies: Callable[[Case, Shape, torch.dtype], bool] = _always,
) -> Check:
    return Check(function, frozenset(axes.split()), applies)


#: All checks, in the order of the contracts.
CHECKS: tuple[Check, ...] = (
    _check(check_right_inverse, "shape gates dtype mode"),
    _check(check_assignment_copies, ""),
    _check(check_projection, "dtype mode", _with_outside),
    _check(check_set, "mode once", _with_start),
    _check(check_paper_start, "gates", _with_start),
    _check(check_rejects_outside, "mode", _with_outside),
    _check(check_constraint_holds, "dtype mode"),
    _check(check_large_originals, "dtype mode", lambda case, shape, dtype: case.holds_far),
    _check(check_gradients, "shape dtype mode few", _in_double_precision),
    _check(check_state_dict, "mode once"),
    _check(check_deepcopy, ""),
    _check(check_deepcopy_of_rnn, "gates", _in_a_layer),
    _check(check_to, "dtype"),
    _check(check_remove, ""),
    _check(check_cached, ""),
    _check(check_repeated_reads, "mode"),
    _check(check_averaging, "mode once"),
    _check(check_half_and_back, "mode", lambda case, shape, dtype: dtype.to_real() == torch.float32),
    _check(check_write_during_a_read, "mode once", _with_start),
    _check(check_gradient_of_the_read, "mode once"),
    _check(check_torch_func, "shape gates"),
    _check(check_compile, "once"),
    _check(check_export, "once"),
    _check(check_autocast, ""),
    _check(check_bfloat16, "gates", lambda case, shape, dtype: dtype == torch.float32),
    _check(check_nan, "dtype mode"),
    _check(check_nan_in_a_batch, "shape dtype mode", lambda case, shape, dtype: len(shape) > 2),
    _check(check_bad_input, ""),
    _check(check_random_state, ""),
)


def conformance(case: Case, *, thorough: bool = False) -> list[Trial]:
    """Return the trials of a case: each check that applies, over the axes that it depends on.

    Args:
        case: The parametrization.
        thorough: Take every shape with every dtype, instead of pairs in which each of them occurs.
    """
    trials = []
    for check in CHECKS:
        if case.variant and "mode" not in check.axes and not (thorough and "once" in check.axes):
            continue
        # Which dtype a shape is paired with differs from case to case and from check to check.
        turn = zlib.crc32(f"{case.name} {check}".encode())
        square, rectangles = (
            [(s, d) for s in shapes for d in case.dtypes if check.applies(case, s, d)]
            for shapes in (case.shapes, case.rectangles)
        )
        if thorough:
            chosen = square + rectangles
        elif "once" in check.axes:
            every = square + rectangles
            chosen = [every[turn % len(every)]] if every else []
        else:
            axes = frozenset[str]() if case.variant else check.axes
            chosen = _paired(square, axes, turn)
            shapes = _distinct(s for s, _ in rectangles)
            dtypes = _turned(_distinct(d for _, d in rectangles), turn)
            # The first rectangle, a few, or all of them.
            if "few" in axes:
                shapes = _turned(shapes, turn)[:2]
            elif not axes & {"shape", "gates"}:
                shapes = shapes[:1]
            chosen += zip(shapes, itertools.cycle(dtypes), strict=False)
        trials += [Trial(case, check, shape, dtype) for shape, dtype in chosen]
    return trials


def _distinct(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))


def _turned(values: list[_T], turn: int) -> list[_T]:
    start = turn % max(1, len(values))
    return values[start:] + values[:start]


def _paired(
    possible: list[tuple[Shape, torch.dtype]], axes: frozenset[str], turn: int
) -> list[tuple[Shape, torch.dtype]]:
    """Return pairs in which each value of the given axes occurs, and two representatives of the others."""
    shapes, dtypes = _distinct(s for s, _ in possible), _distinct(d for _, d in possible)
    stacked = [shape for shape in shapes if shape[-2] != shape[-1]]
    square = [shape for shape in shapes if shape not in stacked]
    if axes & {"shape", "gates"}:
        shapes = (square if "shape" in axes else square[:1]) + (stacked if "gates" in axes else [])
    else:
        shapes = square[:1] + stacked[:1]
    if "dtype" not in axes:
        # If possible, a real and a complex dtype of different precision.
        dtypes = sorted(dtypes, key=lambda d: d not in (torch.float64, torch.complex64))[:2]
    count = max(len(shapes), len(dtypes)) if shapes else 0
    pairs = zip(itertools.cycle(shapes), itertools.cycle(_turned(dtypes, turn)), strict=False)
    return [pair for pair in _distinct(itertools.islice(pairs, count)) if pair in possible]


def check_constraint(constraint: Case | Callable[[Shape], nn.Module]) -> None:
    """Run all checks of a constraint.

    Args:
        constraint: A case, or a function that returns a new constraint for a weight of the given shape. Of a
            function, the dtypes are checked that the constraint does not refuse at registration with
            :class:`~spectral_param.errors.UnsupportedDtypeError`.

    Raises:
        AssertionError: If the constraint breaks a contract or raises an error, or if a check that is expected
            to fail passes. It begins with the name of the case, of the check, the shape and the dtype.
    """
    if isinstance(constraint, Case):
        case = constraint
    else:
        case = Case("constraint", constraint)
        case = replace(case, dtypes=tuple(dtype for dtype in case.dtypes if _is_taken(case, dtype)))
    for trial in conformance(case):
        if trial.expected_failure is None:
            try:
                trial()
            except Exception as error:
                what = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                raise AssertionError(f"{trial}: {what}{error}") from error
            continue
        try:
            trial()
        except Exception:
            continue
        raise AssertionError(f"{trial}: expected a failure ({trial.expected_failure}), got none")


def _is_taken(case: Case, dtype: torch.dtype) -> bool:
    """Return whether the constraint takes weights of this dtype."""
    try:
        case.member(case.shapes[0], dtype)
    except UnsupportedDtypeError:
        return False
    return True


def parametrize_with_checks(cases: Iterable[Case], *, thorough: bool = False) -> Any:
    """Return a decorator of pytest: a test function with one argument is run with each trial of the cases.

    A check that is expected to fail is marked as such, with its reason, and strictly.

    Args:
        cases: The constraints.
        thorough: As of :func:`conformance`.
    """
    import pytest

    def marks(trial: Trial) -> Any:
        reason = trial.expected_failure
        return () if reason is None else pytest.mark.xfail(reason=reason, strict=True)

    trials = [trial for case in cases for trial in conformance(case, thorough=thorough)]
    parameters = [pytest.param(trial, marks=marks(trial), id=str(trial)) for trial in trials]

    def decorator(test: Callable[..., None]) -> Any:
        (name,) = inspect.signature(test).parameters
        return pytest.mark.parametrize(name, parameters)(test)

    return decorator
