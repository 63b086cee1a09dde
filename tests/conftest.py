"""Every test starts from the same random state, by default on one thread: its matrices are small.

The threads are those of $OMP_NUM_THREADS, the random state is that of --seed.
"""

import os

# For what a test starts, too. Before torch and numpy are imported, which read them once.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="random state that every test starts from")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(request.config.getoption("seed"))
