"""The conformance suite finds what is wrong: each wrong constraint fails the check that is for it."""

import dataclasses
import itertools

import pytest
import torch
from torch.nn.utils import parametrize

import spectral_param as sp
from spectral_param import testing
from tests.promises.cases import CASES


class Skew(sp.Parametrization):
    """W = T - Tᵀ for the entries of T above the diagonal."""

    def reference(self, T):
        return T.triu(1) - T.triu(1).mT

    def outside(self, W, eps):
        return (W + W.mT).abs().amax(dim=(-2, -1)), 100 * eps * W.abs().amax(dim=(-2, -1)).clamp(min=1)

    def near(self, W):
        return (W - W.mT) / 2

    def invert(self, W):
        return W.triu(1)

    def start(self, like):
        return torch.zeros_like(like)

    def free_parameters(self, T):
        return torch.ones_like(T).triu(1).count_nonzero().item()


def member(shape, dtype):
    W = torch.randn(shape, dtype=dtype)
    return W - W.mT


SKEW = testing.Case(
    name="skew",
    make=lambda shape: Skew(),
    member=member,
    violation=lambda W: (W + W.mT).abs().amax(dim=(-2, -1)),
)


def wrong(make):
    return dataclasses.replace(SKEW, make=lambda shape: make())


class UnitColumns(sp.Parametrization):
    """Weight of any shape whose columns have norm 1. Its message does not say what it got."""

    shapes = "any"

    def reference(self, T):
        return T / T.norm(dim=-2, keepdim=True)

    def outside(self, W, eps):
        return (W.norm(dim=-2) - 1).abs().amax(dim=-1), 100 * eps

    def near(self, W):
        return self.reference(W)

    def invert(self, W):
        return W.clone()

    def members(self, W, eps, is_first):
        try:
            return super().members(W, eps, is_first)
        except sp.errors.InManifoldError:
            raise sp.errors.InManifoldError("UnitColumns: expected columns of norm 1.") from None

    def start(self, like):
        return torch.randn_like(like)

    def free_parameters(self, T):
        return T.numel() - T.numel() // T.shape[-2]


COLUMNS = testing.Case(
    name="columns",
    make=lambda shape: UnitColumns(),
    member=lambda shape, dtype: torch.nn.functional.normalize(torch.randn(shape, dtype=dtype), dim=-2),
    violation=lambda W: (W.norm(dim=-2) - 1).abs().amax(dim=-1),
    outside=lambda shape, dtype: 2 * torch.ones(shape, dtype=dtype),
)


class StartsOutside(Skew):
    """Skew-symmetric but for the weight that the paper's start gives."""

    def reference(self, T):
        return super().reference(T) + T.tril()

    def start(self, like):
        return torch.eye(like.shape[-1], dtype=like.dtype)


class StartsAtNaN(Skew):
    def start(self, like):
        return torch.full_like(like, torch.nan)


class CountsTooMany(Skew):
    def free_parameters(self, T):
        return T.numel() + 1


class CountsTooFew(Skew):
    def free_parameters(self, T):
        return -1


class Raises(Skew):
    def free_parameters(self, T):
        raise RuntimeError("no number")


@pytest.mark.parametrize(("kind", "what"), [(CountsTooMany, "expected"), (Raises, "RuntimeError: no number")])
def test_a_failure_names_the_check_the_shape_and_the_dtype(kind, what) -> None:
    with pytest.raises(
        AssertionError, match=rf"^constraint-\w+-[\dx]+-(float|complex)\d+: .*{what}"
    ) as failure:
        testing.check_constraint(lambda shape: kind())
    named = failure.value.args[0].split(":")[0]
    (trial,) = (
        t for t in testing.conformance(testing.Case("constraint", lambda shape: kind())) if str(t) == named
    )
    with pytest.raises((AssertionError, RuntimeError)):
        trial()


