"""Every test starts from the same random state, on one thread: its matrices are small."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
