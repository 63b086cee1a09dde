"""The hooks of an optimizer, where no device is at hand."""

import torch
from torch import nn

import spectral_param as sp
from spectral_param._held import hooks
from tests.messages import refused


def test_a_step_that_a_cuda_graph_records_is_refused(monkeypatch) -> None:
    """A replay runs no hooks. The remedy is a step outside of the graph."""
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)
    layer(torch.randn(2, 4)).square().sum().backward()
    before = layer.weight.detach().clone()
    with monkeypatch.context() as patch:
        patch.setattr(hooks, "is_captured", lambda t: True)
        with refused("AdamW", "CUDA graph"):
            optimizer.step()
    assert torch.equal(layer.weight, before)
    optimizer.step()
    assert set(sp.violation(layer).values()) == {0.0}
    assert not torch.equal(layer.weight, before)


def test_tall_and_wide_weights_of_one_set_are_put_back_together(monkeypatch) -> None:
    calls, after_step = [], hooks.after_step
    monkeypatch.setattr(hooks, "after_step", lambda *given: calls.append(1) or after_step(*given))
    model = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizer)
    model(torch.randn(2, 6)).square().sum().backward()
    optimizer.step()
    assert len(calls) == 1
    assert set(sp.violation(model).values()) == {0.0}


def test_weights_of_one_set_are_put_back_in_calls_of_limited_size(monkeypatch) -> None:
    counts, after_step = [], hooks.after_step
    monkeypatch.setattr(
        hooks, "after_step", lambda weights, X: counts.append(len(X)) or after_step(weights, X)
    )
    monkeypatch.setattr(hooks, "_BATCH", 2 * 36 + 5)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizer)
    model(torch.randn(2, 6)).square().sum().backward()
    optimizer.step()
    assert counts == [2, 2, 1]
    assert set(sp.violation(model).values()) == {0.0}
