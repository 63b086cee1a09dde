"""FrobeniusNorm: slices of every layer, norms of every size, zeros, and changes along the sphere."""

import copy
import io
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError, NotAMatrixError
from spectral_param.testing import Holder
from tests.messages import refused
from tests.properties import dtypes, exact, examples, normal, seeds

LAYERS = {
    "Linear": lambda: nn.Linear(5, 3),
    "Embedding": lambda: nn.Embedding(4, 6),
    "Conv1d": lambda: nn.Conv1d(4, 6, 3),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1),
    "depthwise": lambda: nn.Conv2d(4, 8, (3, 1), groups=4),
    "reflected": lambda: nn.Conv3d(2, 3, 2, padding=1, padding_mode="reflect"),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2),
    "patches": lambda: nn.Conv2d(3, 4, 2, stride=2),
}


def lengths(W: Tensor, dim: int | None = None) -> Tensor:
    """The norm of each slice, in double precision."""
    X = exact(W.detach())
    rows = X.reshape(1, -1) if dim is None else X.movedim(dim, 0).flatten(1)
    return rows.abs().square().sum(dim=1).sqrt()


def held(module: nn.Module, constraint: sp.Parametrization, **options) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    sp.constrain(module, "weight", constraint, optimizer=optimizer, **options)
    return optimizer


def step_along(weight: Tensor, optimizer: torch.optim.Optimizer, change: Tensor) -> None:
    """A step that adds a change, and what follows it."""
    weight.grad = -2 * change.to(weight.dtype)
    optimizer.step()


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("name", LAYERS)
def test_slices_are_those_of_weight_norm_and_renorm(name, dim) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    theirs = nn.utils.parametrizations.weight_norm(copy.deepcopy(layer), "weight", dim)
    nn.init.constant_(theirs.parametrizations.weight.original0, 0.7)
    W = layer.weight.detach().clone()
    # torch.renorm has no slice that is the whole weight.
    bounded = W[None].renorm(2, 0, 0.7)[0] if dim is None else W.renorm(2, dim, 0.7)
    for mode, expected in {"equal": theirs.weight.detach(), "at_most": bounded}.items():
        by_map = sp.constrain(copy.deepcopy(layer), "weight", sp.FrobeniusNorm(0.7, mode, dim))
        torch.testing.assert_close(by_map.weight.detach(), expected)
        after = copy.deepcopy(layer)
        optimizer = held(after, sp.FrobeniusNorm(0.7, mode, dim))
        torch.testing.assert_close(after.weight.detach(), expected)
        step_along(after.weight, optimizer, 50 * W)
        assert sp.violation(after) == {"weight": 0.0}
        direction = after.weight.detach() / lengths(after.weight, dim).max().float()
        assert float((lengths(direction, dim) - 1).abs().max()) < 1e-5, "all slices have grown to the bound"


@pytest.mark.parametrize(("shape", "gates"), [((7,), 1), ((12,), 4), ((2, 3, 4), 1), ((4, 3, 2), 2)])
def test_any_number_of_dimensions_is_one_weight_and_each_gate_has_its_own(shape, gates) -> None:
    W = normal(shape, torch.float32, 0)
    for options in ({}, {"optimizer": True}):
        module = Holder(W.clone())
        if options:
            options = {"optimizer": torch.optim.SGD(module.parameters(), lr=0.5)}
        sp.constrain(module, "weight", sp.FrobeniusNorm(2.0), gates=gates, **options)
        norms = lengths(module.weight.reshape(gates, -1), 0)
        torch.testing.assert_close(norms, torch.full((gates,), 2.0, dtype=torch.float64), rtol=1e-6, atol=0)
        assert sp.num_free_parameters(module) == W.numel() - gates
        assert sp.FrobeniusNorm(2.0).distance(W).shape == ()


