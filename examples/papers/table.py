"""``python -m examples.papers table``: write the page "Results" from the result files alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from examples.papers import config, measures, notes, record
from examples.papers.config import Row
from examples.papers.measures import Result
from examples.papers.sections import SECTIONS, Section

PAGE = Path(__file__).parents[2] / "docs" / "results.md"

HEAD = """# Results

<!-- Written by `python -m examples.papers table` from its folders results and rows. Do not edit. -->

The papers' experiments, as [Experiments](experiments.md) says how to run them. Where a row has been run with
several seeds, the number is their median, and the least and the largest are in parentheses. "Better",
"equal" and "worse" compare with the paper's number; equal means that ours rounds to it. "Reached", "missed"
and "open" are of goals; open means that a row to compare with has not been run. Rows are compared as they
were trained, most with one seed each; where the notes under a table name different optimizers or numbers of
epochs, that ranks the runs, not the networks.
"""

SUMMARY = """## In short

What the rows that have been run were to reach. "Changed" rows differ from the paper's setting, as told below
their table.

| | | | ours | |
|---|---|---|---:|---|
"""

FIGURE = """```{{eval-rst}}
.. plot::
   :filename-prefix: results-{section}
   :include-source: false
   :alt: Learning curves. {title}.

   from examples.papers import plot

   plot.curves('{section}')
```
"""

Results = dict[str, list[Result]]


def rows_of(name: str, rows: list[Row]) -> list[Row]:
    """Return the rows of a section.

    Args:
        name: Of the section.
        rows: All rows.
    """
    return [row for row in rows if row.section == name or row.name in SECTIONS[name].also]


def page(rows: list[Row], results: Results) -> str:
    """Return the page.

    Args:
        rows: All rows.
        results: The runs of each row.
    """
    parts = [HEAD]
    if summary := _summary(rows, results):
        parts.append(summary)
    for name, section in SECTIONS.items():
        members = rows_of(name, rows)
        done = [row for row in members if results.get(row.name)]
        parts.append(f"## {section.title}\n\n{section.text}\n")
        if done:
            parts.append(_table(done, section, results))
            if section.draws and any(run["curve"] for row in done for run in results[row.name]):
                parts.append(FIGURE.format(section=name, title=section.title))
            parts.extend(notes.below_table(done, results))
        if waiting := [row for row in members if row not in done]:
            parts.append(_waiting(waiting))
    return "\n".join(parts)


def _summary(rows: list[Row], results: Results) -> str:
    """Return what each row that has been run was to reach, and whether it did."""
    lines = []
    labels = {row.name: _label(row) for row in rows}
    for name, section in SECTIONS.items():
        title = section.title
        for row in rows:
            runs = results.get(row.name)
            if row.section != name or not runs:
                continue
            label = _label(row)
            for text, measure, state in _asked(row, results, labels):
                if state and measures.values(runs, measure):
                    lines.append(f"| {title} | {label} | {text} | {_spread(runs, measure)} | **{state}** |")
                    title = label = ""
    return SUMMARY + "\n".join([*lines, ""]) if lines else ""


def _asked(row: Row, results: Results, labels: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield what a row was to reach in words, of which measure, and whether it did."""
    runs = results[row.name]
    for paper in row.paper:
        yield f"{paper['measure']}, paper {paper['value']}", paper["measure"], _verdict(paper, runs)
    for goal in row.goal:
        done = measures.reached(goal, results, row.name, runs[0]["metric"])
        state = {True: "reached", False: "missed", None: "open"}[done]
        yield measures.asked(goal, labels), goal["measure"], state


def _label(row: Row) -> str:
    return f"{row.label}{' (changed)' if row.changed else ''}"


def _table(rows: list[Row], section: Section, results: Results) -> str:
    lines = ["| | parameters | | ours | paper | |", "|---|---:|---|---:|---:|---|"]
    for row in rows:
        runs = results[row.name]
        reported = {paper["measure"] for paper in row.paper}
        count = f"{runs[0]['parameters']:,}" if "parameters" in runs[0] else ""
        label = _label(row)
        for measure in dict.fromkeys([*section.measures, *(p["measure"] for p in row.paper)]):
            if not measures.values(runs, measure):
                continue
            ours = _spread(runs, measure)
            if measure not in reported:
                lines.append(f"| {label} | {count} | {measure} | {ours} | | |")
            for paper in row.paper:
                if paper["measure"] == measure:
                    verdict, theirs = _verdict(paper, runs), f"{paper['value']} ({paper['source']})"
                    lines.append(f"| {label} | {count} | {measure} | {ours} | {theirs} | {verdict} |")
            label = count = ""
    return "\n".join([*lines, ""])


def _verdict(paper: dict[str, str], runs: list[Result]) -> str:
    ours = measures.median(runs, paper["measure"])
    if ours is None or not paper.get("verdict", True):
        return ""
    higher = measures.is_higher_better(paper["measure"], runs[0]["metric"])
    return measures.compare(ours, paper["value"], higher)


def _spread(runs: list[Result], measure: str) -> str:
    found = measures.values(runs, measure)
    middle = measures.median(runs, measure)
    assert middle is not None
    if len(found) == 1:
        return _number(middle)
    return f"{_number(middle)} ({_number(min(found))} to {_number(max(found))})"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    short = f"{value:.5g}"
    # Zeros that come of rounding stay: 1.41996 is 1.4200.
    return short if float(short) == value else f"{value:#.5g}"


def _waiting(rows: list[Row]) -> str:
    lines = ["Not run:\n", "| | paper | command |", "|---|---:|---|"]
    for row in rows:
        papers = "; ".join(f"{paper['measure']} {paper['value']}" for paper in row.paper)
        lines.append(f"| {row.label} | {papers} | `{row.command}` |")
    return "\n".join([*lines, ""])


def write() -> None:
    """Write the page."""
    PAGE.write_text(page(config.load_all(), record.read_all(record.RESULTS)), encoding="utf-8")
    print(f"Written: {PAGE}")
