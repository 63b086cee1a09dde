"""Givens: what it reaches, what it finds again, what it refuses."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import spectral_param as sp
from spectral_param.errors import InManifoldError, NotFiniteError
from spectral_param.testing import Case, Holder, conformance
from tests.promises.cases import orthogonal, orthogonality_defect
from tests.properties import double, examples, normal, seeds
from tests.training import approach, reverse_inputs

DTYPES = (torch.float64, torch.complex128)


def fft_member(shape, dtype):
    module, gates = Holder(torch.empty(shape, dtype=dtype)), shape[-2] // shape[-1]
    sp.constrain(module, "weight", sp.Givens(order="fft"), init="paper", gates=gates)
    return module.weight.detach()


FFT = Case(
    name="Givens-fft",
    make=lambda shape: sp.Givens(order="fft"),
    member=fft_member,
    violation=orthogonality_defect,
    recovers=False,
    shapes=((8, 8), (8, 4)),
    variant=True,
)
# What the order decides: the map, its inverse and its derivatives.
TRIALS = [
    trial for trial in conformance(FFT) if str(trial.check) in ("right_inverse", "gradients", "state_dict")
]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
@pytest.mark.turns(2)
def test_contract_of_the_fft_order(trial) -> None:
    trial()


@example(n=64, kind="any", dtype=torch.complex128, seed=0)
@given(n=st.integers(1, 12), kind=st.sampled_from(["any", "permutation", "-I"]), dtype=double, seed=seeds)
@examples(15)
def test_any_orthogonal_weight_round_trips(n, kind, dtype, seed) -> None:
    identity = torch.eye(n, dtype=dtype)
    if kind == "any":
        W = torch.linalg.qr(normal((n, n), dtype, seed)).Q
    else:
        generator = torch.Generator().manual_seed(seed)
        W = -identity if kind == "-I" else identity[torch.randperm(n, generator=generator)]
    module = sp.constrain(Holder(identity), "weight", sp.Givens())
    for sign in (1, -1):  # both determinants
        W[0] *= sign
        module.weight = W
        torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "sign"), [(torch.float64, -1), (torch.complex128, 1)])
@pytest.mark.turns(2)
def test_training_reaches_any_orthogonal_weight(dtype, sign) -> None:
    target = orthogonal((5, 5), dtype)
    target[0] *= sign
    start = orthogonal((5, 5), dtype)
    start[0] *= torch.linalg.det(start).real.sign() * torch.linalg.det(target).real.sign()
    module = sp.constrain(Holder(start), "weight", sp.Givens())
    assert (module.weight - target).abs().square().sum() > 1
    approach(module, target, gradient=1e-12)
    assert (module.weight - target).abs().square().sum() < 1e-10


def test_two_layers_cannot_reach_most_weights() -> None:
    module = sp.constrain(Holder(torch.eye(8)), "weight", sp.Givens(layers=2), init="paper")
    with pytest.raises(InManifoldError, match=r"Givens: expected.*got.*2 rectangular layers"):
        module.weight = orthogonal((8, 8), torch.float32)


@pytest.mark.parametrize(
    ("layers", "order", "real", "complex_"),
    [
        (None, "rectangular", 28, 64),
        (2, "rectangular", 7, 22),
        (5, "rectangular", 18, 44),
        (None, "fft", 12, 32),
    ],
)
def test_number_of_parameters(layers, order, real, complex_) -> None:
    """8 x 8: real rotations; two parameters for each complex one, and the phases of D."""
    for dtype, expected in ((torch.float32, real), (torch.complex64, complex_)):
        module = sp.constrain(
            Holder(torch.eye(8, dtype=dtype)), "weight", sp.Givens(layers=layers, order=order), init="paper"
        )
        assert sp.num_free_parameters(module) == expected
        assert sum(p.numel() for p in module.parameters()) == expected


@pytest.mark.nightly
def test_orthogonal_to_machine_precision_after_many_steps() -> None:
    for dtype, layers in ((torch.float32, None), (torch.complex64, 3)):
        layer = torch.nn.Linear(32, 32, bias=False, dtype=dtype)
        sp.constrain(layer, "weight", sp.Givens(layers=layers), init="paper" if layers else None)
        assert reverse_inputs(layer, 60) > 0.1
        assert orthogonality_defect(layer.weight).max() < 20 * torch.finfo(torch.float32).eps


def test_few_layers_refuse_a_weight_and_take_the_papers_random_start() -> None:
    W = orthogonal((8, 8), torch.float64)
    for constraint in (sp.Givens(layers=2), sp.Givens(order="fft")):
        module = Holder(W)
        with pytest.raises(InManifoldError, match=r"Givens: expected init='paper'.*got.*Start with"):
            sp.constrain(module, "weight", constraint)
        assert torch.equal(module.weight, W)
    one, other = (
        sp.constrain(Holder(W), "weight", sp.Givens(layers=2), init="paper").weight for _ in range(2)
    )
    assert (one - other).abs().max() > 0.1
    assert one.triu(3).abs().max() == 0


def test_the_present_weight_can_always_be_assigned() -> None:
    module = sp.constrain(Holder(torch.eye(48)), "weight", sp.Givens(layers=30), init="paper")
    W = module.weight.detach().clone()
    module.weight = W
    torch.testing.assert_close(module.weight, W)
    with torch.no_grad():
        module.parametrizations.weight.original += 0.1
    assert (module.weight - W).abs().max() > 0.01
    with pytest.raises(InManifoldError, match=r"Givens: expected.*got.*30 rectangular layers"):
        module.weight = W  # no longer the present one


def test_the_papers_start_has_uniform_angles() -> None:
    module = sp.constrain(
        Holder(torch.empty(30, 30, dtype=torch.complex64)), "weight", sp.Givens(), init="paper"
    )
    for angles in module.parametrizations.weight.parameters():
        assert angles.dtype == torch.float32
        assert angles.abs().max() <= math.pi
        assert angles.abs().max() > 0.8 * math.pi
        assert abs(angles.mean()) < 1
        assert angles.untyped_storage().nbytes() == 4 * angles.numel(), "in memory of its own"
    real = sp.constrain(Holder(torch.empty(4, 4)), "weight", sp.Givens(layers=1), init="paper")
    assert torch.equal(real.parametrizations.weight[0].signs, torch.ones(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arguments", [{}, {"layers": 3}, {"order": "fft"}], ids=str)
def test_operator_is_the_product_with_the_weight(arguments, dtype) -> None:
    module = sp.constrain(
        Holder(torch.empty(8, 8, dtype=dtype)), "weight", sp.Givens(**arguments), init="paper"
    )
    angles = list(module.parametrizations.weight.parameters())
    product = module.parametrizations.weight[0].operator(*angles)
    h = torch.randn(3, 8, dtype=dtype, requires_grad=True)
    results = [
        (y, *torch.autograd.grad(y.abs().pow(3).sum(), [h, *angles]))
        for y in (product(h), h @ module.weight.mT)
    ]
    torch.testing.assert_close(results[0], results[1])


def test_operator_of_gates() -> None:
    of_weight = sp.constrain(torch.nn.LSTM(3, 4), "weight_hh_l0", sp.Givens()).parametrizations.weight_hh_l0
    with pytest.raises(ValueError, match=r"operator: expected.*got.*\(16, 4\)"):
        of_weight[0].operator(of_weight.original)


def test_double_leaves_a_complex_weight_as_it_is() -> None:
    """As Module.double does with complex parameters."""
    module = sp.constrain(Holder(torch.eye(4, dtype=torch.complex64)), "weight", sp.Givens()).double()
    assert module.weight.dtype == torch.complex64
    W = orthogonal((4, 4), torch.complex64)
    module.weight = W
    torch.testing.assert_close(module.weight, W)


def test_each_gate_and_block_is_orthogonal() -> None:
    lstm = sp.constrain(torch.nn.LSTM(3, 6), "weight_hh_l0", sp.Givens(layers=2), init="paper")
    assert orthogonality_defect(lstm.weight_hh_l0).shape == (4,)
    assert orthogonality_defect(lstm.weight_hh_l0).max() < 1e-5
    blocks = [(4, sp.Givens()), (3, sp.FourierUnitary())]
    module = Holder(torch.eye(7, dtype=torch.complex64))
    W = sp.constrain(module, "weight", sp.BlockTriangular(blocks), init="paper").weight
    assert W.dtype == torch.complex64
    assert orthogonality_defect(W).max() < 1e-5


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"order": "reck"}, "order: expected.*got 'reck'"),
        ({"layers": 0}, "layers: expected.*got 0"),
        ({"layers": 1.5}, r"layers: expected.*got 1\.5"),
        ({"layers": True}, "layers: expected.*got True"),
        ({"layers": 2, "order": "fft"}, "layers: expected.*got 2"),
    ],
)
def test_orders_and_layers_out_of_range_are_named(arguments, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.Givens(**arguments)


def test_arguments_that_do_not_fit_the_weight() -> None:
    for init in (None, "paper"):
        with pytest.raises(ValueError, match=r"layers: expected.*got 5"):
            sp.constrain(Holder(torch.eye(4)), "weight", sp.Givens(layers=5), init=init)
        with pytest.raises(ValueError, match=r"expected.*got n = 5"):
            sp.constrain(Holder(torch.eye(5)), "weight", sp.Givens(order="fft"), init=init)


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"expected.*got"):
        sp.constrain(Holder(torch.full((3, 3), torch.nan)), "weight", sp.Givens())


@pytest.mark.parametrize("convert", [torch.nn.Module.float, torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_conversion_leaves_a_complex_weight_its_dtype_and_unitary_to_its_rounding(convert) -> None:
    layer = sp.constrain(torch.nn.Linear(8, 8, dtype=torch.complex128), "weight", sp.Givens())
    x = torch.randn(3, 8, dtype=torch.complex128)
    W = convert(layer).weight.detach()
    torch.testing.assert_close(W @ W.mH, torch.eye(8, dtype=torch.complex128), atol=1e-13, rtol=0)
    links = layer.parametrizations.weight
    apply = links[0].operator(*links.parameters(recurse=False))
    torch.testing.assert_close(apply(x), x @ W.mT, atol=1e-13, rtol=0)
