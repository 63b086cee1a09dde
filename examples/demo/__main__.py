"""``python -m examples.demo``: says what is missing, or runs :func:`examples.demo.cli.main`."""

from __future__ import annotations

import importlib.util
import sys

# Import name and the name on the package index.
REQUIRED = {"matplotlib": "matplotlib", "pooch": "pooch", "sklearn": "scikit-learn", "tqdm": "tqdm"}


def missing_packages() -> list[str]:
    """Return which of the demo's own dependencies are not installed."""
    return [name for module, name in REQUIRED.items() if importlib.util.find_spec(module) is None]


def main() -> int:
    """Run the demo and return its exit code."""
    if missing := missing_packages():
        needed = ", ".join(missing)
        print(f"The demo needs {needed}: make demo, or pip install --group demo", file=sys.stderr)
        return 1
    try:
        # Only here, since it imports what may be missing.
        from examples.demo import cli

        return cli.main()
    except KeyboardInterrupt:
        # While importing or drawing, or for a second Ctrl-C.
        print("Stopped. If there is a checkpoint, the same command with --resume goes on from it.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
