"""The number by a matrix inequality: attacks, a semidefinite solver, the product of norms, radii of pairs."""

import itertools
import math
import warnings

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.analysis import certified_radius, lipschitz
from tests.messages import refused

SLOPES = [0.0, 0.01, 0.3, 0.9, -0.2, -1.0, 1.0]


def dense(sizes, activation):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), activation]
        nn.init.normal_(layers[-2].weight, std=(2 / a) ** 0.5)
    return nn.Sequential(*layers[:-1]).double().eval()


def of_patterns(model, low, high, count):
    """The largest norm of a product of the weights and slopes at the ends, of random patterns and
    improved ones."""
    weights = [layer.weight.detach() for layer in model if isinstance(layer, nn.Linear)]

    def size(patterns):
        J = weights[0].expand(count, -1, -1)
        for W, pattern in zip(weights[1:], patterns, strict=True):
            J = W @ (torch.where(pattern, high, low)[..., None] * J)
        return torch.linalg.matrix_norm(J, 2)

    patterns = [torch.rand(count, len(W)) < 0.5 for W in weights[:-1]]
    best = size(patterns)
    for _ in range(30):
        trial = [p ^ (torch.rand(p.shape) < 1.5 / p.shape[1]) for p in patterns]
        sizes = size(trial)
        better = sizes > best
        patterns = [torch.where(better[:, None], t, p) for t, p in zip(trial, patterns, strict=True)]
        best = torch.maximum(best, sizes)
    return float(best.max())


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("sizes", [(3, 5, 4), (6, 7, 7, 5), (4, 9, 8, 7, 3), (2, 2, 1, 2)], ids=str)
def test_no_pattern_of_slopes_exceeds_it_and_it_does_not_exceed_the_product(sizes, slope) -> None:
    """Units are piecewise linear: each pattern of slopes is the Jacobian of some biases at some input."""
    model = dense(sizes, nn.LeakyReLU(slope))
    found = of_patterns(model, slope, 1.0, 100)
    product = lipschitz(model)
    closed = lipschitz(model, method="lmi")
    tight = lipschitz(model, method="lmi", steps=15)
    assert found <= tight * (1 + 1e-12)
    assert tight <= closed <= product


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.2])
@pytest.mark.turns(2)
def test_the_number_of_a_he_network_is_clearly_less_than_the_product(slope) -> None:
    model = dense((20, 30, 30, 30, 10), nn.LeakyReLU(slope))
    product, closed = lipschitz(model), lipschitz(model, method="lmi")
    assert closed < 0.9 * product
    assert lipschitz(model, method="lmi", steps=25) < closed


def test_two_layers_whose_constant_is_known() -> None:
    """relu(x) + relu(-x) = |x| has the constant 1; relu(x) - relu(-x) = x too, where the number is 2."""
    for sign in (1.0, -1.0):
        model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double().eval()
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
            model[2].weight.copy_(torch.tensor([[1.0, sign]]))
        assert lipschitz(model) == pytest.approx(2)
        number = lipschitz(model, method="lmi", steps=40)
        assert 1 <= number <= (1.001 if sign == 1.0 else 2.001)


