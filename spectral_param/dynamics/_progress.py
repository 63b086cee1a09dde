"""A progress bar where tqdm is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_DELAY = 3.0  # seconds until it is shown


@contextlib.contextmanager
def progress_bar(fits: int) -> Iterator[Callable[[], object]]:
    """Yield what to call after each of so many fits."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield lambda: None
        return
    with tqdm(total=fits, desc="horizon='cv'", unit="fit", delay=_DELAY, leave=False) as bar:
        yield bar.update
