"""SpectralAbscissa: what the conformance suite does not ask of it."""

import warnings

import pytest
import torch
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError
from tests import matrices
from tests.promises.cases import abscissas, with_abscissa


def constrained(weight, **kwargs):
    module = sp.testing.Holder(weight.clone())
    register_parametrization(module, "weight", sp.SpectralAbscissa(**kwargs))
    return module


def set_original(module, T):
    module.parametrizations.weight.original.data.copy_(T)


def test_only_the_real_parts_move_and_all_by_the_same() -> None:
    T = torch.randn(6, 6, dtype=torch.float64)
    before = torch.linalg.eigvals(T)
    after = torch.linalg.eigvals(constrained(T, abscissa=-0.5).weight)
    shift = -0.5 - before.real.max()
    for value in before + shift:
        assert (after - value).abs().min() < 1e-12


def test_at_most_leaves_stable_matrices_alone() -> None:
    T = with_abscissa((6, 6), torch.float64, -0.3)
    module = constrained(T, mode="at_most")
    assert torch.equal(module.weight, T)
    set_original(module, T + torch.eye(6))
    assert abscissas(module.weight.detach()).item() == pytest.approx(0, abs=1e-13)
    set_original(module, T)
    assert torch.equal(module.weight, T), "without a memory"


def test_one_number_for_each_gate() -> None:
    wanted = torch.tensor([-0.1, -0.2, -0.3, 0.4])
    lstm = sp.constrain(torch.nn.LSTM(3, 5), "weight_hh_l0", sp.SpectralAbscissa(wanted))
    torch.testing.assert_close(abscissas(lstm.weight_hh_l0.detach()), wanted)


def test_gradient_is_that_of_the_shift() -> None:
    T = torch.randn(5, 5, dtype=torch.float64)
    G = torch.randn(5, 5, dtype=torch.float64)
    module = constrained(T)
    (module.weight * G).sum().backward()
    X = T.clone().requires_grad_()
    ((X - torch.linalg.eigvals(X).real.max() * torch.eye(5)) * G).sum().backward()
    torch.testing.assert_close(module.parametrizations.weight.original.grad, X.grad)


def test_defective_takes_the_abscissa_for_a_constant_and_warns_once() -> None:
    module = constrained(torch.randn(4, 4, dtype=torch.float64))
    set_original(module, matrices.jordan(4, 2.0))
    with pytest.warns(DegenerateEigenvalueWarning, match="defective") as record:
        W = module.weight
    assert record[0].filename == __file__, "points to the line that reads the weight"
    torch.testing.assert_close(W, matrices.jordan(4, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_original(module, matrices.jordan(4, 3.0))
        torch.testing.assert_close(module.weight, matrices.jordan(4, 0.0))
    G = torch.randn(4, 4, dtype=torch.float64)
    (W * G).sum().backward()
    torch.testing.assert_close(module.parametrizations.weight.original.grad, G)


@pytest.mark.parametrize("mode", ["equal", "at_most"])
def test_nan_in_nan_out(mode) -> None:
    module = constrained(torch.randn(5, 5), mode=mode)
    T = torch.randn(5, 5)
    T[1, 2] = torch.nan
    set_original(module, T)
    assert module.weight.isnan().all()
    module.weight.sum().backward()
    assert module.parametrizations.weight.original.grad.isnan().all()


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"abscissa": None}, "abscissa: expected.*got None"),
        ({"abscissa": float("inf")}, "abscissa: expected.*got inf"),
        ({"abscissa": torch.nn.Parameter(torch.zeros(2))}, "abscissa: expected.*got"),
        ({"mode": "below"}, "mode: expected.*got 'below'"),
    ],
)
def test_abscissas_and_modes_out_of_range_are_named(kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.SpectralAbscissa(**kwargs)


def test_numbers_of_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"abscissa: expected.*got shape \(2,\)"):
        constrained(torch.randn(3, 4, 4), abscissa=torch.zeros(2))


def test_message_of_an_assignment_outside() -> None:
    module = constrained(torch.randn(4, 4), abscissa=-1.0)
    with pytest.raises(InManifoldError, match=r"SpectralAbscissa: expected.*= -1, got one outside by 1\.5"):
        module.weight = torch.diag(torch.tensor([0.5, 0.0, -1.0, -2.0]))
