"""Random faults, and which of them the tests find: ``python -m tests.random_mutations OUTPUT [OPTION ...]``.

Operators, comparisons and constants inside the package's functions are changed, one at a time, drawn with a
fixed seed. The tests are collected once. Each fault is then put into the functions of a forked process, which
runs the tests that reach the function, short ones of different kinds first, until one fails. What OUTPUT
holds already is not run again, so that an interrupted run goes on where it was.

Tests that start processes of their own are left out: they would not see the fault.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spectral_param"
# Starts processes, trains for long, or is about the repository alone.
LEFT_OUT = (
    "tests/examples",
    "tests/project",
    "test_distributed",
    "inductor",
    "test_benchmarks",
    "programs_run",
)

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
Place = tuple[str, int, int, int]  # File, line, column, number among the changes there.


def changes(node: ast.AST) -> list[ast.AST]:
    """Return what could stand in place of a node."""
    found: list[ast.AST] = []
    if isinstance(node, ast.BinOp | ast.BoolOp):
        for other in SWAPS.get(type(node.op), ()):
            found.append(changed := copy.copy(node))
            changed.op = other()
    elif isinstance(node, ast.Compare):
        for other in SWAPS.get(type(node.ops[0]), ()):
            found.append(changed := copy.copy(node))
            changed.ops = [other(), *node.ops[1:]]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        found.append(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        new = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2
        found.append(ast.Constant(new))
    return found


def _key(function: ast.FunctionDef) -> tuple[str, int]:
    """Return the name and first line of a function, as its code object has them."""
    return function.name, min([function.lineno, *(d.lineno for d in function.decorator_list)])


class _Mutator(ast.NodeTransformer):
    """Lists all places inside functions, or makes the change at one of them."""

    def __init__(self, file: str, wanted: Place | None = None) -> None:
        self.file, self.wanted = file, wanted
        self.functions: list[tuple[str, int]] = []
        self.places: dict[Place, tuple[list[tuple[str, int]], str]] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.functions.append(_key(node))
        # The body alone: annotations and defaults are evaluated where the function is made.
        node.body = [self.visit(statement) for statement in node.body]
        self.functions.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.body = self.visit(node.body)
        return node

    def _left_alone(self, node: ast.AST) -> ast.AST:
        return node

    # Messages, and what only the type checker reads.
    visit_Raise = visit_Assert = visit_AnnAssign = visit_JoinedStr = _left_alone  # noqa: N815

    def visit(self, node: ast.AST) -> ast.AST:
        if self.functions and hasattr(node, "lineno"):
            for number, changed in enumerate(changes(node)):
                place = (self.file, node.lineno, node.col_offset, number)
                text = f"{ast.unparse(node)}  ->  {ast.unparse(changed)}"
                self.places[place] = (list(self.functions), text)
                if place == self.wanted:
                    return ast.copy_location(changed, node)
        return super().visit(node)


def places() -> dict[Place, tuple[list[tuple[str, int]], str]]:
    """Return all places, with the functions around each and what the change is."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if file == "spectral_param/testing.py":
            continue
        mutator = _Mutator(file)
        mutator.visit(ast.parse(path.read_text(encoding="utf-8")))
        found.update(mutator.places)
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _put_in(tree: ast.AST, file: str, functions: set[tuple[str, int]]) -> int:
    """Give the functions with these names and first lines the code of the tree; return how many there are."""
    path = str(ROOT / file)
    compiled = {
        (c.co_name, c.co_firstlineno): c
        for c in _codes(compile(ast.fix_missing_locations(tree), path, "exec"))
    }
    count = 0
    for each in gc.get_objects():
        if type(each) is types.FunctionType and each.__code__.co_filename == path:
            key = (each.__code__.co_name, each.__code__.co_firstlineno)
            if key in functions:
                each.__code__, count = compiled[key], count + 1
    return count


def put_in(place: Place, functions: list[tuple[str, int]]) -> int:
    """Make the change at a place in this process."""
    tree = _Mutator(place[0], place).visit(ast.parse((ROOT / place[0]).read_text(encoding="utf-8")))
    return _put_in(tree, place[0], set(functions))


def watch(chosen: dict[Place, tuple[list[tuple[str, int]], str]]) -> set[tuple[str, str, int]]:
    """Let the outermost functions of the places say when they are called; return where they say it."""
    import torch

    hits: set[tuple[str, str, int]] = set()
    by_file: dict[str, set[tuple[str, int]]] = {}
    for place, (functions, _) in chosen.items():
        by_file.setdefault(place[0], set()).add(functions[0])
    for file, wanted in by_file.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _key(node) in wanted:
                key = repr((file, *_key(node)))
                probe = ast.parse(f"_compiling() or _hit({key})").body[0]
                for part in ast.walk(probe):
                    ast.copy_location(part, node.body[0])
                node.body.insert(0, probe)
        module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        vars(sys.modules[module]).update(_hit=hits.add, _compiling=torch.compiler.is_compiling)
        _put_in(tree, file, wanted)
    return hits


