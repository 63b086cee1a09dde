"""Bounds of every kind: saved, loaded, averaged, converted and edited, and seen by the next read."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import spectral_param as sp
from spectral_param.testing import Holder
from tests.messages import refused

BATCH, N = 3, 6


def sizes(kind, W):
    """Return what the bound is about, for each matrix."""
    W = W.detach().double()
    if kind is sp.SpectralNorm:
        return torch.linalg.matrix_norm(W, 2)
    values = torch.linalg.eigvals(W)
    return values.real.amax(dim=-1) if kind is sp.SpectralAbscissa else values.abs().amax(dim=-1)


NAMES = {sp.SpectralRadiusNorm: "radius", sp.SpectralNorm: "norm", sp.SpectralAbscissa: "abscissa"}
KINDS = pytest.mark.parametrize("kind", NAMES)
BOUNDS = pytest.mark.parametrize("given", [[0.3, 0.5, 0.7], "present"], ids=["numbers", "present"])


def constrained(kind, given="present", scale=1.0, dtype=torch.float32, batch=(BATCH,)):
    module = Holder(scale * torch.randn(*batch, N, N, dtype=dtype))
    given = given if isinstance(given, str) else torch.tensor(given)
    return sp.constrain(module, "weight", kind(given, mode="equal"))


def bound(module):
    constraint = module.parametrizations.weight[0]
    return getattr(constraint, NAMES[type(constraint)])


def assert_holds(module, expected, eps=1e-5):
    kind = type(module.parametrizations.weight[0])
    torch.testing.assert_close(sizes(kind, module.weight), expected.double(), rtol=eps, atol=eps)


@KINDS
@BOUNDS
def test_a_checkpoint_has_the_bound(kind, given) -> None:
    module = constrained(kind, given)
    other = constrained(kind, given if isinstance(given, str) else [1.0] * BATCH)
    key = f"parametrizations.weight.0.{NAMES[kind]}"
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    assert state[key].dtype == torch.float64
    other.load_state_dict(state)
    assert torch.equal(bound(other), bound(module))
    assert_holds(other, bound(module))
    torch.testing.assert_close(other.weight, module.weight)


@KINDS
@BOUNDS
def test_a_bound_that_is_written_in_place_is_seen(kind, given) -> None:
    """As loaders and averages do that know nothing of this library."""
    module, other = constrained(kind, given), constrained(kind, given)
    other.weight  # noqa: B018
    own = other.state_dict()
    for key, value in module.state_dict().items():
        own[key].copy_(0.5 * value)
    assert_holds(other, 0.5 * bound(module))


@KINDS
def test_a_load_is_in_place_and_seen(kind) -> None:
    module = constrained(kind, [0.3, 0.5, 0.7])
    held = bound(module)
    state = copy.deepcopy(module.state_dict())
    key = f"parametrizations.weight.0.{NAMES[kind]}"
    state[key] = 2 * state[key]
    module.load_state_dict(state)
    assert held is bound(module)
    assert_holds(module, torch.tensor([0.6, 1.0, 1.4]))


@KINDS
def test_an_average_of_buffers_is_the_average_of_bounds(kind) -> None:
    model = constrained(kind, [0.3, 0.5, 0.7])
    averaged = AveragedModel(model, use_buffers=True)
    averaged.update_parameters(model)
    bound(model).add_(1.0)
    averaged.update_parameters(model)
    assert_holds(averaged.module, torch.tensor([0.8, 1.0, 1.2]))


@KINDS
@BOUNDS
def test_a_conversion_keeps_every_digit(kind, given) -> None:
    module = constrained(kind, given, dtype=torch.float64)
    expected = bound(module).clone()
    for convert in (nn.Module.half, nn.Module.bfloat16, nn.Module.float, nn.Module.double):
        convert(module)
        assert torch.equal(bound(module), expected)
    assert_holds(module, expected, eps=1e-9)


@KINDS
def test_the_meta_device_keeps_the_bound(kind) -> None:
    with torch.device("meta"):
        module = Holder(torch.empty(BATCH, N, N))
    sp.constrain(module, "weight", kind(torch.tensor([0.3, 0.5, 0.7]), mode="equal"))
    module.to_empty(device="cpu")
    links = module.parametrizations.weight
    links[0].restart(*links.parameters(recurse=False))
    assert_holds(module, torch.tensor([0.3, 0.5, 0.7]))


@KINDS
def test_a_bound_that_is_set_is_seen_and_checked(kind) -> None:
    module = constrained(kind, "present")
    constraint, name = module.parametrizations.weight[0], NAMES[kind]
    for value in (0.25, torch.tensor([0.3, 0.5, 0.7]), [0.4, 0.2, 0.1]):
        setattr(constraint, name, value)
        assert_holds(module, torch.as_tensor(value).expand(BATCH))
    for wrong in (torch.nan, [1.0, torch.inf, 1.0], nn.Parameter(torch.ones(3)), "now"):
        with refused(name):
            setattr(constraint, name, wrong)
    assert_holds(module, torch.tensor([0.4, 0.2, 0.1]))


@KINDS
def test_the_numbers_are_not_the_callers_tensor(kind) -> None:
    given = torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64)
    module = sp.constrain(Holder(torch.randn(BATCH, N, N)), "weight", kind(given, mode="equal"))
    given.mul_(2)
    assert_holds(module, torch.tensor([0.3, 0.5, 0.7]))


@KINDS
def test_a_checkpoint_of_an_earlier_version_without_the_numbers_loads(kind) -> None:
    module = constrained(kind, [0.3, 0.5, 0.7])
    state = {key: t for key, t in constrained(kind, [1.0] * 3).state_dict().items() if "original" in key}
    module.load_state_dict(state)
    assert_holds(module, torch.tensor([0.3, 0.5, 0.7]))
    with pytest.raises(RuntimeError, match=NAMES[kind]):  # What "present" found cannot be guessed.
        constrained(kind, "present").load_state_dict(state)


# Bounds that are set in training, as by a schedule ------------------------------------------------

BOUNDED = {
    "radius": sp.SpectralRadiusNorm,
    "latched": lambda bound: sp.SpectralRadiusNorm(bound, "latched"),
    "norm": sp.SpectralNorm,
    "Lyapunov": sp.LyapunovForm,
    "diagonal": lambda bound: sp.LyapunovForm(bound, metric="diagonal"),
    "abscissa": sp.SpectralAbscissa,
}


def name_of(constraint: nn.Module) -> str:
    return next(name for name in ("radius", "norm", "abscissa") if hasattr(constraint, name))


def model(kind: str, bound) -> nn.Module:
    return sp.constrain(nn.Linear(5, 5), "weight", BOUNDED[kind](bound))


@pytest.mark.parametrize("given", [1.5, torch.tensor(1.5)], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", BOUNDED)
def test_a_bound_that_is_set_is_saved(kind, given) -> None:
    layer, restored = model(kind, given), model(kind, given)
    constraint = layer.parametrizations.weight[0]
    setattr(constraint, name_of(constraint), 0.25)
    restored.load_state_dict(layer.state_dict())
    assert torch.equal(restored.weight, layer.weight)
    assert float(getattr(restored.parametrizations.weight[0], name_of(constraint))) == 0.25
    assert torch.equal(copy.deepcopy(layer).weight, layer.weight)


def test_a_bound_inside_another_constraint_is_saved() -> None:
    network, restored = sp.nn.ENRNN(2, 6, 4, mode="equal"), sp.nn.ENRNN(2, 6, 4, mode="equal")
    for module in network.modules():
        if isinstance(module, sp.SpectralRadiusNorm):
            module.radius = 0.25
    restored.load_state_dict(network.state_dict())
    x = torch.randn(7, 3, 2)
    assert torch.equal(restored(x)[0], network(x)[0])


def test_a_number_that_was_never_changed_is_not_saved() -> None:
    """So checkpoints do not depend on how the bound of the constructor is written."""
    for kind in BOUNDED:
        assert not any(key.endswith(("radius", "norm", "abscissa")) for key in model(kind, 1.5).state_dict())
    tightened = model("radius", 0.75)
    tightened.load_state_dict(model("radius", 1.5).state_dict())
    assert torch.linalg.eigvals(tightened.weight).abs().max().item() == pytest.approx(0.75)


def test_a_checkpoint_of_a_present_bound_gives_a_number_its_value() -> None:
    layer = nn.Linear(5, 5)
    saved = sp.constrain(layer, "weight", sp.SpectralRadiusNorm("present"))
    restored = model("radius", 1.0)
    restored.load_state_dict(saved.state_dict())
    assert torch.equal(restored.weight, saved.weight)
