"""Faults that test_init.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "cycle: the radius of a cycle is the mean of its weights",
        "spectral_param/_eigen/sparse.py",
        "return math.exp(np.log(np.abs(T.data)).mean())",
        "return float(np.abs(T.data).mean())",
        "sparse_cycle",
    ),
    Fault(
        "right-half: the start of scoRNN has angles on all of the upper half",
        "spectral_param/init.py",
        "_uniform(blocks, n // 2, 0, math.pi / 2, generator))",
        "_uniform(blocks, n // 2, 0, math.pi, generator))",
    ),
    Fault(
        "henaff: the start of expRNN has angles on the upper half only",
        "spectral_param/init.py",
        "-math.pi, math.pi, generator",
        "0, math.pi, generator",
    ),
    Fault(
        "area: moduli are dense in the middle of the disc",
        "spectral_param/init.py",
        "moduli = moduli.sign() * moduli.abs().sqrt()",
        "moduli = moduli.sign() * moduli.square()",
    ),
    Fault(
        "radius-start: a random start has the radius 1, whatever was asked for",
        "spectral_param/init.py",
        "blocks *= (radius / spectral_radius(exact))[..., None, None]",
        "blocks *= (1 / spectral_radius(exact))[..., None, None]",
    ),
)
