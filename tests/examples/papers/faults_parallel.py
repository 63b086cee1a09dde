"""Faults that test_parallel.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "processes: the gradient lacks that of the others",
        "examples/papers/trainer.py",
        "processes.sum_gradients(self._trained)",
        "pass",
        "",
        mark="nightly",
    ),
)
