"""Second derivatives in each order of modes: right, or refused."""

import pytest
import torch

import spectral_param.functional as F

T, V = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
D = torch.tensor([1.0, 1, -1, 1, 1], dtype=torch.float64)


def skew(X):
    return X - X.mT


FUNCTIONS = {
    "spectral_radius": F.spectral_radius,
    "spectral_abscissa": F.spectral_abscissa,
    "dominant_eigen": lambda X: F.dominant_eigen(X).eigenvalue.abs(),
    "cayley": lambda X: F.cayley(skew(X)).sum(),
    "scaled_cayley": lambda X: F.scaled_cayley(skew(X), D).sum(),
    "doubly_stochastic": lambda X: F.doubly_stochastic(X).square().sum(),
    "householder": lambda X: F.householder(X).sum(),
}


def along(f):
    """Return the derivative of f in forward mode."""
    return lambda t: torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.turns(2)
def test_second_derivative_in_each_order_of_modes(name) -> None:
    def f(t):
        return FUNCTIONS[name](T + t * V)

    zero, h = torch.zeros((), dtype=torch.float64), 1e-4
    difference = (f(zero + h) - 2 * f(zero) + f(zero - h)) / h**2
    grad = torch.func.grad
    for second in (grad(grad(f)), along(grad(f)), grad(along(f)), torch.func.hessian(f)):
        torch.testing.assert_close(second(zero), difference, rtol=1e-5, atol=1e-6)
    for nested in (along(along(f)), torch.func.jacfwd(torch.func.jacfwd(f))):
        if "cayley" in name or name == "householder":  # PyTorch's own operations there.
            torch.testing.assert_close(nested(zero), difference, rtol=1e-5, atol=1e-6)
            continue
        with pytest.raises(NotImplementedError, match=r"torch\.func\.hessian"):
            nested(zero)
