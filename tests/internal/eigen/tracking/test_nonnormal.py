"""Nothing but the largest eigenvalue is believed, of non-normal matrices made to fool the tracking."""

import pytest
import torch

from benchmarks.measures.nonnormal import count
from benchmarks.problems import nonnormal


@pytest.mark.nightly
def test_no_wrong_read() -> None:
    """`python -m benchmarks nonnormal` follows many times as many."""
    names = nonnormal.names_of_families()
    found = count(names, range(2, 4), n=64)
    assert found["wrong"] == 0
    assert found["leader changed"] >= 2 * len(names)
    assert found["followed"] >= 10 * len(names), "a solver that always asked LAPACK would pass"


def test_the_check_itself_sees_a_wrong_radius() -> None:
    T = torch.diag(torch.tensor([1.0, 0.5]))
    assert nonnormal.is_wrong(T, 1.001)
    assert not nonnormal.is_wrong(T, 1.000001)
