"""Which runs are older than the library's code for their network, from the history of the repository.

A run is older if one of the files that compute its network has other code today than at the commit of the
run. Docstrings, comments, imports and error messages are not compared. LSTM and GRU are torch's: their runs
name the version of torch, and are never older.

The answer is kept in ``older_runs.json``, so that pages can be written where there is no history.
"""

from __future__ import annotations

import ast
import functools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from examples.papers.config import Row
from examples.papers.measures import Result

ROOT = Path(__file__).parents[2]
OLDER = Path(__file__).parent / "older_runs.json"

RECURRENCE = (
    "spectral_param/context.py",
    "spectral_param/nn/block_rnn.py",
    "spectral_param/nn/cell.py",
    "spectral_param/nn/sequence_layer.py",
    "spectral_param/parametrizations/base.py",
    "spectral_param/parametrizations/block_triangular.py",
    "spectral_param/recurrence/*.py",
)
CAYLEY = ("spectral_param/functional/cayley.py", "spectral_param/parametrizations/scaled_cayley.py")
RADIUS = (
    *(f"spectral_param/eigen/{name}.py" for name in ("dense", "derivative", "follower", "tracking")),
    "spectral_param/parametrizations/spectral_radius.py",
)
EXPONENTIAL = (
    "spectral_param/functional/exponential.py",
    "spectral_param/parametrizations/skew_exponential.py",
)
SCHUR = ("spectral_param/functional/schur.py", "spectral_param/parametrizations/schur_form.py")
HOUSEHOLDER = ("spectral_param/functional/householder.py", "spectral_param/parametrizations/householder.py")
GIVENS = ("spectral_param/functional/givens.py", "spectral_param/parametrizations/givens.py")
FOURIER = ("spectral_param/functional/fourier.py", "spectral_param/parametrizations/fourier_unitary.py")

# The files of each network beside RECURRENCE and its class in nn/models.py.
CONSTRAINTS = {
    "ENRNN": (*CAYLEY, *RADIUS),
    "EUNN": GIVENS,
    "ExpRNN": EXPONENTIAL,
    "NNRNN": (*EXPONENTIAL, *SCHUR),
    "ORNN": HOUSEHOLDER,
    "ScoRNN": CAYLEY,
    "ScuRNN": CAYLEY,
    "SpectralRNN": (*HOUSEHOLDER, "spectral_param/parametrizations/singular_values.py"),
    "URNN": FOURIER,
}
OTHERS = {
    "FullCapacityURNN": ("examples/papers/networks/full_capacity.py", *RECURRENCE),
    "GORU": ("spectral_param/nn/goru.py", *RECURRENCE, *CAYLEY),
    "GRU": (),
    "IRNN": ("examples/papers/networks/unconstrained.py", *RECURRENCE),
    "LSTM": (),
    "LinearStack": ("examples/papers/networks/linear_stack.py", *RECURRENCE, *CAYLEY, *RADIUS),
    "RNNOrth": ("examples/papers/networks/unconstrained.py", *RECURRENCE),
    "": ("spectral_param/dynamics/*.py",),  # Rows that fit a matrix.
}


def sources(row: Row) -> list[tuple[str, str]]:
    """Return the files that compute a row's network, each with the name of the class that counts, or "".

    Args:
        row: The row.
    """
    name = row.network.get("name", "")
    own = [("spectral_param/nn/models.py", name)] if name in CONSTRAINTS else []
    patterns = OTHERS[name] if name in OTHERS else (*RECURRENCE, *CONSTRAINTS[name])
    paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    return [*own, *((path.relative_to(ROOT).as_posix(), "") for path in paths)]


class _Code(ast.NodeTransformer):
    """Takes out what computes nothing: imports, docstrings, and what errors say."""

    def visit(self, node: ast.AST) -> ast.AST | None:
        """Return the node without it, None for nothing.

        Args:
            node: Of a syntax tree.
        """
        if isinstance(node, ast.Import | ast.ImportFrom):
            return None
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return None
        return ast.Raise() if isinstance(node, ast.Raise) else super().visit(node)


@functools.cache
def code(text: str, name: str) -> str:
    """Return what a file computes, for comparison.

    Args:
        text: The file.
        name: Of the class that counts; all of the file for "".
    """
    body = [node for node in ast.parse(text).body if not name or getattr(node, "name", "") == name]
    return ast.dump(_Code().visit(ast.Module(body, [])))


@functools.cache
def _git(*arguments: str) -> str | None:
    """Return what git prints, None if it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, check=False, cwd=ROOT)
    except OSError:
        return None
    return done.stdout.decode() if done.returncode == 0 else None


def _at_commit(commit: str, path: str) -> str | None:
    return _git("show", f"{commit.removesuffix('-dirty')}:{path}")


def has_history() -> bool:
    """Return whether all commits are here: a clone, and not a shallow one."""
    return (_git("rev-parse", "--is-shallow-repository") or "").strip() == "false"


def is_older(row: Row, run: Result, at: Callable[[str, str], str | None] = _at_commit) -> bool:
    """Return whether the code of a run's network has changed since the run, or cannot be found.

    Args:
        row: The row.
        run: Its run.
        at: Function of a commit and a path that returns the file then, None if there was none.
    """
    commits = {session["commit"] for session in run.get("sessions") or [run["environment"]]}
    for path, name in sources(row):
        now = code((ROOT / path).read_text(encoding="utf-8"), name)
        for commit in commits:
            then = at(commit, path)
            if then is None or code(then, name) != now:
                return True
    return False


def read() -> set[tuple[str, int]]:
    """Return row and seed of the older runs, as they were found when the file was written."""
    return {(row, seed) for row, seeds in json.loads(OLDER.read_text()).items() for seed in seeds}


def update(rows: list[Row], results: dict[str, list[Result]]) -> None:
    """Write which runs are older; without history, leave the file as it is and say so.

    Args:
        rows: All rows.
        results: The runs of each row.
    """
    if not has_history():
        print(f"No history of the repository here: {OLDER.name} stays as it is.")
        return
    found = {
        row.name: [run["seed"] for run in results.get(row.name, []) if is_older(row, run)] for row in rows
    }
    OLDER.write_text(json.dumps({name: seeds for name, seeds in found.items() if seeds}, indent=1) + "\n")
