"""``python -m examples.papers table``: write the page of results and the log from the result files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.papers import config, measures, notes, record, replay
from examples.papers.config import Row
from examples.papers.measures import Result
from examples.papers.networks import BASELINES
from examples.papers.sections import SECTIONS, Section

DOCS = Path(__file__).parents[2] / "docs"
PAGE, LOG = DOCS / "results.md", Path(__file__).parent / "log.md"

WRITTEN = "<!-- Written by `python -m examples.papers table` from the result files. Do not edit. -->"

HEAD = f"""# Results

{WRITTEN}

The papers' experiments, trained with this library. [Experiments](experiments.md) says how to run them. The
{{download}}`log of the runs <../examples/papers/log.md>` has every number of every run.

```{{eval-rst}}
.. plot::
   :filename-prefix: results-overview
   :include-source: false
   :width: 440px
   :alt: Scores of the trained networks, one panel for each task. The tables below have the same numbers.

   from examples.papers import plot

   plot.overview()
```

A dot is the score of one run; where there are validation data, that of the epoch with the best validation
score. A diamond is the number that a paper prints for the same network. Arrows point to where scores are
better.
"""

COLUMNS = """| task | network | ours | best test | target |
|---|---|---:|---:|---|
"""

REACHED = """## Targets that were reached

A target is a number of a paper, or a bound that the file of the row sets. The completed runs of this
library's networks reached {reached} of their {count} targets. The log also lists the targets of the
comparison networks.

"""

MISSED = "## Targets that were not reached\n\n"

READING = """### How to read the tables

- With several seeds, "ours" is their median, followed by the range and the number of seeds. With one seed, it
  is the number of that run.
- "Ours" is the measure that the target names. If the target names no measure, "ours" is the test score of the
  epoch with the best validation score. "Best test" is the best of all epochs, which some papers report. A
  target is never compared with the best test where there are validation data.
- "Equal" means that our number rounds to the paper's.
- The runs that are compared often differ in optimizer or number of epochs. The table ranks the runs, not the
  networks.
"""

CHANGED = "- \\* The settings differ from the paper's. The notes in the log say how.\n"
DIFFERING = """\
- † The present code does not repeat the first steps of the run to rounding, or was not compared. The log says
  by how much they differ.
"""

CURVES = "## Learning curves\n"

FIGURE = """### {title}

```{{eval-rst}}
.. plot::
   :filename-prefix: results-{section}
   :include-source: false
   :width: 500px
   :alt: Learning curves. {title}.

   from examples.papers import plot

   plot.curves('{section}')
```
"""

LOG_HEAD = f"""# Log of the runs

{WRITTEN}

Every number of the completed runs behind [Results](../../docs/results.md). Where a network was trained with
several seeds, the median stands first and the number of each seed follows in parentheses.

A replay takes the first steps of a row once more, with the code of its runs and with that of a later commit.
Losses and gradient norms are the same to rounding if they differ by at most {replay.MARGIN} times as much as
noise of the size of rounding on the parameters changes them. `python -m examples.papers replay` replays all
rows again.

