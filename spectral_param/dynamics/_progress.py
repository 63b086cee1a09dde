"""A bar that shows how far a choice is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_of(choice: str, fits: int, verbose: int) -> Iterator[Callable[[int], object]]:
    """Yield a callback for the number of fits that are done, of so many, which draws a bar if ``verbose``."""
    if not verbose:
        yield lambda _: None
        return
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        yield lambda _: None
        return
    with tqdm(total=fits, desc=choice, unit="fit", leave=False) as bar:
        yield bar.update
