"""The stand-in device is one, and the command that counts on it writes what it finds."""

import json

import pytest
import torch

from benchmarks import device as benchmark

standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
DEVICE = standin.DEVICE


def test_the_device_is_one() -> None:
    x = torch.ones(2).to(DEVICE)
    with pytest.raises(RuntimeError, match="numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match="on the device"):
        x + torch.ones(2)
    with standin.counting() as asked:
        assert bool((x + 1 == 2).all())
        x.copy_(torch.zeros(2), non_blocking=True)
        x.copy_(torch.zeros(2))
        x[x > 0]
    assert asked.waits == 3


@pytest.mark.parametrize("device", ["standin", "cpu"])
def test_the_command_writes_what_it_finds(device, monkeypatch, tmp_path, capsys) -> None:
    """A real device is timed; the host stands for one here."""
    output = tmp_path / "device.json"
    arguments = ["--device", device, "--only", "ScaledCayley", "--repeats", "2", "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["benchmarks.device", *arguments])
    benchmark.main()
    written = json.loads(output.read_text())
    assert written["environment"]["device"] == device
    (row,) = written["steps"].values()
    assert set(row) == {"difference", *(("launches", "waits") if device == "standin" else ("device", "host"))}
    assert "ScaledCayley" in capsys.readouterr().out
