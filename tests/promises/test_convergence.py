"""Where LAPACK does not converge in single precision, it is asked again in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import spectral_param as sp
from spectral_param.testing import holder, tolerance
from tests.promises.cases import CASES

SINGLE = {torch.float32, torch.complex64, np.dtype("float32"), np.dtype("complex64")}
# All that torch and numpy have of iterations that may not converge.
ITERATIONS = (
    (torch.linalg, ("svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals", "matrix_norm")),
    (np.linalg, ("svd", "eig", "eigvals", "eigh", "eigvalsh")),
)


@pytest.fixture
def asked_again(monkeypatch) -> list[str]:
    """Let every iteration in single precision fail; return the names of those that did."""
    failed: list[str] = []
    for library, names in ITERATIONS:
        for name in names:

            def stand_in(X, *args, original=getattr(library, name), name=name, error=library, **kwargs):  # noqa: B008
                # A Frobenius norm takes no iteration.
                if X.dtype in SINGLE and (name != "matrix_norm" or 2 in (*args, kwargs.get("ord"))):
                    failed.append(name)
                    raise error.LinAlgError("the iteration did not converge")
                return original(X, *args, **kwargs)

            monkeypatch.setattr(library, name, stand_in)
    return failed


PROJECTED = [
    pytest.param(case, dtype, shape, id=f"{case.name}-{str(dtype)[6:]}-{'x'.join(map(str, shape))}")
    for case in CASES
    if case.outside is not None
    for dtype in (torch.float32, torch.complex64)
    if dtype in case.dtypes
    for shape in ((5, 5), *case.rectangles[:1])
]


@pytest.mark.parametrize(("case", "dtype", "shape"), PROJECTED)
@pytest.mark.turns(3)
def test_registration_projects_all_the_same(case, dtype, shape, asked_again) -> None:
    torch.manual_seed(0)
    double = torch.complex128 if dtype.is_complex else torch.float64
    module = holder(case, case.outside(shape, double).to(dtype))
    W = module.weight.detach()
    exact = W.to(double)
    assert W.dtype == dtype
    assert case.violation(exact).max() <= tolerance(dtype, max(shape))
    module.weight.abs().square().sum().backward()


ASKED = {
    "polar factor": (lambda: sp.ScaledCayley(), "svd"),
    "determinant": (lambda: sp.ScaledCayley(negative_ones=2), "svd"),
    "singular values": (lambda: sp.SingularValues(margin=0.2), "svd"),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_stand_in_is_what_registration_asks(name, asked_again) -> None:
    make, function = ASKED[name]
    W = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    layer = torch.nn.Linear(6, 6)
    sp.constrain(layer, "weight", make(), init=W)
    assert function in asked_again
    assert layer.parametrizations.weight[0].in_manifold(layer.weight)
    if name == "few reflections":  # Which two it takes is a choice among equal singular values.
        return
    twin = torch.nn.Linear(6, 6).double()
    sp.constrain(twin, "weight", make(), init=W.double())
    torch.testing.assert_close(layer.weight.double(), twin.weight, rtol=0, atol=tolerance(torch.float32, 6))


@pytest.mark.parametrize("n", [5, 70, 100])
def test_eigenvalues_and_their_gradient(n, asked_again) -> None:
    T = torch.randn(n, n, generator=torch.Generator().manual_seed(2)) / n**0.5
    single = T.clone().requires_grad_()
    double = T.double().requires_grad_()
    values = [sp.functional.spectral_radius(X) for X in (single, double)]
    for value in values:
        value.backward()
    torch.testing.assert_close(values[0].double(), values[1], rtol=1e-4, atol=0)
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=0, atol=1e-3)


def test_what_fails_in_double_precision_is_said(monkeypatch) -> None:
    def fails(*args, **kwargs):
        raise torch.linalg.LinAlgError("the iteration did not converge")

    monkeypatch.setattr(torch.linalg, "svd", fails)
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(torch.linalg.LinAlgError, match="converge"):
            sp.constrain(torch.nn.Linear(4, 4, dtype=dtype), "weight", sp.ScaledCayley())
