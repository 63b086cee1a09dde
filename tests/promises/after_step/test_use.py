"""Weights that are held after the step, where people train, average, copy and load them."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from tests.messages import refused
from tests.promises.after_step.common import defect, held, loss, steps


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
