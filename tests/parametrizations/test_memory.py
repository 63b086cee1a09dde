"""One decomposition for each forward pass of a layer, counted where it is made."""

import importlib

import pytest
import torch

import spectral_param as sp
from spectral_param.eigen import dense

# The function of the same name hides the module.
cayley = importlib.import_module("spectral_param.functional.cayley")


class Calls:
    """Counts calls of functions of a module."""

    def __init__(self, module, *names):
        self.module, self.names, self.count = module, names, 0

    def __enter__(self):
        self.before = {name: getattr(self.module, name) for name in self.names}
        for name, function in self.before.items():
            setattr(self.module, name, self.counting(function))
        return self

    def counting(self, function):
        def called(*arguments):
            self.count += 1
            return function(*arguments)

        return called

    def __exit__(self, *_):
        for name, function in self.before.items():
            setattr(self.module, name, function)


def eigendecompositions():
    return Calls(dense, "_short")


def solves():
    return Calls(cayley, "_solve", "_solve_one")


LAYERS = {
    "Linear": lambda: (torch.nn.Linear(6, 6), "weight"),
    "RNN": lambda: (torch.nn.RNN(6, 6), "weight_hh_l0"),
    "LSTM": lambda: (torch.nn.LSTM(6, 6), "weight_hh_l0"),
    "GRU": lambda: (torch.nn.GRU(6, 6), "weight_hh_l0"),
}


def step(layer, optimizer):
    output = layer(torch.randn(5, 2, 6))
    output = output[0] if isinstance(output, tuple) else output
    optimizer.zero_grad()
    output.square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("make", "count"), [(sp.SpectralRadiusNorm, eigendecompositions), (sp.ScaledCayley, solves)]
)
def test_one_decomposition_for_each_training_step(name, make, count) -> None:
    layer, weight = LAYERS[name]()
    sp.constrain(layer, weight, make())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step(layer, optimizer)
    for _ in range(3):
        with count() as counter:
            step(layer, optimizer)
        # The gates' eigenvalues are computed one after the other.
        gates = {"LSTM": 4, "GRU": 3}.get(name, 1)
        assert counter.count == (gates if make is sp.SpectralRadiusNorm else 1)


@pytest.mark.parametrize("count", [eigendecompositions, solves])
def test_one_of_each_for_a_step_of_enrnn(count) -> None:
    layer = sp.nn.ENRNN(6, 4, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step(layer, optimizer)
    with count() as counter:
        step(layer, optimizer)
    assert counter.count == 1


def test_one_in_inference_mode() -> None:
    layer = sp.constrain(torch.nn.RNN(6, 6), "weight_hh_l0", sp.SpectralRadiusNorm())
    layer.parametrizations.weight_hh_l0.original.data.normal_()
    with torch.inference_mode(), eigendecompositions() as counter:
        for _ in range(3):
            layer(torch.randn(5, 2, 6))
    assert counter.count == 1
    layer(torch.randn(5, 2, 6))[0].sum().backward()


def test_none_while_the_weight_stays() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.SpectralRadiusNorm())
    layer(torch.randn(2, 6))
    with eigendecompositions() as counter:
        for _ in range(3):
            layer(torch.randn(2, 6))
    assert counter.count == 0
