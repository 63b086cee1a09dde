"""Products inside constraints are those of their factors' precision, whatever the process-wide settings."""

import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.precision import SETTINGS, Products, needs_setting
from tests.promises.cases import CASES, from_any


@needs_setting
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_products_of_a_constraint(case, reduced) -> None:
    layer = nn.Linear(16, 16, bias=False, dtype=case.dtypes[0])
    sp.constrain(layer, "weight", case.make((16, 16)), init=from_any(case))
    member = case.member((16, 16), case.dtypes[0])
    with Products() as products:
        layer.weight.abs().square().sum().backward()
        if case.recovers:
            layer.weight = member
    # Small matrices are decomposed without any product of torch's; the gradient of sums of 1 has none.
    kinds = ("SignPattern", "SpectralRadiusNorm", "SpectralAbscissa", "Stochastic", "DoublyStochastic")
    without = case.name.startswith((*kinds, "FrobeniusNorm"))
    assert set(products.precisions) == (set() if without else {"ieee"})
    assert SETTINGS.fp32_precision == reduced


@needs_setting
def test_products_of_tracking(reduced) -> None:
    layer = sp.constrain(nn.Linear(40, 40, bias=False), "weight", sp.SpectralRadiusNorm(solver="tracking"))
    with Products() as products:
        for _ in range(3):
            layer.weight.sum().backward()
            with torch.no_grad():
                layer.parametrizations.weight.original[0] += 1
    assert len(products.precisions) > 20
    assert set(products.precisions) == {"ieee"}


@needs_setting
def test_the_recurrence_follows_the_setting(reduced) -> None:
    rnn = sp.nn.BlockRNN(2, [(6, None)])
    with Products() as products:
        rnn(torch.randn(3, 2, 2))[0].sum().backward()
    assert set(products.precisions) == {reduced}


@needs_setting
@pytest.mark.parametrize("parent", [torch.backends, torch.backends.mkldnn], ids=["all", "mkldnn"])
def test_a_setting_that_is_inherited_stays_so(parent) -> None:
    before, own = parent.fp32_precision, SETTINGS.fp32_precision
    try:
        SETTINGS.fp32_precision = "none"
        parent.fp32_precision = "bf16"
        layer = sp.constrain(nn.Linear(80, 80), "weight", sp.ScaledCayley())
        with Products() as products:
            layer.weight.sum().backward()
        assert set(products.precisions) == {"ieee"}
        assert SETTINGS.fp32_precision == "bf16"
        parent.fp32_precision = "ieee"
        assert SETTINGS.fp32_precision == "ieee"
    finally:
        parent.fp32_precision, SETTINGS.fp32_precision = before, own
    assert torch.get_float32_matmul_precision() == "highest"


@needs_setting
def test_a_read_leaves_autocast_and_the_setting_as_they_were(reduced) -> None:
    """Also a read that computes nothing."""
    layer = sp.constrain(nn.Linear(6, 6, bias=False), "weight", sp.SpectralRadiusNorm())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            layer.weight  # noqa: B018
            assert torch.is_autocast_enabled("cpu")
            assert SETTINGS.fp32_precision == reduced
    assert not torch.is_autocast_enabled("cpu")
