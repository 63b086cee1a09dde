"""LSTM and GRU: torch's, but for their biases."""

import pytest
import torch

import spectral_param as sp


@pytest.mark.parametrize(("ours", "theirs"), [(sp.nn.LSTM, torch.nn.LSTM), (sp.nn.GRU, torch.nn.GRU)])
def test_computes_what_torchs_does_with_the_same_weights(ours, theirs) -> None:
    kwargs = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    rnn, reference = ours(3, 4, **kwargs), theirs(3, 4, **kwargs)
    rnn.load_state_dict(reference.state_dict())
    x = torch.randn(5, 6, 3)
    assert torch.equal(rnn(x)[0], reference(x)[0])
    assert rnn.output_size == reference(x)[0].shape[-1]


@pytest.mark.parametrize("forget_bias", [1.0, -4.0])
def test_forget_bias_of_every_layer_and_direction(forget_bias) -> None:
    lstm = sp.nn.LSTM(3, 4, num_layers=2, bidirectional=True, forget_bias=forget_bias)
    torch.nn.init.ones_(lstm.bias_ih_l0)
    lstm.reset_parameters()
    for name in ("l0", "l0_reverse", "l1", "l1_reverse"):
        total = getattr(lstm, f"bias_ih_{name}") + getattr(lstm, f"bias_hh_{name}")
        i, f, g, o = total.chunk(4)
        assert torch.equal(f, torch.full((4,), forget_bias))
        assert not torch.cat([i, g, o]).any()


@pytest.mark.parametrize(("make", "gates"), [(sp.nn.LSTM, 4), (sp.nn.GRU, 3)])
def test_one_trained_bias_for_each_gate(make, gates) -> None:
    rnn = make(3, 5)
    assert sp.num_free_parameters(rnn) == gates * (5 * 5 + 5 * 3 + 5)
    rnn(torch.randn(4, 2, 3))[0].sum().backward()
    assert rnn.bias_hh_l0.grad is None
    assert rnn.bias_ih_l0.grad.any()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_without_biases_and_with_a_projection() -> None:
    lstm = sp.nn.LSTM(3, 4, bias=False, proj_size=2)
    assert lstm(torch.randn(5, 3))[0].shape[-1] == lstm.output_size == 2
