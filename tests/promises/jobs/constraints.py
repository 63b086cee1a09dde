"""Constraints in use: registration, training, checkpoints, whole models."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.testing import Case, Holder, holder
from tests.promises.cases import CASES, FROM_THE_START, checkered
from tests.promises.jobs.tensors import HOST, Job, To, gradients, normal, stable


def trained(case: Case, shape: tuple[int, ...], to: To) -> Any:
    """Registration from outside, two steps, a checkpoint, a draw, a new start, the weight again."""
    dtype = torch.float32 if torch.float32 in case.dtypes else torch.complex64
    with usual_defaults():
        torch.manual_seed(0)
        W = case.member(shape, dtype) if case.outside is None else case.outside(shape, dtype)
    G = to(normal(*shape, seed=1, dtype=dtype))
    module = holder(case, to(W))
    weights, every = [module.weight.detach().clone()], list(module.parameters())
    optimizer = torch.optim.SGD(every, lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        (module.weight - G).abs().square().sum().backward()
        optimizer.step()
        weights.append(module.weight.detach().clone())
    constraint = module.parametrizations.weight[0]
    kept = io.BytesIO()
    torch.save({key: value.cpu() for key, value in module.state_dict().items()}, kept)
    kept.seek(0)
    clone = copy.deepcopy(module)
    clone.load_state_dict(torch.load(kept))
    weights.append(clone.weight.detach())
    torch.manual_seed(3)
    drawn = constraint.sample()
    torch.manual_seed(3)
    constraint.restart(*every)
    again = module.weight.detach().clone()
    module.weight = again
    return weights, drawn, again, module.weight.detach(), constraint.in_manifold(again), kept_values(every)


def kept_values(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Copies of the parameters' values."""
    return [p.detach().clone() for p in parameters]


@contextlib.contextmanager
def usual_defaults() -> Iterator[None]:
    """PyTorch's usual defaults, under which the table of cases draws members."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def large(constraint: Callable[[], nn.Module], W: Tensor, to: To) -> Any:
    """Three steps of a weight that is followed from step to step."""
    module = sp.constrain(Holder(to(W)), "weight", constraint())
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    G, weights = to(normal(*W.shape, seed=1)), []
    for _ in range(4):
        optimizer.zero_grad()
        (module.weight - G).square().sum().backward()
        optimizer.step()
        weights.append(module.weight.detach().clone())
    return weights


def kernel(to: To, **options: Any) -> Any:
    """A convolution with a bounded norm, trained."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding="same", dtype=torch.float32, device="cpu", **options)
    conv = sp.constrain(to(conv), "weight", sp.SpectralNorm(0.8))
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    x = to(normal(2, 3, 8, 8))
    for _ in range(3):
        optimizer.zero_grad()
        conv(x).square().sum().neg().backward()
        optimizer.step()
    return conv.weight.detach(), conv(x).detach()


def gates(to: To) -> Any:
    """The gates of an LSTM."""
    torch.manual_seed(0)
    lstm = sp.constrain(
        to(nn.LSTM(3, 4, dtype=torch.float32, device="cpu")), "weight_hh_l0", sp.ScaledCayley()
    )
    return lstm.weight_hh_l0.detach(), gradients(lstm.weight_hh_l0, *lstm.parametrizations.parameters())


def chained(to: To) -> Any:
    """A pattern of signs, then a radius: the second one acts on the weight of the first."""
    pattern = torch.ones(6, 6, **HOST)
    module = sp.constrain(
        Holder(to(stable(6))), "weight", [sp.SignPattern(to(pattern)), sp.SpectralRadiusNorm(0.8)]
    )
    return module.weight.detach(), gradients(module.weight, *module.parameters())


def bounds(to: To) -> Any:
    """A bound for each matrix of a batch, changed in training."""
    W = torch.stack([stable(5, seed=seed) for seed in range(2)])
    constraint = sp.SpectralRadiusNorm(torch.tensor([0.5, 0.7], **HOST))
    module = sp.constrain(Holder(to(W)), "weight", constraint)
    first = module.weight.detach().clone()
    module.parametrizations.weight[0].radius = torch.tensor([0.3, 0.9], dtype=torch.float64, device="cpu")
    return first, module.weight.detach(), gradients(module.weight, *module.parameters())


def model(to: To) -> Any:
    """What is asked of a whole model, a new base, and removal."""
    torch.manual_seed(0)
    parts = [nn.Linear(4, 4, dtype=torch.float32, device="cpu") for _ in range(3)]
    net = to(nn.Sequential(*parts))
    sp.constrain(net, "0.weight", sp.SchurForm(delta=0.1))
    sp.constrain(net, "1.weight", sp.SkewExponential())
    empty = sp.penalty(net[2])
    penalty = sp.penalty(net)
    for parameter in net[1].parameters():
        parameter.data.add_(0.1)
    before = net[1].weight.detach().clone()
    sp.rebase(net)
    with sp.progress():
        groups = sp.param_groups(net, lr=0.1)
    found = sp.num_free_parameters(net), [len(group["params"]) for group in groups]
    after = net[1].weight.detach().clone()
    sp.remove(net)
    return empty, penalty.detach(), before, after, found, net[0].weight.detach()


def without_memory(to: To) -> Any:
    """A layer that is built on the meta device, and then gets values."""
    layer = nn.Linear(4, 4, dtype=torch.float32, device="meta")
    sp.constrain(layer, "weight", sp.ScaledCayley())
    there = to(torch.zeros(1, **HOST)).device
    layer.to_empty(device=there)
    torch.manual_seed(0)
    if there.type == "cpu":
        layer.reset_parameters()
    else:
        layer.parametrizations.weight[0].restart(*layer.parametrizations.weight.parameters(recurse=False))
    return layer.weight.detach()


def checked(to: To) -> Any:
    """The conformance suite of one constraint."""
    if to(torch.zeros(1, **HOST)).device.type != "cpu":
        return None
    names = ("right_inverse", "state_dict", "deepcopy", "nan", "bad_input", "torch_func")
    case = Case(
        "suite", lambda shape: sp.SignPattern(checkered(shape[-1])), dtypes=(torch.float32, torch.float64)
    )
    for trial in sp.testing.conformance(case):
        if trial.shape == (4, 4) and str(trial.check) in names:
            trial()
    return None


CONSTRAINTS: dict[str, Job] = {
    **{
        f"constraint: {case.name}": functools.partial(
            trained, case, (6, 6) if "BlockTri" not in case.name else (5, 5)
        )
        for case in (*CASES, *FROM_THE_START)
    },
    "constraint: SpectralRadiusNorm, followed": functools.partial(large, sp.SpectralRadiusNorm, stable(130)),
    "constraint: SpectralNorm, followed": functools.partial(large, sp.SpectralNorm, 3 * normal(70, 66)),
    "constraint: Cayley of a tall weight": functools.partial(large, sp.ScaledCayley, normal(64, 16)),
    "constraint: SkewExponential of a tall weight": functools.partial(
        large, sp.SkewExponential, normal(64, 16)
    ),
    "constraint: kernel": kernel,
    "constraint: circular kernel": functools.partial(kernel, padding_mode="circular"),
    "constraint: gates": gates,
    "constraint: a chain": chained,
    "constraint: bounds of a batch": bounds,
    "model": model,
    "model: built without memory": without_memory,
    "testing": checked,
}

# Other modes of a constraint.
VARIANTS = {f"constraint: {case.name}" for case in (*CASES, *FROM_THE_START) if case.variant}
