"""Which cases of a test a default run has."""

import itertools

import pytest

from tests.conftest import covering


@pytest.mark.parametrize("sizes", [(3, 5), (2, 2, 2), (1, 4), (2, 3, 4)])
def test_each_value_of_a_product_occurs_in_few_cases(sizes) -> None:
    cases = [set(enumerate(values)) for values in itertools.product(*map(range, sizes))]
    chosen = covering(cases)
    assert set().union(*(cases[i] for i in chosen)) == set().union(*cases)
    assert len(chosen) == max(sizes)
    assert covering(cases) == chosen


def test_what_is_left_of_a_product_is_covered() -> None:
    """Where some cases are nightly already, a value may have no case with another value of its own."""
    assert covering([{"a", "x"}, {"b", "x"}, {"b", "y"}]) == {0, 2}
    assert covering([{"a"}]) == {0}
