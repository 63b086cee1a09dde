"""Where the real data is, and what to say when it is not."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT = Path(__file__).parents[3] / "shared" / "data"


class DataError(ValueError):
    """Data is missing, or is not what it should be."""


def folder() -> Path:
    """Return the data folder: ``SPECTRAL_PARAM_DATA``, or ``../shared/data`` beside the repository."""
    return Path(os.environ.get("SPECTRAL_PARAM_DATA") or DEFAULT)


def find(relative: str, source: str) -> Path:
    """Return the path of a file or folder of the data folder.

    Args:
        relative: Its path inside the data folder.
        source: What it is and where it is to be had.

    Raises:
        DataError: If it is not there.
    """
    path = folder() / relative
    if not path.exists():
        raise DataError(
            f"{path} is missing: {source}. Put it there, or name the folder that has {relative} with "
            "SPECTRAL_PARAM_DATA"
        )
    return path


def check(path: Path, what: str, expected: object, got: object) -> None:
    """Raise unless a file is what it should be.

    Args:
        path: The file.
        what: Which property of it.
        expected: What it should be.
        got: What it is.

    Raises:
        DataError: If the two are not equal.
    """
    if got != expected:
        raise DataError(f"{path}: {what}: expected {expected}, got {got}")
