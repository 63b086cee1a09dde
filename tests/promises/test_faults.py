"""Promises that a seeded fault of :mod:`tests.faults` broke without any other test noticing."""

import warnings

import numpy as np
import pytest
import scipy.optimize
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning, NotFiniteError
from spectral_param.testing import Holder


def constrained(weight: Tensor, constraint: nn.Module) -> Holder:
    return sp.constrain(Holder(weight), "weight", constraint)


# Reads --------------------------------------------------------------------------------------------


calls: list[Tensor] = []


class Counted(sp.Parametrization):
    """Half of the original; each evaluation is counted."""

    def reference(self, T: Tensor) -> Tensor:
        calls.append(T)
        return T / 2

    def invert(self, W: Tensor) -> Tensor:
        return 2 * W

    def start(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def free_parameters(self, T: Tensor) -> int:
        return T.numel()


def test_a_constraint_is_evaluated_once_for_each_change_and_once_for_each_later_backward_pass() -> None:
    module = constrained(torch.randn(3, 3), Counted())
    original = module.parametrizations.weight.original
    calls.clear()
    first, second, third = module.weight, module.weight, module.weight
    assert len(calls) <= 1  # Registration may have read it.
    calls.clear()
    (first.sum() + second.sum() + third.sum()).backward()
    assert len(calls) <= 3
    torch.testing.assert_close(original.grad, torch.full((3, 3), 1.5))
    for _ in range(2):
        calls.clear()
        with torch.no_grad():
            original.add_(1)
        for _ in range(5):
            module.weight  # noqa: B018
        assert len(calls) == 1


# Gradients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [{"abscissa": -0.1}, {"radius": 0.5}], ids=str)
def test_eigenvalues_beyond_the_bound_of_a_schur_form_keep_a_derivative(bound) -> None:
    module = constrained(torch.diag(torch.tensor([-0.3, -0.42, -0.46])), sp.SchurForm(**bound))
    gamma = module.parametrizations.weight.original1
    with torch.no_grad():
        gamma.copy_(gamma.abs() + 0.7)  # Reflected at the bound; none at a corner, such as 0.5 + 2 · 0.3.
    (g,) = torch.autograd.grad(module.weight.diagonal().sum(), gamma)
    assert (g.abs() > 0.1).all()


@pytest.mark.parametrize("of", ["weight", "absolute"])
def test_gradient_of_a_conjugate_pair_is_that_of_finite_differences(of) -> None:
    """Small real matrices whose leading eigenvalues are complex, and not those of a normal matrix."""
    T = torch.tensor([[0.1, 2.0, 0.3], [-0.7, 0.2, -0.4], [0.5, 0.1, 0.6]], dtype=torch.float64)
    assert torch.linalg.eigvals(T).abs().argmax() == torch.linalg.eigvals(T).imag.abs().argmax()
    constraint = constrained(T, sp.SpectralRadiusNorm(0.9, of=of)).parametrizations.weight[0]
    torch.autograd.gradcheck(constraint, (T.clone().requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("constraint", [sp.SpectralRadiusNorm, sp.SpectralNorm])
def test_tracked_gradient_is_that_of_all_eigenvalues(constraint, dtype) -> None:
    """To √ε in double precision, from n = 96 on, along a path of steps."""
    n, steps = 100, 4
    W = torch.randn(n, n, dtype=dtype) / n**0.5
    # One eigenvalue and one singular value ahead of the others, which the steps of the path turn.
    W = W + 3 * torch.outer(W[0], W[1].conj()) / (W[0].norm() * W[1].norm()) + 2 * torch.eye(n)[3].diag()
    G = torch.randn(n, n, dtype=dtype)
    found = []
    for solver in ("tracking", "dense"):
        module = constrained(W.clone(), constraint(0.9, mode="equal", solver=solver))
        original = module.parametrizations.weight.original
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            with torch.no_grad():
                original += 1e-3 * torch.randn(n, n, dtype=dtype, generator=generator)
            weight = module.weight
            (g,) = torch.autograd.grad((G.conj() * weight).real.sum(), original)
        found.append((weight.detach(), g))
    (weight, g), (exact, expected) = found
    torch.testing.assert_close(weight, exact, rtol=0, atol=1e-9)
    assert (g - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("sign", [1.0, -1.0, torch.nan])
def test_the_sign_of_zero_is_left_by_training(sign) -> None:
    module = constrained(torch.zeros(2, 2), sp.SignPattern([[1.0, sign], [sign, sign]]))
    module.weight.sum().backward()
    assert (module.parametrizations.weight.original.grad.abs() == 1).all()


# Projection and sets ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 6), (7, 3), (3, 7)])
@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential, sp.SingularValues])
def test_registration_takes_the_nearest_weight_of_the_set(make, shape) -> None:
    W = torch.randn(shape, dtype=torch.float64)
    U, sigma, Vh = torch.linalg.svd(W, full_matrices=False)
    # Registration may move values from outside of the interval to a point just within it.
    nearest, atol = (
        (U @ Vh, 1e-12) if make is not sp.SingularValues else (U * sigma.clamp(0.99, 1.01) @ Vh, 1e-3)
    )
    torch.testing.assert_close(constrained(W, make()).weight.detach(), nearest, rtol=0, atol=atol)


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential])
@pytest.mark.parametrize("shape", [(16, 16), (40, 12), (12, 40), (9, 8)])
def test_columns_stay_orthonormal_in_training(make, shape) -> None:
    module = constrained(torch.randn(shape, dtype=torch.float64), make())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    target = torch.randn(shape, dtype=torch.float64)
    for _ in range(10):
        optimizer.zero_grad()
        (module.weight - target).square().sum().backward()
        optimizer.step()
    W = module.weight.detach()
    assert sp.analysis.orthogonality_error(W) <= 100 * max(shape) * torch.finfo(W.dtype).eps


