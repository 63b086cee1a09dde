"""The benchmarks run, and the page of costs says what the committed numbers say."""

import json
import os
from pathlib import Path

import pytest

from benchmarks import characters, plot, table
from benchmarks import run as runner

ROOT = Path(__file__).parent.parent


@pytest.fixture
def text(monkeypatch, tmp_path):
    """A text to train on where the real ones are not."""
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text("to be or not to be, that is the question. " * 2000)
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))


def test_quick_run_writes_numbers_and_page(text, monkeypatch, tmp_path, capsys) -> None:
    output = tmp_path / "cpu.json"
    arguments = ["benchmarks", "--quick", "--repeats", "1", "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    runner.main()
    results = json.loads(output.read_text())
    assert len(results) == 17
    assert all(set(r["environment"]) >= {"commit", "torch", "cores", "threads"} for r in results.values())
    rows = [row for result in results.values() for row in result["contenders"].values()]
    assert all(row["least"] <= row["median"] <= row["most"] for row in rows)
    errors = [result["facts"].values() for name, result in results.items() if "run" in name]
    assert all(0 <= error < 1e-5 for facts in errors for error in facts)
    assert "Training step on characters" in table.page(results)
    assert "tracked" in capsys.readouterr().out
    monkeypatch.setattr(plot, "RESULTS", tmp_path)
    for title, points in table.curves(results).items():
        axes = plot.growth(title)
        assert [line.get_label() for line in axes.lines] == list(points[0][2]["contenders"])


def test_only_some_groups(text, monkeypatch, tmp_path) -> None:
    output = tmp_path / "cpu.json"
    output.write_text('{"an earlier one": {}}')
    monkeypatch.setattr(
        "sys.argv", ["benchmarks", "--quick", "--repeats", "1", "--output", str(output), "--only", "batch"]
    )
    runner.main()
    assert list(json.loads(output.read_text())) == [
        "an earlier one",
        "training step with SpectralRadiusNorm, n = 8, batch of 8",
    ]


def test_page_is_that_of_the_committed_numbers() -> None:
    results = json.loads((ROOT / "benchmarks/results/cpu.json").read_text())
    assert (ROOT / "docs/costs.md").read_text() == table.page(results)


def test_missing_data_says_what_to_put_where(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", os.fspath(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"expected ptb/ptb.train.txt.*or name another folder"):
        characters.characters(10)
