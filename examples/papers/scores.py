"""How good reconstructed speech is: SegSNR, STOI and PESQ.

SegSNR and PESQ are not the papers'. Helfrich, Willmott and Ye (2018) name Voicebox (Brookes et al., 1997) for
SegSNR, Rix et al. (2001) for PESQ. Ours are defined at :func:`segmental_snr` and :func:`perceptual`.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from typing import Any

import torch
from torch import Tensor

RATE, FRAME = 8000, 80
# Hansen and Pellom (1998): a frame of silence would otherwise outweigh all others.
LOWEST, HIGHEST = -10.0, 35.0
# Frames that are quieter than the loudest by more count as silence.
ACTIVE = 40.0


def segmental_snr(reference: Tensor, estimate: Tensor) -> float:
    """Return the mean over frames of 10 ms of the signal-to-noise ratio in dB, each within -10 … 35.

    Frames more than 40 dB below the loudest do not count. Voicebox, which the papers name, detects speech in
    another way and aligns the two before, so its numbers are not on the same scale.

    Args:
        reference: The true samples.
        estimate: The samples to be judged.
    """
    length = len(reference) // FRAME * FRAME
    x, y = (audio[:length].double().view(-1, FRAME) for audio in (reference, estimate))
    signal, noise = x.square().sum(dim=1), (x - y).square().sum(dim=1)
    active = signal > signal.max() * 10 ** (-ACTIVE / 10)
    ratio = 10 * torch.log10(signal / noise.clamp(min=1e-20))
    return float(ratio[active].clamp(LOWEST, HIGHEST).mean())


def missing() -> list[str]:
    """Return which of the packages for STOI and PESQ are not installed."""
    return [name for name in ("pystoi", "pesq") if importlib.util.find_spec(name) is None]


def perceptual(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Return the mean scores of all utterances, and how many of them each score could be had for.

    STOI takes 0.4 s of speech at least, and PESQ speech that it detects. PESQ is what the package ``pesq``
    returns for narrow-band speech, the MOS-LQO. The papers refer to Rix et al. (2001), so theirs is
    presumably the raw score of P.862; they do not say.

    Args:
        pairs: True and reconstructed samples of each utterance.
    """
    found: dict[str, list[float]] = {"SegSNR": [segmental_snr(*pair) for pair in pairs]}
    absent = missing()
    if "pystoi" not in absent:
        found["STOI"] = [value for pair in pairs if (value := _stoi(*pair)) is not None]
    if "pesq" not in absent:
        found["PESQ"] = [value for pair in pairs if (value := _pesq(*pair)) is not None]
    scores: dict[str, Any] = {}
    for name, values in found.items():
        scores[name] = math.fsum(values) / len(values) if values else None
        scores[f"{name} utterances"] = len(values)
    return scores


def _stoi(reference: Tensor, estimate: Tensor) -> float | None:
    from pystoi import stoi

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # Too little speech.
        try:
            return float(stoi(reference.double().numpy(), estimate.double().numpy(), RATE))
        except RuntimeWarning:
            return None


def _pesq(reference: Tensor, estimate: Tensor) -> float | None:
    from pesq import PesqError, pesq

    value = pesq(RATE, reference.numpy(), estimate.numpy(), "nb", on_error=PesqError.RETURN_VALUES)
    return float(value) if value > 0 else None
