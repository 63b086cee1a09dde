"""Eigenvalues, singular values and Henrici's departure: against LAPACK, closed forms, degenerate input."""

import math

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

import spectral_param as sp
from spectral_param.analysis import (
    departure_from_normality,
    eigenvalues,
    singular_values,
    spectral_summary,
)
from spectral_param.errors import NotAMatrixError, NotSquareError, UnsupportedDtypeError
from tests import matrices

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16)
FUNCTIONS = (eigenvalues, singular_values, departure_from_normality)
DOUBLE = {"dtype": torch.float64}


def orthogonal(n, dtype=torch.float64):
    return torch.linalg.qr(torch.randn(n, n, dtype=dtype)).Q


@pytest.mark.parametrize("dtype", DTYPES)
def test_spectra_are_sorted_and_complete(dtype) -> None:
    W = torch.randn(3, 7, 7).to(dtype) if dtype == torch.bfloat16 else torch.randn(3, 7, 7, dtype=dtype)
    values, singular = eigenvalues(W), singular_values(W)
    assert values.shape == singular.shape == (3, 7)
    assert values.dtype == torch.complex128
    assert singular.dtype == torch.float64
    assert (values.abs().diff() <= 0).all()
    assert (singular.diff() <= 0).all()
    exact = W.to(torch.complex128)
    traces = exact.diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(values.sum(-1), traces, atol=1e-12, rtol=0)
    torch.testing.assert_close(values.prod(-1), torch.linalg.det(exact))
    torch.testing.assert_close(singular.square().sum(-1), exact.abs().square().sum((-2, -1)))


def test_of_a_pair_the_upper_one_comes_first() -> None:
    values = eigenvalues(torch.randn(40, 6, 6, **DOUBLE))
    pairs = values.imag != 0
    upper = values[pairs].reshape(-1, 2)
    assert len(upper) > 20
    assert (upper[:, 0].imag > 0).all()
    assert torch.equal(upper[:, 1], upper[:, 0].conj())


@pytest.mark.parametrize("function", [eigenvalues, departure_from_normality])
def test_gates_are_matrices_of_their_own(function) -> None:
    lstm = torch.nn.LSTM(2, 5)
    blocks = lstm.weight_hh_l0.unflatten(0, (4, 5))
    torch.testing.assert_close(function(lstm.weight_hh_l0), torch.stack([function(b) for b in blocks]))
    assert not function(lstm.weight_hh_l0).requires_grad


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_nan_out_and_only_there(function, dtype, bad) -> None:
    W = torch.randn(3, 4, 4, dtype=dtype)
    expected = function(W)
    W[1] = bad
    result = function(W)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], expected[::2])
    assert function(torch.full((4, 4), bad, dtype=dtype)).isnan().all()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_weights_without_a_spectrum_are_refused(function) -> None:
    if function is not singular_values:
        with pytest.raises(NotSquareError, match="expected a square"):
            function(torch.randn(4, 3))
    with pytest.raises(NotAMatrixError, match="at least two dimensions"):
        function(torch.randn(3))
    with pytest.raises(UnsupportedDtypeError, match=r"torch\.int64"):
        function(torch.ones(3, 3, dtype=torch.int64))


def normal_matrices():
    S = torch.randn(20, 20, **DOUBLE)
    Q = orthogonal(20)
    U = orthogonal(20, torch.complex128)
    spectrum = torch.randn(20, dtype=torch.complex128)
    rotations = torch.block_diag(*[orthogonal(2) * g for g in torch.rand(10)])
    return {
        "symmetric": S + S.mT,
        "skew": S - S.mT,
        "orthogonal": Q,
        "permutation": torch.eye(20, **DOUBLE).roll(1, 0),
        "multiple eigenvalues": Q @ torch.diag(torch.tensor([2.0, -1.0], **DOUBLE).repeat(10)) @ Q.mT,
        "real normal": Q @ rotations.double() @ Q.mT,
        "complex normal": U @ torch.diag(spectrum) @ U.mH,
        "identity": torch.eye(20, **DOUBLE),
        "zero": torch.zeros(20, 20, **DOUBLE),
    }


@pytest.mark.parametrize("kind", normal_matrices())
def test_departure_of_normal_matrices_is_zero(kind) -> None:
    W = normal_matrices()[kind]
    assert departure_from_normality(W) <= 1e-13 * (1 + torch.linalg.matrix_norm(W))
    assert departure_from_normality(W, normalized=True) <= 1e-13


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("eigenvalue", [0.0, 0.9, -3.0])
def test_departure_of_a_jordan_block(n, eigenvalue) -> None:
    """n - 1 ones above the diagonal."""
    J = matrices.jordan(n, eigenvalue)
    assert departure_from_normality(J).item() == pytest.approx((n - 1) ** 0.5, abs=1e-14)
    relative = (n - 1) ** 0.5 / (n - 1 + n * eigenvalue**2) ** 0.5 if n > 1 else 0
    assert departure_from_normality(J, normalized=True).item() == pytest.approx(relative, abs=1e-14)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_departure_scales_with_the_matrix(scale) -> None:
    W = torch.randn(2, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(departure_from_normality(scale * W) / scale, departure_from_normality(W))
    expected = departure_from_normality(W, normalized=True)
    torch.testing.assert_close(departure_from_normality(scale * W, normalized=True), expected)


@pytest.mark.parametrize("eigenvalue", [0.0, 0.9, -3.0])
def test_departure_of_a_defective_matrix_whose_eigenvectors_span_nothing(eigenvalue) -> None:
    """Rotated, so that LAPACK sees rounding: eigenvalues off by sqrt(eps), their squares by eps."""
    Q = orthogonal(2)
    W = Q @ matrices.jordan(2, eigenvalue) @ Q.mT
    assert departure_from_normality(W).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-2, 1.0])
