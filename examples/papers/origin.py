"""Where a number comes from: commit, day, machine and versions; and whether the code has changed since."""

from __future__ import annotations

import ast
import datetime
import functools
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import spectral_param as sp

ROOT = Path(__file__).parents[2]
#: In place of a commit that is lost.
UNKNOWN = "unknown"
# What is written from numbers, or is the numbers: no number depends on it.
WRITTEN = ("benchmarks/results", "docs", "examples/papers/results", "examples/papers/replays.json", "*.md")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@functools.cache  # Of the code that a process started with.
def commit() -> str:
    """Return the commit, with "-dirty" if code that git knows has changed since; or "unknown"."""
    found = _git("rev-parse", "HEAD").stdout.strip()
    code = (":/", *(f":(top,exclude){path}" for path in WRITTEN))
    changed = found and _git("status", "--porcelain", "--untracked-files=no", "--", *code).stdout
    return f"{found}-dirty" if changed else found or UNKNOWN


def require_commit(output: Path, committed: Path, option: str) -> None:
    """Refuse to write numbers among the committed ones if no commit has the code that they would come from.

    Args:
        output: Folder of the numbers.
        committed: Folder of the committed ones.
        option: What chooses another folder.

    Raises:
        ValueError: If the code has changed since its commit, or has none.
    """
    found = commit()
    if output.resolve().is_relative_to(committed.resolve()) and not is_clean(found):
        raise ValueError(
            f"{output}: expected numbers of committed code, got commit {found}. "
            f"Commit the changes first, or write elsewhere with {option}"
        )


def is_clean(recorded: str) -> bool:
    """Return whether a commit has the code that a number came from.

    Args:
        recorded: The commit as it is recorded.
    """
    return recorded != UNKNOWN and not recorded.endswith("-dirty")


def environment(**facts: Any) -> dict[str, Any]:
    """Return what the numbers depend on.

    Args:
        **facts: More of it.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "processor": processor(),
        "cores": os.cpu_count(),
        **facts,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **{name: importlib.metadata.version(name) for name in ("numpy", "scipy")},
        "spectral_param": sp.__version__,
    }


@functools.cache
def processor() -> str:
    """Return the name of the processor."""
    try:
        names = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = None
    return names[1] if names else platform.processor() or platform.machine()


def fact(name: str, value: object) -> str:
    """Return one of them as text.

    Args:
        name: Its name.
        value: Its value.
    """
    if name != "commit":
        return str(value)
    return f"{str(value)[:12]}{'-dirty' if str(value).endswith('-dirty') else ''}"


# The history ----------------------------------------------------------------------------------------


@functools.cache
def has_history() -> bool:
    """Return whether all commits are here: this is no copy of files, and no shallow clone."""
    return _git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


@functools.cache
def is_ancestor(recorded: str) -> bool:
    """Return whether a commit is one of those that led to the present one.

    Args:
        recorded: The commit, which may end in "-dirty".
    """
    return not _git("merge-base", "--is-ancestor", recorded.removesuffix("-dirty"), "HEAD").returncode


def is_stale(recorded: str, paths: Iterable[str]) -> bool:
    """Return whether a number is stale: its origin is lost, or what it depends on has changed.

    Comments and docstrings are no change.

    Args:
        recorded: The commit that measured it.
        paths: What it depends on, as git's pathspecs.

    Returns:
        The answer; False without the history, which alone can tell.
    """
    return has_history() and (not is_clean(recorded) or _has_changed(recorded, tuple(paths)))


@functools.cache
def _has_changed(recorded: str, paths: tuple[str, ...]) -> bool:
    changed = _git("diff", "--name-only", "--no-renames", recorded, "HEAD", "--", *paths)
    return bool(changed.returncode) or any(_has_other_code(recorded, p) for p in changed.stdout.splitlines())


@functools.cache
def _has_other_code(recorded: str, path: str) -> bool:
    sources = [_git("show", f"{revision}:{path}") for revision in (recorded, "HEAD")]
    if not path.endswith(".py") or any(source.returncode for source in sources):
        return True
    before, now = (_code(source.stdout) for source in sources)
    return before != now


def _code(source: str) -> str:
    """Return what a Python file does, without its comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if documented and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree)
