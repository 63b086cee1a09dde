"""A plain weight that is put back into its set after each step of its optimizer: the sets."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.messages import refused
from tests.promises.after_step.common import defect, held, steps

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "fused AdamW": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "one by one": lambda p: torch.optim.AdamW(p, 1.0, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
}


SETS: dict[str, Callable[[], sp.Parametrization]] = {
    "norm": lambda: sp.SpectralNorm(0.4),
    "equal norm": lambda: sp.SpectralNorm(1.5, "equal"),
    "radius": lambda: sp.SpectralRadiusNorm(0.9),
    "radius at most": lambda: sp.SpectralRadiusNorm(0.3, "at_most"),
    "abscissa": lambda: sp.SpectralAbscissa(-0.1),
    "singular values": lambda: sp.SingularValues(0.1),
    "signs": lambda: sp.SignPattern(torch.tensor([[1.0, -1.0, 0.0, math.nan]]).expand(12, 4).repeat(1, 3)),
    "diagonal metric": lambda: sp.LyapunovForm(radius=0.5, metric="diagonal"),
    "blocks": lambda: sp.BlockTriangular([(8, sp.ScaledCayley()), (4, sp.SpectralNorm(0.5))], coupling=True),
    "Householder": sp.Householder,
    "Givens": sp.Givens,
    "exponential": sp.SkewExponential,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_orthonormal_after_each_step_of_any_optimizer(make, dtype) -> None:
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 20), nn.Linear(20, 9), nn.Linear(9, 9)).to(dtype)
    weights, keys = [layer.weight for layer in model], list(model.state_dict())
    memory = [w.data_ptr() for w in weights]
    optimizer = make(model.parameters())
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizer)
    for _ in range(10):
        assert max(map(defect, weights)) <= 8
        steps(model, optimizer, 1)
    assert [layer.weight for layer in model] == weights
    assert [w.data_ptr() for w in weights] == memory
    assert list(model.state_dict()) == keys
    assert {type(layer) for layer in model} == {nn.Linear}


@pytest.mark.parametrize("name", SETS)
def test_every_set_holds_after_each_step(name) -> None:
    layer, optimizer = held(SETS[name]())
    for _ in range(5):
        assert sp.violation(layer) == {"weight": 0.0}
        steps(layer, optimizer, 1)
    before = layer.weight.detach().clone()
    optimizer.zero_grad()
    optimizer.step()  # Nothing to step by: a member keeps its bits.
    assert torch.equal(layer.weight, before)
    with torch.no_grad():
        layer.weight.copy_(-3 * before + 1)
    assert sp.violation(layer)["weight"] > 0.01 if name != "diagonal metric" else True


@pytest.mark.parametrize(
    ("shape", "dtype", "tiny"), [((5, 7), torch.float64, 1e-19), ((20, 20), torch.float32, 1e-30)]
)
def test_a_sign_holds_however_small_the_entry(shape, dtype, tiny) -> None:
    layer = nn.Linear(*reversed(shape), dtype=dtype)
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    sp.constrain(layer, "weight", sp.SignPattern(torch.ones(shape)), optimizer=optimizer)
    with torch.no_grad():
        layer.weight[0, 1] = -tiny
        layer.weight[2, 2] = 1.0
    optimizer.step()
    assert sp.violation(layer) == {"weight": 0.0}
    assert layer.weight[0, 1] == 0


def test_each_matrix_of_a_batch_is_put_back_into_its_own_bound() -> None:
    module, bounds = nn.Module(), torch.tensor([0.4, 0.9, 0.2])
    module.weight = nn.Parameter(torch.randn(3, 5, 5))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    sp.constrain(module, "weight", sp.LyapunovForm(radius=bounds, metric="diagonal"), optimizer=optimizer)
    (-module.weight.square().sum()).backward()
    optimizer.step()
    sizes = sp.functional.scaled_norm(module.weight.detach())
    torch.testing.assert_close(sizes.float(), bounds, rtol=1e-4, atol=0)


def test_complex_weights_gates_and_kernels() -> None:
    layer = nn.Linear(6, 8, dtype=torch.complex64)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-2)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)
    steps(layer, optimizer)
    assert defect(layer.weight) <= 8
    lstm = nn.LSTM(5, 7)
    optimizer = torch.optim.AdamW(lstm.parameters(), 1e-2)
    sp.constrain(lstm, "weight_hh_l0", sp.ScaledCayley(), optimizer=optimizer)
    steps(lstm, optimizer)
    assert defect(lstm.weight_hh_l0.unflatten(0, (4, 7))) <= 8
    conv = nn.Conv2d(3, 4, 3, padding=1)
    optimizer = torch.optim.AdamW(conv.parameters(), 1e-1)
    sp.constrain(conv, "weight", sp.SpectralNorm(0.5), optimizer=optimizer)
    steps(conv, optimizer)
    x = torch.randn(1, 3, 9, 9)
    J = torch.autograd.functional.jacobian(lambda x: conv(x), x).reshape(4 * 81, 3 * 81)
    assert torch.linalg.matrix_norm(J, 2) <= 0.5001


@pytest.mark.parametrize("sigma", ["condition 1e3", "condition 1e6", "rank n - 1", "zero"])
def test_any_weight_is_put_back(sigma) -> None:
    layer, optimizer = held(sp.ScaledCayley())
    values = {"condition 1e3": torch.logspace(0, -3, 12), "condition 1e6": torch.logspace(0, -6, 12)}
    without_last = torch.cat([torch.ones(11), torch.zeros(1)])
    s = values.get(sigma, without_last if sigma != "zero" else torch.zeros(12))
    with torch.no_grad():
        layer.weight.copy_(layer.weight * s)
    optimizer.step()
    assert defect(layer.weight) <= 8


def test_a_bound_that_is_set_acts_from_the_next_step_on() -> None:
    layer, optimizer = held(sp.SpectralNorm(0.9, "equal"))
    sp.constraints(layer)["weight"].norm = 0.5
    steps(layer, optimizer, 1)
    assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(0.5, rel=1e-4)
    by_map = sp.constrain(nn.Linear(4, 4), "weight", sp.SpectralNorm(0.9))
    assert isinstance(sp.constraints(by_map)["weight"], sp.SpectralNorm)
    assert sp.violation(by_map) == {"weight": 0.0}


def test_init_and_a_checkpoint_of_the_plain_class() -> None:
    for init in (None, "paper", torch.eye(12), nn.init.normal_):
        layer, _ = held(sp.ScaledCayley(), init=init)
        assert defect(layer.weight) <= 8
    plain = nn.Linear(12, 12)
    assert str(plain.load_state_dict(layer.state_dict(), strict=True)) == "<All keys matched successfully>"
    state = plain.state_dict()
    layer.load_state_dict(state, strict=True)
    torch.jit.script(layer)
    torch.export.export(layer, (torch.ones(2, 12),))
    torch.testing.assert_close(
        torch.compile(layer, backend="eager", fullgraph=True)(torch.eye(12)), layer(torch.eye(12))
    )


def test_a_weight_that_a_step_left_non_finite_stays_and_is_said_once() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    layer.weight.grad = torch.full((12, 12), math.nan)
    with pytest.warns(UserWarning, match="weight: expected finite entries"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert bool(layer.weight.isnan().all())
    assert math.isnan(sp.violation(layer)["weight"])


class Box(sp.Parametrization):
    """Entries in [-c, c], as a user may write it."""

    shapes = "any"

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def reference(self, T: torch.Tensor) -> torch.Tensor:
        return self.c * T.sin()

    def outside(self, W: torch.Tensor, eps: float) -> tuple[torch.Tensor, float]:
        return (W.abs().amax(dim=(-2, -1)) - self.c).clamp(min=0), 0.0

    def near(self, W: torch.Tensor) -> torch.Tensor:
        return W.clamp(-self.c, self.c)


class Sphere(sp.Parametrization):
    """Rows of norm 1, which have no near row if they are zero: an arbitrary one is taken."""

    def reference(self, T: torch.Tensor) -> torch.Tensor:
        return T / torch.linalg.vector_norm(T, dim=-1, keepdim=True)

    def outside(self, W: torch.Tensor, eps: float) -> tuple[torch.Tensor, float]:
        return (torch.linalg.vector_norm(W, dim=-1) - 1).abs().amax(dim=-1), 10 * W.shape[-1] * eps

    def near(self, W: torch.Tensor) -> torch.Tensor:
        W = torch.where((W == 0).all(dim=-1, keepdim=True), 1, W)
        return W / torch.linalg.vector_norm(W, dim=-1, keepdim=True)


@pytest.mark.parametrize(
    ("make", "shape"), [(lambda: Box(0.1), (5, 12)), (lambda: Box(2.0), (7, 3)), (Sphere, (6, 6))]
)
def test_a_set_of_ones_own_holds_after_each_step(make, shape) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0])
    optimizer = torch.optim.SGD(layer.parameters(), 3.0)
    constraint = make()
    sp.constrain(layer, "weight", constraint, optimizer=optimizer)
    for _ in range(5):
        assert sp.violation(layer)["weight"] == 0
        assert constraint.in_manifold(layer.weight.detach())
        steps(layer, optimizer, 1)
    before = layer.weight.detach().clone()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(layer.weight, before)  # A member keeps its bits.
    with torch.no_grad():
        layer.weight.zero_()
    optimizer.step()
    assert sp.violation(layer)["weight"] == 0


def test_a_set_of_ones_own_is_a_block() -> None:
    layer = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(layer.parameters(), 3.0)
    blocks = sp.BlockTriangular([(6, Sphere()), (4, sp.ScaledCayley())], coupling=True)
    sp.constrain(layer, "weight", blocks, optimizer=optimizer)
    steps(layer, optimizer, 3)
    rows = torch.linalg.vector_norm(layer.weight[:6, :6], dim=-1)
    torch.testing.assert_close(rows, torch.ones(6))
    assert defect(layer.weight[6:, 6:]) <= 8


def test_a_set_without_a_projection_is_refused() -> None:
    class Sine(sp.Parametrization):
        def reference(self, T: torch.Tensor) -> torch.Tensor:
            return T.sin()

    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with refused("Sine", "by its map"):
        sp.constrain(layer, "weight", Sine(), optimizer=optimizer)


@pytest.mark.parametrize("make", [Sphere, lambda: sp.SpectralNorm(1.0), lambda: sp.SpectralRadiusNorm(0.9)])
def test_half_precision_hides_no_step(make) -> None:
    layer = nn.Linear(64, 64, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    constraint = make()
    sp.constrain(layer, "weight", constraint, optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        (layer.weight * torch.randn_like(layer.weight)).sum().backward()
        optimizer.step()
        # What each entry may lose, and the norm of all of that: no more than twice an error of the whole.
        W, eps = layer.weight.detach().float(), torch.finfo(torch.bfloat16).eps
        exact = copy.deepcopy(constraint).project(W)
        assert torch.linalg.matrix_norm(W - exact) <= 2 * eps * torch.linalg.matrix_norm(W)


def test_a_subclass_has_the_set_that_it_says() -> None:
    class Rotation(sp.ScaledCayley):
        """Of determinant 1."""

        def outside(self, W: torch.Tensor, eps: float) -> Any:
            distance, resolution = super().outside(W, eps)
            return torch.where(torch.linalg.det(W) < 0, distance.clamp(min=2), distance), resolution

        def near(self, W: torch.Tensor) -> torch.Tensor:
            W = super().near(W)
            sign = torch.linalg.det(W).sign()
            return torch.cat([W[..., :1] * sign[..., None, None], W[..., 1:]], dim=-1)

    layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    optimizer = torch.optim.SGD(layers.parameters(), 30.0)
    sp.constrain(layers[0], "weight", sp.ScaledCayley(), optimizer=optimizer)
    for layer in layers[1:]:
        sp.constrain(layer, "weight", Rotation(), optimizer=optimizer)
    for _ in range(4):
        steps(layers, optimizer, 1)
        assert max(sp.violation(layers).values()) == 0
        assert all(torch.linalg.det(layer.weight) > 0 for layer in layers[1:])


def test_a_way_back_alone_is_enough_and_few_reflections_have_none() -> None:
    class Clipped(sp.Parametrization):
        keeps_members = True

        def reference(self, T: torch.Tensor) -> torch.Tensor:
            return T.sin()

        def near(self, W: torch.Tensor, eps: float = 0.0) -> torch.Tensor:
            return W.clamp(-0.1, 0.1)

    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), 3.0)
    sp.constrain(layer, "weight", Clipped(), optimizer=optimizer)
    steps(layer, optimizer, 2)
    assert layer.weight.abs().max() <= 0.1
    sp.remove(layer)
    few = sp.SingularValues(0.1, reflections=2)
    with refused("SingularValues", "by its map"):
        sp.constrain(layer, "weight", few, init="paper", optimizer=optimizer)
