"""Each block of the README runs by itself, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def shown(block: str) -> list[str]:
    """Comments behind a print, and those that begin a line: what the block prints."""
    return re.findall(r"(?:^|print\(.*\)  )# (.*)$", block, flags=re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_the_readme_runs_and_prints_what_it_shows(block) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})
    assert printed.getvalue().splitlines() == shown(block)


def test_the_readme_shows_results() -> None:
    assert len(BLOCKS) >= 4
    assert sum(len(shown(block)) for block in BLOCKS) >= 6