@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
@pytest.mark.parametrize("shape", [(12, 12), (12, 5)])
def test_exponential_far_from_the_base_is_orthonormal(shape, size) -> None:
    module = constrained(torch.randn(shape, dtype=torch.float64), sp.SkewExponential())
    with torch.no_grad():
        module.parametrizations.weight.original.normal_().mul_(size)
    W = module.weight.detach()
    assert sp.analysis.orthogonality_error(W) <= 20 * max(shape) * torch.finfo(W.dtype).eps


def test_absolute_values_at_most_the_radius_are_not_those_of_the_weight() -> None:
    module = constrained(torch.eye(2) / 2, sp.SpectralRadiusNorm(0.9, mode="at_most", of="absolute"))
    module.parametrizations.weight.original.data = torch.tensor([[0.6, -0.6], [0.6, 0.6]])
    assert torch.linalg.eigvals(module.weight.detach().abs()).abs().max() <= 0.9 + 1e-6


def test_a_kernel_that_overlaps_along_one_axis_bounds_the_norm_of_the_layer() -> None:
    for size, padding in (((3, 1), (1, 0)), ((1, 3), (0, 1))):
        layer = nn.Conv2d(2, 2, size, padding=padding, bias=False)
        layer.weight.data.fill_(1.0)
        sp.constrain(layer, "weight", sp.SpectralNorm(1.0))
        x = torch.ones(1, 2, 12, 12)
        with torch.no_grad():
            assert layer(x).norm() <= (1 + 1e-5) * x.norm()


def test_the_minus_ones_of_the_papers_start_stand_at_the_end() -> None:
    module = sp.constrain(Holder(torch.eye(7)), "weight", sp.ScaledCayley(negative_ones=2), init="paper")
    assert module.parametrizations.weight[0].signs.tolist() == [1] * 5 + [-1] * 2


def test_the_first_forward_pass_of_a_checkpointed_segment_may_evaluate_the_constraint() -> None:
    """The second one finds the weight known, and has to save as many tensors for its backward pass."""
    module = constrained(torch.randn(4, 4), sp.Householder())
    x = torch.randn(4, 2)
    expected = torch.autograd.grad(module(x).square().sum(), module.parameters())
    with torch.no_grad():
        for original in module.parameters():
            original.add_(0.0)  # A new version: the next read evaluates.
    checkpointed = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    found = torch.autograd.grad(checkpointed.square().sum(), module.parameters())
    torch.testing.assert_close(found, expected)


# Checkpoints --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential, sp.Givens])
def test_a_checkpoint_and_an_average_of_a_weight_of_the_other_determinant(make) -> None:
    Q = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    Q[0] *= torch.linalg.det(Q).sign()
    other = torch.cat([-Q[:1], Q[1:]])
    first, second = (constrained(W, make()) for W in (Q, other))
    averaged = torch.optim.swa_utils.AveragedModel(first, use_buffers=True)
    for module in (first, second):
        averaged.update_parameters(module)
    W = averaged.module.weight.detach()
    torch.testing.assert_close(W.mT @ W, torch.eye(5, dtype=W.dtype), rtol=0, atol=1e-12)
    first.load_state_dict(second.state_dict())
    torch.testing.assert_close(first.weight.detach(), other, rtol=0, atol=1e-12)


