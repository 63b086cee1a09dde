"""Faults that test_both.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "hidden: the derivative by C forgets that the filter reads C",
        "spectral_param/dynamics/_fits/both.py",
        "in_C = -(K.T @ moved[..., :n])",
        "in_C = 0 * (K.T @ moved[..., :n])",
        "gradient",
    ),
    Fault(
        "pieces: the states at the first row of a piece have what the piece before brought alone",
        "spectral_param/dynamics/_fits/both.py",
        "power @ found[k - 1] + onto[k - 1]",
        "onto[k - 1]",
        "gradient",
    ),
    Fault(
        "filter: the covariance of the state is not reduced by what a row says",
        "spectral_param/dynamics/_model/hidden.py",
        "(P - PC @ np.linalg.solve(G, PC.T))",
        "P",
        "filter_is_least",
    ),
    Fault(
        "boundless: what powers that overflow give goes on to a decomposition",
        "spectral_param/dynamics/_fits/both.py",
        "            if not (np.isfinite(H).all() and np.isfinite(target).all()):\n",
        "            if False:\n",
        "powers_overflow",
    ),
    Fault(
        "endless: convolutions that overflow go on to least squares",
        "spectral_param/dynamics/_fits/both.py",
        "        if not np.isfinite(linear).all():\n",
        "        if False:\n",
        "powers_overflow",
    ),
)
