"""Whether today's code trains a row as the code of its run did: ``python -m examples.papers replay [ROW ...]``.

The first steps of each run are taken again, on one thread: with the code of the run's commit, with the code of
today's commit, and with today's code while noise of the size of rounding is put on the parameters before every
step. Losses and gradient norms of the first two differ by rounding where they differ no more than noise makes
them differ. Of a row that fits a matrix, all numbers of the result are compared.

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
from examples.papers.record import write

ROOT = Path(__file__).parents[2]
REPLAYS = Path(__file__).parent / "replays.json"

STEPS = 50
# A difference of two codes is rounding up to so many times that of the noise, which is one sample of it.
MARGIN = 10
# Relative, of a number of a fit. At an optimum found in double precision, rounding moves what is flat so far.
FLAT = math.ulp(1.0) ** 0.5

Numbers = list[list[float]]
Verdict = dict[str, Any]
Replays = dict[str, dict[str, Verdict]]


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


def first_steps(commit: str, run: Result, noise: float = 0.0, steps: int = STEPS) -> Numbers:
    """Return the numbers of the first steps of a run, with the code of a commit.

    Args:
        commit: The commit.
        run: Says which row and seed, and the dtype.
        noise: Size of the relative changes of the parameters before every step.
        steps: How many steps.

    Returns:
        Loss and norm of the gradient of each step; of a fit, one list of all numbers of its result.

    Raises:
        ReplayError: If the code cannot be had or does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree, out = Path(folder, "tree"), Path(folder, "out")
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit))) as archive:
            archive.extractall(tree, filter="data")
        out.mkdir()
        script = Path(__file__).with_name("first_steps.py").read_text(encoding="utf-8")
        given = [run["row"], "--seed", run["seed"], "--dtype", run["environment"]["dtype"], "--threads", 1]
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


def compare(then: Numbers, now: Numbers, noisy: Numbers, eps: float) -> Verdict:
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
    differences = [0.0] * len(now)
    roundings, largest = [], 0.0
    for i, (a, b, c) in enumerate(zip(then, now, noisy, strict=True)):
        for x, y, z in zip(a, b, c, strict=True):
            scale = abs(y) or 1.0
            differences[i] = max(differences[i], abs(x - y) / scale)
            # Noise grows from step to step; that it is small by chance in one does not count.
            largest = max(largest, abs(z - y) / scale, eps)
        roundings.append(largest)
    worst = max(range(len(now)), key=lambda i: differences[i] / roundings[i])
    return {
        "same": all(d <= MARGIN * r for d, r in zip(differences, roundings, strict=True)),
        # Of the step that speaks most against rounding.
        "step": worst + 1,
        "difference": differences[worst],
        "rounding": roundings[worst],
    }


Take = Callable[[str, Result, float], Numbers]


def verdict(run: Result, today: str, take: Take = first_steps) -> Verdict:
    """Replay a run and return the verdict: of several commits, the worst.

    Args:
        run: The run.
        today: The commit that it is compared with.
        take: Returns the numbers of a commit, a run and a size of noise.
    """
    sessions = run.get("sessions") or [run["environment"]]
    commits = dict.fromkeys(session["commit"].removesuffix("-dirty") for session in sessions)
    is_fit = not run["curve"]
    eps = FLAT if is_fit else torch.finfo(getattr(torch, run["environment"]["dtype"])).eps
    now = take(today, run, 0.0)
    noisy = now if is_fit else take(today, run, eps)
    found = [compare(take(commit, run, 0.0), now, noisy, eps) for commit in commits]
    worst = max(found, key=lambda each: each["difference"] / each["rounding"])
    return {"today": today, "steps": len(now), **worst}


def read() -> Replays:
    """Return the verdicts that were found, by row and seed."""
    replays: Replays = json.loads(REPLAYS.read_text(encoding="utf-8")) if REPLAYS.is_file() else {}
    return replays


def differing(results: dict[str, list[Result]], replays: Replays) -> set[tuple[str, int]]:
    """Return row and seed of the runs that today's code does not repeat, or that were never replayed.

    Args:
        results: The runs of each row.
        replays: The verdicts.
    """
    return {
        (name, run["seed"])
        for name, runs in results.items()
        for run in runs
        if not replays.get(name, {}).get(str(run["seed"]), {}).get("same")
    }


def replay(results: dict[str, list[Result]], only_new: bool = False) -> int:
    """Replay runs, say and write each verdict, and return how many differ.

    Args:
        results: The runs of each row.
        only_new: Whether to leave out runs with a verdict for today's commit.
    """
    today = _git("rev-parse", "HEAD").decode().strip()
    if _git("status", "--porcelain", "--untracked-files=no").strip():
        print(f"Changes that are not committed are not replayed: today's code is {today[:12]}.")
    count = 0
    for name, runs in results.items():
        for run in runs:
            seed = str(run["seed"])
            known = read().get(name, {}).get(seed, {})
            if not (only_new and known.get("today") == today):
                known = verdict(run, today)
                replays = read()  # Another process may have written to it.
                replays.setdefault(name, {})[seed] = known
                write(REPLAYS, dict(sorted(replays.items())))
            count += not known["same"]
            words = "same to rounding" if known["same"] else "differs"
            numbers = f"difference {known['difference']:.1e}, of rounding {known['rounding']:.1e}"
            print(f"{name}, seed {seed}: {words} ({numbers}, {known['steps']} steps)", flush=True)
    return count
