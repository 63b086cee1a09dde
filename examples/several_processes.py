"""An orthogonal recurrent network on two processes: DDP, FSDP2, a distributed checkpoint, mixed precision.

Run ``torchrun --nproc-per-node 2 examples/several_processes.py``. No GPU is needed: the processes talk
through gloo. Each part asserts what it claims; ``docs/processes.md`` explains them.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import spectral_param as sp

STEPS, BATCH, HIDDEN = 5, 8, 32


class Network(nn.Module):
    """A linear embedding, an orthogonal recurrent network, and a linear readout of its last state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # The same start in all processes.
        self.embedding = nn.Linear(2, HIDDEN)
        self.rnn = sp.nn.ScoRNN(HIDDEN, HIDDEN)
        self.readout = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs ``(batch, 1)`` for the sequences x ``(time, batch, 2)``."""
        output, _ = self.rnn(self.embedding(x))
        return self.readout(output[-1])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, part: slice) -> list[float]:
    """Return the losses of a few steps on this part of each batch."""
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(20, BATCH, 2, generator=generator)[:, part]
        y = (x[..., 0] * x[..., 1]).sum(dim=0)[:, None]
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam with a smaller learning rate behind the constraint. Made after DDP or fully_shard."""
    return torch.optim.Adam(sp.param_groups(model, lr=1e-2, constrained_lr=1e-3))


def sharded(**policies: MixedPrecisionPolicy) -> nn.Module:
    """Return the network sharded by FSDP2: each layer is a group, and the whole is the root."""
    model = Network()
    for name, layer in model.named_children():
        fully_shard(layer, mp_policy=policies.get(name, MixedPrecisionPolicy()))
    return fully_shard(model)


@contextlib.contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Gather all parameters of the model inside the block, where constrained weights can be read."""
    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for group in groups:
        group.unshard()
    try:
        yield
    finally:
        for group in groups:
            group.reshard()


def distance_from_orthogonal(W: Tensor) -> float:
    """Return ‖WᵀW − I‖ in the spectral norm."""
    W = W.detach().double()
    return torch.linalg.matrix_norm(W.mT @ W - torch.eye(len(W)), ord=2).item()


def in_one_process() -> nn.Module:
    """Return the network trained on the whole batches, to compare with."""
    model = Network()
    train(model, adam(model), slice(None))
    return model


def with_ddp(alone: nn.Module, part: slice) -> float:
    """Train with DDP; return how far the weight is from that of one process."""
    model = DistributedDataParallel(Network())
    train(model, adam(model), part)
    return largest_difference(model.module, alone)


def with_fsdp(alone: nn.Module, part: slice) -> tuple[nn.Module, torch.optim.Optimizer, float]:
    """Do the same with FSDP2; return the sharded model and its optimizer, too."""
    model = sharded()
    optimizer = adam(model)
    train(model, optimizer, part)
    with unsharded(model):
        return model, optimizer, largest_difference(model, alone)


def largest_difference(model: nn.Module, alone: nn.Module) -> float:
    """Return the largest difference of an entry of the recurrent matrices."""
    W, expected = (m.rnn.cells[0].weight_hh.detach() for m in (model, alone))
    return (W - expected).abs().max().item()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of both, with this process's shards, as torch.distributed.checkpoint takes it."""
    names = ("model", "optimizer")
    return dict(zip(names, get_state_dict(model, optimizer), strict=True))


def continues_alike(model: nn.Module, optimizer: torch.optim.Optimizer, part: slice, folder: str) -> bool:
    """Save, go on training; load into a new model, go on there; return whether both have the same losses."""
    dcp.save(state_of(model, optimizer), checkpoint_id=folder)
    expected = train(model, optimizer, part)
    restored = sharded()
    again = adam(restored)
    state = state_of(restored, again)
    dcp.load(state, checkpoint_id=folder)  # In place: each process reads its shards.
    set_state_dict(restored, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return train(restored, again, part) == expected


def loaded_without_sharding(folder: str) -> nn.Module:
    """Return an ordinary model with the weights of the checkpoint: for evaluation, or deployment."""
    model = Network()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    return model


def with_mixed_precision(constrained: torch.dtype, part: slice) -> float:
    """Train with linear layers in bfloat16; return how far the weight is from orthogonal."""
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    own = MixedPrecisionPolicy(
        param_dtype=constrained, reduce_dtype=torch.float32, output_dtype=torch.bfloat16
    )
    model = sharded(embedding=low, rnn=own, readout=low)
    train(model, adam(model), part)
    with unsharded(model):
        return distance_from_orthogonal(model.rnn.cells[0].weight_hh)


def run() -> None:
    """Run all parts; the first process prints."""
    rank, size = dist.get_rank(), dist.get_world_size()
    part = slice(rank, BATCH, size)
    # FSDP2 warns against changing the output of a layer in place. Nothing here does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    say = print if rank == 0 else (lambda *_: None)

    alone = in_one_process()
    assert largest_difference(Network(), alone) > 1e-3  # Training moves the weight.
    difference = with_ddp(alone, part)
    say(f"DDP: {size} processes and one: largest difference of a weight {difference:.1e}")
    assert difference < 1e-5

    model, optimizer, difference = with_fsdp(alone, part)
    say(f"FSDP2: {size} processes and one: largest difference of a weight {difference:.1e}")
    assert difference < 1e-5
    original = model.rnn.cells[0].parametrizations.weight_hh.original0
    say(f"  behind the constraint {tuple(original.shape)}, of it here {tuple(original.to_local().shape)}")
    assert original.to_local().numel() * size == original.numel()

    # A folder that all processes see: made by the first one, which tells the others its name.
    with tempfile.TemporaryDirectory() if rank == 0 else contextlib.nullcontext("") as own:
        names = [own]
        dist.broadcast_object_list(names, src=0)
        alike = continues_alike(model, optimizer, part, names[0])
        say(f"Checkpoint: a restored run has the same losses: {alike}")
        assert alike
        error = distance_from_orthogonal(loaded_without_sharding(names[0]).rnn.cells[0].weight_hh)
        say(f"  loaded without sharding, the weight is orthogonal up to {error:.1e}")
        assert error < 1e-5
        dist.barrier()  # The folder is deleted when all have read.

    for dtype, bound in ((torch.bfloat16, 0.05), (torch.float32, 1e-5)):
        error = with_mixed_precision(dtype, part)
        say(f"Mixed precision, recurrent network in {dtype}: orthogonal up to {error:.1e}")
        assert error < bound


def main() -> None:
    """Join the other processes, run, and leave."""
    torch.set_num_threads(1)
    # A process that waits for one that has ended raises an error after a minute.
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    run()
    # Models first: one that outlives the group ends gloo's threads too late, and PyTorch may hang or abort.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if not dist.is_torchelastic_launched():
        sys.exit("Run it with torchrun: torchrun --nproc-per-node 2 examples/several_processes.py")
    main()
