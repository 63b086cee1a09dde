"""On a device: the contracts, and the host's numbers."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.problems import device as benchmark
from spectral_param.testing import Case, Trial, conformance, holder
from tests.promises.cases import CASES, FROM_THE_START
from tests.promises.jobs import JOBS, numbers, on_the_host, parametrized

# An older torch has no hook for Python backends.
standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
DEVICE = standin.DEVICE

# What may differ where the numbers are elsewhere. Training, checkpoints and removal have a test of their own.
ELSEWHERE = {
    "projection",
    "large_originals",
    "nan_in_a_batch",
}
STEPS = list(benchmark.cases())
CONSTRAINED = [case for case in benchmark.constraints() if case.name.split(",")[0].split("-")[0] in vars(sp)]


def on_device(case: Case) -> Case:
    """The case with its weights on the device."""
    outside = case.outside
    return dataclasses.replace(
        case,
        member=lambda shape, dtype: case.member(shape, dtype).to(DEVICE),
        outside=None if outside is None else lambda shape, dtype: outside(shape, dtype).to(DEVICE),
        violation=lambda W: case.violation(W.cpu()),
    )


def trials() -> list[Trial]:
    """One of each check and case; a mode of a case is registered from outside of the set."""
    found = {}
    for case in (*CASES, *FROM_THE_START):
        for trial in conformance(on_device(case)):
            if trial.shape in case.shapes and str(trial.check) in ELSEWHERE:
                found.setdefault((case.name, str(trial.check)), trial)
    return [t for (_, check), t in found.items() if not t.case.variant or check == "projection"]


def daily(value: Case | Trial, name: str, i: int):
    """Every second one for each day, but none whose fifty steps on a device the host imitates slowly."""
    return pytest.param(
        value, id=name, marks=pytest.mark.nightly if i % 2 or name.startswith("DoublyStochastic") else ()
    )


@pytest.mark.parametrize("trial", [daily(t, str(t), i) for i, t in enumerate(trials())])
@pytest.mark.turns(3)
def test_constraint_keeps_its_contract_on_a_device(trial: Trial) -> None:
    with standin.counting():
        trial()


def pulled(module: nn.Module, target: Tensor, steps: int) -> None:
    """Train, so that W comes nearer to the target."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (module.weight - target).abs().square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "case", [daily(case, case.name, i) for i, case in enumerate(c for c in CASES if not c.variant)]
)
@pytest.mark.turns(3)
def test_training_resume_and_removal(case: Case) -> None:
    """A checkpoint of the host goes on with the host's numbers, and one of the device to the same bits."""
    dtype = torch.float64 if torch.float64 in case.dtypes else torch.complex128
    here = holder(case, case.member((5, 5), dtype))
    target = torch.randn(5, 5, dtype=dtype)
    pulled(here, target, 2)
    with standin.counting():
        there = holder(case, here.weight.detach().to(DEVICE))
        there.load_state_dict(here.state_dict())
        pulled(here, target, 3)
        pulled(there, target.to(DEVICE), 3)
        torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach(), rtol=1e-9, atol=1e-9)
        again = holder(case, there.weight.detach().clone())
        again.load_state_dict(copy.deepcopy(there.state_dict()))
        for each in (there, again):
            pulled(each, target.to(DEVICE), 2)
        assert torch.equal(there.weight, again.weight)
        tensors = [*there.parameters(), *there.buffers(), there.weight]
        assert all(t.device == DEVICE for t in tensors if t.numel())
        expected = there.weight.detach().clone()
        sp.remove(there)
        assert torch.equal(there.weight, expected)
        assert there.weight.device == DEVICE
        assert isinstance(there.weight, nn.Parameter)


@pytest.mark.turns(6)
@pytest.mark.parametrize("case", STEPS, ids=(case.name for case in STEPS))
def test_a_step_has_the_numbers_of_the_host(case: benchmark.Case) -> None:
    assert benchmark.compare(case, DEVICE) <= benchmark.TOLERANCE


@pytest.mark.parametrize(
    "name",
    [
        "SpectralRadiusNorm, 8 of n = 16",
        pytest.param("SpectralRadiusNorm, 8 of n = 128", marks=pytest.mark.nightly),
        "SpectralAbscissa",
    ],
)
def test_a_device_without_eigenvalues(name) -> None:
    (case,) = (case for case in STEPS if case.name.startswith(name))
    with standin.refusing("linalg_eig", "linalg_eigvals", "_linalg_eigvals"):
        with pytest.raises(NotImplementedError, match="linalg_eig"):
            torch.linalg.eigvals(case.x.to(DEVICE))
        assert benchmark.compare(case, DEVICE) <= benchmark.TOLERANCE
        with standin.counting():
            W = case.module.weight.detach().to(DEVICE)
            assert sp.functional.spectral_radius(W).shape == W.shape[:-2]
            assert sp.analysis.eigenvalues(W).device == DEVICE
            sp.constrain(nn.ParameterDict({"weight": W}), "weight", sp.SpectralRadiusNorm())


