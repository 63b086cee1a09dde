"""Seeded faults can be put into today's code, and a run with one that cannot fails."""

import dataclasses
import re

import pytest

from tests import faults, mutations

FAULTS = faults.all_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.word)
def test_code_of_a_fault_occurs_once_and_its_tests_exist(fault) -> None:
    assert faults.put_in(fault) != (faults.ROOT / fault.file).read_text(encoding="utf-8")
    assert (faults.ROOT / fault.home).is_file()


def test_each_fault_has_a_word_of_its_own() -> None:
    words = [fault.name.partition(": ") for fault in FAULTS]
    assert all(word and sentence for word, _, sentence in words)
    assert len({word for word, _, _ in words}) == len(words)


def test_promises_are_to_find_nine_of_ten_faults() -> None:
    assert len(FAULTS) >= 300
    assert sum(fault.is_of_a_promise for fault in FAULTS) >= mutations.SHARE * len(FAULTS)


def listed(monkeypatch, *known, found=lambda fault: True) -> None:
    """Let these be all faults, and let some be found."""
    monkeypatch.setattr(faults, "all_faults", lambda: known)
    monkeypatch.setattr(faults, "check", found)


def test_fault_that_does_not_fit_fails_the_run_before_any_test(monkeypatch) -> None:
    first, second, *_ = FAULTS
    gone = dataclasses.replace(first, code="no code like this")
    listed(monkeypatch, gone, second, found=lambda fault: pytest.fail("a test ran"))
    with pytest.raises(SystemExit, match=rf"{re.escape(first.name)}: expected .* once .* got 0") as failed:
        mutations.main([second.name])
    assert failed.value.code != 0


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_fault_that_no_test_finds_fails_the_run(jobs, monkeypatch, capsys) -> None:
    listed(monkeypatch, *FAULTS, found=lambda fault: fault is not FAULTS[-1])
    assert mutations.main(["--jobs", jobs]) == 1
    assert f"{len(FAULTS) - 1} of {len(FAULTS)} faults found" in capsys.readouterr().out


def test_run_fails_where_too_few_are_found_by_promises(monkeypatch, capsys) -> None:
    promised, *_ = (fault for fault in FAULTS if fault.is_of_a_promise)
    private = dataclasses.replace(promised, home="tests/internal/test_private.py")
    listed(monkeypatch, promised, private)
    assert mutations.main([]) == 1
    assert "2 of 2 faults found, 1 of them by tests/promises alone" in capsys.readouterr().out
    listed(monkeypatch, *(promised,) * 9, private)
    assert mutations.main([]) == 0
    listed(monkeypatch, private)
    assert mutations.main([private.name]) == 0  # A few that were asked for have no share to keep.
