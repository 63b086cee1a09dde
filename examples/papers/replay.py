"""Whether today's code trains a row as the code of its runs did: ``python -m examples.papers replay``.

The first steps of a row, with the seed of its first run, are taken with the code of each commit that its runs
name and with today's, all on one thread. Where losses or gradient norms are not the same, today's code takes
the steps once more, with noise of the size of rounding on the parameters before every step. Two codes are the
same to rounding if they differ no more than the noise makes them differ. Of a row that fits a matrix, all
numbers of the result are compared.

Rounding errors grow fast in some trainings: Adam's first step is the sign of the gradient. And two codes may
round differently, one more than the noise. Where they differ by more than the noise in the dtype of the run,
or where that noise would hide a change from the first step on, float64 decides.

The verdicts are kept in ``replays.json``, since a repository may be had without its history.
"""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from examples.papers.measures import Result
from examples.papers.origin import UNKNOWN
from examples.papers.record import write

ROOT = Path(__file__).parents[2]
REPLAYS = Path(__file__).parent / "replays.json"

STEPS = 50
# A difference of two codes is rounding up to so many times that of the noise, which is one sample of it.
MARGIN = 10
# Noise that changes numbers of the first step so much hides too much.
HIDING = 1e-4
# Relative, of a number of a fit. At an optimum found in double precision, rounding moves what is flat so far.
FLAT = math.ulp(1.0) ** 0.5

Numbers = list[list[float]]
Replay = dict[str, Any]


class ReplayError(ValueError):
    """The code of a commit cannot be had, or does not run."""


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], capture_output=True, check=True, cwd=ROOT).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode().strip() or str(error)
        raise ReplayError(
            f"git {' '.join(arguments)}: expected the history of the repository, got: {reason}. "
            "Replay in a clone that has all commits (git fetch --unshallow)"
        ) from error


