"""Faults that test_table.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "verdicts: the page of results shows missed targets as reached",
        "examples/papers/table.py",
        'if bool(target.reached) == (state == "reached")]',
        'if bool(target.reached) or state == "reached"]',
    ),
)
