"""ScaledCayley: any orthogonal weight, a given number of -1s, phases, gates."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from spectral_param.errors import InManifoldError, NotFiniteError
from spectral_param.testing import Holder
from tests.matrices import SPECIAL
from tests.promises.cases import orthogonal, orthogonality_defect
from tests.properties import dtypes, examples, normal, seeds
from tests.training import reverse_inputs


def constrained(weight, negative_ones=None):
    module = Holder(weight.clone())
    register_parametrization(module, "weight", sp.ScaledCayley(negative_ones))
    return module


@pytest.mark.parametrize("name", [*SPECIAL, *map(str, range(1, 25, 4))])
def test_every_orthogonal_weight_round_trips_within_kahans_bound(name) -> None:
    """Random ones have a number as their name, which is their size."""
    W = torch.from_numpy(SPECIAL[name]) if name in SPECIAL else orthogonal((int(name),) * 2, torch.float64)
    module = constrained(W)
    torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)
    A = module.parametrizations.weight.original
    assert A.abs().max() <= 1 + 1e-9
    assert torch.equal(A, -A.mT)
    module.weight = torch.eye(len(W), dtype=W.dtype)
    module.weight = W
    torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)


def test_registration_takes_the_nearest_orthogonal_weight() -> None:
    W = torch.randn(6, 6, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(W)
    torch.testing.assert_close(constrained(W).weight, U @ Vh)


@given(shape=st.tuples(st.integers(0, 9), st.integers(1, 12)), dtype=dtypes, seed=seeds)
@example(shape=(1, 60), dtype=torch.float64, seed=0)
@example(shape=(150, 150), dtype=torch.float32, seed=0)
@examples(15)
def test_orthonormal_columns_round_trip(shape, dtype, seed) -> None:
    """Random ones, and those of the identity, negated, in reverse order and permuted."""
    more, n = shape
    m, generator = n + more, torch.Generator().manual_seed(seed)
    first = torch.eye(m, n, dtype=dtype)
    Q = torch.linalg.qr(normal((m, n), dtype, seed)).Q
    for W in (Q, first, -first, first.flip(0), first[torch.randperm(m, generator=generator)]):
        module = constrained(W)
        assert (module.weight - W).abs().max() <= 500 * torch.finfo(dtype).eps
        # Measured over many random matrices: at most 2.6.
        assert next(module.parametrizations.weight.parameters()).abs().max() <= 30


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_every_weight_of_the_determinant_is_reached_with_a_given_number(count) -> None:
    for seed in range(3):
        W = torch.linalg.qr(normal((8, 8), torch.float64, seed)).Q
        W[0] *= -torch.linalg.det(W).sign()
        module = constrained(torch.randn(8, 8, dtype=torch.float64), negative_ones=count)
        module.weight = W
        torch.testing.assert_close(module.weight, W, atol=1e-10, rtol=0)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 6])
def test_a_given_number_of_negative_ones(count) -> None:
    module = constrained(torch.randn(6, 6, dtype=torch.float64), negative_ones=count)
    signs = module.parametrizations.weight[0].signs
    assert (signs < 0).sum() == count
    assert torch.linalg.det(module.weight).item() == pytest.approx((-1) ** count)
    assert orthogonality_defect(module.weight).max() < 1e-13


def test_a_checkpoint_brings_its_own_number_of_negative_ones() -> None:
    saved = constrained(orthogonal((6, 6), torch.float32), negative_ones=3)
    for count in (2, 3, 0.5, None):
        module = constrained(orthogonal((6, 6), torch.float32), negative_ones=count)
        module.load_state_dict(saved.state_dict())
        torch.testing.assert_close(module.weight, saved.weight)


def test_a_fraction_of_negative_ones() -> None:
    module = constrained(torch.randn(10, 10), negative_ones=0.3)
    assert (module.parametrizations.weight[0].signs < 0).sum() == 3


def test_the_wrong_determinant_for_a_given_number() -> None:
    W = orthogonal((4, 4), torch.float64)
    W[0] *= torch.linalg.det(W)  # determinant +1
    module = constrained(torch.randn(4, 4, dtype=torch.float64), negative_ones=1)
    with pytest.raises(InManifoldError, match=r"ScaledCayley: expected.*determinant.*got one outside by 2\."):
        module.weight = W


def test_a_weight_that_a_given_number_cannot_reach() -> None:
    with pytest.raises(InManifoldError, match=r"ScaledCayley: expected.*got"):
        constrained(torch.eye(4), negative_ones=2)


@pytest.mark.parametrize("bad", [-1, 1.5, -0.1, True, math.nan, "half"])
def test_bad_negative_ones(bad) -> None:
    with pytest.raises(ValueError, match=r"negative_ones: expected.*got"):
        sp.ScaledCayley(bad)


def test_negative_ones_of_numpy() -> None:
    for number, plain in ((np.float32(0.5), 0.5), (np.int64(2), 2)):
        assert repr(sp.ScaledCayley(number)) == repr(sp.ScaledCayley(plain))


def test_more_negative_ones_than_rows() -> None:
    with pytest.raises(ValueError, match=r"negative_ones: expected.*got 4"):
        constrained(torch.eye(3), negative_ones=4)


def test_negative_ones_for_a_complex_weight() -> None:
    for init in (None, "paper"):
        with pytest.raises(ValueError, match=r"negative_ones: expected.*got 1"):
            sp.constrain(
                Holder(torch.eye(3, dtype=torch.complex64)),
                "weight",
                sp.ScaledCayley(negative_ones=1),
                init=init,
            )


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"ScaledCayley: expected.*got"):
        constrained(torch.full((3, 3), torch.nan))


def test_message_of_an_assignment_outside() -> None:
    module = constrained(torch.eye(3))
    with pytest.raises(InManifoldError, match=r"ScaledCayley: expected.*got one outside by 5\.196"):
        module.weight = 2 * torch.eye(3)


def test_phases_are_trained() -> None:
    module = constrained(torch.randn(5, 5, dtype=torch.complex64))
    A, theta = module.parametrizations.weight.parameters()
    assert theta.shape == (5,)
    assert theta.dtype == torch.float32
    module.weight.real.sum().backward()
    assert theta.grad.abs().max() > 0
    assert A.grad.abs().max() > 0


def test_gates_are_orthogonal_each() -> None:
    lstm = sp.constrain(torch.nn.LSTM(3, 6), "weight_hh_l0", sp.ScaledCayley())
    assert orthogonality_defect(lstm.weight_hh_l0).shape == (4,)
    assert orthogonality_defect(lstm.weight_hh_l0).max() < 1e-5


def test_the_papers_start() -> None:
    """Section 4.2: eigenvalues ±e^{it}, t in [0, π/2], those of the last rows reflected."""
    module = sp.constrain(
        Holder(torch.empty(12, 12, dtype=torch.float64)),
        "weight",
        sp.ScaledCayley(negative_ones=4),
        init="paper",
    )
    W = module.weight.detach()
    A = module.parametrizations.weight.original
    assert A.abs().max() <= 1, "s = tan(t/2) with t in [0, π/2]"
    blocks = torch.zeros(12, 12)
    for i in range(0, 12, 2):
        blocks[i : i + 2, i : i + 2] = 1
    assert (W[blocks == 0] == 0).all()
    angles = torch.linalg.eigvals(W).angle().abs()
    assert ((angles <= torch.pi / 2 + 1e-12).sum(), (angles >= torch.pi / 2).sum()) == (8, 4)
    assert module.parametrizations.weight[0].signs.tolist() == [1.0] * 8 + [-1.0] * 4


def test_the_papers_start_for_a_complex_weight() -> None:
    module = sp.constrain(
        Holder(torch.empty(7, 7, dtype=torch.complex128)), "weight", sp.ScaledCayley(), init="paper"
    )
    assert orthogonality_defect(module.weight).max() < 1e-13
    theta = list(module.parametrizations.weight.parameters())[1]
    assert ((theta >= 0) & (theta <= 2 * torch.pi)).all()


def test_class_alone_is_the_function_of_the_skew_part() -> None:
    """The map alone, outside register_parametrization: D = I."""
    T = torch.randn(4, 4, dtype=torch.float64)
    W = sp.ScaledCayley()(T)
    A = (T - T.mT) / 2
    torch.testing.assert_close(W, sp.functional.cayley(A))


def test_orthogonal_to_machine_precision_after_many_steps() -> None:
    layer = sp.constrain(torch.nn.Linear(32, 32, bias=False), "weight", sp.ScaledCayley())
    assert reverse_inputs(layer, 150) > 0.1
    assert orthogonality_defect(layer.weight).max() < 20 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.Householder, sp.SkewExponential])
@pytest.mark.parametrize("shape", [(7, 1), (60, 59), (4, 16, 64)])
def test_weight_decay_leaves_singular_values_at_one(make, shape) -> None:
    module = sp.constrain(Holder(torch.randn(shape)), "weight", make())
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)
    x = torch.randn(*shape[:-2], shape[-1], 3)
    for _ in range(15):
        optimizer.zero_grad()
        (module(x) - 1).square().mean().backward()
        optimizer.step()
    assert (torch.linalg.svdvals(module.weight.detach()) - 1).abs().max() < 3e-5


def test_the_zero_weight_of_torch() -> None:
    """What docs/choosing.md says of torch's default for rectangles. When torch mends it, mend the page."""
    layer = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(16, 64))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    layer(torch.randn(8, 16)).square().mean().backward()
    assert torch.linalg.matrix_norm(layer.weight.detach(), 2) > 0.99
    optimizer.step()
    assert torch.equal(layer.weight.detach(), torch.zeros(64, 16))


