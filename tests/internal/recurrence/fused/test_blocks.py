"""Products by the blocks of W."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import spectral_param as sp
from spectral_param import _paths
from spectral_param._recurrence import fused


@pytest.mark.parametrize("coupling", [False, True, [(0, 2)], [(0, 1), (1, 2)]])
@pytest.mark.parametrize("packed", [False, True])
def test_products_by_blocks_are_those_of_the_whole_matrix(monkeypatch, coupling, packed) -> None:
    """Those of large blocks leave the zeros of W out."""
    blocks = [(4, sp.ScaledCayley()), (3, sp.SpectralRadiusNorm()), (2, None)]
    rnn = sp.nn.BlockRNN(2, blocks, coupling=coupling, dtype=torch.float64)
    torch.nn.init.normal_(rnn.cells[0].bias, std=0.1)
    x = torch.randn(6, 3, 2, dtype=torch.float64)
    x = pack_padded_sequence(x, [6, 4, 1]) if packed else x

    def results():
        rnn.zero_grad()
        output, h_n = rnn(x)
        output = output.data if packed else output
        (output.square().sum() + h_n.sum()).backward()
        return [output.detach(), h_n.detach(), *(p.grad.clone() for p in rnn.parameters())]

    whole, products = results(), []
    adder = fused._adder

    def counting(A, support):
        products.append(len(support))
        return adder(A, support)

    monkeypatch.setattr(fused, "_adder", counting)
    monkeypatch.setattr(_paths, "BLOCKWISE_SIZE", 0)
    monkeypatch.setattr(_paths, "BLOCKWISE_ROWS", 0)
    for actual, expected in zip(results(), whole, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert set(products) == {3}
