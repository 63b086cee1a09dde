"""Faults that test_goru.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "goru: the gate that keeps a state replaces it",
        "spectral_param/_recurrence/goru.py",
        "return torch.lerp(modrelu(candidate + r * rotated, threshold), h, z)",
        "return torch.lerp(h, modrelu(candidate + r * rotated, threshold), z)",
    ),
)
