"""Every parametrization keeps every contract, real and complex, single and batched."""

from collections.abc import Iterator

import pytest

from spectral_param.testing import Trial, conformance
from tests.promises.cases import CASES, FROM_THE_START
from tests.properties import FACTOR

# What takes long for what it finds: a graph that has all the steps that a device takes, or whose like is
# tested, and searches for originals of matrices of which other modes have had the like.
_MODES = ("present", "growth", "contraction", "abscissa", "abscissa-present", "abscissa-growth")
LONG = (
    "DoublyStochastic-export",
    "SchurForm-bounded-compile",
    "BoundedGain-radius-set",
    *(
        f"LyapunovForm-{mode}-{check}"
        for mode in (*_MODES, "diagonal", *(f"diagonal-{m}" for m in _MODES))
        for check in ("set", "any_size")
    ),
    "BoundedGain-radius-any_size",
)


def trials() -> list[object]:
    found = [t for case in (*CASES, *FROM_THE_START) for t in conformance(case, thorough=FACTOR > 1)]
    return [
        pytest.param(t, id=str(t), marks=() if often else pytest.mark.nightly) for t, often in daily(found)
    ]


def daily(found: list[Trial]) -> Iterator[tuple[Trial, bool]]:
    """Of a variant each check once in a default run: shapes and dtypes are those of its constraint.

    Derivatives, which are compared with differences, once of real and of complex numbers, and of a rectangle.
    """
    seen = set()
    for trial in found:
        check, case = str(trial.check), trial.case
        kind = (case.name, check)
        if check == "gradients" and not case.variant:
            kind += (trial.dtype.is_complex, trial.shape in case.rectangles)
        is_costly = case.variant or check == "gradients"
        yield trial, not str(trial).startswith(LONG) and not (is_costly and kind in seen)
        seen.add(kind)


def test_each_constraint_has_each_check_in_a_default_run() -> None:
    """But for one exported graph, see LONG."""
    every, often = set(), set()
    for parameter in trials():
        (trial,) = parameter.values
        kind = (trial.case.name.partition("-")[0], str(trial.check))
        every.add(kind)
        if not parameter.marks:
            often.add(kind)
    assert every - often <= {("DoublyStochastic", "export")}


# torch 2.6 warns about the names that it gives constants of an exported graph.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore:Node .* does not reference")
@pytest.mark.parametrize("trial", trials())
def test_constraint_keeps_its_contract(trial) -> None:
    trial()