"""

CHOSEN = "test at best validation"

Results = dict[str, list[Result]]
Replays = dict[str, replay.Replay]


@dataclasses.dataclass(frozen=True)
class Target:
    """A target of a row.

    Attributes:
        measure: What is compared.
        text: What is asked of it.
        reached: Whether the median reaches it; None while a row to compare with has not been run.
    """

    measure: str
    text: str
    reached: bool | None


def rows_of(name: str, rows: list[Row]) -> list[Row]:
    """Return the rows of a section.

    Args:
        name: Of the section.
        rows: All rows.
    """
    return [row for row in rows if row.section == name or row.name in SECTIONS[name].also]


def page(rows: list[Row], results: Results, replays: Replays) -> str:
    """Return the page "Results".

    Args:
        rows: All rows.
        results: The runs of each row.
        replays: What was found when rows were replayed.
    """
    ours = [row for row in rows if results.get(row.name) and row.network.get("name") not in BASELINES]
    targets = {row.name: list(_targets(row, rows, results)) for row in ours}
    reached = {name: [t for t in found if t.reached] for name, found in targets.items()}
    missed = {name: [t for t in found if not t.reached] for name, found in targets.items()}
    yes, no = (_target_table(found, rows, results, replays) for found in (reached, missed))
    parts = [HEAD]
    if yes:
        counts = [sum(map(len, found.values())) for found in (reached, targets)]
        parts.append(REACHED.format(reached=counts[0], count=counts[1]) + yes)
    parts.append(READING + _marks(yes + no))
    if figures := "\n".join(_figures(rows, results)):
        parts += [CURVES, figures]
    if no:
        parts.append(MISSED + no)
    return "\n".join(parts)


def log(rows: list[Row], results: Results, replays: Replays) -> str:
    """Return the log of the runs.

    Args:
        rows: All rows.
        results: The runs of each row.
        replays: What was found when rows were replayed.
    """
    parts = []
    for name, section in SECTIONS.items():
        done = [row for row in rows_of(name, rows) if results.get(row.name)]
        if own := [row for row in done if row.section == name]:
            parts += [f"## {section.title}\n\n{section.text}\n", _log_table(done, section, results, replays)]
            parts += [_log_targets(own, rows, results), *notes.below_table(own, results, replays)]
    return "\n".join([LOG_HEAD + _marks("".join(parts)), *parts])


def judged(measure: str, runs: list[Result]) -> str:
    """Return the measure that stands for another: not the best of all epochs where the best is known.

    Args:
        measure: Name of the measure.
        runs: The runs of a row.
    """
    return CHOSEN if measure == "best test" and any(CHOSEN in run["summary"] for run in runs) else measure


def _targets(row: Row, rows: list[Row], results: Results) -> Iterator[Target]:
    """Yield the targets of a row that has been run: the paper's numbers, then what else was set."""
    runs = results[row.name]
    printed = set()
    for paper in row.paper:
        if verdict := _verdict(paper, runs):
            printed.add((paper["measure"], float(paper["value"])))
            text = f"{paper['value']} in the paper: {verdict}"
            yield Target(judged(paper["measure"], runs), text, verdict != "worse")
    for goal in row.goal:
        kind, bound = measures.bound(goal)
        if isinstance(bound, str) and (goal["measure"], float(bound)) in printed:
            continue
        goal = {**goal, "measure": judged(goal["measure"], runs)}
        done = measures.reached(goal, results, row.name, runs[0]["metric"])
        yield Target(goal["measure"], _asked(goal, kind, row, rows, results, done), done)


def _asked(
    goal: dict[str, Any], kind: str, row: Row, rows: list[Row], results: Results, done: bool | None
) -> str:
    """Return what a goal asks; of the rows to compare with, those that decided."""
    _, bound = measures.bound(goal)
    words = measures.BOUNDS[kind][0]
    if isinstance(bound, str):
        return f"{words} {bound}"
    measure, metric = goal["measure"], results[row.name][0]["metric"]
    by_name = {row.name: row for row in rows}
    said = []
    for other in bound:
        against = measures.reached({"measure": measure, kind: [other]}, results, row.name, metric)
        if against == done:
            theirs = measures.median(results.get(other, []), measure)
            number = "not run" if theirs is None else _number(theirs)
            said.append(f"{_label(by_name[other])} ({number})")
    return f"{words} {', '.join(said)}"


def _target_table(
    targets: dict[str, list[Target]], rows: list[Row], results: Results, replays: Replays
) -> str:
    lines = []
    for name, section in SECTIONS.items():
        title = section.title
        for row in rows:
            if row.section != name or not targets.get(row.name):
                continue
            runs, label = results[row.name], _marked(row, results, replays)
            for measure in dict.fromkeys(target.measure for target in targets[row.name]):
                asked = "; ".join(t.text for t in targets[row.name] if t.measure == measure)
                chosen = measure == CHOSEN
                ours, best = _range(runs, measure), _range(runs, "best test") if chosen else ""
                what = asked if chosen else f"{measure}: {asked}"
                lines.append(f"| {title} | {label} | {ours} | {best} | {what} |")
                title = label = ""
    return COLUMNS + "\n".join([*lines, ""]) if lines else ""


