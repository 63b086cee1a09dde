"""Every parametrization keeps every contract, real and complex, single and batched."""

from collections import Counter
from collections.abc import Iterator

import pytest

from spectral_param.testing import Trial, conformance
from tests.promises.cases import CASES, FROM_THE_START
from tests.properties import FACTOR

# What takes long for what it finds: searches for originals of matrices like those of other modes.
_MODES = ("present", "growth", "contraction", "abscissa", "abscissa-present", "abscissa-growth")
LONG = (
    "BoundedGain-radius-set",
    *(
        f"LyapunovForm-{mode}-{check}"
        for mode in (*_MODES, "diagonal", *(f"diagonal-{m}" for m in _MODES))
        for check in ("set", "any_size")
    ),
    "BoundedGain-radius-any_size",
)


# Tracing a graph takes a second, so a default run traces each constraint once: these for torch.compile, the
# others for export. The radius has both.
COMPILED = (
    "DoublyStochastic",
    "LyapunovForm",
    "ScaledCayley",
    "SignPattern",
    "SpectralAbscissa",
    "SpectralNorm",
    "SpectralRadiusNorm",
    "Stochastic",
)
# What a mode seldom has a part in, as reads, memory, storage and NaN: of variants every third one.
SELDOM = (
    "averaging",
    "gradient_of_the_read",
    "half_and_back",
    "nan",
    "nan_in_a_batch",
    "repeated_reads",
    "state_dict",
    "write_during_a_read",
)


def trials() -> list[object]:
    found = [t for case in (*CASES, *FROM_THE_START) for t in conformance(case, thorough=FACTOR > 1)]
    return [
        pytest.param(t, id=str(t), marks=() if often else pytest.mark.nightly) for t, often in daily(found)
    ]


def kind_of(trial: Trial) -> tuple[object, ...]:
    """Of trials of one kind a default run has the first.

    Of a variant each check once: shapes and dtypes are those of its constraint. Else a check that depends on
    anything has a square and a rectangle; batches, gates, and real and complex numbers, where it depends on
    them. For all shapes originals are found.
    """
    case, check = trial.case, trial.check
    if case.variant:
        return case.name, str(check)
    shape = trial.shape if str(check) == "right_inverse" else len(trial.shape) if "shape" in check.axes else 0
    if "few" in check.axes:
        shape = trial.shape in case.rectangles
    elif check.axes and trial.shape in case.rectangles:
        return case.name, str(check), shape, "rectangle"
    has_gates = "gates" in check.axes and trial.shape[-2] != trial.shape[-1]
    return case.name, str(check), shape, has_gates, "dtype" in check.axes and trial.dtype.is_complex


def daily(found: list[Trial]) -> Iterator[tuple[Trial, bool]]:
    """Each trial, and whether it is one of a default run. A nightly run has all."""
    seen, turns = set(), Counter()
    for trial in found:
        check, case, kind = str(trial.check), trial.case, kind_of(trial)
        is_new, is_often = kind not in seen, not str(trial).startswith(LONG)
        seen.add(kind)
        if check in ("compile", "export"):
            name = case.name.partition("-")[0]
            is_often &= name == "SpectralRadiusNorm" or (name in COMPILED) == (check == "compile")
        elif case.variant and check in SELDOM and is_new:
            turns[check] += 1
            is_often &= turns[check] % 3 == 1
        yield trial, is_new and is_often


def test_each_constraint_has_each_check_in_a_default_run() -> None:
    """Of the two that trace a graph, one. Each check has each dtype and batches, if it depends on them."""
    every, often = set(), set()
    for parameter in trials():
        (trial,) = parameter.values
        check, axes = str(trial.check), trial.check.axes
        kinds = {(trial.case.name.partition("-")[0], "graph" if check in ("compile", "export") else check)}
        kinds |= {trial.shape, (check, trial.dtype if "dtype" in axes else None)}
        kinds |= {(check, len(trial.shape) if "shape" in axes else None)}
        every |= kinds
        often |= set() if parameter.marks else kinds
    assert every == often


# torch 2.6 warns about the names that it gives constants of an exported graph.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore:Node .* does not reference")
@pytest.mark.parametrize("trial", trials())
def test_constraint_keeps_its_contract(trial) -> None:
    trial()
