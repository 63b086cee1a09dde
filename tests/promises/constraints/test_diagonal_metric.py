"""LyapunovForm(metric="diagonal"): networks that contract under attack, round trips, half precision."""

import itertools
import math

import pytest
import torch

import spectral_param as sp
from spectral_param.analysis import lyapunov_certificate
from spectral_param.functional import scaled_norm
from tests.messages import refused
from tests.properties import FACTOR

SLOPES = {"relu": torch.relu, "tanh": torch.tanh, "leaky": lambda z: torch.nn.functional.leaky_relu(z, 0.2)}
ABOVE = {torch.float32: 2e-6, torch.float64: 1e-12}


def layer(W, *arguments, **options):
    module = torch.nn.Linear(*W.shape, bias=False, dtype=W.dtype)
    with torch.no_grad():
        module.weight.copy_(W)
    return sp.constrain(module, "weight", sp.LyapunovForm(*arguments, metric="diagonal", **options))


def certificate(module):
    """The weight and the diagonal of Θ, in double precision."""
    links = module.parametrizations.weight
    form, growth = links[0].certificate(links.original)
    return module.weight.detach().double(), torch.diagonal(form).sqrt(), growth


def norm(W, theta):
    return torch.linalg.matrix_norm(theta[:, None] * W / theta, 2)


def distances(W, theta, nonlinearity, starts, inputs):
    """‖Θ(h - h')‖ of two trajectories with the same inputs, and ‖Θh‖, at all times."""
    h = starts
    found = []
    for x in [None, *inputs]:
        h = h if x is None else SLOPES[nonlinearity](h @ W.mT + x)
        found.append(torch.stack([(theta * (h[0] - h[1])).norm(), (theta * h).norm()]))
    return torch.stack(found).unbind(-1)


def attacked(n, dtype, nonlinearity, steps, rate=0.95):
    """A layer that Adam trains to drive trajectories apart, each step's factor, and its rounding error."""
    module = layer(torch.randn(n, n, dtype=dtype), rate)
    starts = torch.randn(2, n, dtype=torch.float64, requires_grad=True)
    inputs = torch.randn(6, n, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([*module.parameters(), starts, inputs], lr=2e-2)
    (constraint,), original = module.parametrizations.weight, module.parametrizations.weight.original
    for step in range(steps):
        theta = constraint.certificate(original).form.diagonal().sqrt()
        sizes, states = distances(module.weight.double(), theta, nonlinearity, starts, inputs)
        if step % 10 == 9 or step == steps - 1:
            known = sizes.detach()
            rounding = n * torch.finfo(torch.float64).eps * states.detach().max() / known[:-1]
            yield module, known[1:] / known[:-1], rounding
        optimizer.zero_grad()
        (-(sizes[-1] / sizes[0]).log()).backward()
        optimizer.step()


def check_attack(n, dtype, nonlinearity, steps) -> None:
    for module, factors, rounding in attacked(n, dtype, nonlinearity, steps):  # noqa: B007
        assert (factors <= 0.95 * (1 + ABOVE[dtype]) + rounding).all()
    W, theta, _ = certificate(module)
    assert norm(W, theta) <= 0.95 * (1 + ABOVE[dtype])
    assert factors.max() > 0.9  # The attack has come close to what is proven.


@pytest.mark.parametrize(
    ("n", "dtype", "nonlinearity"),
    [(6, torch.float64, "relu"), (6, torch.float32, "tanh"), (32, torch.float32, "leaky")],
)
@pytest.mark.turns(2)
def test_a_network_contracts_under_attack(n, dtype, nonlinearity) -> None:
    check_attack(n, dtype, nonlinearity, 150)


@pytest.mark.nightly
@pytest.mark.parametrize("nonlinearity", SLOPES)
@pytest.mark.parametrize("dtype", ABOVE)
@pytest.mark.parametrize("n", [6, 32, 96])
def test_a_network_contracts_under_a_long_attack(n, dtype, nonlinearity) -> None:
    check_attack(n, dtype, nonlinearity, 600)


@pytest.mark.parametrize("dtype", ABOVE)
@pytest.mark.turns(2)
def test_every_mask_of_ten_units_contracts(dtype) -> None:
    *_, (module, *_) = attacked(10, dtype, "relu", 60)
    W, theta, _ = certificate(module)
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=10)), dtype=torch.float64)
    masked = masks[:, :, None] * (theta[:, None] * W / theta)
    assert torch.linalg.matrix_norm(masked, 2).max() <= 0.95 * (1 + ABOVE[dtype])
    # So no product of masked matrices has a radius above the rate to the number of its factors.
    chosen = masks[torch.randint(len(masks), (200, 5))]
    product = torch.eye(10, dtype=torch.float64)
    for k in range(5):
        product = chosen[:, k, :, None] * W @ product
    assert torch.linalg.eigvals(product).abs().max() <= 0.95**5 * (1 + 1e-5)


