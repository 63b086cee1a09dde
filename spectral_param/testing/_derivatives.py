"""Checks of derivatives, of repeated reads, and of transforms of ``torch.func``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError
from torch.nn.utils import parametrize

from spectral_param._parametrizations.tensors import real_entries
from spectral_param.testing._asserts import (
    assert_all_close,
    assert_close,
    assert_inside,
    assert_not_zero,
    largest_entry,
    varied,
)
from spectral_param.testing._case import Case, Shape, draw, holder, list_of, originals, tolerance, train_steps

#: Up to this number of entries in the originals, derivatives are compared entry by entry.
SMALL = 20


def check_gradients(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """First and second derivatives, forward mode included, agree with finite differences.

    Finite differences need double precision. The first derivatives of a small weight are compared entry by
    entry. All other derivatives are compared along a random direction, along which a wrong derivative differs
    with probability 1.
    """
    module = holder(case, case.member(shape, dtype))
    train_steps(module, shape, dtype, steps=1)
    parametrization = list_of(module)[0].eval()
    tensors = tuple(t.detach().clone().requires_grad_() for t in originals(module))
    entries = sum(map(real_entries, tensors))
    options = {"check_forward_ad": True, "fast_mode": entries > SMALL}
    _assert_derivatives(gradcheck, "first derivatives", parametrization, tensors, **options)
    single = tuple(t.detach().to(torch.complex64 if t.is_complex() else torch.float32) for t in tensors)
    W, tangent = torch.func.jvp(parametrization, single, single)[:2]
    assert tangent.dtype == W.dtype, f"expected a tangent of {W.dtype}, got {tangent.dtype}"
    _assert_derivatives(gradgradcheck, "second derivatives", parametrization, tensors, fast_mode=True)


def _assert_derivatives(check: Callable[..., bool], what: str, *args: Any, **kwargs: Any) -> None:
    try:
        check(*args, **kwargs)
    except GradcheckError as error:
        raise AssertionError(f"{what}: expected those of finite differences, got others: {error}") from error


def check_cached(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Inside ``parametrize.cached()`` two reads give the same tensor, with the right gradient."""
    module = holder(case, case.member(shape, dtype))
    G = draw(shape, dtype)
    plain = torch.autograd.grad(varied(module.weight, G) * 2, originals(module))
    assert_not_zero(plain, shape)
    with parametrize.cached():
        first, second = module.weight, module.weight
        assert first is second, "expected one tensor inside parametrize.cached()"
        cached = torch.autograd.grad(varied(first, G) + varied(second, G), originals(module))
    assert_all_close(cached, plain, 10 * tolerance(dtype, shape[-1]), "gradient inside cached()")