@pytest.mark.parametrize("name", parametrized("constraint", "network", "model", "init"))
@pytest.mark.turns(2)
def test_a_device_without_double_precision(name) -> None:
    """What needs it is computed on the host; the numbers are those of a model there, to single precision."""
    expected = on_the_host(name)
    torch.manual_seed(0)
    with standin.without_double(), standin.counting():
        found = numbers(JOBS[name](lambda thing: thing.to(DEVICE)))
    assert len(found) == len(expected)
    for here, there in zip(expected, found, strict=True):
        if isinstance(here, Tensor) and here.dtype in (torch.bool, torch.int64):
            assert torch.equal(there, here)
        elif isinstance(here, Tensor):
            size = max(0.01, here.abs().nan_to_num().max().item()) if here.numel() else 0.0
            exact = torch.complex128 if here.is_complex() else torch.float64
            limit = {"rtol": 0.0, "atol": benchmark.TOLERANCE * size, "equal_nan": True}
            torch.testing.assert_close(there.to(exact), here.to(exact), **limit)
        else:
            assert there == pytest.approx(here, rel=benchmark.TOLERANCE)


def test_the_device_without_double_precision_refuses_it() -> None:
    """Also what leaves it in another dtype, which the device would convert."""
    x = torch.ones(2).to(DEVICE)
    with standin.without_double():
        for dtype in (torch.float64, torch.complex128):
            for refused in (
                lambda dtype=dtype: x.to(dtype),
                lambda dtype=dtype: x.to("cpu", dtype),
                lambda dtype=dtype: torch.zeros(2, dtype=dtype, device=DEVICE),
                lambda dtype=dtype: torch.zeros(2, dtype=dtype).to(DEVICE),
                lambda dtype=dtype: torch.zeros(2, dtype=dtype).copy_(x),
            ):
                with pytest.raises(TypeError, match="stand-in device doesn't support"):
                    refused()
        assert torch.ones(2, dtype=torch.float64).to(DEVICE, torch.float32).dtype == torch.float32
    assert x.double().dtype == torch.float64


@pytest.mark.parametrize("constraint", [sp.ScaledCayley, lambda: sp.LyapunovForm(metric="diagonal")])
def test_double_precision_takes_one_transfer_each_way(constraint) -> None:
    """A read sends the original and gets the weight; a backward pass sends and gets a gradient."""
    module = sp.constrain(nn.Linear(8, 8, bias=False), "weight", constraint()).to(DEVICE)
    (original,) = module.parameters()
    with standin.without_double():
        with standin.counting() as reading:
            weight = module.weight
        with standin.counting() as pulling:
            weight.backward(torch.ones(8, 8).to(DEVICE, non_blocking=True))
    assert original.grad.device == DEVICE
    assert reading.waits <= 3, "original, signs or bound, and the weight"
    assert pulling.waits <= 2


@pytest.mark.parametrize("case", CONSTRAINED, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_a_second_read_waits_once(case: benchmark.Case) -> None:
    """Whether anything has changed is one question, however many tensors the weight depends on."""
    with standin.counting():
        module = copy.deepcopy(case.module).to(DEVICE)
        module.weight  # noqa: B018
    with standin.counting() as asked:
        module.weight  # noqa: B018
    assert asked.waits == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_of_any_size(dtype) -> None:
    """What the host learns from one look gives the numbers that it computes itself."""
    exponential = sp.functional.exponential
    sizes = [0.0, 1e-30, 0.1, 5.0, 100.0, 1e7, float("nan"), float("inf")]
    T = torch.randn(len(sizes), 6, 6, dtype=dtype) * torch.tensor(sizes, dtype=dtype)[:, None, None]
    A = T.tril(-1) - T.tril(-1).mT
    for X in (A, *A, A[5] * 1e5, A[5] * torch.finfo(dtype).max / 1e9):
        with standin.counting():
            found = exponential(X.to(DEVICE)).cpu()
        atol = 1e3 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, exponential(X), atol=atol, rtol=0, equal_nan=True)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
def test_tall_weights_of_large_originals_on_a_device(scale) -> None:
    layer = sp.constrain(torch.nn.Linear(16, 64, dtype=torch.float64), "weight", sp.SkewExponential())
    layer.parametrizations.weight.original.data.normal_(std=scale)
    expected = layer.weight.detach()
    with standin.counting():
        W = layer.to(DEVICE).weight.detach().cpu()
    assert (W.mT @ W - torch.eye(16)).abs().max() <= 100 * 16 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(W, expected, rtol=0, atol=1e-12 * scale)


def test_doubly_stochastic_matrices_do_not_wait() -> None:
    T = torch.randn(7, 4, 4, dtype=torch.float64)
    T[0] *= 30
    T[1] *= 1000
    X = T.to(DEVICE).requires_grad_()
    with standin.counting() as asked:
        W = sp.functional.doubly_stochastic(X)
        (gradient,) = torch.autograd.grad(W.square().sum(), X)
    assert asked.waits == 0
    assert asked.launches > 0
    found = [W.detach().cpu(), gradient.cpu()]
    X = T.clone().requires_grad_()
    W = sp.functional.doubly_stochastic(X)
    expected = [W.detach(), torch.autograd.grad(W.square().sum(), X)[0]]
    for on_device, on_host in zip(found, expected, strict=True):
        torch.testing.assert_close(on_device, on_host, rtol=0, atol=1e-13)
