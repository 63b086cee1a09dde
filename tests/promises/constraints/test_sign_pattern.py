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