def inside(n, cond, size, rate):
    """A weight whose scaled norm is ``size`` times the rate, in coordinates of this condition."""
    C = torch.randn(n, n, dtype=torch.float64)
    Q = torch.linalg.qr(C).Q  # Orthogonal matrices have the least norm.
    C = Q if size > 0.999 else C / torch.linalg.matrix_norm(C, 2)
    theta = torch.logspace(0, math.log10(cond), n, dtype=torch.float64)[torch.randperm(n)]
    return rate * size * C * theta / theta[:, None]


def check_round_trips(count) -> None:
    for i in range(count):
        n, cond = 2 + i % 11, 10.0 ** (i % 7)
        W = inside(n, cond, (0.3, 0.9, 1 - 1e-6)[i % 3], 0.97)
        module = layer(W, 0.97)
        scale = W.abs().max()
        assert (module.weight - W).abs().max() <= 1e-6 * scale, (n, cond)
        # Entry by entry: small entries of badly scaled weights count as well.
        torch.testing.assert_close(module.weight.detach(), W, rtol=1e-4, atol=1e-12 * scale)
        own = module.weight.detach().clone()
        module.weight = own
        assert (module.weight - own).abs().max() <= 1e-6 * scale


def test_weights_of_the_set_come_back() -> None:
    check_round_trips(21)


@pytest.mark.nightly
def test_200_weights_of_the_set_come_back() -> None:
    check_round_trips(200)


@pytest.mark.parametrize("growth", [None, 4.0])
def test_others_are_scaled_to_the_bound(growth) -> None:
    W = torch.randn(8, 8, dtype=torch.float64)
    found = layer(W, 0.9, growth=growth).weight.detach()
    torch.testing.assert_close(found / found[0, 0], W / W[0, 0], rtol=1e-6, atol=0)
    limit = {} if growth is None else {"condition": growth}
    assert abs(scaled_norm(found, **limit) / 0.9 - 1) <= 1e-6


def test_an_enrnn_is_kept_whatever_its_coupling() -> None:
    W = torch.block_diag(
        0.95 * torch.linalg.qr(torch.randn(4, 4)).Q, 0.5 * torch.linalg.qr(torch.randn(4, 4)).Q
    ).double()
    W[:4, 4:] = 5 * torch.randn(4, 4)
    assert torch.linalg.matrix_norm(W, 2) > 5
    assert (layer(W, 0.96).weight - W).abs().max() <= 1e-9