def semidefinite(cp, weights, low, high):
    """LipSDP (Fazlyab et al. 2019, theorem 2) with a multiplier for each unit, by a general solver."""
    *inner, last = [W.numpy() for W in weights]
    sizes = [inner[0].shape[1], *(len(W) for W in inner)]
    starts = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    identity = torch.eye(starts[-1], dtype=torch.float64).numpy()
    at = [identity[a:b] for a, b in itertools.pairwise(starts)]
    square = cp.Variable()
    form = -square * at[0].T @ at[0] + at[-1].T @ last.T @ last @ at[-1]
    for k, W in enumerate(inner):
        T, A, B = cp.diag(cp.Variable(len(W), nonneg=True)), W @ at[k], at[k + 1]
        form = (
            form - 2 * low * high * A.T @ T @ A + (low + high) * (A.T @ T @ B + B.T @ T @ A) - 2 * B.T @ T @ B
        )
    cp.Problem(cp.Minimize(square), [form << 0]).solve(solver=cp.CLARABEL)
    return math.sqrt(square.value)


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.2])
@pytest.mark.turns(3)
def test_after_steps_it_is_the_number_of_a_semidefinite_solver(slope) -> None:
    cp = pytest.importorskip("cvxpy")
    for sizes in ((4, 8, 3), (3, 6, 6, 4)):
        model = dense(sizes, nn.LeakyReLU(slope))
        exact = semidefinite(cp, [layer.weight.detach() for layer in model[::2]], slope, 1.0)
        number = lipschitz(model, method="lmi", steps=40)
        assert abs(number / exact - 1) <= 1e-3


# Layers other than dense ones ---------------------------------------------------------------------------


def images(*layers):
    return nn.Sequential(*layers).double().eval(), (1, 6, 6)


