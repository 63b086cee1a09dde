"""Choices are kept: no forecast gets worse than what ``benchmarks/results/choice.json`` has."""

import pytest

from benchmarks.problems.choice import KEYS, choice_of, recorded
from benchmarks.problems.forecasts import problems

RECORDED = recorded()
PROBLEMS = {name: make for name, make in problems().items() if name in RECORDED}


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_choice_is_as_good_as_the_recorded_one(name):
    model, error = choice_of(PROBLEMS[name]())
    kept = RECORDED[name]
    found = {key: model.choice_.params[key] for key in KEYS}
    assert error <= 1.05 * kept["error"], f"{name}: {kept['error']:.4g} -> {error:.4g}, {found}"
