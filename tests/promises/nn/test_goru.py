"""GORU: what is its own; what all networks share is in test_models."""

import geotorch
import pytest
import torch

import spectral_param as sp
from tests.promises.cases import orthogonality_defect


def test_cell_is_one_step_of_the_layer() -> None:
    rnn = sp.nn.GORU(2, 5)
    x = torch.randn(3, 4, 2)
    h = None
    for x_t in x:
        h = rnn.cells[0](x_t, h)
    torch.testing.assert_close(h, rnn(x)[1][0])
    torch.testing.assert_close(rnn.cells[0](x[0, 0]), rnn.cells[0](x[0])[0])


def test_start_of_the_authors() -> None:
    cell = sp.nn.GORUCell(3, 40)
    b_r, b_z, b = cell.bias.chunk(3)
    for part, start in ((b_r, 2.0), (b_z, 0.0), (b, 0.01)):
        assert torch.equal(part, torch.full((40,), start))
    for weight in (cell.weight_ih, cell.weight_gates):
        assert 0.009 < weight.abs().max() < 0.01
    assert orthogonality_defect(cell.weight_hh.detach()).max() < 1e-5


@pytest.mark.parametrize("make", [sp.ScaledCayley, lambda: geotorch.SO(torch.Size((5, 5)))])
def test_any_orthogonal_parametrization_one_copy_for_each_cell(make) -> None:
    rnn = sp.nn.GORU(2, 5, num_layers=2, parametrization=make())
    weights = [cell.weight_hh.detach() for cell in rnn.cells]
    assert not torch.equal(*weights)
    for W in weights:
        assert orthogonality_defect(W).max() < 1e-5


def test_without_biases_and_with_a_start_of_ones_own() -> None:
    rnn = sp.nn.GORU(2, 5, bias=False, init=torch.nn.init.eye_)
    assert rnn.cells[0].bias is None
    torch.testing.assert_close(rnn.cells[0].weight_hh, torch.eye(5))
    rnn(torch.randn(4, 3, 2))[0].sum().backward()


@pytest.mark.nightly
def test_compiles_into_one_graph() -> None:
    rnn = sp.nn.GORU(2, 5)
    x = torch.randn(4, 3, 2)
    torch.testing.assert_close(torch.compile(rnn, fullgraph=True, backend="eager")(x)[0], rnn(x)[0])


def test_free_parameters_are_those_of_maps_gates_biases_and_rotation() -> None:
    # Three input maps, two gate maps, three biases, one orthogonal matrix.
    assert sp.num_free_parameters(sp.nn.GORU(2, 5)) == 3 * 10 + 2 * 25 + 15 + 10


@pytest.mark.parametrize(
    ("args", "kwargs", "match"),
    [
        ((0, 5), {}, "input_size: expected an integer >= 1, got 0"),
        ((2, 0), {}, "hidden_size: expected an integer >= 1, got 0"),
        ((2, 5), {"dtype": torch.complex64}, "expected a real dtype, got torch.complex64.*ScuRNN"),
    ],
)
def test_sizes_and_dtypes_out_of_range_are_named(args, kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.nn.GORU(*args, **kwargs)


def test_complex_input_of_a_real_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"input: expected a real tensor for a network of torch\.float32"):
        sp.nn.GORU(2, 5)(torch.randn(4, 3, 2, dtype=torch.complex64))
