"""Promises are tested through public names; what tests a private module is used by nothing else."""

import ast
import functools
import re
from pathlib import Path

import pytest

import spectral_param as sp

TESTS = Path(__file__).parents[1]
PRIVATE = re.compile(
    r"spectral_param(\.\w+)*\._[a-z]|from (spectral_param|sp)[\w.]* import _[a-z]|\bsp\.(\w+\.)*_[a-z]"
)


def private_names(text: str) -> list[str]:
    """Return the lines that name a private module, in an import, an attribute or a string."""
    return [line.strip() for line in text.splitlines() if PRIVATE.search(line)]


@functools.cache
def imported(text: str) -> set[str]:
    """Return the modules that a file imports, with the names that it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted((TESTS / "promises").rglob("*.py")), ids=lambda path: path.stem)
def test_promises_name_nothing_private(path) -> None:
    assert private_names(path.read_text(encoding="utf-8")) == []


def test_what_tests_share_with_the_benchmarks_names_nothing_private() -> None:
    """Problems and the stand-in device stay when the library is built anew, and with them the promises."""
    shared = ("benchmarks.problems", "benchmarks.standin")
    for path in sorted((TESTS / "promises").rglob("*.py")):
        taken = {name for name in imported(path.read_text(encoding="utf-8")) if name.startswith("benchmarks")}
        assert all(name.startswith(shared) for name in taken), path
    problems = sorted((TESTS.parent / "benchmarks/problems").glob("*.py"))
    assert len(problems) > 5
    for path in problems:
        text = path.read_text(encoding="utf-8")
        assert private_names(text) == [], path
        assert not any(name.startswith("benchmarks.measures") for name in imported(text)), path


def test_a_folder_of_a_private_module_can_be_deleted() -> None:
    """No other folder imports from it."""
    for path in TESTS.rglob("*.py"):
        for name in imported(path.read_text(encoding="utf-8")):
            if name.startswith("tests.internal."):
                folder = TESTS.parent / Path(*name.split(".")[:-1])
                assert folder in (path.parent, path.with_suffix("")) or folder.parent == path.parent, (
                    path,
                    name,
                )


@pytest.mark.parametrize(
    "line",
    [
        "from spectral_param._eigen import dense",
        "from spectral_param.functional._cayley_diagonal import choose_signs",
        "from spectral_param import _context as context",
        'importlib.import_module("spectral_param.functional._cayley_diagonal")',
        "sp.functional._cayley_diagonal.choose_signs",
    ],
)
def test_private_names_are_found(line) -> None:
    assert private_names(f"import torch\n{line}\n") == [line]


def test_public_names_are_no_private_ones() -> None:
    text = "from spectral_param.functional import cayley\nsp.init.spectral_radius_\n"
    assert private_names(text) == []


TABLE = (TESTS / "promises/README.md").read_text(encoding="utf-8")


def test_the_table_of_promises_names_tests_that_exist() -> None:
    named = re.findall(r"\| `([\w./]+\.py)(?:::(\w+)|\[(\w+)\])?` \|$", TABLE, flags=re.MULTILINE)
    assert len(named) == TABLE.count("\n| ") - TABLE.count("| promise |")
    checks = {str(check) for check in sp.testing.CHECKS}
    for file, function, check in named:
        text = (TESTS / "promises" / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, (file, function)
        assert not check or check in checks, check


@pytest.mark.parametrize("module", [sp, sp.analysis, sp.dynamics, sp.errors, sp.functional, sp.init, sp.nn])
def test_each_public_name_has_a_promise(module) -> None:
    missing = {name for name in module.__all__ if not re.search(rf"`{name}\b", TABLE)}
    assert missing <= {"analysis", "dynamics", "errors", "functional", "init", "nn", "testing"}


def test_each_check_is_in_the_table() -> None:
    for check in sp.testing.CHECKS:
        assert f"[{check}]" in TABLE, check
