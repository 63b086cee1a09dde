"""Every parametrization keeps every contract, real and complex, single and batched."""

import pytest

from spectral_param.testing import CHECKS
from tests.cases import PRODUCT


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize(("case", "shape", "dtype"), PRODUCT)
def test_contract(case, shape, dtype, check) -> None:
    check(case, shape, dtype)