class Hidden(sp.Parametrization):
    """The symmetric factor of a positive semidefinite matrix, as docs/custom.md advises to hide NaN."""

    def reference(self, T):
        values, V = torch.linalg.eigh((T + T.mT).nan_to_num())
        return (V * values.exp()[..., None, :]) @ V.mT * (T.sum(dim=(-2, -1), keepdim=True) * 0 + 1)

    def invert(self, W):
        values, V = torch.linalg.eigh((W + W.mT) / 2)
        return (V * values.clamp(min=1e-3).log()[..., None, :] / 2) @ V.mT

    def start(self, like):
        return torch.zeros_like(like)

    def free_parameters(self, T):
        return T.tril().count_nonzero().item()


def test_nan_is_hidden_from_lapack_and_added_again_to_each_matrix() -> None:
    case = testing.Case("hidden", lambda shape: Hidden(), dtypes=(torch.float32, torch.float64))
    for shape in case.shapes:
        testing.check_nan(case, shape, torch.float64)
        if len(shape) > 2:
            testing.check_nan_in_a_batch(case, shape, torch.float64)


def test_a_constraint_that_takes_rectangles_names_some() -> None:
    with pytest.raises(AssertionError, match=r"of shape \(5, 4\)\. Name some rectangles in Case"):
        testing.check_bad_input(COLUMNS, (4, 4), torch.float64)
    named = dataclasses.replace(COLUMNS, rectangles=((7, 4),))
    testing.check_bad_input(named, (4, 4), torch.float64)


def test_a_message_has_the_words_expected_and_got() -> None:
    with pytest.raises(AssertionError, match="a message with 'got' and what was given: UnitColumns"):
        testing.check_rejects_outside(COLUMNS, (4, 4), torch.float64)


def test_the_right_one_passes() -> None:
    testing.check_paper_start(SKEW, (4, 4), torch.float64)
    testing.check_gradients(SKEW, (4, 4), torch.float64)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (StartsOutside, r"paper's start: expected a violation <= .*, got 2\.0e\+00"),
        (StartsAtNaN, "paper's start: expected a violation <= .*, got nan"),
        (CountsTooMany, "expected 0 to 16 free parameters, got 17"),
        (CountsTooFew, "expected 0 to 16 free parameters, got -1"),
    ],
)
def test_wrong_start_or_count(make, match) -> None:
    with pytest.raises(AssertionError, match=match):
        testing.check_paper_start(wrong(make), (4, 4), torch.float64)


def test_the_count_of_complex_entries_is_twice_as_large() -> None:
    testing.check_paper_start(wrong(CountsTooMany), (4, 4), torch.complex128)


def test_no_start_is_asked_of_other_modules() -> None:
    class Double(torch.nn.Module):
        def forward(self, T):
            return 2 * T

    asked = {str(trial.check) for trial in testing.conformance(wrong(Double))}
    assert not asked & {"paper_start", "deepcopy_of_rnn", "projection", "rejects_outside"}


def chosen(case, name, **options):
    return [(t.shape, t.dtype) for t in testing.conformance(case, **options) if str(t.check) == name]


def test_a_check_runs_over_what_it_depends_on_in_pairs() -> None:
    pairs = chosen(SKEW, "right_inverse")
    assert {shape for shape, _ in pairs} == set(SKEW.shapes)
    assert {dtype for _, dtype in pairs} == set(SKEW.dtypes)
    assert len(pairs) == max(len(SKEW.shapes), len(SKEW.dtypes))
    assert {shape for shape, _ in chosen(SKEW, "torch_func")} == set(SKEW.shapes)
    assert {dtype for _, dtype in chosen(SKEW, "nan")} == set(SKEW.dtypes)
    assert {dtype for _, dtype in chosen(SKEW, "gradients")} == {torch.float64, torch.complex128}
    assert {shape for shape, _ in chosen(SKEW, "deepcopy_of_rnn")} == {(4, 4), (16, 4)}
    assert len(chosen(SKEW, "compile")) == 1
    assert not chosen(SKEW, "projection"), "all weights are in the set"


