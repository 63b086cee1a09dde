"""FourierUnitary: its parameters, its permutation, what may be assigned."""

import math

import pytest
import torch

import spectral_param as sp
from spectral_param.errors import InManifoldError, UnsupportedDtypeError
from spectral_param.testing import Holder
from tests.promises.cases import orthogonal, orthogonality_defect
from tests.training import reverse_inputs


def unitary(n: int, dtype: torch.dtype = torch.complex128) -> Holder:
    return sp.constrain(Holder(torch.empty(n, n, dtype=dtype)), "weight", sp.FourierUnitary(), init="paper")


def test_seven_n_parameters() -> None:
    module = unitary(10)
    assert sp.num_free_parameters(module) == 70
    v, phases = module.parametrizations.weight.parameters()
    assert (v.shape, phases.shape, phases.dtype) == ((2, 10), (3, 10), torch.float64)
    gates = sp.constrain(
        Holder(torch.empty(30, 10, dtype=torch.complex64)),
        "weight",
        sp.FourierUnitary(),
        gates=3,
        init="paper",
    )
    assert sp.num_free_parameters(gates) == 210


@pytest.mark.nightly
def test_all_but_seven_parameters_are_independent() -> None:
    module = unitary(10)
    parametrization = module.parametrizations.weight[0]
    v, phases = (p.detach() for p in module.parametrizations.weight.parameters())

    def weight(v, phases):
        return torch.view_as_real(parametrization(torch.view_as_complex(v), phases))

    J = torch.autograd.functional.jacobian(weight, (torch.view_as_real(v), phases))
    J = torch.cat([each.reshape(200, -1) for each in J], dim=1)
    assert J.shape[1] == 70
    assert torch.linalg.matrix_rank(J, rtol=1e-10) == 63


def test_the_papers_start() -> None:
    v, phases = unitary(200).parametrizations.weight.parameters()
    for sample, limit in ((torch.view_as_real(v), 1), (phases, math.pi)):
        assert 0.95 * limit < sample.abs().max() <= limit
        assert abs(sample.mean()) < 0.1 * limit


@pytest.mark.nightly
def test_unitary_to_machine_precision_after_many_steps() -> None:
    layer = torch.nn.Linear(32, 32, bias=False, dtype=torch.complex64)
    sp.constrain(layer, "weight", sp.FourierUnitary(), init="paper")
    assert reverse_inputs(layer, 100) > 0.1
    assert orthogonality_defect(layer.weight).max() < 20 * torch.finfo(torch.float32).eps


def test_the_permutation_is_saved() -> None:
    module, restored = unitary(9), unitary(9)
    assert not torch.equal(
        restored.parametrizations.weight[0].permutation, module.parametrizations.weight[0].permutation
    )
    restored.load_state_dict(module.state_dict())
    assert torch.equal(restored.weight, module.weight)


def test_a_weight_that_the_layer_has_is_refused_with_the_remedy() -> None:
    layer = torch.nn.Linear(4, 4, dtype=torch.complex64)
    before = layer.weight.detach().clone()
    for init in (None, torch.eye(4), torch.nn.init.eye_):
        with pytest.raises(InManifoldError, match=r"FourierUnitary: expected init='paper'.*got.*Start with"):
            sp.constrain(layer, "weight", sp.FourierUnitary(), init=init)
    torch.testing.assert_close(layer.weight, before)
    sp.constrain(layer, "weight", sp.FourierUnitary(), init="paper")
    assert orthogonality_defect(layer.weight).max() < 1e-5


def test_only_the_present_weight_can_be_assigned() -> None:
    module = unitary(5)
    first = module.weight.detach().clone()
    module.weight = first
    torch.testing.assert_close(module.weight, first)
    with pytest.raises(InManifoldError, match=r"FourierUnitary: expected.*got"):
        module.weight = orthogonal((5, 5), torch.complex128)
    torch.optim.SGD(module.parameters(), lr=0.1).zero_grad()
    module.weight.real.sum().backward()
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.1 * p.grad
    second = module.weight.detach().clone()
    with pytest.raises(InManifoldError):
        module.weight = first
    module.weight = second


def test_real_weight_is_refused_with_the_remedy() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        with pytest.raises(UnsupportedDtypeError, match=rf"FourierUnitary: expected.*got {dtype}"):
            sp.constrain(torch.nn.Linear(4, 4, dtype=dtype), "weight", sp.FourierUnitary(), init="paper")
    with pytest.raises(UnsupportedDtypeError, match=r"expected.*got torch\.float32"):
        sp.nn.URNN(2, 4, dtype=torch.float32, real_output=False)


def test_operator_is_the_product_with_the_weight() -> None:
    module = unitary(8)
    parameters = list(module.parametrizations.weight.parameters())
    product = module.parametrizations.weight[0].operator(*parameters)
    h = torch.randn(3, 8, dtype=torch.complex128, requires_grad=True)
    results = [
        (y, *torch.autograd.grad(y.abs().pow(3).sum(), [h, *parameters]))
        for y in (product(h), h @ module.weight.mT)
    ]
    torch.testing.assert_close(results[0], results[1])


def test_operator_of_gates() -> None:
    module = unitary(4)
    parameters = list(module.parametrizations.weight.parameters())
    gates = sp.constrain(
        Holder(torch.empty(8, 4, dtype=torch.complex64)),
        "weight",
        sp.FourierUnitary(),
        gates=2,
        init="paper",
    )
    with pytest.raises(ValueError, match=r"operator: expected.*got.*\(8, 4\)"):
        gates.parametrizations.weight[0].operator(*parameters)


def test_double_leaves_a_complex_weight_as_it_is() -> None:
    module = unitary(4, torch.complex64).double()
    assert module.weight.dtype == torch.complex64
