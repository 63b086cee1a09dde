"""Faults that test_hooks.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "apart-shapes: a tall and a wide weight of one set are put back one after the other",
        "spectral_param/_held/hooks.py",
        "        shard = None if w.placed.groups is None else (w.weight.shape, w.placed.groups)\n",
        "        shard = w.weight.shape, w.placed.groups\n",
        "tall_and_wide",
    ),
)
