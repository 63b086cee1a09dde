"""EUNN and URNN: dtypes, outputs, and that they are what their papers say."""

import pytest
import torch

import spectral_param as sp
from tests.promises.cases import orthogonality_defect

NETWORKS = {
    "EUNN": lambda **kwargs: sp.nn.EUNN(2, 8, **kwargs),
    "EUNN-layers": lambda **kwargs: sp.nn.EUNN(2, 8, layers=2, **kwargs),
    "EUNN-fft": lambda **kwargs: sp.nn.EUNN(2, 8, order="fft", **kwargs),
    "URNN": lambda **kwargs: sp.nn.URNN(2, 8, **kwargs),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_states_give_real_outputs_and_gradients(make, dtype) -> None:
    rnn = make(dtype=dtype, num_layers=2, batch_first=True)
    x = torch.randn(3, 20, 2, dtype=dtype.to_real())
    output, h_n = rnn(x)
    assert (output.shape, output.dtype) == ((3, 20, 16), dtype.to_real())
    assert (h_n.shape, h_n.dtype) == ((2, 3, 8), dtype)
    output.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in rnn.parameters())
    for cell in rnn.cells:
        assert orthogonality_defect(cell.weight_hh).max() < 100 * torch.finfo(dtype).eps
    assert make(dtype=dtype, real_output=False)(x[0])[0].dtype == dtype


@pytest.mark.parametrize("name", ["EUNN", "EUNN-layers", "EUNN-fft"])
def test_real_dtypes_have_real_states_and_outputs(name) -> None:
    rnn = NETWORKS[name](dtype=torch.float32)
    output, h_n = rnn(torch.randn(20, 3, 2))
    assert (output.shape, output.dtype, h_n.dtype) == ((20, 3, 8), torch.float32, torch.float32)


def test_complex_dtype_follows_the_default_precision() -> None:
    for make in NETWORKS.values():
        assert make()(torch.randn(5, 1, 2))[1].dtype == torch.complex64
    torch.set_default_dtype(torch.float64)
    try:
        for make in NETWORKS.values():
            assert make()(torch.randn(5, 1, 2))[1].dtype == torch.complex128
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_state_of_a_linear_network_keeps_its_norm(make) -> None:
    rnn = make(nonlinearity="identity", bias=False, real_output=False)
    h0 = torch.randn(1, 1, 8, dtype=torch.complex64)
    _, h_n = rnn(torch.zeros(1000, 1, 2), h0)
    assert h_n.norm().item() == pytest.approx(h0.norm().item(), rel=1e-4)


def test_a_restored_network_repeats_the_saved_one() -> None:
    for make in NETWORKS.values():
        rnn, other = make(), make()
        other.load_state_dict(rnn.state_dict())
        x = torch.randn(6, 1, 2)
        assert torch.equal(rnn(x)[0], other(x)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: sp.nn.URNN(3, 12),
        lambda: sp.nn.EUNN(3, 12, layers=2),
        lambda: sp.nn.ORNN(3, 12, reflections=4, dtype=torch.complex64),
    ],
)
def test_an_empty_batch(make) -> None:
    rnn = make()
    output = rnn(torch.randn(4, 0, 3))[0]
    assert output.shape == (4, 0, rnn.output_size)
    output.abs().sum().backward()
    for parameter in rnn.parameters():
        assert torch.equal(parameter.grad, torch.zeros_like(parameter))