NETWORKS = {
    "conv": images(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 4),
    ),
    "mean": images(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4)),
    "max": images(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 2, 2),
        nn.ELU(),
        nn.Conv2d(2, 1, 2),
    ),
    "reflect": images(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2)
    ),
    "circular": images(
        nn.CircularPad2d(1), nn.Conv2d(1, 2, 3, groups=1), nn.LeakyReLU(0.2), nn.Conv2d(2, 4, 3, groups=2)
    ),
    "transposed": images(
        nn.Conv2d(1, 2, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(2, 1, 2, stride=2, output_padding=1)
    ),
    "shuffled": images(
        nn.Conv2d(1, 4, 1), nn.GELU(), nn.PixelShuffle(2), nn.Conv2d(1, 1, 2, stride=2), nn.SiLU()
    ),
    "residual": images(
        nn.Flatten(),
        nn.Linear(36, 8),
        sp.nn.Residual(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))),
    ),
    "batch": images(
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(),
        nn.Sigmoid(),
        nn.Linear(8, 8),
        nn.Linear(8, 3),
    ),
    "rows": images(
        nn.Linear(6, 5),
        nn.ReLU(),
        nn.Linear(5, 4),
        nn.Mish(),
        nn.Flatten(),
        nn.Linear(24, 3),
        nn.LogSoftmax(1),
    ),
    "unflattened": images(
        nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 3, 2), nn.PReLU()
    ),
    "start": images(
        nn.Tanh(), nn.Hardswish(), nn.Flatten(), nn.Linear(36, 8), nn.SELU(), nn.Softplus(), nn.Linear(8, 2)
    ),
    "sorted": images(
        nn.Flatten(), nn.Linear(36, 8), sp.nn.MaxMin(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.turns(2)
def test_networks_of_other_layers_are_never_below_an_attack(name) -> None:
    model, shape = NETWORKS[name]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_var.uniform_(0.1, 2.0)
            nn.init.normal_(module.weight)
    x = 2 * torch.randn(40, *shape, dtype=torch.float64)
    # Gaussian products of the Jacobian and its transpose, at all points at once, end near its norm.
    d = torch.randn_like(x)
    for _ in range(30):
        d = d / d.flatten(1).norm(dim=1)[:, None, None, None]
        _, Jd = torch.func.jvp(model, (x,), (d,))
        _, back = torch.func.vjp(model, x)
        (d,) = back(Jd)
    attacked = float(Jd.detach().flatten(1).norm(dim=1).max())
    product = lipschitz(model, input_shape=shape)
    number = lipschitz(model, method="lmi", input_shape=shape, steps=3)
    closed = lipschitz(model, method="lmi", input_shape=shape)
    assert attacked <= number <= closed <= product
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "without the size of its inputs, a convolution")
        alone = lipschitz(model, {} if name not in ("rows",) else {"6": 2.0}, method="lmi")
    assert attacked <= alone


def test_dimensions_that_are_not_known_are_not_mixed_up() -> None:
    """(N, 8, 6) is an input of this model, too: its batch norm scales rows, and its Linear the columns."""
    model = (
        nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
        .double()
        .eval()
    )
    with torch.no_grad():
        model[0].weight.zero_()[0, 0] = 1.0
        model[1].running_var.fill_(1.0)
        model[1].weight.fill_(0.01)[1] = 5.0
        model[3].weight.copy_(torch.eye(8))
    x = torch.zeros(1, 8, 6, dtype=torch.float64)
    moved = x.clone()
    moved[0, 1, 0] = 1.0
    change = torch.dist(model(moved), model(x))
    assert change > 4.9
    assert change <= lipschitz(model, method="lmi")
    assert change <= lipschitz(model, method="lmi", input_shape=(8, 6))
    assert lipschitz(model, method="lmi", input_shape=(6,)) < 0.1


# Sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-150, 1e-30, 1e30, 1e150])
def test_scales_of_weights_are_scales_of_the_number(size) -> None:
    model = dense((3, 4, 4, 2), nn.ReLU())
    number = lipschitz(model, method="lmi")
    with torch.no_grad():
        model[0].weight.mul_(size)
        model[2].weight.div_(size)
    assert lipschitz(model, method="lmi") == pytest.approx(number, rel=1e-9)


def test_dead_layers_have_0_and_deep_ones_do_not_overflow() -> None:
    model = dense((3, 4, 4, 2), nn.ReLU())
    nn.init.zeros_(model[2].weight)
    assert lipschitz(model, method="lmi", steps=2) == 0
    deep = dense((4,) * 30, nn.ReLU())
    for layer in deep[::2]:
        nn.init.eye_(layer.weight).data.mul_(1e20)
    assert lipschitz(deep, method="lmi") == lipschitz(deep) == math.inf
    for layer in deep[::2]:
        layer.weight.data.mul_(1e-40)
    assert 0 < lipschitz(deep, method="lmi") < 1e-300
    with torch.no_grad():
        deep[0].weight[0] = 0  # A dead unit.
    assert 0 < lipschitz(deep, method="lmi") < 1e-300


def test_one_layer_has_its_norm() -> None:
    layer = nn.Linear(5, 3).double().eval()
    norm = torch.linalg.matrix_norm(layer.weight.detach(), 2).item()
    assert lipschitz(layer, method="lmi") == pytest.approx(norm)
    assert lipschitz(nn.Sequential(layer, nn.Sigmoid()).eval(), method="lmi") == pytest.approx(norm / 4)


def test_linear_layers_with_nothing_between_are_one() -> None:
    first, second = nn.Linear(2, 2).double(), nn.Linear(2, 2).double()
    with torch.no_grad():
        first.weight.copy_(torch.diag(torch.tensor([1.0, 0.01])))
        second.weight.copy_(torch.diag(torch.tensor([0.01, 1.0])))
    model = nn.Sequential(first, nn.Dropout(), second).eval()
    assert lipschitz(model) == pytest.approx(1)
    assert lipschitz(model, method="lmi") == pytest.approx(0.01)


@pytest.mark.nightly
def test_a_wide_input_takes_no_matrix_of_its_size() -> None:
    model = dense((40_000, 8, 4), nn.ReLU())
    assert of_patterns(model, 0.0, 1.0, 4) <= lipschitz(model, method="lmi", steps=5) < lipschitz(model)


# Radii --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["norms", "lmi"])
@pytest.mark.parametrize("ends", [(), (nn.LogSoftmax(1),), (nn.Dropout(),), (nn.Tanh(),)], ids=str)
def test_radii_of_pairs_hold_under_attack_and_are_never_smaller(method, ends) -> None:
    model = nn.Sequential(*dense((6, 12, 12, 4), nn.ReLU()), *ends).double().eval()
    x = torch.randn(60, 6, dtype=torch.float64)
    shape = {"input_shape": (6,)}
    logits = model(x).detach()
    radius = certified_radius(logits, model, method, **shape)
    plain = certified_radius(logits, lipschitz(model, method=method, **shape))
    assert (radius >= plain * (1 - 1e-12)).all()
    if not isinstance(model[-1], nn.Tanh):
        assert radius.mean() > 1.05 * plain.mean()
    classes = logits.argmax(dim=-1)
    d = torch.randn(60, 6, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([d], lr=0.1)
    for _ in range(60):
        moved = model(x + d / d.norm(dim=1, keepdim=True) * radius[:, None] * (1 - 1e-9))
        assert torch.equal(moved.argmax(dim=-1), classes)
        optimizer.zero_grad()
        nn.functional.cross_entropy(moved, classes).neg().backward()
        optimizer.step()


@pytest.mark.parametrize("method", ["norms", "lmi"])
def test_a_class_other_than_the_second_may_be_nearer(method) -> None:
    """The third logit is further below, but its row is further away."""
    model = nn.Sequential(nn.Linear(2, 3)).double().eval()
    rows = torch.tensor([[0.0, 0.0], [0.1, 0.0], [10.0, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.copy_(rows)
        model[0].bias.copy_(torch.tensor([2.0, 1.0, 0.0]))
    radius = certified_radius(model(torch.zeros(1, 2, dtype=torch.float64)), model, method)
    assert radius.item() == pytest.approx(0.2)


def test_equal_rows_ties_and_nan() -> None:
    model = nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)).eval()
    nn.init.ones_(model[0].weight)
    logits = torch.tensor([[2.0, 1.0], [1.0, 1.0], [math.nan, 1.0]], dtype=torch.float64)
    radius = certified_radius(logits, model)
    assert radius[0] == math.inf
    assert radius[1] == 0
    assert radius[2].isnan()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"method": "sdp"}, "method"),
        ({"steps": 3}, "steps"),
        ({"method": "lmi", "steps": -1}, "steps"),
        ({"input_shape": 3.5}, "input_shape"),
        ({"input_shape": (4, 0)}, "input_shape"),
        ({"input_shape": (5,)}, "input_shape"),
    ],
)
def test_bad_arguments_are_named(arguments, name) -> None:
    model = dense((6, 5, 4), nn.ReLU())
    with refused(name):
        lipschitz(model, **arguments)
    with refused(name):
        certified_radius(torch.randn(2, 4), model, **arguments)


