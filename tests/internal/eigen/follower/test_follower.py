"""What tracking needs to go on: saved, resumed to the same bits, and not believed where it was changed."""

import io

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param._eigen import follower, tracking
from spectral_param._eigen.follower import Follower
from spectral_param._eigen.norm import NormFollower
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
@pytest.mark.parametrize(("read_before_saving", "mode"), [(False, "equal"), (True, "latched")])
def test_resume_bit_for_bit(read_before_saving, mode) -> None:
    half = trained(range(8), read_before_saving, mode=mode)
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    resumed = trained(range(8, 16), state=torch.load(file), mode=mode)
    whole = trained(range(8), read_before_saving, mode=mode)
    for t in range(8, 16):
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


@pytest.mark.parametrize("name", NAMES)
def test_a_state_of_another_shape_is_refused(name) -> None:
    layer = trained(range(2))
    for shape in ((0,), (3,), (1, 3)):
        state = {**layer.state_dict(), KEY + name: torch.zeros(shape)}
        with pytest.raises(RuntimeError, match=rf"{name}: expected.*got \({shape[0]},"):
            layer.load_state_dict(state)
        assert radius(layer) == pytest.approx(1, abs=1e-5)
        state = {key: value for key, value in state.items() if not key.startswith(KEY)}  # The remedy.
        layer.load_state_dict(state)
        assert radius(layer) == pytest.approx(1, abs=1e-5)


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


def test_numbers_are_lossless() -> None:
    T = torch.randn(60, 60, dtype=torch.float64)
    T[0] += 3
    state = None
    for _ in range(3):
        _, state = tracking.track(T, state)
        T = 1.01 * T
    assert state.regular
    assert tracking.from_numbers(state.right, state.left, tracking.to_numbers(state)) == state


def separated(n=N):
    T = torch.randn(n, n) / n**0.5 / 2
    T[0, 0] += 1
    return T


def test_operator_keeps_its_promises() -> None:
    module = Follower("tracking")
    T = separated(24)
    module.begin(T)
    arguments = (T, module.right, module.left, module.numbers)
    torch.library.opcheck(follower._followed_radius, arguments)


def test_a_followed_norm_continues_to_the_same_bits() -> None:
    T = torch.randn(150, 100)
    one, restored = NormFollower("tracking"), NormFollower("tracking")
    for step in range(8):
        T = T + 1e-3 * torch.randn(150, 100)
        (value, v), bound = one.follow(T)
        if step == 3:
            restored.load_state_dict(one.state_dict(), strict=False)
        elif step > 3:
            (other, w), other_bound = restored.follow(T.clone())
            assert torch.equal(v, w)
            assert torch.equal(value, other)
            assert torch.equal(bound, other_bound)
