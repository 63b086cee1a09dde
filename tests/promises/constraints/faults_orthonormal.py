"""Faults that test_orthonormal.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "projection: a weight outside of the set goes to any orthogonal one, not to the nearest",
        "spectral_param/_sets/orthonormal.py",
        "factor: Tensor = U @ Vh",
        "factor: Tensor = U",
        "nearest",
    ),
    Fault(
        "geodesic: the tangent is not skew at the base",
        "spectral_param/functional/_exponential.py",
        "A = (C - C.mT) / 2",
        "A = (C + C.mT) / 2",
        "columns_stay",
    ),
    Fault(
        "diagonal: the D of the Cayley transform is not part of a checkpoint",
        "spectral_param/_parametrizations/scaled_cayley.py",
        'self.register_buffer("signs", None)',
        'self.register_buffer("signs", None, persistent=False)',
        "other_determinant",
    ),
    Fault(
        "signs: those of reflections are not part of a checkpoint",
        "spectral_param/_parametrizations/householder.py",
        'self.register_buffer("signs", None)',
        'self.register_buffer("signs", None, persistent=False)',
        "other_determinant",
    ),
    Fault(
        "averaged-signs: the mean of two signs is taken for a sign",
        "spectral_param/_parametrizations/decoded.py",
        "found = torch.copysign(torch.ones_like(x), x)",
        "found = x.clone()",
        "other_determinant",
    ),
)
