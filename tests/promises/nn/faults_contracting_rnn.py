"""Faults that test_contracting_rnn.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "forgets: the recurrent matrix has the bound of the linear map",
        "spectral_param/nn/_contracting_rnn.py",
        'LyapunovForm(rate, growth=growth, metric="diagonal")',
        "LyapunovForm(rate, growth=growth)",
    ),
)
