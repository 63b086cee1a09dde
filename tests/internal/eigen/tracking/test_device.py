"""Tracking on a device: what is asked of the host."""

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param._eigen import tracking

standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
DEVICE = standin.DEVICE


@pytest.mark.parametrize("scale", [1.0, 1e35])
def test_a_step_that_falls_back_on_lapack_decomposes_once(scale, monkeypatch) -> None:
    """And its backward pass, from the memory, too, not at all."""
    calls = []
    found = tracking.leading_eigentriple_and_values
    monkeypatch.setattr(
        tracking, "leading_eigentriple_and_values", lambda *args: calls.append(1) or found(*args)
    )
    layer = sp.constrain(nn.Linear(100, 100, bias=False), "weight", sp.SpectralRadiusNorm()).to(DEVICE)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        # All eigenvalues are as large, so no step attempts to track.
        original.copy_(nn.init.orthogonal_(torch.empty(100, 100)) * scale)
        layer.weight  # noqa: B018  # The host has the state of the tracking from now on.
        original.mul_(1.01)
    calls.clear()
    with standin.counting() as asked:
        layer.weight.sum().backward()
    # T, and whether something is extreme, zero or defective; for an extreme T the last two once more.
    assert asked.waits <= (2 if scale == 1 else 4)
    layer.weight.sum().backward()
    assert len(calls) == 1
