"""SpectralRadiusNorm: modes, radii, gates, and degenerate matrices (one test for each promise)."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError
from spectral_param.testing import Holder
from tests import matrices
from tests.promises.cases import radii, with_radius


def constrained(weight, **kwargs):
    layer = torch.nn.Linear(weight.shape[-1], weight.shape[-2], bias=False, dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight.clone())
    register_parametrization(layer, "weight", sp.SpectralRadiusNorm(**kwargs))
    return layer


def radius(layer):
    return radii(layer.weight.detach())


def set_original(layer, T):
    layer.parametrizations.weight.original.data.copy_(T)


def parametrization(layer):
    return layer.parametrizations.weight[0]


# Modes --------------------------------------------------------------------------------------------


def test_equal_scales_up_and_down() -> None:
    for rho in (0.1, 1.0, 7.0):
        layer = constrained(with_radius((6, 6), torch.float64, rho))
        assert radius(layer).item() == pytest.approx(1, abs=1e-13)


def test_at_most_leaves_small_radii_alone() -> None:
    T = with_radius((6, 6), torch.float64, 0.3)
    layer = constrained(T, mode="at_most")
    assert torch.equal(layer.weight, T)
    set_original(layer, 5 * T)
    assert radius(layer).item() == pytest.approx(1)
    set_original(layer, 2 * T)
    assert radius(layer).item() == pytest.approx(0.6), "at_most has no memory"


def test_latched_stays_normalised_once_it_was() -> None:
    T = with_radius((6, 6), torch.float64, 0.5)
    layer = constrained(T, mode="latched")
    assert torch.equal(layer.weight, T)
    set_original(layer, 3 * T)
    assert radius(layer).item() == pytest.approx(1)
    set_original(layer, T)
    assert radius(layer).item() == pytest.approx(1), "normalised for all subsequent steps"


@pytest.mark.parametrize(
    ("n", "mode", "kind"),
    [
        (6, "equal", np.float32),
        (40, "at_most", np.float64),
        (100, "latched", torch.tensor),
        (6, "at_most", torch.tensor),
    ],
)
def test_numbers_of_every_kind(n, mode, kind) -> None:
    T = with_radius((n, n), torch.float64, 0.97)
    results = []
    for number in (float, kind):
        layer = constrained(T, radius=number(1.25), mode=mode)
        parametrization(layer).radius = number(1.5)
        original = layer.parametrizations.weight.original
        for factor in (1.0, 4.0):
            set_original(layer, factor * T)
            W = layer.weight
            results.append((W.detach(), *torch.autograd.grad(W[0].square().sum(), original)))
    for expected, found in zip(results[:2], results[2:], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("n", "batch"), [(5, (2,)), (100, ())])
@pytest.mark.parametrize(
    "make",
    [
        lambda: sp.SpectralRadiusNorm(mode="at_most"),
        lambda: sp.SpectralRadiusNorm(mode="latched"),
        lambda: sp.SpectralRadiusNorm(mode="at_most", of="absolute"),
        lambda: sp.SpectralAbscissa(1.0, mode="at_most"),
    ],
    ids=["at_most", "latched", "absolute", "abscissa"],
)
def test_second_derivatives_where_the_weight_is_the_original(make, batch, n) -> None:
    """Also where those of the eigenvalue do not exist: all eigenvalues are equal."""
    T = (0.5 * torch.eye(n, dtype=torch.float64)).expand(*batch, n, n).clone()
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(T)
    sp.constrain(module, "weight", make())
    original = module.parametrizations.weight.original
    G, x = torch.randn(2, *T.shape, dtype=T.dtype)
    (first,) = torch.autograd.grad((G * module.weight**2).sum(), original, create_graph=True)
    (second,) = torch.autograd.grad((first * x).sum(), original)
    torch.testing.assert_close(second, 2 * G * x)

    def value(T):
        return (
            G * torch.func.functional_call(module, {"parametrizations.weight.original": T}, ()) ** 2
        ).sum()

    module.forward = lambda: module.weight
    found = torch.func.grad(lambda T: (torch.func.grad(value)(T) * x).sum())(original.detach())
    torch.testing.assert_close(found, 2 * G * x)


def test_latch_closes_in_training_only() -> None:
    T = with_radius((6, 6), torch.float64, 0.5)
    layer = constrained(T, mode="latched").eval()
    set_original(layer, 3 * T)
    assert radius(layer).item() == pytest.approx(1)
    set_original(layer, T)
    assert radius(layer).item() == pytest.approx(0.5)


def test_latch_of_each_matrix_by_itself() -> None:
    T = with_radius((3, 5, 5), torch.float64, 0.5)
    module = sp.testing.Holder(T.clone())
    register_parametrization(module, "weight", sp.SpectralRadiusNorm(mode="latched"))
    module.parametrizations.weight.original.data[1] *= 4
    assert radii(module.weight).flatten().tolist() == pytest.approx([0.5, 1.0, 0.5])
    module.parametrizations.weight.original.data[1] /= 4
    assert radii(module.weight).flatten().tolist() == pytest.approx([0.5, 1.0, 0.5])


def test_latch_is_saved_and_restored() -> None:
    T = with_radius((6, 6), torch.float64, 0.5)
    layer = constrained(T, mode="latched")
    set_original(layer, 3 * T)
    assert radius(layer).item() == pytest.approx(1)
    set_original(layer, T)
    restored = constrained(T, mode="latched")
    restored.load_state_dict(layer.state_dict())
    assert radius(restored).item() == pytest.approx(1)
    assert radius(copy.deepcopy(restored)).item() == pytest.approx(1)


def test_assignment_opens_the_latch() -> None:
    T = with_radius((6, 6), torch.float64, 0.5)
    layer = constrained(3 * T, mode="latched")
    assert parametrization(layer).latched.all()
    layer.weight = T
    assert torch.equal(layer.weight, T)


def test_registration_keeps_the_direction_and_starts_from_the_weight() -> None:
    T = with_radius((6, 6), torch.float64, 3.0)
    for mode in ("equal", "at_most", "latched"):
        torch.testing.assert_close(constrained(T, mode=mode).weight, T / 3)


# The radius ---------------------------------------------------------------------------------------


def test_radius_for_each_matrix_of_a_batch() -> None:
    wanted = torch.tensor([0.5, 1.0, 2.0])
    module = sp.testing.Holder(torch.randn(3, 4, 4))
    register_parametrization(module, "weight", sp.SpectralRadiusNorm(radius=wanted))
    torch.testing.assert_close(radii(module.weight).flatten(), wanted)


def test_radius_from_a_list_survives_a_trip_through_bfloat16() -> None:
    module = sp.testing.Holder(torch.randn(2, 4, 4))
    register_parametrization(module, "weight", sp.SpectralRadiusNorm(radius=[0.5, 0.9]))
    module.bfloat16().double()
    assert radii(module.weight).flatten().tolist() == pytest.approx([0.5, 0.9], abs=1e-12)


def test_radius_for_each_gate() -> None:
    wanted = torch.tensor([0.2, 0.4, 0.6, 0.8])
    lstm = sp.constrain(torch.nn.LSTM(3, 5), "weight_hh_l0", sp.SpectralRadiusNorm(radius=wanted))
    torch.testing.assert_close(radii(lstm.weight_hh_l0), wanted)


def test_a_python_radius_is_exact_in_float64() -> None:
    layer = constrained(torch.randn(4, 4, dtype=torch.float64), radius=0.95)
    assert radius(layer).item() == pytest.approx(0.95, abs=1e-14)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"radius": 0.0}, "radius: expected.*got 0.0"),
        ({"radius": -1.0}, "radius: expected.*got -1"),
        ({"radius": float("nan")}, "radius: expected.*got nan"),
        ({"radius": torch.tensor([1.0, 0.0])}, "radius: expected.*got"),
        ({"radius": torch.nn.Parameter(torch.ones(2))}, "radius: expected.*got a Parameter"),
        ({"mode": "below"}, "mode: expected.*got 'below'"),
        ({"solver": "power"}, "solver: expected.*got 'power'"),
        ({"radius": None}, "radius: expected.*got None"),
        ({"radius": ["a"]}, r"radius: expected.*got \['a'\]"),
    ],
)
def test_radii_modes_and_solvers_out_of_range_are_named(kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.SpectralRadiusNorm(**kwargs)


def test_radius_of_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"radius: expected.*got shape \(2,\)"):
        register_parametrization(
            sp.testing.Holder(torch.randn(3, 4, 4)), "weight", sp.SpectralRadiusNorm(torch.ones(2))
        )


def test_lstm_weight_that_is_no_stack_of_squares() -> None:
    with pytest.raises(sp.errors.NotSquareError, match=r"expected.*got shape \(12, 5\)"):
        sp.constrain(torch.nn.Linear(5, 12), "weight", sp.SpectralRadiusNorm())


def test_message_of_an_assignment_outside() -> None:
    layer = constrained(torch.randn(4, 4))
    W = with_radius((4, 4), torch.float32, 0.5)
    with pytest.raises(InManifoldError, match=r"SpectralRadiusNorm: expected.*= 1, got one outside by 0\.5"):
        layer.weight = W
    layer.weight = 2 * W  # The remedy.


def test_ill_conditioned_outputs_can_be_assigned_back() -> None:
    """The radius of forward's own output is off by its eigenvalue's condition number: accepted."""
    Q = torch.linalg.qr(torch.randn(2, 2)).Q
    T = Q @ torch.tensor([[1.0, 10.0], [0.0, 0.9]]) @ Q.mT
    layer = constrained(T)
    W = layer.weight.detach().clone()
    assert matrices.dominant_condition(W.double().numpy()) > 50
    layer.weight = W
    torch.testing.assert_close(layer.weight, W, rtol=1e-3, atol=1e-3)


def test_state_dict_of_another_size() -> None:
    state = constrained(torch.randn(5, 5)).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        constrained(torch.randn(4, 4)).load_state_dict(state)


def test_repr_says_what_it_does() -> None:
    assert "radius=0.9, mode='equal', solver='auto'" in repr(sp.SpectralRadiusNorm(0.9))


# Degenerate matrices ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "bad"), [("equal", torch.nan), ("at_most", torch.inf), ("latched", torch.nan)]
)
def test_nan_in_nan_out(mode, bad) -> None:
    layer = constrained(torch.randn(5, 5), mode=mode)
    T = torch.randn(5, 5)
    T[1, 2] = bad
    set_original(layer, T)
    W = layer.weight
    assert W.isnan().all()
    W.sum().backward()
    assert layer.parametrizations.weight.original.grad.isnan().all()


@pytest.mark.parametrize("mode", ["equal", "at_most", "latched"])
def test_nan_weight_at_registration(mode) -> None:
    with pytest.raises(sp.errors.NotFiniteError):
        constrained(torch.full((5, 5), torch.nan), mode=mode)


def test_tie_gives_the_gradient_of_one_of_them() -> None:
    T = torch.diag(torch.tensor([2.0, -2.0, 1.0], dtype=torch.float64))
    layer = constrained(T)
    G = torch.randn(3, 3, dtype=torch.float64)
    (layer.weight * G).sum().backward()
    W = T / 2
    candidates = []
    for k in (0, 1):
        C = torch.zeros(3, 3, dtype=torch.float64)
        C[k, k] = T[k, k].sign()
        # The original was scaled to radius 1 at registration.
        candidates.append(G - (G * W).sum() * C)
    gradient = layer.parametrizations.weight.original.grad
    assert any(torch.allclose(gradient, c) for c in candidates)


def test_defective_takes_the_radius_for_a_constant_and_warns_once() -> None:
    layer = constrained(torch.randn(4, 4, dtype=torch.float64))
    set_original(layer, matrices.jordan(4, 2.0))
    with pytest.warns(DegenerateEigenvalueWarning, match="defective") as record:
        W = layer.weight
    assert record[0].filename == __file__, "points to the line that reads the weight"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_original(layer, matrices.jordan(4, 3.0))
        assert torch.equal(layer.weight, matrices.jordan(4, 3.0) / 3), "and without a second warning"
    torch.testing.assert_close(W, matrices.jordan(4, 2.0) / 2)
    G = torch.randn(4, 4, dtype=torch.float64)
    (W * G).sum().backward()
    torch.testing.assert_close(layer.parametrizations.weight.original.grad, G / 2)


def test_defective_within_the_radius_is_nobodys_business() -> None:
    layer = constrained(0.5 * torch.eye(3), mode="at_most")
    set_original(layer, matrices.jordan(3, 0.5).float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(layer.weight, matrices.jordan(3, 0.5).float())


@pytest.mark.parametrize("mode", ["equal", "at_most", "latched"])
@pytest.mark.parametrize("T", [torch.zeros(4, 4), torch.diag(torch.ones(3), 1)], ids=["zero", "nilpotent"])
def test_zero_radius_gives_a_finite_weight(mode, T) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateEigenvalueWarning)
        layer = constrained(T, mode=mode)
        W = layer.weight
    assert torch.equal(W, T)
    W.sum().backward()
    assert layer.parametrizations.weight.original.grad.isfinite().all()


def test_zero_radius_warns_that_the_radius_cannot_be_had() -> None:
    with pytest.warns(DegenerateEigenvalueWarning, match="zero"):
        constrained(torch.zeros(3, 3))


@pytest.mark.kernels
@pytest.mark.parametrize("solver", ["dense", "tracking"])
@pytest.mark.parametrize("exponent", [-120, -66, 66, 110])
def test_scale_does_not_matter(solver, exponent) -> None:
    """Not to the weight, and the gradient is divided by it."""
    T, G = torch.randn(2, 40, 40)
    scale = 2.0**exponent
    torch.testing.assert_close(constrained(scale * T).weight, constrained(T).weight)
    results = []
    for c in (1.0, scale):
        layer = constrained(T, solver=solver)
        set_original(layer, c * T)
        layer.weight.backward(G)
        results.append((layer.weight, c * layer.parametrizations.weight.original.grad))
    (W, grad), (scaled_W, scaled_grad) = results
    # Tracked: ρ to 16 eps and each eigenvector to 16√eps, here twice each. An error of the vectors is divided
    # by vᴴu and multiplied by the gradient of ρ.
    triple = sp.functional.dominant_eigen(T)
    condition = (triple.left.conj() * triple.right).sum().abs()
    eps = torch.finfo(T.dtype).eps
    vectors = 64 * eps**0.5 / condition * (G * W).sum().abs() / triple.eigenvalue.abs()
    tracked = solver == "tracking"
    # Entries of 2^-120 T are multiples of 2^-149, the smallest number.
    torch.testing.assert_close(W, scaled_W, rtol=32 * eps, atol=2.0**-29)
    torch.testing.assert_close(grad, scaled_grad, rtol=1e-4, atol=vectors.item() if tracked else 1e-5)


@pytest.mark.parametrize(
    ("n", "solver", "dtype"),
    [
        (2, "dense", torch.float32),
        (40, "dense", torch.complex64),
        (40, "tracking", torch.float32),
        (2, "tracking", torch.complex64),
    ],
)
def test_entries_next_to_the_largest_number(dtype, n, solver) -> None:
    """ρ itself is none then; W = T/ρ is."""
    T = torch.full((n, n), 3e38, dtype=dtype)
    for layer in (constrained(T, solver=solver), constrained(torch.eye(n, dtype=dtype), solver=solver)):
        set_original(layer, T)
        torch.testing.assert_close(layer.weight, torch.full_like(T, 1 / n))
        layer.weight.abs().sum().backward()
        assert layer.parametrizations.weight.original.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_radius_without_a_reciprocal_counts_as_zero(dtype) -> None:
    T = 1e-39 * torch.eye(3, dtype=dtype)
    with pytest.warns(DegenerateEigenvalueWarning, match="zero"):
        layer = constrained(T)
    assert torch.equal(layer.weight, T)
    layer.weight.real.sum().backward()
    assert layer.parametrizations.weight.original.grad.isfinite().all()
    layer = constrained(torch.eye(3, dtype=dtype))
    set_original(layer, 2e-38 * torch.eye(3, dtype=dtype))
    torch.testing.assert_close(layer.weight, torch.eye(3, dtype=dtype))


def test_rounding_alone_does_not_close_a_latch() -> None:
    for _ in range(20):
        Q = torch.linalg.qr(torch.randn(6, 6)).Q
        assert not parametrization(constrained(Q, mode="latched")).latched.any()


# Reading the weight -------------------------------------------------------------------------------


def test_an_edit_that_keeps_the_old_eigenpair_is_seen() -> None:
    """A residual check alone would pass: the old vector still is an eigenvector, but not dominant."""
    layer = constrained(torch.diag(torch.tensor([1.0, 0.5])))
    assert torch.equal(layer.weight, torch.diag(torch.tensor([1.0, 0.5])))
    layer.parametrizations.weight.original.data[1, 1] = 2.0
    assert torch.equal(layer.weight, torch.diag(torch.tensor([0.5, 1.0])))


def test_two_forwards_before_one_backward() -> None:
    layer = constrained(torch.randn(4, 4, dtype=torch.float64))
    original = layer.parametrizations.weight.original
    first = layer.weight
    T = original.detach().clone()
    set_original(layer, torch.randn(4, 4, dtype=torch.float64))
    second = layer.weight
    assert not torch.equal(first, second)
    set_original(layer, T)
    G = torch.randn(4, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((first * G).sum(), original)
    expected = constrained(T)
    (wanted,) = torch.autograd.grad((expected.weight * G).sum(), expected.parametrizations.weight.original)
    torch.testing.assert_close(gradient, wanted)


def test_reading_in_inference_mode_does_not_spoil_training() -> None:
    layer = constrained(torch.randn(4, 4))
    set_original(layer, torch.randn(4, 4))
    with torch.inference_mode():
        layer.weight.sum()
    layer.weight.sum().backward()
    with torch.no_grad():
        layer.weight.sum()
    layer.weight.sum().backward()


BADLY_SCALED = [[1.0, 3e7], [1e-7, 1.0]]


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-5), (torch.float64, 1.0), (torch.complex64, 1e5)]
)
def test_units_of_rows_and_columns_do_not_make_a_matrix_nilpotent(dtype, scale) -> None:
    """The radius of the matrix is 2.73. Warnings are errors here."""
    layer = torch.nn.Linear(2, 2, bias=False, dtype=dtype)
    layer.weight.data = scale * torch.tensor(BADLY_SCALED, dtype=dtype)
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(0.5, mode="at_most"))
    T = layer.parametrizations.weight.original
    for _ in range(3):
        W = layer.weight
        expected = min(0.5, torch.linalg.eigvals(T.detach().to(torch.complex128)).abs().max().item())
        rho = torch.linalg.eigvals(W.detach().to(torch.complex128)).abs().max().item()
        assert rho == pytest.approx(expected, rel=1e-5)
        T.data = scale * 1.5 * torch.tensor(BADLY_SCALED, dtype=dtype)


def test_the_gradient_of_a_badly_scaled_matrix() -> None:
    T = torch.tensor(BADLY_SCALED, dtype=torch.float64, requires_grad=True)
    constraint = sp.constrain(torch.nn.Linear(2, 2, dtype=torch.float64), "weight", sp.SpectralRadiusNorm())
    constraint = constraint.parametrizations.weight[0]
    d = torch.tensor([1e-7, 1.0], dtype=torch.float64)  # Units in which all entries are of order 1.
    weights = torch.tensor([[0.3, -0.2], [0.7, 0.5]], dtype=torch.float64)

    def loss(W):
        return (weights * W / d * d[:, None]).sum()

    (found,) = torch.autograd.grad(loss(constraint(T)), T)
    S = (T.detach() / d * d[:, None]).requires_grad_()
    rho = torch.linalg.eigvals(S).abs().max()
    (expected,) = torch.autograd.grad((weights * S / rho).sum(), S)
    torch.testing.assert_close(found * d / d[:, None], expected, atol=1e-9, rtol=1e-6)


def test_a_badly_scaled_weight_outside_cannot_be_assigned() -> None:
    layer = sp.constrain(
        torch.nn.Linear(2, 2, bias=False), "weight", sp.SpectralRadiusNorm(0.5, mode="at_most")
    )
    W = torch.tensor(BADLY_SCALED) * 4
    with pytest.raises(sp.errors.InManifoldError, match=r"expected.*0\.5, got one outside by 10\.4"):
        layer.weight = W
    layer.weight = W * (0.499 / sp.functional.spectral_radius(W))


def nearly_triangular(n, dtype, top):
    """Eigenvalues up to ``top`` on the diagonal, entries 1e8 times larger above it."""
    W = 1e8 * torch.randn(n, n, dtype=torch.float64).triu(1)
    return (W + torch.linspace(0.5, 1, n, dtype=torch.float64).diag()).mul(top).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
@pytest.mark.parametrize("make", [sp.SpectralRadiusNorm, sp.SpectralAbscissa, sp.LyapunovForm])
def test_scales_beyond_single_precision_let_no_weight_outside_pass(make, dtype) -> None:
    """Balancing it takes numbers of 1e80 and more."""
    W = nearly_triangular(12, dtype, 5.0)
    layer = torch.nn.Linear(12, 12, bias=False, dtype=dtype)
    layer.weight.data = 0.1 * torch.eye(12, dtype=dtype)
    sp.constrain(layer, "weight", make(0.5))
    with pytest.raises(InManifoldError, match=r"expected.*0\.5.*, got one outside by 4\.5"):
        layer.weight = W


@pytest.mark.parametrize("n", [6, 12, 40])
def test_balancing_gives_no_warning_of_its_own(n) -> None:
    layer = sp.constrain(torch.nn.Linear(n, n), "weight", sp.SpectralRadiusNorm(9.0, mode="at_most"))
    T = nearly_triangular(n, torch.float32, 5.0)
    set_original(layer, T)
    assert torch.equal(layer.weight, T)


def in_units(kind, S, d, **kwargs):
    """Return two derivatives of a function of D⁻¹WD for the original DSD⁻¹, in the units of S."""
    units = d[:, None] / d
    layer = torch.nn.Linear(len(d), len(d), bias=False, dtype=S.dtype)
    sp.constrain(layer, "weight", kind(**kwargs))
    T = layer.parametrizations.weight.original
    T.data = S * units
    weights = torch.linspace(-1, 1, S.numel(), dtype=S.dtype).reshape(S.shape).cos()
    value = (weights * layer.weight / units).sum()
    (first,) = torch.autograd.grad(value, T, create_graph=True)
    (second,) = torch.autograd.grad((first * units * weights).sum(), T)
    return first.detach() * units, second * units


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        (sp.SpectralRadiusNorm, {"solver": "dense"}),
        (sp.SpectralRadiusNorm, {"solver": "dense", "of": "absolute"}),
        (sp.SpectralAbscissa, {}),
        (sp.SpectralRadiusNorm, {"solver": "tracking"}),
    ],
    ids=["radius", "absolute", "abscissa", "tracking"],
)
@pytest.mark.parametrize(("n", "dtype"), [(5, torch.float32), (30, torch.float64), (120, torch.float64)])
def test_units_of_rows_and_columns_do_not_matter_to_derivatives(kind, kwargs, n, dtype) -> None:
    """Warnings are errors here: no eigenvalue counts as defective."""
    S = torch.randn(n, n, dtype=dtype)
    expected = in_units(kind, S, torch.ones(n, dtype=dtype), **kwargs)
    found = in_units(kind, S, torch.logspace(-5, 5, n, dtype=dtype), **kwargs)
    # The vectors are precise to eps times the condition of λ, relative to its distance from the others. The
    # second derivative has the square of that.
    values, V = torch.linalg.eig((S.abs() if "of" in kwargs else S).double())
    first = (values.real if kind is sp.SpectralAbscissa else values.abs()).argmax()
    condition = torch.linalg.vector_norm(V[:, first]) * torch.linalg.vector_norm(torch.linalg.inv(V)[first])
    gap = (values - values[first]).abs().sort().values[1] / values.abs().max()
    tolerance = 100 * n * torch.finfo(dtype).eps * max(1.0, (condition / gap).item()) ** 2
    if kwargs.get("solver") == "tracking":  # Its vectors are precise to the root of eps.
        tolerance = tolerance**0.5
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance * b.abs().max().item(), rtol=0)


# The spectral radius of the absolute values -------------------------------------------------------


@pytest.mark.parametrize(("n", "mode"), [(5, "equal"), (5, "at_most"), (120, "at_most")])
@pytest.mark.turns(2)
def test_an_equation_has_one_solution_from_every_start(n, mode) -> None:
    """z = relu(W z + U x + b), solved by iterating it, while W is trained."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(n, n).double()
    torch.nn.init.normal_(layer.weight)
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(0.9, mode=mode, of="absolute"))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    u = torch.randn(n, dtype=torch.float64)
    for _ in range(3):
        starts = 100 * torch.randn(50, n, dtype=torch.float64)
        # ‖.‖ weighted by the Perron vector contracts by 0.9.
        z = starts
        with torch.no_grad():
            for _ in range(400):
                z = torch.relu(layer(z) + u)
        assert torch.equal(z.amax(dim=0).isfinite(), torch.ones(n, dtype=torch.bool))
        assert (z - z[0]).abs().max() <= 1e-9 * z.abs().max()
        excess = radius_of(layer.weight.detach().abs()) - 0.9
        assert excess <= 1e-9
        assert mode == "at_most" or excess >= -1e-9
        optimizer.zero_grad()
        (layer(torch.relu(z[:1])) - 1).square().sum().backward()
        optimizer.step()


