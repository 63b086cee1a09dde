"""Two processes hold the same weights after the step: DDP to the bit, FSDP2 to rounding."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spectral_param as sp
from tests.launch import ranked
from tests.messages import refused
from tests.promises.after_step.common import defect

CONSTRAINTS = {
    "0": sp.ScaledCayley(),
    "1": sp.SpectralNorm(0.9, solver="tracking"),
    "2": sp.SpectralRadiusNorm(0.9, solver="tracking"),
    "3": sp.SpectralAbscissa(-0.1),
}


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(24, 24) for _ in CONSTRAINTS))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 16, 24, generator=generator)
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()


def with_ddp(rank: int) -> None:
    """One process alone looks at its weights between the steps."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model_of())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for name, constraint in CONSTRAINTS.items():
        sp.constrain(model, f"module.{name}.weight", constraint, optimizer=optimizer)
    for step in range(5):
        train(model, optimizer, seed=2 * step + rank)
        if rank == 0:
            assert set(sp.violation(model).values()) == {0.0}
            model.module(torch.ones(1, 24))
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(parameter, first)
    assert defect(model.module[0].weight) <= 8
    print("equal")


def trained(model: nn.Module, is_sharded: bool) -> list[Tensor]:
    if is_sharded:
        torch.distributed.fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    sp.constrain(model, "[01].weight", sp.ScaledCayley(), optimizer=optimizer)
    sp.constrain(model, "2.weight", sp.SpectralNorm(0.5, "equal"), optimizer=optimizer)
    for step in range(5):
        train(model, optimizer, seed=step)
    assert set(sp.violation(model).values()) == {0.0}
    whole = [p.full_tensor() if is_sharded else p for p in model.parameters()]
    return [p.detach().clone() for p in whole]


def with_fsdp(rank: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # 25 rows on two processes are shards of different sizes.
    model = nn.Sequential(nn.Linear(24, 10), nn.Linear(10, 25), nn.Linear(25, 24))
    alone = trained(copy.deepcopy(model), is_sharded=False)
    for expected, found in zip(alone, trained(copy.deepcopy(model), is_sharded=True), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # Constrained first, then sharded: the optimizer no longer has the weights.
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    sp.constrain(model, "0.weight", sp.ScaledCayley(), optimizer=optimizer)
    torch.distributed.fsdp.fully_shard(model)
    with refused("0.weight: expected the parameter that was constrained"):
        optimizer.step()
    # A random start is that of the first process.
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    sp.constrain(model, "0.weight", sp.ScaledCayley(), init="paper", optimizer=optimizer)
    assert defect(model[0].weight.full_tensor()) <= 8
    print("equal")


SPHERES = (
    sp.FrobeniusNorm("present"),
    sp.FrobeniusNorm(1.5, "at_most"),
    sp.FrobeniusNorm(0.5, dim=0),
    sp.FrobeniusNorm(0.5, dim=1),
)


def on_spheres(model: nn.Module, is_sharded: bool, step: str, scale: float) -> list[Tensor]:
    if is_sharded:
        torch.distributed.fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    for i, constraint in enumerate(SPHERES):
        kind = None if constraint.mode == "at_most" else step
        constraint = copy.deepcopy(constraint)
        sp.constrain(model, f"{i}.weight", constraint, optimizer=optimizer, step=kind)
    gather = torch.distributed.tensor.DTensor.full_tensor
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(16, 24, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        (scale * model(x)[:, :3].square().mean()).backward()
        if step != "relative":  # Whose size is that of all slices: rows are gathered.
            torch.distributed.tensor.DTensor.full_tensor = None
        optimizer.step()
        torch.distributed.tensor.DTensor.full_tensor = gather
    assert set(sp.violation(model).values()) == {0.0}
    return [(p.full_tensor() if is_sharded else p).detach().clone() for p in model.parameters()]


def with_spheres(rank: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # Shards of one shape are of weights of 10 and 11 rows in one process alone.
    sizes = ((24, 24), (24, 11), (11, 10), (10, 11))
    model = nn.Sequential(*(nn.Linear(m, n) for m, n in sizes)).double()  # AdamW makes rounding errors large.
    for step in ("tangent", "relative", "project"):
        alone = on_spheres(copy.deepcopy(model), False, step, 1.0)
        for expected, found in zip(alone, on_spheres(copy.deepcopy(model), True, step, 1.0), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    # Squares overflow, and all entries of the second shard are zero.
    weight = nn.Linear(6, 4, bias=False)
    with torch.no_grad():
        weight.weight.fill_(0)[0, 0] = 1e30
    torch.distributed.fsdp.fully_shard(weight)
    optimizer = torch.optim.SGD(weight.parameters(), 0.1)
    sp.constrain(weight, "weight", sp.FrobeniusNorm(2e30), optimizer=optimizer)
    weight.weight.grad = torch.zeros_like(weight.weight)
    optimizer.step()
    assert abs(float(weight.weight.detach().full_tensor()[0, 0]) / 2e30 - 1) < 1e-6
    print("equal")


@pytest.mark.nightly
@pytest.mark.fresh
@pytest.mark.parametrize("run", [with_spheres, with_ddp, with_fsdp])
def test_two_processes_hold_the_same_weights(run, tmp_path: Path) -> None:
    assert ranked(run, tmp_path / "printed").count("equal") == 2
