"""When SpectralRadiusNorm asks for eigenvalues: not where powers prove a small radius."""

import pytest
import torch

import spectral_param as sp
from spectral_param.testing import Holder
from tests.promises.cases import radii, with_radius


def constrained(weight, **kwargs):
    return sp.constrain(Holder(weight.clone()), "weight", sp.SpectralRadiusNorm(**kwargs))


def set_original(layer, T):
    layer.parametrizations.weight.original.data.copy_(T)


@pytest.mark.parametrize(
    ("n", "mode", "of"),
    [
        (1, "at_most", "weight"),
        (7, "latched", "weight"),
        (7, "at_most", "absolute"),
        (70, "at_most", "weight"),
    ],
)
def test_what_is_clearly_below_needs_no_eigenvalues(n, mode, of, monkeypatch) -> None:
    """The weight and its gradient are those of the way by eigenvalues, from there to the bound and beyond."""
    torch.manual_seed(n)
    T, G = torch.randn(2, n, n, dtype=torch.float64).unbind()
    T /= radii(T.abs() if of == "absolute" else T)
    decomposed = []
    follow = sp.SpectralRadiusNorm(2.0).tracking.__class__.follow
    monkeypatch.setattr(
        "spectral_param._eigen.solver.RadiusFollower.follow",
        lambda *args: decomposed.append(1) or follow(*args),
    )
    layer = constrained(torch.zeros(n, n, dtype=T.dtype), radius=2.0, mode=mode, of=of)

    def read(rho):
        set_original(layer, rho * T)
        decomposed.clear()
        layer.zero_grad()
        W = layer.weight
        (G * W).sum().backward()
        return W.detach(), layer.parametrizations.weight.original.grad, len(decomposed)

    for rho in (1e-9, 0.5, 1.0):
        W, gradient, count = read(rho)
        assert count == 0
        assert torch.equal(W, rho * T)
        assert torch.equal(gradient, G)
    for rho in (1.9, 1.9999, 2.0, 2.0001, 3.0, 1.0):
        W, gradient, count = read(rho)
        assert count == 1 or rho < 2
        assert count == 1 or mode == "at_most" or rho > 1, "a closed latch asks for the eigenvalue"
        with monkeypatch.context() as patch:
            patch.setattr("spectral_param._eigen.proof.has_radius_below", lambda *_: False)
            layer.eval()  # Not the read before again.
            expected_W, expected_gradient, _ = read(rho)
            layer.train()
        torch.testing.assert_close(W, expected_W, rtol=0, atol=0)
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=0)


def test_what_is_tracked_is_tracked_below_the_bound_too() -> None:
    layer = constrained(with_radius((20, 20), torch.float64, 0.3), mode="at_most", solver="tracking")
    tracking = layer.parametrizations.weight[0].tracking
    before = tracking._states
    set_original(layer, with_radius((20, 20), torch.float64, 0.2))
    layer.weight  # noqa: B018
    assert tracking._states is not before
