"""Rows: one TOML file each, with everything that decides about the result but the seed."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROWS = Path(__file__).parent / "rows"

TABLES = {
    "task": None,  # Its keys are the arguments of the task, which checks them.
    "network": None,
    "training": {
        "epochs",
        "steps",
        "evaluate_every",
        "measured",
        "clip_norm",
        "clip_value",
        "schedule",
        "average",
    },
}
QUICK_STEPS, QUICK_BATCH, QUICK_SIZE = 4, 4, 8


class RowError(ValueError):
    """A row does not exist, or its file is not as it should be."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: a network trained on a task.

    Attributes:
        name: Name of its file.
        label: What the tables call it.
        section: Which table it is in; see :data:`examples.papers.sections.SECTIONS`.
        task: ``name`` and arguments of the task.
        network: ``name`` and arguments; see :func:`examples.papers.networks.build`.
        optimizer: One entry for each group of parameters; see :mod:`examples.papers.optimizers`.
        training: ``epochs`` or ``steps``; ``evaluate_every``: so many steps, 0 for never, by default an
            epoch; ``measured``: which held-out parts then, all by default; ``clip_norm`` and
            ``clip_value``: of the gradient; ``schedule`` of the learning rates; ``average``: the decay of
            an exponential average of the weights, whose network is measured instead of the last one.
        paper: The paper's numbers: ``measure``, ``value`` with the paper's digits, ``source``.
        goal: What to reach: ``measure`` and a bound; see :func:`examples.papers.measures.reached`.
        changed: What differs from the paper's setting, for rows that do.
        file: Path of the file as it was given, for a row that was loaded by one.
    """

    name: str
    label: str
    section: str
    task: dict[str, Any]
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    paper: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    goal: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    changed: str = ""
    file: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What decides about the result, in plain types."""
        return {name: getattr(self, name) for name in ("task", "network", "optimizer", "training")}

    @property
    def command(self) -> str:
        """The command that runs it."""
        return f"python -m examples.papers run {shlex.quote(self.file or self.name)}"

    @property
    def has_name_of_another(self) -> bool:
        """Whether it is from a file elsewhere with the name of a row in ``examples/papers/rows``."""
        listed = ROWS / f"{self.name}.toml"
        return bool(self.file) and listed.is_file() and not listed.samefile(self.file)

    def quick(self) -> Row:
        """Return the row with a tiny network, tiny data made up for it, and a few steps."""
        task = {**self.task, "tiny": True}
        if "batch_size" in task:
            task["batch_size"] = QUICK_BATCH
        training = {k: v for k, v in self.training.items() if k not in ("epochs", "steps", "evaluate_every")}
        training.update(steps=QUICK_STEPS, evaluate_every=QUICK_STEPS // 2)
        return dataclasses.replace(self, task=task, network=_shrunk(self.network), training=training)


def _shrunk(network: dict[str, Any]) -> dict[str, Any]:
    network = dict(network)
    ones = network.get("negative_ones")
    if isinstance(ones, int):
        network["negative_ones"] = ones / (network.get("long_size") or network["hidden_size"])
    sizes = (
        "hidden_size",
        "long_size",
        "short_size",
        "state_size",
        "reflections",
        "embedding",
        "readout_size",
    )
    for name in sizes:
        if isinstance(network.get(name), int):
            network[name] = min(network[name], QUICK_SIZE)
        elif isinstance(network.get(name), list):
            network[name] = [min(size, QUICK_SIZE) for size in network[name]]
    return network


def names() -> list[str]:
    """Return the names of all rows, numbers in them in the order of their size."""

    def key(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]

    return sorted((path.stem for path in ROWS.glob("*.toml")), key=key)


def load(name: str) -> Row:
    """Return a row.

    Args:
        name: Of a file in ``examples/papers/rows`` without its ending, or the path of a file.

    Raises:
        RowError: If there is none, or it is not as it should be.
    """
    file = name if name.endswith(".toml") else ""
    path = Path(file) if file else ROWS / f"{name}.toml"
    if not path.is_file():
        raise RowError(f"{name}: no such row. `python -m examples.papers list` names them.")
    content = _content(path)
    fields = {field.name for field in dataclasses.fields(Row)} - {"name", "file"}
    if unknown := content.keys() - fields:
        raise RowError(f"{path}: expected {', '.join(sorted(fields))}; got {', '.join(sorted(unknown))}.")
    if absent := {"label", "section", "task"} - content.keys():
        raise RowError(f"{path}: {', '.join(sorted(absent))}: missing.")
    for table, keys in TABLES.items():
        if keys is not None and (unknown := content.get(table, {}).keys() - keys):
            raise RowError(f"{path}: {table}: expected {', '.join(sorted(keys))}; got {', '.join(unknown)}.")
    if content["task"].get("name") != "dynamics":
        training = content.get("training", {})
        if ("epochs" in training) == ("steps" in training):
            raise RowError(f"{path}: training: expected either epochs or steps.")
        if not content.get("network") or not content.get("optimizer"):
            raise RowError(f"{path}: network, optimizer: missing.")
    return Row(name=path.stem, file=file, **content)


def load_all() -> list[Row]:
    """Return all rows by name."""
    return [load(name) for name in names()]


def _content(path: Path) -> dict[str, Any]:
    """Return what a file says, on top of the row that it extends."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RowError(f"{path}: expected TOML ({error}).") from error
    base = content.pop("extends", None)
    if base is None:
        return content
    if not (ROWS / f"{base}.toml").is_file():
        raise RowError(f"{path}: extends: expected the name of a row, got {base!r}.")
    merged = _content(ROWS / f"{base}.toml")
    for key in ("paper", "goal", "changed"):  # They belong to the row that is extended.
        merged.pop(key, None)
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            # A network or task of another name shares no arguments.
            other = "name" in value and value["name"] != merged[key].get("name")
            merged[key] = value if other else {**merged[key], **value}
        else:
            merged[key] = copy.deepcopy(value)
    return merged
