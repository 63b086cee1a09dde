"""Checkpoints of an earlier version load, and give the same weights."""

from __future__ import annotations

import pytest
import torch

import spectral_param as sp
from tests.earlier import CHECKPOINTS, MODULES, trained, weights


@pytest.fixture(scope="module")
def written():
    return torch.load(CHECKPOINTS, weights_only=True)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.turns(2)
def test_checkpoints_of_an_earlier_version_give_its_weights(name, written) -> None:
    state, expected = written[name]
    module = trained(name, 1)
    module.load_state_dict(state)
    found = weights(module)
    assert found.keys() == expected.keys()
    for path, W in expected.items():
        torch.testing.assert_close(found[path], W, rtol=1e-5, atol=1e-5, msg=path)
    # Nothing but what this version writes is left: what it saves loads strictly, too.
    trained(name, 2).load_state_dict(module.state_dict())


def test_every_constraint_and_network_of_that_version_has_a_checkpoint(written) -> None:
    kinds = set()
    for name in MODULES:
        for part in trained(name, 0).modules():
            kinds.add(type(part).__name__.removeprefix("Parametrized"))
    # Not in that version.
    new = {"ContractingGRU", "ContractingGRUCell", "MaxMin", "Residual", "DoublyStochastic", "Stochastic"}
    new |= {"Adapters", "adapt", "DeltaProduct", "DeltaProductCell", "Equilibrium", "FrobeniusNorm"}
    networks = {name for name in sp.nn.__all__ if not name.endswith(("Layer", "ModReLU"))}
    constraints = {name for name in sp.__all__ if isinstance(getattr(sp, name), type)}
    constraints -= {"Map", "Parametrization", "Solver"}
    assert networks | constraints <= kinds | new
