"""Recorded speech at 8 kHz: AN4, and TIMIT for those who own it."""

from __future__ import annotations

import io
import wave
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.signal
import torch
from torch import Tensor

from examples.papers import data

Audio = dict[str, list[Tensor]]
"""The utterances of ``"train"``, ``"validation"`` and ``"test"``, samples from -1 to 1."""

AN4_SOURCE = (
    "CMU AN4 (www.speech.cs.cmu.edu/databases/an4) resampled to 8 kHz, as arrays pcm (int16, all utterances "
    "end to end), offsets (1079), names (speaker/utterance) and is_test"
)
AN4_COUNTS = {"train": 948, "test": 130}
TIMIT_SOURCE = "the TIMIT corpus (LDC93S1, not free), the folder with TRAIN and TEST in it"
TIMIT_COUNTS = {"train": 3696, "validation": 400, "test": 192}
# The core test set of the corpus's documentation: two men and a woman of each of eight regions.
TIMIT_CORE = {
    *("mdab0", "mwbt0", "felc0", "mtas1", "mwew0", "fpas0", "mjmp0", "mlnt0", "fpkt0", "mlll0", "mtls0"),
    *("fjlm0", "mbpm0", "mklt0", "fnlp0", "mcmj0", "mjdh0", "fmgd0", "mgrt0", "mnjm0", "fdhc0", "mjln0"),
    *("mpam0", "fmld0"),
}


def an4() -> Audio:
    """Return AN4: its test speakers, and of its other 74 every eighth, 10 in all, for validation.

    Raises:
        DataError: If the file is missing, or is not what it should be.
    """
    path = data.find("an4_8k/an4_8k.npz", AN4_SOURCE)
    try:
        # Opened here: np.load leaves a file open that is no archive.
        with path.open("rb") as file, np.load(file) as archive:
            pcm, offsets, names, is_test = (archive[k] for k in ("pcm", "offsets", "names", "is_test"))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise data.DataError(f"{path}: expected {AN4_SOURCE} ({error})") from error
    data.check(path, "type of pcm", "int16", str(pcm.dtype))
    data.check(path, "last offset", len(pcm), int(offsets[-1]))
    counts = {"train": int((~is_test).sum()), "test": int(is_test.sum())}
    data.check(path, "number of utterances", AN4_COUNTS, counts)
    speakers = [str(name).split("/")[0] for name in names]
    held_out = set(sorted({s for s, test in zip(speakers, is_test, strict=True) if not test})[::8])
    audio: Audio = {"train": [], "validation": [], "test": []}
    for i, (speaker, test) in enumerate(zip(speakers, is_test, strict=True)):
        part = "test" if test else "validation" if speaker in held_out else "train"
        audio[part].append(_samples(pcm[offsets[i] : offsets[i + 1]]))
    return audio


def timit() -> Audio:
    """Return TIMIT without its SA sentences, split by speakers, which are the names of the folders.

    The training speakers, the core test set, and for validation the first 50 by name of the other test
    speakers. (A list of 50 others is customary in speech recognition.)

    Raises:
        DataError: If the corpus is missing, or is not what it should be.
    """
    root = data.find("timit", TIMIT_SOURCE)
    audio: Audio = {part: [] for part in TIMIT_COUNTS}
    files = sorted(
        (path.parent.name.lower(), path.stem.lower(), path)
        for path in root.rglob("*")
        if path.suffix.lower() == ".wav" and not path.stem.lower().startswith("sa")
    )
    tested = {speaker for speaker, _, path in files if _is_test(path, root)}
    validated = set(sorted(tested - TIMIT_CORE)[:50])
    for speaker, _, path in files:
        if speaker not in tested:
            audio["train"].append(read_wave(path))
        elif speaker in TIMIT_CORE:
            audio["test"].append(read_wave(path))
        elif speaker in validated:
            audio["validation"].append(read_wave(path))
    data.check(root, "number of utterances", TIMIT_COUNTS, {part: len(a) for part, a in audio.items()})
    return audio


def read_wave(path: Path) -> Tensor:
    """Return 16-bit audio of 16 kHz, in a NIST or a RIFF file, resampled to 8 kHz.

    Args:
        path: The file.

    Raises:
        DataError: If it is something else.
    """
    content = path.read_bytes()
    if content.startswith(b"NIST_1A"):
        size = int(content[8:16])
        fields = dict(
            line.split(" ", 2)[::2]
            for line in content[16:size].decode("ascii", "replace").split("\n")
            if line.count(" ") >= 2
        )
        data.check(path, "sample_rate", "16000", fields.get("sample_rate"))
        data.check(path, "sample_coding", "pcm", fields.get("sample_coding", "pcm"))
        big = fields.get("sample_byte_format") == "10"
        samples = np.frombuffer(
            content[size : size + (len(content) - size) // 2 * 2], ">i2" if big else "<i2"
        )
    else:
        try:
            with wave.open(io.BytesIO(content)) as file:
                got = (file.getframerate(), file.getsampwidth(), file.getnchannels())
                data.check(path, "rate, bytes, channels", (16000, 2, 1), got)
                samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        except (wave.Error, EOFError) as error:
            raise data.DataError(f"{path}: expected a NIST or RIFF file ({error})") from error
    return torch.from_numpy(scipy.signal.resample_poly(samples / 32768, 1, 2).astype(np.float32))


def _is_test(path: Path, root: Path) -> bool:
    return "test" in (part.lower() for part in path.relative_to(root).parts)


def _samples(pcm: np.ndarray) -> Tensor:
    return torch.from_numpy(pcm.astype(np.float32) / 32768)


CORPORA: dict[str, Callable[[], Audio]] = {"an4": an4, "timit": timit}
