"""Faults that test_contraction.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "clamp: the limit of the update gate leaves out the growth",
        "spectral_param/nn/_contracting_gru.py",
        "((rate - s.clamp(max=most)) / (1 - rate)).log()",
        "(rate / (1 - rate) + 0 * s).log()",
        "jacobians and ContractingGRU",
    ),
    Fault(
        "reach: the bias of a gate counts with the wrong sign",
        "spectral_param/functional/_gate_weights.py",
        "a = np.minimum(inputs + rows + b +",
        "a = np.minimum(inputs + rows - b +",
        "zero_weights",
    ),
    Fault(
        "later: a later layer is compared as if it read the same",
        "spectral_param/functional/_network_contraction.py",
        "layer.comparison(k > 0, holds)",
        "layer.comparison(False, holds)",
        "jacobians and 2",
    ),
    Fault(
        "maximum: gates that hold open and candidates are not compared together",
        "spectral_param/functional/_comparison.py",
        "np.where(at_end, q, s + half * q / 2)",
        "np.where(at_end, q, s)",
        "jacobians",
    ),
    Fault(
        "farther: recurrent weights are scaled further than they have to be",
        "spectral_param/functional/_gate_scaling.py",
        "outside - inside > 1e-8 * outside",
        "outside - inside > 1e-2 * outside",
        "largest_proven_size",
    ),
    Fault(
        "eval: dropout counts outside training, too",
        "spectral_param/functional/_recurrent_modules.py",
        "if module.training and getattr",
        "if getattr",
        "bad_argument",
    ),
    Fault(
        "gate-warning: a diagonal metric of gates is silent",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "self._is_diagonal() and self.gates > 1",
        "self._is_diagonal() and self.gates > 9",
        "diagonal_metric_of_gates",
    ),
    Fault(
        "stacked: layers in a row are scaled to less than they may have",
        "spectral_param/functional/_gate_scaling.py",
        "while margin - failed > _CLOSE:",
        "while margin - failed > 1:",
    ),
)
