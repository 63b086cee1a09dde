"""One file a subject: ``tasks(quick)``, the tables, and ``DEPENDS``, the paths that its numbers depend on.

``VARIES``, where there is one, matches the names of numbers that another measurement on the same machine may
change: times that do not say so in their name, what a search finds within a time, rounding.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def subjects() -> list[str]:
    """Return the names of all subjects."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def measure(subject: str) -> ModuleType:
    """Return the module of a subject.

    Args:
        subject: Its name.
    """
    return importlib.import_module(f"{__name__}.{subject}")
