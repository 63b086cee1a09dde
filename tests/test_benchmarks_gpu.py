"""The benchmarks for GPUs run at tiny sizes on the host, and say where they cannot run."""

import json
import warnings

import pytest
import torch

from benchmarks import gpu


def test_run_at_tiny_sizes_on_the_host(monkeypatch, capsys) -> None:
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


def test_report_a_case_that_fails(monkeypatch, tmp_path, capsys) -> None:
    def broken(settings):
        raise AssertionError("wrong numbers")

    monkeypatch.setattr(gpu, "correctness", broken)
    output = tmp_path / "gpu.json"
    name = "recurrence, every implementation against the reference"
    monkeypatch.setattr("sys.argv", ["gpu", "--dry-run", "--case", name, "--output", str(output)])
    assert gpu.main() == 1
    assert "wrong numbers" in json.loads(output.read_text())[name]["failed"]
    assert "FAILED: AssertionError: wrong numbers" in capsys.readouterr().out


def test_count_where_the_host_waits(monkeypatch) -> None:
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
    assert gpu._waits(settings, run) == ([f"test_benchmarks_gpu.py:{line}"] * 2, 7)
    assert modes == ["warn", "default"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_say_that_there_is_no_gpu(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--output", str(tmp_path / "gpu.json")])
    assert gpu.main() == 2
    assert "expected a CUDA device, found none" in capsys.readouterr().err
