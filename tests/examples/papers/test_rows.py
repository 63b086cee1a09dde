"""Every row of every table runs, its files are well-formed, and its network is of the papers' size."""

from __future__ import annotations

import json

import pytest
import torch

import spectral_param as sp
from examples.papers import cli, config, measures, networks, optimizers, record, runs, tasks
from examples.papers.sections import SECTIONS

from .helpers import CHARACTERS, arguments, write_row

ROWS = config.names()


def kinds_of(name: str) -> set[object]:
    """Return what a row has of tasks, networks, arguments and ways to train."""
    row = config.load(name)
    groups = [(entry["name"], entry.get("parameters")) for entry in row.optimizer]
    return {
        (row.task["name"], row.network.get("name")),
        (row.network.get("name"), *groups),
        ("schedule", row.training.get("schedule", {}).get("name")),
        *(("network", key) for key in row.network),
        *(("task", key) for key in row.task),
        *(("training", key) for key in row.training),
    }


def always() -> list[str]:
    """Return few rows that have everything among them: the one that adds most, then the next."""
    left = {name: kinds_of(name) for name in ROWS}
    missing, found = set().union(*left.values()), []
    while missing:
        best = max(ROWS, key=lambda name: len(left[name] & missing))
        found.append(best)
        missing -= left[best]
    return found


ALWAYS = always()


def run_quickly(name, folder) -> None:
    row = config.load(name).quick()
    result = runs.run(row, runs.Options(results=folder, work=folder))
    assert result is not None
    assert result["status"] == "finished"
    written = json.loads((folder / f"{name}-seed0.json").read_text())
    assert set(written) >= {"config", "command", "environment", "seed", "wall_seconds", "curve", "summary"}
    assert set(written["environment"]) >= {"commit", "processor", "threads", "torch", "date"}
    assert written["config"]["task"]["tiny"]
    if row.section != "dynamics":
        assert [point["step"] for point in written["curve"]] == [2, 4]
        assert all(torch.tensor(point["test"]).isfinite() for point in written["curve"])
        lines = (folder / f"{name}-seed0" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [2, 4]


@pytest.mark.parametrize("name", ALWAYS)
@pytest.mark.turns(5)
def test_row_runs_a_few_steps_on_tiny_data(name, tmp_path) -> None:
    run_quickly(name, tmp_path)


@pytest.mark.rows
@pytest.mark.parametrize("section", SECTIONS)
def test_other_rows_run_a_few_steps_on_tiny_data(section, tmp_path) -> None:
    for name in sorted(set(ROWS) - set(ALWAYS)):
        if config.load(name).section == section:
            print(name)  # Shown if it fails.
            run_quickly(name, tmp_path)


def test_rows_say_where_they_are_shown_and_what_they_are_measured_by() -> None:
    for row in config.load_all():
        assert row.section in SECTIONS, row.name
        for paper in row.paper:
            assert set(paper) - {"verdict"} == {"measure", "value", "source"}, row.name
            float(paper["value"])
        for goal in row.goal:
            others = [*goal.get("better_than", []), *goal.get("not_above", [])]
            assert set(others) <= set(ROWS), row.name
            assert measures.reached(goal, {}, row.name, "MSE") is None, row.name


# One for each network and kind of groups.
GROUPED = {
    (row.network["name"], *(entry.get("parameters") for entry in row.optimizer)): row.name
    for row in map(config.load, ALWAYS)
    if row.network
}


def test_network_has_an_optimizer_for_all_of_it() -> None:
    for name in GROUPED.values():
        row = config.load(name).quick()
        task = tasks.build({**row.task, "tiny": True, "batch_size": 4}, seed=0)
        model = networks.build(row.network, task, 0, torch.float32)
        trained = [
            p
            for optimizer in optimizers.build(model, row.optimizer)
            for g in optimizer.param_groups
            for p in g["params"]
        ]
        assert len({id(p) for p in trained}) == len(trained), name
        assert {id(p) for p in trained} == {id(p) for p in model.parameters() if p.requires_grad}, name


# Where the papers print counts that tests/promises/nn/test_parameter_counts.py does not have: of another
# network on the same task, or with an embedding.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ptb-150-nnrnn-1024", 1_320_000),
        ("ptb-50-lstm-350", 1_016_000),
        ("ptb-50-ornn-512", 183_000),
        ("mnist-scurnn-116", 16_415),  # These three: scoRNN's of 170, 170, and 512.
        ("mnist-enrnn-95-63", 16_415),
        ("mnist-enrnn-286-190", 136_970),
    ],
)
def test_network_is_of_the_size_that_is_printed(name, count) -> None:
    row = config.load(name)
    task = tasks.build({**row.task, "tiny": True, "batch_size": 4}, seed=0)
    ours = sp.num_free_parameters(networks.build(row.network, task, 0, torch.float32))
    assert ours == pytest.approx(count, rel=0.015)


