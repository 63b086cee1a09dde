"""``python -m examples.papers``: says what is missing, or runs :func:`examples.papers.cli.main`."""

from __future__ import annotations

import importlib.util
import sys

# Import name and the name on the package index.
REQUIRED = {"pooch": "pooch", "tqdm": "tqdm"}
if sys.version_info < (3, 11):
    REQUIRED["tomli"] = "tomli"


def missing_packages() -> list[str]:
    """Return which of the experiments' own dependencies are not installed."""
    return [name for module, name in REQUIRED.items() if importlib.util.find_spec(module) is None]


def main() -> int:
    """Do what the command line says and return the exit code."""
    if missing := missing_packages():
        needed = ", ".join(missing)
        print(f"The experiments need {needed}: pip install --group examples", file=sys.stderr)
        return 1
    # Only here, since it imports what may be missing.
    from examples.papers import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
