"""Faults that test_conversions.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "input-digits: an input of higher precision is rounded",
        "spectral_param/nn/_sequence_layer.py",
        "torch.finfo(x.dtype).eps < torch.finfo(dtype).eps:",
        "torch.finfo(x.dtype).eps < 0:",
        "higher_precision",
    ),
    Fault(
        "double-complex: Module.double leaves complex networks in single precision",
        "spectral_param/nn/_cell.py",
        "            fn = _by_precision(fn)\n",
        "            pass\n",
        "built_in_double",
    ),
    Fault(
        "real-parts: biases and angles of a complex network become complex",
        "spectral_param/nn/_cell.py",
        "return found.real.clone() if found.is_complex() else found",
        "return found",
        "built_in_double",
    ),
    Fault(
        "half-complex: complex networks in half precision",
        "spectral_param/nn/_cell.py",
        "    if dtype in HALF:\n",
        "    if dtype in ():\n",
        "half_precision",
    ),
    Fault(
        "imaginary-parts: a constraint lets imaginary parts of its weight go",
        "spectral_param/_parametrizations/weight.py",
        "        if dtype.is_complex == self._like.is_complex():\n",
        "        if True:\n",
        "complex_weight",
    ),
    Fault(
        "nested-precision: constraints keep the precision in which they were constructed",
        "spectral_param/_parametrizations/weight.py",
        "        for part in self.modules():\n",
        "        for part in (self,):\n",
        "nested",
    ),
)
