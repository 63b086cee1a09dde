"""Faults that test_measured_contraction.py finds."""

from tests.faults import Fault

MEASURED = "spectral_param/analysis/_measured_contraction.py"

FAULTS = (
    Fault(
        "root of a rate: a step too many is counted",
        MEASURED,
        "distance ** (1 / (t + 1))",
        "distance ** (1 / (t + 2))",
        "one_linear",
    ),
    Fault(
        "close pairs: pairs are followed into the rounding",
        MEASURED,
        "_CLOSE = 1e-9",
        "_CLOSE = 0",
        "one_linear",
    ),
    Fault(
        "start of a rate: distances are not relative to the start",
        MEASURED,
        "(_distances(state, runs) / start)",
        "_distances(state, runs)",
        "hand or linear",
    ),
    Fault(
        "drawn starts: random numbers are drawn from the caller's",
        MEASURED,
        'dtype=torch.float64, device="cpu", generator=generator',
        'dtype=torch.float64, device="cpu"',
        "hand",
    ),
    Fault(
        "beyond the bound: inputs are measured for which the rate is not proven",
        MEASURED,
        "(inputs.abs() > bound).any()",
        "(inputs.abs() > 1e300).any()",
        "cannot_be_measured",
    ),
    Fault(
        "wordy: what contraction returns prints all entries of its tensors",
        "spectral_param/functional/_network_contraction.py",
        "        if isinstance(value, Tensor):\n            return",
        "        if False:\n            return",
        "printed_is_short",
    ),
)
