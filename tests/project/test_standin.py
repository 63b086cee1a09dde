"""The stand-in device is one, and what is counted on it is limited."""

import pytest
import torch

from benchmarks.measures import cuda, device
from benchmarks.problems import device as benchmark

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


def test_a_device_is_timed_beside_the_host() -> None:
    """The host stands for a GPU here."""
    case = next(case for case in benchmark.cases() if "ScaledCayley" in case.name)
    found = cuda.timed(case, "cpu", repeats=2)
    assert found["difference"] == 0
    assert set(found["contenders"]) == {"device", "host"}


def test_more_launches_than_the_limit_are_an_error(monkeypatch) -> None:
    case = next(case for case in benchmark.cases() if "ScaledCayley" in case.name)
    assert device.counted(case)["launches"] > 0
    monkeypatch.setitem(device.LIMITS, case.name, (1, 0))
    with pytest.raises(AssertionError, match="expected at most 1 launches"):
        device.counted(case)