def test_departure_is_the_norm_of_the_triangular_part_at_every_size(dtype, size) -> None:
    """Also where the difference of squares, whose error is 1e-8, has nothing left of it."""
    n = 8
    N = size * torch.randn(n, n, dtype=dtype).triu(1)
    D = torch.diag(torch.arange(1, n + 1).to(dtype))
    Q = orthogonal(n, dtype)
    expected = torch.linalg.matrix_norm(N).item()
    assert departure_from_normality(Q @ (D + N) @ Q.mH).item() == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_departure_of_the_largest_and_smallest_entries(dtype) -> None:
    """N of a 2 x 2 Jordan block, at both ends of the exponents."""
    info = torch.finfo(dtype)
    for size in (info.max, info.smallest_normal):
        W = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=dtype) * size
        assert departure_from_normality(W).item() == pytest.approx(size, rel=1e-12)
        assert departure_from_normality(W, normalized=True).item() == pytest.approx(3**-0.5)
        assert departure_from_normality(W - W.triu(1)).item() == 0
    if dtype == torch.complex128:  # Where a modulus overflows, or a complex division by the scale gives NaN.
        for size in (1.5e308, 3e-310):
            W = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=dtype) * complex(size, size)
            assert departure_from_normality(W, normalized=True).item() == pytest.approx(3**-0.5)


def test_summary_names_each_constrained_weight() -> None:
    model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(3, 8), "norm": torch.nn.Linear(3, 5)})
    sp.constrain(model["rnn"], "weight_hh_l0", sp.SpectralRadiusNorm(torch.tensor([0.2, 0.5, 0.9, 0.4])))
    weight_norm(model["norm"])  # Not square.
    found = spectral_summary(model)
    W, rectangle = model["rnn"].weight_hh_l0.detach(), model["norm"].weight.detach()
    assert found == {
        "spectral_norm/rnn.weight_hh_l0": singular_values(W.unflatten(0, (4, -1))).max().item(),
        "spectral_radius/rnn.weight_hh_l0": pytest.approx(0.9),
        "departure_from_normality/rnn.weight_hh_l0": departure_from_normality(W).max().item(),
        "spectral_norm/norm.weight": singular_values(rectangle).max().item(),
    }
    assert list(spectral_summary(model["rnn"])) == [
        f"{key}/weight_hh_l0" for key in ("spectral_norm", "spectral_radius", "departure_from_normality")
    ]
    assert spectral_summary(torch.nn.Linear(4, 4)) == {}


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 3), (2, 6, 3)])
def test_singular_values_of_rectangles(shape) -> None:
    W = torch.randn(shape, dtype=torch.complex64)
    expected = torch.linalg.svdvals(W.to(torch.complex128))
    torch.testing.assert_close(singular_values(W), expected, rtol=0, atol=0)
    assert singular_values(torch.full(shape, torch.nan)).isnan().all()


def test_summary_has_no_eigenvalues_of_rectangles_and_no_kernels() -> None:
    """The blocks of a tall weight are square by chance, but have eigenvalues that mean nothing."""
    model = torch.nn.ModuleDict(
        {
            "tall": torch.nn.Linear(4, 16),
            "image": torch.nn.Conv2d(3, 5, 3),
            "pixels": torch.nn.Conv2d(4, 4, 1),
            "attention": torch.nn.MultiheadAttention(4, 2),
        }
    )
    sp.constrain(model, "*weight", sp.SpectralNorm(1.0))
    model["by hand"] = torch.nn.Linear(4, 16)
    sp.constrain(model["by hand"], "weight", sp.SpectralNorm(1.0), gates=4)
    model["foreign"] = weight_norm(torch.nn.LSTM(4, 4), "weight_hh_l0")
    found = spectral_summary(model)
    attention = ["attention.in_proj_weight", "attention.out_proj.weight"]
    squares = [*attention, "by hand.weight", "foreign.weight_hh_l0"]
    names = {"spectral_radius": squares, "spectral_norm": [*squares, "tall.weight"]}
    for key, expected in names.items():
        assert sorted(n.removeprefix(f"{key}/") for n in found if n.startswith(key)) == sorted(expected)


def test_summary_of_complex_weights_and_of_those_that_are_not_finite() -> None:
    assert list(spectral_summary(sp.nn.ScuRNN(2, 6)).values()) == pytest.approx([1, 1, 0], abs=1e-5)
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", sp.SpectralRadiusNorm())
    layer.parametrizations.weight.original.data[0, 0] = math.nan
    assert all(math.isnan(value) for value in spectral_summary(layer).values())


@pytest.mark.parametrize("short_size", [6, 100])  # The radius of the second is followed from step to step.
def test_summary_does_not_change_the_training(short_size) -> None:
    def trained(is_logged):
        torch.manual_seed(0)
        rnn = sp.nn.ENRNN(2, 6, short_size)
        optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            rnn(torch.randn(9, 4, 2))[0].square().mean().backward()
            optimizer.step()
            if is_logged:
                spectral_summary(rnn)
        return rnn.parameters()

    assert all(map(torch.equal, trained(True), trained(False)))