def test_an_axis_counts_within_a_gate() -> None:
    lstm = nn.LSTM(3, 5)
    sp.constrain(lstm, "weight_hh_l0", sp.FrobeniusNorm(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), dim=1))
    gates = lstm.weight_hh_l0.detach().unflatten(0, (4, 5))
    expected = torch.arange(1.0, 5.0)[:, None].expand(4, 5)
    torch.testing.assert_close(gates.square().sum(dim=1).sqrt(), expected)
    assert sp.num_free_parameters(lstm.parametrizations.weight_hh_l0) == 4 * (25 - 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e30])
def test_norms_of_every_size_are_right(size, dtype) -> None:
    """The weight, the gradient, and what follows a step, in both directions."""
    eps = torch.finfo(dtype).eps
    T, G = (normal((6, 5), dtype, seed) for seed in (0, 1))
    T = T * size
    for norm, dim in ((size, None), (1.0, 0)):
        constraint = sp.FrobeniusNorm(norm, dim=dim)
        relative = lengths(constraint.project(T), dim) / norm - 1
        assert float(relative.abs().max()) < 8 * eps
        module = sp.constrain(Holder(T.clone()), "weight", constraint)
        (original,) = module.parametrizations.parameters()
        original.data.copy_(T.reshape(original.shape))
        assert float((lengths(module.weight, dim) / norm - 1).abs().max()) < 8 * eps
        (g,) = torch.autograd.grad(module.weight, [original], G)
        X = exact(T).requires_grad_()
        n = X.abs().square().sum(dim=None if dim is None else 1, keepdim=True).sqrt()
        (expected,) = torch.autograd.grad(norm * X / n, [X], exact(G))
        error = (exact(g).reshape(X.shape) - expected).abs().max() / expected.abs().max()
        assert float(error) < 30 * eps
        after = Holder(torch.ones_like(T))
        optimizer = held(after, sp.FrobeniusNorm(norm, dim=dim))
        with torch.no_grad():
            after.weight.copy_(T)
        optimizer.step()
        assert float((lengths(after.weight, dim) / norm - 1).abs().max()) < 8 * eps
        assert sp.violation(after) == {"weight": 0.0}


