"""What a training step asks of a device, counted on the stand-in of ``benchmarks/standin.py``."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from functools import partial

from benchmarks.problems.device import Case, cases, compare, count
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task

with contextlib.suppress(ImportError):  # An older torch has no hook for Python backends.
    importlib.import_module("benchmarks.standin")  # It registers the device.

DEPENDS = (
    "spectral_param",
    ":(exclude)spectral_param/_constants",
    ":(exclude)spectral_param/analysis",
    ":(exclude)spectral_param/dynamics",
    ":(exclude)spectral_param/testing",
    "benchmarks/problems/device.py",
    "benchmarks/standin.py",
)
# It is one of rounding.
VARIES = "difference"

# The end of the name of a result of a device that has none.
_WITHOUT = ", without double"

# The most launches and waits of a step; more are an error. For tracked weights the number of products depends
# on rounding. A read of SchurForm copies its buffers, so that no later edit of them reaches a backward pass.
LIMITS = {
    "SpectralRadiusNorm, n = 16": (46, 1),
    "SpectralRadiusNorm, n = 128": (200, 2),
    "SpectralRadiusNorm, 8 of n = 16": (60, 1),
    "SpectralRadiusNorm, 8 of n = 128": (8 * 200, 8 * 2),
    "SkewExponential, n = 64": (145, 1),
    "SchurForm, n = 64": (275, 1),
    "ScaledCayley, n = 64": (49, 0),
}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each case.

    Args:
        quick: Whether to take one alone.
    """
    for case in [case for case in cases() if not quick or case.name.startswith("ScaledCayley")]:
        yield Task(case.name, partial(counted, case))
        if "torch" not in case.name:
            yield Task(f"{case.name}{_WITHOUT}", partial(counted, case, double=False))


def counted(case: Case, double: bool = True) -> Result:
    """Return launches and waits of a step, and how far its numbers are from the host's.

    Args:
        case: What is trained.
        double: Whether the device has double precision.

    Raises:
        AssertionError: If there are more launches or waits than there may be.
    """
    importlib.import_module("benchmarks.standin")  # Or the reason why it is not there.
    found = {"difference": compare(case, "standin", double), **count(case, double)}
    limits = LIMITS if double else {}
    launches, waits = limits.get(case.name, (found["launches"], found["waits"]))
    if found["launches"] > launches or found["waits"] > waits:
        raise AssertionError(f"expected at most {launches} launches and {waits} waits, got {found}")
    return {"environment": {"device": "standin"}, **found}


def steps() -> Table:
    """Return what a training step asks of a device."""
    rows = [
        [marked(n, row), str(row["launches"]), str(row["waits"])]
        for n, row in load("device").items()
        if not n.endswith(_WITHOUT)
    ]
    return ["a training step", "launches", "waits"], rows


def steps_without_double() -> Table:
    """Return the same for a device without double precision, and how far its numbers are from the host's."""
    rows = [
        [
            marked(n.removesuffix(_WITHOUT), row),
            str(row["launches"]),
            str(row["waits"]),
            f"{row['difference']:.0e}",
        ]
        for n, row in load("device").items()
        if n.endswith(_WITHOUT)
    ]
    return ["a training step", "launches", "waits", "difference"], rows
