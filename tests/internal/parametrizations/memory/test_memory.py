"""One decomposition for each forward pass of a layer, counted where it is made."""

import copy
import functools
import importlib
import sys
import threading
import types

import pytest
import torch

import spectral_param as sp
from spectral_param._eigen import dense
from spectral_param._map import Recorded
from spectral_param._parametrizations import memory
from spectral_param.testing import holder, originals
from tests.promises.cases import CASES
from tests.training import step

# The function of the same name hides the module.
cayley = importlib.import_module("spectral_param.functional._cayley")


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
    return Calls(dense, "_of_one")


def solves():
    return Calls(cayley, "_twice_inverse", "_short_inverse")


@pytest.mark.parametrize("kind", [torch.nn.RNN, torch.nn.LSTM])
@pytest.mark.parametrize(
    ("make", "count"), [(sp.SpectralRadiusNorm, eigendecompositions), (sp.ScaledCayley, solves)]
)
def test_one_decomposition_for_each_training_step(kind, make, count) -> None:
    layer = sp.constrain(kind(6, 6), "weight_hh_l0", make())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step(layer, optimizer)
    for _ in range(3):
        with count() as counter:
            step(layer, optimizer)
        # The gates' eigenvalues are computed one after the other.
        gates = 4 if kind is torch.nn.LSTM else 1
        assert counter.count == (gates if make is sp.SpectralRadiusNorm else 1)


@pytest.mark.parametrize("count", [eigendecompositions, solves])
def test_one_of_each_for_a_step_of_enrnn(count) -> None:
    layer = sp.nn.ENRNN(6, 4, 2, mode="equal")  # The default needs none where powers prove a small radius.
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step(layer, optimizer)
    with count() as counter:
        step(layer, optimizer)
    assert counter.count == 1


def length_of_a_read(layer):
    """Return how many instructions of Python code a read runs."""
    instructions = []

    def trace(frame, event, _):
        frame.f_trace_opcodes = True
        if event == "opcode":
            instructions.append(1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        layer.weight  # noqa: B018
    finally:
        sys.settrace(before)
    return len(instructions)


def test_a_read_costs_the_same_however_many_weights_are_in_use() -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", sp.ScaledCayley())
    in_use = [layer.weight for _ in range(3)]
    few = length_of_a_read(layer)
    in_use += [layer.weight for _ in range(500)]
    assert length_of_a_read(layer) <= few + 500  # Less than an instruction for each weight in use.


def pull_back_of(link):
    """Return how the node that all reads share pulls back."""
    W = link._memory.shared().weight
    while not hasattr(W, "pull_back"):  # A change of the layout may follow the node.
        W = getattr(W, "grad_fn", None) or W.next_functions[0][0]
    return W.pull_back


@pytest.mark.parametrize("make", [sp.SchurForm, sp.SkewExponential])
def test_the_graph_of_one_read_ends_with_its_backward_pass(make) -> None:
    """As autograd itself frees it, although the user still has the loss."""
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make())
    for original in layer.parametrizations.weight.parameters(recurse=False):
        original.data.add_(0.01)
    loss = layer.weight.sum()
    pull_back = pull_back_of(layer.parametrizations.weight[0])
    assert pull_back.graph is not None
    loss.backward()
    assert pull_back.graph is None


@pytest.mark.parametrize("make", [sp.SkewExponential, sp.Householder])
def test_a_frozen_weight_keeps_no_graph(make) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make()).requires_grad_(False)
    recorded = []
    constraint = layer.parametrizations.weight[0]
    evaluate = constraint.evaluate
    constraint.evaluate = lambda *values: recorded.append(evaluate(*values)) or recorded[-1]
    layer.parametrizations.weight.original.data.add_(0.01)
    layer(torch.randn(2, 6))
    assert [each.pull_back.graph for each in recorded] == [None]


@pytest.mark.parametrize("make", [sp.SpectralNorm, sp.SpectralRadiusNorm])
def test_a_weight_whose_bound_is_not_reached_needs_no_graph(make) -> None:
    layer = sp.constrain(torch.nn.Linear(6, 6), "weight", make(100.0, mode="at_most"))
    layer.parametrizations.weight.original.data.add_(0.01)
    W = layer.weight
    shared = layer.parametrizations.weight[0]._memory.shared().weight
    assert type(shared.grad_fn).__name__ == "CloneBackward0"
    G = torch.randn_like(W)
    W.backward(G)
    assert torch.equal(layer.parametrizations.weight.original.grad, G)


def test_a_wide_weight_is_one_node() -> None:
    layer = sp.constrain(torch.nn.Linear(9, 6), "weight", sp.SpectralNorm(0.1))
    W = layer.weight
    assert W.requires_grad
    assert not isinstance(pull_back_of(layer.parametrizations.weight[0]), Recorded)


def test_the_recurrent_matrix_of_enrnn_is_one_node() -> None:
    (cell,) = sp.nn.ENRNN(6, 4, 3).cells
    W = cell.weight_hh
    assert W.requires_grad
    assert not isinstance(pull_back_of(cell.parametrizations.weight_hh[0]), Recorded)


def tensors_of(x):
    """Return the tensors that an object keeps: in containers, attributes and closures."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, (torch.nn.Module, type)):
        return []
    if isinstance(x, types.FunctionType):
        parts = [cell.cell_contents for cell in x.__closure__ or ()]
    elif isinstance(x, functools.partial):
        parts = [x.func, x.args, x.keywords]
    elif isinstance(x, dict):
        parts = x.values()
    else:
        parts = x if isinstance(x, (tuple, list)) else getattr(x, "__dict__", {}).values()
    return [t for part in parts for t in tensors_of(part)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.variant}")
@pytest.mark.turns(3)
def test_the_memory_holds_no_graph(case) -> None:
    """A hook on an original may know the model, and the graph knows the original: that is never freed."""
    module = holder(case, case.member(case.shapes[0], case.dtypes[0]))
    with torch.no_grad():
        for original in originals(module):
            original.mul_(1.01)
    module.weight.abs().sum().backward()
    for link in module.parametrizations.weight:
        if isinstance(link, sp.Parametrization) and link._memory.last is not None:
            kept = tensors_of(link._memory.last)
            assert len(kept) > 2
            assert all(t.grad_fn is None for t in kept)


def test_what_another_thread_read_before_a_change_is_not_shared_after_it(monkeypatch) -> None:
    """The thread has found the last read to be current, and goes on after the change."""
    torch.manual_seed(0)
    layer = sp.constrain(torch.nn.Linear(4, 4, dtype=torch.float64), "weight", sp.SpectralNorm(0.9))
    original = layer.parametrizations.weight.original
    found, changed, is_current = threading.Event(), threading.Event(), memory._is_current

    def slow(*arguments):
        result = is_current(*arguments)
        if threading.current_thread() is not threading.main_thread():
            found.set()
            assert changed.wait(60)
        return result

    kept = []
    layer.weight  # noqa: B018
    monkeypatch.setattr(memory, "_is_current", slow)
    thread = threading.Thread(target=lambda: kept.append(layer.weight))
    thread.start()
    assert found.wait(60)
    original.data.add_(torch.randn_like(original))
    layer.weight  # noqa: B018
    changed.set()
    thread.join()
    G = torch.randn(4, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((G * layer.weight).sum(), original)
    twin = copy.deepcopy(layer)
    (expected,) = torch.autograd.grad((G * twin.weight).sum(), twin.parametrizations.weight.original)
    torch.testing.assert_close(gradient, expected)
