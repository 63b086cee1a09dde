"""Every tensor of a ``state_dict`` is contiguous and owns its memory, so that any format can hold it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import Case, holder, originals
from tests.promises.cases import CASES, FROM_THE_START
from tests.properties import FACTOR


def stepped(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for _ in range(2):
            for t in originals(module):
                t.mul_(1.01)
            module.weight  # noqa: B018
    return module


def check_owned(state: dict[str, torch.Tensor]) -> None:
    memory = set()
    for key, t in state.items():
        assert t.is_contiguous(), key
        storage = t.untyped_storage()
        assert storage.nbytes() == t.numel() * t.element_size(), f"{key}: expected memory of its own"
        assert storage.data_ptr() not in memory or not t.numel(), f"{key}: expected memory of its own"
        memory.add(storage.data_ptr())


MODELS = [
    pytest.param(case, shape, id=f"{case.name}-{'x'.join(map(str, shape))}")
    for case in (*CASES, *FROM_THE_START)
    for shape in ((4, 4), (2, 4, 4), (100, 100), *case.rectangles[:1])
    if FACTOR > 1 or shape == (100, 100) or not case.variant
]


@pytest.mark.parametrize(("case", "shape"), MODELS)
@pytest.mark.turns(5)
def test_tensors_of_a_state_dict_own_their_memory(case: Case, shape) -> None:
    torch.manual_seed(0)
    module = stepped(holder(case, case.member(shape, case.dtypes[0])))
    check_owned(module.state_dict())
    other = holder(case, case.member(shape, case.dtypes[0]))
    other.load_state_dict(module.state_dict(), assign=True)
    check_owned(other.state_dict())


NETWORKS = {
    "ENRNN": lambda: sp.nn.ENRNN(3, 100, 97, 2),
    "GORU": lambda: sp.nn.GORU(3, 5),
    "NNRNN": lambda: sp.nn.NNRNN(3, 6),
    "ScuRNN": lambda: sp.nn.ScuRNN(3, 5),
    "EUNN": lambda: sp.nn.EUNN(3, 6),
    "convolution": lambda: sp.constrain(nn.Conv2d(3, 4, 3, padding=1), "weight", sp.SpectralNorm(1.0)),
    "batch": lambda: sp.constrain(nn.Bilinear(128, 100, 2), "weight", sp.SpectralNorm("present")),
    "wide": lambda: sp.constrain(nn.Linear(300, 120), "weight", sp.SpectralNorm(0.5)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_tensors_of_a_network_own_their_memory(name: str) -> None:
    check_owned(NETWORKS[name]().state_dict())