def test_a_variant_is_run_where_the_mode_decides() -> None:
    variant = dataclasses.replace(SKEW, variant=True)
    assert len(chosen(variant, "right_inverse")) == 2
    assert not chosen(variant, "deepcopy"), "it does not depend on the mode"


def test_thorough_takes_each_shape_with_each_dtype() -> None:
    case = dataclasses.replace(SKEW, rectangles=((5, 3),))
    every = set(itertools.product([*SKEW.shapes, (5, 3)], SKEW.dtypes))
    assert set(chosen(case, "right_inverse", thorough=True)) == every


def test_a_constraint_is_checked_from_its_function_alone() -> None:
    class Doubled(Skew):
        def reference(self, T):
            return 2 * super().reference(T)

    testing.check_constraint(lambda shape: Skew())
    with pytest.raises(AssertionError, match="weight after registration"):
        testing.check_constraint(lambda shape: Doubled())


def test_the_defaults_of_a_case_follow_its_function() -> None:
    case = testing.Case("unit columns", lambda shape: sp.ScaledCayley())
    case = dataclasses.replace(case, make=lambda shape: UnitColumns())
    W = case.member((5, 5), torch.float64)
    torch.testing.assert_close(W.norm(dim=-2), torch.ones(5, dtype=torch.float64))
    assert case.violation(W) == 0
    assert case.violation(2 * W) == torch.inf


@pytest.mark.nightly
def test_expected_failures_are_named_with_a_reason() -> None:
    reason = {"gradients": "a term is missing"}
    square = dataclasses.replace(SKEW, shapes=((4, 4), (3, 3)), rectangles=())
    case = dataclasses.replace(square, make=lambda shape: Detached(), expected_failed_checks=reason)
    testing.check_constraint(case)

    @testing.parametrize_with_checks([case])
    def function(trial) -> None:
        trial()

    (mark,) = function.pytestmark
    expected = {p.id: [m.kwargs for m in p.marks] for p in mark.args[1]}
    assert all(bool(marks) == ("-gradients-" in name) for name, marks in expected.items())
    (strict, *_) = (marks[0] for marks in expected.values() if marks)
    assert strict == {"reason": "a term is missing", "strict": True}
    with pytest.raises(AssertionError, match=r"expected a failure \(a term is missing\), got none"):
        testing.check_constraint(dataclasses.replace(square, expected_failed_checks=reason))
    with pytest.raises(ValueError, match=r"expected_failed_checks: expected .*, got gradient"):
        dataclasses.replace(SKEW, expected_failed_checks={"gradient": ""})


class Detached(Skew):
    """Its gradient lacks a term."""

    def reference(self, T):
        return T.triu(1) - T.triu(1).mT.detach()


