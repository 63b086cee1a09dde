"""Two processes with DistributedDataParallel train to the same weights as one process."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import spectral_param as sp

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
