"""Sets of weights: how far one is outside, the projection, and what a refusal leaves.

That a projection is a member, and can be assigned, is checked for every constraint by the conformance suite.
"""

import copy
import math
import re

import pytest
import torch
from torch import Tensor

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError
from tests.promises.cases import CASES


def test_distances_in_the_units_of_the_pages() -> None:
    W = 3 * torch.eye(4, dtype=torch.float64)
    expected = {
        sp.ScaledCayley(): 8 * 4**0.5,  # ‖9I - I‖
        sp.SpectralNorm(2.0): 1.0,
        sp.SpectralNorm(4.0): 0.0,
        sp.SpectralNorm(4.0, "equal"): 1.0,
        sp.SpectralRadiusNorm(2.5): 0.5,
        sp.SpectralAbscissa(-1.0): 4.0,
        sp.SingularValues(margin=0.5): 1.5,
        sp.SchurForm(radius=1.0): 2.0,
        sp.LyapunovForm(0.9): 2.1,
        sp.LyapunovForm(0.9, metric="diagonal"): 2.1,
        sp.SignPattern(-torch.ones(4, 4)): 3.0,
        sp.BlockTriangular([(2, sp.ScaledCayley()), (2, sp.SpectralNorm(1.0))]): 8 * 2**0.5,
    }
    for constraint, distance in expected.items():
        found = constraint.distance(W)
        assert found.shape == ()
        assert found.item() == pytest.approx(distance, abs=1e-9), constraint
        assert constraint.in_manifold(W) == (distance == 0), constraint


def test_a_distance_for_each_matrix_and_gate() -> None:
    W = torch.stack([torch.eye(3), 2 * torch.eye(3)])
    assert sp.SpectralNorm(1.0).distance(W).tolist() == pytest.approx([0, 1])
    lstm = sp.constrain(torch.nn.LSTM(2, 3), "weight_hh_l0", sp.SpectralNorm(1.0))
    gates = torch.cat([k * torch.eye(3) for k in (1.0, 2.0, 0.5, 4.0)])
    constraint = sp.constraints(lstm)["weight_hh_l0"]
    assert constraint.distance(gates).tolist() == pytest.approx([0, 1, 0, 3])
    assert constraint.project(gates).shape == (12, 3)


def test_a_member_beside_a_matrix_outside_keeps_its_bits() -> None:
    """The nearest weight to a member up to rounding is another one."""
    member = torch.eye(5, 3)
    member[0, 0] += 10 * torch.finfo(torch.float32).eps  # 20 eps outside, of which 30 may be rounding.
    P = sp.ScaledCayley().project(torch.stack([member, torch.ones(5, 3)]))
    assert torch.equal(P[0], member)


def test_rows_alone_do_not_make_a_doubly_stochastic_weight() -> None:
    W = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    assert sp.Stochastic().distance(W).item() == 0
    assert sp.DoublyStochastic().distance(W).item() == pytest.approx(0.25)


@pytest.mark.parametrize("stride", [1, 2])
def test_kernels_are_projected(stride) -> None:
    conv = sp.constrain(torch.nn.Conv2d(3, 6, 3, stride=stride), "weight", sp.SpectralNorm(1.0))
    constraint, K = sp.constraints(conv)["weight"], 10 * torch.randn(6, 3, 3, 3)
    P = constraint.project(K)
    assert constraint.distance(K).item() > 1
    assert constraint.distance(P).item() == 0
    assert torch.equal(constraint.project(P), P)
    torch.testing.assert_close(P / P.norm(), K / K.norm())  # A multiple of K.
    conv.weight = P
    torch.testing.assert_close(conv.weight, P)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_projection_onto_orthonormal_columns_is_the_polar_factor(dtype) -> None:
    W = torch.randn(7, 4, dtype=dtype)
    U, _, Vh = torch.linalg.svd(W, full_matrices=False)
    for constraint in (sp.ScaledCayley(), sp.Householder()):
        torch.testing.assert_close(constraint.project(W), U @ Vh)
        torch.testing.assert_close(constraint.project(W.mT), (U @ Vh).mT)


def test_singular_values_are_clipped() -> None:
    W = torch.diag(torch.tensor([3.0, 1.1, 0.2], dtype=torch.float64))
    P = sp.SingularValues(margin=0.5).project(W)
    torch.testing.assert_close(P, torch.diag(torch.tensor([1.5, 1.1, 0.5], dtype=torch.float64)))


