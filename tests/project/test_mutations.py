"""Seeded faults fit today's code, a run with one that does not fit fails, and a change is mutated."""

import dataclasses
import gc
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import change, faults, forks, mutations, seeded

FAULTS = faults.all_faults()


@pytest.mark.parametrize("home", sorted({fault.home for fault in FAULTS}))
def test_code_of_a_fault_occurs_once_and_can_be_read_and_its_tests_exist(home) -> None:
    assert (faults.ROOT / home).is_file()
    for fault in FAULTS:
        if fault.home == home:
            text = faults.put_in(fault)
            assert text != (faults.ROOT / fault.file).read_text(encoding="utf-8"), fault.name
            if fault.file.endswith(".py"):
                compile(text, fault.file, "exec")  # Else nothing is imported, and every test finds it.


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
    monkeypatch.setattr(seeded, "found_in_forks", lambda chosen, jobs, end: set())


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
    assert mutations.main(["--seeded", "--jobs", jobs]) == 1
    assert f"{len(FAULTS) - 1} of {len(FAULTS)} faults found" in capsys.readouterr().out


def test_run_fails_where_too_few_are_found_by_promises(monkeypatch, capsys) -> None:
    promised, *_ = (fault for fault in FAULTS if fault.is_of_a_promise)
    private = dataclasses.replace(promised, home="tests/internal/test_private.py")
    listed(monkeypatch, promised, private)
    assert mutations.main(["--seeded"]) == 1
    assert "2 of 2 faults found, 1 of them by tests/promises alone" in capsys.readouterr().out
    listed(monkeypatch, *(dataclasses.replace(promised, name=f"{i}: fault") for i in range(9)), private)
    assert mutations.main(["--seeded"]) == 0
    listed(monkeypatch, private)
    assert mutations.main([private.name]) == 0  # A few that were asked for have no share to keep.


# What a change touches ----------------------------------------------------------------------------

BEFORE = '''
def kept(x):
    """Before."""
    return x + 1

def changed(x):
    def inner(y):
        return y < 3
    return inner(x) * 2
'''
AFTER = BEFORE.replace("Before", "After").replace("return y < 3", "return y < 4  # No comment.")
TESTS = "import spectral_param\n\ndef test_changed():\n    assert spectral_param.changed(3) == 2\n"
HOME = "tests/promises/test_part.py"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a package of two functions and a test, and with a change that is not committed."""
    for name, text in {
        "spectral_param/__init__.py": BEFORE,
        "tests/__init__.py": "",
        "tests/promises/__init__.py": "",
        "tests/internal/__init__.py": "",
        HOME: TESTS,
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name in ("faults", "change", "forks", "mutants", "mutations", "seeded"):
        shutil.copy(faults.ROOT / f"tests/{name}.py", tmp_path / "tests")
    monkeypatch.setattr(change, "ROOT", tmp_path)
    change.git("init", "-q", "-b", "main")
    change.git("add", ".")
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    change.git(*author, "commit", "-q", "-m", "Before")
    (tmp_path / "spectral_param/__init__.py").write_text(AFTER, encoding="utf-8")
    return tmp_path


def test_a_function_is_touched_if_its_code_is_new(repository) -> None:
    assert [function.name for function in change.since("main").touched] == ["inner"]
    (repository / "spectral_param/new.py").write_text(BEFORE, encoding="utf-8")  # Not known to git yet.
    assert change.since("main").files == {"spectral_param/__init__.py", "spectral_param/new.py"}
    (repository / "spectral_param/__init__.py").write_text("", encoding="utf-8")  # It has moved.
    assert change.since("main").touched == ()


def test_a_change_concerns_the_faults_of_its_functions_and_tests(repository) -> None:
    kept, inner = (
        faults.Fault("a: fault", "spectral_param/__init__.py", code, "", home=HOME)
        for code in ("x + 1", "y < 4")
    )
    assert [change.since("main").concerns(fault) for fault in (kept, inner)] == [False, True]
    (repository / "tests/promises/faults_part.py").write_text("FAULTS = ()\n", encoding="utf-8")
    assert change.since("main").concerns(kept)
    (repository / "tests/promises/faults_part.py").unlink()
    (repository / HOME).write_text("", encoding="utf-8")
    assert change.since("main").concerns(kept)


@pytest.mark.nightly
def test_mutants_of_a_change_are_found_or_shown(repository) -> None:
    """A test of changed(3) sees that 3 < 4. It does not see that 3 < 5."""
    command = [sys.executable, "-m", "tests.mutations", "--minutes", "1"]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 functions are touched, and have 3 mutants" in done.stdout
    assert "1 of 3 mutants found, 0 reached by no test that ran" in done.stdout
    shown = re.findall(
        r"^not found by 1 tests: spectral_param/__init__.py:8, in inner: (.*)$", done.stdout, re.M
    )
    assert sorted(shown) == ["4  ->  5", "y < 4  ->  y <= 4"]


def test_without_a_touched_function_no_test_runs(repository) -> None:
    (repository / "spectral_param/__init__.py").write_text(BEFORE, encoding="utf-8")
    assert change.since("main") == change.Change(frozenset(), ())


# Trials in forks ----------------------------------------------------------------------------------


def test_code_that_has_run_already_is_left_to_a_copy(repository, monkeypatch) -> None:
    monkeypatch.setattr(forks, "ROOT", repository)
    file = repository / "spectral_param/__init__.py"
    file.write_text(text := BEFORE + "\nLIMIT = 3\n\nclass A:\n    factor = 2\n", encoding="utf-8")
    module = {"__name__": "module"}
    exec(compile(text, str(file), "exec"), module)
    for before, after in (("LIMIT = 3", "LIMIT = 4"), ("factor = 2", "factor = 4")):
        assert not forks.put_in("spectral_param/__init__.py", text.replace(before, after))
    assert forks.put_in("spectral_param/__init__.py", text.replace("y < 3", "y < 9"))
    assert module["changed"](5) == 2
    assert module["kept"](1) == 2
    del module["changed"]  # No function of the process has this code.
    gc.collect()
    assert not forks.put_in("spectral_param/__init__.py", text.replace("* 2", "* 3"))


@pytest.mark.parametrize(
    ("code", "found"), [("y < 4", True), pytest.param("x + 1", False, marks=pytest.mark.nightly)]
)
def test_seeded_faults_are_found_in_forks_or_else_in_copies(repository, code, found) -> None:
    """No test reads kept(x)."""
    (repository / "tests/promises/faults_part.py").write_text(
        "from tests.faults import Fault\n\n"
        f"FAULTS = (Fault('a: fault', 'spectral_param/__init__.py', {code!r}, '0', 'changed'),)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "tests.mutations", "a"]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == (0 if found else 1), done.stdout + done.stderr
    said = "found by tests/promises/test_part.py::test_changed" if found else "NOT FOUND"
    assert f"a: fault\n    {said}" in done.stdout
