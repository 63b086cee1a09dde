"""Names of other packages: an error that says what to use, which exists."""

import re

import pytest
import torch

import spectral_param
import spectral_param as sp

GUESSED = {
    sp: ["MaxNorm", "Orthogonal", "OFT", "RowNorm", "Stiefel", "LowRank", "NonNeg", "LoraConfig", "DMD"],
    sp.nn: ["ContractingLSTM", "LRU", "GroupSort2", "OFT", "LSTM", "OrthogonalLinear", "spectral_norm"],
    sp.dynamics: ["HankelDMD", "VAR", "N4SID"],
    sp.analysis: ["lipschitz_constant", "spectral_radius"],
    sp.functional: ["sinkhorn", "expm"],
    sp.init: ["orthogonal_"],
}


@pytest.mark.parametrize("module", GUESSED, ids=lambda module: module.__name__)
def test_a_guess_is_answered_with_what_to_use(module) -> None:
    for name in GUESSED[module]:
        with pytest.raises(AttributeError, match=f"{module.__name__}' has no attribute '{name}'") as caught:
            getattr(module, name)
        assert caught.value.name == name
        assert not hasattr(module, name)
        used = re.findall("`(.+?)`", str(caught.value))
        assert used
        for expression in used:
            eval(expression, {"spectral_param": spectral_param, "torch": torch})


@pytest.mark.parametrize("module", GUESSED, ids=lambda module: module.__name__)
def test_other_names_are_missing_as_in_any_module(module) -> None:
    with pytest.raises(AttributeError, match=f"^module '{module.__name__}' has no attribute 'nonsense'$"):
        module.nonsense  # noqa: B018
    assert not hasattr(module, "__wrapped__")
    assert getattr(module, "nonsense", 3) == 3


def test_python_looks_for_a_name_that_is_spelled_alike() -> None:
    with pytest.raises(AttributeError) as caught:
        sp.ScaledCaley  # noqa: B018
    assert caught.value.name == "ScaledCaley"
    assert caught.value.obj is sp  # Where it looks.
    with pytest.raises(AttributeError) as caught:
        sp.Stiefel  # noqa: B018
    assert caught.value.obj is None
