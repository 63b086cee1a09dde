"""How many examples a property is tried with: few by default, as many as asked for in a nightly run."""

from __future__ import annotations

import os

from hypothesis import settings

FACTOR = float(os.environ.get("SPECTRAL_PARAM_EXAMPLES", "1"))


def examples(n: int) -> settings:
    """Return settings for n examples, times $SPECTRAL_PARAM_EXAMPLES.

    By default they are the same in each run. With a factor above 1 they are new ones in each run, and what
    repeats a failure is printed.
    """
    more = FACTOR > 1
    return settings(
        deadline=None, derandomize=not more, print_blob=more, max_examples=max(1, round(n * FACTOR))
    )
