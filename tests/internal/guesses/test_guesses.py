"""The table of guesses: no name exists, and what each advice names does."""

import importlib
import re

import pytest
import torch

import spectral_param
from spectral_param._guesses import GUESSES
from spectral_param.dynamics import StableLinearModel
from tests.promises.dynamics.systems import oscillators

NAMES = [(module, name) for guess in GUESSES for module in guess.modules for name in guess.names.split()]


@pytest.mark.parametrize("guess", GUESSES, ids=lambda guess: guess.names.split()[0])
def test_what_an_advice_names_exists(guess) -> None:
    used = re.findall("`(.+?)`", guess.advice)
    assert used, "Name what to use, between backticks."
    assert any(expression.startswith("spectral_param.") for expression in used) or "torch" in guess.of
    for expression in used:
        made = eval(expression, {"spectral_param": spectral_param, "torch": torch})
        if isinstance(made, StableLinearModel):  # Its arguments are checked by the fit.
            made.fit(oscillators(40, 0.01, 0, modes=1)[1])
    assert guess.advice.endswith((".", "'))."))
    assert guess.advice.count("`") == 2 * len(used)


def test_no_guess_is_a_name_or_stands_twice() -> None:
    assert len(NAMES) == len(set(NAMES))
    for module, name in NAMES:
        full = f"spectral_param.{module}".rstrip(".")
        assert name not in vars(importlib.import_module(full)), (full, name)


@pytest.mark.parametrize("module", sorted({module for module, _ in NAMES}))
def test_each_module_answers_its_guesses(module) -> None:
    found = importlib.import_module(f"spectral_param.{module}".rstrip("."))
    for guess in GUESSES:
        if module in guess.modules:
            for name in guess.names.split():
                with pytest.raises(AttributeError) as caught:
                    getattr(found, name)
                assert str(caught.value).endswith(guess.advice)
