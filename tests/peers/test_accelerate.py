"""accelerate loads constrained models, builds them without memory, and trains them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.messages import refused
from tests.peers.test_safetensors import MODELS, made, output, safetensors

accelerate = pytest.importorskip("accelerate")


@pytest.fixture
def checkpoint(tmp_path):
    """Return a function that saves the model of a name, and returns its path."""

    def save(name: str) -> str:
        path = tmp_path / "model.safetensors"
        safetensors.save_file(made(name, 0).state_dict(), path)
        return str(path)

    return save


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_is_loaded(name, checkpoint) -> None:
    other = made(name, 1)
    accelerate.load_checkpoint_in_model(other, checkpoint(name))
    torch.testing.assert_close(output(name, other), output(name, made(name, 0)))


NO_BUFFER = pytest.mark.xfail(
    raises=ValueError,
    reason="a bound of 'present' has one number until the weights of a batch have values",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NO_BUFFER if name == "batch" else ()) for name in MODELS]
)
def test_a_model_without_memory_is_filled_from_a_checkpoint(name, checkpoint) -> None:
    with accelerate.init_empty_weights():
        other = MODELS[name]()
    assert all(p.is_meta for p in other.parameters())
    other = accelerate.load_checkpoint_and_dispatch(other, checkpoint(name), device_map={"": "cpu"})
    assert not any(p.is_meta for p in other.parameters())
    torch.testing.assert_close(output(name, other), output(name, made(name, 0)))


def test_an_accelerator_trains_a_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    sp.constrain(model, "0.weight", sp.ScaledCayley())
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    x = torch.randn(16, 8)
    losses = []
    for _ in range(10):
        loss = (model(x) - x.sum(-1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    W = accelerator.unwrap_model(model)[0].weight
    assert (W.mT @ W - torch.eye(8)).abs().max() < 1e-5


def test_an_accelerator_trains_a_weight_that_is_held_after_the_step() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    with refused("optimizer: expected one that takes hooks, got AcceleratedOptimizer"):
        sp.constrain(model, "0.weight", sp.ScaledCayley(), optimizer=optimizer)
    sp.constrain(model, "0.weight", sp.ScaledCayley(), optimizer=optimizer.optimizer)
    for _ in range(3):
        accelerator.backward(model(torch.randn(16, 8)).square().mean())
        optimizer.step()
        assert sp.violation(model) == {"0.weight": 0.0}
