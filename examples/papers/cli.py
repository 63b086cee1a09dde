"""The command line: options, messages and exit codes."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.papers import config, data, measures, origin, record, replay, runs, scores
from examples.papers.checkpoint import CheckpointError, InterruptedRunError
from examples.papers.config import Row, RowError
from examples.papers.data import DataError
from examples.papers.sections import SECTIONS

# More than any machine has use for; of 100,000 the process dies without a word.
MOST_THREADS = max(256, os.cpu_count() or 1)
#: Folders of the data that tasks need; the others make theirs up, or have them from scikit-learn.
NEEDED = {"mnist": "mnist", "ptb": "ptb", "an4": "an4_8k", "timit": "timit", "dynamics": "franka"}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: The options; those of the process by default.

    Returns:
        Exit code: 0, 1 for an error, 2 for a run that diverged, 128 plus its number after a signal.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    try:
        if options.command == "list":
            return _list()
        if options.command == "replay":
            return _replay(options)
        if options.command == "download":
            data.download(options.names)
            return 0
        return _run(options)
    except InterruptedRunError as interruption:
        again = [*given, *([] if options.resume else ["--resume"])]
        start = "torchrun …" if "TORCHELASTIC_RUN_ID" in os.environ else "python"
        if os.environ.get("RANK", "0") == "0":
            print(f"Stopped at {interruption}. Go on with: {start} -m examples.papers {shlex.join(again)}")
        return 128 + interruption.signal_number
    except (CheckpointError, DataError, OSError, ValueError) as error:
        print(f"error: {error}.", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    row = config.load(options.row)
    results, work = options.results, options.work
    if options.quick:
        row = row.quick()
        # Never among the real ones.
        results, work = work / "quick", work / "quick"
    elif row.task["name"] == "speech" and (absent := scores.missing()):
        print(f"Without {' and '.join(absent)} there will be no score of theirs.", file=sys.stderr)
    _check_folders(row, results, work)
    if not options.quick:
        origin.require_commit(results, record.RESULTS, "--results")
    if options.threads:
        torch.set_num_threads(options.threads)
    result = runs.run(
        row,
        runs.Options(
            seed=options.seed,
            resume=options.resume,
            device=options.device,
            dtype=DTYPES[options.dtype],
            results=results,
            work=work,
            save_seconds=options.save_seconds,
        ),
    )
    if result is None:
        return 0
    for name, value in result["summary"].items():
        print(f"{name}: {'-' if value is None else f'{value:.6g}'}")
    print(f"Result: {record.path(results, row.name, options.seed)}")
    if result["status"] == "diverged":
        print(f"{result['diverged']}; spectral radii then: {result['spectral radii']}", file=sys.stderr)
        return 2
    return 0


def _check_folders(row: Row, results: Path, work: Path) -> None:
    """Raise if a row from elsewhere would overwrite what belongs to a row in ``examples/papers/rows``."""
    if not row.has_name_of_another:
        return
    for option, folder, own in (("--results", results, record.RESULTS), ("--work", work, runs.RUNS)):
        if folder.resolve() == own.resolve():
            raise RowError(
                f"{option}: expected another folder than {own} for {row.file}, got that of the row "
                f"{row.name} in examples/papers/rows. Rename the file, or give another folder"
            )


def _replay(options: argparse.Namespace) -> int:
    names, found = options.rows, record.read_all(record.RESULTS)
    if absent := [name for name in names if name not in found]:
        raise RowError(f"replay: expected rows that have been run, see `list`; got {', '.join(absent)}")
    replay.replay({name: found[name] for name in names or found}, options.today, options.new)
    return 0


def _list() -> int:
    found = record.read_all(record.RESULTS)
    lines = [("row", "network", "seeds", "minutes", "measure", "paper", "ours", "data")]
    lines += [_columns(row, found.get(row.name, [])) for row in config.load_all()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    folders = sorted({line[-1] for line in lines[1:]} - {"none"})
    print("\nMinutes are those of a run on two CPU cores. A row with the data none needs no download.")
    for name in folders:
        is_here = "is there" if (data.folder() / name).exists() else f"is missing. {data.remedy(name)}"
        print(f"{name}: {data.folder() / name} {is_here}.")
    print("\nA row of each table that needs no download, the shortest that was measured:")
    for name, section in SECTIONS.items():
        print(f"{section.title}: {_without_download(name, found)}")
    return 0


def _without_download(section: str, found: dict[str, list[measures.Result]]) -> str:
    """Return the row of a table that needs no data and took the least time, or say that there is none."""
    rows = [row for row in config.load_all() if row.section == section]
    if free := [row for row in rows if needed(row) == "none"]:
        return min(free, key=lambda row: _minutes(found.get(row.name, []))).name
    return f"none; run {rows[0].name} --quick takes a few steps on made-up data"


def needed(row: Row) -> str:
    """Return the folder of the data that a row needs, or "none".

    Args:
        row: The row.
    """
    return NEEDED.get(row.task.get("corpus", row.task["name"]), "none")


def _minutes(results: list[measures.Result]) -> float:
    return statistics.median(r["wall_seconds"] for r in results) / 60 if results else math.inf


def _columns(row: Row, results: list[measures.Result]) -> tuple[str, ...]:
    """Return what the list says of a row; of several numbers of its paper, the first."""
    seeds = [f"{r['seed']}{'' if r['status'] == 'finished' else ' ' + r['status']}" for r in results]
    took = _minutes(results)
    minutes = "" if math.isinf(took) else f"{took:.0f}" if took >= 100 else f"{took:.2g}"
    measure, printed, ours = "", "", None
    if row.paper:
        measure, printed = row.paper[0]["measure"], str(row.paper[0]["value"])
        ours = measures.median(results, measure) if results else None
    number = "" if ours is None else f"{ours:.5g}"
    return row.name, row.label, ", ".join(seeds) or "not run", minutes, measure, printed, number, needed(row)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, or exit with a message and code 2.

    Args:
        arguments: What stands after ``python -m examples.papers``.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(runs.Options)}
    parser = argparse.ArgumentParser(prog="python -m examples.papers", description="The papers' experiments.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all rows: time, the paper's number, ours, and the data needed")
    again = commands.add_parser("replay", help="see whether today's code repeats the first steps of runs")
    again.add_argument("rows", nargs="*", metavar="row", help="rows that have been run (all)")
    again.add_argument("--new", action="store_true", help="only what was not replayed with today's code")
    again.add_argument("--today", default="HEAD", metavar="COMMIT", help="today's code (%(default)s)")
    download = commands.add_parser("download", help="download what is missing into the data folder")
    download.add_argument("names", nargs="*", help=f"{', '.join(data.DOWNLOADS)} (all)")
    run = commands.add_parser("run", help="train one row and write its result")
    run.add_argument("row", help="name of a row, or path of a TOML file")
    run.add_argument("--seed", type=seed, default=0, help="(%(default)s)")
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    run.add_argument("--quick", action="store_true", help="a few steps of a tiny network on made-up data")
    run.add_argument("--device", type=_device, default="cpu", help="cpu or cuda (%(default)s)")
    run.add_argument("--dtype", choices=DTYPES, default="float32", help="(%(default)s)")
    run.add_argument("--threads", type=number_of_threads, help="of the CPU; torch's choice by default")
    run.add_argument(
        "--save-seconds",
        type=float,
        default=defaults["save_seconds"],
        help="between checkpoints (%(default)s)",
    )
    run.add_argument("--results", type=Path, default=defaults["results"], help="folder of the result")
    run.add_argument("--work", type=Path, default=defaults["work"], help="folder of checkpoints and metrics")
    return parser.parse_args(arguments)


def seed(text: str) -> int:
    """Return an integer that torch takes for a seed, for argparse.

    Args:
        text: What was given.

    Raises:
        ArgumentTypeError: If it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"expected an integer >= 0 of at most 18 digits, got {text!r}")
    return int(text)


def number_of_threads(text: str) -> int:
    """Return a number of threads, for argparse.

    Args:
        text: What was given.

    Raises:
        ArgumentTypeError: If it is no such number, or so large that threads might not be had.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= MOST_THREADS):
        raise argparse.ArgumentTypeError(f"expected an integer from 1 to {MOST_THREADS}, got {text!r}")
    return int(text)


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"expected cpu or cuda, got {text!r}")
    if text != "cpu" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"expected cpu, since torch finds no CUDA here, got {text!r}")
    return text
