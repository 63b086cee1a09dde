"""Faults that test_arguments.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "count: True is accepted as the number 1",
        "spectral_param/functional/_checks.py",
        "if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:",
        "if not isinstance(value, (int, np.integer)) or value < least:",
        "true_is_no_number",
    ),
)
