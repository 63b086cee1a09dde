"""Seeded faults can be put into today's code, and a run with one that cannot fails."""

import dataclasses
import re

import pytest

from tests import mutations


@pytest.mark.parametrize("fault", mutations.FAULTS, ids=lambda fault: fault.name.split(":")[0])
def test_code_of_a_fault_occurs_once_and_its_tests_exist(fault) -> None:
    assert mutations.put_in(fault) != (mutations.ROOT / fault.file).read_text(encoding="utf-8")
    paths = [argument for argument in fault.tests if argument.startswith("tests/")]
    assert paths
    assert all((mutations.ROOT / path).exists() for path in paths)


def test_each_fault_has_a_word_of_its_own() -> None:
    words = [fault.name.partition(": ") for fault in mutations.FAULTS]
    assert all(word and sentence for word, _, sentence in words)
    assert len({word for word, _, _ in words}) == len(words)


def test_promises_are_to_find_nine_of_ten_faults() -> None:
    assert len(mutations.FAULTS) >= 72
    count = sum(map(mutations.by_promises, mutations.FAULTS))
    assert count >= mutations.SHARE * len(mutations.FAULTS)


def test_fault_that_does_not_fit_fails_the_run_before_any_test(monkeypatch) -> None:
    first, *others = mutations.FAULTS
    gone = dataclasses.replace(first, code="no code like this")
    monkeypatch.setattr(mutations, "FAULTS", (gone, *others))
    monkeypatch.setattr(mutations, "check", lambda fault: pytest.fail("a test ran"))
    with pytest.raises(SystemExit, match=rf"{re.escape(first.name)}: expected .* once .* got 0") as failed:
        mutations.main([others[0].name])
    assert failed.value.code != 0


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_fault_that_no_test_finds_fails_the_run(jobs, monkeypatch, capsys) -> None:
    count = len(mutations.FAULTS)
    monkeypatch.setattr(mutations, "check", lambda fault: fault is not mutations.FAULTS[-1])
    assert mutations.main(["--jobs", jobs]) == 1
    assert f"{count - 1} of {count} faults found" in capsys.readouterr().out


def test_run_fails_where_too_few_are_found_by_promises(monkeypatch, capsys) -> None:
    promised, *_ = (fault for fault in mutations.FAULTS if mutations.by_promises(fault))
    private = dataclasses.replace(promised, tests=("tests/internal",))
    monkeypatch.setattr(mutations, "check", lambda fault: True)
    monkeypatch.setattr(mutations, "FAULTS", (promised, private))
    assert mutations.main([]) == 1
    assert "2 of 2 faults found, 1 of them by tests/promises alone" in capsys.readouterr().out
    monkeypatch.setattr(mutations, "FAULTS", (promised,) * 9 + (private,))
    assert mutations.main([]) == 0
    monkeypatch.setattr(mutations, "FAULTS", (private,))
    assert mutations.main([private.name]) == 0  # A few that were asked for have no share to keep.
