"""Faults that test_processes.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "own-shard: the norm of a shard is taken for that of the weight",
        "spectral_param/_sets/spheres.py",
        "    for group in _groups:\n",
        "    for group in ():\n",
        "with_spheres",
    ),
)
