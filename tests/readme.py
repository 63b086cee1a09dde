"""The blocks of the README: run them, and compare what they print with what they show.

``python tests/readme.py README.md`` runs all of them, with the package that is installed.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

# How far a mean of trained networks, shown as "mean ± spread", may be from that of the README. Rounding
# errors differ from processor to processor, and training enlarges them: with three kinds of kernels, and with
# two threads, the LSTM of the README had means from 0.47 to 0.52.
TRAINED = 0.1


def blocks(text: str) -> list[str]:
    """Return the blocks of Python code.

    Args:
        text: The README.
    """
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def shown(block: str) -> list[str]:
    """Return what a block says that it prints: comments behind a print, and those that begin a line.

    Args:
        block: The code.
    """
    return re.findall(r"(?:^|print\(.*\)  )# (.*)$", block, flags=re.MULTILINE)


def printed(block: str) -> list[str]:
    """Run a block and return the lines that it prints.

    Args:
        block: The code.
    """
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "README.md", "exec"), {})
    return out.getvalue().splitlines()


def agrees(line: str, expected: str) -> bool:
    """Return whether a printed line is the one that is shown; of a mean of trained networks, near it.

    Args:
        line: What was printed.
        expected: What the README shows.
    """
    trained = re.compile(r"(.*: )(\d\.\d+) ± \d\.\d+")
    found, wanted = trained.fullmatch(line), trained.fullmatch(expected)
    if not (found and wanted):
        return line == expected
    return found[1] == wanted[1] and abs(float(found[2]) - float(wanted[2])) <= TRAINED


def check(block: str) -> None:
    """Run a block, and compare what it prints with what it shows.

    Args:
        block: The code.

    Raises:
        AssertionError: If they differ.
    """
    lines, expected = printed(block), shown(block)
    if len(lines) != len(expected) or not all(map(agrees, lines, expected)):
        raise AssertionError(f"README: expected {expected}, got {lines}")


if __name__ == "__main__":
    found = blocks(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for code in found:
        check(code)
    print(f"{len(found)} blocks of README run")
