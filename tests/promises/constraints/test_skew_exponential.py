"""SkewExponential: geotorch's map, starts, precision, and moving the base."""

import math

import geotorch
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from spectral_param.errors import InManifoldError, NotFiniteError, UnsupportedDtypeError
from spectral_param.testing import Holder
from tests.promises.cases import orthogonal, orthogonality_defect
from tests.properties import REAL, examples, normal, powers_of_ten, seeds


def constrained(weight, **kwargs):
    module = Holder(weight.clone())
    register_parametrization(module, "weight", sp.SkewExponential(**kwargs))
    return module


def trained(module, steps=20):
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    target = torch.randn_like(module.weight)
    for _ in range(steps):
        optimizer.zero_grad()
        (module.weight * target).sum().backward()
        optimizer.step()
    return module


def test_the_map_and_its_gradient_are_geotorchs() -> None:
    W = orthogonal((6, 6), torch.float64)
    module = constrained(W)
    manifold = geotorch.SO(W.shape).double()
    manifold.right_inverse(W)
    T = torch.randn(6, 6, dtype=torch.float64)
    module.parametrizations.weight.original.data.copy_(T)
    theirs = manifold(T.requires_grad_())
    torch.testing.assert_close(module.weight, theirs, atol=1e-13, rtol=0)
    G = torch.randn(6, 6, dtype=torch.float64)
    (expected,) = torch.autograd.grad(theirs, T, G)
    (actual,) = torch.autograd.grad(module.weight, module.parametrizations.weight.original, G)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_determinant_is_kept(sign) -> None:
    W = orthogonal((5, 5), torch.float64)
    W[0] *= sign * torch.linalg.det(W)
    module = trained(constrained(W))
    assert torch.linalg.det(module.weight).item() == pytest.approx(sign)
    assert orthogonality_defect(module.weight).max() < 1e-13


