"""Faults that test_records.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "unheard: a block is a judge whose inputs were not seen in the others",
        "spectral_param/dynamics/_selection/folds.py",
        "return told if len(told) > 1 else folds",
        "return folds",
        "one_step",
    ),
    Fault(
        "alone: one block is left to judge",
        "spectral_param/dynamics/_selection/folds.py",
        "return told if len(told) > 1 else folds",
        "return told or folds",
        "each_block",
    ),
    Fault(
        "through: an order is never left with its feedthrough",
        "spectral_param/dynamics/_states/order.py",
        "way = simpler if likely else",
        "way = simpler if True else",
        "at_once",
    ),
    Fault(
        "bent: a feedthrough is taken that is more likely, whatever it forecasts",
        "spectral_param/dynamics/_states/order.py",
        "_forecasting(some, quick, lead, [simpler, way])",
        "way",
        "not_linear",
    ),
    Fault(
        "tie: of orders that are as likely the first is taken, whatever it forecasts",
        "spectral_param/dynamics/_states/order.py",
        "if len(ways) == 1 or not some[0].held[0][1].shape[1]:",
        "if ways:",
        "as_likely_one",
    ),
    Fault(
        "own-start: a block that is held out begins in the state that is the origin",
        "spectral_param/dynamics/_states/refine.py",
        "left = e.ravel() - basis @ (basis.T @ e.ravel())",
        "left = e.ravel()",
        "away_from_zero",
    ),
    Fault(
        "damping: the rate is divided by the frequency that is heard",
        "spectral_param/dynamics/_modes.py",
        "-s.real / size), 0.0)",
        "-s.real / np.abs(s.imag)), 0.0)",
        "known_matrix",
    ),
    Fault(
        "deviation: an eigenvalue moves as its conjugate vectors say",
        "spectral_param/dynamics/_states/modes.py",
        'np.einsum("ik,jk->kij", left.conj(), right)',
        'np.einsum("ik,jk->kij", left, right)',
        "within_its_deviations",
    ),
    Fault(
        "hum: states that hold noise alone are not noticed",
        "spectral_param/dynamics/_measured.py",
        "s[-1] <= _NOISE * s[0] or",
        "s[-1] <= s[0] or",
        "hold_noise_alone",
    ),
)
