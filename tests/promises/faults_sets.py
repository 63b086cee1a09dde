"""Faults that test_sets.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "large-departure: squares of large entries overflow",
        "spectral_param/_parametrizations/schur_form.py",
        "power_of_two_scale(W)[..., 0].to(moved.T.device)",
        "torch.ones_like(power_of_two_scale(W)[..., 0]).to(moved.T.device)",
        "departures",
    ),
    Fault(
        "infinite: norms are compared that may be infinite",
        "spectral_param/_scale.py",
        "    if X.is_cpu and all(low < size < high for size in norms[1].reshape(-1).tolist()):\n",
        "    if X.is_cpu:\n",
        "any_size",
    ),
    Fault(
        "followed: a norm of another size is the multiple of the last one",
        "spectral_param/_eigen/norm.py",
        "    if not (is_safe_square(sigma * sigma) and is_safe_square(length * length)):\n",
        "    if not is_safe_square(length * length):\n",
        "followed",
    ),
    Fault(
        "half-hidden: in half precision rounding errors grow with n",
        "spectral_param/_precision.py",
        "    return 10 * n * min(eps, own) + (n**0.5 * eps if eps > own else 0.0)\n",
        "    return 10 * n * eps\n",
        "half",
    ),
    Fault(
        "eigenvalues: of entries in half precision the tolerance is that of the working one, times eps",
        "spectral_param/_eigen/triple.py",
        "10 * W.shape[-1] * min(eps, own) * B",
        "10 * W.shape[-1] * eps * B",
        "half",
    ),
    Fault(
        "lost: constraints that are expected are not looked at",
        "spectral_param/_violation.py",
        "    if expected is not None:\n",
        "    if expected is not None and constraints(model):\n",
        "checkpoint",
    ),
    Fault(
        "beyond: an original outside its bound stays there",
        "spectral_param/_parametrizations/bound.py",
        "                    T.copy_(W)\n",
        "                    T.copy_(T)\n",
        "rebase",
    ),
    Fault(
        "flat: a weight is moved to an abscissa where the derivative is zero",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "_INSIDE = 0.01",
        "_INSIDE = 0.0",
        "leave",
    ),
    Fault(
        "member: a projection moves a weight that is in the set",
        "spectral_param/_parametrizations/in_set.py",
        "found = torch.where(is_outside[..., None, None], near(W), W)",
        "found = near(W)",
        "beside",
    ),
    Fault(
        "state: a refused assignment leaves what it has begun to change",
        "spectral_param/_parametrizations/in_set.py",
        "        trial: InSet = frozen(self, shares_buffers=True)\n",
        "        trial: InSet = self\n",
        "refused_assignment",
    ),
    Fault(
        "reopened: a distance is judged with an open latch",
        "spectral_param/_parametrizations/bound.py",
        "closed = self.latched.real > 0.5",
        "closed = self.latched.real > 2",
        "latch",
    ),
    Fault(
        "nearer: a matrix that the search does not know stays at the border",
        "spectral_param/_parametrizations/searched.py",
        "_MARGINS = (0.0, 1e-3, 0.01, 0.1, 0.5, 1.0)",
        "_MARGINS = (0.0,)",
        "border",
    ),
    Fault(
        "columns: a doubly stochastic weight is judged by its rows",
        "spectral_param/_parametrizations/doubly_stochastic.py",
        "largest_error(W, self.floor, dims=(-1, -2))",
        "largest_error(W, self.floor, dims=(-1,))",
        "rows_alone",
    ),
)
