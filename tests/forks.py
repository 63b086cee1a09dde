"""Tests in forked processes whose functions have other code. They are collected once for all trials."""

from __future__ import annotations

import ast
import dataclasses
import gc
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.faults import ROOT

OPTIMIZED = 1  # The flag of the code of a function; that of a module or a class has run once.


def _codes(
    code: types.CodeType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], types.CodeType]]:
    """Yield the code objects of a module with the names around them, the module's first."""
    yield path, code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant, (*path, constant.co_name))


def _signature(code: types.CodeType, deep: bool) -> tuple[Any, ...]:
    """Return what a code does, wherever it stands; deep with that of the functions inside."""
    inside = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    constants = [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_argcount)
    return code.co_code, constants, names, [_signature(c, deep) for c in inside] if deep else len(inside)


def put_in(file: str, changed: str | ast.AST) -> bool:
    """Give the functions of this process the code of a changed file.

    Args:
        file: The file as it was imported.
        changed: Its text or its tree with the change.

    Returns:
        Whether that makes the change: not where code has run already, as that of a module or a class has.
    """
    path = str(ROOT / file)
    olds = list(_codes(compile((ROOT / file).read_text(encoding="utf-8"), path, "exec")))
    news = list(_codes(compile(changed, path, "exec")))
    if [names for names, _ in olds] != [names for names, _ in news]:
        return False
    wanted, outermost = {}, set()
    functions = {names for names, code in olds if code.co_flags & OPTIMIZED}
    for (names, old), (_, new) in zip(olds, news, strict=True):
        is_function = bool(old.co_flags & OPTIMIZED)
        if _signature(old, is_function) == _signature(new, is_function):
            continue
        if not is_function:
            return False
        wanted[old.co_name, old.co_firstlineno] = new
        if names[:-1] not in functions:
            outermost.add((old.co_name, old.co_firstlineno))
    gc.unfreeze()  # conftest.py has frozen what was imported, which would not be listed.
    for each in gc.get_objects():
        if type(each) is types.FunctionType and each.__code__.co_filename == path:
            key = (each.__code__.co_name, each.__code__.co_firstlineno)
            if key in wanted:
                if len(each.__code__.co_freevars) != len(wanted[key].co_freevars):
                    return False
                each.__code__ = wanted[key]
                outermost.discard(key)
    return bool(wanted) and not outermost


@dataclasses.dataclass
class Forks:
    """Runs jobs in forked processes, in place of pytest's own loop over what it collected.

    Attributes:
        jobs: Processes at a time.
    """

    jobs: int

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Keep the tests that run in one process, and run the jobs."""
        self.items = {i.nodeid: i for i in session.items if not i.get_closest_marker("fresh")}
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            self.work()
        return True

    def work(self) -> None:
        """Run the jobs.

        Raises:
            NotImplementedError: A subclass says which.
        """
        raise NotImplementedError

    def in_processes(
        self, jobs: list[Callable[[], Any]], end: float = float("inf")
    ) -> Iterator[tuple[int, Any]]:
        """Yield the numbers and results of jobs. None is begun after the end.

        Args:
            jobs: What to call; its result is written as JSON.
            end: A time of ``time.monotonic``.

        Yields:
            The number of a job and its result; of a process that was ended, the test and the signal.

        Raises:
            SystemExit: If a job raises.
        """
        running: dict[int, int] = {}
        waiting = list(enumerate(jobs))[::-1]
        while running or (waiting and time.monotonic() < end):
            while waiting and len(running) < self.jobs and time.monotonic() < end:
                number, job = waiting.pop()
                running[self._fork(job)] = number
            pid, status = os.wait()
            number, own = running.pop(pid), self.folder / str(pid)
            if os.WIFSIGNALED(status):  # What was changed ended the process, or did not end itself.
                test = own.with_suffix(".current").read_text()
                yield number, f"{test}, by {signal.Signals(os.WTERMSIG(status)).name}"
            elif status:
                raise SystemExit(f"a process failed:\n{own.with_suffix('.log').read_text()}")
            else:
                yield number, json.loads(own.with_suffix(".json").read_text())

    def _fork(self, job: Callable[[], Any]) -> int:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        own = self.folder / str(os.getpid())
        log = os.open(own.with_suffix(".log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            own.with_suffix(".json").write_text(json.dumps(job()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def run(self, names: list[str]) -> Iterator[tuple[str, bool]]:
        """Run tests; yield whether each passes.

        Args:
            names: Of the tests.
        """
        current = self.folder / f"{os.getpid()}.current"
        for name, following in itertools.zip_longest(names, names[1:]):
            current.write_text(name)
            reports = runtestprotocol(self.items[name], nextitem=self.items.get(following), log=False)
            yield name, not any(report.failed for report in reports)


def collect(forks: Forks, *files: str) -> None:
    """Collect tests, and run the jobs.

    Args:
        forks: The jobs.
        *files: Files or folders of tests, or options of pytest.

    Raises:
        SystemExit: If the tests cannot be collected.
    """
    options = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
    done = pytest.main([*options, *files], plugins=[forks])
    if done not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit("the tests cannot be collected")
