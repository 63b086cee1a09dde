"""Faults that test_tasks.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "copying: the marker comes a step late",
        "examples/papers/tasks/copying.py",
        "inputs[-DIGITS - 1] = 9",
        "inputs[-DIGITS] = 9",
    ),
)
