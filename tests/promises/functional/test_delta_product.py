"""delta_product: the definition, every gradient, precision, and which tensors are refused."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import delta_product
from tests.messages import refused
from tests.properties import FAST

B, D, E = 3, 5, 4


def by_hand(q, k, v, beta, decay, state):
    """The definition, one sequence and one reflection at a time."""
    r, found, last = k.shape[1] // q.shape[1], [], []
    for b in range(len(q)):
        S, outputs = state[b], []
        for t in range(q.shape[1]):
            S = S if decay is None else decay[b, t] * S
            for i in range(t * r, (t + 1) * r):
                key = k[b, i] / k[b, i].norm()
                value = 0 if v is None else v[b, i]
                S = S - beta[b, i] * torch.outer(key, key @ S - value)
            outputs.append(S.mT @ q[b, t])
        found.append(torch.stack(outputs))
        last.append(S)
    return torch.stack(found), torch.stack(last)


def tensors(steps, r, *, values=True, decays=True):
    given = [
        torch.randn(B, steps, D),
        torch.randn(B, steps * r, D),
        torch.randn(B, steps * r, E) if values else None,
        2 * torch.rand(B, steps * r),
        0.9 + 0.1 * torch.rand(B, steps) if decays else None,
        torch.randn(B, D, E),
    ]
    return [None if t is None else t.double().requires_grad_() for t in given]


def called(q, k, v, beta, decay, state, chunk=None):
    return delta_product(q, k, v, beta, decay=decay, state=state, chunk=chunk)


@pytest.mark.parametrize(
    ("steps", "r", "options"),
    [
        (1, 2, {}),
        (23, 2, {}),
        (23, 2, {"decays": False}),
        (70, 1, {"values": False}),
        (70, 1, {"values": False, "decays": False}),
        (33, 3, {}),
    ],
)
@pytest.mark.turns(3)
def test_all_steps_of_a_chunk_are_those_one_by_one(steps, r, options) -> None:
    given = tensors(steps, r, **options)
    if given[4] is not None:
        given[4].data[0, 0] = 0.0  # A decay of 0 begins anew.
    leaves = [t for t in given if t is not None]
    expected = by_hand(*given)
    cotangents = [torch.randn_like(t) for t in expected]
    gradients = torch.autograd.grad(expected, leaves, cotangents)
    for chunk in (None, 1, 7, 64):
        found = called(*given, chunk)
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)
        for a, b in zip(torch.autograd.grad(found, leaves, cotangents), gradients, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"values": False}, {"decays": False}])
@pytest.mark.turns(2)
def test_derivatives_of_first_and_second_order(options) -> None:
    given = [None if t is None else t[:1].detach().requires_grad_() for t in tensors(3, 2, **options)]
    leaves = [t for t in given if t is not None]

    def run(*leaves):
        rest = iter(leaves)
        return called(*(None if t is None else next(rest) for t in given), chunk=2)

    assert gradcheck(run, leaves, check_forward_ad=True, **FAST)
    assert gradgradcheck(run, leaves, **FAST)


def test_transforms_give_what_a_loop_over_calls_gives() -> None:
    given = tensors(6, 2)
    each = torch.func.vmap(lambda *t: called(*t, chunk=4), randomness="error")(*(t.detach() for t in given))
    for a, b in zip(each, called(*given, chunk=4), strict=True):
        torch.testing.assert_close(a, b)
    jacobian = torch.func.jacrev(lambda S: called(*(t.detach() for t in given[:5]), S, chunk=4)[1])
    found = jacobian(given[5].detach())
    expected = torch.autograd.functional.jacobian(lambda S: called(*given[:5], S, chunk=4)[1], given[5])
    torch.testing.assert_close(found, expected)


def keys(kind, r, steps=4096):
    base, other = torch.randn(2, 2, 1, 8)
    random = torch.randn(2, steps * r, 8)
    return {
        "random": random,
        "equal": base.expand_as(random),
        "nearly equal": base + 1e-3 * random,
        "two": torch.where(torch.rand(2, steps * r, 1) < 0.5, base, other),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "r"), [("random", 1), ("equal", 4), ("equal", 1), ("nearly equal", 4), ("two", 2)]
)
@pytest.mark.turns(3)
def test_single_precision_over_4096_steps(kind, r) -> None:
    """Equal keys would repeat the rounding error of one product: without double precision 1e-3."""
    k, q = keys(kind, r), torch.randn(2, 4096, 8)
    v, beta, state = torch.randn(2, 4096 * r, 8), torch.full((2, 4096 * r), 2.0), torch.randn(2, 8, 8)
    given = [t.requires_grad_() for t in (q, k.clone(), v, beta, state)]
    exact = [t.detach().double().requires_grad_() for t in given]
    g = torch.randn(2, 4096, 8)
    found, expected = ([*called(*t[:4], None, t[4])] for t in (given, exact))
    found += torch.autograd.grad(found[0], given, g)
    expected += torch.autograd.grad(expected[0], exact, g.double())
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()


def test_two_states_never_move_apart_and_approach_each_other_at_the_decay() -> None:
    torch.manual_seed(0)
    count, steps, r = 1000, 12, 2
    q, k = torch.randn(count, steps, D).double(), torch.randn(count, steps * r, D).double()
    k[::3] = k[::3, :1]  # Equal keys, too.
    v = 10 * torch.randn(count, steps * r, E).double()
    beta = 2 * torch.rand(count, steps * r).double().round(decimals=1)  # Often 0 or 2.
    decay = torch.rand(count, steps).double()
    first, second = torch.randn(2, count, D, E).double()
    for a in (None, decay):
        before = (first - second).norm(dim=(1, 2))
        S, T = first, second
        for t in range(steps):
            rows = slice(t * r, (t + 1) * r)
            step = (q[:, t : t + 1], k[:, rows], v[:, rows], beta[:, rows])
            one = None if a is None else a[:, t : t + 1]
            S, T = (called(*step, one, state)[1] for state in (S, T))
            after = (S - T).norm(dim=(1, 2))
            assert (after <= before * (1 if a is None else a[:, t]) + 1e-11).all()
            before = after


def test_reflections_without_values_keep_the_length() -> None:
    steps = 10_000
    for dtype, limit in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        q, k = torch.randn(1, steps, D, dtype=dtype), torch.randn(1, steps * 2, D, dtype=dtype)
        state, beta = torch.randn(1, D, E, dtype=dtype), torch.full((1, steps * 2), 2.0, dtype=dtype)
        _, last = called(q, k, None, beta, None, state)
        assert abs(last.norm() / state.norm() - 1) <= limit


def test_one_key_with_alternating_values_grows_as_it_is_said() -> None:
    steps = 64
    k, q = torch.ones(1, steps, 1).double(), torch.ones(1, steps, 1).double()
    v = (-1.0) ** torch.arange(steps).double().reshape(1, steps, 1)
    _, last = delta_product(q, k, v, torch.full((1, steps), 2.0).double())
    assert abs(last.item()) == pytest.approx(2 * steps)


def test_a_key_of_zeros_changes_nothing_and_has_finite_derivatives() -> None:
    k = torch.zeros(1, 6, D).double().requires_grad_()
    state = torch.randn(1, D, E).double()
    for chunk in (None, 2):
        q, v = torch.ones(1, 3, D).double(), torch.ones(1, 6, E).double()
        y, last = called(q, k, v, torch.ones(1, 6).double(), None, state, chunk)
        assert torch.equal(last, state)
        (g,) = torch.autograd.grad(y.sum(), k)
        assert g.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single_precision(dtype) -> None:
    given = [t.detach().to(dtype) for t in tensors(20, 2)]
    expected = called(*(t.float() for t in given))
    for a, b in zip(called(*given), expected, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b.to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for a, b in zip(called(*(t.float() for t in given)), expected, strict=True):
            assert torch.equal(a, b)


def test_leading_dimensions_and_arrays() -> None:
    q, k, v, beta = (t.detach() for t in tensors(4, 2)[:4])
    y, last = delta_product(q, k, v, beta)
    more = delta_product(*(t.reshape(1, 3, 1, *t.shape[1:]) for t in (q, k, v, beta)))
    assert torch.equal(more[0], y.reshape(1, 3, 1, 4, E))
    assert torch.equal(more[1], last.reshape(1, 3, 1, D, E))
    one = delta_product(q[0], k[0], v[0], beta[0])
    torch.testing.assert_close(one[0], y[0])
    from_arrays = delta_product(*(t.numpy() for t in (q, k, v, beta)))
    assert torch.equal(from_arrays[0], y)
    empty = delta_product(*(t[:0] for t in (q, k, v, beta)))
    assert empty[0].shape == (0, 4, E)
    assert isinstance(np.asarray(last), np.ndarray)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", lambda t: {"q": t["q"][:, :0]}),
        ("q", lambda t: {"q": t["q"][0, 0]}),
        ("k", lambda t: {"k": t["k"][:, :-1]}),
        ("k", lambda t: {"k": t["k"][..., :2]}),
        ("k", lambda t: {"k": t["k"][0]}),
        ("v", lambda t: {"v": t["v"][:, :-1]}),
        ("beta", lambda t: {"beta": t["beta"][..., None]}),
        ("decay", lambda t: {"decay": t["beta"]}),
        ("state", lambda t: {"state": t["state"].mT}),
        ("state", lambda t: {"v": None, "state": None}),
        ("k", lambda t: {"k": t["k"] + 0j}),
        ("v", lambda t: {"v": t["v"].long()}),
        ("chunk", lambda t: {"chunk": 0}),
        ("chunk", lambda t: {"chunk": 1.5}),
    ],
)
def test_what_does_not_fit_is_refused(name, change) -> None:
    q, k, v, beta, decay, state = (t.detach() for t in tensors(4, 2))
    given = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay, "state": state, "chunk": None}
    with refused(name):
        delta_product(**{**given, **change(given)})
