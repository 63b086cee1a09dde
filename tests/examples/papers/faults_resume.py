"""Faults that test_resume.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "resume: the state that is carried from batch to batch is lost",
        "examples/papers/trainer.py",
        'self._hidden = self.processes.scatter(state["hidden"])',
        "self._hidden = None",
        "asked_to_stop",
    ),
)