def _figures(rows: list[Row], results: Results) -> Iterator[str]:
    for name, section in SECTIONS.items():
        drawn = [row for row in rows_of(name, rows) if any(run["curve"] for run in results.get(row.name, []))]
        if section.draws and any(row.section == name for row in drawn):
            yield FIGURE.format(section=name, title=section.title)


def _marks(tables: str) -> str:
    """Return what the marks behind the labels mean, those that occur."""
    return (CHANGED if r" \*" in tables else "") + (DIFFERING if " †" in tables else "")


def _differs(row: Row, results: Results, replays: Replays) -> bool:
    return not replay.is_same(results[row.name], replays.get(row.name))


def _label(row: Row) -> str:
    return row.label + (r" \*" if row.changed else "")


def _marked(row: Row, results: Results, replays: Replays) -> str:
    return _label(row) + (" †" if _differs(row, results, replays) else "")


def _log_table(rows: list[Row], section: Section, results: Results, replays: Replays) -> str:
    lines = ["| network | parameters | measure | ours | paper |", "|---|---:|---|---:|---|"]
    for row in rows:
        runs = results[row.name]
        count = f"{runs[0]['parameters']:,}" if "parameters" in runs[0] else ""
        label = _marked(row, results, replays)
        for measure in dict.fromkeys([*section.measures, *(paper["measure"] for paper in row.paper)]):
            if not measures.values(runs, measure):
                continue
            printed = [f"{p['value']} ({p['source']})" for p in row.paper if p["measure"] == measure]
            ours, theirs = _every_seed(runs, measure), "; ".join(printed)
            lines.append(f"| {label} | {count} | {measure} | {ours} | {theirs} |")
            label = count = ""
    return "\n".join([*lines, ""])


def _log_targets(done: list[Row], rows: list[Row], results: Results) -> str:
    """Return all targets of some rows, as a list."""
    states = {True: "reached", False: "not reached", None: "open, for want of a row to compare with"}
    return "".join(
        f"- {_label(row)}, {target.measure}, {target.text}: **{states[target.reached]}**\n"
        for row in done
        for target in _targets(row, rows, results)
    )


def _verdict(paper: dict[str, Any], runs: list[Result]) -> str:
    measure = judged(paper["measure"], runs)
    ours = measures.median(runs, measure)
    if ours is None or not paper.get("verdict", True):
        return ""
    return measures.compare(ours, paper["value"], measures.is_higher_better(measure, runs[0]["metric"]))


def _range(runs: list[Result], measure: str) -> str:
    found = measures.values(runs, measure)
    rest = f"{_number(min(found))} to {_number(max(found))}, {len(found)} seeds" if found else ""
    return _with_median(runs, measure, rest) if found else ""


def _every_seed(runs: list[Result], measure: str) -> str:
    return _with_median(runs, measure, ", ".join(map(_number, measures.values(runs, measure))))


def _with_median(runs: list[Result], measure: str, rest: str) -> str:
    middle = measures.median(runs, measure)
    assert middle is not None
    return _number(middle) if len(runs) == 1 else f"{_number(middle)} ({rest})"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    short = f"{value:.5g}"
    # Zeros that come of rounding stay: 1.41996 is 1.4200.
    return short if float(short) == value else f"{value:#.5g}"


def write() -> None:
    """Write the page and the log."""
    content = config.load_all(), record.read_all(record.RESULTS), replay.read()
    for file, make in ((PAGE, page), (LOG, log)):
        file.write_text(make(*content), encoding="utf-8")
        print(f"Written: {file}")