def check_repeated_reads(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """Edits of a weight that was read do not affect the next read; edits of the originals affect it."""
    module = holder(case, case.member(shape, dtype))
    first = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.zero_()
        assert torch.equal(module.weight, first), "expected edits of a read weight to have no effect"
    assert torch.equal(module.weight, first), "expected edits of a read weight to have no effect"
    for tensor in originals(module):
        tensor.data.mul_(0.5).add_(0.01)
    edited = module.weight.detach()
    fresh = copy.deepcopy(list_of(module)[0])
    expected = fresh(*(t.detach().clone() for t in originals(module)))
    assert_close(edited, expected, tolerance(dtype, shape[-1]), "after an edit through .data")


def check_torch_func(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """``torch.func.grad``, ``torch.func.vmap`` and batched gradients agree with eager autograd."""
    module = holder(case, case.member(shape, dtype))
    parametrization = list_of(module)[0].eval()
    tensors = tuple(t.detach().clone() for t in originals(module))
    G = draw(shape, dtype)

    def loss(*tensors: Tensor) -> Tensor:
        return varied(parametrization(*tensors), G)

    argnums = tuple(range(len(tensors)))
    functional = torch.func.grad(loss, argnums)(*tensors)
    leaves = [t.clone().requires_grad_() for t in tensors]
    eager = torch.autograd.grad(loss(*leaves), leaves)
    assert_not_zero(eager, shape)
    atol = 100 * tolerance(dtype, shape[-1])
    assert_all_close(functional, eager, atol, "torch.func.grad")

    outputs, directions = parametrization(*leaves), torch.stack([G, G.roll(1)])
    batched = torch.autograd.grad(outputs, leaves, directions, is_grads_batched=True, retain_graph=True)
    for i, direction in enumerate(directions):
        single = torch.autograd.grad(outputs, leaves, direction, retain_graph=True)
        assert_all_close([a[i] for a in batched], single, atol, "is_grads_batched")

    stacked = tuple(torch.stack([t, 0.9 * t + 0.01]) for t in tensors)
    mapped = torch.func.vmap(parametrization)(*stacked)
    for i in range(2):
        one = parametrization(*(t[i] for t in stacked))
        assert_close(mapped[i], one, tolerance(dtype, shape[-1]), "torch.func.vmap")


def check_write_during_a_read(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """If originals or buffers are written to during a read, later reads are right."""
    registered = holder(case, case.member(shape, dtype))
    for name, early, what in itertools.product(
        ("evaluate", "reference"), (True, False), ("originals", "buffers")
    ):
        module = copy.deepcopy(registered)
        constraint, tensors = list_of(module)[0], originals(module)
        for tensor in tensors:
            tensor.data.add_(0.01 * torch.randn_like(tensor))
        written = tensors if what == "originals" else list(constraint.buffers())
        setattr(constraint, name, _disturbed(getattr(constraint, name), early, written))
        with torch.no_grad():
            module.weight  # noqa: B018
        delattr(constraint, name)
        if what == "originals":  # A write to a buffer may change the set itself.
            assert_inside(case, module.weight, f"read after a write in {name}")
        fresh = copy.deepcopy(constraint)
        atol = 100 * tolerance(dtype, shape[-1]) * max(1.0, largest_entry(module.weight.detach()))
        expected = fresh(*(t.detach().clone() for t in tensors))
        assert_close(module.weight.detach(), expected, atol, f"read after a write to {what} in {name}")


def _disturbed(function: Callable[..., Any], early: bool, tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """Return ``function`` with a write to ``tensors``, before the call if ``early``, else after the call."""

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        result = None if early else function(*args, **kwargs)
        for tensor in tensors:
            if isinstance(tensor, nn.Parameter):
                tensor.data.add_(0.1 * torch.randn_like(tensor))
            else:
                tensor.data.neg_()
        return function(*args, **kwargs) if early else result

    return disturbed


def check_gradient_of_the_read(case: Case, shape: Shape, dtype: torch.dtype) -> None:
    """An edit of the originals or buffers between a read and its backward pass changes no gradient.

    The backward pass may raise an error instead, as PyTorch's version counter does.
    """
    G = draw(shape, dtype)
    trained = holder(case, case.member(shape, dtype))
    train_steps(trained, shape, dtype, steps=1)
    for reads in (1, 2):  # The second read returns the weight that the first read stored.
        for what in ("originals", "buffers"):
            module = copy.deepcopy(trained)
            tensors = originals(module)
            clone = copy.deepcopy(module)
            expected = torch.autograd.grad(varied(clone.weight, G), originals(clone))
            for _ in range(reads):
                W = module.weight
            loss = varied(W, G)
            edited = tensors if what == "originals" else list(list_of(module)[0].buffers())
            with torch.no_grad():
                for tensor in edited:
                    if tensor.is_floating_point() or tensor.is_complex():
                        tensor.mul_(-0.5)
            message, found = "", None
            try:
                found = torch.autograd.grad(loss, tensors)
            except RuntimeError as error:
                message = str(error)
            if found is None:
                known = ("modified by an inplace operation", "attributes and buffers of the read")
                assert any(text in message for text in known), f"expected a gradient, got {message}"
                continue
            for a, b in zip(found, expected, strict=True):
                atol = 100 * tolerance(dtype, shape[-1]) * max(1.0, largest_entry(b))
                assert_close(a, b, atol, f"gradient after an edit of the {what}")
