"""Faults that tests are to find: ``python -m tests.mutations [--base main] [--minutes 10] [--jobs 2]``.

Without names it is about a change, with what is not committed. The seeded faults of :mod:`tests.faults` that
it concerns are put in, then the functions that it touches are mutated (:mod:`tests.mutants`) until the time
is over. A mutant that no test finds is shown, and does not fail the run: it may compute the same.

``python -m tests.mutations NAME ...`` puts in the seeded faults whose names begin so, ``--seeded`` all of
them, and runs the tests that should find each (:mod:`tests.seeded`). The run fails where a fault is not
found. It fails before anything runs where the code of a fault does not occur exactly once in its file: the
code has changed, and the fault has to follow. With ``--seeded`` it also fails if fewer than ``SHARE`` of them
are found by tests/promises alone, which stay when the library is built anew.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from collections.abc import Sequence

from tests import change, faults, forks, mutants, seeded
from tests.faults import Fault

#: The part of all faults that tests of promises alone have to find.
SHARE = 0.9


def check_fit(known: Sequence[Fault]) -> None:
    """Stop before anything runs if the code of some faults has changed.

    Args:
        known: All faults.

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


def try_mutants(changed: change.Change, known: Sequence[Fault], jobs: int, end: float) -> None:
    """Mutate what a change touches until the end, in an order that is always the same."""
    chosen = mutants.mutants(changed.touched)
    random.Random(0).shuffle(chosen)
    rank = functools.cache(lambda home: change.nearness(home, changed, known))
    trials = mutants.Trials(jobs, chosen, rank, end - time.monotonic())
    forks.collect(trials, "tests/promises", "tests/internal")
    results = trials.results
    found, reached = sum(bool(f) for f, _ in results.values()), sum(bool(n) for _, n in results.values())
    print(f"{len(changed.touched)} functions are touched, and have {len(chosen)} mutants")
    print(f"{found} of {len(results)} mutants found, {len(results) - reached} reached by no test that ran")
    for mutant, (finder, count) in results.items():
        if finder is None:
            print(f"not found by {count} tests: {mutant}")


def try_change(base: str, jobs: int, minutes: float) -> int:
    """Try the seeded faults that a change concerns and mutants of what it touches; return the exit code."""
    end = time.monotonic() + 60 * minutes
    known, changed = faults.all_faults(), change.since(base)
    done = seeded.tried([fault for fault in known if changed.concerns(fault)], jobs, end)
    if not changed.touched:
        print(f"no function of the package differs from {base}")
    elif time.monotonic() < end:
        try_mutants(changed, known, jobs, end)
    return 0 if all(found for _, found in done) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("names", nargs="*", help="beginnings of the names of seeded faults")
    parser.add_argument("--seeded", action="store_true", help="all seeded faults")
    parser.add_argument("--base", default="main", help="what the change is compared with")
    parser.add_argument(
        "--minutes", type=float, default=10, help="after which nothing is begun, for a change"
    )
    parser.add_argument("--jobs", type=int, default=1, help="faults or mutants that are tried at a time")
    options = parser.parse_args(arguments)
    asked, known = tuple(options.names), faults.all_faults()
    check_fit(known)
    if not asked and not options.seeded:
        return try_change(options.base, options.jobs, options.minutes)
    chosen = [fault for fault in known if options.seeded or fault.name.startswith(asked)]
    if not chosen:
        raise SystemExit(f"expected some of {', '.join(fault.word for fault in known)}, got {asked}")
    done = seeded.tried(chosen, options.jobs)
    if options.seeded and sum(found and f.is_of_a_promise for f, found in done) < SHARE * len(done):
        print(f"expected at least {SHARE:.0%} by tests/promises alone")
        return 1
    return 0 if all(found for _, found in done) else 1


if __name__ == "__main__":
    sys.exit(main())
