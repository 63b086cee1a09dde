"""Faults that test_memory.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "before: reads after a change share the pull-back of those before",
        "spectral_param/_parametrizations/memory.py",
        "or shared.read is not last\n",
        "\n",
        "another_thread",
    ),
    Fault(
        "released-read: the graph of a single read stays after its backward pass",
        "spectral_param/_map.py",
        'graph = vars(self).pop("graph", None)',
        "graph = self.graph",
        "graph_of_one_read",
    ),
)
