"""Every parametrization keeps every contract, real and complex, single and batched."""

import pytest

from spectral_param.testing import parametrize_with_checks
from tests.promises.cases import CASES, FROM_THE_START
from tests.properties import FACTOR


# torch 2.6 warns about the names that it gives constants of an exported graph.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore:Node .* does not reference")
@parametrize_with_checks((*CASES, *FROM_THE_START), thorough=FACTOR > 1)
def test_constraint_keeps_its_contract(trial) -> None:
    trial()