@pytest.mark.parametrize("options", [{}, {"growth": 5.0}, {"growth": 1.0}])
@pytest.mark.turns(2)
def test_the_certificate_is_that_of_the_rounded_weight(options) -> None:
    """In half precision, too: its rounding errors are a thousand times the others."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        module = layer(torch.randn(24, 24, dtype=dtype), 0.9, **options)
        if dtype in ABOVE:
            with torch.no_grad():
                module.parametrizations.weight.original.mul_(3)
        elif options.get("growth") == 1:
            continue  # Its map is that of the full metric.
        W, theta, growth = certificate(module)
        assert norm(W, theta) <= 0.9 * (1 + ABOVE.get(dtype, 0.0))
        assert growth <= options.get("growth", 1e12) * (1 + 1e-12)


def test_the_bound_of_the_growth_holds_for_every_original() -> None:
    module = layer(torch.randn(6, 6), 0.95, growth=3.0)
    for scale in (1.0, 1e3, 1e30):
        with torch.no_grad():
            module.parametrizations.weight.original.copy_(scale * torch.randn(7, 6))
        W, theta, growth = certificate(module)
        assert growth <= 3 * (1 + 1e-9)
        assert norm(W, theta) <= 0.95 * (1 + 2e-6)
        assert torch.linalg.matrix_norm(W, 2) <= 3 * 0.95 * (1 + 2e-6)


def test_the_radius_of_the_present_weight_is_its_scaled_norm() -> None:
    W = torch.randn(7, 7, dtype=torch.float64)
    module = layer(W, "present")
    assert abs(module.parametrizations.weight[0].radius / scaled_norm(W).item() - 1) <= 1e-6
    torch.testing.assert_close(module.weight.detach(), W, rtol=0, atol=1e-6)


# Continuous time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ABOVE)
@pytest.mark.parametrize("options", [{}, {"growth": 4.0}])
def test_the_abscissa_in_the_coordinates_under_attack(options, dtype) -> None:
    module = layer(torch.randn(9, 9, dtype=dtype), abscissa=0.6, **options)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        (-module.weight.trace() - 0.1 * module.weight.norm()).backward()
        optimizer.step()
    W, theta, growth = certificate(module)
    A = theta[:, None] * W / theta
    size = torch.linalg.matrix_norm(A, 2)
    assert torch.linalg.eigvalsh((A + A.mT) / 2)[-1] <= 0.6 + ABOVE[dtype] * size
    assert growth <= options.get("growth", 1e12)


@pytest.mark.parametrize("nonlinearity", [torch.relu, torch.tanh])
def test_an_equation_has_one_solution_from_every_start(nonlinearity) -> None:
    """z = φ(Wz + u), by Newton's method with a line search."""
    module = layer(3 * torch.randn(8, 8, dtype=torch.float64), abscissa=0.5)
    W, u = module.weight.detach(), torch.randn(8, dtype=torch.float64)
    # With D = diag of slopes, det(I - DW) > 0 for all D of [0, 1]: by the degree, one solution.
    masks = torch.rand(500, 8, dtype=torch.float64).mul(3).sub(1).clamp(0, 1)
    assert (torch.linalg.det(torch.eye(8) - masks[:, :, None] * W) > 0).all()

    def residual(z):
        return z - nonlinearity(W @ z + u)

    solutions = []
    for start in (torch.zeros(8, dtype=torch.float64), 5 * torch.randn(8, dtype=torch.float64)):
        z = start
        for _ in range(200):
            J = torch.func.jacrev(residual)(z)
            step = torch.linalg.solve(J, residual(z))
            size = 1.0
            while residual(z - size * step).norm() > residual(z).norm() * (1 - 0.1 * size) and size > 1e-8:
                size /= 2
            z = z - size * step
            if residual(z).norm() < 1e-12:
                break
        solutions.append(z)
    assert all(residual(z).norm() < 1e-9 for z in solutions)
    torch.testing.assert_close(solutions[0], solutions[1], rtol=0, atol=1e-8)


def test_a_weight_of_the_set_is_kept_and_others_are_shifted() -> None:
    W = torch.randn(6, 6, dtype=torch.float64)
    theta = torch.logspace(0, 4, 6, dtype=torch.float64)
    W = (W - W.mT - 0.1 * torch.eye(6)) * theta / theta[:, None]
    assert (layer(W, abscissa=0.0).weight - W).abs().max() <= 1e-9 * W.abs().max()
    found = layer(W, abscissa=-1.0).weight.detach() - W
    torch.testing.assert_close(
        found, found[0, 0] * torch.eye(6).double(), rtol=0, atol=1e-9 * W.abs().max().item()
    )
    assert abs(found[0, 0] + 0.9) <= 1e-6 * W.abs().max()


# Near the border ------------------------------------------------------------------------------------

