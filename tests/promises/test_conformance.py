"""Every parametrization keeps every contract, real and complex, single and batched."""

from collections.abc import Iterator

import pytest

from spectral_param.testing import Trial, conformance
from tests.promises.cases import CASES, FROM_THE_START
from tests.properties import FACTOR

# What takes long for what it finds: a graph that has all the steps that a device takes, or whose like is
# tested, and searches for originals of matrices of which other modes have had the like.
_MODES = ("present", "growth", "contraction", "abscissa-present", "abscissa-growth")
LONG = (
    "DoublyStochastic-export",
    "SchurForm-bounded-compile",
    "BoundedGain-radius-set",
    *(f"LyapunovForm-{mode}-set" for mode in (*_MODES, *(f"diagonal-{m}" for m in (*_MODES, "abscissa")))),
)


def trials() -> list[object]:
    found = [t for case in (*CASES, *FROM_THE_START) for t in conformance(case, thorough=FACTOR > 1)]
    return [
        pytest.param(t, id=str(t), marks=() if often else pytest.mark.nightly) for t, often in daily(found)
    ]


def daily(found: list[Trial]) -> Iterator[tuple[Trial, bool]]:
    """Of a variant each check once in a default run: shapes and dtypes are those of its constraint."""
    seen = set()
    for trial in found:
        kind = (trial.case.name, str(trial.check))
        yield trial, not str(trial).startswith(LONG) and not (trial.case.variant and kind in seen)
        seen.add(kind)


# torch 2.6 warns about the names that it gives constants of an exported graph.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore:Node .* does not reference")
@pytest.mark.parametrize("trial", trials())
def test_constraint_keeps_its_contract(trial) -> None:
    trial()