def test_the_norm_of_three_million_entries_is_exact_to_rounding() -> None:
    """Squares that are added one by one would be wrong by 1e-4 in single precision."""
    W = torch.rand(3_000_000, generator=torch.Generator().manual_seed(0))
    assert float(lengths(sp.FrobeniusNorm(3.0).project(W))) == pytest.approx(3.0, rel=1e-6)
    assert float(sp.FrobeniusNorm(1e-3).distance(W)) == pytest.approx(float(lengths(W)) - 1e-3, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mode", ["equal", "at_most"])
def test_half_precision_is_right_to_its_own_rounding_and_stays(mode, dtype) -> None:
    layer = nn.Linear(40, 30, dtype=dtype)
    optimizer = held(layer, sp.FrobeniusNorm(1.0, mode, dim=0))
    for seed in range(5):
        step_along(layer.weight, optimizer, 0.1 * normal((30, 40), torch.float32, seed))
        off = (lengths(layer.weight, 0) - 1).abs() if mode == "equal" else lengths(layer.weight, 0) - 1
        assert float(off.max()) <= torch.finfo(dtype).eps / 2 + 1e-5
        before = layer.weight.detach().clone()
        step_along(layer.weight, optimizer, torch.zeros(30, 40))
        assert torch.equal(layer.weight, before)


def test_a_large_entry_that_half_precision_rounds_does_not_move_the_others() -> None:
    """The norm asked for is between two numbers of bfloat16; scaling would move the small entry each step."""
    layer = nn.Linear(2, 1, dtype=torch.bfloat16)
    W = torch.tensor([[1.0, 243 / 128 / 64]])
    optimizer = held(layer, sp.FrobeniusNorm(1 + 0.9 / 256), init=W)
    for _ in range(2):
        assert torch.equal(layer.weight.float(), W)
        step_along(layer.weight, optimizer, torch.zeros(1, 2))


def test_at_most_leaves_what_is_inside_bit_for_bit() -> None:
    W = normal((6, 5), torch.float32, 0)
    bound = lengths(W, 0).sort().values[2:4].mean().item()
    inside = lengths(W, 0) < bound
    module = sp.constrain(Holder(W.clone()), "weight", sp.FrobeniusNorm(bound, "at_most", dim=0))
    assert torch.equal(module.weight[inside], W[inside])
    assert not bool((module.weight[~inside] == W[~inside]).any())
    (original,) = module.parametrizations.parameters()
    G = normal((6, 5), torch.float32, 1)
    original.data.copy_(W.reshape(original.shape))
    (g,) = torch.autograd.grad(module.weight, [original], G)
    assert torch.equal(g.reshape(6, 5)[inside], G[inside])
    along = (g.reshape(6, 5) * W).sum(dim=1)[~inside]
    assert float(along.abs().max()) < 1e-5, "where a slice is scaled the gradient is along the sphere"


def test_many_weights_are_put_back_as_each_alone() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(6, 4) for _ in range(4)))
    alone = copy.deepcopy(layers)
    norms = (1.0, 1.0, 2.0, torch.arange(1.0, 5.0))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.5)
    for i, norm in enumerate(norms):
        sp.constrain(layers, f"{i}.weight", sp.FrobeniusNorm(norm, dim=0), optimizer=optimizer)
        one = held(alone[i], sp.FrobeniusNorm(norm, dim=0))
        for layer in (layers[i], alone[i]):
            layer.weight.grad = normal((4, 6), torch.float32, i)
        one.step()
    optimizer.step()
    for i, norm in enumerate(norms):
        assert torch.equal(layers[i].weight, alone[i].weight)
        expected = torch.as_tensor(norm, dtype=torch.float64).expand(4)
        torch.testing.assert_close(lengths(layers[i].weight, 0), expected, rtol=1e-6, atol=0)


# Zeros --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_slice_of_zeros_is_refused_by_name(with_optimizer) -> None:
    def constrain(module, constraint, name="weight", **options):
        if with_optimizer:
            options["optimizer"] = torch.optim.SGD(module.parameters(), lr=0.5)
        return sp.constrain(module, name, constraint, **options)

    layer = nn.Linear(5, 4)
    nn.init.zeros_(layer.weight[2])
    with refused("FrobeniusNorm: expected no slice of zeros.*got slice 2 along dim 0.*init='paper'"):
        constrain(layer, sp.FrobeniusNorm(dim=0))
    assert type(layer) is nn.Linear
    assert bool((layer.weight[2] == 0).all())
    assert vars(layer).keys() == vars(nn.Linear(5, 4)).keys()
    constrain(layer, sp.FrobeniusNorm(dim=0), init="paper")
    torch.testing.assert_close(
        lengths(layer.weight, 0), torch.ones(4, dtype=torch.float64), rtol=1e-6, atol=0
    )
    sp.remove(layer)
    constrain(layer, sp.FrobeniusNorm(dim=0), init=nn.init.normal_)
    sp.remove(layer)
    nn.init.zeros_(layer.weight)
    constrain(layer, sp.FrobeniusNorm(mode="at_most", dim=0))
    assert not bool(layer.weight.any())
    with refused("got a weight of zeros"):
        constrain(nn.Linear(5, 4), sp.FrobeniusNorm(), init=nn.init.zeros_)
    lstm = nn.LSTM(3, 4)
    nn.init.zeros_(lstm.weight_hh_l0[4:8])
    with refused("got gate 1[.]"):
        constrain(lstm, sp.FrobeniusNorm(), "weight_hh_l0")
    with refused("slice 0 along dim 0 of gate 1, .* and 10 others"):
        constrain(nn.LSTM(3, 5), sp.FrobeniusNorm(dim=0), "weight_hh_l0", init=_all_but_the_first_gate_zero)


