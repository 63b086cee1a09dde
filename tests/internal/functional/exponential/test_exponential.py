"""How the exponential is computed: how many products, when by eigenvalues, which way for tall bases."""

import pytest
import scipy.linalg
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import spectral_param as sp
from spectral_param.functional import exponential
from spectral_param.functional._exponential import skew_exponential, tangent_exponential
from spectral_param.testing import Holder


def skew(n, norm, dtype=torch.float64):
    T = torch.randn(n, n, dtype=torch.float64)
    A = T - T.mT
    return (norm * A / torch.linalg.matrix_norm(A, 1)).to(dtype)


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "products"), [(torch.float32, [10, 8]), (torch.float64, [12, 9])])
def test_the_spectral_norm_decides_about_a_skew_matrix(dtype, products, monkeypatch) -> None:
    """The 1-norm of a dense one of 200 rows is seven times its spectral norm."""
    A = skew(200, 30.0, dtype)
    with Products() as general:
        exponential(A)
    with Products() as special:
        E = skew_exponential(A)
    assert [general.count, special.count] == products
    expected = torch.from_numpy(scipy.linalg.expm(A.double().numpy()))
    assert (E - expected).abs().max() <= 10 * torch.finfo(dtype).eps
    # Its eigenvalues, which take longest, are for spectral norms above 64.
    monkeypatch.setattr(torch.linalg, "eigh", None)
    skew_exponential(5 * A)


@pytest.mark.parametrize("norm", [60.0, 70.0])
def test_eigenvalues_are_computed_for_large_angles_only(norm, monkeypatch) -> None:
    """They take six times as long as the products; the norm decides, not the largest entry times n."""
    called = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda *args: called.append(1) or eigh(*args))
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
