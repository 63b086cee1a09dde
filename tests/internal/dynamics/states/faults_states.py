"""Faults that test_states.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "hidden: the derivative by C forgets that the filter reads C",
        "spectral_param/dynamics/_states/refine.py",
        'in_C = -np.einsum("kpij,il->kplj", moved[..., :n], K)',
        'in_C = 0 * np.einsum("kpij,il->kplj", moved[..., :n], K)',
        "gradient",
    ),
    Fault(
        "filter: the covariance of the state is not reduced by what a row says",
        "spectral_param/dynamics/_states/model.py",
        "(P - PC @ np.linalg.solve(G, PC.T))",
        "P",
        "filter_is_least",
    ),
)
