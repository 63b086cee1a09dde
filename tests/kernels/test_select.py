"""Which implementation of the recurrence is chosen."""

import subprocess
import sys

import pytest
import torch

from spectral_param.functional import rnn
from spectral_param.kernels import select


def on_gpu(monkeypatch, capability=(9, 0)) -> None:
    """Let select believe that the tensors are on a GPU with 132 multiprocessors."""
    monkeypatch.setenv(select.VARIABLE, "auto")
    monkeypatch.setattr(select, "_has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("P", (), {"multi_processor_count": 132})
    )


class OnGPU:
    """What select looks at in a tensor."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, n, dtype=torch.float32):
        self.shape, self.dtype = torch.Size((1, n)), dtype


@pytest.mark.parametrize(
    ("n", "batch", "dtype", "expected"),
    [
        (1, 1, torch.float32, "resident"),
        (160, 50, torch.float32, "resident"),
        (192, 20, torch.float32, "resident"),
        (193, 20, torch.float32, "stepwise"),
        (1030, 32, torch.float32, "stepwise"),
        (160, 3000, torch.float32, "stepwise"),
        (160, 50, torch.float64, "stepwise"),
        (160, 50, torch.bfloat16, "torch"),
    ],
)
def test_choice_on_a_gpu(monkeypatch, n, batch, dtype, expected) -> None:
    pytest.importorskip("triton", reason="needs the package triton")
    on_gpu(monkeypatch)
    assert select.choose(OnGPU(n, dtype), batch) == expected


def test_choice_on_old_gpus_without_triton_and_on_the_host(monkeypatch) -> None:
    on_gpu(monkeypatch, capability=(7, 0))
    assert select.choose(OnGPU(5), 1) == "torch"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert select.choose(torch.zeros(2, 5), 1) == "torch"
    on_gpu(monkeypatch)
    monkeypatch.setattr(select, "_has_triton", lambda: False)
    assert select.choose(OnGPU(5), 1) == "torch"


def test_torch_unless_asked_otherwise(monkeypatch) -> None:
    on_gpu(monkeypatch)
    monkeypatch.setenv(select.VARIABLE, "torch")
    assert select.choose(OnGPU(5), 1) == "torch"
    monkeypatch.delenv(select.VARIABLE)
    assert select.choose(OnGPU(5), 1) == "torch"


@pytest.mark.parametrize("wanted", ["resident", "stepwise"])
def test_what_is_asked_for_and_cannot_run_raises(monkeypatch, wanted) -> None:
    x, h0, W = torch.randn(2, 1, 3), torch.zeros(1, 3), torch.eye(3)
    monkeypatch.setenv(select.VARIABLE, wanted)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(select, "_has_triton", lambda: True)
    with pytest.raises(ValueError, match=r"expected tensors on a CUDA device .* got cpu. Set it to auto"):
        rnn(x, h0, None, W)
    monkeypatch.setattr(select, "_has_triton", lambda: False)
    with pytest.raises(ValueError, match="expected the package triton to be installed"):
        rnn(x, h0, None, W)


def test_too_large_for_registers_raises(monkeypatch) -> None:
    pytest.importorskip("triton", reason="needs the package triton")
    on_gpu(monkeypatch)
    monkeypatch.setenv(select.VARIABLE, "resident")
    with pytest.raises(ValueError, match=r"expected float32 and .* got torch.float32 and n = 193"):
        select.choose(OnGPU(193), 1)


def test_unknown_name_raises(monkeypatch) -> None:
    monkeypatch.setenv(select.VARIABLE, "fast")
    with pytest.raises(ValueError, match="expected auto, torch, resident, stepwise, got 'fast'"):
        select.choose(torch.zeros(1, 1), 1)


def test_kernels_are_not_imported_with_the_package() -> None:
    code = (
        "import sys, torch, spectral_param as sp; before = 'triton' in sys.modules\n"
        "sp.nn.ScoRNN(2, 3)(torch.zeros(2, 1, 2))\n"
        "assert 'spectral_param.kernels.triton_recurrence' not in sys.modules\n"
        "assert ('triton' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
