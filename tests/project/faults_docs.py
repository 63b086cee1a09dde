"""Faults that test_docs.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "rowless: a table without rows is shown",
        "benchmarks/table.py",
        "if not rows or {len(row) for row in rows} != {len(header)}:",
        "if {len(row) for row in rows} - {len(header)}:",
        "cannot_be_read",
    ),
)
