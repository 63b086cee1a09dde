"""The cache of a tracked weight: where it saves a decomposition, and its operator in compiled graphs."""

import copy
import pickle

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param._eigen import derivative, tracking
from spectral_param._eigen.solver import NormFollower, RadiusFollower
from spectral_param._parametrizations import spectral_radius

N = 80


def separated(n=N):
    T = torch.randn(n, n) / n**0.5 / 2
    T[0, 0] += 1
    return T


def radius(T):
    return torch.linalg.eigvals(T.double()).abs().amax(dim=-1)


@pytest.fixture
def decomposed(monkeypatch):
    calls = []
    decompose = tracking.leading_eigentriple_and_values
    monkeypatch.setattr(
        tracking, "leading_eigentriple_and_values", lambda *args: calls.append(1) or decompose(*args)
    )
    return calls


@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_registration_takes_one_decomposition(scale, decomposed, monkeypatch) -> None:
    monkeypatch.setattr(spectral_radius, "dominant_eigentriple", None)
    layer = nn.Linear(N, N)
    with torch.no_grad():
        layer.weight.copy_(scale * separated())
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(solver="tracking"))
    assert radius(layer.weight.detach()) == pytest.approx(1, abs=1e-5)
    assert len(decomposed) == 1


@pytest.mark.parametrize("kind", [RadiusFollower, NormFollower])
def test_a_copy_knows_nothing(kind) -> None:
    original = kind("tracking")
    original.follow(separated(24))
    for clone in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert vars(clone).keys() == vars(original).keys()
        assert clone.choice == "tracking"
        assert not clone._states
        assert kind is NormFollower or clone.handle != original.handle


@pytest.mark.nightly
def test_operator_follows_and_asks_lapack_without_its_object(decomposed) -> None:
    owner = RadiusFollower("tracking")
    T = torch.stack([separated(), separated()])
    for step in range(3):
        decomposed.clear()
        rho, _ = derivative._leading_value(T + 1e-3 * step, "modulus", owner.handle)
        torch.testing.assert_close(rho.double(), radius(T + 1e-3 * step), rtol=1e-5, atol=0)
    assert not decomposed
    torch.library.opcheck(derivative._leading_value, (T, "modulus", owner.handle))
    handle = owner.handle
    del owner
    rho, _ = derivative._leading_value(T, "modulus", handle)
    torch.testing.assert_close(rho.double(), radius(T), rtol=1e-5, atol=0)
    assert not decomposed, "by LAPACK, without a state"