class Plugin:
    """Runs the collected tests once for each fault, in place of pytest's own loop."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.output: Path = arguments.output

    def pytest_runtestloop(self, session: Any) -> bool:
        """Find the tests that reach each fault, then run them."""
        session.items = [i for i in session.items if not any(word in i.nodeid for word in LEFT_OUT)]
        everywhere = places()
        drawn = random.Random(self.arguments.seed).sample(sorted(everywhere), self.arguments.count)
        chosen = {place: everywhere[place] for place in drawn}
        hits_file = self.output.with_suffix(".hits.json")
        if not hits_file.exists():
            self._in_processes([(None, lambda: self._find_hits(session, chosen, hits_file))])
        reached = json.loads(hits_file.read_text())
        done = json.loads(self.output.read_text()) if self.output.exists() else {}
        asked = None
        if self.arguments.found_by:
            before = json.loads(self.arguments.found_by.read_text())
            asked = {name for name, result in before.items() if result["found"]}
        jobs = []
        for place, (functions, text) in chosen.items():
            name = ":".join(map(str, place))
            if name in done or (asked is not None and name not in asked):
                continue
            job = (name, lambda p=place, f=functions, t=text: self._try(session, p, f, t, reached))
            jobs.append(job)
        self._in_processes(jobs)
        return True

    def _in_processes(self, jobs: list[tuple[str | None, Any]]) -> None:
        """Run jobs in forked processes, several at a time; keep what they return as soon as it is there."""
        running: dict[int, tuple[str | None, int]] = {}
        waiting = list(reversed(jobs))
        while waiting or running:
            while waiting and len(running) < self.arguments.jobs:
                name, job = waiting.pop()
                reading, writing = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.close(reading)
                    log = os.open(self.output.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                    try:
                        os.write(writing, json.dumps(job()).encode())
                    except BaseException:
                        traceback.print_exc()
                        os._exit(1)
                    os._exit(0)
                os.close(writing)
                running[pid] = (name, reading)
            pid, status = os.wait()
            name, reading = running.pop(pid)
            with os.fdopen(reading) as pipe:
                text = pipe.read()
            if name is None:
                continue
            current = self.output.with_suffix(f".{pid}")
            result = json.loads(text) if text else self._of_the_killed(status, current)
            current.unlink(missing_ok=True)
            known = json.loads(self.output.read_text()) if self.output.exists() else {}
            known[name] = result
            temporary = self.output.with_suffix(".tmp")
            temporary.write_text(json.dumps(known, indent=1) + "\n")
            temporary.replace(self.output)
            counts = sum(bool(r["found"]) for r in known.values())
            print(f"{counts} of {len(known)} found; {name}: {result['found']}", file=sys.stderr, flush=True)

    def _of_the_killed(self, status: int, current: Path) -> dict[str, Any]:
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"a process failed, see {self.output.with_suffix('.log')}")
        return {"found": f"{current.read_text()}, by {signal.Signals(os.WTERMSIG(status)).name}"}

    def _find_hits(self, session: Any, chosen: Any, file: Path) -> None:
        hits = watch(chosen)
        reached = {}
        for item, following in itertools.zip_longest(session.items, session.items[1:]):
            hits.clear()
            start = time.process_time()
            passed = _passes(item, following)
            reached[item.nodeid] = [time.process_time() - start, passed, sorted(hits)]
        file.write_text(json.dumps(reached))

    def _try(self, session: Any, place: Place, functions: Any, text: str, reached: Any) -> dict[str, Any]:
        key = [place[0], *functions[0]]
        tests = [i for i in session.items if i.nodeid in reached and key in reached[i.nodeid][2]]
        tests = [i for i in tests if reached[i.nodeid][1]]
        seen: dict[str, int] = {}
        turns = {}
        for item in sorted(tests, key=lambda i: reached[i.nodeid][0]):
            family = item.nodeid.split("[")[0]
            if "conformance" in family:  # The check is the family, not the one function of all of them.
                family = item.nodeid.rsplit("-", 3)[1]
            turns[item.nodeid] = seen[family] = seen.get(family, 0) + 1
        # One test of each family, short ones first, then the second ones, and so on.
        tests.sort(key=lambda i: (turns[i.nodeid], reached[i.nodeid][0]))
        count = put_in(place, functions)
        result = {"change": text, "functions": count, "tests": len(tests), "found": None}
        start = time.process_time()
        current = self.output.with_suffix(f".{os.getpid()}")
        for i, (item, following) in enumerate(itertools.zip_longest(tests, tests[1:])):
            if time.process_time() - start > self.arguments.budget:
                result["ran"] = i
                break
            current.write_text(item.nodeid)
            # A test that does not end has found the fault, too: the process is killed.
            signal.setitimer(signal.ITIMER_PROF, 20 + 10 * reached[item.nodeid][0])
            if not _passes(item, following):
                result["found"] = item.nodeid
                break
        signal.setitimer(signal.ITIMER_PROF, 0)
        result["seconds"] = round(time.process_time() - start, 1)
        current.unlink(missing_ok=True)
        return result


def _passes(item: Any, following: Any) -> bool:
    from _pytest.runner import runtestprotocol

    reports = runtestprotocol(item, nextitem=following, log=False)
    return not any(report.failed for report in reports)


def main() -> int:
    """Draw faults and run the tests; return pytest's exit code."""
    import pytest

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="JSON file of the results")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of processor time for a fault")
    parser.add_argument("--found-by", type=Path, help="only the faults that the run of this file found")
    arguments, rest = parser.parse_known_args()  # The rest is for pytest.
    arguments.output = arguments.output.resolve()
    return pytest.main(["-q", "-p", "no:cacheprovider", *rest], plugins=[Plugin(arguments)])


if __name__ == "__main__":
    sys.exit(main())
