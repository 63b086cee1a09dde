"""A bar that shows how far a choice is, where ``verbose`` or :func:`spectral_param.progress` asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from spectral_param._progress import progress, steps


@contextlib.contextmanager
def progress_of(choice: str, fits: int, verbose: int) -> Iterator[Callable[[int], object]]:
    """Yield a callback for the number of fits that are done, of so many, which draws a bar if ``verbose``."""
    with contextlib.ExitStack() as stack:
        if verbose:
            with contextlib.suppress(ImportError):
                stack.enter_context(progress())
        yield stack.enter_context(steps(choice, fits, "fit"))
