"""init.echo_state_: reservoirs that provably forget, dense and sparse, leaky too."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch

import spectral_param as sp
from spectral_param.init import echo_state_
from tests import matrices
from tests.messages import refused

LAYOUTS = {
    "dense": lambda W: W,
    "coo": torch.Tensor.to_sparse_coo,
    "csr": torch.Tensor.to_sparse_csr,
    "scipy": lambda W: scipy.sparse.csc_array(W.numpy()),
    "scipy-matrix": lambda W: scipy.sparse.csr_matrix(W.numpy()),
}


def reservoir(n, dtype=torch.float64):
    return torch.randn(n, n, dtype=dtype) * (torch.rand(n, n) < 0.3)


def dense(W):
    return torch.from_numpy(W.toarray()) if scipy.sparse.issparse(W) else W.to_dense()


@pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_largest_multiple_whose_rate_is_proven(layout, dtype) -> None:
    start = reservoir(20, dtype)
    given = LAYOUTS[layout](start.clone())
    W, (scaling, rate, radius, condition) = echo_state_(given, 0.95)
    if scipy.sparse.issparse(given):
        assert W.format == given.format
        assert np.array_equal(given.toarray(), start.numpy())
    else:
        assert W is given
        assert W.layout == given.layout
    assert W.dtype == given.dtype
    exact = dense(W).double()
    torch.testing.assert_close(exact / exact.max(), start.double() / start.max(), rtol=1e-6, atol=0)
    norm = torch.linalg.matrix_norm(scaling[:, None] * exact / scaling, 2)
    eps = torch.finfo(dtype).eps
    assert norm <= rate <= 0.95
    assert 0.95 * (1 - 1e-6 - 20 * eps) <= sp.functional.scaled_norm(exact) * (1 + 1e-6)
    torch.testing.assert_close(radius, torch.linalg.eigvals(exact).abs().max())
    assert condition == scaling.max() / scaling.min()


@pytest.mark.parametrize(
    "view",
    [
        lambda M: M,
        lambda M: M.T,
        lambda M: M[::-1, ::-1],
        lambda M: np.stack([M, 2 * M]),
        lambda M: M.astype(M.dtype.newbyteorder(">")),
        lambda M: M.astype(np.float32),
        lambda M: M.astype(np.float16),
    ],
)
@pytest.mark.turns(2)
def test_an_array_is_scaled_in_place(view) -> None:
    given = view(reservoir(12).numpy())
    native = given.astype(given.dtype.newbyteorder("="))
    expected, certificate = echo_state_(torch.from_numpy(native), 0.9)
    W, found = echo_state_(given, 0.9)
    assert W is given
    assert np.array_equal(W, expected.numpy())
    assert torch.equal(found.rate, certificate.rate)


@pytest.mark.parametrize("leak", [1.0, 0.3])
def test_two_states_of_a_reservoir_meet(leak) -> None:
    W, (scaling, rate, radius, condition) = echo_state_(reservoir(30), 0.9, leak)
    exact = (1 - leak) * torch.eye(30).double() + leak * W
    torch.testing.assert_close(radius, torch.linalg.eigvals(exact).abs().max())
    assert radius <= rate <= 0.9
    assert rate > 0.899
    h, other = torch.randn(2, 30, dtype=torch.float64)
    start = (h - other).norm()
    for k in range(1, 100):
        x, before = 3 * torch.randn(30, dtype=torch.float64), (scaling * (h - other)).norm()
        h, other = ((1 - leak) * s + leak * torch.tanh(W @ s + x) for s in (h, other))
        assert (scaling * (h - other)).norm() <= rate * before * (1 + 1e-12) + 1e-15
        assert (h - other).norm() <= condition * rate**k * start + 1e-14


def test_the_rule_of_thumb_is_no_proof_and_may_fail() -> None:
    """A reservoir of ρ = 0.9 that the input holds in a flat part does not forget; one that is scaled does."""
    W = torch.tensor([[2.0, 3.0], [-1.0, -1.0]], dtype=torch.float64) * 0.9
    assert abs(sp.functional.spectral_radius(W) - 0.9) < 1e-9
    # The second unit is held at -1, so the first one is h ← tanh(1.8 h), with two stable states.
    x = torch.tensor([2.7, -50.0], dtype=torch.float64)

    def apart(W):
        h, other = torch.tensor([[0.5, -1.0], [-0.5, -1.0]], dtype=torch.float64)
        for _ in range(300):
            h, other = torch.tanh(W @ h + x), torch.tanh(W @ other + x)
        return float((h - other)[0].abs())

    assert apart(W) > 0.5
    scaled, _ = echo_state_(W.clone(), 0.9)
    assert apart(scaled) < 1e-9


def test_each_matrix_of_a_batch_is_scaled_by_itself() -> None:
    W = torch.randn(3, 6, 6) * torch.tensor([0.1, 1.0, 50.0])[:, None, None]
    W, found = echo_state_(W, 0.8)
    assert found.rate.shape == (3,)
    assert (found.rate <= 0.8).all()
    torch.testing.assert_close(sp.functional.scaled_norm(W).float(), torch.full((3,), 0.8), rtol=1e-5, atol=0)


@pytest.mark.nightly
def test_2000_units_in_the_time_that_the_docstring_says() -> None:
    _, found = echo_state_(matrices.sparse(2000, 10), 0.99)
    assert found.radius < found.rate <= 0.99


@pytest.mark.parametrize("name", ["rate", "leak"])
def test_rates_and_leaks_out_of_range_are_refused(name) -> None:
    bad = {
        "rate": [(0.0, 1.0), (1.1, 1.0), (0.5, 0.5), (float("nan"), 1.0)],
        "leak": [(0.9, 0.0), (0.9, 1.5)],
    }
    for rate, leak in bad[name]:
        with refused(name):
            echo_state_(torch.eye(3), rate, leak)
    echo_state_(torch.eye(3), 0.51, 0.5)


@pytest.mark.parametrize(
    ("W", "error"),
    [
        (torch.ones(3, 3).triu(1), ValueError),
        (scipy.sparse.csr_array(np.triu(np.ones((3, 3)), 1)), ValueError),
        (torch.eye(3, dtype=torch.complex64), sp.errors.UnsupportedDtypeError),
        (torch.eye(3, dtype=torch.int64), sp.errors.UnsupportedDtypeError),
        (torch.ones(3, 2), sp.errors.NotSquareError),
        (torch.full((2, 2), float("nan")), sp.errors.NotFiniteError),
        (scipy.sparse.csr_array(np.array([[np.inf]])), sp.errors.NotFiniteError),
        (scipy.sparse.eye_array(5001), sp.errors.NotProvenError),
        ([[1.0, 0.0], [0.0, 1.0]], TypeError),
        (np.eye(3, dtype=int), sp.errors.UnsupportedDtypeError),
        (np.eye(3, dtype=complex), sp.errors.UnsupportedDtypeError),
        (np.eye(3, dtype=object), sp.errors.UnsupportedDtypeError),
        (np.broadcast_to(np.eye(3), (2, 3, 3)), ValueError),
    ],
)
def test_weights_that_cannot_be_scaled_are_refused(W, error) -> None:
    with refused("echo_state_", error=error):
        echo_state_(W, 0.9)


def test_integers_of_scipy_become_numbers() -> None:
    ring = scipy.sparse.csr_array(([1, 1, 1], ([0, 1, 2], [1, 2, 0])), shape=(3, 3))
    W, found = echo_state_(ring, 0.5)
    np.testing.assert_allclose(W.toarray()[[0, 1, 2], [1, 2, 0]], 0.5, rtol=1e-6)
    assert all(W.toarray()[i, j] == 0 for i, j in itertools.product(range(3), repeat=2) if j != (i + 1) % 3)
    assert found.rate <= 0.5
