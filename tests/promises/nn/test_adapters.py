"""Orthogonal fine-tuning: frozen weights, rotated block by block."""

import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import geotorch
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import spectral_param as sp
from tests.messages import refused

ROOT = Path(__file__).parents[3]
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


class Attention(nn.Module):
    """Attention whose queries, keys and values have other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(24, 4, kdim=10, vdim=14, batch_first=True)

    def forward(self, x):
        return self.inner(x, x[..., :10], x[..., :14])[0]


def encoder(features, heads, hidden, layers=1):
    layer = nn.TransformerEncoderLayer(features, heads, hidden, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


# Name: model, input, pattern, size of the blocks, dtype. Numbers of blocks in a weight: 1 to 64.
MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64)), (5, 6), "*", 64, F32),
    "linear 2": (lambda: nn.Sequential(nn.Linear(6, 128), nn.Tanh()), (5, 6), "0", 2, BF16),
    "linear 3": (
        lambda: nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 6)),
        (5, 7),
        "*.weight",
        3,
        F64,
    ),
    "linear, whole": (lambda: nn.Linear(33, 17), (5, 33), "weight", None, F32),
    "kernel": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten()), (2, 3, 6, 6), "*", 4, F32),
    "groups": (lambda: nn.Conv1d(8, 12, 3, stride=2, groups=4), (2, 8, 9), "weight", 3, BF16),
    "transposed": (lambda: nn.ConvTranspose2d(8, 6, 3, groups=2), (2, 8, 5, 5), "weight", None, F32),
    "volumes": (lambda: nn.Conv3d(2, 32, 2, padding=1), (1, 2, 4, 4, 4), "weight", 16, F64),
    "encoder": (lambda: encoder(64, 4, 96, 2), (3, 5, 64), "*.self_attn", 16, F32),
    "encoder, bfloat16": (lambda: encoder(32, 4, 64), (3, 5, 32), "*", 8, BF16),
    "three sizes": (Attention, (3, 5, 24), "inner", 12, F32),
    "encoder, whole": (lambda: encoder(16, 2, 32), (3, 5, 16), "*proj*weight", None, F64),
}
SCALES = (1e-3, 1.0, 1e3)


def built(name):
    """A model, its input, and its adapters. In training attention takes no other path without gradients."""
    make, shape, pattern, block_size, dtype = MODELS[name]
    torch.manual_seed(0)
    model, x = make().to(dtype), torch.randn(shape).to(dtype)
    return model, x, sp.nn.adapt(model, pattern, block_size)


def moved(adapters, scale, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapters.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator, dtype=F64))
    return adapters


def weight(model, name):
    owner, _, tensor = name.rpartition(".")
    return getattr(model.get_submodule(owner), tensor)


def base(model, name):
    owner, _, tensor = name.rpartition(".")
    return getattr(model.get_submodule(owner).parametrizations, tensor).original


def by_hand(model, name, entries):
    """RW in double precision, by a solve, which has an error of eps times the norm of A; R; and the error."""
    k, count = entries.shape
    b = (1 + math.isqrt(1 + 8 * count)) // 2
    L = torch.zeros(k, b, b, dtype=F64)
    row, column = torch.tril_indices(b, b, -1)
    L[:, row, column] = entries.double()
    A, identity = L - L.mT, torch.eye(b, dtype=F64)
    R = torch.block_diag(*torch.linalg.solve(identity + A, identity - A))
    error = 10 * torch.finfo(F64).eps * (1 + float(torch.linalg.matrix_norm(A).max()))
    W = base(model, name).double()
    owner = model.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, nn.ConvTranspose2d):
        outputs_first = torch.cat([part.transpose(0, 1) for part in W.chunk(owner.groups)])
        rotated = (R @ outputs_first.flatten(1)).view_as(outputs_first)
        return torch.cat([part.transpose(0, 1) for part in rotated.chunk(owner.groups)]), R, error
    return (R @ W.flatten(1)).view_as(W), R, error


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.turns(2)
def test_a_model_starts_as_it_is_and_only_rotations_train(name) -> None:
    model, x, adapters = built(name)
    dtype = MODELS[name][-1]
    with adapters.off():
        for full in adapters.names:
            assert weight(model, full) is base(model, full)
    for full in adapters.names:
        assert torch.equal(weight(model, full), base(model, full))
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in adapters.parameters()}
    assert len(trained) == len(adapters.names)
    assert all(p.dtype == (F64 if dtype == F64 else F32) for p in trained)
    before = {full: base(model, full).clone() for full in adapters.names}
    optimizer, losses = torch.optim.SGD(trained, lr=1e-2), []
    target = torch.randn_like(model(x).double())
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x).double() - target).square().mean()
        loss.backward()
        assert all(p.grad.abs().max() > 0 for p in trained if p.numel() > 100)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(base(model, full), W) for full, W in before.items())


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_rotated_exactly_and_merging_rounds_once(name, scale) -> None:
    model, x, adapters = built(name)
    moved(adapters, scale)
    dtype, state = MODELS[name][-1], adapters.state_dict()
    eps = torch.finfo(dtype).eps
    computed_in = torch.finfo(F64 if dtype == F64 else F32).eps
    for full, R in adapters.rotations().items():
        b = R.shape[-1]
        defect = R.double() @ R.double().mT - torch.eye(b, dtype=F64)
        assert defect.abs().max() <= 64 * b**0.5 * torch.finfo(R.dtype).eps
        _, expected, error = by_hand(model, full, state[full])
        found = torch.block_diag(*R.double())
        torch.testing.assert_close(found, expected, atol=100 * b * computed_in + error, rtol=0)
    read = {full: weight(model, full).detach().clone() for full in adapters.names}
    exact = {full: by_hand(model, full, state[full]) for full in adapters.names}
    output = model(x)
    assert adapters.merge() is model
    for full, (W, _, error) in exact.items():
        merged = weight(model, full)
        assert type(merged) is nn.Parameter
        assert merged.dtype == dtype
        size = W.abs().max()
        # From float32 a weight in half precision is rounded, from float64 a weight in float32.
        error += 200 * computed_in if dtype == BF16 else 0
        assert ((merged.double() - W).abs() <= eps / 2 * W.abs() + error * size).all()
        if dtype == BF16:
            assert torch.equal(merged, read[full])
        torch.testing.assert_close(
            merged, read[full], atol=float((200 * computed_in + error) * size), rtol=eps
        )
    assert not any(parametrize.is_parametrized(part) for part in model.modules())
    assert set(model.state_dict()) == set(MODELS[name][0]().state_dict())
    if dtype == BF16:
        assert torch.equal(model(x), output)
    else:
        torch.testing.assert_close(model(x), output, atol=1e4 * eps, rtol=1e4 * eps)


def check_loaded(folder: str) -> None:
    """Load what another process has saved, and compare the outputs."""
    for name in MODELS:
        saved = torch.load(Path(folder) / f"{name}.pt")
        model, x, adapters = built(name)
        with adapters.off():  # Attention takes another path where no gradient is asked for.
            plain = model(x)
        assert not torch.equal(plain, saved["output"])
        adapters.load_state_dict(saved["rotations"])
        assert torch.equal(model(x), saved["output"]), name
        with adapters.off():
            assert torch.equal(model(x), plain), name
        assert torch.equal(model(x), saved["output"]), name


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_rotations_alone_are_saved_and_loaded_in_another_process(elsewhere, tmp_path) -> None:
    for name in MODELS:
        model, x, adapters = built(name)
        moved(adapters, 0.3)
        state = adapters.state_dict()
        assert sum(t.numel() for t in state.values()) == sum(
            R.shape[0] * R.shape[1] * (R.shape[1] - 1) // 2 for R in adapters.rotations().values()
        )
        torch.save({"rotations": state, "output": model(x).detach()}, tmp_path / f"{name}.pt")
    if not elsewhere:
        check_loaded(tmp_path)
        return
    code = f"from tests.promises.nn.test_adapters import check_loaded; check_loaded({str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment, timeout=120)


@pytest.mark.parametrize("name", ["linear 3", "groups", "transposed", "three sizes"])
@pytest.mark.turns(2)
def test_derivatives(name) -> None:
    model, x, adapters = built(name)
    moved(adapters, 0.5)
    model, x = model.double(), x.double()
    names = [full for full, p in model.named_parameters() if p.requires_grad]

    def output(*values):
        return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

    given = [p.detach().double().requires_grad_() for p in adapters.parameters()]
    assert torch.autograd.gradcheck(output, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(output, given, fast_mode=True)


def test_a_state_of_other_weights_or_blocks_is_refused_and_nothing_is_loaded() -> None:
    model, _, adapters = built("linear 3")
    before = {name: t.clone() for name, t in moved(adapters, 0.1).state_dict().items()}
    other = moved(sp.nn.adapt(nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 6)), "0", 3), 1.0)
    with refused("state", "2.weight"):
        adapters.load_state_dict(other.state_dict())
    whole = sp.nn.adapt(MODELS["linear 3"][0](), "*.weight", None)
    with refused("state", "shape", "block_size"):
        adapters.load_state_dict(whole.state_dict())
    assert all(torch.equal(t, before[name]) for name, t in adapters.state_dict().items())
    adapters.merge()
    for call in (adapters.merge, adapters.state_dict, lambda: adapters.off().__enter__()):
        with refused("Adapters", "merged"):
            call()
    sp.nn.adapt(model, "*", 3)


def test_a_copy_is_merged_and_the_original_stays_adapted() -> None:
    model, x, adapters = built("encoder")
    output = model(x)
    moved(adapters, 0.5)
    adapted = model(x)
    clone = copy.deepcopy(adapters)
    assert torch.equal(clone.model(x), adapted)
    merged = clone.merge()
    torch.testing.assert_close(merged(x), adapted, atol=1e-5, rtol=1e-5)
    assert torch.equal(model(x), adapted)
    moved(adapters, 0.0)
    torch.testing.assert_close(model(x), output)


def test_remove_merges_too() -> None:
    model, _, adapters = built("encoder")
    twin = copy.deepcopy(moved(adapters, 0.5)).merge()
    assert sp.remove(model) is model
    assert all(torch.equal(t, twin.state_dict()[key]) for key, t in model.state_dict().items())


def test_adapters_that_are_switched_off_are_merged_all_the_same() -> None:
    model, _, adapters = built("linear 3")
    twin = copy.deepcopy(moved(adapters, 0.5)).merge()
    with adapters.off():
        sp.remove(model)
    assert all(torch.equal(t, twin.state_dict()[key]) for key, t in model.state_dict().items())


def test_remove_takes_what_constrain_has_registered_of_another_library() -> None:
    layer = sp.constrain(nn.Linear(6, 6), "weight", geotorch.SO((6, 6)))
    W = layer.weight.detach().clone()
    assert torch.equal(sp.remove(copy.deepcopy(layer)).weight, W)
    layer = sp.constrain(nn.Linear(6, 6), "weight", geotorch.SO((6, 6)))
    assert not parametrize.is_parametrized(sp.remove(layer))
    parametrizations.orthogonal(layer)
    with pytest.warns(UserWarning, match="_Orthogonal"):
        sp.remove(layer)


def test_autocast_does_not_reduce_the_precision_of_a_rotation() -> None:
    model, _, adapters = built("linear")
    moved(adapters, 1.0)
    expected = weight(model, "0.weight")
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(weight(model, "0.weight"), expected)
    # Nor does a conversion: R stays orthogonal beyond the precision of its entries.
    model.bfloat16()
    R = adapters.rotations()["0.weight"].double()
    merged = weight(adapters.merge(), "0.weight").double()
    assert (R @ R.mT - torch.eye(64)).abs().max() < 1e-2
    W = base(built("linear")[0], "0.weight").double()
    assert abs(torch.linalg.matrix_norm(merged) / torch.linalg.matrix_norm(W) - 1) < 1e-3


@pytest.mark.nightly
def test_an_adapted_model_compiles_whole() -> None:
    model, x, adapters = built("transposed")
    moved(adapters, 0.5)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)
    with adapters.off():
        torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)


def test_other_parameters_train_once_they_are_told_to() -> None:
    model, x, adapters = built("linear")
    more = sp.nn.adapt(nn.Sequential(model, nn.Linear(64, 32)), "1", 32)
    assert all(p.requires_grad for p in adapters.parameters())
    assert more.names == ("1.weight",)
    more.model[1].bias.requires_grad_()
    more.model(x).sum().backward()
    assert more.model[1].bias.grad.abs().max() > 0
    assert "Adapters(1 weights, 496" in repr(more)


# Refusals -----------------------------------------------------------------------------------------------


class Packed(nn.Module):
    """A layer whose weight is packed, as quantized layers of torch have it."""

    _packed_params = None


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def held():
    model = nn.Linear(4, 4)
    model.optimizer = optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # It lives as long.
    return sp.constrain(model, "weight", sp.ScaledCayley(), optimizer=optimizer)


def with_weight(W):
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(W, requires_grad=False)
    return model


class FourBits(nn.Parameter):
    """A weight of a class of its own, as those of quantized layers."""


def of_a_class():
    model = nn.Linear(4, 4)
    model.weight = FourBits(torch.zeros(4, 4))
    return model


REFUSED = {
    "packed": (lambda: nn.Sequential(nn.Linear(4, 4), Packed()), "*", 2, ("1", "quantized")),
    "integers": (lambda: with_weight(torch.zeros(4, 4, dtype=torch.int8)), "weight", 2, ("weight", "int8")),
    "a class": (of_a_class, "weight", 2, ("weight", "FourBits", "quantized")),
    "tied": (tied, "1", 2, ("1.weight|0.weight", "untie")),
    "tied, first": (tied, "0.weight", 2, ("0.weight", "1.weight")),
    "constrained": (
        lambda: sp.constrain(nn.Linear(4, 4), "weight", sp.ScaledCayley()),
        "weight",
        2,
        ("weight", "ScaledCayley", "remove"),
    ),
    "adapted": (lambda: sp.nn.adapt(nn.Linear(4, 4), "weight", 2).model, "weight", 2, ("adapted", "Merge")),
    "held": (held, "weight", 2, ("weight", "optimizer")),
    "pruned": (lambda: prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5), "*", 2, ("hook",)),
    "lazy": (lambda: nn.LazyLinear(4), "weight", 2, ("lazy",)),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "weight", 2, ("complex64",)),
    "NaN": (lambda: with_weight(torch.full((4, 4), torch.nan)), "weight", 2, ("weight", "finite")),
    "no divisor": (lambda: nn.Linear(4, 6), "weight", 4, ("block_size", "2, 3, 6")),
    "groups": (lambda: nn.Conv2d(8, 12, 3, groups=2), "weight", 4, ("block_size", "2 groups", "2, 3, 6")),
    "one row": (lambda: nn.Linear(4, 1), "weight", None, ("block_size", "Leave it out")),
    "block of 1": (lambda: nn.Linear(4, 4), "weight", 1, ("block_size", "None")),
    "no such weight": (lambda: nn.Linear(4, 4), "bias", 2, ("pattern", "weight")),
    "no kind of weight": (lambda: nn.LSTM(4, 4), "weight_hh_l0", 2, ("pattern", "none")),
    "a tensor": (lambda: nn.Linear(4, 4), torch.zeros(2), 2, ("pattern", r"'\*'")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_rotated_is_refused_and_nothing_changes(name) -> None:
    make, pattern, block_size, words = REFUSED[name]
    model = make()
    before = [(key, p.requires_grad, id(p)) for key, p in model.named_parameters()]
    with refused(*words):
        sp.nn.adapt(model, pattern, block_size)
    assert [(key, p.requires_grad, id(p)) for key, p in model.named_parameters()] == before


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_layer_of_torch_is_refused() -> None:
    layer = torch.ao.nn.quantized.dynamic.Linear(4, 4)
    with refused("inner", "quantized"):
        sp.nn.adapt(nn.ModuleDict({"inner": layer, "other": nn.Linear(4, 4)}), "inner", 2)


def test_no_module_is_refused() -> None:
    with refused("model"):
        sp.nn.adapt(torch.zeros(2, 2), "*")
