"""Faults that test_defaults.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "devices: signs are tried on PyTorch's default device",
        "spectral_param/_parametrizations/decoded.py",
        'dtype=B.dtype, device="cpu", generator',
        "dtype=B.dtype, generator",
        "SkewExponential",
    ),
    Fault(
        "lattice: the frequencies of a kernel are on PyTorch's default device",
        "spectral_param/_eigen/symbol.py",
        'dtype=torch.float64, device="cpu")',
        "dtype=torch.float64)",
        "kernel",
    ),
    Fault(
        "dtypes: a penalty has PyTorch's default dtype",
        "spectral_param/_model.py",
        "like.detach().real.new_zeros(())",
        "torch.zeros((), device=like.device)",
        "model",
    ),
)
