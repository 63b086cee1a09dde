"""Tables that stand in the Markdown itself, for those who read a page where nothing builds it.

They stand between two comments. The first names the function of the table and its arguments, one on a line::

    <!-- written benchmarks.measures.cpu.ratios
    bounded norm, a training step / plain way
    -->

    <!-- end -->

``python -m benchmarks --write`` writes what is between, and so does each run that measures. The mark of what
is stale is not written: it changes with the code, not with the numbers.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.table import MARK, markdown, table
from examples.papers.origin import ROOT

PAGES = (ROOT / "docs/costs.md", ROOT / "docs/papers.md")
BLOCK = re.compile(r"^(<!-- written (\S+)\n((?:.+\n)*?)-->)\n(?:.*\n)*?<!-- end -->$", re.MULTILINE)


def written(page: str) -> str:
    """Return the text of a page with the tables of the committed numbers.

    Args:
        page: The text.
    """

    def block(match: re.Match[str]) -> str:
        start, function, arguments = match.groups()
        rows = markdown(*table(function, arguments.splitlines()))
        text = rows.replace(MARK, "") if function.startswith("benchmarks.") else rows
        return f"{start}\n\n{text}\n\n<!-- end -->"

    return BLOCK.sub(block, page)


def write(pages: tuple[Path, ...] = PAGES) -> None:
    """Write the tables of pages, and name the pages that change."""
    for page in pages:
        before = page.read_text(encoding="utf-8")
        if (after := written(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page}: tables written")
