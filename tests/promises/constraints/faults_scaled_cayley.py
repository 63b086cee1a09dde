"""Faults that test_scaled_cayley.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "remedy: a model without ScaledCayley is told to construct the optimizer again",
        "spectral_param/_rebase.py",
        "if any(map(_cayley_of, model.modules())):",
        "if True:",
        "told_to_rebase_without_it",
    ),
    Fault(
        "minus-ones: the -1s of scoRNN's start stand at the beginning",
        "spectral_param/_parametrizations/scaled_cayley.py",
        "d[..., n - (n // 2 if count is None else count) :] = -1",
        "d[..., : n // 2 if count is None else count] = -1",
        "minus_ones_of_the_papers",
    ),
    Fault(
        "outgrown: signs are chosen anew only where A is ten times as large",
        "spectral_param/_parametrizations/scaled_cayley.py",
        "_OUTGROWN = 1.5",
        "_OUTGROWN = 15",
        "new_signs_reach",
    ),
    Fault(
        "unsigned: a new T stands beside the signs of the old one",
        "spectral_param/_parametrizations/scaled_cayley.py",
        "            self.signs[chosen] = trial.signs[better].to(self.signs)\n",
        "",
        "new_signs",
    ),
    Fault(
        "chained: an original that is the result of another parametrization is rebased",
        "spectral_param/_rebase.py",
        "if isinstance(constraint, Parametrization) and all(id(t) in own for t in originals):",
        "if isinstance(constraint, Parametrization):",
        "chains",
    ),
    Fault(
        "unlooked: an optimizer's hook never looks",
        "spectral_param/_rebase.py",
        "        if self._steps % _STEPS == 0:\n",
        "        if self._steps % _STEPS == _STEPS:\n",
        "new_signs_reach",
    ),
)
