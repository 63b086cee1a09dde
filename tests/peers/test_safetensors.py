"""safetensors holds every constraint, and accelerate loads, places and trains it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import Case, holder
from tests.promises.cases import CASES, FROM_THE_START
from tests.promises.test_state_dicts import NETWORKS

safetensors = pytest.importorskip("safetensors.torch")

MODELS = {
    **NETWORKS,
    "URNN": lambda: sp.nn.URNN(3, 6),
    "LSTM": lambda: sp.constrain(nn.LSTM(3, 6), "weight_hh_l0", sp.ScaledCayley()),
}
INPUTS = {
    "convolution": (torch.ones(1, 3, 8, 8),),
    "batch": (torch.ones(2, 128), torch.ones(2, 100)),
    "wide": (torch.ones(2, 300),),
}


def made(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name]()


def output(name: str, model: nn.Module) -> torch.Tensor:
    found = model(*INPUTS.get(name, (torch.ones(4, 2, 3),)))
    return found[0] if isinstance(found, tuple) else found


def assert_same(module: nn.Module, expected: nn.Module) -> None:
    state = module.state_dict()
    for key, t in expected.state_dict().items():
        assert torch.equal(state.pop(key), t), key
    assert not state


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4), (100, 100)])
@pytest.mark.parametrize("case", [*CASES, *FROM_THE_START], ids=lambda case: case.name)
def test_a_constraint_is_saved_and_loaded(case: Case, shape, tmp_path) -> None:
    for dtype in set(case.dtypes) - {torch.complex128}:  # safetensors 0.8 does not hold it.
        module = holder(case, case.member(shape, dtype))
        safetensors.save_file(module.state_dict(), tmp_path / "weight.safetensors")
        other = holder(case, case.member(shape, dtype))
        other.load_state_dict(safetensors.load_file(tmp_path / "weight.safetensors"))
        assert_same(other, module)
        # What is tracked starts anew.
        torch.testing.assert_close(other.weight, module.weight)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_saved_and_loaded(name, tmp_path) -> None:
    model, other = made(name, 0), made(name, 1)
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    safetensors.load_model(other, str(tmp_path / "model.safetensors"))
    assert_same(other, model)
    torch.testing.assert_close(output(name, other), output(name, model))
