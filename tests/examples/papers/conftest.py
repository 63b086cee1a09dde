"""One thread, whatever the command line of a run under test says."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
