"""The tables at the end, and ``results.json``."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import spectral_param as sp
from examples.demo.cards import GUESSING as GUESSING_AN_ORDER
from examples.demo.settings import GUESSING
from examples.papers.config import Row


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Return the median of several seeds, and their range.

    Args:
        values: A number for each seed.
        form: How numbers are written.
    """
    median = format(statistics.median(values), form)
    return median if len(values) == 1 else f"{median} ({min(values):{form}} to {max(values):{form}})"


def _by_network(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in records:
        found.setdefault(entry["network"], []).append(entry)
    return found


def memory(records: list[dict[str, Any]]) -> str:
    """Return the table of the recurrent networks.

    Args:
        records: What :func:`examples.demo.memory.record` returned for each.
    """
    rows: list[tuple[str, ...]] = [
        ("network", "test accuracy", "guessing", "parameters", "seconds", "spectral radius")
    ]
    for name, entries in _by_network(records).items():
        blocks = entries[0]["spectral_radius"]
        radii = (f"{b} {max(e['spectral_radius'][b] for e in entries):.3f}" for b in blocks)
        rows.append(
            (
                name,
                spread([entry["test"] for entry in entries], ".1%"),
                f"{GUESSING:.1%}",
                f"{entries[0]['free_parameters']:,}",
                f"{sum(entry['seconds'] for entry in entries):.0f}",
                ", ".join(radii),
            )
        )
    return _table("A network that remembers: digits, read pixel by pixel", rows)


def cards(records: list[dict[str, Any]]) -> str:
    """Return the table of the networks that follow a shuffle.

    Args:
        records: What :func:`examples.demo.cards.compare` returned for all seeds.
    """
    lengths = records[0]["lengths"]
    rows: list[tuple[str, ...]] = [
        ("network", *(f"right after up to {length}" for length in lengths), "guessing", "seconds")
    ]
    for name, entries in _by_network(records).items():
        cells = (spread([entry["right"][i] for entry in entries], ".1%") for i in range(len(lengths)))
        seconds = sum(entry["seconds"] for entry in entries)
        rows.append((name, *cells, f"{GUESSING_AN_ORDER:.1%}", f"{seconds:.0f}"))
    return _table("A network that follows: three cards, shuffled again and again", rows)


def certificate(records: list[dict[str, Any]]) -> str:
    """Return the table of the networks under attack.

    Args:
        records: What :func:`examples.demo.certificate.compare` returned for all seeds.
    """
    rows: list[tuple[str, ...]] = [
        (
            "network",
            "size of the attack",
            "right under attack",
            "certified",
            "by the product",
            "product of norms",
        )
    ]
    for name, entries in _by_network(records).items():
        constant = spread([entry["lipschitz"] for entry in entries], ".2f")
        for index, size in enumerate(entries[0]["sizes"]):
            if size in (0.0, 0.25, 0.5):
                cells = (
                    spread([entry[what][index] for entry in entries], ".1%")
                    for what in ("attacked", "certified", "certified by the product")
                )
                rows.append((name, f"{size:g}", *cells, constant))
    return _table("A network with a certificate, under attack: digits in [0, 1]", rows)


def forecast(records: list[dict[str, Any]]) -> str:
    """Return the table of the forecasts.

    Args:
        records: What :func:`examples.demo.forecast.compare` returned for each seed.
    """
    rows: list[tuple[str, ...]] = [("model", "error of 100 steps", "spectral radius (true: 1)")]
    for name in records[0]["error"]:
        numbers = ([entry[what][name] for entry in records] for what in ("error", "spectral_radius"))
        rows.append((name, *map(spread, numbers)))
    return _table("A forecast beside least squares: two oscillations, four noisy sensors", rows)


def sphere(records: list[dict[str, Any]]) -> str:
    """Return the table of where the steps on a sphere end.

    Args:
        records: What :func:`examples.demo.sphere.compare` returned for all seeds.
    """
    rows: list[tuple[str, ...]] = [("step", "above the minimum")]
    for way in dict.fromkeys(entry["step"] for entry in records):
        rows.append((way, spread([entry["gap"] for entry in records if entry["step"] == way], ".0e")))
    return _table("Where Adam ends on a sphere: a linear cost of the least value -1", rows)


# What the reader has seen, with the page that goes on: by the names of the figures.
MEANING = """What the numbers say, and which page goes on:
memory       accuracy after 64 pixels; an orthogonal block keeps the first one. docs/rnn.md
cards        orders that are right; two reflections for each shuffle follow them. docs/following.md
certificate  "certified" is proven: no change of this size, found or not, does harm. docs/lipschitz.md
forecast     error relative to the signal; 1 is a forecast of zeros. docs/dynamics.md
sphere       how much better a weight on the sphere could be; "tangent" ends at the best. docs/after_step.md
Twelve short scripts to begin with are in tasks/."""


def _table(title: str, rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([title, "", *lines])


def write_json(path: Path, rows: list[Row], seeds: list[int], parts: dict[str, list[dict[str, Any]]]) -> None:
    """Write settings and numbers.

    Args:
        path: The file.
        rows: What was trained in the first part.
        seeds: The seeds.
        parts: The numbers of each part by its name.
    """
    contents = {
        "settings": {
            "seeds": seeds,
            "threads": torch.get_num_threads(),
            "rows": {row.name: row.settings for row in rows},
        },
        "versions": {
            "spectral_param": sp.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        **parts,
    }
    path.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
