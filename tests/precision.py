"""A setting under which products may lose precision, and what is asked for at each of them."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

SETTINGS = torch.backends.mkldnn.matmul if hasattr(torch.backends.mkldnn, "matmul") else None
needs_setting = pytest.mark.skipif(SETTINGS is None, reason="torch < 2.9 has no such setting for the CPU")


class Products(TorchDispatchMode):
    """Keeps the precision that is asked for at every product."""

    NAMES = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "vdot")

    def __init__(self):
        super().__init__()
        self.precisions = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().removeprefix("aten::").split(".")[0] in self.NAMES:
            self.precisions.append(SETTINGS.fp32_precision)
        return function(*args, **(kwargs or {}))
