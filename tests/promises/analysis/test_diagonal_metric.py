"""Diagonal coordinates that prove a network contracting, of dense and sparse weights."""

import math

import pytest
import scipy.sparse
import torch

from spectral_param.analysis import lyapunov_certificate
from spectral_param.errors import NotProvenError
from spectral_param.functional import scaled_norm
from tests import matrices
from tests.messages import refused


def in_coordinates(W, scaling):
    """ΘWΘ⁻¹ in extended precision, as far as torch has it: entries are exact to 1e-16."""
    return scaling[..., :, None] * W / scaling[..., None, :]


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.turns(2)
def test_the_rate_bounds_the_norm_in_the_coordinates(n) -> None:
    W = torch.randn(3, n, n, dtype=torch.float64)
    scaling, rate, radius, condition = lyapunov_certificate(W, metric="diagonal")
    norm = torch.linalg.matrix_norm(in_coordinates(W, scaling), 2)
    assert (norm <= rate).all()
    torch.testing.assert_close(rate, scaled_norm(W), rtol=1e-6, atol=0)
    torch.testing.assert_close(radius, torch.linalg.eigvals(W).abs().amax(dim=-1))
    torch.testing.assert_close(condition, scaling.amax(dim=-1) / scaling.amin(dim=-1))


def test_the_rate_bounds_norms_that_are_known_exactly() -> None:
    """Hadamard matrices of 2ᵏ rows have the norm 2^(k/2), which is a number of float64 for even k."""
    H = torch.ones(1, 1, dtype=torch.float64)
    for k in range(1, 9):
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
        if k % 2 == 0:
            rate = lyapunov_certificate(H, metric="diagonal").rate
            assert 2.0 ** (k / 2) <= rate <= 2.0 ** (k / 2) * (1 + 1e-9)


def test_a_rate_that_is_enough_takes_coordinates_of_less_condition() -> None:
    W = torch.tensor([[0.9, 10.0, 30.0], [0.0, 0.5, 10.0], [0.0, 0.0, 0.3]], dtype=torch.float64)
    least, enough = (lyapunov_certificate(W, r, metric="diagonal") for r in (None, 0.95))
    assert least.rate <= 0.900001
    assert 0.9 <= enough.rate <= 0.95
    assert enough.condition < 0.1 * least.condition


@pytest.mark.parametrize("nonlinearity", [torch.relu, torch.tanh])
def test_two_states_of_a_network_approach_each_other_at_the_rate(nonlinearity) -> None:
    W = torch.randn(12, 12, dtype=torch.float64)
    scaling, rate, _, condition = lyapunov_certificate(W, metric="diagonal")
    W, rate = 0.9 / rate * W, 0.9
    h, other = torch.randn(2, 12, dtype=torch.float64)
    start = (h - other).norm()
    for k in range(1, 30):
        before = (scaling * (h - other)).norm()
        x = torch.randn(12, dtype=torch.float64)
        h, other = nonlinearity(W @ h + x), nonlinearity(W @ other + x)
        assert (scaling * (h - other)).norm() <= rate * before * (1 + 1e-12) + 1e-15
        assert (h - other).norm() <= condition * rate**k * start * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("layout", ["csr", "coo", torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.turns(2)
def test_a_sparse_weight_has_the_certificate_of_the_dense_one(layout) -> None:
    dense = torch.randn(30, 30, dtype=torch.float64) * (torch.rand(30, 30) < 0.2)
    if isinstance(layout, str):
        W = scipy.sparse.coo_array(dense.numpy()).asformat(layout)
    else:
        W = dense.to_sparse(layout=layout)
    found, wanted = lyapunov_certificate(W, metric="diagonal"), lyapunov_certificate(dense, metric="diagonal")
    for one, other in zip(found[1:3], wanted[1:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)
    assert torch.linalg.matrix_norm(in_coordinates(dense, found.scaling), 2) <= found.rate


@pytest.mark.nightly
def test_a_large_sparse_weight() -> None:
    """More than LAPACK's singular values are asked for."""
    W = matrices.sparse(600, 10)
    scaling, rate, radius, _ = lyapunov_certificate(W, metric="diagonal")
    dense = torch.from_numpy(W.toarray())
    assert torch.linalg.matrix_norm(in_coordinates(dense, scaling), 2) <= rate
    assert radius <= rate < torch.linalg.matrix_norm(dense, 2)


def test_where_nothing_can_be_proven() -> None:
    assert lyapunov_certificate(torch.full((2, 2), math.nan), metric="diagonal").rate.isnan()
    with refused("lyapunov_certificate", error=NotProvenError):
        lyapunov_certificate(scipy.sparse.eye_array(5001), metric="diagonal")


@pytest.mark.parametrize(
    ("W", "options", "name"),
    [
        (torch.eye(2), {"metric": "diag"}, "metric"),
        (torch.eye(2), {"radius": 0.0, "metric": "diagonal"}, "radius"),
        (torch.eye(2, dtype=torch.complex64), {"metric": "diagonal"}, "lyapunov_certificate"),
        (1j * scipy.sparse.eye_array(2), {"metric": "diagonal"}, "lyapunov_certificate"),
        (torch.ones(2, 3), {"metric": "diagonal"}, "lyapunov_certificate"),
        ([[1.0]], {"metric": "diagonal"}, "lyapunov_certificate"),
    ],
)
def test_each_bad_argument_is_named(W, options, name) -> None:
    with refused(name):
        lyapunov_certificate(W, **options)
