"""LyapunovForm: what holds under attack, round trips, bounds, certificates."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import spectral_param as sp
from spectral_param.testing import Holder
from tests.matrices import jordan
from tests.properties import REAL, examples, normal, seeds


def radius(W):
    return torch.linalg.eigvals(W.detach().double()).abs().max().item()


def with_radius(n, rho, dtype=torch.float64):
    W = torch.randn(n, n, dtype=torch.float64)
    return (W * rho / radius(W)).to(dtype)


def layer(W, *arguments, **options):
    module = torch.nn.Linear(*W.shape, bias=False, dtype=W.dtype)
    with torch.no_grad():
        module.weight.copy_(W)
    return sp.constrain(module, "weight", sp.LyapunovForm(*arguments, **options))


ATTACKS = {
    "norm": lambda W: torch.linalg.matrix_norm(W).log(),
    "trace": torch.trace,
    "power": lambda W: torch.linalg.matrix_norm(torch.linalg.matrix_power(W, 6)).log(),
    "radius": sp.functional.spectral_radius,
}


def attacked(W, attack, **options):
    module = layer(W, **options)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-2)
    for _ in range(100):
        optimizer.zero_grad()
        (-ATTACKS[attack](module.weight)).backward()
        optimizer.step()
        yield module.weight.detach()


SINGLE, DOUBLE = (torch.float32, 2e-6), (torch.float64, 1e-12)


@pytest.mark.parametrize(
    ("attack", "dtype", "above"),
    [("norm", *SINGLE), ("trace", *DOUBLE), ("power", *SINGLE), ("radius", *DOUBLE)],
)
@pytest.mark.turns(2)
def test_radius_under_attack(dtype, above, attack) -> None:
    for step, W in enumerate(attacked(with_radius(7, 0.9, dtype), attack)):
        if step % 10 == 9:
            assert radius(W) <= 1 + above


@pytest.mark.parametrize(("attack", "dtype"), [("norm", torch.float64), ("power", torch.float32)])
@pytest.mark.turns(2)
def test_growth_under_attack(dtype, attack) -> None:
    weights = list(attacked(with_radius(7, 0.9, dtype), attack, radius=0.9, growth=3.0))
    for W in (weights[0], weights[-1]):
        growth = sp.analysis.transient_growth(W.double() / 0.9, 200)
        assert growth.norms[1:].max() <= 3 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("attack", "growth", "dtype", "above"),
    [("norm", None, torch.float32, 1e-5), ("trace", 2.0, torch.float32, 1e-5), ("trace", None, *DOUBLE)],
)
@pytest.mark.turns(3)
def test_abscissa_under_attack(dtype, above, growth, attack) -> None:
    W = with_radius(7, 0.5, dtype) - torch.eye(7, dtype=dtype)
    *_, W = attacked(W, attack, abscissa=-0.1, growth=growth)
    abscissa = torch.linalg.eigvals(W.double()).real.max()
    assert abscissa <= -0.1 + above * torch.linalg.matrix_norm(W, 2)


@example(n=129, rank=1, units=4.0, dtype=torch.float32, seed=0)
@example(n=64, rank=0, units=0.0, dtype=torch.float32, seed=0)
@example(n=65, rank=5, units=4.0, dtype=torch.float64, seed=0)
@given(
    n=st.integers(1, 12),
    rank=st.integers(0, 5),
    units=st.sampled_from([0.0, 4.0]),
    dtype=st.sampled_from(REAL),
    seed=seeds,
)
@examples(15)
def test_originals_of_any_rank_give_a_stable_weight(n, rank, units, dtype, seed) -> None:
    """Also with units of the state that differ by 1e8, and for contractions, whose original has n rows."""
    for options in ({}, {"growth": 1.0}):
        module = sp.constrain(Holder(0.5 * torch.eye(n, dtype=dtype)), "weight", sp.LyapunovForm(**options))
        original = module.parametrizations.weight.original
        X = normal((len(original), rank), torch.float64, seed) @ normal((rank, n), torch.float64, seed + 1)
        with torch.no_grad():
            original.copy_(X * torch.logspace(-units, units, n))
        W = module.weight.detach().double()
        size = torch.linalg.matrix_norm(W, 2).item() if options else radius(W)
        assert size <= 1 + 100 * n * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("n", "rho", "dtype", "limit"),
    [
        (16, 0.95, torch.float64, 1e-12),
        (200, 0.95, torch.float32, 1e-5),
        (16, 0.999, torch.float64, 1e-10),
        (2, 0.999, torch.float32, 1e-3),
        (1, 1.0, torch.float64, 1e-11),
        (60, 1.0, torch.float64, 1e-11),
    ],
)
def test_registration_keeps_a_weight_inside_the_set(n, rho, dtype, limit) -> None:
    W = with_radius(n, rho, dtype)
    assert (layer(W).weight - W).abs().max() <= limit


def companion(*roots):
    """A companion matrix in double precision, of these eigenvalues and their conjugates."""
    last = np.poly([*roots, *np.conj(roots)]).real
    A = torch.zeros(2 * len(roots), 2 * len(roots), dtype=torch.float64)
    A[0] = -torch.tensor(last[1:])
    A[1:, :-1] = torch.eye(len(A) - 1)
    return A


MODES = {
    4: companion(0.97 * np.exp(0.2j), 0.9 * np.exp(0.3j)),
    6: companion(*(np.array([0.95, 0.9, 0.8]) * np.exp([0.1j, 0.25j, 0.4j]))),
}


@pytest.mark.parametrize("n", MODES)
def test_a_weight_within_the_bound_is_not_moved_without_a_word(n) -> None:
    """The forms of companion matrices are ill-conditioned."""
    W, size = MODES[n], MODES[n].abs().max()
    with pytest.warns(UserWarning, match=r"moves by .* %.* in double precision .*SpectralRadiusNorm"):
        moved = layer(W.float(), 1.0).weight.detach().double()
    assert (moved - W).abs().max() > 1e-3 * size
    # What the message says.
    assert (layer(W, 1.0).weight - W).abs().max() <= 1e-6 * size
    module = torch.nn.Linear(n, n, bias=False)
    module.weight.data.copy_(W)
    sp.constrain(module, "weight", sp.SpectralRadiusNorm(1.0, "at_most"))
    assert torch.equal(module.weight, W.float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(3 * W, 1.0)  # Outside, so it is moved.


def test_an_orthogonal_start_is_kept() -> None:
    W = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64)).Q
    torch.testing.assert_close(layer(W).weight.detach(), W, atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", [{}, {"growth": 3.0}])
def test_defective_eigenvalue_on_the_bound(options) -> None:
    """It has no quadratic form: registration moves it inside, assignment refuses it."""
    W = jordan(3, 1.0)
    module = layer(W, **options)
    assert radius(module.weight) <= 1 + 1e-9
    if not options:
        assert (module.weight - W).abs().max() < 1e-3
    with pytest.raises(sp.errors.InManifoldError, match=r"LyapunovForm: expected.*got"):
        module.weight = W


def test_growth_refuses_what_grows() -> None:
    W = torch.tensor([[0.5, 100.0], [0.0, 0.5]], dtype=torch.float64)
    layer(W)
    module = layer(0.5 * torch.eye(2, dtype=torch.float64), growth=3.0)
    with pytest.raises(sp.errors.InManifoldError, match=r"LyapunovForm: expected.*3.*got"):
        module.weight = W


def test_a_larger_growth_moves_a_weight_less() -> None:
    W = torch.tensor([[0.9, 5.0], [0.0, -0.9]], dtype=torch.float64)
    moved = (layer(W, growth=4.0).weight - W).abs().max()
    assert 0 < moved < (layer(W, growth=1.0).weight - W).abs().max() / 2


@pytest.mark.parametrize(
    ("n", "dtype", "options"),
    [
        (5, torch.float32, {"radius": 0.7, "growth": 3.0}),
        (8, torch.complex128, {"radius": 1.1, "growth": 2.5}),
        (10, torch.float64, {"abscissa": -0.5, "growth": 1.3}),
        (32, torch.float32, {"abscissa": 0.2, "growth": 6.0}),
    ],
)
def test_a_form_within_the_growth_is_found_again(n, dtype, options) -> None:
    """Another layer, which knows the weight alone, keeps a weight that was trained to the bounds."""
    torch.manual_seed(n)
    trained = layer(torch.zeros(n, n, dtype=dtype), **options)
    target = 3 / n**0.5 * torch.randn(n, n, dtype=dtype).triu()
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.03)
    for _ in range(80):
        optimizer.zero_grad()
        (trained.weight - target).abs().square().sum().backward()
        optimizer.step()
    W = trained.weight.detach().clone()
    again = layer(W, **options)
    assert torch.linalg.norm(again.weight - W) <= 1e-3 * torch.linalg.norm(W)
    (constraint,) = again.parametrizations.weight
    assert constraint.certificate(again.parametrizations.weight.original).growth <= options["growth"] + 1e-9


def test_a_weight_that_grows_more_is_refused_with_what_was_not_found() -> None:
    module = layer(torch.zeros(3, 3, dtype=torch.float64), 0.9, growth=1.5)
    W = torch.diag_embed(torch.full((2,), 4.0, dtype=torch.float64), 1)
    with pytest.raises(
        sp.errors.InManifoldError, match=r"condition.* <= 1\.5².*no such form was found.*3\."
    ) as e:
        module.weight = W
    assert "outside" not in str(e.value)
    (constraint,) = module.parametrizations.weight
    module.weight = constraint.project(W)  # The remedy.
    assert torch.linalg.matrix_norm(module.weight, 2) <= 1.5 * 0.9 + 1e-9


@pytest.mark.parametrize(
    ("options", "name"), [({"radius": "present"}, "radius"), ({"abscissa": "present"}, "abscissa")]
)
def test_present_bound_is_saved(options, name) -> None:
    module, other = (layer(with_radius(4, rho) - torch.eye(4), **options) for rho in (0.5, 0.7))
    other.load_state_dict(module.state_dict())
    assert getattr(other.parametrizations.weight[0], name) == getattr(module.parametrizations.weight[0], name)
    assert torch.equal(other.weight, module.weight)


@pytest.mark.parametrize("options", [{}, {"growth": 4.0}, {"growth": 1.0}])
def test_the_certificate_proves_the_radius_and_the_growth(options) -> None:
    module = layer(with_radius(6, 0.9) if not options else 0.3 * with_radius(6, 0.9), 0.95, **options)
    (parametrization,) = module.parametrizations.weight
    certificate = parametrization.certificate(module.parametrizations.weight.original)
    W, M = module.weight.detach(), certificate.form
    assert torch.linalg.eigvalsh(W.mT @ M @ W - 0.95**2 * M)[-1] <= 1e-12 * torch.linalg.matrix_norm(M)
    peak = sp.analysis.transient_growth(W / 0.95, 100).peak
    assert peak <= certificate.growth <= options.get("growth", 100.0)


@pytest.mark.parametrize("growth", [None, 2.0, 1.0])
def test_the_certificate_proves_the_abscissa_and_the_growth(growth) -> None:
    W = 0.2 * with_radius(6, 0.9) - torch.eye(6)
    module = layer(W, abscissa=-0.1, growth=growth)
    (parametrization,) = module.parametrizations.weight
    M, bound = parametrization.certificate(module.parametrizations.weight.original)
    W = module.weight.detach()
    assert torch.linalg.eigvalsh(M @ W + W.mT @ M + 0.2 * M)[-1] <= 1e-12 * torch.linalg.matrix_norm(M)
    assert bound <= (growth or 100.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0.0}, r"radius: expected.*got 0\.0"),
        ({"radius": torch.nn.Parameter(torch.ones(()))}, "radius: expected.*got"),
        ({"radius": "presnt"}, "radius: expected.*got 'presnt'"),
        ({"abscissa": float("nan")}, "abscissa: expected.*got nan"),
        ({"radius": 1.0, "abscissa": 0.0}, "radius, abscissa: expected.*got"),
        ({"radius": torch.nn.ReLU()}, r"radius: expected.*got ReLU\(\)"),
        ({"growth": (1.0, 2.0)}, r"growth: expected.*got \(1\.0, 2\.0\)"),
        ({"growth": 0.5}, r"growth: expected.*got 0\.5"),
    ],
)
def test_each_bad_argument_is_named(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        sp.LyapunovForm(**options)


@pytest.mark.parametrize("name", ["radius", "abscissa"])
def test_the_start_of_the_paper_leaves_a_present_bound_at_its_default(name) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.LyapunovForm(**{name: "present"}), init="paper")
    links = layer.parametrizations.weight
    links[0].restart(*links.parameters(recurse=False))
    assert getattr(links[0], name) == {"radius": 1, "abscissa": 0}[name]


def test_growth_reaches_its_bound_and_no_more() -> None:
    """S of the largest condition, and a rotation: the first power has the norm g·r."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    sp.constrain(module, "weight", sp.LyapunovForm(0.9, growth=3.0))
    rotation, mirror = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    with torch.no_grad():
        module.parametrizations.weight.original.copy_(torch.cat([rotation, mirror]) / 2)
    assert torch.linalg.matrix_norm(module.weight, 2).item() == pytest.approx(2.7, rel=1e-12)
