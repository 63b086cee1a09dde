"""Everything has its device and its dtype from what it is given, whatever PyTorch's defaults are."""

import contextlib
import itertools

import pytest
import torch

import spectral_param as sp
from tests.promises.jobs import JOBS, NETWORKS, numbers, on_the_host, parametrized, same

# An older torch has no hook for Python backends.
try:
    from benchmarks import standin
except ImportError:
    standin = None


@contextlib.contextmanager
def defaults(device, dtype):
    """Let new tensors have this device and this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with standin.counting() if device == "standin" else contextlib.nullcontext(), torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def check(name, device, dtype) -> None:
    """The job has the same bits as under PyTorch's usual defaults."""
    expected = on_the_host(name)
    torch.manual_seed(0)
    with defaults(device, dtype):
        found = numbers(JOBS[name](lambda thing: thing))
    assert same(found, expected)


@pytest.mark.parametrize("name", parametrized())
@pytest.mark.turns(2)
def test_other_defaults_change_nothing(name) -> None:
    """A tensor on the meta device has no value, so every use of one is an error or a wrong result."""
    check(name, "meta", torch.float64)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "device", "dtype"),
    [
        (name, device, dtype)
        for name, device, dtype in itertools.product(
            JOBS, ("cpu", "meta", "standin"), (torch.float64, torch.float16, torch.bfloat16)
        )
        if (device, dtype) != ("meta", torch.float64)
    ],
)
def test_each_other_default_changes_nothing(name, device, dtype) -> None:
    if device == "standin" and standin is None:
        pytest.skip("an older torch has no hook for Python backends")
    check(name, device, dtype)


def test_the_table_has_every_public_name() -> None:
    """Pictures are one job, layers another one; named tuples are what functions return."""
    named = {name.partition(": ")[2].split(",")[0].split("-")[0] for name in JOBS}
    for module in (sp.functional, sp.analysis, sp.init, sp.nn, sp.dynamics, sp):
        others = {"SequenceLayer", "MaxMin", "ModReLU", "Residual"} if module is sp.nn else set()
        for name in set(module.__all__) - named - others:
            made = getattr(module, name)
            is_constraint = isinstance(made, type) and issubclass(made, sp.Parametrization)
            assert not is_constraint or made is sp.Parametrization, name
            is_function = callable(made) and not isinstance(made, type)
            assert not is_function or name.startswith("plot_") or module is sp, name


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.turns(3)
def test_constructors_follow_both_defaults_as_those_of_torch_do(name) -> None:
    with defaults("meta", torch.float64):
        tensors = list(NETWORKS[name]().parameters())
        assert all(t.is_meta and t.dtype.to_real() == torch.float64 for t in tensors)
        given = NETWORKS[name](device="cpu", dtype=tensors[0].dtype)
        assert all(t.device.type == "cpu" for t in given.parameters())


@pytest.mark.skipif(standin is None, reason="an older torch has no hook for Python backends")
@pytest.mark.parametrize("fill", [sp.init.cayley_, sp.init.disc_, sp.init.henaff_, sp.init.spectral_radius_])
def test_a_generator_draws_on_its_own_device(fill) -> None:
    """One of the host fills a tensor elsewhere, with the numbers that it gives on the host."""
    here = fill(torch.empty(6, 6), generator=torch.Generator().manual_seed(0))
    with standin.counting():
        there = fill(torch.empty(6, 6).to(standin.DEVICE), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(there.cpu(), here)
