"""Every test starts from the same random state, on one thread: its matrices are small."""

import os

# For what a test starts, too. Before torch and numpy are imported, which read them once.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
