"""Seeded faults: what a person could do by mistake, each beside the tests that are to find it.

A lost sign, conjugate or term, a transposition, one more or less, a forgotten condition, a state that is not
saved. The faults that ``test_NAME.py`` finds are the ``FAULTS`` of ``faults_NAME.py`` in the same folder.
:mod:`tests.mutations` puts them in. Most are found by tests of promises, through public names alone.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that a person could make.

    Attributes:
        name: A word, and what is wrong.
        file: Where.
        code: Text that occurs exactly once in the file.
        instead: What takes its place.
        words: What chooses the tests that are to find it (``pytest -k``) from those of the file beside it.
        mark: What chooses among marked tests (``pytest -m``). By default, nightly ones are run, too.
        home: The file of these tests. :func:`all_faults` fills it in.
    """

    name: str
    file: str
    code: str
    instead: str
    words: str = ""
    mark: str = ""
    home: str = ""

    @property
    def word(self) -> str:
        """The word that stands for the fault."""
        return self.name.partition(":")[0]

    @property
    def is_of_a_promise(self) -> bool:
        """Whether a test of promises is to find the fault."""
        return self.home.startswith("tests/promises/")

    def arguments(self) -> list[str]:
        """Return the arguments of pytest that run the tests."""
        options = (("-k", self.words), ("-m", self.mark or "not rows"))
        return [self.home, *(part for option, value in options if value for part in (option, value))]


@functools.cache
def all_faults() -> tuple[Fault, ...]:
    """Return the faults of all files beside tests."""
    found: list[Fault] = []
    for path in sorted((ROOT / "tests").rglob("faults_*.py")):
        name = path.relative_to(ROOT).with_suffix("")
        home = name.with_name(f"{name.name.replace('faults_', 'test_', 1)}.py").as_posix()
        module = importlib.import_module(".".join(name.parts))
        found += (dataclasses.replace(fault, home=home) for fault in module.FAULTS)
    return tuple(found)


def put_in(fault: Fault, root: Path = ROOT) -> str:
    """Return the text of the file with the fault.

    Args:
        fault: The fault.
        root: The tree.

    Raises:
        ValueError: If the code that the fault is for has changed.
    """
    path = root / fault.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    count = source.count(fault.code)
    if count != 1:
        raise ValueError(
            f"{fault.name}: expected {fault.code!r} once in {fault.file}, got {count}. "
            "Let the fault follow the code"
        )
    return source.replace(fault.code, fault.instead)


def copy_tree(to: Path) -> None:
    """Copy what git knows or would add, as it stands here."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():  # Not what is deleted here and still known to git.
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def check(fault: Fault) -> bool:
    """Say which test finds a fault, and return whether one does.

    Args:
        fault: The fault.

    Raises:
        SystemExit: If its tests do not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        copy_tree(tree)
        (tree / fault.file).write_text(put_in(fault), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault.arguments()],
            cwd=tree,
            # Inductor's folder of compiled graphs is shared by all processes; these graphs are for no others.
            env={**os.environ, "PYTHONPATH": str(tree), "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"},
            capture_output=True,
            text=True,
            check=False,
        )
    # A test that fails, or one that ends the process: both find the fault. Any other code: no test ran.
    if done.returncode in (2, 3, 4, 5):
        raise SystemExit(f"{fault.name}: its tests did not run.\n{done.stdout}{done.stderr}")
    found = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode < 0:
        found = [f"a crash, signal {-done.returncode}"]
    print(f"{fault.name}\n    {'found by ' + found[0] if found else 'NOT FOUND'}", flush=True)
    return bool(found)
