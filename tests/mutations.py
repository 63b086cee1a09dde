"""Seeded faults, each found by a test: ``python -m tests.mutations [--jobs 2] [NAME ...]``.

Each fault of :mod:`tests.faults` is put into a copy of the tree and the tests that should find it run there.
The run fails where a fault is not found, and before anything runs where the code of a fault does not occur
exactly once in its file: the code has changed, and the fault has to follow. A run of all faults also fails if
fewer than ``SHARE`` of them are found by tests/promises alone, which stay when the library is built anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]

#: The part of all faults that tests of promises alone have to find.
SHARE = 0.9


def by_promises(fault: Fault) -> bool:
    """Return whether the tests that are to find a fault are tests of promises alone."""
    paths = [argument for argument in fault.tests if argument.startswith("tests/")]
    return all(path.startswith("tests/promises/") for path in paths)


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


def check(fault: Fault) -> bool:
    """Say which test finds a fault, and return whether one does.

    Args:
        fault: The fault.

    Raises:
        SystemExit: If its tests do not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in filter(None, listed.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        (tree / fault.file).write_text(put_in(fault), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault.tests],
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the faults whose names begin as the arguments say, all without any; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("names", nargs="*", help="beginnings of the names of faults; without any, all faults")
    parser.add_argument("--jobs", type=int, default=1, help="faults that are tried at a time")
    options = parser.parse_args(arguments)
    asked = tuple(options.names)
    chosen = [fault for fault in FAULTS if not asked or fault.name.startswith(asked)]
    if not chosen:
        raise SystemExit(f"expected some of {', '.join(f.name.split(':')[0] for f in FAULTS)}, got {asked}")
    misfits = []
    for fault in FAULTS:
        try:
            put_in(fault)
        except ValueError as error:
            misfits.append(str(error))
    if misfits:
        raise SystemExit("\n".join(misfits))
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(check, chosen))
    promised = sum(found and by_promises(fault) for fault, found in zip(chosen, results, strict=True))
    print(f"{sum(results)} of {len(results)} faults found, {promised} of them by tests/promises alone")
    if not asked and promised < SHARE * len(chosen):
        print(f"expected at least {SHARE:.0%} by tests/promises alone")
        return 1
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
