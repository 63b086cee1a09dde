"""Numbers of the first steps of a row, with the code in the current folder.

:mod:`examples.papers.replay` starts this text with ``python -c`` in a folder with the code of any commit. So
nothing of the repository is imported but what every commit with results has.

Arguments: the file to write, how many steps, the size of the noise, and the row with its options.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

output, steps, noise, *arguments = sys.argv[1:]
# Older commits have the experiments in another place.
package = "examples.papers" if Path("examples/papers/cli.py").is_file() else "experiments"
cli, trainers = (importlib.import_module(f"{package}.{name}") for name in ("cli", "trainer"))
library = importlib.import_module("spectral_param")
assert Path(str(library.__file__)).is_relative_to(Path.cwd()), f"expected it here, got {library.__file__}"
numbers: list[list[float]] = []
generator = torch.Generator().manual_seed(0)


def train_step(self: Any) -> None:
    """Take a step and note its loss and the norm of its gradient; leave after the last one."""
    if not numbers:
        torch.manual_seed(0)  # Dropout: older code drew without a seed.
    with torch.no_grad():
        for parameter in self.model.parameters() if float(noise) else ():
            change = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parameter *= (1 + float(noise) * change).to(parameter.dtype)
    taken(self)
    numbers.append([self.last["loss"], self.last["gradient"]])
    if len(numbers) == int(steps):
        raise SystemExit(0)


taken = trainers.Trainer.train_step
trainers.Trainer.train_step = train_step
folder = Path(output).parent
try:
    code = cli.main(["run", *arguments, "--results", str(folder), "--work", str(folder / "work")])
finally:
    if numbers:
        Path(output).write_text(json.dumps(numbers), encoding="utf-8")
if not code and not numbers:  # A row that fits a matrix takes no steps.
    (result,) = folder.glob(f"{arguments[0]}-seed*.json")
    Path(output).write_text(json.dumps([list(json.loads(result.read_text())["summary"].values())]))
sys.exit(code)
