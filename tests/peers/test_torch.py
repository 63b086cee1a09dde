"""PyTorch's own lists: every configuration of its optimizers, and every input of its recurrent layers."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import holder
from tests.messages import refused
from tests.promises.cases import CASES

pytest.importorskip("expecttest")  # torch.testing._internal imports it.
optimizers = pytest.importorskip("torch.testing._internal.common_optimizers")
modules = pytest.importorskip("torch.testing._internal.common_modules")

DTYPE = torch.float64
CONFIGURATIONS = [
    pytest.param(info, given, id=f"{info.optim_cls.__name__}-{given.desc}")
    for info in optimizers.optim_db
    if not info.only_supports_sparse_grads
    for given in info.optim_inputs_func(device="cpu")
]
CONSTRAINTS = [case for case in CASES if not case.variant and DTYPE in case.dtypes]


@pytest.mark.parametrize(("info", "given"), CONFIGURATIONS)
@pytest.mark.parametrize("case", CONSTRAINTS, ids=lambda case: case.name)
def test_a_constraint_holds_under_every_configuration_of_the_optimizers(case, info, given) -> None:
    torch.manual_seed(0)
    module = holder(case, case.member((5, 5), DTYPE))
    parameters = list(module.parameters())
    if info.optim_cls is torch.optim.Muon:
        parameters = [p for p in parameters if p.ndim == 2]
        if not parameters:
            pytest.skip("Muon takes matrices, and the angles of Givens are vectors")
    optimizer = info.optim_cls(parameters, **given.kwargs)
    before, G = module.weight.detach().clone(), torch.randn(5, 5, dtype=DTYPE)

    def closure():
        optimizer.zero_grad()
        loss = (module.weight * G).sum() + module.weight.square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        closure()
        optimizer.step(closure)
        assert case.violation(module.weight.detach()).max() < 1e-9
    assert module.weight.isfinite().all()
    assert not torch.equal(module.weight, before) or not optimizer.param_groups[0]["lr"]


def divides_the_decay(optimizer: torch.optim.Optimizer) -> bool:
    """Whether decay becomes a part of the gradient, which is then divided entry by entry."""
    apart = (torch.optim.AdamW, torch.optim.SGD, torch.optim.ASGD, torch.optim.Adafactor, torch.optim.Muon)
    return not isinstance(optimizer, apart) and not optimizer.param_groups[0].get("decoupled_weight_decay")


@pytest.mark.parametrize(("info", "given"), CONFIGURATIONS)
@pytest.mark.parametrize("make", [sp.ScaledCayley, lambda: sp.SpectralNorm(0.9, "equal")], ids=["Q", "norm"])
def test_a_weight_is_held_after_the_steps_of_every_configuration(make, info, given) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 5, bias=False, dtype=DTYPE)
    optimizer = info.optim_cls(layer.parameters(), **given.kwargs)
    if given.kwargs.get("differentiable"):
        with refused("optimizer: expected one whose steps are not differentiated"):
            sp.constrain(layer, "weight", make(), optimizer=optimizer)
        return
    if make is sp.ScaledCayley and given.kwargs.get("weight_decay") and divides_the_decay(optimizer):
        with refused("weight_decay", "step='project'"):
            sp.constrain(layer, "weight", make(), optimizer=optimizer)
        sp.constrain(layer, "weight", make(), optimizer=optimizer, step="project")
    else:
        sp.constrain(layer, "weight", make(), optimizer=optimizer)
    before, G = layer.weight.detach().clone(), torch.randn(5, 5, dtype=DTYPE)

    def closure():
        optimizer.zero_grad()
        loss = (layer.weight * G).sum() + layer.weight.pow(4).sum()
        loss.backward()
        return loss

    for _ in range(5):
        closure()
        optimizer.step(closure)
        assert sp.violation(layer) == {"weight": 0.0}
    assert not torch.equal(layer.weight, before) or not optimizer.param_groups[0]["lr"]


def recurrent(kind):
    (info,) = (info for info in modules.module_db if info.module_cls is kind)
    inputs = info.module_inputs_func(info, device="cpu", dtype=DTYPE, requires_grad=True, training=True)
    return [(given.constructor_input, given.forward_input) for given in inputs]


def names_of(kind) -> list[str]:
    return ["input_size", "hidden_size", "num_layers"][: 2 if kind is nn.RNNCell else 3]


@pytest.mark.parametrize("kind", [nn.RNN, nn.RNNCell])
@pytest.mark.parametrize("make", [lambda: None, sp.ScaledCayley], ids=["none", "orthogonal"])
def test_a_network_computes_what_torchs_computes_for_each_of_its_inputs(kind, make) -> None:
    given = recurrent(kind)
    assert len(given) >= 3
    for constructor, forward in given:
        options = dict(zip(names_of(kind), constructor.args, strict=False)) | constructor.kwargs
        torch.manual_seed(0)
        theirs = kind(**options, dtype=DTYPE)
        n = options.pop("hidden_size")
        options = {"nonlinearity": "tanh", **options}
        ours_kind = sp.nn.BlockRNN if kind is nn.RNN else sp.nn.BlockRNNCell
        blocks = [(n, make())]
        ours = ours_kind(options.pop("input_size"), blocks, **options, dtype=DTYPE)
        cells = list(ours.cells) if kind is nn.RNN else [ours]
        layers = theirs.all_weights if kind is nn.RNN else [list(theirs.parameters())]
        with torch.no_grad():
            for cell, (weight_ih, weight_hh, *biases) in zip(cells, layers, strict=True):
                cell.weight_ih.copy_(weight_ih)
                weight_hh.copy_(torch.linalg.qr(weight_hh).Q)
                cell.weight_hh = weight_hh.detach()
                if biases:
                    cell.bias.copy_(sum(biases))
        results = []
        for model in (ours, theirs):
            output = model(*forward.args, **forward.kwargs)
            outputs = output if isinstance(output, tuple) else (output,)
            loss = functools.reduce(lambda total, t: total + t.square().sum(), outputs, 0)
            leaves = [t for t in forward.args if t.requires_grad]
            results.append([*outputs, *torch.autograd.grad(loss, leaves)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)
