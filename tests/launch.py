"""Other processes that a test needs, for which it never waits forever."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch.distributed

ROOT = Path(__file__).parents[1]


def free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [str(each.getsockname()[1]) for each in sockets]


def forked(function: Callable[[int], object], output: Path, count: int = 1) -> list[int | None]:
    """Call the function with its rank in so many copies of this process, and return their exit codes.

    A copy has imported what this process has, which takes a new one seconds. What they print is in
    ``output``.
    """

    def run(rank: int) -> None:
        with output.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = 1
        with open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as errors:
            sys.stdout, sys.stderr = out, errors  # Not pytest's.
            try:
                function(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
        os._exit(code)  # Nothing of pytest's is ended in a copy.

    copies = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(count)]
    with warnings.catch_warnings():
        # From Python 3.12 on: torch has threads that wait. A copy computes on one thread of its own.
        warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
        for copy in copies:
            copy.start()
    for copy in copies:
        copy.join(timeout=90)
    for copy in copies:
        copy.kill()
        copy.join()
    return [copy.exitcode for copy in copies]


def ranked(function: Callable[[int], object], output: Path, count: int = 2) -> str:
    """Call the function in forked processes as torchrun's are, and return what they print.

    It is called with the rank, and meets at $MASTER_PORT. Its process group is destroyed once it has
    returned, and what it trained is gone: PyTorch waits forever now and then for a model under
    DistributedDataParallel that is freed after its process group was destroyed.
    """
    (port,) = free_ports(1)

    def run(rank: int) -> None:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ.update({name: str(value) for name, value in own.items()})
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port, TORCHELASTIC_RUN_ID="test")
        function(rank)
        gc.collect()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    codes = forked(run, output, count)
    printed = output.read_text()
    assert codes == [0] * count, printed
    return printed


def torchrun(script: Path, *arguments: str, ports: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the script with so many free ports; once more if one was taken before its use, and all wait."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(script), *arguments]
    for last in (False, True):
        process = subprocess.Popen(
            [*command, *free_ports(ports)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=150 if last else 90)
        except subprocess.TimeoutExpired:
            # torchrun's children are in sessions of their own; they end with their agent.
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
            if last:
                raise
        else:
            return subprocess.CompletedProcess(command, process.returncode, output, errors)
    raise AssertionError
