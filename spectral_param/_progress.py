"""Progress bars for long computations, on request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

# The class of bars, or None outside of :func:`progress`.
_bars: ContextVar[Callable[..., contextlib.AbstractContextManager[object]] | None] = ContextVar(
    "bars", default=None
)


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Show progress bars (tqdm) for the long computations in a ``with`` block, in this thread.

    Off by default. Only this function imports tqdm. These computations have bars, among others:

    - :func:`constrain`: the weights that are registered,
    - :func:`spectral_param.functional.scaled_norm`, :func:`spectral_param.init.echo_state_` and
      ``lyapunov_certificate(metric="diagonal")``: one step for each factor of ten in accuracy,
    - the spectral radius of a sparse matrix: products with the matrix, whose number is not known beforehand,
    - :func:`spectral_param.analysis.lipschitz` with ``steps``: the Newton steps,
    - the choices of :class:`spectral_param.dynamics.StableLinearModel`.

    For how long they take, see :ref:`Costs <waits>`. Results do not depend on the bars.

    Raises:
        ImportError: If tqdm is not installed.

    Example:
        >>> with spectral_param.progress():
        ...     layer = spectral_param.constrain(
        ...         torch.nn.Linear(64, 64), "weight", spectral_param.ScaledCayley()
        ...     )
    """
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError(
            "progress: expected tqdm, which draws the bars. Install it: pip install tqdm"
        ) from None
    token = _bars.set(tqdm)
    try:
        yield
    finally:
        _bars.reset(token)


@contextlib.contextmanager
def steps(title: str, total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
    """Yield a callback for the number of steps that are done, which draws a bar within :func:`progress`."""
    bars = _bars.get()
    if bars is None:
        yield lambda _: None
        return
    with bars(total=total, desc=title, unit=unit, leave=False) as bar:
        yield bar.update  # type: ignore[attr-defined]