def test_truncated_orthogonal_coupling_of_the_characters() -> None:
    row = config.load("ptb-50-enrnn-310-720")
    task = tasks.build({**row.task, "tiny": True, "batch_size": 4}, seed=0)
    W = networks.build(row.network, task, 0, torch.float32).recurrent.cells[0].weight_hh.detach()
    C = W[:310, 310:]
    torch.testing.assert_close(C @ C.mT, torch.eye(310), atol=1e-5, rtol=0)


def test_bias_of_modrelu_starts_where_the_row_says() -> None:
    settings = {"name": "ExpRNN", "hidden_size": 5, "num_layers": 2, "modrelu_bias": -0.1}
    task = tasks.build({"name": "ptb", "length": 3, "batch_size": 4, "tiny": True}, seed=0)
    cells = networks.build(settings, task, 0, torch.float32).recurrent.cells
    assert [cell.bias.unique().tolist() for cell in cells] == [[pytest.approx(-0.1)]] * 2
    for other in ({"name": "ORNN"}, {"name": "LSTM"}, {"bias": False}):
        with pytest.raises(ValueError, match="modrelu_bias: expected a network with that bias"):
            networks.build({**settings, **other}, task, 0, torch.float32)


def test_extended_row_inherits_settings_but_no_numbers() -> None:
    row = config.load("pmnist-scornn-360")
    base = config.load("mnist-scornn-360")
    assert row.task == {**base.task, "permutation_seed": 92916}
    assert row.network == {**base.network, "negative_ones": 180}
    assert row.optimizer == base.optimizer
    assert [paper["value"] for paper in row.paper] == ["0.962"]
    lstm = config.load("mnist-lstm-128")
    assert lstm.network == {"name": "LSTM", "hidden_size": 128}, "another network shares no arguments"


BASE = 'label = "x"\nsection = "mnist"\n[task]\nname = "mnist"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label = ", "expected TOML"),
        ('label = "x"', "section, task: missing"),
        (f'speed = "fast"\n{BASE}', "expected .*; got speed"),
        (f"{BASE}[training]\nepoch = 3\n", "training: expected .*; got epoch"),
        (f"{BASE}[training]\nepochs = 3\nsteps = 3\n", "either epochs or steps"),
        (f"{BASE}[training]\nepochs = 3\n", "network, optimizer: missing"),
        (f'extends = "nothing"\n{BASE}', "extends: expected the name of a row, got 'nothing'"),
    ],
)
def test_bad_row_is_named(text, message, tmp_path) -> None:
    (tmp_path / "row.toml").write_text(text)
    with pytest.raises(config.RowError, match=message):
        config.load(str(tmp_path / "row.toml"))


def test_command_of_a_row_names_its_file_as_it_was_given(tmp_path, monkeypatch) -> None:
    assert config.load("franka").command == "python -m examples.papers run franka"
    (tmp_path / "my rows").mkdir()
    text = CHARACTERS.replace("steps = 16", "steps = 2")
    row = write_row(tmp_path / "my rows", text, "franka")
    assert cli.main(arguments(tmp_path, row)) == 0
    result = json.loads((tmp_path / "franka-seed0.json").read_text())
    assert result["command"] == f"python -m examples.papers run '{row}' --seed 0"
    monkeypatch.chdir(tmp_path)
    assert config.load("my rows/franka.toml").command == "python -m examples.papers run 'my rows/franka.toml'"
    with pytest.raises(config.RowError, match="got file"):
        config.load(write_row(tmp_path, f'file = "x"\n{BASE}'))


def test_file_with_the_name_of_a_row_does_not_take_its_folders(tmp_path, monkeypatch, capsys) -> None:
    started = []
    monkeypatch.setattr(runs, "run", lambda row, options: started.append((row.name, options.results)))

    def run(row: str, *options: str) -> str:
        code, error = cli.main(["run", row, *options]), capsys.readouterr().err
        assert code == (1 if error else 0)
        return error

    elsewhere, own = write_row(tmp_path, CHARACTERS, "franka"), ["--results", str(tmp_path)]
    error = run(elsewhere)
    assert f"--results: expected another folder than {record.RESULTS} for {elsewhere}" in error
    assert "got that of the row franka in examples/papers/rows. Rename the file, or give another" in error
    assert "--work: expected another folder" in run(elsewhere, *own)
    assert "--results" in run(elsewhere, "--results", f"{record.RESULTS.parent}/rows/../results")
    assert not started
    assert not run(elsewhere, *own, "--work", str(tmp_path))
    assert not run(elsewhere, "--quick"), "results of --quick have a folder of their own"
    assert not run(write_row(tmp_path, CHARACTERS))
    assert not run(str(config.ROWS / "franka.toml")), "the row itself"
    assert [name for name, _ in started] == ["franka", "franka", "row", "franka"]
    assert [folder == record.RESULTS for _, folder in started] == [False, False, True, True]


def test_missing_row_is_named() -> None:
    with pytest.raises(config.RowError, match="no-such-row: no such row"):
        config.load("no-such-row")
