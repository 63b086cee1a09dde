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
    Fault(
        "all-at-once: one call puts back all weights of a set, however much memory that takes",
        "spectral_param/_held/hooks.py",
        "_BATCH // group[0].weight.numel()",
        "_BATCH * group[0].weight.numel()",
        "limited_size",
    ),
)
