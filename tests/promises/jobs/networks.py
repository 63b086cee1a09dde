"""Networks: two steps of training, layers, and what a network proves of itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import Holder
from tests.promises.jobs.constraints import kept_values
from tests.promises.jobs.tensors import Job, To, normal, stable

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "BlockRNN": lambda **o: sp.nn.BlockRNN(
        2, [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm())], num_layers=2, bidirectional=True, **o
    ),
    "ContractingGRU": lambda **o: sp.nn.ContractingGRU(2, 5, rate=0.9, **o),
    "ContractingRNN": lambda **o: sp.nn.ContractingRNN(2, 5, growth=3.0, **o),
    "DeltaProduct": lambda **o: sp.nn.DeltaProduct(2, 6, num_layers=2, num_heads=2, rate=0.99, **o),
    "ENRNN": lambda **o: sp.nn.ENRNN(2, 4, 3, **o),
    "EUNN": lambda **o: sp.nn.EUNN(2, 6, **o),
    "ExpRNN": lambda **o: sp.nn.ExpRNN(2, 5, **o),
    "GORU": lambda **o: sp.nn.GORU(2, 6, **o),
    "NNRNN": lambda **o: sp.nn.NNRNN(2, 6, **o),
    "ORNN": lambda **o: sp.nn.ORNN(2, 6, **o),
    "ScoRNN": lambda **o: sp.nn.ScoRNN(2, 5, **o),
    "ScuRNN": lambda **o: sp.nn.ScuRNN(2, 5, **o),
    "SpectralRNN": lambda **o: sp.nn.SpectralRNN(2, 6, **o),
    "StateSpace": lambda **o: sp.nn.StateSpace(2, 4, 3, **o),
    "StateSpace, gain": lambda **o: sp.nn.StateSpace(
        2, 4, 3, num_layers=2, gain=2.0, nonlinearity="relu", **o
    ),
    "URNN": lambda **o: sp.nn.URNN(2, 6, **o),
    "BlockRNNCell": lambda **o: sp.nn.BlockRNNCell(2, [(4, sp.ScaledCayley())], **o),
    "DeltaProductCell": lambda **o: sp.nn.DeltaProductCell(2, 4, strength="reflection", values=False, **o),
    "GORUCell": lambda **o: sp.nn.GORUCell(2, 4, **o),
    "Equilibrium": lambda **o: sp.nn.Equilibrium(2, 4, **o),
    "StateSpaceCell": lambda **o: sp.nn.StateSpaceCell(2, 4, 3, gain=1.0, **o),
}
COMPLEX = {"EUNN", "ScuRNN", "URNN"}


def network(name: str, to: To) -> Any:
    """Two steps of training, of a network that a constructor has been told the device and the dtype of."""
    torch.manual_seed(0)
    dtype = torch.complex64 if name in COMPLEX else torch.float32
    net = to(NETWORKS[name](device="cpu", dtype=dtype))
    x = to(normal(3, 2) if name.endswith("Cell") else normal(8, 2, 2))
    optimizer, found = torch.optim.SGD(net.parameters(), lr=1e-2), []
    for _ in range(2):
        optimizer.zero_grad()
        result = net(x)
        output = result[0] if isinstance(result, tuple) else result
        (output.abs() if output.is_complex() else output).square().mean().backward()
        optimizer.step()
        found.append(output.detach())
    found += [p.grad for p in net.parameters() if p.grad is not None]
    if name == "ExpRNN":
        sp.rebase(net)
        found.append(net(x)[0].detach())
    if hasattr(net, "reset_parameters"):
        torch.manual_seed(1)
        net.reset_parameters()
        found += kept_values(list(net.parameters()))
    return found


def layers(to: To) -> Any:
    """Activations, a residual block, sequences of several lengths."""
    x = to(normal(3, 4))
    block = sp.nn.Residual(to(nn.Linear(4, 4, dtype=torch.float32, device="cpu")))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.fill_(0.1)
    inverse, determinant = block.inverse(x), block.log_abs_det(x)
    torch.manual_seed(0)
    rnn = to(sp.nn.ScoRNN(4, 3, 2, device="cpu", dtype=torch.float32))
    lengths = torch.tensor([6, 4, 1], dtype=torch.int64, device="cpu")
    packed = to(nn.utils.rnn.pack_padded_sequence(normal(6, 3, 4), lengths))
    output, last = rnn(packed)
    activation = to(sp.nn.ModReLU(4, device="cpu", dtype=torch.float32))
    return sp.nn.MaxMin()(x), activation(x), block(x), inverse, determinant, output.data, last


def certificates(to: To) -> Any:
    """What a network proves of itself, and a system that is given."""
    torch.manual_seed(0)
    cell = to(sp.nn.StateSpaceCell(2, 4, 3, gain=1.0, device="cpu", dtype=torch.float32))
    n = cell.state_size
    system = (0.5 * np.eye(n), np.ones((n, 2)), np.ones((3, n)), None)
    cell.set_system(system) if hasattr(cell, "set_system") else None
    links = cell.parametrizations.weight
    weight = to(Holder(stable(4)))
    sp.constrain(weight, "weight", sp.LyapunovForm(0.95, growth=3.0))
    form = weight.parametrizations.weight
    return links[0].certificate(*links.parameters(recurse=False)), form[0].certificate(form.original)


def adapters(to: To) -> Any:
    """A layer whose weights are rotated: gradients, the rotated weight, and what merging leaves."""
    layer = to(nn.Linear(4, 6, dtype=torch.float32, device="cpu"))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(to(normal(*parameter.shape)))
    adapted = sp.nn.adapt(layer, "weight", block_size=3)
    (skew,) = adapted.parameters()
    with torch.no_grad():
        skew.copy_(to(normal(*skew.shape, seed=1)))
    layer(to(normal(2, 4))).square().sum().backward()
    weight = layer.weight.detach()
    return skew.grad, adapted.rotations()["weight"].detach(), weight, adapted.merge().weight


TRAINED: dict[str, Job] = {
    **{f"network: {name}": functools.partial(network, name) for name in NETWORKS},
    "network: layers": layers,
    "network: certificates": certificates,
    "network: adapt": adapters,
}
