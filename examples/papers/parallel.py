"""One process, or those that torchrun started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Processes:
    """What the processes do together. With one of them, nothing has to be done.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
        device: Where this one computes.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Return which of so many sequences are this process's.

        Args:
            count: Number of sequences.
        """
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients over the processes.

        DistributedDataParallel is not used: it keeps the process group alive, and when it goes last, PyTorch
        2.13 joins gloo's threads without releasing the GIL, which one of them may wait for.

        Args:
            parameters: Those that were trained.
        """
        for parameter in parameters:
            if parameter.grad is not None:
                self.sum(parameter.grad)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over the processes.

        Args:
            value: This process's, replaced.
        """
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest of each number over the processes, so that all decide alike.

        Args:
            values: This process's.
        """
        if self.size == 1:
            return list(values)
        together = torch.tensor(values, device=self.device)
        dist.all_reduce(together, op=dist.ReduceOp.MAX)
        return [int(value) for value in together.tolist()]

    def gather(self, state: Any) -> Any:
        """Return the states of all sequences, on the CPU.

        Args:
            state: Those of this process's: a tensor ``(layers, batch, n)``, a tuple of them, or None.
        """
        if isinstance(state, tuple):
            return tuple(self.gather(tensor) for tensor in state)
        if state is None or self.size == 1:
            return None if state is None else state.cpu()
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, state.cpu())
        return torch.cat(parts, dim=1)

    def scatter(self, state: Any) -> Any:
        """Return this process's part of what :meth:`gather` returned.

        Args:
            state: The states of all sequences.
        """
        if isinstance(state, tuple):
            return tuple(self.scatter(tensor) for tensor in state)
        return None if state is None else state[:, self.part(state.shape[1])].to(self.device)

    def wait(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, if it did.

    Args:
        device: ``"cpu"``, ``"cuda"``, or a device with its number.

    Yields:
        The processes.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield Processes(0, 1, torch.device(device))
        return
    own = torch.device(device, int(os.environ["LOCAL_RANK"])) if device == "cuda" else torch.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), own)
    finally:
        dist.destroy_process_group()
