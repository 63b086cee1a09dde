"""The benchmarks run, and the page of costs says what the committed numbers say."""

import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as runner
from benchmarks import cases, gpu, table

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
    assert len(results) == 7
    assert all(set(r["environment"]) >= {"commit", "torch", "cores", "threads"} for r in results.values())
    rows = [row for result in results.values() for row in result["contenders"].values()]
    assert all(row["least"] <= row["median"] <= row["most"] for row in rows)
    assert "Training step on characters" in table.page(results)
    assert "tracked" in capsys.readouterr().out


def test_page_is_that_of_the_committed_numbers() -> None:
    results = json.loads((ROOT / "benchmarks/results/cpu.json").read_text())
    assert (ROOT / "docs/costs.md").read_text() == table.page(results)


def test_missing_data_says_what_to_put_where(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", os.fspath(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"expected ptb/ptb.train.txt.*or name another folder"):
        cases.characters(10)


def test_gpu_benchmarks_run_at_tiny_sizes_on_the_host(monkeypatch, capsys) -> None:
    # Without the kernels, whose interpreter is slow: tests/kernels has them.
    monkeypatch.setattr(gpu.Settings, "kernels", lambda self, n: ["torch"])
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv(gpu.select.VARIABLE, "auto")
    settings = gpu.Settings(dry=True, repeats=1)
    for name in gpu.cases(settings):
        result = gpu.run_case(settings, name)
        assert "failed" not in result, result["failed"]
        assert set(result["environment"]) >= {"commit", "torch", "device", "triton"}
        gpu._show(name, json.loads(json.dumps(result)))
    assert "loop of autograd operations" in capsys.readouterr().out


def test_gpu_benchmarks_report_a_case_that_fails(monkeypatch, tmp_path, capsys) -> None:
    def broken(settings):
        raise AssertionError("wrong numbers")

    monkeypatch.setattr(gpu, "correctness", broken)
    output = tmp_path / "gpu.json"
    name = "recurrence, every implementation against the reference"
    monkeypatch.setattr("sys.argv", ["gpu", "--dry-run", "--case", name, "--output", str(output)])
    assert gpu.main() == 1
    assert "wrong numbers" in json.loads(output.read_text())[name]["failed"]
    assert "FAILED: AssertionError: wrong numbers" in capsys.readouterr().out


def test_gpu_benchmarks_count_where_the_host_waits(monkeypatch) -> None:
    settings = gpu.Settings(dry=True, repeats=1)
    modes = []
    monkeypatch.setattr(settings, "set_sync_debug_mode", modes.append)

    def run() -> int:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn(
            "Synchronization debug mode does not yet detect all synchronizing operations", stacklevel=1
        )
        return 7

    line = run.__code__.co_firstlineno + 2
    assert gpu._waits(settings, run) == ([f"test_benchmarks.py:{line}"] * 2, 7)
    assert modes == ["warn", "default"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_gpu_benchmarks_say_that_there_is_no_gpu(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--output", str(tmp_path / "gpu.json")])
    assert gpu.main() == 2
    assert "expected a CUDA device, found none" in capsys.readouterr().err
