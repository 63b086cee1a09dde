"""The maps onto stable matrices beside their formulas, and the quadratic forms that they start from."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import spectral_param as sp
from spectral_param._map import apply
from spectral_param.functional import _lyapunov as lyapunov
from tests.properties import double, dtypes, examples, normal, powers_of_ten, seeds

EXACT = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def reference(X):
    """V = S⁻¹CS with C = (KᴴK + I/4)⁻¹Kᴴ by LU, in double precision."""
    K, S = X.to(EXACT.get(X.dtype, X.dtype)).chunk(2, dim=-2)
    quarter = 0.25 * torch.eye(X.shape[-1], dtype=K.dtype)
    return torch.linalg.solve(S, torch.linalg.solve(K.mH @ K + quarter, K.mH @ S))


def radius(V):
    return torch.linalg.eigvals(V.to(EXACT.get(V.dtype, V.dtype))).abs().max().item()


@example(batch=(), n=64, dtype=torch.float32, on_host=True, seed=0)
@example(batch=(), n=5, dtype=torch.float64, on_host=False, seed=0)
@given(
    batch=st.sampled_from([(), (3,)]), n=st.integers(1, 20), dtype=dtypes, on_host=st.booleans(), seed=seeds
)
@examples(20)
def test_stable_map_and_its_gradient_are_those_of_the_formula(batch, n, dtype, on_host, seed) -> None:
    X = normal((*batch, 2 * n, n), dtype, seed).requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        if not on_host:  # The way that looks at no value.
            patch.setattr(lyapunov, "_has_safe_squares", lambda _: False)
        V = lyapunov.stable(X)
        G = normal(V.shape, dtype, seed + 1)
        (gradient,) = torch.autograd.grad(V, X, G)
    expected = reference(X)
    (expected_gradient,) = torch.autograd.grad(expected, X, G.to(expected.dtype))
    # The enlargement of H is 2n eps, and its condition that of random matrices.
    K, S = X.detach().chunk(2, dim=-2)
    H = (K @ S).mH @ (K @ S) + S.mH @ S / 4
    rtol = 20 * n * torch.finfo(dtype).eps * torch.linalg.cond(H).max().item()
    assert (V - expected).abs().max() <= rtol * expected.abs().max()
    # The terms of a gradient may cancel; with T = H⁻¹G they are those of STᴴS, Q(TVᴴ + VTᴴ)Sᴴ, and so on.
    norm = torch.linalg.matrix_norm
    T = norm(torch.linalg.solve(H.to(G.dtype), G))
    of_Q = T * (norm(S) + 2 * norm(K @ S) * norm(V))
    terms = torch.stack([of_Q * norm(S), T * norm(K @ S) + norm(K) * of_Q + T * norm(S) * norm(V) / 2])
    errors = torch.stack((gradient - expected_gradient).abs().split(n, dim=-2))
    assert (errors.amax(dim=(-2, -1)) <= rtol * terms).all()


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_size_of_the_form_does_not_matter(scale, on_host, monkeypatch) -> None:
    if not on_host:  # The way that looks at no value.
        monkeypatch.setattr(lyapunov, "_has_safe_squares", lambda _: False)
    K, S = torch.eye(3) + 0.1 * torch.randn(2, 3, 3)  # The condition is not what is tested.
    big = torch.cat([K, S * scale]).requires_grad_()
    leaf = torch.cat([K, S]).requires_grad_()
    V, expected = lyapunov.stable(big), lyapunov.stable(leaf)
    torch.testing.assert_close(V, expected, atol=1e-4, rtol=1e-4)
    (gradient,) = torch.autograd.grad(V.sum(), big)
    (expected,) = torch.autograd.grad(expected.sum(), leaf)
    torch.testing.assert_close(gradient[:3], expected[:3], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(gradient[3:] * scale, expected[3:], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_size_of_the_contraction(scale, on_host, monkeypatch) -> None:
    """V tends to 0 with the size of K, and with that of K⁻¹; no square overflows."""
    if not on_host:  # The way that looks at no value.
        monkeypatch.setattr(lyapunov, "_has_safe_squares", lambda _: False)
    K, S = torch.eye(3) + 0.1 * torch.randn(2, 3, 3)  # The condition is not what is tested.
    X = torch.cat([scale * K, S]).requires_grad_()
    V = lyapunov.stable(X)
    expected = reference(torch.cat([scale * K, S]).double())
    torch.testing.assert_close(V, expected.float(), atol=1e-4 * expected.abs().max().item(), rtol=1e-3)
    (gradient,) = torch.autograd.grad(V.sum(), X)
    assert gradient.isfinite().all()


@given(growth=st.floats(1.0, 30.0), scale=powers_of_ten(-4, 4), seed=seeds)
@examples(10)
def test_condition_of_the_state_transformation_is_bounded(growth, scale, seed) -> None:
    S = lyapunov.conditioned(scale * normal((7, 7), torch.float64, seed), growth)
    assert torch.linalg.cond(S) <= growth * (1 + 1e-12)


def with_radius(n, rho, dtype=torch.float64):
    V = torch.randn(n, n, dtype=dtype)
    return V * rho / radius(V)


@example(n=64, distance=1e-14, dtype=torch.float64, seed=0)
@example(n=5, distance=1.0, dtype=torch.complex128, seed=0)
@given(n=st.integers(1, 12), distance=powers_of_ten(-14, 0), dtype=double, seed=seeds)
@examples(20)
def test_quadratic_form_decreases_and_is_well_conditioned(n, distance, dtype, seed) -> None:
    torch.manual_seed(seed)
    V = with_radius(n, 1 - distance, dtype)
    P = lyapunov.quadratic_form(V)
    values = torch.linalg.eigvalsh(P)
    assert values[-1] <= 1e4 * values[0]  # It does not grow as ρ tends to 1.
    assert torch.linalg.eigvalsh(V.mH @ P @ V - P)[-1] <= 1e-12 * values[-1]


@pytest.mark.parametrize(("largest", "atol"), [(0.99, 1e-11), (1.0, 1e-2)])
def test_quadratic_form_of_normal_matrices(largest, atol) -> None:
    """A multiple of the identity. At the bound two inverses of condition 1e13 are taken on the way."""
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.complex128)).Q
    moduli = torch.tensor([largest, largest, largest, 0.9, 0.5, 0.0], dtype=torch.float64)
    P = lyapunov.quadratic_form((Q * torch.polar(moduli, torch.rand(6).double())) @ Q.mH)
    torch.testing.assert_close(P / P[0, 0], torch.eye(6, dtype=P.dtype), atol=atol, rtol=0)


def test_quadratic_form_of_badly_balanced_matrices() -> None:
    d = torch.logspace(-6, 6, 6, dtype=torch.float64)
    V = with_radius(6, 0.9) * d / d[:, None]
    X = lyapunov.stable_inverse(V, lyapunov.quadratic_form(V))
    error = (lyapunov.stable(X) - V).abs() * d[:, None] / d
    assert error.max() <= 1e-11


def test_an_unstable_matrix_gets_no_form_that_proves_it() -> None:
    for V in (1.1 * torch.eye(3), torch.full((3, 3), np.nan)):
        P = lyapunov.quadratic_form(V.double())
        proves = P.isfinite().all() and torch.linalg.eigvalsh(V.double().mT @ P @ V.double() - P)[-1] <= 0
        assert not proves


class Operations(TorchDispatchMode):
    """Counts operations other than views, and looks at values."""

    def __init__(self):
        super().__init__()
        self.count = self.looks = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.looks += function is torch.ops.aten._local_scalar_dense.default
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "options", [{}, {"growth": 3.0}, {"abscissa": 0.0}, {"abscissa": 0.0, "growth": 2.0}]
)
def test_operations_on_a_device(options, monkeypatch) -> None:
    """No look at a value, for which the host would wait, and few operations where speed is promised."""
    module = torch.nn.Linear(8, 8)
    module.weight.data = 0.5 * torch.eye(8) if "abscissa" not in options else -torch.eye(8)
    sp.constrain(module, "weight", sp.LyapunovForm(**options))
    (parametrization,) = module.parametrizations.weight
    X = module.parametrizations.weight.original.detach().requires_grad_()
    monkeypatch.setattr(lyapunov, "_has_safe_squares", lambda _: False)
    with Operations() as operations:
        apply(parametrization.evaluate, parametrization.reference, X).backward(torch.ones(8, 8))
    assert operations.looks == 0
    if not options:
        assert operations.count <= 40