def _all_but_the_first_gate_zero(W: Tensor) -> None:
    nn.init.zeros_(W)
    nn.init.normal_(W[:5])


@pytest.mark.parametrize("norm", [1.5, "present"])
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_the_padding_row_of_an_embedding_stays_zero(with_optimizer, norm) -> None:
    for init in (None, "paper"):
        torch.manual_seed(0)
        layer = nn.Embedding(6, 4, padding_idx=2)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        options = {"optimizer": optimizer} if with_optimizer else {}
        expected = lengths(layer.weight, 0) if init is None else torch.ones(6, dtype=torch.float64)
        expected = expected if norm == "present" else torch.full((6,), norm, dtype=torch.float64)
        expected[2] = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sp.constrain(layer, "weight", sp.FrobeniusNorm(norm, dim=0), init=init, **options)
            if not with_optimizer:
                optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
            for seed in range(3):
                optimizer.zero_grad()
                (layer(torch.arange(6)) * normal((6, 4), torch.float32, seed)).sum().backward()
                optimizer.step()
                assert not bool(layer.weight[2].any())
                torch.testing.assert_close(lengths(layer.weight, 0), expected, rtol=1e-6, atol=0)
        assert sp.violation(layer) == {"weight": 0.0}


def test_a_slice_that_training_makes_zero_is_read_as_it_is_with_one_warning() -> None:
    module = sp.constrain(Holder(normal((4, 3), torch.float32, 0)), "weight", sp.FrobeniusNorm(dim=0))
    (original,) = module.parametrizations.parameters()
    original.data[1] = 0
    with pytest.warns(DegenerateEigenvalueWarning, match="norm of a slice is zero"):
        W = module.weight
    assert not bool(W[1].any())
    assert lengths(W, 0)[[0, 2, 3]].tolist() == pytest.approx([1, 1, 1])
    (g,) = torch.autograd.grad(W.sum(), [original])
    assert torch.equal(g[1], torch.ones(1, 3)), "the gradient is that of W = T"
    original.data[1] = 1
    assert lengths(module.weight, 0).tolist() == pytest.approx([1, 1, 1, 1])


# Norms at registration ----------------------------------------------------------------------------


def test_present_norms_are_held_after_the_step() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 4)
    expected = lengths(layer.weight, 0)
    for _ in range(2):  # A run, and one that is resumed.
        optimizer = held(layer, sp.FrobeniusNorm("present", dim=0))
        for seed in range(3):
            step_along(layer.weight, optimizer, normal((4, 5), torch.float32, seed))
            torch.testing.assert_close(lengths(layer.weight, 0), expected, rtol=1e-6, atol=0)
        saved = layer.state_dict()
        assert list(saved) == ["weight", "bias"]
        layer = nn.Linear(5, 4)
        layer.load_state_dict(saved)
    with refused("norm: expected a number with an optimizer.*Pass norm="):
        held(layer, sp.FrobeniusNorm("present", "at_most", dim=0))


def test_present_norms_by_the_map_are_in_the_checkpoint() -> None:
    torch.manual_seed(0)
    layer, other = (nn.Conv2d(2, 3, 3) for _ in range(2))
    expected = lengths(layer.weight, 0)
    for each in (layer, other):
        sp.constrain(each, "weight", sp.FrobeniusNorm("present", dim=0))
    kept = io.BytesIO()
    torch.save(layer.state_dict(), kept)
    kept.seek(0)
    other.load_state_dict(torch.load(kept))
    for original in other.parametrizations.parameters():
        original.data.mul_(3)
    torch.testing.assert_close(lengths(other.weight, 0), expected, rtol=1e-6, atol=0)
    assert sp.constraints(other)["weight"].norm.shape == (3,)
    with refused("FrobeniusNorm: expected no slice of zeros.*Pass a number"):
        sp.constrain(nn.Linear(2, 2), "weight", sp.FrobeniusNorm("present", "at_most"), init=nn.init.zeros_)


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [-1, True, 0.0, "0"])
def test_an_axis_is_counted_from_the_first_one(dim) -> None:
    with refused("dim: expected an axis >= 0.*weight_norm.*torch.renorm"):
        sp.FrobeniusNorm(dim=dim)


