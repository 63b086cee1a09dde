"""Fisher memory: Ganguli, Huh and Sompolinsky's results, and the proposition of nnRNN that builds on them."""

import math

import pytest
import scipy.linalg
import torch

from spectral_param.analysis import fisher_memory, fisher_memory_bound
from spectral_param.errors import NotSquareError

DOUBLE = {"dtype": torch.float64}


def delay_line(n, alpha):
    return math.sqrt(alpha) * torch.diag(torch.ones(n - 1, **DOUBLE), -1)


def first_unit(n):
    return torch.eye(n, **DOUBLE)[0]


def stable(n, radius=0.9, dtype=torch.float64):
    W = torch.randn(n, n, dtype=dtype)
    return radius * W / torch.linalg.eigvals(W).abs().max()


@pytest.mark.parametrize(("n", "alpha"), [(2, 4.0), (10, 0.25), (10, 1.0), (40, 0.9), (100, 1.05)])
def test_delay_line_has_the_closed_form(n, alpha) -> None:
    """J(k) = αᵏ (α - 1) / (αᵏ⁺¹ - 1) for k < n, 1/(k + 1) at α = 1, and then 0."""
    k = torch.arange(n, **DOUBLE)
    closed = 1 / (k + 1) if alpha == 1 else alpha**k * (alpha - 1) / (alpha ** (k + 1) - 1)
    J = fisher_memory(delay_line(n, alpha), first_unit(n), steps=n + 3)
    assert ((J[:n] - closed).abs() <= 1e-10 * closed).all()
    assert (J[n:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_definition_with_the_covariance_from_scipy(dtype) -> None:
    W, v = stable(7, dtype=dtype), torch.randn(7, dtype=dtype)
    C = torch.from_numpy(scipy.linalg.solve_discrete_lyapunov(W.numpy(), torch.eye(7).double().numpy()))
    J = fisher_memory(W, v, steps=12)
    for k in range(13):
        signal = torch.linalg.matrix_power(W, k) @ v
        expected = torch.linalg.solve(C.to(dtype), signal).vdot(signal).conj()
        assert J[k].item() == pytest.approx(expected.real.item(), rel=1e-10)


@pytest.mark.parametrize("kind", ["orthogonal", "symmetric", "complex"])
def test_normal_networks_have_capacity_one(kind) -> None:
    """The sum over all k is 1, whatever the normal W and the unit v."""
    n = 6
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.complex128 if kind == "complex" else torch.float64)).Q
    spectrum = 0.9 * torch.ones(n) if kind == "orthogonal" else 1.8 * torch.rand(n) - 0.9
    W = 0.9 * Q if kind == "orthogonal" else Q @ torch.diag(spectrum).to(Q.dtype) @ Q.mH
    v = torch.nn.functional.normalize(torch.randn(n, dtype=Q.dtype), dim=0)
    assert fisher_memory(W, v, steps=400).sum().item() == pytest.approx(1, abs=1e-10)


def test_capacities_of_an_orthonormal_basis_add_up_to_n() -> None:
    W = stable(6, radius=0.8)
    total = fisher_memory(W, torch.eye(6, **DOUBLE), steps=400)  # six signals, broadcast
    assert total.shape == (6, 401)
    assert total.sum().item() == pytest.approx(6, abs=1e-10)


def test_batch_and_accuracy_near_the_circle() -> None:
    W = torch.stack([stable(4), delay_line(4, 2.0), 0.99999 * torch.eye(4, **DOUBLE)])
    v = first_unit(4)
    J = fisher_memory(W, v, steps=5)
    for matrix, row in zip(W, J, strict=True):
        torch.testing.assert_close(fisher_memory(matrix, v, steps=5), row, rtol=1e-12, atol=0)
    expected = 0.99999 ** (2 * torch.arange(6, **DOUBLE)) * (1 - 0.99999**2)
    torch.testing.assert_close(J[2], expected, rtol=1e-10, atol=0)


def test_nan_in_nan_out_and_only_there() -> None:
    W = torch.stack([stable(4), torch.full((4, 4), torch.nan, **DOUBLE)])
    J = fisher_memory(W, first_unit(4), steps=3)
    assert J[0].isfinite().all()
    assert J[1].isnan().all()


def test_what_has_no_fisher_memory_is_refused_with_the_reason() -> None:
    v = torch.ones(3)
    for unstable in (torch.eye(3), 2 * torch.eye(3), torch.tensor([[1.0, 9, 9], [0, 1, 9], [0, 0, 1]])):
        with pytest.raises(ValueError, match="expected a spectral radius below 1"):
            fisher_memory(unstable, v, steps=3)
    with pytest.raises(ValueError, match=r"expected v of shape .* with n = 3, got \(4,\)"):
        fisher_memory(torch.zeros(3, 3), torch.ones(4), steps=3)
    with pytest.raises(ValueError, match="steps: expected an integer >= 1, got 0"):
        fisher_memory(torch.zeros(3, 3), v, steps=0)
    with pytest.raises(NotSquareError, match="fisher_memory"):
        fisher_memory(torch.zeros(3, 4), v, steps=3)


