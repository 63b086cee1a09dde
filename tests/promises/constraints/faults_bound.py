"""Faults that test_bound.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "scheduled: a bound that is set later is not saved",
        "spectral_param/_parametrizations/bound.py",
        "        self._take_numbers(values)\n        return",
        "        if values.ndim == 0:\n            return values.item()\n"
        "        self._take_numbers(values)\n        return",
    ),
    Fault(
        "rounded-bound: a conversion rounds the bound as it rounds the weight",
        "spectral_param/_parametrizations/bound.py",
        "self._buffers[self._bound] = self._beside_weight(values)",
        "self._buffers[self._bound] = fn(values)",
        "conversion",
    ),
    Fault(
        "meta-bound: the meta device loses the bound",
        "spectral_param/_parametrizations/bound.py",
        '        if device.type == "meta":\n            return values\n',
        "",
        "meta",
    ),
    Fault(
        "loaded-bound: a load puts another tensor in the place of the bound that a graph holds",
        "spectral_param/_parametrizations/bound.py",
        "present.copy_(value)",
        "self._buffers[name] = value",
        "in_place",
    ),
)
