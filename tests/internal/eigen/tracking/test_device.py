"""Tracking on a device: what is asked of the host, and matrices of a batch together."""

import pytest
import torch
from torch import nn

import spectral_param as sp
from benchmarks import device as benchmark
from spectral_param._eigen import tracking

standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
DEVICE = standin.DEVICE


@pytest.mark.parametrize("scale", [1.0, 1e35])
def test_a_step_that_falls_back_on_lapack_decomposes_once(scale, monkeypatch) -> None:
    """And its backward pass, from the memory, too, not at all."""
    calls = []
    found = tracking.dominant_eigentriple_and_moduli
    monkeypatch.setattr(
        tracking, "dominant_eigentriple_and_moduli", lambda T: calls.append(T.device.type) or found(T)
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
    assert calls == ["cpu"]


def test_tracked_matrices_are_what_they_are_alone() -> None:
    """Also where one of them falls back on LAPACK and another is zero."""
    T = benchmark.led((4, 40, 40))
    T[1] = nn.init.orthogonal_(torch.empty(40, 40))
    T[2] = 0
    states = [None] * 4
    for _ in range(4):
        T = T * 1.01
        runs = [tracking.steps(matrix, state) for matrix, state in zip(T.to(DEVICE), states, strict=True)]
        together = tracking.together(runs)
        for i, ((triple, state), matrix) in enumerate(zip(together, T, strict=True)):
            alone, _ = tracking.track(matrix.to(DEVICE), states[i])
            assert torch.equal(alone.eigenvalue, triple.eigenvalue)
            assert torch.equal(alone.right, triple.right)
            states[i] = state