class _Square(torch.autograd.Function):
    """x², whose first derivative is right and whose second one is zero."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0].detach() * g

    @staticmethod
    def jvp(ctx, dx):
        return 2 * ctx.saved_tensors[0] * dx


class SquareDetached(Skew):
    def reference(self, T):
        return super().reference(_Square.apply(T))


@pytest.mark.parametrize(("make", "order"), [(Detached, "first"), (SquareDetached, "second")])
def test_wrong_gradients_are_an_assertion_error(make, order) -> None:
    with pytest.raises(AssertionError, match=f"{order} derivatives: expected those of finite differences"):
        testing.check_gradients(wrong(make), (4, 4), torch.float64)


def scaled_gradient(T, factor):
    return factor * T + (1 - factor) * T.detach()


class WrongWhenCompiled(sp.SkewExponential):
    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        return super().reference(scaled_gradient(T, -3) if torch.compiler.is_compiling() else T)


class WrongWhenExported(sp.SkewExponential):
    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        return super().reference(-T if torch.compiler.is_compiling() else T)


class WrongInsideCached(sp.SkewExponential):
    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        return super().reference(scaled_gradient(T, 2) if parametrize._cache_enabled else T)


class ForgetsItsBase(sp.SkewExponential):
    """Another orthogonal weight after a change of precision."""

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.base = torch.eye(self.base.shape[-1], dtype=self.base.dtype)
        return self


class Constant(Skew):
    """Nothing that is trained reaches the weight."""

    def reference(self, T):
        return super().reference(T.detach() + 0 * T)


@pytest.mark.parametrize(
    ("make", "check", "match"),
    [
        (WrongWhenCompiled, testing.check_compile, "torch.compile: expected agreement"),
        (WrongWhenExported, testing.check_export, "exported program: expected agreement"),
        (WrongInsideCached, testing.check_cached, r"gradient inside cached\(\): expected agreement"),
        (ForgetsItsBase, testing.check_to, "weight in torch.float32: expected agreement"),
    ],
)
@pytest.mark.turns(2)
def test_wrong_orthogonal_weights(make, check, match) -> None:
    """Their norms are the same whatever they are, so a loss of norms would tell nothing."""
    case = next(case for case in CASES if case.name == "SkewExponential")
    check(case, (4, 4), torch.float64)
    with pytest.raises(AssertionError, match=match):
        check(dataclasses.replace(case, make=lambda shape: make()), (4, 4), torch.float64)


@pytest.mark.parametrize("check", [testing.check_cached, testing.check_torch_func, testing.check_compile])
def test_zeros_are_not_compared(check) -> None:
    with pytest.raises(AssertionError, match="expected a gradient that is not zero"):
        check(wrong(Constant), (4, 4), torch.float64)


@pytest.mark.parametrize("name", ["SkewExponential", "ScaledCayley", "Givens", "Householder"])
def test_checks_hold_for_single_numbers(name) -> None:
    case = next(case for case in CASES if case.name == name)
    for check in (testing.check_bad_input, testing.check_constraint_holds, testing.check_cached):
        check(case, (1, 1), torch.float64)


class FirstHalved(sp.SpectralNorm):
    """Halves the first matrix of a batch alone."""

    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        return T * torch.tensor([0.5, 1.0], dtype=T.dtype)[:, None, None]


def test_check_of_ones_own_constraint_looks_at_each_matrix_of_a_batch() -> None:
    case = sp.testing.Case(
        name="first",
        make=lambda shape: FirstHalved(),
        member=lambda shape, dtype: torch.ones(shape, dtype=dtype) / shape[-1],
        violation=lambda W: torch.relu(torch.linalg.matrix_norm(W, 2) - 0.5),
        outside=lambda shape, dtype: torch.ones(shape, dtype=dtype) / shape[-1],
    )
    with pytest.raises(AssertionError, match="expected a violation <="):
        sp.testing.check_projection(case, (2, 4, 4), torch.float64)


@pytest.mark.parametrize(
    ("tangent", "words"),
    [
        (lambda W, D: 0.5 * (D - D.mT) / 2, "of a tangent"),
        (lambda W, D: D, "by squares"),
        (lambda W, D: 0 * D, "between members"),
        (lambda W, D: (D - D.mT).triu(1) - (D - D.mT).triu(1).mT, "of a tangent"),
        (lambda W, D: D.triu(1) - D.triu(1).mT, "self-adjoint"),
    ],
)
def test_a_wrong_tangent_is_found(tangent, words) -> None:
    class Wrong(Skew):
        def tangent(self, W, D, active=None):
            return tangent(W, D)

    with pytest.raises(AssertionError, match=words):
        testing.check_tangent(wrong(Wrong), (4, 4), torch.float64)


def test_a_right_tangent_passes() -> None:
    class Right(Skew):
        def tangent(self, W, D, active=None):
            return (D - D.mT) / 2

    testing.check_tangent(wrong(Right), (4, 4), torch.float64)
    assert "tangent" in {str(trial.check) for trial in testing.conformance(wrong(Right))}
    assert "tangent" not in {str(trial.check) for trial in testing.conformance(SKEW)}
