"""Every parametrization keeps every contract, real and complex, single and batched."""

import pytest

from spectral_param.testing import conformance
from tests.cases import CASES, FROM_THE_START

TRIALS = [trial for case in (*CASES, *FROM_THE_START) for trial in conformance(case)]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_constraint_keeps_its_contract(trial) -> None:
    trial()
