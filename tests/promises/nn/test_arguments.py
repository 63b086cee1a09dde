"""Cells and layers refuse what they would otherwise take for something else."""

import numpy as np
import pytest
import torch

import spectral_param as sp

CELLS = {
    "BlockRNNCell": lambda **kw: sp.nn.BlockRNNCell(10, [(20, sp.ScaledCayley())], **kw),
    "BlockRNNCell-identity": lambda **kw: sp.nn.BlockRNNCell(
        20, [(12, sp.ScaledCayley()), (8, sp.SpectralRadiusNorm())], input_map="identity", **kw
    ),
    "GORUCell": lambda **kw: sp.nn.GORUCell(10, 20, **kw),
}
LAYERS = {
    "ENRNN": lambda **kw: sp.nn.ENRNN(3, 5, 4, **kw),
    "BlockRNN": lambda **kw: sp.nn.BlockRNN(3, [(5, sp.Givens())], **kw),
    "ScuRNN": lambda **kw: sp.nn.ScuRNN(3, 5, **kw),
    "GORU": lambda **kw: sp.nn.GORU(3, 5, **kw),
}


@pytest.mark.parametrize("shape", [(1, 20), (3, 1, 1, 20), (20,), (3, 19), (3, 1), (2, 20), ()])
@pytest.mark.parametrize("name", CELLS)
def test_a_state_of_another_batch_is_refused(name, shape) -> None:
    cell = CELLS[name]()
    x = torch.randn(3, cell.input_size)
    with pytest.raises(ValueError, match=r"hx: expected shape \(3, 20\).*got"):
        cell(x, torch.zeros(shape))
    assert cell(x, torch.zeros(1, 20).expand(3, -1)).shape == (3, 20)  # The remedy.
    assert cell(x[0], torch.zeros(20)).shape == (20,)


@pytest.mark.parametrize("name", CELLS)
def test_an_input_of_another_shape_is_refused(name) -> None:
    cell = CELLS[name]()
    m = cell.input_size
    for shape in ((2, 3, m), (3, m + 1), (3, 1), ()):
        with pytest.raises(ValueError, match=r"input: expected.*got"):
            cell(torch.randn(shape))
    with pytest.raises(ValueError, match=r"hx: expected.*got"):
        cell(torch.randn(m), torch.zeros(1, 20))
    assert cell(torch.randn(0, m)).shape == (0, 20)


@pytest.mark.parametrize("value", [1, "False", [False], torch.tensor([True]), None, 0.0])
@pytest.mark.parametrize("name", LAYERS)
def test_flags_are_booleans(name, value) -> None:
    for flag in ("bias", "batch_first", "bidirectional"):
        with pytest.raises(ValueError, match=rf"{flag}: expected True or False.*got"):
            LAYERS[name](**{flag: value})
    assert LAYERS[name](bias=np.bool_(False), batch_first=np.bool_(True)).cells[0].bias is None


@pytest.mark.parametrize("name", CELLS)
def test_the_bias_of_a_cell_is_a_boolean(name) -> None:
    with pytest.raises(ValueError, match=r"bias: expected True or False.*got"):
        CELLS[name](bias="no")


@pytest.mark.parametrize(
    "call", [lambda: sp.Householder(reflections=True), lambda: sp.nn.ScoRNN(True, 4)], ids=["count", "size"]
)
def test_true_is_no_number(call) -> None:
    with pytest.raises(ValueError, match=r": expected.*got True"):
        call()
