"""The refinement's derivatives, the filter, and the canonical variates."""

import numpy as np
import pytest

from spectral_param.dynamics._fits.both import Likelihood, gain_of
from spectral_param.dynamics._fits.chart import Chart
from spectral_param.dynamics._fits.start import starts_of
from spectral_param.dynamics._model.hidden import Innovations, Options, filtered, rolled_out
from spectral_param.dynamics._model.rollout import Noise, variances


def model(seed=0, n=3, p=2, m=1):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n))
    A *= 0.8 / np.abs(np.linalg.eigvals(A)).max()
    C, B, noise = rng.standard_normal((p, n)), rng.standard_normal((n, m)), np.array([[0.5, 0.2], [0.2, 0.4]])
    K = gain_of(A, C, np.eye(n), np.zeros((n, p)), noise)
    D, d = rng.standard_normal((p, m)), rng.standard_normal(p)
    return Innovations(A, B, C, D, K, d, noise, rng.standard_normal(n), 2 * np.eye(n))


def recorded(of, rows, seed):
    """Return outputs and inputs of a model, and the state that follows the last row."""
    rng = np.random.default_rng(seed)
    U, e = rng.standard_normal((rows, 1)), rng.standard_normal((rows, 2)) @ np.linalg.cholesky(of.noise).T
    x, Y = rng.standard_normal(len(of.A)), []
    for k in range(rows):
        Y.append(of.C @ x + of.D @ U[k] + of.d + e[k])
        x = of.A @ x + of.B @ U[k] + of.K @ e[k]
    return np.array(Y), U, x


@pytest.mark.parametrize(("feedthrough", "filter_"), [(False, True), (True, True), (False, False)])
def test_the_gradient_is_that_of_the_likelihood_at_the_best_linear_parameters(feedthrough, filter_):
    of = model() if filter_ else model()._replace(K=np.zeros((3, 2)))
    rows = [recorded(of, 40, seed)[:2] for seed in (1, 2)]
    problem = Likelihood(rows, Options(1.0, feedthrough, True, 0, filter=filter_))
    chart, Q = Chart.of(of.A, 1.0)
    C, K = of.C @ Q, Q.T @ of.K
    # Eliminated are squares of e, whitened by a covariance that is held: its own, after some rounds.
    noise = of.noise
    for _ in range(200):
        point = problem.point(chart, C, K, noise)
        noise = point.noise
    _, _, g, H = problem.expand(point, chart, None)
    g, H = chart.quadratic(g, H, turns=0)
    x = np.concatenate([chart.x, C.ravel(), K.ravel() if filter_ else np.zeros(0)])

    def error(moved):
        at, in_C, in_K = np.split(moved, np.cumsum([len(chart.x), 6]))
        return problem.point(
            chart.at(at), in_C.reshape(2, 3), in_K.reshape(3, 2) if filter_ else K, noise
        ).error

    step = 1e-5  # the error of a central difference is step² or eps / step, both 1e-10, times f of about 100
    found = [(error(x + step * e) - error(x - step * e)) / (2 * step) for e in np.eye(len(x))]
    np.testing.assert_allclose(g, found, atol=1e-5 * np.abs(g).max())
    assert np.linalg.eigvalsh(H).min() > -1e-9 * np.linalg.norm(H)


def test_the_filter_is_least_squares_for_the_first_state_and_the_innovations():
    of = model()
    Y, U, _ = recorded(of, 7, 3)
    X, P = filtered(of, (Y, U))
    # x_0 fixes e: minimise Σ |e_k|² in the metric of the noise and |x_0 − first|² in that of its start.
    n, white = 3, np.linalg.inv(np.linalg.cholesky(of.noise))

    def chain(x):
        errors = []
        for y, u in zip(Y, U, strict=True):
            e = y - of.C @ x - of.D @ u - of.d
            errors.append(white @ e)
            x = of.A @ x + of.B @ u + of.K @ e
        return np.concatenate(errors), x

    zero, last = chain(np.zeros(n))
    J = np.stack([chain(e)[0] - zero for e in np.eye(n)], axis=1)
    onto = np.stack([chain(e)[1] - last for e in np.eye(n)], axis=1)
    prior = np.linalg.inv(np.linalg.cholesky(of.start))
    both, target = np.vstack([J, prior]), np.concatenate([-zero, prior @ of.first])
    first = np.linalg.lstsq(both, target, rcond=None)[0]
    np.testing.assert_allclose(X[-1], last + onto @ first, atol=1e-10)
    np.testing.assert_allclose(P, onto @ np.linalg.inv(both.T @ both) @ onto.T, atol=1e-10)


def test_variances_are_those_of_many_futures():
    of = model()
    rng = np.random.default_rng(0)
    P, steps, number = 0.5 * np.eye(3), 6, 20000
    x = rng.standard_normal((number, 3)) * 0.5**0.5
    found = []
    for _ in range(steps):
        e = rng.standard_normal((number, 2)) @ np.linalg.cholesky(of.noise).T
        found.append((x @ of.C.T + e).var(axis=0))
        x = x @ of.A.T + e @ of.K.T
    # A variance from so many is known to √(2 / number), 1 %; twelve of them to 4 %.
    Q = of.K @ of.noise @ of.K.T
    np.testing.assert_allclose(variances(Noise(of.A, of.C, Q, of.noise, P), steps), found, rtol=0.04)


def test_roll_outs_of_several_states_are_those_of_each():
    of = model()
    rng = np.random.default_rng(0)
    x, U = rng.standard_normal((4, 3)), rng.standard_normal((5, 4, 1))
    together = rolled_out(of, x, U, 5)
    for i in range(4):
        np.testing.assert_allclose(together[:, i], rolled_out(of, x[i], U[:, i], 5), atol=1e-14)


def test_an_unstable_filter_is_replaced_by_that_of_the_same_noise():
    of = model()
    Y, U, _ = recorded(of, 60, 4)
    problem = Likelihood([(Y, U)], Options(1.0, True, True, 0))
    unstable = of.K + 3.0
    assert np.abs(np.linalg.eigvals(of.A - unstable @ of.C)).max() > 1
    chart, Q = Chart.of(of.A, 1.0)
    point = problem.point(chart, of.C @ Q, Q.T @ unstable, of.noise)
    assert np.abs(np.linalg.eigvals(point.A - point.K @ point.C)).max() < 1


@pytest.mark.parametrize("filter_", [True, False])
@pytest.mark.parametrize("exponent", [150, 200, 250, 306])
def test_where_powers_overflow_is_no_point(filter_, exponent):
    of = model()
    Y, U, _ = recorded(of, 60, 6)
    problem = Likelihood([(Y, U)], Options(1.0, True, True, 0, filter=filter_))
    for above in ([1.0, 1.0], [1.0, 0.0], [0.0, 1.0]):
        A = np.diag([0.9, 0.9, 0.9]) + np.diag(above, 1) * 10.0**exponent
        for C in (of.C, of.C * [1, 0, 0]):
            with np.errstate(over="ignore", invalid="ignore"):
                point = problem.point(Chart(A, 1.0), C, np.zeros_like(of.K), of.noise)
            assert point is None or np.isfinite(point.error)


def test_the_refinement_lowers_the_error_of_its_start():
    of = model()
    Y, U, _ = recorded(of, 300, 5)
    options = Options(1.0, True, True, 30)
    problem = Likelihood([(Y, U)], options)
    first = problem.first(*starts_of(problem.recordings, 3, options)[1])
    before, after = first.error, problem.refined(first).error
    assert after < before - 0.1
    # The start is consistent: no more than some likelihood of its parameters is left to gain.
    assert after > before - 30
