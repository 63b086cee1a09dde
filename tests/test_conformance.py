"""Every parametrization keeps every contract, real and complex, single and batched."""

import pytest

from spectral_param.testing import conformance
from tests.cases import CASES


@pytest.mark.parametrize("trial", [trial for case in CASES for trial in conformance(case)], ids=str)
def test_contract(trial) -> None:
    trial()
