"""The demo: a quick run end to end, and going on from a checkpoint to the same result."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import spectral_param as sp
from examples.demo import __main__ as entry
from examples.demo import cards, certificate, cli, forecast, memory, report, sphere
from examples.demo.settings import COMPARED, rows
from examples.papers import checkpoint, networks, tasks
from examples.papers.trainer import Trainer

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG"


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("demo")
    assert cli.main(["--quick", "--output", str(output)]) == 0
    return output


def numbers(output: Path) -> dict[str, Any]:
    """All results but the times."""
    contents = json.loads((output / "results.json").read_text(encoding="utf-8"))
    for run in contents["memory"] + contents["cards"]:
        del run["seconds"]
    return contents


def assert_same_state(found: Any, expected: Any) -> None:
    """Bit for bit, through dictionaries and lists."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            if key not in ("seconds", "times"):
                assert_same_state(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same_state(*pair)
    else:
        assert found == expected


def after(steps: int) -> Callable[[], int | None]:
    """A stop that asks to stop after so many steps."""
    left = iter(range(steps, 0, -1))
    return lambda: signal.SIGINT if next(left) == 1 else None


def test_quick_run_writes_figures_and_numbers(finished: Path) -> None:
    for name in cli.FIGURES.split(", "):
        assert (finished / name).read_bytes().startswith(PNG)
    assert [f"{line.split()[0]}.png" for line in report.MEANING.splitlines()[1:-1]] == cli.FIGURES.split(", ")
    contents = numbers(finished)
    assert contents["versions"]["torch"] == str(torch.__version__)
    assert [run["network"] for run in contents["memory"]] == [row.label for row in rows()]
    for run in contents["memory"]:
        assert run["test"] == pytest.approx(run["test"])  # not NaN
        if run["network"] != "LSTM":
            assert max(run["spectral_radius"].values()) <= 1 + 1e-5


@pytest.mark.nightly
def test_finished_run_prints_its_table_again_without_training(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train_step", lambda _: pytest.fail("trained again"))
    before = numbers(finished)
    assert cli.main(["--quick", "--resume", "--output", str(finished)]) == 0
    assert numbers(finished) == before
    table = capsys.readouterr().out
    assert re.search(r"^LSTM +[\d.]+% +10\.0% ", table, re.MULTILINE)
    assert re.search(r"^DeltaProduct +[\d.]+% ", table, re.MULTILINE)
    assert re.search(r"^SpectralNorm\(1\.0\) +0\.5( +[\d.]+%){3} +[01]\.\d\d$", table, re.MULTILINE)
    assert re.search(r"^least squares +\d\.\d+ +\d\.\d+$", table, re.MULTILINE)


def test_decks_are_the_products_of_their_shuffles() -> None:
    chosen, orders = cards.decks(5, 4)
    for k in range(4):
        deck = [0, 1, 2]
        for shuffle, order in zip(chosen[:, k], orders[:, k], strict=True):
            deck = [deck[place] for place in cards.SHUFFLES[shuffle].tolist()]
            assert cards.SHUFFLES[order].tolist() == deck


@pytest.mark.nightly
def test_two_reflections_follow_three_cards() -> None:
    found = {entry["network"]: entry["right"] for entry in cards.compare(seed=0)}
    assert found["DeltaProduct"][1] > 0.9
    assert found["one reflection"][1] < 0.6
    assert found["ScoRNN"][1] < 0.6


@pytest.mark.nightly
def test_what_is_certified_survives_every_attack() -> None:
    for found in certificate.compare(seed=3, quick=True):
        assert found["lipschitz"] <= 1 + 1e-5 or found["network"] == "no constraint"
        kinds = ("certified by the product", "certified", "attacked")
        for by_product, certified, attacked in zip(*(found[kind] for kind in kinds), strict=True):
            assert by_product <= certified <= attacked
        assert found["certified"][0] == found["attacked"][0]  # No change at all.
        assert found["attacked"][-1] < 0.5 * found["attacked"][0]  # The attack finds what it looks for.


def test_a_forecast_is_of_the_rows_that_follow() -> None:
    found = forecast.compare(seed=0, quick=True)
    clean, noisy = forecast.recording(0)
    assert (clean.shape, len(found["future"])) == ((400, 4), 100)
    assert found["past"] == noisy[:300, 0].tolist()
    assert found["future"] == clean[300:, 0].tolist()
    assert found["spectral_radius"][forecast.MODELS[1]] <= 1 + 1e-9
    assert all(len(rows) == 100 for rows in found["forecast"].values())


@pytest.mark.nightly
def test_the_sphere_has_two_limits() -> None:
    put_back, along = sphere.compare(seed=0)
    assert put_back["gap"] > 0.05
    assert 0 <= along["gap"] + 1e-6 < 1e-3


def test_pages_that_the_demo_names_exist() -> None:
    named = re.findall(r"(docs/\w+\.md)(?:#([\w-]+))?", report.MEANING)
    assert len(named) == len(cli.FIGURES.split(", "))
    for page, anchor in named:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert not anchor or f"\n({anchor})=\n" in text, (page, anchor)


@pytest.mark.parametrize("steps", [3, 4, 6])
@pytest.mark.turns(3)
def test_interrupted_run_goes_on_to_the_same_state(tmp_path: Path, steps: int) -> None:
    # Two networks of four steps: stopped within the first, at its end, and within the second.
    chosen = rows(quick=True)[::2]
    assert [(row.label, row.training["steps"]) for row in chosen] == [("ENRNN", 4), ("LSTM", 4)]

    def states(output: Path, resume: bool, stop: Callable[[], int | None]) -> list[Any]:
        finished = memory.train(chosen, output, [0], resume, stop)
        return [trained.trainer.state() for trained in finished]

    expected = states(tmp_path / "whole", False, lambda: None)
    with pytest.raises(checkpoint.InterruptedRunError, match=r"step \d of 4"):
        states(tmp_path / "parts", False, after(steps))
    assert_same_state(states(tmp_path / "parts", True, lambda: None), expected)


def test_ctrl_c_leaves_the_command_that_goes_on_from_the_same_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = Trainer.train_step, []

    def interrupted(self: Trainer) -> None:
        step(self)
        steps.append(self.step)
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        elif self.step > 2:
            raise checkpoint.InterruptedRunError("what follows", signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    options = ["--quick", "--output", str(tmp_path)]
    assert cli.main(options) == 130
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Stopped at ")
    assert line.endswith(f"python -m examples.demo {' '.join(options)} --resume")
    cli.main([*options, "--resume"])
    assert steps == [1, 2, 3]


@pytest.mark.nightly
def test_ctrl_c_then_resume_equals_the_uninterrupted_run(tmp_path: Path, finished: Path) -> None:
    options = ["--quick", "--output", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stderr is not None
        seen = b""
        while b"[1/" not in seen:
            seen += process.stderr.read(1) or pytest.fail(seen.decode())
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error.decode()
    (line,) = out.decode().splitlines()
    assert line.startswith("Stopped at ")
    assert line.endswith(f"python -m examples.demo {' '.join(options)} --resume")
    assert cli.main([*options, "--resume"]) == 0
    assert numbers(tmp_path) == numbers(finished)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_remembered_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with checkpoint.stop_signal() as stop:
        assert stop() is None
        os.kill(os.getpid(), number)
        assert stop() == number
    assert signal.getsignal(number) is before


def test_the_networks_have_equally_many_parameters() -> None:
    counts = []
    for row in COMPARED:
        task = tasks.build({**row.task, "tiny": True, "batch_size": 4}, 0)
        counts.append(sp.num_free_parameters(networks.build(row.network, task, 0, torch.float32)))
    assert len(counts) == 3
    assert max(counts) <= 1.02 * min(counts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "0"], "--threads: expected an integer from 1 to "),
        (["--threads", "100000"], ", got '100000'"),
        (["--seed", "-1"], "--seed: expected an integer >= 0 of at most 18 digits, got '-1'"),
        (["--seed", "one"], "--seed: expected an integer >= 0 of at most 18 digits, got 'one'"),
        (["--seed", "9" * 20], "of at most 18 digits, got '9999"),
        (["--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_options_exit_with_a_message(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(options)
    assert message in capsys.readouterr().err


@pytest.mark.nightly
def test_resuming_needs_a_checkpoint_of_the_same_settings(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(*options: str) -> str:
        assert cli.main(["--resume", *options]) == 1
        return capsys.readouterr().err

    assert "no checkpoint" in error("--output", str(tmp_path))
    assert "another row (its file has changed, or --quick)" in error("--output", str(finished))
    assert "choose another folder, or run without --resume" in error("--output", str(finished))
    assert "no checkpoint" in error("--quick", "--seed", "5", "--output", str(finished))
    (tmp_path / "file").touch()
    assert "expected a folder" in error("--output", str(tmp_path / "file"))


def test_folder_of_a_run_under_way_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoint.lock(tmp_path):
        assert cli.main(["--quick", "--output", str(tmp_path)]) == 1
    assert f"error: another run is writing to {tmp_path}; " in capsys.readouterr().err


def test_missing_packages_are_named_with_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    assert entry.main() == 1
    expected = "The demo needs scikit-learn: make demo, or pip install --group demo\n"
    assert capsys.readouterr().err == expected