# Proofs -------------------------------------------------------------------------------------------


def gaussian(m: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed)) / n**0.5


def with_gaps() -> tuple[Tensor, Tensor, Tensor]:
    """Singular vectors, and singular values with gaps after the first twelve of them."""
    U, _, Vh = torch.linalg.svd(gaussian(200, 100), full_matrices=False)
    return U, torch.cat([torch.linspace(1, 0.8, 12), torch.linspace(0.5, 0.1, 88)]), Vh


class Followed:
    """A weight of norm 1 whose original is set at each step."""

    def __init__(self) -> None:
        self.module = constrained(gaussian(200, 100), sp.SpectralNorm(mode="equal", solver="tracking"))

    def check(self, T: Tensor) -> Tensor:
        self.module.parametrizations.weight.original.data = T
        W = self.module.weight.detach()
        norm = torch.linalg.svdvals(W.double())[0]
        # Single precision: a bound exceeds the norm by 4ε twice, and nothing is below it but by rounding.
        assert 1 - 1.5e-6 <= norm <= 1 + 5e-7
        return W


@pytest.mark.parametrize("factor", [1.001, 1.1, 3.0])
def test_norm_that_is_followed_is_that_of_a_leader_which_jumps_up(factor) -> None:
    U, _, Vh = with_gaps()
    sigma = torch.linspace(1, 0.01, 100)
    followed = Followed()
    for _ in range(5):
        followed.check((U * sigma) @ Vh)
    sigma[-1] = factor
    followed.check((U * sigma) @ Vh)


def test_norm_that_is_followed_is_that_of_a_leader_which_grows_slowly() -> None:
    """Each move is small enough for the bound of the step before. Their sum is not."""
    U, sigma, Vh = with_gaps()
    followed = Followed()
    for _ in range(120):
        sigma[-1] += 0.01
        followed.check((U * sigma) @ Vh)


def test_norm_that_is_followed_is_proven_for_a_vector_that_turns() -> None:
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100), full_matrices=False)
    sigma[0] = 1.1 * sigma[1]
    v, T = Vh[0], (U * sigma) @ Vh
    followed = Followed()
    for step in range(40):
        T = T + 3e-3 * gaussian(200, 200, seed=step)[:, :1] * v
        W = followed.check(T)
        v = torch.linalg.svd(W).Vh[0]


@pytest.mark.parametrize("basis", ["own", "random"])
def test_radius_that_is_followed_is_that_of_a_chain_which_closes(basis) -> None:
    """An entry of 0.03 moves eigenvalues from 0 to 1.18, outside of all that was known before."""
    n, k = 100, 8
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        T = torch.zeros(n, n, dtype=torch.float64)
        T[0, 0] = 1
        T[1 : k + 1, 1 : k + 1] = torch.diag(torch.full((k - 1,), 2.0), 1)
        m = n - 1 - k
        T[1 + k :, 1 + k :] = 0.3 * torch.randn(m, m, generator=generator, dtype=torch.float64) / m**0.5
        closed = T.clone()
        closed[k, 1] = 0.03
        Q = torch.eye(n, dtype=torch.float64)
        if basis == "random":
            Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
        module = constrained(Q @ T @ Q.mT, sp.SpectralRadiusNorm(solver="tracking"))
        for matrix in (T, (1 + 1e-6) * T, closed, closed, T):
            X = Q @ matrix @ Q.mT
            module.parametrizations.weight.original.data = X.clone()
            factor = module.weight.detach().norm() / X.norm()
            radius = torch.linalg.eigvals(matrix).abs().max()
            torch.testing.assert_close(1 / factor, radius, rtol=1e-4, atol=0)


