"""Where there is no GPU, the tests of the Triton kernels run in Triton's interpreter.

In a process of its own, since whether kernels are interpreted is settled when triton is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="needs the package triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests run on the GPU instead")
def test_in_the_interpreter() -> None:
    tests = Path(__file__).with_name("test_triton_recurrence.py")
    root = tests.parent.parent.parent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tests)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
