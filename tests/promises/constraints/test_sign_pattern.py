"""SignPattern: entries that are zero."""

import pytest
import torch

import spectral_param as sp
from spectral_param.testing import Holder


@pytest.mark.parametrize("sign", [1.0, -1.0, torch.nan])
def test_the_sign_of_zero_is_left_by_training(sign) -> None:
    module = sp.constrain(Holder(torch.zeros(2, 2)), "weight", sp.SignPattern([[1.0, sign], [sign, sign]]))
    module.weight.sum().backward()
    assert (module.parametrizations.weight.original.grad.abs() == 1).all()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (torch.nn.GRU(2, 5), "weight_hh_l0"),
        (torch.nn.Conv1d(4, 6, 3, groups=2), "weight"),
        (torch.nn.ConvTranspose2d(3, 2, (2, 3)), "weight"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_pattern_may_have_the_shape_of_the_weight(module, name) -> None:
    torch.manual_seed(0)
    given = getattr(module, name).detach().clone()
    pattern = torch.randint(-1, 2, given.shape).float()
    module = sp.constrain(module, name, sp.SignPattern(pattern))
    expected = torch.where(pattern * given > 0, given, 0)
    assert torch.equal(getattr(module, name), expected)
    assert sp.violation(module) == {name: 0.0}
    assert sp.num_free_parameters(module) >= int((pattern != 0).sum())
    with pytest.raises(sp.errors.InManifoldError):
        setattr(module, name, -given)


def test_a_pattern_of_another_shape_is_refused_and_the_shapes_in_the_message_work() -> None:
    def make() -> torch.nn.Module:
        return torch.nn.LSTM(2, 3)

    with pytest.raises(ValueError, match=r"\(4, 3, 3\) or equals \(12, 3\), got \(6, 3\)"):
        sp.constrain(make(), "weight_hh_l0", sp.SignPattern(torch.ones(6, 3)))
    for shape in ((3, 3), (4, 3, 3), (12, 3)):
        assert (
            sp.constrain(make(), "weight_hh_l0", sp.SignPattern(torch.ones(shape))).weight_hh_l0 >= 0
        ).all()


@pytest.mark.parametrize("is_free", [True, False])
def test_the_diagonals_of_a_pattern_of_the_shape_of_the_weight(is_free) -> None:
    pattern = torch.ones(4, 3, 3)
    pattern[2].fill_diagonal_(torch.nan)
    if is_free:
        pattern.diagonal(dim1=-2, dim2=-1).fill_(torch.nan)
    else:
        pattern[0].fill_diagonal_(torch.nan)
    chain = [sp.SignPattern(pattern.flatten(0, 1)), sp.SpectralAbscissa(-0.1)]
    if is_free:
        sp.constrain(torch.nn.LSTM(2, 3), "weight_hh_l0", chain)
    else:
        with pytest.raises(ValueError, match="diagonal"):
            sp.constrain(torch.nn.LSTM(2, 3), "weight_hh_l0", chain)