def test_a_weight_without_the_axis_is_refused() -> None:
    with refused("dim: expected an axis from 0 to 1, or None, .*got 2"):
        sp.constrain(nn.Linear(3, 3), "weight", sp.FrobeniusNorm(dim=2))
    with refused("dim: expected None .*got 0"):
        sp.constrain(nn.Linear(3, 3), "bias", sp.FrobeniusNorm(dim=0))
    with refused("one dimension", error=NotAMatrixError):
        sp.constrain(Holder(torch.tensor(1.0)), "weight", sp.FrobeniusNorm())
    with refused("gates"):
        sp.constrain(Holder(torch.ones(5)), "weight", sp.FrobeniusNorm(), gates=2)
    with refused("norm: .*one norm for each matrix"):
        sp.constrain(nn.Linear(3, 4), "weight", sp.FrobeniusNorm(torch.ones(3), dim=0))
    with refused("mode"):
        sp.FrobeniusNorm(mode="latched")


def test_an_assignment_from_outside_is_refused_in_few_words_and_its_remedy_works() -> None:
    layer = sp.constrain(nn.Embedding(1000, 4), "weight", sp.FrobeniusNorm(dim=0))
    W = normal((1000, 4), torch.float32, 0)
    with refused("slices along dim 0 of Frobenius norm = 1", error=InManifoldError) as error:
        layer.weight = W
    assert len(str(error.value)) < 600
    layer.weight = sp.constraints(layer)["weight"].project(W)
    torch.testing.assert_close(
        lengths(layer.weight, 0), torch.ones(1000, dtype=torch.float64), rtol=1e-6, atol=0
    )
    many = sp.constrain(nn.Embedding(1000, 4), "weight", sp.FrobeniusNorm("present", dim=0))
    assert "norm='1000 numbers', mode='equal', dim=0" in repr(many)


# Changes along the sphere -------------------------------------------------------------------------


def inner(A: Tensor, B: Tensor) -> Tensor:
    return (A.conj() * B).real.sum(dim=(-2, -1))


def size(A: Tensor) -> Tensor:
    return A.abs().square().sum(dim=(-2, -1)).sqrt()


@examples(25)
@given(
    seed=seeds,
    dtype=dtypes,
    batch=st.sampled_from([(), (3,), (4, 2)]),
    k=st.integers(1, 9),
    exponent=st.integers(-25, 25),
    only_some=st.booleans(),
)
def test_tangent_is_the_orthogonal_projection(seed, dtype, batch, k, exponent, only_some) -> None:
    constraint = sp.FrobeniusNorm(dim=0)
    W, C, D = (normal((*batch, 1, k), dtype, seed + i) for i in range(3))
    direction = W / size(W)[..., None, None]
    W = W * 10.0**exponent
    active = normal(batch, torch.float32, seed) > 0 if only_some else None
    P, Q = constraint.tangent(W, D, active), constraint.tangent(W, C, active)
    limit = 30 * torch.finfo(dtype).eps * size(D)
    chosen = torch.ones(batch, dtype=torch.bool) if active is None else active
    along = inner(direction, P).abs()
    assert bool((along <= limit)[chosen].all()), "tangent"
    assert bool((size(constraint.tangent(W, P, active) - P) <= limit).all()), "idempotent"
    symmetric = (inner(C, P) - inner(Q, D)).abs()
    assert bool((symmetric <= limit * size(C)).all()), "self-adjoint"
    assert torch.equal(P[~chosen], D[~chosen])
    normal_part = (D - P)[chosen]
    across = normal_part - inner(direction, D)[chosen][..., None, None] * direction[chosen]
    assert bool((size(across) <= limit[chosen]).all()), "only the normal part is taken away"


