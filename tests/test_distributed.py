"""Two processes train to the same weights as one process, replicated (DDP) or sharded (FSDP2)."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from spectral_param.testing import Case, Holder
from tests.cases import CASES
from tests.launch import ROOT, torchrun

STEPS, BATCH = 10, 8


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"rnn": sp.nn.ENRNN(2, 6, 4, dtype=torch.float64), "head": torch.nn.Linear(10, 1).double()}
    )
    return Network(model)


class Network(torch.nn.Module):
    def __init__(self, parts: torch.nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x):
        return self.parts["head"](self.parts["rnn"](x)[0][-1])


def batches():
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(7, BATCH, 2, dtype=torch.float64, generator=generator)
        yield x, x.sum(dim=(0, 2))[:, None]


def train(model, select):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        (model(x[:, select]) - y[select]).square().mean().backward()
        optimizer.step()


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = make_model()
    train(DistributedDataParallel(model), slice(rank, BATCH, 2))
    torch.save(model.state_dict(), f"{folder}/{rank}.pt")
    dist.barrier()  # neither process may be gone while the other still talks to it
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=2)
    alone = make_model()
    before = {name: value.clone() for name, value in alone.state_dict().items()}
    train(alone, slice(None))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, value in alone.state_dict().items():
        assert torch.equal(first[name], second[name]), "both processes hold the same model"
        torch.testing.assert_close(first[name], value, atol=1e-10, rtol=1e-10)
    assert any(not torch.equal(before[name], value) for name, value in alone.state_dict().items())


def test_example_of_several_processes() -> None:
    # It asserts by itself: DDP, FSDP2, a checkpoint of the shards, mixed precision.
    done = torchrun(ROOT / "examples" / "several_processes.py")
    assert done.returncode == 0, done.stderr
    assert "a restored run has the same losses: True" in done.stdout
    assert "Warning" not in done.stderr


def test_a_base_is_not_moved_where_it_would_be_lost() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        model = torch.distributed.fsdp.fully_shard(sp.nn.ExpRNN(1, 4), mesh=mesh)
        with pytest.raises(ValueError, match="rebase: expected parameters that are not sharded"):
            sp.rebase(model)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if not case.variant])
def test_memory_of_parameters_can_be_freed_after_a_read(case: Case) -> None:
    """FSDP2 frees it between uses. PyTorch refuses to once numpy has seen the memory itself."""
    dtype = case.dtypes[0]
    layer = Holder(case.member((4, 4), dtype))
    register_parametrization(layer, "weight", case.make((4, 4)))
    layer(torch.ones(4, 1, dtype=dtype)).abs().sum().backward()
    for parameter in layer.parameters():
        parameter.untyped_storage().resize_(0)
