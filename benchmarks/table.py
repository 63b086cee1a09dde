"""What a function has to return to be shown on a page as a table, and what such functions share.

A page says where a table stands and with which arguments, one on a line::

    ```{measured} benchmarks.measures.cpu.times
    bounded norm, a training step
    ```

The function is called when the pages are built, so a page and the numbers cannot differ.
"""

from __future__ import annotations

import functools
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.results import RESULTS, is_stale, read
from benchmarks.task import Result
from examples.papers.origin import fact

Row = Sequence[str]
Table = tuple[Row, list[Row]]  # Header and rows; a cell is a line of Markdown.

MARK = " †"
NOTE = (
    "† Measured before code changed that the numbers depend on, or by a commit that is not known. "
    "`python -m benchmarks --stale` lists such numbers."
)


class Recorded(Result):
    """A result, and whether it is stale."""

    is_stale = False


@functools.cache
def load(subject: str) -> dict[str, Result]:
    """Return the results of a subject by name.

    Args:
        subject: Name of the subject.

    Raises:
        ValueError: If there is no such subject, or it has no results.
    """
    results = {}
    for name, result in read(RESULTS, subject).items():
        results[name] = recorded = Recorded(result)
        recorded.is_stale = is_stale(subject, result)
    if not results:
        raise ValueError(f"subject: expected one with numbers in {RESULTS}, got {subject!r}")
    return results


def named(subject: str, beginning: str) -> dict[str, Result]:
    """Return the results whose names begin so, by the rest of the name.

    Args:
        subject: Name of the subject.
        beginning: Beginning of the names.
    """
    found = {n: result for n, result in load(subject).items() if n.startswith(beginning)}
    return {n.removeprefix(beginning).lstrip(",: "): result for n, result in found.items()}


def marked(text: str, results: Result | Iterable[Result]) -> str:
    """Return the text of a cell, with a mark if a number that it names is stale.

    Args:
        text: The text.
        results: Where its numbers come from: a result, or several.
    """
    several = [results] if isinstance(results, Mapping) else results
    return text + MARK if any(getattr(result, "is_stale", False) for result in several) else text


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


def origins(subject: str, *keys: str) -> Table:
    """Return where and with which versions the results of a subject were measured.

    Args:
        subject: Name of the subject.
        *keys: Beginnings of the names of results, in the order in which the page has them.

    Returns:
        A row for each environment, with the keys whose results are from there, and how many these are.
    """
    found: dict[str, dict[str, list[Result]]] = {}
    for key in keys or ("",):
        for name, result in load(subject).items():
            if shown(name, result).startswith(key):
                found.setdefault(_origin(result), {}).setdefault(key, []).append(result)
    rows = []
    for where, by_key in found.items():
        results = [result for each in by_key.values() for result in each]
        rows.append([marked("; ".join(filter(None, by_key)) or subject, results), str(len(results)), where])
    return ("measured", "results", "where"), rows


def _origin(result: Result) -> str:
    environment = {name: value for name, value in result["environment"].items() if name != "took"}
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
