"""What a function has to return to be shown on a page as a table, and what such functions share.

A page says where a table stands and with which arguments, one on a line::

    ```{measured} benchmarks.costs_table.times
    bounded norm, a training step
    ```

The function is called when the pages are built, so a page and the numbers cannot differ.
"""

from __future__ import annotations

import functools
import json
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from examples.papers.record import fact

RESULTS = Path(__file__).resolve().parent / "results"

Result = dict[str, Any]
Row = Sequence[str]
Table = tuple[Row, list[Row]]  # Header and rows; a cell is a line of Markdown.


@functools.cache
def load(name: str) -> dict[str, Result]:
    """Return the numbers of a file.

    Args:
        name: Its name in ``benchmarks/results``, without ``.json``.
    """
    results: dict[str, Result] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return results


def table(function: str, arguments: Iterable[str] = ()) -> Table:
    """Return the table of a function.

    Args:
        function: Its name, with its module.
        arguments: What it is called with.

    Raises:
        ValueError: If there is no such function, or if its table has no rows or rows of other lengths.
    """
    try:
        make: Callable[..., Table] = pkgutil.resolve_name(function)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"function: expected module and function, got {function}: {error}") from error
    header, rows = make(*arguments)
    if not rows or {len(row) for row in rows} != {len(header)}:
        raise ValueError(f"{function}: expected rows of {len(header)} cells, got {rows}. Are there numbers?")
    return header, rows


def markdown(header: Row, rows: Sequence[Row]) -> str:
    """Return a table in Markdown. Columns of numbers, but for the first, are flush right.

    Args:
        header: The titles of the columns.
        rows: The cells.
    """

    def line(cells: Row) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rules = ["---"]
    for column in list(zip(*rows, strict=True))[1:]:
        numbers = [bool(re.match(r"[-−]?[\d∞]", cell)) for cell in column if cell]
        rules.append("---:" if 2 * sum(numbers) > len(numbers) else "---")
    return "\n".join([line(header), f"|{'|'.join(rules)}|", *map(line, rows)])


def origins(file: str, *keys: str) -> Table:
    """Return where and with which versions the numbers of a file were measured.

    Args:
        file: The name of the file.
        *keys: Beginnings of the names of results, in the order in which the page has them.

    Returns:
        A row for each environment, with the keys whose results are from there.
    """
    results = load(file)
    found: dict[str, dict[str, None]] = {}
    for key in keys or ("",):
        chosen = [result for name, result in results.items() if shown(name, result).startswith(key)]
        for result in [results] if "environment" in results else chosen:
            if "environment" in result:
                found.setdefault(_origin(result), {})[key] = None
    return ("measured", "where"), [("; ".join(names) or file, where) for where, names in found.items()]


def _origin(result: Result) -> str:
    environment = dict(result["environment"])
    environment |= environment.pop("rivals", {})  # Packages of another environment.
    facts = ", ".join(f"{name} {fact(name, value)}" for name, value in environment.items())
    return facts + (f", {result['repeats']} repeats" if "repeats" in result else "")


def shown(name: str, result: Result) -> str:
    """Return the name of a result on the pages: of a point of a curve, the title of the curve comes first.

    Args:
        name: Its name in the file.
        result: The result.
    """
    if not result.get("curve"):
        return name
    title, label, x = result["curve"]
    return f"{title}: n = {x}" if label == "n" else f"{title}: {x} {label}"


def short(value: float) -> str:
    """Return a number in two digits.

    Args:
        value: The number.
    """
    if math.isinf(value):
        return "∞"
    if abs(value) < 5e-3:
        return "0"
    return f"{value:.2g}" if abs(value) < 100 else f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.1e}"