def radius_of(W):
    return torch.linalg.eigvals(W.double()).abs().max().item()


def test_the_spectral_norm_and_the_radius_of_absolute_values_contain_each_other_nowhere() -> None:
    rotation = 0.9 * torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double() / 2**0.5
    assert torch.linalg.matrix_norm(rotation, 2) < 0.91
    assert radius_of(rotation.abs()) > 1.27
    triangular = torch.tensor([[0.5, 10.0], [0.0, 0.5]]).double()
    assert torch.linalg.matrix_norm(triangular, 2) > 10
    assert radius_of(triangular.abs()) == 0.5


def test_the_radius_alone_leaves_an_equation_without_a_solution() -> None:
    """W has the spectral radius 0, but the active units alone have 2, so z grows for ever."""
    W = torch.tensor([[2.0, -2.0], [2.0, -2.0]])
    assert sp.functional.spectral_radius(W) < 1e-3
    z = torch.tensor([1.0, 0.0])
    for _ in range(30):
        z = torch.relu(W @ z + torch.tensor([0.0, -1e9]))
    assert z[0] > 1e8
    module = sp.constrain(Holder(W), "weight", sp.SpectralRadiusNorm(0.9, of="absolute"))
    z = torch.tensor([1.0, 0.0])
    for _ in range(300):
        z = torch.relu(module.weight.detach() @ z + torch.tensor([0.0, -1e9]))
    assert z[0] < 1e-6


