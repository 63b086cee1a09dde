"""Checks of constrained modules that are saved, copied, converted, compiled, exported or averaged."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spectral_param._register.constrain import constrain
from spectral_param.testing._asserts import (
    assert_all_close,
    assert_close,
    assert_inside,
    assert_not_zero,
    largest_entry,
    varied,
)
from spectral_param.testing._case import Case, Holder, Shape, draw, holder, originals, tolerance, train_steps


def check_state_dict(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A module restored from a ``state_dict`` has the same weight, and continues training in the same way."""
    module = holder(case, case.member(shape, dtype))
    train_steps(module, shape, dtype, steps=3)
    restored = holder(case, case.member(shape, dtype))
    restored.load_state_dict(module.state_dict())
    atol = tolerance(dtype, shape[-1])
    assert_close(restored.weight, module.weight, atol, "after loading")
    for each in (module, restored):
        train_steps(each, shape, dtype, steps=3)
    assert_close(restored.weight, module.weight, 10 * atol, "after resuming")


def check_deepcopy(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A deep copy, made after a forward pass, is equal to the module and independent of it."""
    module = holder(case, case.member(shape, dtype))
    before = module.weight.detach().clone()
    clone = copy.deepcopy(module)
    train_steps(clone, shape, dtype, steps=2)
    assert torch.equal(module.weight, before), "expected training a copy to leave the original alone"
    assert not torch.equal(clone.weight, before), "expected the copy to train"


def check_deepcopy_of_rnn(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``torch.nn.RNN``, ``LSTM`` and ``GRU`` can be deep-copied after a forward pass.

    PyTorch alone cannot copy a parametrized weight after a forward pass;
    :class:`spectral_param.Parametrization` makes this possible.
    """
    rows, n = shape
    member = case.member(shape, dtype)
    layer = LAYERS[rows // n](2, n, dtype=dtype, device=member.device)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(member)
    constrain(layer, "weight_hh_l0", case.make(shape))
    x = draw((3, 1, 2), dtype, layer)
    expected = layer(x)[0]
    actual = copy.deepcopy(layer)(x)[0]
    assert torch.equal(actual, expected), "expected the copy of a layer to compute the same"


def check_to(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``module.to(dtype)`` keeps the weight, which satisfies the constraint in the new precision."""
    module = holder(case, case.member(shape, dtype))
    before = module.weight.detach().clone()
    other = {
        torch.float32: torch.float64,
        torch.float64: torch.float32,
        torch.complex64: torch.complex128,
        torch.complex128: torch.complex64,
    }[dtype]
    with warnings.catch_warnings():
        # Module.to warns when it converts real tensors of a complex module to complex tensors.
        warnings.simplefilter("ignore", UserWarning)
        module.to(other)
    assert module.weight.dtype == other, f"expected {other}, got {module.weight.dtype}"
    violation = case.violation(module.weight.detach()).max().item()
    assert violation <= tolerance(other, shape[-1]), f"expected the constraint in {other}"
    single = max(tolerance(each, shape[-1]) for each in (dtype, other))
    scale = max(1.0, before.abs().max().item())
    assert_close(module.weight.to(dtype), before, 100 * single * scale, f"weight in {other}")


def check_remove(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``remove_parametrizations`` leaves the weight as an ordinary parameter, which can be exported."""
    module = holder(case, case.member(shape, dtype))
    expected = module.weight.detach().clone()
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    assert torch.equal(module.weight, expected), "expected the weight that the constraint gave"
    if not dtype.is_complex:
        x = draw((*shape[:-2], shape[-1], 2), dtype, module)
        exported = torch.export.export(module, (x,)).module()
        assert_close(exported(x), module(x), tolerance(dtype, shape[-1]), "exported module")


def check_compile(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``torch.compile(fullgraph=True)`` gives the same weight and the same gradient."""
    module = holder(case, case.member(shape, dtype))
    x = draw((*shape[:-2], shape[-1], 2), dtype, module)
    G = draw((*shape[:-1], 2), dtype)
    torch.compiler.reset()
    # "aot_eager" traces forward and backward like the default backend, but needs no C++ compiler.
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = []
    for each in (module, compiled):
        output = each(x)
        gradients = torch.autograd.grad(varied(output, G), originals(module))
        assert_not_zero(gradients, shape)
        results.append((output, *gradients))
    assert_all_close(results[1], results[0], 100 * tolerance(dtype, shape[-1]), "torch.compile")


def check_export(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A program exported or traced in training reads the present originals and calls only torch operators."""
    module = holder(case, case.member(shape, dtype))
    x = draw((*shape[:-2], shape[-1], 2), dtype, module)
    exported = torch.export.export(module, (x,))
    with warnings.catch_warnings():
        # torch.jit is deprecated, and warns where shapes are compared.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, (x,), check_trace=False)
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    names += [node.kind() for node in traced.inlined_graph.nodes()]
    foreign = [name for name in names if not name.startswith(_OF_TORCH)]
    assert not foreign, f"expected operators of torch in an exported program, got {', '.join(foreign)}"
    with torch.no_grad():
        for tensor in originals(module):  # The traced program shares these tensors.
            tensor.mul_(0.9).add_(0.01)
    expected, program = module(x), exported.module()
    atol = 100 * tolerance(dtype, shape[-1]) * max(1.0, largest_entry(expected))
    assert_close(traced(x), expected, atol, "traced program")
    program.load_state_dict(module.state_dict(), strict=False)
    assert_close(program(x), expected, atol, "exported program")


# The beginnings of the names of torch's own operators, in exported and in traced programs.
_OF_TORCH = ("aten.", "<built-in function getitem>", "aten::", "prim::")


def check_autocast(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Autocast to bfloat16 changes neither the weight nor its gradient."""
    if torch.float32 in case.dtypes:  # Autocast rounds only float32.
        dtype = torch.float32
    module = holder(case, case.member(shape, dtype))
    G = draw(shape, dtype)
    expected_gradient = torch.autograd.grad((module.weight * G).abs().sum(), originals(module))
    expected = module.weight.detach().clone()
    fresh = copy.deepcopy(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        W = fresh.weight
        gradient = torch.autograd.grad((W * G).abs().sum(), originals(fresh))
    assert W.dtype == dtype, f"expected {dtype} under autocast, got {W.dtype}"
    assert_close(W, expected, tolerance(dtype, shape[-1]), "weight under autocast")
    atol = 100 * tolerance(dtype, shape[-1])
    assert_all_close(gradient, expected_gradient, atol, "gradient under autocast")


def check_bfloat16(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """bfloat16 weights are computed in float32 and returned in bfloat16."""
    W = case.member(shape, dtype)
    module = holder(case, W.bfloat16())
    assert module.weight.dtype == torch.bfloat16, f"expected bfloat16, got {module.weight.dtype}"
    scale = max(1.0, W.abs().max().item())
    if case.recovers:
        assert_close(module.weight.float(), W, 0.1 * scale, "bfloat16 weight")
    train_steps(module, shape, torch.bfloat16, steps=2)
    assert bool(module.weight.isfinite().all()), "expected finite weights after training in bfloat16"


def _weight_of(averaged: AveragedModel) -> Tensor:
    module = averaged.module
    assert isinstance(module, Holder)
    return module.weight.detach()


def check_averaging(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """The mean of two models, buffers included, is in the set; the mean of equal models has their weight."""
    first, second = (holder(case, case.member(shape, dtype)) for _ in range(2))
    other = copy.deepcopy(first)
    try:
        other.load_state_dict(second.state_dict())
    except RuntimeError:  # The number of originals may depend on the weight.
        other = first
    averaged = AveragedModel(first, use_buffers=True)
    for model in (first, other):
        averaged.update_parameters(model)
    assert_inside(case, _weight_of(averaged), "mean of two models")
    rule = get_ema_multi_avg_fn(0.9) if not dtype.is_complex else None
    averaged = AveragedModel(first, multi_avg_fn=rule, use_buffers=True)
    for _ in range(100):
        averaged.update_parameters(first)
    expected = first.weight.detach()
    # A moving average of a constant differs from this constant by at most eps/(1 - 0.9).
    atol = 10 * tolerance(dtype, shape[-1]) * max(1.0, largest_entry(expected))
    assert_close(_weight_of(averaged), expected, atol, "mean of equal models")
    assert_inside(case, _weight_of(averaged), "mean of equal models")
    mean = {
        key: torch.lerp(value, other.state_dict()[key], 0.25) for key, value in first.state_dict().items()
    }
    first.load_state_dict(mean)
    assert_inside(case, first.weight, "state of two models after lerp")


def check_half_and_back(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """A model cast to half precision and back is in the set, and close to the original model."""
    for half in (nn.Module.half, nn.Module.bfloat16):
        module = holder(case, case.member(shape, dtype))
        before = module.weight.detach().clone()
        half(module).float()
        W, what = module.weight.detach(), f"weight after {half.__name__}() and float()"
        assert_inside(case, W, what)
        # bfloat16 rounds the originals by 4e-3, and the map may amplify this error.
        assert_close(W, before, 0.2 * max(1.0, largest_entry(before)), what)


LAYERS: dict[int, Any] = {1: nn.RNN, 3: nn.GRU, 4: nn.LSTM}
