"""On a device: the contracts, the host's numbers, few launches, and few waits."""

import copy
import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks import device as benchmark
from benchmarks.table import RESULTS
from spectral_param._eigen import dense, tracking
from spectral_param.functional._exponential import skew_exponential
from spectral_param.testing import Case, Trial, conformance, holder
from tests.promises.cases import CASES, FROM_THE_START

# An older torch has no hook for Python backends.
standin = pytest.importorskip("benchmarks.standin", exc_type=ImportError)
DEVICE = standin.DEVICE

# What these are about is not where the numbers are.
ELSEWHERE = {
    "gradients",
    "torch_func",
    "compile",
    "autocast",
    "deepcopy_of_rnn",
    "export",
    "remove",
    "bad_input",
}
# A real and a complex dtype of different precision, and gates.
PLACES = {((4, 4), torch.float32), ((4, 4), torch.complex128), ((16, 4), torch.float32)}
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


TRIALS = [
    trial
    for case in (*CASES, *FROM_THE_START)
    for trial in conformance(on_device(case))
    if str(trial.check) not in ELSEWHERE and (trial.shape, trial.dtype) in PLACES
]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
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


def launches_of_tracking(name: str) -> float:
    """How many are promised where the number of products depends on rounding: 200, more for some modes."""
    if "n = 128" not in name:
        return 0
    return 8 * 200 if "8 of" in name else 200 if "SpectralRadiusNorm, n" in name else 230


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case.name)
def test_numbers_launches_and_waits(case: benchmark.Case) -> None:
    """A step has the host's numbers, and asks no more of the device than the committed table says."""
    assert benchmark.compare(case, DEVICE) <= benchmark.TOLERANCE
    recorded = json.loads((RESULTS / "device.json").read_text())["steps"][case.name]
    found = benchmark.count(case)
    assert found["waits"] <= recorded["waits"]
    assert found["launches"] <= max(recorded["launches"], launches_of_tracking(case.name))


def test_committed_launches_and_waits_are_as_few_as_promised() -> None:
    """The committed table itself."""
    steps = json.loads((RESULTS / "device.json").read_text())["steps"]
    for name, launches, waits in (
        ("SpectralRadiusNorm, n = 16", 45, 1),
        ("SpectralRadiusNorm, n = 128", 200, 2),
        ("SpectralRadiusNorm, 8 of n = 16", 60, 1),
        ("SpectralRadiusNorm, 8 of n = 128", 8 * 200, 2),
        ("SkewExponential, n = 64", 145, 1),
        ("SchurForm, n = 64", 250, 1),
        ("ScaledCayley, n = 64", 49, 0),
    ):
        assert steps[name]["launches"] <= launches
        assert steps[name]["waits"] <= waits


@pytest.mark.parametrize(
    "name", ["SpectralRadiusNorm, 8 of n = 16", "SpectralRadiusNorm, 8 of n = 128", "SpectralAbscissa"]
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


def test_one_copy_each_way_for_a_batch() -> None:
    T = torch.randn(5, 7, 7)
    there = T.to(DEVICE)
    expected = dense.dominant_eigentriple(T)
    for count in (1, 5):
        with standin.counting() as asked:
            triple = dense.dominant_eigentriple(there[:count])
        assert asked.waits == 1
        torch.testing.assert_close(triple.eigenvalue.cpu(), expected.eigenvalue[:count])


@pytest.mark.parametrize("scale", [1.0, 1e35])
def test_a_step_that_falls_back_on_lapack_decomposes_once(scale, monkeypatch) -> None:
    """And its backward pass, from the memory, too, not at all."""
    calls = []
    found = tracking.dominant_eigentriple_and_moduli
    monkeypatch.setattr(
        tracking, "dominant_eigentriple_and_moduli", lambda T: calls.append(T.device.type) or found(T)
    )
    layer = sp.constrain(nn.Linear(100, 100, bias=False), "weight", sp.SpectralRadiusNorm()).to(DEVICE)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        # All eigenvalues are as large, so no step attempts to track.
        original.copy_(nn.init.orthogonal_(torch.empty(100, 100)) * scale)
        layer.weight  # noqa: B018  # The host has the state of the tracking from now on.
        original.mul_(1.01)
    calls.clear()
    with standin.counting() as asked:
        layer.weight.sum().backward()
    # T, and whether something is extreme, zero or defective; for an extreme T the last two once more.
    assert asked.waits <= (2 if scale == 1 else 4)
    layer.weight.sum().backward()
    assert calls == ["cpu"]


@pytest.mark.parametrize("case", CONSTRAINED, ids=lambda case: case.name)
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
    sizes = [0.0, 1e-30, 0.1, 5.0, 100.0, 1e7, float("nan"), float("inf")]
    T = torch.randn(len(sizes), 6, 6, dtype=dtype) * torch.tensor(sizes, dtype=dtype)[:, None, None]
    A = T.tril(-1) - T.tril(-1).mT
    for X in (A, *A, A[5] * 1e5, A[5] * torch.finfo(dtype).max / 1e9):
        with standin.counting():
            found = skew_exponential(X.to(DEVICE)).cpu()
        atol = 1e3 * torch.finfo(dtype).eps
        torch.testing.assert_close(found, skew_exponential(X), atol=atol, rtol=0, equal_nan=True)


def test_tracked_matrices_are_what_they_are_alone() -> None:
    """Also where one of them falls back on LAPACK and another is zero."""
    T = benchmark.led((4, 40, 40))
    T[1] = nn.init.orthogonal_(torch.empty(40, 40))
    T[2] = 0
    states = [None] * 4
    for _ in range(4):
        T = T * 1.01
        runs = [tracking.steps(matrix, state) for matrix, state in zip(T.to(DEVICE), states, strict=True)]
        together = tracking.together(runs)
        for i, ((triple, state), matrix) in enumerate(zip(together, T, strict=True)):
            alone, _ = tracking.track(matrix.to(DEVICE), states[i])
            assert torch.equal(alone.eigenvalue, triple.eigenvalue)
            assert torch.equal(alone.right, triple.right)
            states[i] = state


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


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6])
def test_tall_weights_of_large_originals_on_a_device(scale) -> None:
    layer = sp.constrain(torch.nn.Linear(16, 64, dtype=torch.float64), "weight", sp.SkewExponential())
    layer.parametrizations.weight.original.data.normal_(std=scale)
    expected = layer.weight.detach()
    with standin.counting():
        W = layer.to(DEVICE).weight.detach().cpu()
    assert (W.mT @ W - torch.eye(16)).abs().max() <= 100 * 16 * torch.finfo(torch.float64).eps
    torch.testing.assert_close(W, expected, rtol=0, atol=1e-12 * scale)


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
