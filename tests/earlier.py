"""Modules whose checkpoints an earlier version wrote, for tests/promises/test_earlier_checkpoints.py.

``python -m tests.earlier`` in a checkout of that version, with this file copied there, writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import spectral_param as sp

# Written by commit 1a0ad3f, the last one before a set and its map were two things.
CHECKPOINTS = Path(__file__).parent / "earlier.pt"


def constrained(
    constraint: nn.Module, *shape: int, dtype: torch.dtype = torch.float32, init: str | None = None
) -> nn.Module:
    module = nn.Module()
    W = torch.randn(shape, dtype=dtype) / (2 * shape[-1] ** 0.5)
    module.weight = nn.Parameter(W)
    return sp.constrain(module, "weight", constraint, init=init)


C = torch.complex64
MODULES: dict[str, Callable[[], nn.Module]] = {
    "radius, equal": lambda: constrained(sp.SpectralRadiusNorm(), 5, 5),
    "radius, at most": lambda: constrained(sp.SpectralRadiusNorm(0.1, "at_most"), 5, 5, dtype=C),
    "radius, latched": lambda: constrained(sp.SpectralRadiusNorm(0.4, "latched"), 2, 4, 4),
    "radius, present": lambda: constrained(sp.SpectralRadiusNorm("present"), 2, 4, 4),
    "radius, one for each": lambda: constrained(sp.SpectralRadiusNorm(torch.tensor([0.5, 0.9])), 2, 4, 4),
    "radius, tracked": lambda: constrained(sp.SpectralRadiusNorm(solver="tracking"), 32, 32),
    "radius, absolute": lambda: constrained(sp.SpectralRadiusNorm(0.9, of="absolute"), 5, 5),
    "abscissa": lambda: constrained(sp.SpectralAbscissa(-0.1), 5, 5),
    "abscissa, present": lambda: constrained(sp.SpectralAbscissa("present", "at_most"), 5, 5),
    "norm": lambda: constrained(sp.SpectralNorm(0.3), 4, 6),
    "norm, present": lambda: constrained(sp.SpectralNorm("present"), 2, 4, 6),
    "norm, followed": lambda: constrained(sp.SpectralNorm(0.3, "equal", "tracking"), 40, 32),
    "norm of a kernel": lambda: sp.constrain(nn.Conv2d(2, 3, 3), "weight", sp.SpectralNorm(0.3)),
    "gates": lambda: sp.constrain(nn.LSTM(2, 3), "weight_hh_l0", sp.SpectralRadiusNorm("present", "at_most")),
    "Cayley": lambda: constrained(sp.ScaledCayley(), 5, 5),
    "Cayley, unitary": lambda: constrained(sp.ScaledCayley(), 5, 5, dtype=C),
    "Cayley, thin": lambda: constrained(sp.ScaledCayley(), 6, 3),
    "exponential": lambda: constrained(sp.SkewExponential(), 6, 6),
    "exponential, wide": lambda: constrained(sp.SkewExponential(), 3, 7),
    "Householder": lambda: constrained(sp.Householder(), 5, 5),
    "Householder, few": lambda: constrained(sp.Householder(2), 6, 6, init="paper"),
    "Givens": lambda: constrained(sp.Givens(), 6, 6),
    "Givens, layers": lambda: constrained(sp.Givens(None, "fft"), 8, 8, init="paper"),
    "Fourier": lambda: constrained(sp.FourierUnitary(), 6, 6, dtype=C, init="paper"),
    "singular values": lambda: constrained(sp.SingularValues(0.1), 5, 3),
    "Schur": lambda: constrained(sp.SchurForm(), 6, 6),
    "Schur, bounded": lambda: constrained(sp.SchurForm(radius=0.9, departure=2.0), 6, 6),
    "Schur, abscissa": lambda: constrained(sp.SchurForm(abscissa=-0.1), 6, 6),
    "Lyapunov": lambda: constrained(sp.LyapunovForm(0.95), 5, 5),
    "Lyapunov, growth": lambda: constrained(sp.LyapunovForm(0.95, growth=3.0), 5, 5),
    "Lyapunov, abscissa": lambda: constrained(sp.LyapunovForm(abscissa="present"), 5, 5),
    "Lyapunov, complex": lambda: constrained(sp.LyapunovForm("present"), 4, 4, dtype=C),
    "Lyapunov, diagonal": lambda: constrained(sp.LyapunovForm(0.95, metric="diagonal"), 5, 5),
    "gain": lambda: constrained(sp.BoundedGain(0.9, 3), 5, 5),
    "signs": lambda: constrained(sp.SignPattern(torch.eye(3) - 1), 3, 3),
    "blocks": lambda: constrained(
        sp.BlockTriangular(
            [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm(1.0, "latched"))], coupling=True
        ),
        5,
        5,
    ),
    "chain": lambda: sp.constrain(
        constrained(sp.SignPattern(torch.ones(4, 4)), 4, 4), "weight", sp.SpectralRadiusNorm(0.9)
    ),
    "ENRNN": lambda: sp.nn.ENRNN(2, 5, 4, 2),
    "ContractingRNN": lambda: sp.nn.ContractingRNN(2, 5),
    "StateSpace": lambda: sp.nn.StateSpace(2, 3, 5, gain=1.0),
    "ENRNN, no coupling": lambda: sp.nn.ENRNN(2, 5, 4, coupling=False, bidirectional=True),
    "EUNN": lambda: sp.nn.EUNN(2, 6),
    "GORU": lambda: sp.nn.GORU(2, 5),
    "NNRNN": lambda: sp.nn.NNRNN(2, 6, radius=1.0),
    "ORNN": lambda: sp.nn.ORNN(2, 5),
    "URNN": lambda: sp.nn.URNN(2, 6),
    "BlockRNN": lambda: sp.nn.BlockRNN(2, [(3, sp.ScaledCayley()), (2, sp.SpectralNorm(0.9))]),
    "ExpRNN": lambda: sp.nn.ExpRNN(2, 6),
    "ScoRNN": lambda: sp.nn.ScoRNN(2, 6, negative_ones=2),
    "ScuRNN": lambda: sp.nn.ScuRNN(2, 5),
    "SpectralRNN": lambda: sp.nn.SpectralRNN(2, 5),
}


def trained(name: str, seed: int) -> nn.Module:
    """The module after three optimizer steps from a start of its own."""
    torch.manual_seed(seed)
    module = MODULES[name]()
    parameters = [p for p in module.parameters() if p.requires_grad]
    for _ in range(3):
        for p in parameters:
            with torch.no_grad():
                p.add_(0.01 * torch.randn_like(p))
        weights(module)
    return module


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """The weights that are constrained."""
    return {
        f"{path}.{name}": getattr(part, name).detach().clone()
        for path, part in module.named_modules()
        for name in getattr(part, "parametrizations", {})
    }


if __name__ == "__main__":
    written = {}
    for name in MODULES:
        module = trained(name, 0)
        written[name] = (dict(module.state_dict()), weights(module))
    torch.save(written, CHECKPOINTS)
