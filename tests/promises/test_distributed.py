"""Two processes train as one does, and sharded parameters keep what FSDP2 asks of them."""

import copy
import runpy

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch.nn.parallel import DistributedDataParallel

import spectral_param as sp
from spectral_param.testing import Case, holder
from tests.launch import ROOT, ranked, torchrun
from tests.messages import refused
from tests.promises.cases import CASES

EXAMPLE = ROOT / "examples" / "several_processes.py"


@pytest.mark.nightly
@pytest.mark.fresh
def test_example_of_several_processes(tmp_path) -> None:
    # It asserts by itself: DDP, FSDP2, a checkpoint of the shards, mixed precision.
    printed = ranked(lambda _: runpy.run_path(str(EXAMPLE), run_name="__main__"), tmp_path / "printed")
    assert "a restored run has the same losses: True" in printed
    assert "Warning" not in printed


@pytest.mark.nightly
def test_example_of_several_processes_by_torchrun() -> None:
    done = torchrun(EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert "a restored run has the same losses: True" in done.stdout
    assert "Warning" not in done.stderr


@pytest.mark.nightly
@pytest.mark.fresh
def test_two_processes_train_products_of_reflections_as_one_does(tmp_path) -> None:
    def train(rank):
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        alone = sp.nn.DeltaProduct(3, 8, 2, num_heads=2, rate=0.9, dtype=torch.float64)
        shared = copy.deepcopy(alone)
        together = DistributedDataParallel(shared)
        start = [p.clone() for p in alone.parameters()]
        x = torch.randn(20, 6, 3, dtype=torch.float64)
        for model, part in ((alone, x), (together, x[:, rank::2])):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                model(part)[0].square().mean().backward()
                optimizer.step()
        for found, expected, before in zip(shared.parameters(), alone.parameters(), start, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
            assert not torch.equal(found, before)

    assert "Warning" not in ranked(train, tmp_path / "printed")


@pytest.fixture
def alone():
    """A group of one process, on its CPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_base_is_not_moved_where_it_would_be_lost(alone) -> None:
    model = torch.distributed.fsdp.fully_shard(sp.nn.ExpRNN(1, 4), mesh=alone)
    with pytest.raises(ValueError, match="rebase: expected parameters that are not sharded"):
        sp.rebase(model)


@pytest.mark.parametrize("constraint", [sp.ScaledCayley(), sp.SpectralRadiusNorm(), sp.LyapunovForm()])
def test_distances_of_sharded_weights_are_refused_until_they_are_gathered(constraint, alone) -> None:
    layer = sp.constrain(torch.nn.Linear(4, 4), "weight", constraint)
    model = torch.distributed.fsdp.fully_shard(torch.nn.Sequential(layer), mesh=alone)
    with refused("0.weight", "unshard"):
        sp.violation(model)
    model.unshard()
    assert sp.violation(model) == {"0.weight": 0.0}


def test_a_sharded_weight_is_constrained_before_or_held_after(alone) -> None:
    model = torch.distributed.fsdp.fully_shard(torch.nn.Linear(4, 4), mesh=alone)
    with refused("'weight'", "before fully_shard", "optimizer"):
        sp.constrain(model, "weight", sp.ScaledCayley())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sp.constrain(model, "weight", sp.ScaledCayley(), optimizer=optimizer)
    assert sp.violation(model) == {"weight": 0.0}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if not case.variant])
def test_memory_of_parameters_can_be_freed_after_a_read(case: Case) -> None:
    """FSDP2 frees it between uses. PyTorch refuses to once numpy has seen the memory itself."""
    dtype = case.dtypes[0]
    layer = holder(case, case.member((4, 4), dtype))
    layer(torch.ones(4, 1, dtype=dtype)).abs().sum().backward()
    for parameter in layer.parameters():
        parameter.untyped_storage().resize_(0)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_memory_of_parameters_of_a_network_can_be_freed(nonlinearity) -> None:
    rnn = sp.nn.BlockRNN(2, [(4, None)], nonlinearity=nonlinearity)
    start = torch.nn.Parameter(torch.ones(1, 3, 4))
    rnn(torch.ones(5, 3, 2), start)[0].sum().backward()
    for parameter in (*rnn.parameters(), start):
        parameter.untyped_storage().resize_(0)
