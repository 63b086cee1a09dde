"""Warnings about a weight, shown at the line that reads, registers or projects the weight."""

from __future__ import annotations

import inspect
import warnings

from spectral_param.errors import DegenerateEigenvalueWarning

#: The end of a warning: this text says how long W is computed in the way that the warning describes.
UNTIL = "in this precision, until T has moved away from such matrices"


def warn_of_weight(message: str, category: type[Warning] = DegenerateEigenvalueWarning) -> None:
    """Emit a warning that shows the line that reads, registers or projects a weight."""
    # Find the innermost caller outside of this library and torch: the warning shows the caller's line.
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in ("spectral_param", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