def random_chain(alpha):
    n = int(torch.randint(2, 13, ()))
    below = torch.randn(n, n, **DOUBLE).tril(-2) * 2 * torch.rand((), **DOUBLE)
    return delay_line(n, alpha) + below


@pytest.mark.parametrize("sharp", [False, True])
def test_proposition_1_holds(sharp) -> None:
    """On 100 random strictly lower triangular matrices, for all k; with equality for the delay line."""
    for _ in range(30):
        alpha = float(0.2 + 2 * torch.rand(()))
        Theta = random_chain(alpha)
        n = len(Theta)
        J = fisher_memory(Theta, first_unit(n), steps=n + 2)
        bound = fisher_memory_bound(Theta, steps=n + 2, sharp=sharp)
        assert (bound[:n] > 0).all()
        assert (bound * (1 - 1e-10) <= J).all()
        assert (
            fisher_memory_bound(Theta, n, sharp=True) >= fisher_memory_bound(Theta, n) * (1 - 1e-10)
        ).all()
    line = delay_line(9, 1.3)
    J, bound = fisher_memory(line, first_unit(9), 10), fisher_memory_bound(line, 10, sharp=sharp)
    torch.testing.assert_close(bound, J, rtol=1e-12, atol=0)


def test_proposition_1_as_printed() -> None:
    """σ_max is that of T in Θ = Θ_delay T; the R of the usual Gram-Schmidt order makes the bound false."""
    violated = 0
    for _ in range(300):
        alpha = float(0.2 + 2 * torch.rand(()))
        Theta = random_chain(alpha)
        n = len(Theta)
        k = torch.arange(n, **DOUBLE)
        chain = alpha**k * (alpha - 1) / (alpha ** (k + 1) - 1)
        T = torch.eye(n, **DOUBLE)
        T[:-1, :-1] = Theta[1:, :-1] / math.sqrt(alpha)
        torch.testing.assert_close(delay_line(n, alpha) @ T, Theta)
        printed = chain / torch.linalg.matrix_norm(T, 2) ** (2 * (n - 1))
        torch.testing.assert_close(fisher_memory_bound(Theta, n - 1), printed)

        R = torch.linalg.qr(Theta[:, :-1]).R
        R = R / R.diagonal()[:, None]
        usual = chain / torch.linalg.matrix_norm(R, 2) ** (2 * (n - 1))
        violated += bool((fisher_memory(Theta, first_unit(n), n - 1) < 0.99 * usual).any())
    assert violated > 0


@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 9.0])
def test_bound_of_a_long_chain(alpha, sharp) -> None:
    """Equality with the closed form, where powers of α are beyond double precision."""
    k = torch.arange(701, **DOUBLE)
    expected = 1 / torch.stack([(float(alpha) ** -k[: j + 1]).sum() for j in range(len(k))])
    bound = fisher_memory_bound(delay_line(720, alpha), 700, sharp=sharp)
    torch.testing.assert_close(bound, expected, rtol=1e-11, atol=1e-290)


def test_bound_is_nan_where_the_chain_is_not_finite() -> None:
    chain = torch.stack([delay_line(5, 1.4), delay_line(5, 1.4)])
    for value in (torch.nan, torch.inf):
        chain[1, 4, 0] = value
        for sharp in (False, True):
            bound = fisher_memory_bound(chain, 4, sharp=sharp)
            assert bound[0].isfinite().all()
            assert bound[1].isnan().all()


@pytest.mark.nightly
def test_noise_beyond_double_precision_is_not_taken_for_instability() -> None:
    chain = delay_line(720, 9.0)
    with pytest.raises(ValueError, match="covariance of the noise below 1e308"):
        fisher_memory(chain, first_unit(720), steps=3)
    with pytest.raises(ValueError, match="expected a spectral radius below 1"):
        fisher_memory(chain + 2 * torch.eye(720), first_unit(720), steps=3)


def test_bound_of_what_is_no_chain() -> None:
    chain = delay_line(4, 1.0)
    for wrong in (
        chain.mT,
        chain + 0.1 * torch.eye(4),
        -chain,
        chain.to(torch.complex128),
        torch.zeros(1, 1),
    ):
        with pytest.raises(ValueError, match="expected real strictly lower triangular"):
            fisher_memory_bound(wrong, steps=3)
    uneven = torch.diag(torch.tensor([1.0, 2.0, 1.0]), -1)
    with pytest.raises(ValueError, match=r"expected one number .* from 1 to 2"):
        fisher_memory_bound(uneven, steps=3)
