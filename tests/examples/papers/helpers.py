"""What the tests of the experiments share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]

# The state is carried over, and the rate follows the scores: both have to come back from a checkpoint.
CHARACTERS = """
label = "characters"
section = "ptb-50"

[task]
name = "ptb"
length = 10
batch_size = 4
tiny = true

[network]
name = "ENRNN"
long_size = 8
short_size = 24
embedding = 12

[[optimizer]]
parameters = "ScaledCayley"
name = "RMSprop"
lr = 1e-3

[[optimizer]]
name = "Adam"
lr = 1e-2

[training]
steps = 16
evaluate_every = 3
clip_norm = 1.0
schedule = { name = "plateau", gamma = 0.5 }
"""


def write_row(folder: Path, text: str, name: str = "row") -> str:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


def arguments(folder: Path, row: str, *more: str) -> list[str]:
    return ["run", row, "--threads", "1", "--results", str(folder), "--work", str(folder), *more]


def read_curve(folder: Path, name: str = "row", seed: int = 0) -> list[dict[str, Any]]:
    """All of the curve but the times."""
    result = json.loads((folder / f"{name}-seed{seed}.json").read_text())
    return [{k: v for k, v in point.items() if k != "seconds"} for point in result["curve"]]