ONES = torch.ones(8, 8, dtype=torch.float64).triu(1)
# Coordinates of a condition up to 1e12 bring them close to the bound or inside, but multiply rounding errors.
BORDER = {
    "jordan": 0.95 * torch.eye(3).double() + torch.ones(3, 3).triu(1).tril(1),
    "pair": torch.tensor([[0.96, 5.0], [0.0, 0.96]], dtype=torch.float64),
    "triangular": 0.9 * torch.eye(8) + 2 * ONES,
    "inside": 0.4 * torch.eye(8) + ONES,
    "nilpotent": 3 * ONES,
    "tiny": 1e-20 * ONES,
}
# What an own value moves by, relatively. In float64 rounding takes at most its eps times 1e12.
MOVES = {torch.float32: 0.05, torch.float64: 2e-4}


KINDS = [("radius", 0.95, torch.float32), ("radius", 0.95, torch.float64), ("abscissa", 0.5, torch.float32)]


@pytest.mark.filterwarnings("ignore:LyapunovForm. expected a weight whose originals:UserWarning")
@pytest.mark.parametrize(
    ("name", "bound", "value", "dtype"),
    [
        (name, *kind)
        for name in BORDER
        for kind in KINDS
        if FACTOR > 1 or kind == KINDS[0] or name in ("triangular", "inside")
    ],
)
@pytest.mark.turns(3)
def test_a_weight_near_the_border_is_kept_as_well_as_in_better_conditioned_coordinates(
    name, bound, value, dtype
) -> None:
    W, options = BORDER[name].to(dtype), {bound: value}
    module, size = layer(W, **options), W.abs().max().item()
    found = module.weight.detach().clone()
    change = (found - W).abs().max()
    for growth in (1.0, 1e4):
        other = (layer(W, growth=growth, **options).weight - W).abs().max()
        # Of two moves that differ by the rounding errors of a condition of 1e4 either may be taken.
        assert change <= 1.1 * other + 1e4 * torch.finfo(dtype).eps * size, growth
    if bound == "radius":  # Registration does not enlarge a weight.
        assert found.abs().max() <= (1 + MOVES[dtype]) * size
    module.weight = found
    assert (module.weight - found).abs().max() <= MOVES[dtype] * max(
        found.abs().max(), options.get("abscissa", 0.0)
    )


@pytest.mark.filterwarnings("ignore:LyapunovForm. expected a weight whose originals:UserWarning")
@pytest.mark.parametrize("name", ["jordan", "nilpotent"])
def test_registration_at_the_present_radius_does_not_enlarge_a_weight(name) -> None:
    W = BORDER[name].float()
    assert layer(W, "present").weight.abs().max() <= (1 + MOVES[W.dtype]) * W.abs().max()


def test_a_weight_on_the_bound_in_extreme_coordinates_is_nearly_kept_in_single_precision() -> None:
    """A little room keeps singular values away from 1, near which rounding errors of K grow."""
    W = BORDER["jordan"].float()
    assert (layer(W, 0.95).weight - W).abs().max() <= 1e-3


def test_a_weight_inside_in_extreme_coordinates_is_kept() -> None:
    """Its least abscissa is 0.43, in coordinates of a condition of 1e12."""
    for dtype, error in ((torch.float32, 1e-4), (torch.float64, 1e-7)):
        W = BORDER["inside"].to(dtype)
        assert (layer(W, abscissa=0.5).weight - W).abs().max() <= error


# What is refused ------------------------------------------------------------------------------------


def test_bad_arguments_are_named() -> None:
    with refused("metric"):
        sp.LyapunovForm(metric="diag")
    with refused("LyapunovForm", error=sp.errors.UnsupportedDtypeError):
        layer(torch.randn(3, 3, dtype=torch.complex64))
    module = layer(0.5 * torch.eye(3))
    with refused("LyapunovForm", error=sp.errors.InManifoldError):
        module.weight = 1.1 * torch.eye(3)


def test_the_certificate_is_no_looser_than_what_is_found() -> None:
    """The analysis finds a rate at most that of the constraint for a trained weight."""
    module = layer(torch.randn(8, 8, dtype=torch.float64), 0.9)
    with torch.no_grad():
        module.parametrizations.weight.original.add_(0.1 * torch.randn(9, 8))
    W, theta, _ = certificate(module)
    assert lyapunov_certificate(W, metric="diagonal").rate <= norm(W, theta) * (1 + 1e-7)
