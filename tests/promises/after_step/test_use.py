"""Weights that are held after the step, where people train, average, copy and load them."""

import copy
import gc
import io
import math
import pickle
import warnings

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


@pytest.mark.parametrize(
    "constraint",
    [
        sp.ScaledCayley(),
        sp.SpectralNorm(0.5),
        sp.SpectralRadiusNorm(0.5),
        sp.SpectralAbscissa(-0.1),
        sp.SingularValues(0.1),
        sp.SignPattern(torch.ones(6, 6)),
        sp.LyapunovForm(0.9, metric="diagonal"),
        sp.BlockTriangular([(3, sp.ScaledCayley()), (3, None)]),
    ],
    ids=lambda constraint: type(constraint).__name__,
)
def test_a_module_whose_parameters_are_swapped_is_converted(constraint) -> None:
    layer = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    sp.constrain(layer, "weight", constraint, optimizer=optimizer)
    steps(layer, optimizer)
    optimizer.zero_grad()
    weight = layer.weight
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert layer.weight is weight
    weight.grad = torch.randn(6, 6, dtype=torch.float64)
    optimizer.step()
    assert sp.violation(layer) == {"weight": 0.0}


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

    values = [optimizer.step(closure).item()]
    # Its next step is one of steepest descent: pairs of other weights are gone.
    assert optimizer.state[layer.weight]["n_iter"] == 0
    values += [optimizer.step(closure).item() for _ in range(19)]
    assert defect(layer.weight) <= 8
    assert values[-1] <= values[0]


@pytest.mark.nightly
def test_an_optimizer_that_is_compiled() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    loss(layer).backward()
    torch.compile(optimizer.step, backend="eager")()
    assert defect(layer.weight) <= 8


@pytest.mark.nightly
def test_a_model_of_torch_keeps_its_checkpoint_its_programs_and_its_quantization() -> None:
    def build() -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train()

    model, plain, x = build(), build(), torch.randn(2, 5, 8)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    sp.constrain(model, "linear*.weight", sp.ScaledCayley(), optimizer=optimizer)
    sp.constrain(model, "self_attn.in_proj_weight", sp.ScaledCayley(), optimizer=optimizer)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()
    assert max(map(defect, (model.linear1.weight, model.linear2.weight))) <= 8
    assert defect(model.self_attn.in_proj_weight.unflatten(0, (3, 8))) <= 8
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict(), strict=True)
    torch.testing.assert_close(plain(x), model(x))
    model.load_state_dict(plain.state_dict(), strict=True)
    loaded = torch.load(io.BytesIO(_saved(model.state_dict())), weights_only=True)
    plain.load_state_dict(loaded, strict=True)
    optimizer.step()  # What is loaded in place is still held.
    assert max(sp.violation(model).values()) == 0
    feed_forward = nn.Sequential(model.linear1, nn.ReLU(), model.linear2).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what replaces this quantization.
        quantized = torch.ao.quantization.quantize_dynamic(feed_forward, {nn.Linear})
    assert (quantized(x) - feed_forward(x)).abs().max() < 0.1
    program = torch.export.export(feed_forward, (x,)).module()
    torch.testing.assert_close(program(x), feed_forward(x))
    assert "spectral_param" not in str(program.graph)


def _saved(state: dict[str, Tensor]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_whole_model_is_saved_with_the_record_of_its_constraints() -> None:
    model, optimizer = held(sp.SpectralNorm(0.5, "equal"), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)))
    steps(model, optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert sp.violation(loaded) == {"0.weight": 0.0, "1.weight": 0.0}
    assert sp.constraints(sp.remove(loaded)) == {}
    assert vars(loaded[0]).keys() == vars(nn.Linear(6, 6)).keys()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_for_matrices_beside_adamw_for_the_rest() -> None:
    model = nn.Sequential(nn.Linear(9, 12), nn.Linear(12, 9))
    matrices = [layer.weight for layer in model]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.5),
        torch.optim.AdamW([layer.bias for layer in model], 1e-2),
    ]
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizers)
    for _ in range(3):
        loss(model).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert max(map(defect, matrices)) <= 8


def test_reset_parameters_starts_held_weights_in_their_set() -> None:
    model, optimizer = held(sp.ScaledCayley(), nn.Sequential(nn.Linear(6, 6), nn.MultiheadAttention(6, 2)))
    steps(model, optimizer)
    for clone in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        before = {name: p.detach().clone() for name, p in clone.named_parameters()}
        clone[0].reset_parameters()
        clone[1]._reset_parameters()
        assert sp.violation(clone) == {"0.weight": 0.0, "1.in_proj_weight": 0.0, "1.out_proj.weight": 0.0}
        for name in ("0.weight", "0.bias", "1.in_proj_weight"):
            assert not torch.equal(clone.get_parameter(name), before[name])
    sp.remove(model)
    model[0].reset_parameters()
    assert defect(model[0].weight) > 100


def test_a_weight_whose_module_is_gone_is_held_by_its_optimizer() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    other = nn.Linear(12, 12)
    other.weight = layer.weight
    del layer
    gc.collect()
    steps(other, optimizer)
    assert defect(other.weight) <= 8


def test_a_weight_may_change_its_precision() -> None:
    pattern = sp.SignPattern(torch.ones(12, 12))
    for constraint in (sp.ScaledCayley(), sp.SpectralNorm(0.5, "equal"), pattern):
        layer, optimizer = held(constraint)
        layer.double()
        steps(layer, optimizer)
        assert sp.violation(layer) == {"weight": 0.0}
        assert layer.weight.dtype == torch.float64
        if not isinstance(constraint, sp.ScaledCayley):
            continue
        assert defect(layer.weight) <= 8


def test_weights_of_many_shapes_are_put_back_each_by_itself() -> None:
    shapes = [(4, 4), (4, 4), (4, 9), (9, 4), (2, 4, 4), (3, 4, 4)]
    model = nn.ParameterList([torch.randn(shape) for shape in shapes])
    alone = [nn.ParameterList([p.detach().clone()]) for p in model]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sp.constrain(model, "*", sp.ScaledCayley(), optimizer=optimizer)
    for each in alone:
        own = torch.optim.SGD(each.parameters(), 0.1)
        sp.constrain(each, "0", sp.ScaledCayley(), optimizer=own)
        each[0].grad = torch.ones_like(each[0])
        own.step()
    for p in model:
        p.grad = torch.ones_like(p)
    optimizer.step()
    for found, each in zip(model, alone, strict=True):
        torch.testing.assert_close(found.detach(), each[0].detach(), rtol=0, atol=1e-5)


def test_a_scheduler_and_accumulated_gradients_change_nothing() -> None:
    layer, optimizer = held(sp.ScaledCayley())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(4):
        for _ in range(3):
            loss(layer).backward()
        optimizer.step()
        scheduler.step()
        assert defect(layer.weight) <= 8


def test_an_optimizer_has_one_hook_for_all_of_its_weights() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sp.constrain(model, "[01].weight", sp.ScaledCayley(), optimizer=optimizer)
    sp.constrain(model, "2.weight", sp.SpectralNorm(0.5), optimizer=optimizer)
    assert len(optimizer._optimizer_step_post_hooks) == 1