def test_a_set_says_whether_it_has_tangents() -> None:
    assert sp.FrobeniusNorm().has_tangent
    assert sp.FrobeniusNorm(mode="at_most").has_tangent
    assert not sp.SignPattern(torch.ones(2, 2)).has_tangent
    with pytest.raises(NotImplementedError, match="SignPattern"):
        sp.SignPattern(torch.ones(2, 2)).tangent(torch.ones(2, 2), torch.ones(2, 2))
    zero = torch.zeros(1, 3)
    assert torch.equal(sp.FrobeniusNorm().tangent(zero, torch.ones(1, 3)), torch.ones(1, 3))


def test_active_slices_are_on_the_boundary_and_would_leave() -> None:
    layer = nn.Linear(3, 5)
    constraint = sp.FrobeniusNorm(2.0, "at_most", dim=0)
    held(layer, constraint)
    known = sp.constraints(layer)["weight"]
    unit = torch.tensor([[1.0, 0.0, 0.0]])
    W = torch.stack([2 * unit, 2 * unit, 1.9 * unit, 2 * (1 - 1e-7) * unit, 0 * unit])
    G = torch.stack([-unit, unit, -unit, -unit, -unit])
    assert known.active(W, G).tolist() == [True, False, False, True, False]
    assert known.active(1e30 * W, 1e30 * G).tolist() == [True, False, True, True, False], "outside, too"
    assert sp.FrobeniusNorm(2.0).active(W, G) is None


@pytest.mark.parametrize("mode", ["equal", "at_most"])
@pytest.mark.turns(2)
def test_gradient_descent_ends_at_the_best_member(mode) -> None:
    """The maximum of Re<C, W> over ‖W‖ = 1, or ‖W‖ <= 1, is at C/‖C‖, for each row."""
    C = normal((4, 3), torch.float64, 0)
    best = C / lengths(C, 0)[:, None]
    layer = Holder(normal((4, 3), torch.float64, 1))
    optimizer = held(layer, sp.FrobeniusNorm(1.0, mode, dim=0))
    by_map = sp.constrain(
        Holder(normal((4, 3), torch.float64, 1)), "weight", sp.FrobeniusNorm(1.0, mode, dim=0)
    )
    its_own = torch.optim.SGD(by_map.parameters(), lr=0.5)
    for _ in range(120):
        for module, each in ((layer, optimizer), (by_map, its_own)):
            each.zero_grad()
            (-C * module.weight).sum().backward()
            each.step()
    assert float((layer.weight.detach() - best).abs().max()) < 1e-9
    limit = 1e-9 if mode == "equal" else 1e-1  # Where a map scales, T grows, and the gradient shrinks.
    assert float((by_map.weight.detach() - best).abs().max()) < limit
    assert math.isclose(float(lengths(by_map.weight, 0).max()), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("mode", ["equal", "at_most"])
@pytest.mark.turns(2)
def test_adam_ends_there_too_unless_its_steps_are_only_projected(mode) -> None:
    C = normal((24, 6), torch.float64, 0)
    most = float(lengths(C).sum())  # Of Re<C, W>.
    short = {}
    for step in (None, "project"):
        layer = Holder(0.1 * normal((24, 6), torch.float64, 1))
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        sp.constrain(layer, "weight", sp.FrobeniusNorm(1.0, mode), optimizer=optimizer, step=step)
        for k in range(150):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - k / 150)
            optimizer.zero_grad()
            (-C * layer.weight).sum().backward()
            optimizer.step()
        short[step] = 1 - float((C * layer.weight.detach()).sum()) / most
    assert short[None] < 1e-6
    assert short["project"] > 0.1