def test_a_weight_whose_absolute_values_have_a_larger_radius_is_refused_and_the_remedy_works() -> None:
    module = sp.constrain(Holder(torch.randn(4, 4)), "weight", sp.SpectralRadiusNorm(0.5, of="absolute"))
    W = torch.randn(4, 4)
    with pytest.raises(InManifoldError, match=r"expected.*0.5, got"):
        module.weight = W
    module.weight = W * (0.5 / sp.functional.spectral_radius(W.abs()))
    assert abs(radius_of(module.weight.detach().abs()) - 0.5) < 1e-5
    assert "of='absolute'" in repr(module.parametrizations.weight[0])
    with pytest.raises(ValueError, match=r"of: expected.*got 'norm'"):
        sp.SpectralRadiusNorm(of="norm")


@pytest.mark.parametrize("of", ["weight", "absolute"])
def test_gradient_of_a_conjugate_pair_is_that_of_finite_differences(of) -> None:
    """Small real matrices whose leading eigenvalues are complex, and not those of a normal matrix."""
    T = torch.tensor([[0.1, 2.0, 0.3], [-0.7, 0.2, -0.4], [0.5, 0.1, 0.6]], dtype=torch.float64)
    assert torch.linalg.eigvals(T).abs().argmax() == torch.linalg.eigvals(T).imag.abs().argmax()
    constraint = parametrization(constrained(T, radius=0.9, of=of))
    torch.autograd.gradcheck(constraint, (T.clone().requires_grad_(),))


def test_absolute_values_at_most_the_radius_are_not_those_of_the_weight() -> None:
    module = constrained(torch.eye(2) / 2, radius=0.9, mode="at_most", of="absolute")
    module.parametrizations.weight.original.data = torch.tensor([[0.6, -0.6], [0.6, 0.6]])
    assert torch.linalg.eigvals(module.weight.detach().abs()).abs().max() <= 0.9 + 1e-6


def test_rounding_errors_of_powers_do_not_make_a_radius_smaller() -> None:
    """T² = 2I, but rounded it is I and an entry below the diagonal, because a² is too long for a number."""
    a, b = 201370893, 84847
    T = torch.tensor([[a, b], [(2 - a**2) // b, -a]], dtype=torch.float64)
    module = constrained(torch.eye(2, dtype=torch.float64), radius=1.2, mode="at_most")
    module.parametrizations.weight.original.data = T.clone()
    with pytest.warns(DegenerateEigenvalueWarning):  # Rounding errors of T move its eigenvalues far.
        W = module.weight.detach()
    assert (W.abs() < T.abs()).all()