def test_memory_of_a_tall_weight_is_in_proportion_to_its_size() -> None:
    """No matrix of m columns: with one, this would take 3.6 GB."""
    layer = sp.constrain(torch.nn.Linear(50, 30_000, bias=False), "weight", sp.ScaledCayley())
    layer(torch.randn(1, 50)).square().mean().backward()
    assert layer.parametrizations.weight.original.grad.shape == (30_000, 50)


def test_the_minus_ones_of_the_papers_start_stand_at_the_end() -> None:
    module = sp.constrain(Holder(torch.eye(7)), "weight", sp.ScaledCayley(negative_ones=2), init="paper")
    assert module.parametrizations.weight[0].signs.tolist() == [1] * 5 + [-1] * 2


def fitted(module, target, steps=300, rebase=None):
    """Train the weight to a target by Adam, with or without new signs."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    if rebase == "itself":
        sp.rebase(module, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        (module.weight - target).square().sum().backward()
        optimizer.step()
        if rebase == "steps":
            sp.rebase(module)
    return (module.weight - target).norm().item()


@pytest.mark.parametrize("rebase", ["itself", "steps"])
@pytest.mark.turns(2)
def test_new_signs_reach_what_lies_at_minus_one(rebase) -> None:
    target = torch.diag(torch.tensor([-1.0, -1.0, 1.0]))
    start = torch.linalg.matrix_exp(0.01 * torch.tensor([[0.0, -1, 1], [1, 0, 1], [-1, -1, 0]]))
    assert fitted(constrained(start), target) > 0.5  # Why there is rebase.
    assert fitted(constrained(start), target, rebase=rebase) < 0.02


@pytest.mark.nightly
def test_new_signs_reach_every_target_of_the_same_determinant() -> None:
    """40 of 40, as one batch, whose matrices get new signs each by itself."""
    start, target = (torch.linalg.qr(torch.randn(40, 5, 5)).Q for _ in range(2))
    for W in (start, target):
        W[..., 0] *= torch.linalg.det(W).sign()[:, None]
    module = Holder(start)
    sp.constrain(module, "weight", sp.ScaledCayley(), gates=1)
    fitted(module, target, 700, "itself")
    assert (module.weight - target).norm(dim=(-2, -1)).max() < 0.01


@pytest.mark.parametrize("shape", [(5, 5), (2, 4, 4), (16, 4), (7, 4), (4, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_new_signs_change_no_weight(shape, dtype) -> None:
    module = Holder(torch.randn(shape, dtype=dtype))
    module = sp.constrain(module, "weight", sp.ScaledCayley(), gates=4 if shape == (16, 4) else 1)
    T, *_ = module.parameters()
    before = [p.detach().clone() for p in module.parameters()]
    if shape == (5, 5) and dtype == torch.float64:
        sp.rebase(module)
        assert torch.equal(T, before[0])  # Nothing has outgrown.
    T.data.mul_(100)
    W = module.weight.detach()
    sp.rebase(module)
    torch.testing.assert_close(module.weight.detach(), W, atol=1e-11, rtol=0)
    assert T.abs().max() < 0.5 * 100 * before[0].abs().max()
    if not dtype.is_complex and shape[-2] == shape[-1]:
        assert T.abs().max() <= 1 + 1e-9


def test_new_signs_leave_chains_and_lost_weights_alone() -> None:
    """The originals of a constraint after another one are its results, which nobody keeps."""
    layer = torch.nn.Linear(4, 4)
    sp.constrain(layer, "weight", [sp.SpectralNorm(9.0), sp.ScaledCayley()])
    layer.parametrizations.weight.original.data.mul_(100)
    before = layer.weight.detach()
    sp.rebase(layer)
    assert torch.equal(layer.weight, before)
    lost = constrained(torch.eye(3))
    next(lost.parameters()).data.fill_(math.nan)
    sp.rebase(lost)
    assert lost.weight.isnan().all()


def test_an_optimizer_without_the_weight_is_refused() -> None:
    layer = constrained(torch.eye(3))
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1)
    with pytest.raises(ValueError, match="optimizer: expected"):
        sp.rebase(layer, other)
    with pytest.raises(ValueError, match="optimizer: expected"):
        sp.rebase(layer, torch.nn.Linear(2, 2))


def test_an_optimizer_of_other_constraints_is_told_to_rebase_without_it() -> None:
    layer = sp.constrain(torch.nn.Linear(3, 3), "weight", sp.SkewExponential())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"Call rebase\(model\) without the optimizer"):
        sp.rebase(layer, optimizer)
    layer.weight.sum().backward()
    optimizer.step()
    before = layer.weight.detach().clone()
    sp.rebase(layer)
    torch.testing.assert_close(layer.weight.detach(), before)
    assert not layer.parametrizations.weight.original.any()
    late = constrained(torch.eye(3))
    with pytest.raises(ValueError, match=r"after constrain, then call rebase"):
        sp.rebase(late, optimizer)
    sp.rebase(late, torch.optim.SGD(late.parameters(), 0.1))
