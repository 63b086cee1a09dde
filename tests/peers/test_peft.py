"""Constraints on the factors of a PEFT model are trained, removed, saved and merged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spectral_param as sp

peft = pytest.importorskip("peft")


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 12))


def with_factors() -> nn.Module:
    return peft.get_peft_model(plain(), peft.LoraConfig(r=4, target_modules=["0", "2"], lora_dropout=0.0))


def trained(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.AdamW(sp.param_groups(model, lr=1e-1))
    x, y = torch.randn(64, 12), torch.randn(64, 12)
    for _ in range(10):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("constraint", [sp.ScaledCayley, lambda: sp.SpectralNorm(0.5)])
def test_constrained_factors_are_trained_removed_saved_and_merged(constraint, tmp_path) -> None:
    model, x = with_factors(), torch.randn(5, 12)
    base = plain()
    sp.constrain(model, "*.lora_A.*.weight", constraint())
    names = [f"base_model.model.{i}.lora_A.default.weight" for i in (0, 2)]
    assert list(sp.constraints(model)) == names
    trained(model)
    assert max(sp.violation(model).values()) == 0
    output = model(x)
    assert (output - base(x)).abs().max() > 0.1
    assert torch.equal(sp.remove(model)(x), output)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(plain(), tmp_path)
    assert torch.equal(loaded(x), output)
    merged = model.merge_and_unload()
    assert set(merged.state_dict()) == set(base.state_dict())
    torch.testing.assert_close(merged(x), output, atol=1e-4, rtol=1e-4)


def test_rotations_of_this_library_beside_factors_of_peft() -> None:
    model, x = with_factors(), torch.randn(5, 12)
    adapters = sp.nn.adapt(model, "*.base_layer", block_size=4)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or "lora" in key)
    output = trained(model)(x)
    assert all(parameter.abs().max() > 0 for parameter in adapters.parameters())
    torch.testing.assert_close(adapters.merge()(x), output, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.merge_and_unload()(x), output, atol=1e-4, rtol=1e-4)