def test_registration_takes_the_nearest_orthogonal_weight() -> None:
    W = torch.randn(6, 6, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(W)
    torch.testing.assert_close(constrained(W).weight, U @ Vh)


@pytest.mark.parametrize(
    ("start", "low", "high"), [("henaff", -math.pi, math.pi), ("cayley", 0, math.pi / 2)]
)
def test_the_papers_starts(start, low, high) -> None:
    """Rotations by random angles, W = exp(A): the base is I."""
    module = sp.constrain(
        Holder(torch.empty(41, 41, dtype=torch.float64)),
        "weight",
        sp.SkewExponential(angles=start),
        init="paper",
    )
    T = module.parametrizations.weight.original.detach()
    angles = T.diagonal(-1)
    assert torch.equal(T, torch.diag(angles, -1))
    assert (angles[1::2] == 0).all()
    assert low <= angles[::2].min() < angles[::2].max() <= high
    assert angles[::2].max() - angles[::2].min() > (high - low) / 2
    assert torch.equal(module.parametrizations.weight[0].base, torch.eye(41, dtype=torch.float64))
    R = module.weight.detach()
    torch.testing.assert_close(R.diagonal(-1)[::2], angles[::2].sin())
    torch.testing.assert_close(R.diagonal()[:-1:2], angles[::2].cos())


@pytest.mark.parametrize("start", [torch.float32, torch.float64])
@pytest.mark.parametrize("via", [torch.bfloat16, torch.float32, torch.float64])
def test_conversions_keep_the_weight_orthogonal(start, via) -> None:
    module = trained(constrained(orthogonal((8, 8), start)))
    before = module.weight.detach().double()
    module.to(via)
    base = module.parametrizations.weight[0].base
    assert base.dtype == torch.promote_types(via, torch.float32)
    assert orthogonality_defect(base).max() < 20 * torch.finfo(base.dtype).eps
    module.to(torch.float64)
    assert orthogonality_defect(module.weight).max() < 1e-14
    # bfloat16 rounds A, single precision A and the base.
    assert (module.weight - before).abs().max() < (0.1 if via == torch.bfloat16 else 1e-5)


def test_orthogonal_to_machine_precision_after_many_steps() -> None:
    module = trained(constrained(orthogonal((32, 32), torch.float32)), steps=100)
    assert orthogonality_defect(module.weight).max() < 20 * torch.finfo(torch.float32).eps


@example(size=(100, 40), scale=10.0, dtype=torch.float64, seed=0)
@example(size=(97, 96), scale=1e6, dtype=torch.float32, seed=0)
@example(size=(100, 100), scale=3.0, dtype=torch.float32, seed=0)
@example(size=(17, 17), scale=1e30, dtype=torch.float64, seed=0)
@given(
    size=st.tuples(st.integers(0, 12), st.integers(1, 12)).map(lambda each: (sum(each), each[1])),
    scale=powers_of_ten(0, 30),
    dtype=st.sampled_from(REAL),
    seed=seeds,
)
@examples(25)
def test_orthogonal_of_the_same_determinant_for_every_size_of_the_original(size, scale, dtype, seed) -> None:
    m, n = size
    module = constrained(torch.linalg.qr(normal(size, dtype, seed)).Q)
    before = module.weight.detach()
    with torch.no_grad():
        module.parametrizations.weight.original.copy_(scale * normal(size, dtype, seed + 1))
    W = module.weight.detach()
    limit = (20 if scale > 1e13 or m == n else 100) * max(n, 2) * torch.finfo(dtype).eps
    assert (W.mT @ W - torch.eye(n, dtype=dtype)).abs().max() <= limit
    if m == n:
        torch.testing.assert_close(torch.linalg.det(W), torch.linalg.det(before), atol=1e-4, rtol=0)


# Moving the base ------------------------------------------------------------------------------------


def model_of(name):
    cayley = sp.SchurForm(sp.ScaledCayley())
    return {
        "weight": trained(constrained(orthogonal((6, 6), torch.float64))),
        "LSTM": sp.constrain(
            torch.nn.LSTM(2, 5, dtype=torch.float64), "weight_hh_l0", sp.SkewExponential(), init="paper"
        ),
        "ExpRNN": sp.nn.ExpRNN(2, 7, num_layers=2, dtype=torch.float64),
        "NNRNN": sp.nn.NNRNN(2, 7, dtype=torch.float64),
        "blocks": sp.nn.BlockRNN(
            2,
            [(4, sp.SkewExponential()), (3, sp.ScaledCayley()), (2, cayley)],
            coupling=True,
            dtype=torch.float64,
        ),
    }[name]


def weights(model):
    return [
        getattr(module, name).detach().clone()
        for module in model.modules()
        for name in ("weight", "weight_hh_l0", "weight_hh")
        if parametrize.is_parametrized(module, name)
    ]


@pytest.mark.parametrize("name", ["weight", "LSTM", "ExpRNN", "NNRNN", "blocks"])
def test_rebase_changes_no_weight(name) -> None:
    model = model_of(name)
    before = weights(model)
    assert before
    exponentials = [m for m in model.modules() if isinstance(m, sp.SkewExponential)]
    assert exponentials
    bases = [m.base.clone() for m in exponentials]
    sp.rebase(model)
    for a, b in zip(weights(model), before, strict=True):
        assert (a - b).abs().max() < 1e-14
    assert any(not torch.equal(m.base, base) for m, base in zip(exponentials, bases, strict=True))


def test_rebase_is_what_geotorch_does() -> None:
    module, other = (trained(constrained(torch.eye(5, dtype=torch.float64))) for _ in range(2))
    other.load_state_dict(module.state_dict())
    sp.rebase(module)
    geotorch.update_base(other, "weight")
    for a, b in zip(module.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-14, rtol=0)
    assert (module.parametrizations.weight.original == 0).all()


def test_the_optimizer_goes_on_after_rebase() -> None:
    """Same parameter object, in place; the next gradient is the one at the new base."""
    module = constrained(torch.eye(5, dtype=torch.float64))
    (T,) = module.parameters()
    optimizer = torch.optim.SGD([T], lr=0.1)
    G = torch.randn(5, 5, dtype=torch.float64)
    losses = []
    for _ in range(60):
        loss = (module.weight - torch.linalg.qr(G).Q).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sp.rebase(module)
        losses.append(loss.item())
    assert next(module.parameters()) is T
    assert losses[-1] < 0.7 * losses[0]
    assert orthogonality_defect(module.weight).max() < 1e-14


@pytest.mark.nightly
def test_a_thousand_bases_do_not_drift() -> None:
    module = constrained(orthogonal((8, 8), torch.float32))
    (T,) = module.parameters()
    for _ in range(1000):
        with torch.no_grad():
            T.normal_(std=0.1)
        sp.rebase(module)
    assert orthogonality_defect(module.weight).max() < 2e-6


def test_rebase_of_a_buffer() -> None:
    module = torch.nn.Module()
    module.register_buffer("weight", orthogonal((4, 4), torch.float64))
    sp.constrain(module, "weight", sp.SkewExponential())
    module.parametrizations.weight.original.add_(torch.randn(4, 4, dtype=torch.float64))
    before = module.weight
    sp.rebase(module)
    assert not module.parametrizations.weight.original.any()
    torch.testing.assert_close(module.weight, before)


def test_rebase_leaves_a_weight_of_nan_alone() -> None:
    module = constrained(torch.eye(3))
    (T,) = module.parameters()
    T.data.fill_(torch.nan)
    sp.rebase(module)
    assert module.weight.isnan().all()


# Errors ---------------------------------------------------------------------------------------------


def test_unknown_angles_are_named() -> None:
    with pytest.raises(ValueError, match=r"angles: expected.*got 'random'"):
        sp.SkewExponential("random")


@pytest.mark.parametrize("init", [None, "paper"])
def test_complex_weight_is_refused(init) -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"SkewExponential: expected.*got"):
        sp.constrain(Holder(torch.eye(3, dtype=torch.complex64)), "weight", sp.SkewExponential(), init=init)


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"SkewExponential: expected.*got"):
        constrained(torch.full((3, 3), torch.nan))


def test_message_of_an_assignment_outside() -> None:
    module = constrained(torch.eye(3))
    with pytest.raises(InManifoldError, match=r"SkewExponential: expected.*got one outside by 5\.196"):
        module.weight = 2 * torch.eye(3)


@pytest.mark.parametrize("shape", [(6, 6), (9, 4)])
def test_rebase_keeps_the_weight_of_averaged_models(shape) -> None:
    """The mean of two bases is not orthogonal: reads take its polar factor, and rebase the same."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(shape[1], shape[0], dtype=torch.float64)
    layer = sp.constrain(layer, "weight", sp.SkewExponential())
    constraint = layer.parametrizations.weight[0]
    constraint.base.add_(0.3 * torch.randn_like(constraint.base))
    layer.parametrizations.weight.original.data.normal_(std=0.1)
    W = layer.weight.detach().clone()
    sp.rebase(layer)
    torch.testing.assert_close(layer.weight, W)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
@pytest.mark.parametrize("shape", [(12, 12), (12, 5)])
def test_exponential_far_from_the_base_is_orthonormal(shape, size) -> None:
    module = constrained(torch.randn(shape, dtype=torch.float64))
    with torch.no_grad():
        module.parametrizations.weight.original.normal_().mul_(size)
    W = module.weight.detach()
    assert sp.analysis.orthogonality_error(W) <= 20 * max(shape) * torch.finfo(W.dtype).eps
