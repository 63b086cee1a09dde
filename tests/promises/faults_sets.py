"""Faults that test_sets.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "member: a projection moves a weight that is in the set",
        "spectral_param/_parametrizations/in_set.py",
        "members = torch.where(is_outside[..., None, None], near(W), W)",
        "members = near(W)",
        "beside",
    ),
    Fault(
        "state: a refused assignment leaves what it has begun to change",
        "spectral_param/_parametrizations/in_set.py",
        "            before.restore()\n",
        "",
        "refused_assignment",
    ),
    Fault(
        "reopened: a distance is judged with an open latch",
        "spectral_param/_parametrizations/spectral_radius.py",
        "return self.latched.real > 0.5",
        "return self.latched.real > 2",
        "latch",
    ),
    Fault(
        "nearer: a matrix that the search does not know stays at the border",
        "spectral_param/_parametrizations/searched.py",
        "_ROOMS = (0.0, 1e-3, 0.01, 0.1, 0.5, 1.0)",
        "_ROOMS = (0.0,)",
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