@pytest.mark.nightly
def test_too_many_units_for_steps_are_refused_and_the_remedy_works() -> None:
    model = dense((2, 2001, 2), nn.ReLU())
    with refused("steps", "2000"):
        lipschitz(model, method="lmi", steps=1)
    model = dense((2, 1), nn.ReLU())
    assert lipschitz(model, method="lmi") == pytest.approx(lipschitz(model))


def test_logits_of_another_network_and_a_number_with_options_are_refused() -> None:
    with refused("logits", "model"):
        certified_radius(torch.randn(2, 5), dense((6, 5, 4), nn.ReLU()))
    with refused("lipschitz", "network"):
        certified_radius(torch.randn(2, 5), 1.0, input_shape=(3,))
    with refused("lipschitz", "network"):
        certified_radius(torch.randn(2, 5), "norms")


@pytest.mark.parametrize("inside", [False, True])
def test_convolutions_of_unknown_size_are_told_to_count_by_their_norms(inside) -> None:
    pair = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv1d(3, 2, 3, padding=1))
    model = (sp.nn.Residual(pair) if inside else pair).eval()
    with pytest.warns(UserWarning, match="input_shape"):
        loose = lipschitz(model, method="lmi")
    assert loose == pytest.approx(lipschitz(model))
    assert lipschitz(model, method="lmi", input_shape=(2, 6)) < 0.999 * loose


def test_nothing_is_said_of_dense_layers() -> None:
    """A warning would raise."""
    lipschitz(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval(), method="lmi")
