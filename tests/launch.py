"""Start a script on two processes with torchrun, and never wait forever."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [str(each.getsockname()[1]) for each in sockets]


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
