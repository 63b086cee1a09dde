"""Faults that test_spectral_norm.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "stride: the phases of a strided convolution are forgotten",
        "spectral_param/_register/holders.py",
        "return tuple(s // math.gcd(s, d) for",
        "return tuple(1 for",
        "norm_of_a_layer or strid",
    ),
    Fault(
        "kernel-gradient: the leading frequency has a wrong sign",
        "spectral_param/_eigen/symbol.py",
        "for part in (angle.cos(), -angle.sin())",
        "for part in (angle.cos(), -angle.cos())",
        "kernel or layer",
    ),
    Fault(
        "one-axis: a kernel that overlaps along one axis alone counts as a matrix",
        "spectral_param/_parametrizations/spectral_norm.py",
        "return any(k > s for k, s in",
        "return all(k > s for k, s in",
        "one_axis",
    ),
    Fault(
        "cholesky: a factorisation that failed is a proof",
        "spectral_param/_eigen/hermitian.py",
        "return failed == 0",
        "return failed >= 0",
        "layer or path or kernel",
    ),
    Fault(
        "grid: a grid of frequencies is taken for all of them",
        "spectral_param/_eigen/symbol.py",
        "cosine *= math.cos(math.pi * (q - 1) / (2 * n))",
        "cosine *= 1.0",
        "layer or grid",
    ),
    Fault(
        "borrowed: the follower keeps the memory of a kernel that was assigned",
        "spectral_param/_parametrizations/spectral_norm.py",
        "solution = self._followed(W.detach().clone())",
        "solution = self._followed(W.detach())",
        "used_again",
    ),
    Fault(
        "present: a bound that was read from the weight is not part of a checkpoint",
        "spectral_param/_parametrizations/bound.py",
        "self.register_buffer(self._bound, self._beside_weight(values))",
        "self.register_buffer(self._bound, self._beside_weight(values), persistent=False)",
        "present",
    ),
    Fault(
        "padding: the norm of a layer that repeats pixels is bounded by that of its kernel",
        "spectral_param/_register/holders.py",
        'if mode not in ("zeros", "circular"):',
        'if mode not in ("zeros", "circular", "reflect", "replicate"):',
        "padding",
    ),
    Fault(
        "cancelled: a norm far above the bound is clipped by a difference of large numbers",
        "spectral_param/_parametrizations/spectral_norm.py",
        "        if bool((solution.bound > _FAR * c).any()):\n",
        "        if False:\n",
        "however_large",
    ),
)
