"""Linear recurrences above each other."""

from __future__ import annotations

import pytest
import torch

import spectral_param as sp
from examples.papers import networks, tasks
from examples.papers.networks.linear_stack import LinearStack, strided

LAYERS = [
    {"blocks": [[3, 0.9], [4, 1]], "stride": 4, "hidden": 6},
    {"blocks": [[5, 0.5]], "stride": 3, "hidden": 4},
    {"blocks": [[6, 1]]},
]


@pytest.mark.parametrize("stride", [1, 3, 4, 30])
def test_strided_states_are_those_of_the_recurrence(stride) -> None:
    x = torch.randn(21, 3, 2, dtype=torch.float64)
    U = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    W = sp.init.henaff_(torch.empty(5, 5, dtype=torch.float64)).requires_grad_()
    states, last = strided(x, U, W, stride)
    every, _ = sp.functional.rnn(x, x.new_zeros(3, 5), U, W, None, "identity")
    expected = every[(len(x) - 1) % stride :: stride]
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, every[-1])
    ours, theirs = (torch.autograd.grad(h.square().sum(), (U, W)) for h in (states, expected))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(strided(x, U, W, stride, return_output=False)[1], every[-1])


def test_stack_is_its_layers_read_step_by_step() -> None:
    stack = LinearStack(1, LAYERS, dtype=torch.float64)
    x = torch.randn(24, 2, 1, dtype=torch.float64)
    _, (last,) = stack(x)
    for i, cell in enumerate(stack.cells):
        h, states = None, []
        for row in x:
            h = cell(row, h)
            states.append(h)
        stride = stack.strides[i]
        if i < len(LAYERS) - 1:
            x = stack.hidden[i](torch.stack(states[stride - 1 :: stride]))
    torch.testing.assert_close(last, h)


def test_blocks_have_the_radii_that_they_are_given() -> None:
    stack = LinearStack(1, LAYERS, dtype=torch.float64)
    radii = networks.spectral_radii(stack)
    assert list(radii.values()) == pytest.approx([0.9, 1, 0.5, 1])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"layers": [{"blocks": [[3, 1]], "stride": 2}]}, "layers: expected blocks; got blocks, stride"),
        ({"layers": [{"blocks": [[3, 1]]}] * 2}, "layers: expected blocks, hidden, stride; got blocks"),
        ({"layers": LAYERS, "readout_size": [4, 0]}, r"readout_size: expected at least 1, got \[4, 0\]"),
        ({"layers": LAYERS, "readout_size": []}, r"readout_size: expected at least 1, got \[\]"),
    ],
)
def test_bad_settings_are_named(network, message) -> None:
    task = tasks.build({"name": "mnist", "batch_size": 4, "tiny": True}, 0)
    with pytest.raises(ValueError, match=message):
        networks.build({"name": "LinearStack", **network}, task, 0, torch.float32)


def test_readout_has_a_hidden_layer_of_each_size() -> None:
    task = tasks.build({"name": "mnist", "batch_size": 4, "tiny": True}, 0)
    settings = {"name": "LinearStack", "layers": LAYERS, "readout_size": [7, 5], "readout_dropout": 0.5}
    model = networks.build(settings, task, 0, torch.float32).eval()
    h = model.recurrent(x := torch.rand(49, 2, 1))[1]
    for layer in (m for m in model.output if isinstance(m, torch.nn.Linear)):
        h = layer(h if layer.in_features == 6 else h.relu())
    assert [m.out_features for m in model.output if isinstance(m, torch.nn.Linear)] == [7, 5, 10]
    torch.testing.assert_close(model(x)[0], h)