def test_the_determinant_counts_where_it_is_given() -> None:
    W = torch.eye(4, dtype=torch.float64)
    constraint = sp.ScaledCayley(negative_ones=1)
    assert constraint.distance(W).item() == 2
    P = constraint.project(torch.diag(torch.tensor([5.0, 4.0, 3.0, 2.0], dtype=torch.float64)))
    torch.testing.assert_close(P, torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64)))


def test_a_nilpotent_weight_stays_at_a_distance_and_is_warned_of() -> None:
    W = torch.ones(4, 4).triu(1)
    with pytest.warns(DegenerateEigenvalueWarning, match="stays as it is"):
        P = sp.SpectralRadiusNorm(0.7).project(W)
    assert torch.equal(P, W)
    assert sp.SpectralRadiusNorm(0.7).distance(W).item() == pytest.approx(0.7)


@pytest.mark.nightly
def test_what_the_search_does_not_know_is_moved_off_the_border() -> None:
    """A form of a small condition is not found for what the map makes of a nilpotent matrix."""
    constraint = sp.LyapunovForm(0.9, growth=1.5)
    P = constraint.project(torch.ones(3, 3, dtype=torch.float64).triu(1))
    assert constraint.in_manifold(P)
    assert P.norm() > 0.3


@pytest.mark.parametrize(
    "make",
    [
        lambda: sp.FourierUnitary(),
        lambda: sp.Householder(2),
        lambda: sp.Givens(2),
        lambda: sp.SingularValues(0.5, reflections=2),
    ],
)
def test_what_has_no_inverse_knows_the_last_weight_alone(make) -> None:
    layer = torch.nn.Linear(5, 5, dtype=torch.complex128)
    layer = sp.constrain(layer, "weight", make(), init="paper")
    W = layer.weight.detach()
    constraint = sp.constraints(layer)["weight"]
    assert constraint.distance(W).item() == 0
    assert torch.equal(constraint.project(W), W)
    for method in (constraint.distance, constraint.project):
        with pytest.raises(InManifoldError, match="init='paper'"):
            method(torch.eye(5, dtype=torch.complex128))


def test_a_latch_is_judged_as_it_is_and_never_closed() -> None:
    layer = torch.nn.Linear(4, 4, bias=False)
    layer.weight.data = torch.diag(torch.tensor([0.5, 0.4, 0.3, 0.2]))
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(1.0, "latched"))
    constraint = sp.constraints(layer)["weight"]
    assert constraint.distance(torch.eye(4) / 2).item() == 0
    constraint.project(3 * torch.eye(4))
    assert not constraint.latched.any()
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(4)
    layer.weight  # noqa: B018
    assert constraint.latched.all()
    assert constraint.distance(torch.eye(4) / 2).item() == 0.5
    layer.weight = torch.eye(4) / 2  # An assignment opens the latch.
    assert not constraint.latched.any()


