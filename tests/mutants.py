"""Mutants: operators, comparisons and constants of functions are changed, one at a time. Do tests fail?

The tests are collected once. In a forked process they run for a while, and the functions say which tests
reach them. Each mutant is then put into the functions of a forked process, which runs the tests that reach
it, short ones of different kinds first, until one fails. :mod:`tests.mutations` says which functions.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import importlib
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.change import Function, first_line
from tests.faults import ROOT
from tests.forks import Forks, put_in

# Tests that start processes, which would not see the mutant, or train for long.
LEFT_OUT = ("test_distributed", "test_processes", "inductor", "programs_run")
#: Seconds of processor time for the tests of one mutant.
SECONDS = 20.0

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


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change at one place.

    Attributes:
        file: Where.
        place: Line, column, and the number among the changes there.
        around: Names and first lines of the functions around it, the outermost first.
        text: What stands there, and what takes its place.
    """

    file: str
    place: tuple[int, int, int]
    around: tuple[tuple[str, int], ...]
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.place[0]}, in {self.around[-1][0]}: {self.text}"


class _Mutator(ast.NodeTransformer):
    """Lists all mutants of a file, or makes one of them."""

    def __init__(self, file: str, wanted: Mutant | None = None) -> None:
        self.file, self.wanted = file, wanted
        self.around: list[tuple[str, int]] = []
        self.mutants: list[Mutant] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.around.append((node.name, first_line(node)))
        # The body alone: annotations and defaults are evaluated where the function is made.
        node.body = [self.visit(statement) for statement in node.body]
        self.around.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.body = self.visit(node.body)
        return node

    def _left_alone(self, node: ast.AST) -> ast.AST:
        return node

    # Messages, and what only the type checker reads.
    visit_Raise = visit_Assert = visit_AnnAssign = visit_JoinedStr = _left_alone  # noqa: N815

    def visit(self, node: ast.AST) -> ast.AST:
        if self.around and isinstance(node, ast.expr):
            for number, changed in enumerate(changes(node)):
                place = (node.lineno, node.col_offset, number)
                text = f"{ast.unparse(node)}  ->  {ast.unparse(changed)}"
                self.mutants.append(mutant := Mutant(self.file, place, tuple(self.around), text))
                if mutant == self.wanted:
                    return ast.copy_location(changed, node)
        return super().visit(node)


def _parse(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def mutants(functions: Iterable[Function]) -> list[Mutant]:
    """Return all mutants of some functions."""
    wanted = {(function.file, function.name, function.line) for function in functions}
    found: list[Mutant] = []
    for file in sorted({file for file, *_ in wanted}):
        mutator = _Mutator(file)
        mutator.visit(_parse(file))
        found += (m for m in mutator.mutants if any((file, *key) in wanted for key in m.around))
    return found


def make(mutant: Mutant) -> None:
    """Make a mutant of the functions of this process."""
    put_in(mutant.file, ast.fix_missing_locations(_Mutator(mutant.file, mutant).visit(_parse(mutant.file))))


def watch(chosen: Iterable[Mutant]) -> set[tuple[str, str, int]]:
    """Let the outermost functions of mutants say when they are called; return where they say it."""
    import torch

    hits: set[tuple[str, str, int]] = set()
    by_file: dict[str, set[tuple[str, int]]] = {}
    for mutant in chosen:
        by_file.setdefault(mutant.file, set()).add(mutant.around[0])
    for file, wanted in by_file.items():
        tree = _parse(file)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                line = first_line(node)
                if (node.name, line) not in wanted:
                    continue
                probe = ast.parse(f"_compiling() or _hit({(file, node.name, line)!r})").body[0]
                for part in ast.walk(probe):
                    ast.copy_location(part, node.body[0])
                node.body.insert(0, probe)
        module = importlib.import_module(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        vars(module).update(_hit=hits.add, _compiling=torch.compiler.is_compiling)
        put_in(file, ast.fix_missing_locations(tree))
    return hits


def family(name: str) -> str:
    """Return what a test has in common with those of other parameters; of the conformance suite the check."""
    parts = name.rsplit("-", 3)
    return parts[1] if "test_conformance.py" in name and len(parts) == 4 else name.split("[")[0]


def in_turns(names: Iterable[str], key: Callable[[str], Any]) -> list[str]:
    """Return the first test by the key of each family, then the second ones, and so on."""
    seen: dict[str, int] = {}
    turns = {}
    ordered = sorted(names, key=key)
    for name in ordered:
        turns[name] = seen[family(name)] = seen.get(family(name), 0) + 1
    return sorted(ordered, key=lambda name: (turns[name], key(name)))


@dataclasses.dataclass
class Trials(Forks):
    """Tries mutants with the collected tests.

    Attributes:
        chosen: The mutants, in the order in which they are tried.
        rank: Of a file of tests: those of the least rank are likely to reach a mutant.
        seconds: After which no mutant is begun. The tests run without mutants for a third of the time.
        results: Of each mutant that was tried, the test that found it, or None, and how many tests reach it.
    """

    chosen: list[Mutant]
    rank: Callable[[str], int]
    seconds: float
    results: dict[Mutant, tuple[str | None, int]] = dataclasses.field(default_factory=dict)

    def work(self) -> None:
        """Find the tests that reach each mutant, then run them."""
        end = time.monotonic() + self.seconds
        ((_, reached),) = self.in_processes([lambda: self._find_hits(self.seconds / 3)], end)
        tests = [self._reaching(mutant, reached) for mutant in self.chosen]
        jobs = [functools.partial(self._try, *each, reached) for each in zip(self.chosen, tests, strict=True)]
        for number, found in self.in_processes(jobs, end):
            mutant, count = self.chosen[number], len(tests[number])
            self.results[mutant] = found, count
            print(f"{mutant}\n    {found or 'NOT FOUND'}, {count} tests reach it", flush=True)

    def _find_hits(self, seconds: float) -> dict[str, tuple[float, list[tuple[str, str, int]]]]:
        """Return the seconds of each test that passes, and the functions that it reaches."""
        hits, reached = watch(self.chosen), {}
        names = [name for name in self.items if not any(word in name for word in LEFT_OUT)]
        order = in_turns(names, lambda name: self.rank(name.split("::")[0]))
        order.sort(key=lambda name: self.rank(name.split("::")[0]))
        end, start = time.monotonic() + seconds, time.process_time()
        for name, passed in self.run(order):
            if passed and hits:
                reached[name] = time.process_time() - start, sorted(hits)
            if time.monotonic() > end:
                break
            hits.clear()
            start = time.process_time()
        return reached

    def _reaching(self, mutant: Mutant, reached: Any) -> list[str]:
        """Return the tests that reach a mutant, short ones of different kinds first."""
        key = [mutant.file, *mutant.around[0]]
        return in_turns((n for n in reached if key in reached[n][1]), lambda name: reached[name][0])

    def _try(self, mutant: Mutant, names: list[str], reached: Any) -> str | None:
        """Return the first test that fails."""
        if not names:
            return None
        make(mutant)
        end = time.process_time() + SECONDS
        signal.setitimer(signal.ITIMER_PROF, 20 + 10 * reached[names[0]][0])
        for (name, passed), following in zip(self.run(names), [*names[1:], None], strict=True):
            if not passed:
                return name
            if following is None or time.process_time() > end:
                break
            # A test that does not end has found the mutant, too: the process is ended.
            signal.setitimer(signal.ITIMER_PROF, 20 + 10 * reached[following][0])
        signal.setitimer(signal.ITIMER_PROF, 0)
        return None