def first_steps(commit: str, run: Result, dtype: str, noise: float = 0.0, steps: int = STEPS) -> Numbers:
    """Return the numbers of the first steps of a run, with the code of a commit.

    Args:
        commit: The commit.
        run: Says which row and seed.
        dtype: What to train in.
        noise: Size of the relative changes of the parameters before every step.
        steps: How many steps.

    Returns:
        Loss and norm of the gradient of each step; of a fit, a list of all numbers of its result.

    Raises:
        ReplayError: If the code cannot be had or does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree, out = Path(folder, "tree"), Path(folder, "out")
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit))) as archive:
            archive.extractall(tree, filter="data")
        out.mkdir()
        script = Path(__file__).with_name("first_steps.py").read_text(encoding="utf-8")
        given = [run["row"], "--seed", run["seed"], "--dtype", dtype, "--threads", 1]
        done = subprocess.run(
            [sys.executable, "-c", script, *map(str, [out / "numbers.json", steps, noise, *given])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = "".join(done.stderr.strip().splitlines()[-1:])
            raise ReplayError(f"{run['row']} at {commit[:12]}: expected {steps} steps, got: {last}")
        numbers: Numbers = json.loads((out / "numbers.json").read_text(encoding="utf-8"))
        return numbers


def commits(runs: list[Result]) -> list[str]:
    """Return the commits that ran a row.

    Args:
        runs: Its runs.
    """
    sessions = (session for run in runs for session in run.get("sessions") or [run["environment"]])
    return list(dict.fromkeys(session["commit"].removesuffix("-dirty") for session in sessions))


def _known(runs: list[Result]) -> list[str]:
    """Return the commits that ran a row, but for those that are lost, whose code cannot be had."""
    return [commit for commit in commits(runs) if commit != UNKNOWN]


def compare(then: Numbers, now: Numbers, noisy: Numbers, eps: float) -> Replay:
    """Return how far two codes differ, how far noise makes them differ, and the verdict.

    Args:
        then: Numbers of the code of the run.
        now: Numbers of today's code.
        noisy: Numbers of today's code with noise.
        eps: Size of the noise.

    Raises:
        ReplayError: If one code took fewer steps.
    """
    if not len(then) == len(now) == len(noisy):
        raise ReplayError(f"expected as many steps of each code, got {len(then)}, {len(now)}, {len(noisy)}")
    found = []
    rounding = eps
    for i, numbers in enumerate(zip(then, now, noisy, strict=True)):
        scaled = [(x - y, z - y, abs(y) or 1.0) for x, y, z in zip(*numbers, strict=True)]
        # Noise grows from step to step; that it is small by chance in one does not count.
        rounding = max(rounding, *(abs(change) / scale for _, change, scale in scaled))
        difference = max(abs(change) / scale for change, _, scale in scaled)
        found.append((difference / rounding, i + 1, difference, rounding))
    worst, step, difference, rounding = max(found)
    return {"same": worst <= MARGIN, "step": step, "difference": difference, "rounding": rounding}


def verdict(runs: list[Result], today: str, take: Callable[..., Numbers] = first_steps) -> Replay:
    """Replay a row.

    Args:
        runs: The runs of the row.
        today: The commit of today's code.
        take: As :func:`first_steps`.

    Returns:
        What was found for each commit that ran the row.
    """
    run = runs[0]
    is_fit = not run["config"].get("network")
    found: Replay = {}
    for dtype in dict.fromkeys((run["environment"]["dtype"], "float64")):
        eps = FLAT if is_fit else torch.finfo(getattr(torch, dtype)).eps
        now = take(today, run, dtype)
        noisy = now
        found = {"today": today, "seed": run["seed"], "steps": len(now), "dtype": dtype, "commits": {}}
        for commit in _known(runs):
            then = take(commit, run, dtype)
            compared = compare(then, now, noisy, eps)
            if noisy is now and not is_fit and not compared["same"]:
                noisy = take(today, run, dtype, eps)
                compared = compare(then, now, noisy, eps)
            found["commits"][commit] = compared
        hidden = max(abs(z - y) / (abs(y) or 1.0) for y, z in zip(now[0], noisy[0], strict=True)) > HIDING
        if is_fit or (not hidden and all(compared["same"] for compared in found["commits"].values())):
            break
    return found


def read() -> dict[str, Replay]:
    """Return what was found for each row."""
    replays: dict[str, Replay] = json.loads(REPLAYS.read_text(encoding="utf-8"))
    return replays


def is_same(runs: list[Result], replay: Replay | None) -> bool:
    """Return whether today's code is known to repeat all runs of a row.

    Args:
        runs: The runs.
        replay: What was found for the row.
    """
    found = replay["commits"] if replay else {}
    return all(commit in found and found[commit]["same"] for commit in commits(runs))


def described(replay: Replay) -> str:
    """Return what was found for a row, in words.

    Args:
        replay: What was found.
    """
    head = (
        f"replayed with seed {replay['seed']} in {replay['dtype']}, {replay['steps']} "
        f"step{'s' if replay['steps'] > 1 else ''}, against commit {replay['today'][:12]}"
    )
    said = [
        f"{commit[:12]} {'same to rounding' if found['same'] else '**differs**'}, at step {found['step']} by "
        f"{found['difference']:.1e} where noise makes {found['rounding']:.1e}"
        for commit, found in replay["commits"].items()
    ]
    return f"{head}: {'; '.join(said)}"


def replay(results: dict[str, list[Result]], today: str, only_new: bool) -> None:
    """Replay rows, and say and write what is found.

    Args:
        results: The runs of each row.
        today: The commit of today's code, or a name for it.
        only_new: Whether to leave out rows that were replayed with that commit.
    """
    today = _git("rev-parse", "--verify", f"{today}^{{commit}}").decode().strip()
    for name, runs in results.items():
        known = read().get(name, {})
        if only_new and known.get("today") == today and set(_known(runs)) <= set(known["commits"]):
            continue
        known = verdict(runs, today)
        write(REPLAYS, dict(sorted({**read(), name: known}.items())))  # Another process may have written.
        print(f"{name}, {described(known)}", flush=True)
