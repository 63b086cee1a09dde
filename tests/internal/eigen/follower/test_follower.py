"""What tracking needs to go on: saved, resumed to the same bits, averaged, compiled and traced."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

import spectral_param as sp
from spectral_param._eigen import follower, tracking
from spectral_param._eigen.derivative import known_value
from spectral_param._eigen.follower import Follower
from spectral_param._parametrizations import spectral_radius

N = 80
KEY = "parametrizations.weight.0.tracking."
NAMES = ("right", "left", "numbers", "triple", "digest")


def constrained(n=N, dtype=torch.float32, **kwargs):
    kwargs.setdefault("solver", "tracking")
    layer = nn.Linear(n, n, bias=False, dtype=dtype)
    return sp.constrain(layer, "weight", sp.SpectralRadiusNorm(**kwargs))


def follower_of(layer):
    return layer.parametrizations.weight[0].tracking


def step(layer, t):
    x = torch.randn(8, N, generator=torch.Generator().manual_seed(t))
    layer.zero_grad()
    (layer(x) - x.flip(-1)).square().mean().backward()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter -= 0.5 * parameter.grad


def trained(steps, read_before_saving=False, state=None, **kwargs):
    """Train a layer and return it; ``state`` restores it first."""
    torch.manual_seed(1)
    layer = constrained(**kwargs)
    with torch.no_grad():
        layer.parametrizations.weight.original[0, 0] += 2  # Apart from the others, so that it is followed.
    if state is not None:
        layer.load_state_dict(state)
    for t in steps:
        step(layer, t)
    if read_before_saving:
        layer(torch.zeros(1, N))
    return layer


def radius(layer):
    return torch.linalg.eigvals(layer.weight.detach().double()).abs().max().item()


@pytest.fixture
def tracks(monkeypatch):
    calls = []
    track = tracking.track
    monkeypatch.setattr(tracking, "track", lambda *args: calls.append(1) or track(*args))
    return calls


@pytest.mark.kernels
@pytest.mark.parametrize("read_before_saving", [False, True])
@pytest.mark.parametrize("mode", ["equal", "latched"])
def test_resume_bit_for_bit(read_before_saving, mode) -> None:
    half = trained(range(15), read_before_saving, mode=mode)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    resumed = trained(range(15, 30), state=torch.load(file), mode=mode)
    whole = trained(range(15), read_before_saving, mode=mode)
    for t in range(15, 30):
        step(whole, t)
    assert torch.equal(resumed.weight, whole.weight)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    assert whole.parametrizations.weight[0]._memory.last.found.regular, "the last steps are followed"


@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_registration_takes_one_decomposition(scale, monkeypatch) -> None:
    calls = []
    decompose = tracking.dominant_eigentriple_and_moduli
    monkeypatch.setattr(
        tracking, "dominant_eigentriple_and_moduli", lambda T: calls.append(1) or decompose(T)
    )
    monkeypatch.setattr(spectral_radius, "dominant_eigentriple", None)
    layer = nn.Linear(N, N)
    with torch.no_grad():
        layer.weight.copy_(scale * separated())
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(solver="tracking"))
    assert radius(layer) == pytest.approx(1, abs=1e-5)
    assert len(calls) == 1


def test_after_loading_the_last_matrix_is_known(tracks) -> None:
    layer = trained(range(5), read_before_saving=True)
    other = constrained()
    other.load_state_dict(layer.state_dict())
    tracks.clear()
    assert torch.equal(other.weight, layer.weight)
    assert not tracks
    with torch.no_grad():
        other.parametrizations.weight.original.mul_(1.001)
    assert radius(other) == pytest.approx(1, abs=1e-5)
    assert tracks


def test_a_checkpoint_is_small_and_has_no_copy_of_the_weight() -> None:
    layer = sp.constrain(nn.Linear(300, 300, bias=False), "weight", sp.SpectralRadiusNorm())
    for t in range(3):
        with torch.no_grad():
            layer.parametrizations.weight.original[0, 0] += t
            layer.weight  # noqa: B018
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    weight = 300 * 300 * 4
    assert 1.05 * weight < file.tell() < 1.35 * weight
    assert set(layer.state_dict()) == {"parametrizations.weight.original", *(KEY + name for name in NAMES)}


def test_nothing_is_saved_where_nothing_is_tracked() -> None:
    assert set(constrained(n=16, solver="auto").state_dict()) == {"parametrizations.weight.original"}


def test_checkpoints_fit_other_solvers_and_sizes_of_state() -> None:
    layer = trained(range(5))
    dense = constrained(solver="dense")
    dense.load_state_dict(layer.state_dict())
    torch.testing.assert_close(dense.weight, layer.weight)
    layer.load_state_dict({KEY[: -len("0.tracking.")] + "original": dense.parametrizations.weight.original})
    torch.testing.assert_close(dense.weight, layer.weight)


def test_a_damaged_state_is_not_used() -> None:
    state = trained(range(5)).state_dict()
    for name in NAMES:
        state[KEY + name] = torch.full_like(state[KEY + name], torch.nan)
    assert radius(trained(range(2), state=state)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("n", [1, 6, 16, 17])
def test_a_separation_of_a_matrix_with_nothing_outside_its_blocks(n) -> None:
    layer = constrained(n=n)
    numbers = follower_of(layer).numbers
    numbers[:, tracking.NUMBERS.index("separation")] = 0.5
    layer.parametrizations.weight.original.data.add_(0.1 * torch.randn(n, n))
    assert radius(layer) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0,), (3,), (1, 3)])
def test_a_state_of_another_shape_is_refused(name, shape) -> None:
    layer = trained(range(5))
    state = {**layer.state_dict(), KEY + name: torch.zeros(shape)}
    with pytest.raises(
        RuntimeError, match=rf"{name}: expected shape \(.*\), got \({shape[0]},.*without the keys"
    ):
        layer.load_state_dict(state)
    assert radius(layer) == pytest.approx(1, abs=1e-5)
    state = {key: value for key, value in state.items() if not key.startswith(KEY)}  # The remedy.
    layer.load_state_dict(state)
    assert radius(layer) == pytest.approx(1, abs=1e-5)


def test_averaged_checkpoints_are_computed_anew() -> None:
    a, b = trained(range(5), read_before_saving=True), trained(range(7), read_before_saving=True)
    other = b.state_dict()
    a.load_state_dict({key: (value + other[key]) / 2 for key, value in a.state_dict().items()})
    assert radius(a) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("n", [6, N])
def test_averaged_models_keep_the_constraint(use_buffers, n) -> None:
    layer = constrained(n=n, mode="latched", solver="tracking" if n == N else "auto")
    averaged = AveragedModel(layer, use_buffers=use_buffers)
    for _ in range(4):
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(1.1).add_(0.01 * torch.randn(n, n))
        layer(torch.randn(2, n)).sum().backward()
        averaged.update_parameters(layer)
        found = averaged.module.weight
        T = averaged.module.parametrizations.weight.original.detach()
        latched = averaged.module.parametrizations.weight[0].latched
        rho = torch.linalg.eigvals(T.double()).abs().max().item()
        expected = T / rho if rho > 1 or latched > 0.5 else T
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-6)
    restored = constrained(n=n, mode="latched", solver="tracking" if n == N else "auto")
    restored.load_state_dict(averaged.module.state_dict())
    torch.testing.assert_close(restored.weight, averaged.module.weight)


@pytest.mark.parametrize("change", [lambda x: x.half().float(), lambda x: 0.1 * x, lambda x: x * torch.nan])
def test_a_triple_that_was_changed_is_not_believed(change) -> None:
    """T has the same bits, and its triple has not."""
    layer = trained(range(5), read_before_saving=True)
    state = layer.state_dict()
    state[KEY + "triple"] = change(state[KEY + "triple"])
    other = constrained()
    other.load_state_dict(state)
    assert radius(other) == pytest.approx(1, abs=1e-5)


def test_no_other_triple_is_called_regular() -> None:
    """Regular ones are divided by without a check."""
    layer = trained(range(5), read_before_saving=True)
    state = layer.state_dict()
    state[KEY + "numbers"][:, tracking.NUMBERS.index("regular")] += 1
    other = constrained()
    other.load_state_dict(state)
    calls = []
    recalled = Follower._recalled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Follower, "_recalled", lambda *args: calls.append(recalled(*args)) or calls[-1])
        assert radius(other) == pytest.approx(1, abs=1e-5)
    assert calls == [None]


def test_an_averaged_triple_belongs_to_no_matrix() -> None:
    """In place, as AveragedModel and broadcasts write buffers, without any call of ours."""
    layer = trained(range(5), read_before_saving=True)
    expected = layer.weight.detach().clone()
    for name in NAMES:
        getattr(follower_of(layer), name).mul_(0.5)
    assert torch.equal(layer.weight, expected), "the pair in memory is not in the buffers"
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(1.5)
    torch.testing.assert_close(layer.weight, expected)


@pytest.mark.parametrize("load", [False, True])
def test_a_new_weight_is_not_taken_for_the_old_one_moved(load) -> None:
    """After an assignment, or a checkpoint without the tracked state, nothing old is believed."""
    layer = trained(range(5), dtype=torch.float32)
    W = torch.linalg.qr(torch.randn(N, N)).Q
    if load:
        layer.load_state_dict({"parametrizations.weight.original": 3 * W}, strict=True)
    else:
        layer.weight = W
    torch.testing.assert_close(layer.weight, W, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.bfloat16])
def test_conversion_starts_anew(convert) -> None:
    layer = convert(trained(range(5)))
    tolerance = 1e-12 if layer.weight.dtype == torch.float64 else 0.1
    assert radius(layer) == pytest.approx(1, abs=tolerance)
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(2)
    assert radius(layer) == pytest.approx(1, abs=tolerance)


def test_copies_compute_the_same_bits() -> None:
    layer = trained(range(5))
    clone = copy.deepcopy(layer)
    for each in (layer, clone):
        each.parametrizations.weight.original.data.mul_(1.01).add_(1e-3)
    assert torch.equal(layer.weight, clone.weight)


def test_numbers_are_lossless() -> None:
    T = torch.randn(60, 60, dtype=torch.float64)
    T[0] += 3
    state = None
    for _ in range(3):
        _, state = tracking.track(T, state)
        T = 1.01 * T
    assert state.regular
    assert tracking.from_numbers(state.right, state.left, tracking.to_numbers(state)) == state


@pytest.mark.parametrize("value", [1e15, 1e20, 1e300])
@pytest.mark.parametrize("kind", [sp.SpectralRadiusNorm, sp.SpectralNorm])
def test_numbers_that_no_state_has(kind, value) -> None:
    layer = sp.constrain(nn.Linear(N, N), "weight", kind(mode="equal", solver="tracking"))
    state = copy.deepcopy(layer.state_dict())
    next(t for name, t in state.items() if name.endswith("numbers")).fill_(value)
    layer.load_state_dict(state)
    for _ in range(3):
        layer.parametrizations.weight.original.data.mul_(1.01).add_(1e-3 * torch.randn(N, N))
        assert layer.parametrizations.weight[0].in_manifold(layer.weight)


def test_reading_in_inference_mode_first() -> None:
    module = Follower("tracking")
    T = torch.randn(40, 40)
    with torch.inference_mode():
        module.follow(T)
    T2 = (1.01 * T).requires_grad_()
    rho = known_value(T2, module.follow(T2.detach()).triple)
    rho.backward()
    torch.testing.assert_close(rho, 1.01 * torch.linalg.eigvals(T).abs().max())


# Recorded graphs ----------------------------------------------------------------------------------


def separated(n=N):
    T = torch.randn(n, n) / n**0.5 / 2
    T[0, 0] += 1
    return T


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("mode", ["equal", "latched"])
def test_compiled_steps_follow(backend, mode, monkeypatch) -> None:
    layer = constrained(mode=mode)
    layer.parametrizations.weight.original.data.copy_(2 * separated())
    reference = copy.deepcopy(layer)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(3, N)
    for _ in range(6):
        results = []
        for each, owner in ((compiled, layer), (reference, reference)):
            owner.zero_grad()
            output = each(x)
            output.square().sum().backward()
            results.append((output.detach(), owner.parametrizations.weight.original.grad))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            for each in (layer, reference):
                each.parametrizations.weight.original.mul_(1.01)
    found, expected = (follower_of(each) for each in (layer, reference))
    assert torch.equal(found.numbers, expected.numbers), "the same steps, with the same state"
    assert found.numbers[0, tracking.NUMBERS.index("regular")] == 1
    monkeypatch.setattr(tracking, "dominant_eigentriple_and_moduli", None)
    compiled(x)  # Without LAPACK.


def test_a_compiled_step_has_no_second_derivative() -> None:
    layer = constrained()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    original = layer.parametrizations.weight.original
    with pytest.raises(NotImplementedError, match="second derivatives are not available"):
        torch.autograd.grad(compiled(torch.randn(3, N)).square().sum(), original, create_graph=True)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("n", [6, N])
@pytest.mark.parametrize("mode", ["equal", "at_most"])
def test_traced_modules_follow_the_parameter(n, mode) -> None:
    layer = constrained(n=n, mode=mode, solver="tracking" if n == N else "auto")
    x = torch.randn(3, n)
    traced = torch.jit.trace(layer, (x,), check_trace=False)
    for factor in (1.0, 3.0, 0.5):
        with torch.no_grad():
            layer.parametrizations.weight.original.mul_(factor).add_(0.01 * torch.randn(n, n))
        torch.testing.assert_close(traced(x), layer(x), rtol=1e-4, atol=1e-4)
        gradients = [torch.autograd.grad(f(x).square().sum(), layer.parameters())[0] for f in (traced, layer)]
        # Both follow the vectors to the root of working precision, each by itself.
        torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2 * gradients[1].abs().max().item())


def test_operator_keeps_its_promises() -> None:
    module = Follower("tracking")
    T = separated(24)
    module.begin(T)
    arguments = (T, module.right, module.left, module.numbers)
    torch.library.opcheck(follower._followed_radius, arguments)


def test_export_after_removal() -> None:
    layer = trained(range(3))
    x = torch.randn(3, N)
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), expected)
