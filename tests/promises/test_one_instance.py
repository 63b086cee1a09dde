"""A constraint belongs to one weight: a second one is refused, and copies are constraints of their own."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization, transfer_parametrizations_and_params

import spectral_param as sp
from spectral_param.testing import tolerance
from tests.promises.cases import CASES, FROM_THE_START, from_any


@pytest.mark.parametrize("case", [*CASES, *FROM_THE_START], ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_a_second_weight_is_refused_and_the_first_stays(case) -> None:
    torch.manual_seed(0)
    constraint = case.make((4, 4))
    first, second = (nn.Linear(4, 4, dtype=case.dtypes[0]) for _ in range(2))
    constraint = sp.constrain(first, "weight", constraint, init=from_any(case)).parametrizations.weight[0]
    before, other = first.weight.detach().clone(), second.weight.detach().clone()
    for register in (register_parametrization, sp.constrain):
        with pytest.raises(ValueError, match=r"expected.*each weight.*got.*belongs to weight of Linear"):
            register(second, "weight", constraint)
    assert torch.equal(first.weight, before)
    assert torch.equal(second.weight, other)
    third = copy.deepcopy(second)
    for layer in (third, second):
        sp.constrain(layer, "weight", copy.deepcopy(constraint), init=from_any(case))  # The remedy.
    if case not in FROM_THE_START:  # Their set is that of the weight.
        assert case.violation(third.weight.detach()).max() <= tolerance(case.dtypes[0], 4)
    trained = second.weight.detach().clone()
    with torch.no_grad():
        for original in second.parametrizations.weight.parameters(recurse=False):
            original.mul_(0.9).add_(0.1)
    assert torch.equal(first.weight, before)
    if not case.name.startswith("SignPattern"):
        assert second.weight.shape == trained.shape


def test_the_error_names_the_other_use() -> None:
    layer = sp.constrain(nn.GRUCell(3, 5), "weight_hh", sp.ScaledCayley())
    with pytest.raises(ValueError, match=r"got.*weight_hh of GRUCell"):
        register_parametrization(nn.Linear(5, 5), "weight", layer.parametrizations.weight_hh[0])


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.SkewExponential, sp.SingularValues, sp.Givens])
def test_a_transfer_to_another_module_does_not_share(make) -> None:
    layer = sp.constrain(nn.Linear(6, 6), "weight", make())
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=r"expected.*got.*weight of Linear"):
        transfer_parametrizations_and_params(layer, nn.Linear(6, 6))
    assert torch.equal(layer.weight, before)


def test_copies_of_a_model_are_separate() -> None:
    layer = sp.constrain(nn.LSTM(3, 4), "weight_hh_l0", sp.SpectralRadiusNorm(0.9))
    layer(torch.randn(2, 1, 3))
    clone = copy.deepcopy(layer)
    file = io.BytesIO()
    torch.save(sp.nn.ENRNN(3, 5, 4), file)
    file.seek(0)
    network = torch.load(file, weights_only=False)
    before = layer.weight_hh_l0.detach().clone()
    with torch.no_grad():
        clone.parametrizations.weight_hh_l0.original.normal_()
        assert not torch.equal(clone.weight_hh_l0, before)
    assert torch.equal(layer.weight_hh_l0, before)
    # The copy's constraint belongs to the copy.
    for module, name in ((clone, "weight_hh_l0"), (network.cells[0], "weight_hh")):
        with pytest.raises(ValueError, match=r"expected.*got"):
            register_parametrization(nn.Linear(4, 4), "weight", module.parametrizations[name][0])


# torch warns that its quantization moves to another package, and of its observers.
@pytest.mark.filterwarnings("ignore")
def test_quantization_aware_training_by_the_documented_steps() -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    if "none" in torch.backends.quantized.engine:
        pytest.skip("this build of torch cannot quantize")
    torch.manual_seed(0)
    model = nn.Sequential(quantization.QuantStub(), nn.Linear(8, 8), nn.ReLU(), quantization.DeQuantStub())
    sp.constrain(model, "1.weight", sp.SpectralNorm(1.0))
    model.qconfig = quantization.get_default_qat_qconfig(torch.backends.quantized.engine)
    model.train()
    with pytest.raises(ValueError, match=r"expected.*each weight.*got"):
        quantization.prepare_qat(model)
    sp.remove(model)  # The remedy: remove, prepare, constrain, train, remove, convert.
    prepared = quantization.prepare_qat(model)
    sp.constrain(prepared, "1.weight", sp.SpectralNorm(1.0))
    optimizer, x = torch.optim.SGD(prepared.parameters(), lr=0.01), torch.randn(64, 8)
    for _ in range(5):
        optimizer.zero_grad()
        prepared(x).mean().neg().backward()
        optimizer.step()
        assert torch.linalg.matrix_norm(prepared[1].weight, 2) <= 1 + 1e-5
    sp.remove(prepared)
    converted = quantization.convert(prepared.eval())
    # Eight bits for a weight and for its inputs.
    torch.testing.assert_close(converted(x), prepared(x), rtol=0, atol=0.1)
