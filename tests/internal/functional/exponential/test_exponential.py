"""How the exponential is computed: how many products, when by the Schur form, which way for tall bases."""

import importlib

import pytest
import scipy.linalg
import torch

import spectral_param as sp
from spectral_param.functional import exponential
from spectral_param.functional._exponential import skew_exponential, tangent_exponential
from spectral_param.testing import Holder

# The function of the same name hides the module.
_exponential = importlib.import_module("spectral_param.functional._exponential")


def skew(n, norm, dtype=torch.float64):
    T = torch.randn(n, n, dtype=torch.float64)
    A = T - T.mT
    return (norm * A / torch.linalg.matrix_norm(A, 1)).to(dtype)


def count_products(function, A) -> int:
    """Return how many products of matrices a function takes."""
    with torch.autograd.profiler.profile() as profile:
        function(A)
    return sum(event.name == "aten::mm" for event in profile.function_events)


@pytest.mark.parametrize(("dtype", "products"), [(torch.float32, [10, 8]), (torch.float64, [12, 9])])
def test_the_spectral_norm_decides_about_a_skew_matrix(dtype, products, monkeypatch) -> None:
    """The 1-norm of a dense one of 200 rows is seven times its spectral norm."""
    A = skew(200, 30.0, dtype)
    assert [count_products(f, A) for f in (exponential, skew_exponential)] == products
    E = skew_exponential(A)
    expected = torch.from_numpy(scipy.linalg.expm(A.double().numpy()))
    assert (E - expected).abs().max() <= 10 * torch.finfo(dtype).eps
    # The Schur form, which takes longest, is for spectral norms above 64.
    monkeypatch.setattr(_exponential, "of_real_skew", None)
    skew_exponential(5 * A)


@pytest.mark.parametrize("norm", [60.0, 70.0])
def test_a_schur_form_is_computed_for_large_angles_only(norm, monkeypatch) -> None:
    """It takes much longer than the products; the norm decides, not the largest entry times n."""
    called = []
    by_form = _exponential.of_real_skew
    monkeypatch.setattr(_exponential, "of_real_skew", lambda *args: called.append(1) or by_form(*args))
    module = sp.constrain(Holder(torch.eye(100)), "weight", sp.SkewExponential())
    with torch.no_grad():
        module.parametrizations.weight.original.zero_()[1, 0] = norm
    module.weight  # noqa: B018
    assert bool(called) == (norm > 64)


def test_both_ways_to_a_tall_exponential() -> None:
    """The 2n x 2n exponential and the m x m one give the same geodesic."""
    base = torch.linalg.qr(torch.randn(12, 4, dtype=torch.float64)).Q
    T = torch.randn(12, 4, dtype=torch.float64)
    C = base.mT @ T
    B = T - base @ C
    X = B @ base.mT - base @ B.mT + base @ ((C - C.mT) / 2) @ base.mT
    expected = torch.linalg.matrix_exp(torch.stack([X, X]))[0] @ base
    torch.testing.assert_close(tangent_exponential(base, T), expected, atol=1e-12, rtol=0)
