"""Seeded faults, each found by a test: ``python -m tests.mutations [--jobs 2] [NAME ...]``.

Each fault of :mod:`tests.faults` is put into a copy of the tree and the tests that should find it run there.
The run fails where a fault is not found, and before anything runs where the code of a fault does not occur
exactly once in its file: the code has changed, and the fault has to follow. A run of all faults also fails if
fewer than ``SHARE`` of them are found by tests/promises alone, which stay when the library is built anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests import faults
from tests.faults import Fault

#: The part of all faults that tests of promises alone have to find.
SHARE = 0.9


def check_fit(known: Sequence[Fault]) -> None:
    """Stop before anything runs if the code of some faults has changed.

    Raises:
        SystemExit: If it has.
    """
    misfits = []
    for fault in known:
        try:
            faults.put_in(fault)
        except ValueError as error:
            misfits.append(str(error))
    if misfits:
        raise SystemExit("\n".join(misfits))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the faults whose names begin as the arguments say, all without any; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("names", nargs="*", help="beginnings of the names of faults; without any, all faults")
    parser.add_argument("--jobs", type=int, default=1, help="faults that are tried at a time")
    options = parser.parse_args(arguments)
    asked, known = tuple(options.names), faults.all_faults()
    chosen = [fault for fault in known if not asked or fault.name.startswith(asked)]
    if not chosen:
        raise SystemExit(f"expected some of {', '.join(fault.word for fault in known)}, got {asked}")
    check_fit(known)
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(faults.check, chosen))
    promised = sum(found and fault.is_of_a_promise for fault, found in zip(chosen, results, strict=True))
    print(f"{sum(results)} of {len(results)} faults found, {promised} of them by tests/promises alone")
    if not asked and promised < SHARE * len(chosen):
        print(f"expected at least {SHARE:.0%} by tests/promises alone")
        return 1
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
