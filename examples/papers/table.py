"""Tables of the result files, for the pages; :mod:`benchmarks.table` says how a page shows them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from examples.papers import config, measures, record, replay
from examples.papers.config import Row
from examples.papers.measures import Result
from examples.papers.networks import BASELINES
from examples.papers.origin import fact
from examples.papers.sections import SECTIONS

CHOSEN = "test at best validation"
COUNTED = " utterances"  # Of how many the score before it is the mean; see examples.papers.scores.

Table = tuple[list[str], list[list[str]]]


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


class Runs:
    """All rows, and the results of those that have been run."""

    def __init__(self) -> None:
        self.rows = config.load_all()
        self.results = record.read_all(record.RESULTS)
        self.replays = replay.read()

        order = list(SECTIONS)
        rows = [row for row in self.rows if self.results.get(row.name)]
        self.done = sorted(rows, key=lambda row: order.index(row.section))

    def ours(self) -> Iterator[tuple[Row, str, list[Target]]]:
        """Yield row, title of its section and targets of each network of this library that has been run."""
        for row in self.done:
            if row.network.get("name") not in BASELINES:
                yield row, SECTIONS[row.section].title, list(self.targets(row))

    def targets(self, row: Row) -> Iterator[Target]:
        """Yield the targets of a row that has been run: the paper's numbers, then what else was set."""
        runs = self.results[row.name]
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
            done = measures.reached(goal, self.results, row.name, runs[0]["metric"])
            yield Target(goal["measure"], self._asked(goal, kind, row, done), done)

    def _asked(self, goal: dict[str, Any], kind: str, row: Row, done: bool | None) -> str:
        """Return what a goal asks; of the rows to compare with, those that decided."""
        _, bound = measures.bound(goal)
        words = measures.BOUNDS[kind][0]
        if isinstance(bound, str):
            return f"{words} {bound}"
        measure, metric = goal["measure"], self.results[row.name][0]["metric"]
        by_name = {row.name: row for row in self.rows}
        said = []
        for other in bound:
            against = measures.reached({"measure": measure, kind: [other]}, self.results, row.name, metric)
            if against == done:
                theirs = measures.median(self.results.get(other, []), measure)
                number = "not run" if theirs is None else _number(theirs)
                said.append(f"{_label(by_name[other])} ({number})")
        return f"{words} {', '.join(said)}"

    def marked(self, row: Row) -> str:
        """Return the label of a row, with marks for what differs."""
        same = replay.is_same(self.results[row.name], self.replays.get(row.name))
        return _label(row) + ("" if same else " †")


def rows_of(name: str, rows: list[Row]) -> list[Row]:
    """Return the rows of a section.

    Args:
        name: Of the section.
        rows: All rows.
    """
    return [row for row in rows if row.section == name or row.name in SECTIONS[name].also]


def judged(measure: str, runs: list[Result]) -> str:
    """Return the measure that stands for another: not the best of all epochs where the best is known.

    Args:
        measure: Name of the measure.
        runs: The runs of a row.
    """
    return CHOSEN if measure == "best test" and any(CHOSEN in run["summary"] for run in runs) else measure


def counts() -> Table:
    """Return how many targets of each task this library's networks reached."""
    found: dict[str, list[bool]] = {}
    for _, title, targets in Runs().ours():
        found.setdefault(title, []).extend(bool(target.reached) for target in targets)
    found = {title: reached for title, reached in found.items() if reached}
    found["all"] = list(itertools.chain.from_iterable(found.values()))
    return ["task", "targets", "reached"], [[t, str(len(r)), str(sum(r))] for t, r in found.items()]


def targets(state: str) -> Table:
    """Return the targets of this library's networks.

    Args:
        state: ``"reached"``, or ``"missed"`` for those that were not.
    """
    runs, lines = Runs(), []
    before = ""
    for row, title, found in runs.ours():
        found = [target for target in found if bool(target.reached) == (state == "reached")]
        results, label = runs.results[row.name], runs.marked(row)
        for measure in dict.fromkeys(target.measure for target in found):
            asked = "; ".join(target.text for target in found if target.measure == measure)
            chosen = measure == CHOSEN
            best = _range(results, "best test") if chosen else ""
            what = asked if chosen else f"{measure}: {asked}"
            lines.append(["" if title == before else title, label, _range(results, measure), best, what])
            before, label = title, ""
    return ["task", "network", "ours", "best test", "target"], lines


def scores(section: str) -> Table:
    """Return every number of the rows of a section, with the papers' and the targets.

    Args:
        section: Its name.
    """
    runs, lines = Runs(), []
    states = {True: "reached", False: "not reached", None: "open"}
    for row in rows_of(section, runs.done):
        results, label = runs.results[row.name], runs.marked(row)
        count = f"{results[0]['parameters']:,}" if "parameters" in results[0] else ""
        targets = list(runs.targets(row))
        names = (
            *SECTIONS[section].measures,
            *(p["measure"] for p in row.paper),
            *(t.measure for t in targets),
        )
        for measure in dict.fromkeys(names):
            if found := measures.values(results, measure):
                paper = "; ".join(
                    f"{p['value']} ({p['source']})" for p in row.paper if p["measure"] == measure
                )
                asked = "; ".join(
                    f"{t.text}: **{states[t.reached]}**" for t in targets if t.measure == measure
                )
                ours = _with_median(results, measure, ", ".join(map(_number, found)))
                lines.append([label, count, measure, ours, paper, asked])
                label = count = ""
    return ["network", "parameters", "measure", "ours", "paper", "target"], lines


def rows() -> Table:
    """Return how the rows that have been run differ from their papers and from the present code."""
    runs = Runs()
    lines = []
    for row in runs.done:
        found = runs.replays.get(row.name)
        lines.append(
            [f"`{row.name}`", row.changed or "", replay.described(found) if found else "not replayed"]
        )
    return ["row", "differs from the paper's settings", "replay"], lines


def runs() -> Table:
    """Return where each run was made, how long it took, and how it ended if not as it should."""
    found, lines = Runs(), []
    for row in found.done:
        for run in found.results[row.name]:
            remarks = [run["diverged"]] if run["status"] == "diverged" else []
            remarks += _unscored(run["summary"])
            hours = f"{run['wall_seconds'] / 3600:.2g}"
            lines.append([f"`{row.name}`", str(run["seed"]), hours, "; ".join(remarks), _origin(run)])
    return ["row", "seed", "hours", "remarks", "where"], lines


def _unscored(summary: dict[str, Any]) -> list[str]:
    """Return for which scores not all utterances counted."""
    counts = {name.removesuffix(COUNTED): n for name, n in summary.items() if name.endswith(COUNTED)}
    most = max(counts.values(), default=0)
    return [f"{name} of {n} of the {most} utterances" for name, n in counts.items() if n < most]


def _origin(run: Result) -> str:
    """Return what the numbers depend on; where that changed when the run was resumed, from which step on."""
    sessions = run.get("sessions") or [run["environment"]]
    facts = []
    for name in run["environment"]:
        shown = [(session.get("from step", 0), fact(name, session.get(name))) for session in sessions]
        facts.append(f"{name} {shown[0][1]}")
        for (_, before), (step, value) in itertools.pairwise(shown):
            if value != before:
                facts[-1] += f", from step {step} on {value}"
    return ", ".join(facts)


def _label(row: Row) -> str:
    return row.label + (r" \*" if row.changed else "")


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
