"""Every parametrization keeps every contract, real and complex, single and batched."""

import pytest

from spectral_param.testing import conformance
from tests.promises.cases import CASES, FROM_THE_START

TRIALS = [trial for case in (*CASES, *FROM_THE_START) for trial in conformance(case)]


# torch 2.6 warns about the names that it gives constants of an exported graph.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore:Node .* does not reference")
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_constraint_keeps_its_contract(trial) -> None:
    trial()
