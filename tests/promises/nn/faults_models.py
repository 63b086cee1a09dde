"""Faults that test_models.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "sorted: the initial states of a packed sequence are sorted as its results are sorted back",
        "spectral_param/nn/_sequence_layer.py",
        "hx = hx.index_select(1, x.sorted_indices)",
        "hx = hx.index_select(1, x.unsorted_indices)",
        "states_of_its_own",
    ),
    Fault(
        "real-output: imaginary parts come first",
        "spectral_param/nn/_sequence_layer.py",
        "rows = torch.cat([rows.real, rows.imag], dim=-1)",
        "rows = torch.cat([rows.imag, rows.real], dim=-1)",
        "imaginary",
    ),
)
