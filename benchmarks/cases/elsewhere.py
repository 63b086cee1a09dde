"""One line in other people's code: orthonormal weights of public packages, where these are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.cases.case import Case, peak_bytes, training


def _case(ways: dict[str, tuple[nn.Module, Callable[[], Tensor], Callable[[], Tensor]]]) -> Case:
    """Return the case; each way is a module, its output, and the weight that should be orthonormal."""
    contenders, facts = {}, {}
    for label, (module, output, weight) in ways.items():
        contenders[label] = training(module, output)
        facts[f"megabytes of {label}"] = peak_bytes(contenders[label]) / 1e6
        with torch.no_grad():
            sigma = torch.linalg.svdvals(weight().double())
        facts[f"largest |σ - 1| of {label}"] = (sigma - 1).abs().max().item()
    return Case(contenders, facts=facts)


def loreft() -> Case:
    """``rotate_layer`` of pyreft's LoReFT: torch's orthogonal (householder) or ours, on the same class."""
    from pyreft import LoreftIntervention  # type: ignore[import-not-found]

    x = torch.randn(8, 16, 768)

    def make(constrained: bool) -> Any:
        torch.manual_seed(0)
        module = LoreftIntervention(embed_dim=768, low_rank_dimension=8, dtype=torch.float32)
        if constrained:
            nn.utils.parametrize.remove_parametrizations(module.rotate_layer, "weight")
            sp.constrain(module.rotate_layer, "weight", sp.ScaledCayley())
        return module, lambda: module(x), lambda: module.rotate_layer.weight

    return _case({"ours": make(True), "theirs": make(False)})


def bimap() -> Case:
    """``weight`` of spd-learn's BiMap: torch's orthogonal (cayley) or ours."""
    from spd_learn.modules import BiMap  # type: ignore[import-not-found]

    X = torch.randn(16, 256, 256)
    X = X @ X.mT / 256

    def make(constrained: bool) -> Any:
        torch.manual_seed(0)
        module = BiMap(256, 32, parametrized=not constrained)
        if constrained:
            sp.constrain(module, "weight", sp.ScaledCayley())
        return module, lambda: module(X), lambda: module.weight

    return _case({"ours": make(True), "theirs": make(False)})


def oft() -> Case:
    """The rotations of PEFT's orthogonal fine-tuning: its truncated series, or our transform."""
    from peft.tuners.oft.layer import OFTRotationModule  # type: ignore[import-not-found]

    x = torch.randn(4, 16, 1024)

    def make(constrained: bool) -> Any:
        torch.manual_seed(0)
        module = OFTRotationModule(32, 32 * 31 // 2, 32, 1024)
        nn.init.normal_(module.weight, std=0.9 / (2 * 32**0.5))  # ‖Q‖₂ of about 0.9
        if constrained:
            skew = module._pytorch_skew_symmetric
            module._cayley_batch = lambda Q, n, *_: sp.functional.cayley(-skew(Q, n))
        return module, lambda: module(x), lambda: module._cayley_batch(module.weight, 32)

    return _case({"ours": make(True), "theirs": make(False)})


#: The packages, what is measured of each, and its case.
CASES = {
    "pyreft": ("pyreft LoReFT, 768 x 8", loreft),
    "spd_learn": ("spd-learn BiMap, 256 x 32", bimap),
    "peft": ("PEFT OFT, 32 blocks of 32 x 32", oft),
}
