"""The one place that switches reduced precision off, for all threads, and asks for a device."""

import re
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param._context import full_precision
from spectral_param._eigen.dense import dominant_eigentriple
from tests.precision import SETTINGS, Products, needs_setting


@needs_setting
def test_products_of_eigentriples(reduced) -> None:
    with Products() as products:
        dominant_eigentriple(torch.randn(2, 100, 100))  # larger than what is solved in numpy
    assert set(products.precisions) == {"ieee"}


@needs_setting
def test_the_setting_comes_back_when_the_last_thread_leaves(reduced) -> None:
    """As with one model on each of two devices; also where one fails."""
    entered, leave = threading.Barrier(2), threading.Event()
    seen = []

    @full_precision
    def product(x, wait):
        entered.wait(10)
        if wait:
            leave.wait(10)
            seen.append(SETTINGS.fp32_precision)
        raise RuntimeError

    def run(wait):
        with pytest.raises(RuntimeError):
            product(torch.ones(1), wait)

    threads = [threading.Thread(target=run, args=(wait,)) for wait in (True, False)]
    for thread in threads:
        thread.start()
    threads[1].join(10)
    assert SETTINGS.fp32_precision == "ieee"
    leave.set()
    threads[0].join(10)
    assert seen == ["ieee"]
    assert SETTINGS.fp32_precision == reduced


def test_tracking_under_autocast() -> None:
    """Products in bfloat16 would leave every step to LAPACK."""
    layer = sp.constrain(nn.Linear(120, 120, bias=False), "weight", sp.SpectralRadiusNorm())
    tracking, found = layer.parametrizations.weight[0].tracking, []
    follow = tracking.follow
    tracking.follow = lambda T: found.append(follow(T)) or found[-1]
    for _ in range(8):
        with torch.no_grad():
            layer.parametrizations.weight.original[0] += 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(torch.ones(1, 120)).sum().backward()
    assert len(found) == 8
    assert sum(leader.regular for leader in found) >= 5


def test_nothing_else_asks_for_the_type_of_a_tensor_or_of_its_device() -> None:
    """Others ask only whether a tensor is on the host, by ``is_cpu``, which torch.compile can trace."""
    package = Path(sp.__file__).parent
    asked = re.compile(r"\.device\.type|\.is_cuda\b|type\([^()]*\) (is|in|==) \(?(torch\.)?Tensor")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(asked.search(line) for line in path.read_text().splitlines())
    }
    assert found == {"_context.py"}
