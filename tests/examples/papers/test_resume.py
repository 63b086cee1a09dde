"""Runs that are killed, stopped, or diverge."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from examples.papers import checkpoint, cli, config, origin, runs
from examples.papers.trainer import Trainer
from tests.launch import forked

from .helpers import CHARACTERS, arguments, read_curve, write_row


def killed(options):
    """Run until the process is killed within step 11, when the last checkpoint is that of step 7."""
    step, save = Trainer.train_step, checkpoint.save

    def train_step(self):
        step(self)
        if self.step == 11:
            os.kill(os.getpid(), signal.SIGKILL)

    def early(folder, settings, results):
        if results["trainer"]["step"] <= 7:
            save(folder, settings, results)

    Trainer.train_step, checkpoint.save = train_step, early
    cli.main(options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The curve of a run that was left alone."""
    folder = tmp_path_factory.mktemp("alone")
    assert cli.main(arguments(folder, write_row(folder, CHARACTERS))) == 0
    curve = read_curve(folder)
    assert [point["step"] for point in curve] == [3, 6, 9, 12, 15, 16]
    assert len({point["test"] for point in curve}) == 6
    return curve


def saved_trainer(folder):
    """Return the state of the trainer in a run's checkpoint."""
    return torch.load(folder / checkpoint.CHECKPOINT, weights_only=True)["state"]["trainer"]


@pytest.mark.nightly
@pytest.mark.fresh
def test_run_killed_half_way_gives_the_same_curve_when_resumed(alone, tmp_path) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS), "--save-seconds", "0")
    codes = forked(lambda _: killed(options), tmp_path / "printed")
    assert codes == [-signal.SIGKILL], (tmp_path / "printed").read_text()
    assert not (tmp_path / "row-seed0.json").exists()
    lines = (tmp_path / "row-seed0" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 9, "beyond the checkpoint"

    assert cli.main([*options, "--resume"]) == 0
    assert read_curve(tmp_path) == alone
    lines = (tmp_path / "row-seed0" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6, 9, 12, 15, 16]
    result = json.loads((tmp_path / "row-seed0.json").read_text())
    assert [session["from step"] for session in result["sessions"]] == [0, 7]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.turns(2)
def test_run_that_is_asked_to_stop_saves_and_goes_on(number, alone, tmp_path, monkeypatch, capsys) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS))
    step = Trainer.train_step

    def interrupted(self: Trainer) -> None:
        step(self)
        if self.step == 8:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    assert cli.main(options) == 128 + number
    assert (
        "Stopped at row, seed 0, step 8 of 16. Go on with: python -m examples.papers run"
        in capsys.readouterr().out
    )
    monkeypatch.undo()
    assert cli.main([*options, "--resume"]) == 0
    assert read_curve(tmp_path) == alone


# Moved images, dropout, and averaged weights: of the network that is measured nothing may be lost.
DIGITS = """
label = "digits"
section = "mnist"

[task]
name = "mnist"
batch_size = 4
shift = 2
tiny = true

[network]
name = "ScoRNN"
hidden_size = 6
nonlinearity = "identity"
return_output = false
readout_size = [7, 5]
readout_dropout = 0.2

[[optimizer]]
name = "Adam"
lr = 1e-2

[training]
steps = 8
evaluate_every = 1
average = 0.9
"""


def test_averaged_weights_come_back_to_the_same_bits(tmp_path, monkeypatch) -> None:
    folders = [tmp_path / "left", tmp_path / "stopped"]
    options = []
    for folder in folders:
        folder.mkdir()
        options.append(arguments(folder, write_row(folder, DIGITS)))
    torch.manual_seed(0)  # Of the dropout.
    assert cli.main(options[0]) == 0
    step = Trainer.train_step

    def interrupted(self: Trainer) -> None:
        step(self)
        if self.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "train_step", interrupted)
    torch.manual_seed(0)
    assert cli.main(options[1]) == 128 + signal.SIGTERM
    monkeypatch.undo()
    torch.manual_seed(1)
    assert cli.main([*options[1], "--resume"]) == 0
    assert read_curve(folders[1]) == read_curve(folders[0])
    one, other = (saved_trainer(folder / "row-seed0") for folder in folders)
    assert one["averaged"].keys() == other["averaged"].keys()
    assert all(torch.equal(one["averaged"][name], other["averaged"][name]) for name in one["averaged"])


def test_resume_without_a_checkpoint_begins(alone, tmp_path) -> None:
    assert cli.main([*arguments(tmp_path, write_row(tmp_path, CHARACTERS)), "--resume"]) == 0
    assert read_curve(tmp_path) == alone


def test_resume_of_a_finished_run_keeps_its_sessions_and_environment(alone, tmp_path, monkeypatch) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS))
    assert cli.main(options) == 0
    written = (tmp_path / "row-seed0.json").read_text()
    monkeypatch.setattr(origin, "environment", lambda *_: {"commit": "of a later day"})
    assert cli.main([*options, "--resume"]) == 0
    assert (tmp_path / "row-seed0.json").read_text() == written


def test_checkpoint_of_another_row_is_refused(tmp_path, capsys) -> None:
    row = write_row(tmp_path, CHARACTERS.replace("steps = 16", "steps = 2"))
    assert cli.main(arguments(tmp_path, row)) == 0
    write_row(tmp_path, CHARACTERS)
    assert cli.main([*arguments(tmp_path, row), "--resume"]) == 1
    assert "has different settings: another row (its file has changed" in capsys.readouterr().err


