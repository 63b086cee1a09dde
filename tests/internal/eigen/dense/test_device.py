"""Eigenvalues of matrices on a device are asked of the host at once."""

import pytest
import torch

from spectral_param._eigen import dense

standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
DEVICE = standin.DEVICE


def test_one_copy_each_way_for_a_batch() -> None:
    T = torch.randn(5, 7, 7)
    there = T.to(DEVICE)
    expected = dense.dominant_eigentriple(T)
    for count in (1, 5):
        with standin.counting() as asked:
            triple = dense.dominant_eigentriple(there[:count])
        assert asked.waits == 1
        torch.testing.assert_close(triple.eigenvalue.cpu(), expected.eigenvalue[:count])
