"""Each block of the README runs by itself, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import readme

BLOCKS = readme.blocks((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"))


# The rehearsal of a release runs the block that trains, too: make wheel.
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(i), marks=pytest.mark.nightly if "±" in block else ())
        for i, block in enumerate(BLOCKS)
    ],
)
def test_a_block_of_the_readme_runs_and_prints_what_it_shows(block) -> None:
    readme.check(block)


def test_the_readme_shows_results() -> None:
    assert len(BLOCKS) >= 5
    assert sum(len(readme.shown(block)) for block in BLOCKS) >= 8


def test_numbers_of_trained_networks_may_differ_a_little_and_nothing_else() -> None:
    assert readme.agrees("LSTM: 0.45 ± 0.04", "LSTM: 0.50 ± 0.02")
    assert not readme.agrees("LSTM: 0.61 ± 0.02", "LSTM: 0.50 ± 0.02")
    assert not readme.agrees("RNN: 0.50 ± 0.02", "LSTM: 0.50 ± 0.02")
    assert not readme.agrees("1.01", "1.00")
    with pytest.raises(AssertionError, match=r"expected \['2'\], got \['1'\]"):
        readme.check("print(1)  # 2\n")