def test_rounding_errors_of_powers_do_not_make_a_radius_smaller() -> None:
    """T² = 2I, but rounded it is I and an entry below the diagonal, because a² is too long for a number."""
    a, b = 201370893, 84847
    T = torch.tensor([[a, b], [(2 - a**2) // b, -a]], dtype=torch.float64)
    module = constrained(torch.eye(2, dtype=torch.float64), sp.SpectralRadiusNorm(1.2, mode="at_most"))
    module.parametrizations.weight.original.data = T.clone()
    with pytest.warns(DegenerateEigenvalueWarning):  # Rounding errors of T move its eigenvalues far.
        W = module.weight.detach()
    assert (W.abs() < T.abs()).all()


def test_sparse_cycle_has_the_geometric_mean_of_its_weights() -> None:
    cycle = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [4.0, 0.0, 0.0]]).to_sparse()
    scaled = sp.init.spectral_radius_(cycle, radius=0.5).to_dense()
    torch.testing.assert_close(torch.linalg.eigvals(scaled).abs().max(), torch.tensor(0.5))


# Networks -----------------------------------------------------------------------------------------

ACTIVATIONS = {
    "modrelu": lambda z, b: torch.sgn(z) * torch.relu(z.abs() + b),
    "tanh": lambda z, b: torch.tanh(z + b),
    "relu": lambda z, b: torch.relu(z + b),
    "identity": lambda z, b: z + b,
}


def in_plain_sight(x, h, U, W, b, nonlinearity, sizes):
    """The equation, step by step."""
    states = []
    for rows in x.split(sizes):
        new = ACTIVATIONS[nonlinearity](rows @ U.mT + h[: len(rows)] @ W.mT, b)
        states.append(new)
        h = torch.cat([new, h[len(rows) :]])
    return torch.cat(states), h


@pytest.mark.parametrize("checkpoint_every", [None, 2])
@pytest.mark.parametrize("sizes", [[3] * 6, [4, 3, 2, 2, 1]], ids=str)
@pytest.mark.parametrize(
    ("nonlinearity", "dtype"),
    [
        *((name, torch.float64) for name in ACTIVATIONS),
        *((name, torch.complex128) for name in ACTIVATIONS if name != "relu"),
    ],
)
def test_recurrence_and_its_gradient_are_those_of_the_equation(
    nonlinearity, dtype, sizes, checkpoint_every
) -> None:
    n, m = 5, 2
    real_bias = nonlinearity == "modrelu" or not dtype.is_complex
    x, h, U, W = (torch.randn(s, dtype=dtype) for s in ((sum(sizes), m), (sizes[0], n), (n, m), (n, n)))
    W = W / torch.linalg.matrix_norm(W, 2)
    b = torch.randn(n, dtype=torch.float64 if real_bias else dtype) / 4  # Of both signs.
    tensors = [t.requires_grad_() for t in (x, h, U, W, b)]
    results = [
        sp.functional.rnn(*tensors, nonlinearity, sizes, checkpoint_every=checkpoint_every),
        in_plain_sight(*tensors, nonlinearity, sizes),
    ]
    G = [torch.randn_like(t) for t in results[0]]
    gradients = [torch.autograd.grad(each, tensors, G) for each in results]
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize("sizes", [[2] * 1003, [2] * 500 + [1] * 503], ids=["equal", "packed"])
def test_linear_recurrence_of_many_steps_is_that_of_the_equation(sizes, return_output) -> None:
    n, m = 4, 2
    x, h, U = (torch.randn(s, dtype=torch.float64) for s in ((sum(sizes), m), (2, n), (n, m)))
    W, b = (
        0.99 * torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q,
        torch.ones(n, dtype=torch.float64),
    )
    output, last = sp.functional.rnn(x, h, U, W, b, "identity", sizes, return_output=return_output)
    expected, expected_last = in_plain_sight(x, h, U, W, b, "identity", sizes)
    torch.testing.assert_close(last, expected_last)
    if return_output:
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequence_with_states_of_its_own_is_its_sequences_one_by_one(bidirectional) -> None:
    """Sorted by length, the sequences are in a cycle of three, which is not its own inverse."""
    rnn = sp.nn.ScoRNN(2, 5, num_layers=2, bidirectional=bidirectional)
    lengths = [2, 5, 3]
    x = torch.randn(5, 3, 2)
    hx = torch.randn(len(rnn.cells), 3, 5)
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    assert packed.sorted_indices.tolist() != packed.unsorted_indices.tolist()
    output, h_n = rnn(packed, hx)
    padded, _ = nn.utils.rnn.pad_packed_sequence(output)
    for i, length in enumerate(lengths):
        expected, last = rnn(x[:length, i], hx[:, i])
        torch.testing.assert_close(padded[:length, i], expected)
        torch.testing.assert_close(h_n[:, i], last)


# Fits ---------------------------------------------------------------------------------------------


def forecast_error(A, B, Y, U, estimated):
    """½ Σ ‖x̂_k - x_k‖² of one window, from the first row or from where it fits best."""
    n, powers, forced = len(A), [np.eye(len(A))], [np.zeros(len(A))]
    for u in U:
        powers.append(A @ powers[-1])
        forced.append(A @ forced[-1] + B @ u)
    residual = Y - np.array(forced)
    start = np.linalg.lstsq(np.vstack(powers), residual.ravel(), rcond=None)[0] if estimated else Y[0]
    return 0.5 * np.square(residual - np.array([P @ start for P in powers]).reshape(-1, n)).sum()


@pytest.mark.parametrize("start", ["measured", "estimated"])
def test_forecast_that_a_general_search_does_not_improve(start) -> None:
    rng = np.random.default_rng(0)
    A, B = np.array([[0.9, 0.5, 0.0], [-0.3, 0.8, 0.2], [0.0, 0.0, 0.7]]), np.array([[1.0], [0.0], [0.5]])
    Y, U = [np.array([2.0, -1.0, 1.0])], rng.standard_normal((25, 1))
    for u in U:
        Y.append(A @ Y[-1] + B @ u)
    Y = np.array(Y) + 0.3 * rng.standard_normal((26, 3))
    fit = sp.dynamics.fit_forecast(Y, U, horizon=None, start=start, radius=2.0, max_iter=100)

    def error(both):
        both = both.reshape(3, 4)
        return forecast_error(both[:, :3], both[:, 3:], Y, U, start == "estimated")

    found = np.hstack([fit.A, fit.B]).ravel()
    assert error(found) == pytest.approx(fit.error, rel=1e-9)
    assert fit.error <= 1.001 * scipy.optimize.minimize(error, found, options={"maxiter": 200}).fun


@pytest.mark.parametrize("seed", [1, 2])
def test_fit_of_three_states_in_continuous_time_that_a_general_search_does_not_improve(seed) -> None:
    """A = (Z - Zᵀ - RRᵀ)P with P > 0 is any stable matrix. An odd number of states has a real eigenvalue."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 3)) @ np.triu(2 * rng.standard_normal((3, 3)))
    A = rng.standard_normal((3, 3)) + 0.5 * np.eye(3)
    Y = X @ A.T + 0.1 * rng.standard_normal((60, 3))
    fit = sp.dynamics.fit_stable(X, Y, time="continuous")

    def objective(x):
        Z, R, L = parts = torch.from_numpy(x).reshape(3, 3, 3).requires_grad_()
        P = L @ L.mT + 1e-3 * torch.eye(3)
        A = (Z - Z.mT - R @ R.mT) @ P
        error = 0.5 * (torch.from_numpy(Y) - torch.from_numpy(X) @ A.mT).square().sum()
        (g,) = torch.autograd.grad(error, parts)
        return error.item(), g.flatten().numpy()

    options = {"maxiter": 2000, "maxfun": 4000}
    found = scipy.optimize.minimize(
        objective, rng.standard_normal(27), jac=True, options=options, method="L-BFGS-B"
    )
    assert fit.bound_active, "the bound counts"
    assert found.fun < 1.1 * fit.error, "the search comes near"
    assert fit.error <= 1.001 * found.fun


@pytest.mark.parametrize("start", ["measured", "estimated"])
def test_forecast_of_many_unknowns_is_at_least_as_good_as_that_of_the_system(start) -> None:
    """More than 700 unknowns are searched for in another way."""
    rng = np.random.default_rng(0)
    A = 0.98 * np.linalg.qr(rng.standard_normal((27, 27)))[0]
    Y = [rng.standard_normal(27)]
    for _ in range(60):
        Y.append(A @ Y[-1])
    Y = np.array(Y) + 0.01 * rng.standard_normal((61, 27))
    near = A + 0.03 * rng.standard_normal(A.shape)
    errors = [
        sp.dynamics.fit_forecast(Y, horizon=8, start=start, initial=(first, None), max_iter=steps).error
        for first, steps in ((A, 0), (near, 0), (near, 30))
    ]
    assert errors[2] <= errors[0] <= errors[1] / 10


def test_growth_of_a_fit_is_that_of_a_power_after_smaller_ones() -> None:
    A = np.diag([2.0, 0.7, 2.0], 1)  # ‖A‖ = 2, ‖A²‖ = 1.4, ‖A³‖ = 2.8.
    X = np.random.default_rng(0).standard_normal((20, 4))
    assert sp.dynamics.fit_stable(X, X @ A.T).growth == pytest.approx(2.8)


def test_rows_that_are_held_out_are_not_fitted() -> None:
    """Noise cannot be forecast, so a model of many unknowns is worse there than the mean."""
    noise = np.random.default_rng(0).standard_normal((100, 1))
    with pytest.warns(UserWarning, match="forecasting the mean"):
        model = sp.dynamics.StableLinearModel(horizon=1, delays=20).fit(noise)
    assert np.nanmean(model.forecast_error_["model"]) > 1


def test_choice_forecasts_random_walks_about_as_well_as_no_change_does() -> None:
    walks = np.random.default_rng(0).standard_normal((60, 8)).cumsum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # No change may be a little better.
        error = (
            sp.dynamics.StableLinearModel(horizon="cv", lead=5, start="measured").fit(walks).forecast_error_
        )
    assert error["model"].mean() <= 1.05 * error["no change"].mean()


@pytest.mark.parametrize("horizon", [None, 1, 4])
def test_offset_beside_inputs_whose_mean_is_not_zero(horizon) -> None:
    rng = np.random.default_rng(0)
    A, B, c = np.array([[0.8, 0.3], [-0.2, 0.7]]), np.array([[1.0, -2.0], [0.5, 0.3]]), np.array([3.0, -1.0])
    U, Y = 5 + rng.standard_normal((60, 2)), [np.array([1.0, 2.0])]
    for u in U:
        Y.append(A @ Y[-1] + B @ u + c)
    model = sp.dynamics.StableLinearModel(offset=True, horizon=horizon).fit(np.array(Y), U=U)
    for found, expected in ((model.A_, A), (model.B_, B), (model.offset_, c)):
        np.testing.assert_allclose(found, expected, atol=1e-6)


# Errors and one's own constraints -----------------------------------------------------------------


@pytest.mark.parametrize(
    "call", [lambda: sp.Householder(reflections=True), lambda: sp.nn.ScoRNN(True, 4)], ids=["count", "size"]
)
def test_true_is_no_number(call) -> None:
    with pytest.raises(ValueError, match=r": expected.*got True"):
        call()


@pytest.mark.parametrize("entry", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "make",
    [
        sp.ScaledCayley,
        sp.Householder,
        sp.SkewExponential,
        sp.Givens,
        sp.SingularValues,
        sp.SpectralNorm,
        sp.SchurForm,
        sp.LyapunovForm,
        lambda: sp.SignPattern(torch.ones(3, 3)),
    ],
)
def test_a_weight_that_is_not_finite_is_refused_as_such(make, entry) -> None:
    W = torch.eye(3)
    W[0, 1] = entry
    with pytest.raises(NotFiniteError, match=r"expected.*got"):
        constrained(W, make())


class FirstHalved(sp.SpectralNorm):
    """Halves the first matrix of a batch alone."""

    evaluate = sp.Parametrization.evaluate

    def reference(self, T: Tensor) -> Tensor:
        return T * torch.tensor([0.5, 1.0], dtype=T.dtype)[:, None, None]


def test_check_of_ones_own_constraint_looks_at_each_matrix_of_a_batch() -> None:
    case = sp.testing.Case(
        name="first",
        make=lambda shape: FirstHalved(),
        member=lambda shape, dtype: torch.ones(shape, dtype=dtype) / shape[-1],
        violation=lambda W: torch.relu(torch.linalg.matrix_norm(W, 2) - 0.5),
        outside=lambda shape, dtype: torch.ones(shape, dtype=dtype) / shape[-1],
    )
    with pytest.raises(AssertionError, match="expected a violation <="):
        sp.testing.check_projection(case, (2, 4, 4), torch.float64)


def test_growth_reaches_its_bound_and_no_more() -> None:
    """S of the largest condition, and a rotation: the first power has the norm g·r."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    sp.constrain(module, "weight", sp.LyapunovForm(0.9, growth=3.0))
    rotation, mirror = torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    with torch.no_grad():
        module.parametrizations.weight.original.copy_(torch.cat([rotation, mirror]) / 2)
    assert torch.linalg.matrix_norm(module.weight, 2).item() == pytest.approx(2.7, rel=1e-12)
