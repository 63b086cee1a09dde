"""Faults that test_checkpointing.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "checkpointing: a remembered weight shortens the graph of the second of two forward passes",
        "spectral_param/_parametrizations/memory.py",
        "hooked = _top_hooks(False) is not None",
        "hooked = False",
        "checkpointed_segment",
    ),
)
