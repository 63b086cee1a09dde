"""Optimizers, schedules, clipping, and the command line."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch

import spectral_param as sp
from examples.papers import __main__ as entry
from examples.papers import cli, config, networks, optimizers, record, runs, tasks
from examples.papers.parallel import Processes
from examples.papers.sections import SECTIONS
from examples.papers.trainer import Trainer
from tests.promises.cases import orthogonality_defect

CPU = Processes(0, 1, torch.device("cpu"))


def model(name="ENRNN", **arguments):
    task = tasks.build({"name": "adding", "length": 20, "batch_size": 4, "tiny": True}, 0)
    sizes = arguments or {"long_size": 5, "short_size": 3}
    return networks.build({"name": name, **sizes}, task, 0, torch.float32)


def test_each_entry_has_its_own_parameters_and_the_last_one_the_rest() -> None:
    network = model()
    slow, named, rest = optimizers.build(
        network,
        [
            {"parameters": "ScaledCayley", "name": "RMSprop", "lr": 1e-4},
            {"parameters": "output.*", "name": "SGD", "lr": 1e-2},
            {"name": "Adam", "lr": 1e-3, "betas": [0.0, 0.9]},
        ],
    )
    assert isinstance(slow, torch.optim.RMSprop)
    (group,) = slow.param_groups
    assert [p.shape for p in group["params"]] == [(5, 5)]
    assert len(named.param_groups[0]["params"]) == 2
    assert rest.param_groups[0]["betas"] == (0.0, 0.9)
    assert len(rest.param_groups[0]["params"]) == 4  # W(S), the coupling, the input map, the bias


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "Lion", "lr": 1e-3}], "expected StiefelRMSprop or one of torch.optim, got 'Lion'"),
        ([{"name": "lr_scheduler"}], "got 'lr_scheduler'"),
        ([{"name": "Adam", "rate": 1e-3}], "optimizer Adam: .*rate"),
        ([{"name": "Adam", "parameters": "Stiefel", "lr": 1e-3}], "match 'Stiefel', found none"),
        ([{"name": "Adam", "parameters": "output.*", "lr": 1e-3}], "none has recurrent"),
    ],
)
def test_bad_entries_are_named(entries, message) -> None:
    with pytest.raises(ValueError, match=message):
        optimizers.build(model(), entries)


def test_rate_follows_the_schedule_and_bad_schedules_are_named() -> None:
    def factor(schedule, step, measured=()):
        optimizers.check_schedule(schedule)
        return optimizers.factor(schedule, step, 100, 10, list(measured))

    assert factor({}, 50) == 1
    assert [factor({"name": "linear"}, step) for step in (0, 50)] == [1, 0.5]
    assert factor({"name": "cosine"}, 50) == pytest.approx(0.5)
    assert factor({"name": "exponential", "gamma": 0.5}, 29) == 0.25
    plateau = {"name": "plateau", "gamma": 0.5}
    assert factor(plateau, 0, [3.0, 2.0, 1.0]) == 1
    assert factor(plateau, 0, [3.0, 2.0, 2.5, 1.0, 1.0]) == 0.25
    warm = {"name": "cosine", "warmup": 20}
    assert [factor({"name": "constant", "warmup": 20}, step) for step in (0, 9, 19, 50)] == [0.05, 0.5, 1, 1]
    assert factor(warm, 9) == pytest.approx(0.5 * factor({"name": "cosine"}, 9))
    assert factor(warm, 50) == factor({"name": "cosine"}, 50)
    for steps in (0, 0.5, "20"):
        with pytest.raises(ValueError, match="warmup: expected a number of steps, at least 1"):
            optimizers.check_schedule({"name": "cosine", "warmup": steps})
    for bad in ({"name": "step"}, {"name": "plateau"}, {"name": "linear", "gamma": 1}):
        with pytest.raises(ValueError, match="schedule: expected a name and its arguments"):
            optimizers.check_schedule(bad)


def small(**training):
    row = config.load("adding-750-lstm-60").quick()
    return Trainer(
        config.Row("row", "", "", row.task, row.network, row.optimizer, {"steps": 4, **training}),
        0,
        CPU,
        torch.float64,
    )


def test_gradients_are_clipped_by_norm_and_by_value() -> None:
    trainer = small(clip_norm=1e-3)
    trainer.train_step()
    assert trainer.last["gradient"] > 1e-3, "the norm before clipping"
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in trainer._trained))
    assert norm == pytest.approx(1e-3, rel=1e-2)
    trainer = small(clip_value=1e-3)
    trainer.train_step()
    assert max(float(p.grad.abs().max()) for p in trainer._trained) == pytest.approx(1e-3)


def test_originals_are_averaged_and_the_averaged_network_is_measured() -> None:
    row = config.load("mnist-scornn-256-linear").quick()
    trainer = Trainer(dataclasses.replace(row, training={"steps": 4, "average": 0.75}), 0, CPU, torch.float64)
    expected: dict[str, torch.Tensor] = {}
    for _ in range(3):
        trainer.train_step()
        for name, p in trainer.model.named_parameters():
            expected[name] = 0.75 * expected.get(name, p.detach()) + 0.25 * p.detach()
    averaged = dict(trainer.measured_model.named_parameters())
    for name, p in expected.items():
        torch.testing.assert_close(averaged[name].detach(), p)
        assert not torch.equal(averaged[name], trainer.model.get_parameter(name))
    assert orthogonality_defect(trainer.measured_model.recurrent.cells[0].weight_hh.detach()) < 1e-12
    before = trainer.evaluate("validation")
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.zero_()
    assert trainer.evaluate("validation") == before
    for decay in (0, 1.0, "0.9"):
        with pytest.raises(ValueError, match="average: expected a number between 0 and 1, got"):
            small(average=decay)


def test_denormal_numbers_are_zero_during_a_run_and_not_after_it(tmp_path, monkeypatch) -> None:
    denormal, seen = torch.tensor([1e-40]), []

    def evaluate(self, split):
        seen.append(float(denormal * 1))
        return 1.0

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    assert float(denormal * 1) > 0
    runs.run(config.load("adding-750-lstm-60").quick(), runs.Options(results=tmp_path, work=tmp_path))
    assert seen
    assert not any(seen)
    assert float(denormal * 1) > 0


def test_dtype_is_that_of_the_network() -> None:
    trainer = small()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float64}
    assert {p.dtype for p in model("EUNN", hidden_size=6).recurrent.parameters()} <= {
        torch.complex64,
        torch.float32,
    }


def test_last_state_is_that_of_the_output() -> None:
    for name in ("ScuRNN", "LSTM", "ScoRNN"):
        network = model(name, hidden_size=6)
        x = torch.randn(9, 4, 2)
        outputs, _ = network(x)
        states, _ = network.recurrent(x)
        torch.testing.assert_close(outputs[0], network.output(states[-1]))
        _, middle = network(x[:5])
        torch.testing.assert_close(network(x[5:], middle)[0], outputs)


def test_same_seed_same_dropout() -> None:
    row = config.load("mnist-scornn-170").quick()
    network = {**row.network, "readout_size": 8, "readout_dropout": 0.5}
    losses = []
    for seed in (3, 3, 4):
        trainer = Trainer(dataclasses.replace(row, network=network), seed, CPU, torch.float64)
        trainer.train_step()
        losses.append(trainer.last["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_same_seed_same_network() -> None:
    one, two = model(), model()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"or a class of spectral_param\.nn, got 'Transformer'"):
        model("Transformer", hidden_size=6)
    with pytest.raises(ValueError, match=r"network ScoRNN: .*size"):
        model("ScoRNN", size=6)


def test_radii_of_gates_and_blocks() -> None:
    radii = networks.spectral_radii(model("LSTM", hidden_size=6))
    assert list(radii) == [f"recurrent.weight_hh_l0[{i}]" for i in range(4)]
    network = model("ScoRNN", hidden_size=6)
    (radius,) = networks.spectral_radii(network).values()
    assert radius == pytest.approx(1, abs=1e-5)
    with torch.no_grad():
        network.recurrent.cells[0].parametrizations.weight_hh.original0.fill_(float("nan"))
    assert list(networks.spectral_radii(network).values()) == [None]


def test_penalty_is_part_of_what_is_trained(monkeypatch) -> None:
    row = config.load("pmnist-nnrnn-512").quick()
    asked = []
    monkeypatch.setattr(sp, "penalty", lambda network: asked.append(network) or torch.zeros(()))
    trainer = Trainer(row, 0, CPU, torch.float32)
    trainer.train_step()
    assert asked == [trainer.model]


@pytest.mark.nightly
def test_list_has_a_line_of_columns_for_each_row_and_says_where_data_come_from(
    capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))
    assert cli.main(["list"]) == 0
    table, below, without = capsys.readouterr().out.split("\n\n")
    header, *lines = table.splitlines()
    assert [line.split()[0] for line in lines] == config.names()
    starts = [header.index(f"  {name}") for name in header.split()[1:]]
    for line in lines:
        assert all(line[at : at + 2].strip() == "" for at in starts), line
    by_row = {line.split()[0]: line[header.index("data") :] for line in lines}
    needed = {"adding-750-lstm-60": "none", "franka": "franka", "timit-lstm-158": "timit"}
    assert needed.items() <= by_row.items()
    assert set(by_row.values()) - {"none"} == set(re.findall(r"^(\w+): .* is missing\.", below, re.MULTILINE))
    assert "Run python -m examples.papers download franka" in below
    assert all(re.fullmatch(r"[\d.]*", line[header.index("minutes") :].split("  ")[0]) for line in lines)
    tables = dict(line.split(": ") for line in without.splitlines()[1:])
    assert set(tables) == {section.title for section in SECTIONS.values()}
    for shortest in tables.values():
        if not shortest.startswith("none; "):
            assert by_row[shortest] == "none"
        else:
            assert by_row[re.fullmatch(r"none; run (\S+) --quick takes .*", shortest)[1]] != "none"


def test_quick_run_stays_away_from_the_results(tmp_path, capsys) -> None:
    options = ["--threads", "1", "--work", str(tmp_path), "--results", str(tmp_path / "results")]
    assert cli.main(["run", "adding-750-lstm-60", "--quick", "--seed", "3", *options]) == 0
    assert (tmp_path / "quick" / "adding-750-lstm-60-seed3.json").is_file()
    assert not (tmp_path / "results").exists()
    assert "best test: " in capsys.readouterr().out


def test_errors_are_one_line(capsys) -> None:
    assert cli.main(["run", "no-such-row"]) == 1
    assert capsys.readouterr().err.startswith("error: no-such-row: no such row")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "-1"], "--seed: expected an integer >= 0"),
        (["--threads", "100000"], "--threads: expected an integer from 1 to "),
        (["--device", "gpu"], "--device: expected cpu or cuda, got 'gpu'"),
    ],
)
def test_wrong_options_are_named(options, message, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", "franka", *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"row": "franka"', "expected JSON (Expecting"),
        ('{"row": "franka", "seed": 0}', "expected a run's result, got none of: curve, environment"),
        ("[]", "expected a run's result, got none of: an object"),
        ("\xff\xfe", "expected JSON ("),
    ],
)
def test_broken_results_are_named(content, message, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "franka-seed0.json").write_bytes(content.encode("latin-1"))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert cli.main(["list"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'franka-seed0.json'}: {message}")
    assert "run its row anew" in error


def test_missing_packages_are_named_with_the_extra(capsys, monkeypatch) -> None:
    monkeypatch.setattr(entry.importlib.util, "find_spec", lambda name: None if name == "tqdm" else "there")
    assert entry.main() == 1
    assert capsys.readouterr().err == "The experiments need tqdm: pip install --group examples\n"
