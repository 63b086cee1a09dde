"""The command line: options, messages and exit codes."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from examples.demo.pipeline import run_demo, write_results
from examples.demo.settings import rows
from examples.papers import checkpoint
from examples.papers.cli import number_of_threads, seed
from examples.papers.trainer import DivergedError

FIGURES = "learning_curves.png, eigenvalues.png, gradient_norms.png"


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
            finished = run_demo(rows(options.quick), output, options.seed, options.resume, stop)
        table = write_results(finished, output, options.seed)
    except checkpoint.InterruptedRunError as interruption:
        again = [*given, *([] if options.resume else ["--resume"])]
        print(f"Stopped at {interruption}. Go on with: python -m examples.demo {shlex.join(again)}")
        return 128 + interruption.signal_number
    except (checkpoint.CheckpointError, DivergedError, OSError) as error:
        print(f"error: {error}.", file=sys.stderr)
        return 1
    print(f"\n{table}\n\nFigures and numbers in {output}: {FIGURES}, results.json")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, or exit with a message and code 2.

    Args:
        arguments: What stands after ``python -m examples.demo``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Train ENRNN, scoRNN and LSTM of equal size on two long-memory tasks.",
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
    parser.add_argument("--seed", type=seed, default=0, help="of data and initial weights (%(default)s)")
    parser.add_argument(
        "--threads", type=number_of_threads, default=1, help="more are hardly faster (%(default)s)"
    )
    return parser.parse_args(arguments)
