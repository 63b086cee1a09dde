"""Seeded faults can be put into today's code, and a run with one that cannot fails."""

import dataclasses
import re

import pytest

from tests import mutations


@pytest.mark.parametrize("fault", mutations.FAULTS, ids=lambda fault: fault.name.split(":")[0])
def test_pattern_of_a_fault_occurs_once_and_its_tests_exist(fault) -> None:
    assert mutations.put_in(fault) != (mutations.ROOT / fault.file).read_text(encoding="utf-8")
    paths = [argument for argument in fault.tests if argument.startswith("tests/")]
    assert paths
    assert all((mutations.ROOT / path).exists() for path in paths)


def test_fault_that_does_not_fit_fails_the_run_before_any_test(monkeypatch) -> None:
    first, *others = mutations.FAULTS
    gone = dataclasses.replace(first, pattern="no code like this")
    monkeypatch.setattr(mutations, "FAULTS", (gone, *others))
    monkeypatch.setattr(mutations, "check", lambda fault: pytest.fail("a test ran"))
    monkeypatch.setattr("sys.argv", ["mutations", others[0].name])
    with pytest.raises(SystemExit, match=rf"{re.escape(first.name)}: expected one match .* got 0") as failed:
        mutations.main()
    assert failed.value.code != 0


def test_fault_that_no_test_finds_fails_the_run(monkeypatch) -> None:
    monkeypatch.setattr(mutations, "check", lambda fault: fault is not mutations.FAULTS[-1])
    monkeypatch.setattr("sys.argv", ["mutations"])
    assert mutations.main() == 1