def test_other_settings_are_named(tmp_path, capsys) -> None:
    row = write_row(tmp_path, CHARACTERS.replace("steps = 16", "steps = 1"))
    assert cli.main(arguments(tmp_path, row)) == 0
    assert cli.main([*arguments(tmp_path, row), "--dtype", "float64", "--resume"]) == 1
    assert "different settings: dtype torch.float32 instead of torch.float64" in capsys.readouterr().err


def _saved(change):
    def write(path):
        saved = torch.load(path, weights_only=True)
        change(saved)
        torch.save(saved, path)

    return write


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(b"no checkpoint"), "cannot read {path}"),
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), "cannot read {path}"),
        (lambda path: torch.save([1, 2], path), "{path} is no checkpoint of a run"),
        (_saved(lambda saved: saved.pop("state")), "{path} is no checkpoint of a run"),
        (_saved(lambda saved: saved["state"].pop("sessions")), "{path} has another structure"),
        (
            _saved(lambda saved: saved["state"]["trainer"]["model"].popitem()),
            "{path} has another structure than this version's (RuntimeError: Error(s) in loading",
        ),
        (
            _saved(lambda saved: saved["state"]["trainer"]["optimizers"].pop()),
            "{path} has another structure than this version's (ValueError: zip()",
        ),
    ],
    ids=["text", "truncated", "list", "no state", "no sessions", "other network", "other optimizer"],
)
@pytest.mark.turns(3)
def test_broken_checkpoint_is_named(spoil, message, tmp_path, capsys) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS.replace("steps = 16", "steps = 1")))
    assert cli.main(options) == 0
    path = tmp_path / "row-seed0" / checkpoint.CHECKPOINT
    spoil(path)
    capsys.readouterr()
    assert cli.main([*options, "--resume"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {message.format(path=path)}" in error
    assert error.endswith("run without --resume to begin anew.")


def test_two_runs_do_not_share_a_folder(tmp_path, capsys) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS.replace("steps = 16", "steps = 1")))
    with checkpoint.lock(tmp_path / "row-seed0"):
        assert cli.main(options) == 1
    message = f"error: another run is writing to {tmp_path / 'row-seed0'}; wait for its end, stop it, or"
    assert message in capsys.readouterr().err
    assert cli.main(options) == 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("weight", "step 6: loss nan"),
        ("loss", "step 6: loss"),
        ("gradient", "step 6: gradient of norm nan"),
    ],
)
@pytest.mark.turns(2)
def test_divergence_keeps_the_last_good_checkpoint_and_records_the_radii(
    what, message, tmp_path, monkeypatch, capsys
) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS), "--save-seconds", "0")
    step = Trainer.train_step

    def spoiled(self: Trainer) -> None:
        if self.step == 6 and what == "weight":
            with torch.no_grad():
                self.model.output.weight[0, 0] = float("nan")
        if self.step == 6 and what == "loss":
            with torch.no_grad():
                self.model.output.weight *= 1e9
        if self.step == 6 and what == "gradient":
            self.model.output.weight.register_hook(lambda gradient: gradient * float("nan"))
        step(self)

    monkeypatch.setattr(Trainer, "train_step", spoiled)
    assert cli.main(options) == 2
    result = json.loads((tmp_path / "row-seed0.json").read_text())
    assert result["status"] == "diverged"
    assert message in result["diverged"]
    assert message in capsys.readouterr().err
    radii = result["spectral radii"]
    assert radii["recurrent.cells.0.weight_hh[0]"] == pytest.approx(1, abs=1e-4)
    assert 0 < radii["recurrent.cells.0.weight_hh[1]"] <= 1 + 1e-4
    row = config.load(str(tmp_path / "row.toml"))
    saved = saved_trainer(tmp_path / "row-seed0")
    assert saved["step"] == 6
    assert all(tensor.isfinite().all() for tensor in saved["model"].values())
    assert row.label == result["label"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch) -> None:
    options = arguments(tmp_path, write_row(tmp_path, CHARACTERS), "--save-seconds", "0")
    monkeypatch.setattr(Trainer, "is_finite", lambda self: self.step < 5)
    assert cli.main(options) == 2
    saved = saved_trainer(tmp_path / "row-seed0")
    assert saved["step"] == 4


def test_score_that_is_not_finite_is_never_the_best(tmp_path, monkeypatch) -> None:
    values = iter([float("nan"), 10.0, 2.0, 10.0])  # Validation and test, twice.
    monkeypatch.setattr(Trainer, "evaluate", lambda self, split: next(values))
    row = config.load("speech-scornn-425").quick()
    result = runs.run(row, runs.Options(results=tmp_path, work=tmp_path))
    assert result["summary"]["best validation"] == 2.0
    saved = saved_trainer(tmp_path / "speech-scornn-425-seed0")
    assert torch.equal(saved["best"]["output.weight"], saved["model"]["output.weight"])


def test_network_that_was_best_on_validation_is_scored(tmp_path, monkeypatch) -> None:
    row = config.load("speech-scornn-425").quick()
    found = {}

    def scored(self, model, device, dtype):
        found["weights"] = {name: value.clone() for name, value in model.state_dict().items()}
        return {"SegSNR": 1.0}

    values = iter([1.0, 10.0, 2.0, 10.0])  # Validation and test, twice: the first evaluation is the best.
    monkeypatch.setattr("examples.papers.tasks.speech.Speech.final_scores", scored)
    monkeypatch.setattr(Trainer, "evaluate", lambda self, split: next(values))
    result = runs.run(row, runs.Options(results=tmp_path, work=tmp_path))
    assert result["summary"]["SegSNR"] == 1.0
    saved = saved_trainer(tmp_path / "speech-scornn-425-seed0")
    assert torch.equal(found["weights"]["output.weight"], saved["best"]["output.weight"])
    assert not torch.equal(found["weights"]["output.weight"], saved["model"]["output.weight"])
