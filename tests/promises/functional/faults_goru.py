"""Faults that test_goru.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "goru: the gate that keeps a state replaces it",
        "spectral_param/_recurrence/goru.py",
        "new = torch.lerp(modrelu(candidate + r * rotated, threshold), previous, z)",
        "new = torch.lerp(previous, modrelu(candidate + r * rotated, threshold), z)",
    ),
)
