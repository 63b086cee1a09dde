"""Faults that test_device.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "double: double precision is asked of a device that has none",
        "spectral_param/_precision.py",
        'return torch.device("cpu")',
        "return device",
        "without_double and ScaledCayley",
    ),
    Fault(
        "sends: a device converts to double precision what it sends to the host",
        "spectral_param/_eigen/dense.py",
        "return T.cpu().to(kind, copy=True,",
        'return T.to("cpu", kind, copy=True,',
        "without_double and SpectralRadiusNorm",
    ),
    Fault(
        "elsewhere: a gradient is pulled back on the device, by what the host knows",
        "spectral_param/_at_host.py",
        "the.pull_back(G.cpu(), needed)",
        "the.pull_back(G, needed)",
        "without_double and ScaledCayley",
    ),
    Fault(
        "mixing-waits: the host looks at the values of a device",
        "spectral_param/functional/_doubly_stochastic.py",
        "n, looks = T.shape[-1], T.is_cpu",
        "n, looks = T.shape[-1], True",
        "doubly",
    ),
    Fault(
        "device: eigenvalues are those that the device computes, if it can",
        "spectral_param/_eigen/dense.py",
        "    host = T.cpu()\n",
        "    host = T\n",
        "without_eigenvalues",
    ),
)
