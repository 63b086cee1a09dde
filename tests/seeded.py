"""Seeded faults, tried by the tests beside them: in forked processes, and what no test finds there in copies.

A fork takes a fraction of the time of a copy of the tree. In it a fault of code that has run already makes no
difference, and tests that start processes do not see one. So a copy has the last word.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from _pytest.mark import KeywordMatcher
from _pytest.mark.expression import Expression

from tests import faults
from tests.faults import Fault
from tests.forks import Forks, collect, put_in


@dataclasses.dataclass
class Trials(Forks):
    """Tries seeded faults with the collected tests.

    Attributes:
        chosen: The faults.
        end: After which none is begun, a time of ``time.monotonic``.
        found: Those that a test found.
    """

    chosen: Sequence[Fault]
    end: float
    found: set[Fault] = dataclasses.field(default_factory=set)

    def work(self) -> None:
        """Try the faults."""
        jobs = [functools.partial(self._try, fault) for fault in self.chosen]
        for number, test in self.in_processes(jobs, self.end):
            if test:
                self.found.add(self.chosen[number])
                print(f"{self.chosen[number].name}\n    found by {test}", flush=True)

    def _try(self, fault: Fault) -> str | None:
        """Return the first test that fails."""
        if not fault.file.endswith(".py") or not put_in(fault.file, faults.put_in(fault)):
            return None
        words = Expression.compile(fault.words) if fault.words else None
        names = [
            name
            for name, item in self.items.items()
            if name.startswith(f"{fault.home}::")
            and (words is None or words.evaluate(KeywordMatcher.from_item(item)))
        ]
        names.sort(key=lambda name: self.items[name].get_closest_marker("nightly") is not None)  # Last.
        return next((name for name, passed in self.run(names) if not passed), None)


def found_in_forks(chosen: Sequence[Fault], jobs: int, end: float) -> set[Fault]:
    """Return the faults that a test finds in a forked process.

    Args:
        chosen: The faults.
        jobs: How many at a time.
        end: After which none is begun.
    """
    trials = Trials(jobs, chosen, end)
    if chosen:
        collect(trials, "-m", "not rows", *sorted({fault.home for fault in chosen}))
    return trials.found


def tried(chosen: Sequence[Fault], jobs: int, end: float = float("inf")) -> list[tuple[Fault, bool]]:
    """Try faults; return those that were tried before the end, and whether a test finds each.

    Args:
        chosen: The faults.
        jobs: How many at a time.
        end: After which none is begun, a time of ``time.monotonic``.
    """
    found = found_in_forks(chosen, jobs, end)
    others = [fault for fault in chosen if fault not in found]
    with ThreadPoolExecutor(jobs) as pool:
        in_copies = list(pool.map(lambda f: faults.check(f) if time.monotonic() < end else None, others))
    done = {fault: True for fault in found}
    done |= {f: result for f, result in zip(others, in_copies, strict=True) if result is not None}
    promised = sum(result and fault.is_of_a_promise for fault, result in done.items())
    print(f"{sum(done.values())} of {len(done)} faults found, {promised} of them by tests/promises alone")
    if len(done) < len(chosen):
        print(f"{len(chosen) - len(done)} faults were not tried: the time is over")
    return list(done.items())
