"""A plain weight that is put back into its set after each step of its optimizer."""

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from tests.messages import refused

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


def defect(W: Tensor) -> float:
    """‖G - I‖₂ of the Gram matrix of the shorter side, in units of √n·eps."""
    X = W.detach().to(torch.complex128 if W.is_complex() else torch.float64)
    X = X if X.shape[-2] >= X.shape[-1] else X.mT
    n = X.shape[-1]
    E = X.mH @ X - torch.eye(n, dtype=X.dtype)
    return float(torch.linalg.matrix_norm(E, 2).max()) / (math.sqrt(n) * torch.finfo(W.dtype).eps)


def loss(model: nn.Module) -> Tensor:
    weights = [w for w in model.parameters() if w.ndim > 1]
    return sum((w - torch.randn_like(w)).abs().square().mean() for w in weights)  # type: ignore[return-value]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def held(
    constraint: sp.Parametrization, module: nn.Module | None = None, **arguments: Any
) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(12, 12) if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), 0.3, momentum=0.9)
    return sp.constrain(module, "*weight", constraint, optimizer=optimizer, **arguments), optimizer


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


def test_a_tied_weight_is_one_parameter() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizer)
    assert set(sp.constraints(model)) == {"0.weight", "1.weight"}
    steps(model, optimizer)
    assert defect(model[1].weight) <= 8
    sp.remove(model[1])
    sp.remove(model)
    assert sp.constraints(model) == {}
    steps(model, optimizer)
    assert defect(model[0].weight) > 100


def test_remove_lets_a_weight_go_and_keeps_the_others() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizer)
    weight = model[0].weight
    assert sp.remove(model, "0.weight")[0].weight is weight
    steps(model, optimizer)
    assert defect(weight) > 100
    assert defect(model[1].weight) <= 8
    sp.constrain(model, "0.weight", sp.ScaledCayley(), optimizer=optimizer)
    steps(model, optimizer)
    assert defect(weight) <= 8


def test_a_bound_that_is_set_acts_from_the_next_step_on() -> None:
    layer, optimizer = held(sp.SpectralNorm(0.9, "equal"))
    sp.constraints(layer)["weight"].norm = 0.5
    steps(layer, optimizer, 1)
    assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(0.5, rel=1e-4)
    by_map = sp.constrain(nn.Linear(4, 4), "weight", sp.SpectralNorm(0.9))
    assert isinstance(sp.constraints(by_map)["weight"], sp.SpectralNorm)
    assert sp.violation(by_map) == {"weight": 0.0}


def test_violation_says_how_far_an_average_is_outside() -> None:
    model, optimizer = held(sp.ScaledCayley())
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    steps(model, optimizer)
    average.update_parameters(model)
    W = average.module.weight.detach().double()
    expected = float(torch.linalg.matrix_norm(W.mT @ W - torch.eye(12)))
    assert sp.violation(average)["module.weight"] == pytest.approx(expected, rel=1e-4)
    assert sp.violation(model) == {"weight": 0.0}


def test_reading_how_far_a_weight_is_outside_changes_no_later_step() -> None:
    found = []
    for asks in (False, True):
        torch.manual_seed(0)
        layer, optimizer = held(sp.SpectralNorm(0.5, "equal", solver="tracking"))
        for _ in range(5):
            steps(layer, optimizer, 1)
            if asks:
                sp.violation(layer)
        found.append(layer.weight.detach().clone())
    assert torch.equal(*found)


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


def test_copies_and_pickles_keep_the_record_and_no_optimizer() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert sp.violation(clone) == {"weight": 0.0}
        sp.constrain(clone, "weight", sp.ScaledCayley(), optimizer=torch.optim.SGD(clone.parameters(), 0.1))
    both, its = copy.deepcopy((layer, optimizer))
    steps(both, its)
    assert sp.violation(both)["weight"] > 1e-3
    steps(layer, optimizer)
    assert sp.violation(layer) == {"weight": 0.0}


def test_a_parameter_that_was_replaced_is_said() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    layer.load_state_dict({k: v.clone() for k, v in layer.state_dict().items()}, assign=True)
    with refused("weight: expected the parameter that was constrained"):
        optimizer.step()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)
    steps(layer, optimizer)
    assert defect(layer.weight) <= 8


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


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips(fused) -> None:
    layer = nn.Linear(6, 6)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2, fused=fused)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    before = layer.weight.detach().clone()
    scaler.scale(loss(layer)).backward()
    layer.weight.grad[0, 0] = math.inf
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(layer.weight, before)
    optimizer.zero_grad()
    scaler.scale(loss(layer)).backward()
    scaler.step(optimizer)
    assert not torch.equal(layer.weight, before)
    assert defect(layer.weight) <= 8


