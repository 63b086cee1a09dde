"""What a change touches: functions of the package whose code is new, and the seeded faults of their code."""

from __future__ import annotations

import ast
import copy
import dataclasses
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import ROOT, Fault


class Function(NamedTuple):
    """A function, as its code object has it: decorators are lines of it."""

    file: str
    name: str
    line: int
    last: int


def first_line(node: ast.FunctionDef) -> int:
    """Return the line where the code object of a function begins: that of its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def functions(file: str, text: str) -> Iterator[tuple[Function, str]]:
    """Yield the functions of a file, each with its code: without comments, docstring and functions inside."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            line = first_line(node)
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            bare = copy.copy(node)
            bare.body = [_WithoutFunctions().visit(copy.deepcopy(statement)) for statement in body]
            yield Function(file, node.name, line, node.end_lineno or line), ast.dump(bare)


class _WithoutFunctions(ast.NodeTransformer):
    """Leaves the name of a function inside another one alone."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return ast.Name(node.name)


@dataclasses.dataclass(frozen=True)
class Change:
    """What differs between the tree and an earlier commit.

    Attributes:
        files: The files of the package and of the tests that are new or changed.
        touched: Functions of the package whose code is none that the changed files had before.
    """

    files: frozenset[str]
    touched: tuple[Function, ...]

    def concerns(self, fault: Fault) -> bool:
        """Return whether a seeded fault lies in a touched function, or its tests or its list have changed."""
        beside = fault.home.replace("/test_", "/faults_")
        if not self.files.isdisjoint((fault.home, beside)):
            return True
        if fault.file not in self.files or not fault.file.endswith(".py"):
            return fault.file in self.files
        text = (ROOT / fault.file).read_text(encoding="utf-8")
        line = text[: text.index(fault.code)].count("\n") + 1
        lines = range(line, line + fault.code.count("\n") + 1)
        around = {f for f, _ in functions(fault.file, text) if f.line <= lines[-1] and lines[0] <= f.last}
        return not around or not around.isdisjoint(self.touched)


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True)


def since(base: str) -> Change:
    """Return how the tree, with what is not committed, differs from where it left a branch.

    Args:
        base: The branch, or a commit.
    """
    left = git("merge-base", base, "HEAD").strip()
    where = ("--", "spectral_param", "tests")
    # Without renames: a file that moved has its functions before and after.
    before = git("diff", "--name-only", "--no-renames", "-z", "--diff-filter=DM", left, *where).split("\0")
    after = git("diff", "--name-only", "--no-renames", "-z", "--diff-filter=AM", left, *where).split("\0")
    after += git("ls-files", "-z", "--others", "--exclude-standard", *where).split("\0")
    known = {code for file in filter(_is_of_the_package, before) for code in _codes(file, left)}
    touched = [
        function
        for file in sorted(filter(_is_of_the_package, after))
        for function, code in functions(file, (ROOT / file).read_text(encoding="utf-8"))
        if code not in known
    ]
    return Change(frozenset(filter(None, after)), tuple(touched))


def _is_of_the_package(file: str) -> bool:
    return file.startswith("spectral_param/") and file.endswith(".py")


def _codes(file: str, commit: str) -> set[str]:
    return {code for _, code in functions(file, git("show", f"{commit}:{file}"))}


def nearness(home: str, change: Change, known: Iterable[Fault]) -> int:
    """Return how likely the tests of a file reach what is touched: 0 most, 2 least.

    A file is near that has changed, is named as a touched one, or finds a seeded fault there. It is less near
    if it finds one in the same folder.
    """
    files = {function.file for function in change.touched}
    names = {Path(file).stem.lstrip("_") for file in files}
    at = {fault.file for fault in known if fault.home == home}
    if home in change.files or Path(home).stem.removeprefix("test_") in names or at & files:
        return 0
    folders = {Path(file).parent for file in files}
    return 1 if any(Path(file).parent in folders for file in at) else 2
