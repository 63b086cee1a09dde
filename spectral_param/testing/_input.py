"""Checks of bad input, NaN, and random numbers."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.testing._asserts import assert_close, largest_entry, varied
from spectral_param.testing._case import Case, Shape, draw, holder, originals, tolerance


def check_nan(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """NaN in the originals gives NaN in the weight and in the gradient, without a crash."""
    module = holder(case, case.member(shape, dtype))
    for tensor in originals(module):
        tensor.data.fill_(torch.nan)
    W = module.weight
    assert bool(W.isnan().any()), "expected NaN in the weight"
    gradients = torch.autograd.grad(W.abs().square().sum(), originals(module))
    assert any(bool(g.isnan().any()) for g in gradients), "expected NaN in the gradient"


def check_nan_in_a_batch(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """NaN in the originals of one matrix changes neither the other matrices of the batch nor their gradients.

    The batch is the first dimension of each original.
    """
    module = holder(case, case.member(shape, dtype))
    G = draw(shape, dtype, generator=torch.Generator().manual_seed(1))

    def others() -> list[Tensor]:
        """Return the weight and the gradients, both without the first matrix of the batch."""
        W = module.weight
        gradients = torch.autograd.grad(varied(W, G), originals(module))
        return [t.detach()[1:].clone() for t in (W, *gradients)]

    expected = others()
    for tensor in originals(module):
        tensor.data[0] = torch.nan
    assert bool(module.weight[0].isnan().any()), "expected NaN in the weight"
    for one, other in zip(others(), expected, strict=True):
        limit = tolerance(dtype, max(shape[-2:])) * max(1.0, largest_entry(other))
        assert_close(one, other, limit, "beside NaN")


def check_bad_input(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Vectors, empty weights, integers and shapes that do not fit raise a ``ValueError``.

    A constraint that takes vectors refuses single numbers.
    """
    n = shape[-1]
    bad = [
        torch.zeros(n if getattr(case.make(shape), "least_dims", 2) > 1 else (), dtype=dtype, device="cpu"),
        torch.zeros(0, 0, dtype=dtype, device="cpu"),
        torch.zeros(n, n, dtype=torch.int64, device="cpu"),
    ]
    if n > 1 and not case.rectangles:  # For n = 1, two rows would be two gates.
        bad.append(torch.zeros(n + 1, n, dtype=dtype, device="cpu"))
    for weight in bad:
        given = f"{weight.dtype} of shape {tuple(weight.shape)}"  # Registration may change `weight`.
        module = nn.Module()
        module.register_buffer("weight", weight)
        raised = False
        try:
            parametrize.register_parametrization(module, "weight", case.make(shape))
        except ValueError:
            raised = True
        rectangle = weight.ndim == 2 and weight.shape[0] != weight.shape[1]
        remedy = ". Name some rectangles in Case(rectangles=...) if it takes them." if rectangle else ""
        assert raised, f"expected ValueError for {given}{remedy}"


def check_random_state(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Reading the weight draws no random numbers and gives the same result each time."""
    module = holder(case, case.member(shape, dtype))
    before = torch.get_rng_state()
    first = module.weight
    clone = copy.deepcopy(module)
    assert torch.equal(torch.get_rng_state(), before), "expected no use of the global generator"
    assert torch.equal(first, clone.weight), "expected the same weight from the same originals"