def test_optimizers_that_step_twice_or_in_the_backward_pass() -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            return super().step(closure)

    layer = nn.Linear(6, 6)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=(twice := Twice(layer.parameters(), 0.1)))
    steps(layer, twice)
    assert defect(layer.weight) <= 8
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    each = {p: torch.optim.AdamW([p], 1e-2) for p in model.parameters()}
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=each.values())
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: each[p].step())
    loss(model).backward()
    assert max(defect(layer.weight) for layer in model) <= 8
    assert not torch.equal(model[0].weight, model[1].weight)


def test_lbfgs_begins_anew_after_a_projection() -> None:
    layer = nn.Linear(6, 6, bias=False)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=4)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)
    target = torch.linalg.qr(torch.randn(6, 6)).Q
    target = target if torch.linalg.det(target) * torch.linalg.det(layer.weight) > 0 else -target.flip(0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = (layer.weight - target).square().sum()
        value.backward()
        return value

    values = [optimizer.step(closure).item() for _ in range(20)]
    assert defect(layer.weight) <= 8
    assert values[-1] <= values[0]


def test_an_optimizer_that_is_compiled() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    loss(layer).backward()
    torch.compile(optimizer.step, backend="eager")()
    assert defect(layer.weight) <= 8


REFUSED: dict[str, tuple[Callable[[nn.Module, Any], Any], str]] = {
    "no optimizer": (lambda m, o: {"optimizer": "adam"}, "optimizer: expected"),
    "an empty list": (lambda m, o: {"optimizer": []}, "optimizer: expected"),
    "not its parameter": (
        lambda m, o: {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)},
        "optimizer: expected one that has the weight",
    ),
    "two have it": (
        lambda m, o: {"optimizer": [o, torch.optim.Adam(m.parameters())]},
        "optimizer: expected one optimizer",
    ),
    "differentiable": (
        lambda m, o: {"optimizer": torch.optim.SGD(m.parameters(), 0.1, differentiable=True)},
        "optimizer: expected.*differentiable",
    ),
    "a list of constraints": (
        lambda m, o: {"constraint": [sp.SpectralNorm(), sp.SpectralNorm()]},
        "constraint: expected one",
    ),
    "present": (lambda m, o: {"constraint": sp.SpectralNorm("present")}, "norm: expected.*Pass norm="),
    "latched": (
        lambda m, o: {"constraint": sp.SpectralRadiusNorm(1.0, "latched")},
        "SpectralRadiusNorm: exp",
    ),
    "LyapunovForm": (lambda m, o: {"constraint": sp.LyapunovForm(radius=0.9)}, "LyapunovForm: expected"),
    "SchurForm": (lambda m, o: {"constraint": sp.SchurForm()}, "SchurForm: expected"),
    "few reflections": (lambda m, o: {"constraint": sp.Householder(2)}, "Householder: expected"),
    "a determinant": (lambda m, o: {"constraint": sp.ScaledCayley(3)}, "negative_ones"),
    "not finite": (lambda m, o: {"init": torch.full((12, 12), math.nan)}, "finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_held_is_refused_and_nothing_changes(case) -> None:
    layer = nn.Linear(12, 12)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    before, attributes = layer.weight.detach().clone(), set(vars(layer))
    make, match = REFUSED[case]
    with refused(match):
        sp.constrain(
            layer,
            "weight",
            **{"constraint": sp.ScaledCayley(), "optimizer": optimizer, **make(layer, optimizer)},
        )
    assert torch.equal(layer.weight, before)
    assert set(vars(layer)) == attributes


def test_what_is_no_plain_parameter_is_refused() -> None:
    layer = sp.constrain(nn.Linear(4, 4), "weight", sp.ScaledCayley())
    with refused("Linear: expected a parameter"):
        sp.constrain(layer, "weight", sp.SpectralNorm(), optimizer=torch.optim.SGD(layer.parameters(), 0.1))
    layer, optimizer = held(sp.ScaledCayley())
    with refused("Linear: expected a weight without a constraint"):
        sp.constrain(layer, "weight", sp.SpectralNorm(), optimizer=optimizer)
    with refused("Linear: expected a weight without a constraint"):
        sp.constrain(layer, "weight", sp.SpectralNorm())
    layer.register_buffer("mask", torch.eye(12))
    with refused("Linear: expected a parameter"):
        sp.constrain(layer, "mask", sp.ScaledCayley(), optimizer=optimizer)
