"""The notes below a table of the log: changes, divergences, missing scores, replays and origins."""

from __future__ import annotations

import itertools
from typing import Any

from examples.papers import replay
from examples.papers.config import Row
from examples.papers.measures import Result
from examples.papers.record import fact

COUNTED = " utterances"  # Of how many the score before it is the mean; see examples.papers.scores.


def below_table(
    rows: list[Row], results: dict[str, list[Result]], replays: dict[str, replay.Replay]
) -> list[str]:
    """Return the notes on what differs, if there are any, and where the numbers are from.

    Args:
        rows: Those of the table.
        results: The runs of each row.
        replays: What was found when rows were replayed.
    """
    notes = []
    unscored: dict[str, list[str]] = {}
    origins: dict[str, list[str]] = {}
    for row in rows:
        if row.changed:
            notes.append(f"- {row.label}, `{row.name}`, differs from the paper's settings: {row.changed}")
        found = replay.described(replays[row.name]) if row.name in replays else "not replayed"
        notes.append(f"- {row.label}, `{row.name}`, {found}")
        for run in results[row.name]:
            name = f"`{row.name}` seed {run['seed']}"
            if run["status"] == "diverged":
                notes.append(f"- {row.label}, seed {run['seed']}: {run['diverged']}")
            for note in _unscored(run["summary"]):
                unscored.setdefault(note, []).append(name)
            origins.setdefault(_origin(run), []).append(f"{name} ({run['wall_seconds'] / 3600:.2g} h)")
    notes.extend(f"- {note}: {', '.join(names)}." for note, names in unscored.items())
    text = "\n\n".join(f"{', '.join(names)}: {origin}." for origin, names in origins.items())
    return [*(["\n".join(notes) + "\n"] if notes else []), f"{text}\n"]


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
