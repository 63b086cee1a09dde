"""The command line: options, messages and exit codes."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from examples.demo import cards, certificate, figures, forecast, memory, report, sphere
from examples.demo.settings import SEEDS, rows
from examples.papers import checkpoint
from examples.papers.cli import number_of_threads, seed
from examples.papers.trainer import DivergedError

FIGURES = "memory.png, cards.png, certificate.png, forecast.png, sphere.png"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        arguments: The options; those of the process by default.

    Returns:
        Exit code: 0, 1 for an error, 128 plus its number after a signal.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(given)
    output: Path = options.output
    if output.exists() and not output.is_dir():
        print(f"error: --output: expected a folder, got the file {output}.", file=sys.stderr)
        return 1
    torch.set_num_threads(options.threads)
    try:
        output.mkdir(parents=True, exist_ok=True)
        with checkpoint.stop_signal() as stop:
            run_demo(output, options, stop)
    except checkpoint.InterruptedRunError as interruption:
        again = [*given, *([] if options.resume else ["--resume"])]
        print(f"Stopped at {interruption}. Go on with: python -m examples.demo {shlex.join(again)}")
        return 128 + interruption.signal_number
    except (checkpoint.CheckpointError, DivergedError, OSError) as error:
        print(f"error: {error}.", file=sys.stderr)
        return 1
    print(f"\n{report.MEANING}\n\nPictures and numbers are in {output}: {FIGURES}, results.json")
    return 0


def run_demo(output: Path, options: argparse.Namespace, stop: Callable[[], int | None]) -> None:
    """Run the five parts, print their tables, and write the figures and the numbers.

    Args:
        output: Folder to write to.
        options: The options.
        stop: Asked after each step of a training: the number of the signal to stop for, or None.

    Raises:
        InterruptedRunError: If asked to stop.
    """
    seeds = list(range(options.seed, options.seed + (1 if options.quick else SEEDS)))
    trained = memory.train(rows(options.quick), output, seeds, options.resume, stop)
    parts = {
        "memory": [memory.record(each) for each in trained],
        "cards": [],
        "certificate": [],
        "forecast": [],
        "sphere": [],
    }
    print(f"\n{report.memory(parts['memory'])}\n")
    enrnn = next(network for network in trained if network.row.label == "ENRNN")
    figures.memory(output / "memory.png", parts["memory"], enrnn.before, enrnn.after)
    for each in seeds:
        print(f"cards, certificate, forecast, sphere: seed {each}", file=sys.stderr)
        parts["cards"] += cards.compare(each, options.quick)
        parts["certificate"] += certificate.compare(each, options.quick)
        parts["forecast"].append(forecast.compare(each, options.quick))
        parts["sphere"] += sphere.compare(each, options.quick)
        if number := stop():
            raise checkpoint.InterruptedRunError(f"seed {each} of the parts that follow", number)
    print(f"\n{report.cards(parts['cards'])}\n")
    figures.cards(output / "cards.png", parts["cards"])
    print(f"{report.certificate(parts['certificate'])}\n\n{report.forecast(parts['forecast'])}\n")
    print(report.sphere(parts["sphere"]))
    figures.certificate(output / "certificate.png", parts["certificate"])
    figures.forecast(output / "forecast.png", parts["forecast"])
    figures.sphere(output / "sphere.png", parts["sphere"])
    report.write_json(output / "results.json", rows(options.quick), seeds, parts)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, or exit with a message and code 2.

    Args:
        arguments: What stands after ``python -m examples.demo``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Networks that remember, that follow, with a certificate; a forecast; a sphere.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder to write (%(default)s)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in the output folder"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few steps only, to see whether everything runs"
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="the first of three, of data and initial weights (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=number_of_threads, default=1, help="more are hardly faster (%(default)s)"
    )
    return parser.parse_args(arguments)
