"""Faults that test_contracting_gru.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "masked: a clamped gate has a gradient",
        "spectral_param/_recurrence/gru_fused.py",
        "torch.mul(of_z, 1 if clamped is None else ~clamped, out=factors[:, 1])",
        "factors[:, 1] = of_z",
        "derivatives",
    ),
    Fault(
        "cube: a start outside the cube passes",
        "spectral_param/nn/_contracting_gru.py",
        "values.abs() > 1 + 8 *",
        "values.abs() > 2 + 8 *",
        "outside_the_cube",
    ),
    Fault(
        "reset: the reset gate counts half",
        "spectral_param/functional/_gru_growth.py",
        "q * (U_r @ d) / 4",
        "q * (U_r @ d) / 8",
        "turns_steeply",
    ),
)
