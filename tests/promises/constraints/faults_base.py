"""Faults that test_base.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "ignored: PyTorch ignores that a method is missing",
        "spectral_param/_parametrizations/base.py",
        "        return ValueError(\n",
        "        return NotImplementedError(\n",
        "missing_or_not_implemented",
    ),
    Fault(
        "inherited: a subclass with a reference of its own is evaluated as its base class",
        "spectral_param/_parametrizations/base.py",
        '"reference" in vars(cls)',
        '"references" in vars(cls)',
        "reference",
    ),
    Fault(
        "copy: a deep copy shares the class with the property that computes the weight",
        "spectral_param/_parametrizations/copies.py",
        "            if names:\n",
        "            if not names:\n",
        "copy",
    ),
    Fault(
        "defect: a weight whose squares overflow counts as orthogonal",
        "spectral_param/_parametrizations/in_set.py",
        "is_outside = ~is_inside(distance, resolution)",
        "is_outside = (distance > resolution) & distance.isfinite()",
        "overflow",
    ),
    Fault(
        "loaded: a checkpoint with a bound of NaN is loaded",
        "spectral_param/_parametrizations/bound.py",
        "if not (value.shape in known and kind.allows(value)):",
        "if value.shape not in known:",
        "saved_bound",
    ),
    Fault(
        "filled: a module that a loader has filled tensor by tensor cannot be moved",
        "spectral_param/_parametrizations/weight.py",
        '                self._become_like(torch.empty_like(self._like, device="cpu"))\n',
        "                pass\n",
        "filled",
    ),
)