REFUSED = {
    "latched": (lambda: sp.SpectralRadiusNorm(1.0, "latched"), 3 * torch.eye(4)),
    "present": (lambda: sp.SpectralNorm("present"), 50 * torch.eye(4)),
    "signs": (lambda: sp.ScaledCayley(), 2 * torch.eye(4)),
    "base": (lambda: sp.SkewExponential(), 2 * torch.eye(4)),
    "pairs": (lambda: sp.SchurForm(radius=1.0), 2 * torch.eye(4)),
    "blocks": (
        lambda: sp.BlockTriangular([(2, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm())]),
        torch.diag(torch.tensor([-1.0, -1.0, 5.0, 5.0])),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_assignment_changes_nothing_and_its_remedy_works(name) -> None:
    make, outside = REFUSED[name]
    layer = torch.nn.Sequential(sp.constrain(torch.nn.Linear(4, 4), "weight", make()))
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with pytest.raises(InManifoldError, match=r"constraints\(model\)\[name\].project\(W\)"):
        layer[0].weight = outside
    after = layer.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    projected = sp.constraints(layer)["0.weight"].project(outside)
    layer[0].weight = projected
    torch.testing.assert_close(layer[0].weight, projected, atol=1e-5, rtol=1e-5)


def test_violation_is_by_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LSTM(4, 4))
    sp.constrain(model, "0.weight", sp.ScaledCayley())
    sp.constrain(model, "1.weight_hh_l0", sp.SpectralRadiusNorm(0.9))
    assert sp.violation(model) == {"0.weight": 0.0, "1.weight_hh_l0": 0.0}
    kinds = [type(constraint) for constraint in sp.constraints(model).values()]
    assert kinds == [sp.ScaledCayley, sp.SpectralRadiusNorm]
    assert sp.violation(torch.nn.Linear(2, 2)) == {}
    model[0].parametrizations.weight.original.data.fill_(math.nan)
    assert math.isnan(sp.violation(model)["0.weight"])
    with pytest.raises(ValueError, match="model: expected"):
        sp.violation(torch.eye(2))


@pytest.mark.parametrize("rebased", [False, True])
@pytest.mark.parametrize("kind", [sp.SpectralNorm, sp.SpectralRadiusNorm, sp.SpectralAbscissa])
def test_an_original_beyond_its_bound_comes_back_by_rebase(kind, rebased) -> None:
    """The loss does not see its size: without, the weight stays at the bound."""
    layer = sp.constrain(torch.nn.Linear(1, 1, dtype=torch.float64), "weight", kind(1.0, "at_most"))
    (T,) = layer.parametrizations.weight.parameters()
    T.data.fill_(3.0)
    optimizer = torch.optim.SGD([T], 0.1)
    for _ in range(40):
        before = layer.weight.detach()
        if rebased:
            sp.rebase(layer)
            torch.testing.assert_close(layer.weight.detach(), before)
        optimizer.zero_grad()
        (layer.weight - 0.5).square().sum().backward()
        optimizer.step()
    assert layer.weight.item() == pytest.approx(0.5 if rebased else 1.0, abs=1e-3)


def test_a_weight_that_is_moved_to_an_abscissa_can_leave_it() -> None:
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    layer.weight.data.fill_(3.0)
    layer = sp.constrain(layer, "weight", sp.LyapunovForm(abscissa=0.0))
    optimizer = torch.optim.Adam(layer.parameters(), 0.03)
    for _ in range(100):
        optimizer.zero_grad()
        (layer.weight + 0.5).square().sum().backward()
        optimizer.step()
    assert layer.weight.item() == pytest.approx(-0.5, abs=0.01)


def test_a_checkpoint_that_lost_its_constraints_is_noticed() -> None:
    """Weights that are held after the step load into the plain class without a word."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LSTM(4, 4))
    plain = copy.deepcopy(model)
    expected = {"*.weight": sp.ScaledCayley(), "1.weight_hh_l0": sp.SpectralNorm(0.5)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pattern, constraint in expected.items():
        sp.constrain(model, pattern, constraint, optimizer=optimizer)
    plain.load_state_dict(model.state_dict())
    assert sp.violation(plain) == {}
    assert sp.violation(plain, expected) == {"0.weight": 0.0, "1.weight_hh_l0": 0.0}
    plain[1].weight_hh_l0.data[:4] = torch.eye(4)  # One gate.
    assert sp.violation(plain, expected)["1.weight_hh_l0"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="tensor_name: expected"):
        sp.violation(plain, {"nothing": sp.ScaledCayley()})


def test_an_average_is_outside_and_mended() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.ScaledCayley())
    first: Tensor = torch.linalg.qr(torch.randn(6, 6)).Q
    mean = (first + torch.linalg.qr(torch.randn(6, 6)).Q) / 2
    constraint = sp.constraints(layer)["weight"]
    assert constraint.distance(mean).item() > 0.1
    assert constraint.in_manifold(constraint.project(mean))
    before = copy.deepcopy(layer.state_dict())
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())


@pytest.mark.parametrize("power", [-100, -67, 67, 100])
@pytest.mark.parametrize("kind", [sp.SpectralRadiusNorm, sp.SpectralNorm, sp.SpectralAbscissa])
@pytest.mark.turns(1)
def test_weight_and_bound_of_any_size(kind, power) -> None:
    """A weight beyond a bound that is as small, or as large, goes to the bound."""
    W, c = torch.randn(5, 5), 2.0**power
    expected = kind(0.1, "at_most").project(W) * c
    torch.testing.assert_close(kind(0.1 * c, "at_most").project(W * c), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("n", [5, 70])
@pytest.mark.parametrize("mode", ["equal", "at_most"])
@pytest.mark.turns(1)
def test_followed_norms_of_any_size(n, mode) -> None:
    """From a weight of one size to that of another one, 2^1200 times as large."""
    for power in (-600, 600):
        layer = torch.nn.Linear(n, n, dtype=torch.float64)
        layer.weight.data.mul_(2.0**power)
        layer = sp.constrain(layer, "weight", sp.SpectralNorm(1.0, mode))
        for sign in (1, -1):
            with torch.no_grad():
                layer.parametrizations.weight.original.normal_().mul_(2.0 ** (sign * power))
            size = torch.linalg.matrix_norm(layer.weight.detach(), 2).item()
            is_small = mode == "at_most" and sign * power < 0
            assert size == pytest.approx(0.0 if is_small else 1.0, abs=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.turns(1)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # By numpy, which is right.
def test_a_norm_that_overflows_is_no_member(case) -> None:
    """Finite entries near the largest number: a member is found, or an error says what is wrong.

    The norm of such a matrix is infinite, and so is the rounding error of this norm.
    """
    dtype = torch.float64 if torch.float64 in case.dtypes else torch.complex128
    sizes = torch.rand(6, 6, dtype=dtype.to_real()) / 2 + 0.5
    W = torch.where(torch.randn(6, 6, dtype=dtype.to_real()) > 0, sizes, -sizes).to(dtype)
    W = W * (0.9 * torch.finfo(dtype).max)
    constraint = case.make((6, 6))
    try:
        P = constraint.project(W)
        distances = constraint.distance(P), constraint.distance(W)
    except (ValueError, torch.linalg.LinAlgError) as error:
        said = str(error)
    else:
        said = ""
        assert not torch.equal(P, W) or not case.outside
        assert not distances[0].any()
        assert distances[1].max() > 0 or not case.outside
    assert not said or re.search("expected.*got", said)


def test_departures_of_any_size() -> None:
    W, constraint = torch.randn(4, 4, dtype=torch.float64), sp.SchurForm(radius=0.9, departure=6.0)
    torch.testing.assert_close(constraint.project(W * 2.0**600), constraint.project(W * 2.0**100))


# Without the searches that take long, and without a Schur form whose eigenvalues may be ill conditioned.
SLOW = ("BoundedGain", "LyapunovForm-", "SchurForm-abscissa")
HALF = [
    case
    for case in CASES
    if torch.float32 in case.dtypes and case.recovers and case.outside and not case.name.startswith(SLOW)
]


@pytest.mark.parametrize("case", HALF, ids=lambda case: case.name)
def test_half_precision_does_not_hide_what_is_outside(case) -> None:
    """Rounding errors of 24 columns are no excuse for a weight that is twice as large as it may be."""
    W = case.outside((24, 24), torch.float32)
    W = (W if "tochastic" in case.name else 3 * W).bfloat16()
    constraint = case.make((24, 24))
    before = constraint.distance(W.float()).max().item()
    assert constraint.distance(W).max().item() == pytest.approx(before, rel=1e-2)
    P = constraint.project(W)
    assert constraint.distance(P).max().item() == 0
    assert torch.equal(constraint.project(P), P)
    assert constraint.distance(P.float()).max().item() < 0.5 * before


@pytest.mark.parametrize("n", [8, 24])
def test_half_precision_is_put_back_inside_a_diagonal_metric(n) -> None:
    layer = torch.nn.Linear(n, n, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    W = 3 * torch.randn(n, n).bfloat16()
    sp.constrain(layer, "weight", sp.LyapunovForm(0.9, metric="diagonal"), optimizer=optimizer)
    layer.weight.data.copy_(W)
    layer.weight.grad = torch.zeros_like(W)
    optimizer.step()
    X = layer.weight.detach().double()
    assert torch.linalg.eigvals(X).abs().max() < 0.9
    torch.testing.assert_close(X / X.norm(), W.double() / W.double().norm(), atol=0.01, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_bits(dtype) -> None:
    for constraint in (sp.ScaledCayley(), sp.SpectralNorm(1.0, "equal"), sp.LyapunovForm(0.9)):
        P = constraint.project(torch.randn(8, 8).to(dtype))
        assert P.dtype == dtype
        assert torch.equal(constraint.project(P), P)
        assert constraint.distance(P).item() == 0


@pytest.mark.parametrize("method", ["distance", "project"])
def test_bad_input(method) -> None:
    for W in (
        torch.ones(3),
        torch.ones(2, 3, dtype=torch.int64),
        torch.full((3, 3), math.nan),
        torch.ones(2, 3),
    ):
        with pytest.raises(ValueError, match="expected"):
            getattr(sp.SpectralRadiusNorm(), method)(W)
