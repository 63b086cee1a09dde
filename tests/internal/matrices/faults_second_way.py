"""Faults that test_second_way.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "only: least squares that do not converge raise",
        "spectral_param/_matrices.py",
        "        U, s, Vh = _svd_again(M, full_matrices=False)\n        cut",
        "        raise\n        cut",
        "second_way",
    ),
    Fault(
        "restacked: a stack of matrices is not put together again",
        "spectral_param/_matrices.py",
        "np.stack(of).reshape(*M.shape[:-2], *of[0].shape)",
        "np.stack(of)[0]",
        "second_way",
    ),
    Fault(
        "past: a decomposition goes past the helper",
        "spectral_param/dynamics/_data/coordinates.py",
        "svd(X)[2]",
        "np.linalg.svd(X, full_matrices=False)[2]",
        "every_decomposition",
    ),
)
