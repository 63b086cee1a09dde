"""The benchmarks run, and write their numbers where they are asked to."""

import dataclasses
import json
import os
import re
import subprocess
import time

import numpy as np
import pytest
import torch
from torch.nn.utils.parametrize import remove_parametrizations

import spectral_param as sp
from benchmarks import (
    case,
    characters,
    costs_table,
    dynamics,
    guarantees,
    lipschitz,
    memory,
    networks,
    norms,
    systems,
    table,
)
from benchmarks import run as runner
from benchmarks import sparse as sparse_radius
from examples.papers import data, record

from .test_docs import keys_of

CASES = [*keys_of("benchmarks.costs_table.times"), networks.NAME]


@pytest.fixture
def text(monkeypatch, tmp_path):
    """A text to train on where the real ones are not."""
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text("to be or not to be, that is the question. " * 2000)
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))


@pytest.mark.nightly
def test_quick_run_writes_numbers_that_have_their_tables(text, monkeypatch, tmp_path, capsys) -> None:
    output = tmp_path / "cpu.json"
    arguments = ["benchmarks", "--quick", "--repeats", "1", "--output", str(output)]
    monkeypatch.setattr("sys.argv", arguments)
    runner.main()
    results = json.loads(output.read_text())
    assert len(results) == 34
    facts = {"commit", "torch", "cores", "threads", "dtype"}
    assert all(set(r["environment"]) >= facts for r in results.values())
    rows = [row for result in results.values() for row in result["contenders"].values()]
    assert all(row["least"] <= row["median"] <= row["most"] for row in rows)
    assert all(row["bytes"] > 0 for row in rows)
    registered = {
        name for name, r in results.items() for row in r["contenders"].values() if row["registration"]
    }
    assert sum("SpectralRadiusNorm" in name for name in registered) == 8
    assert sum("ScaledCayley" in name or "orthogonal weight" in name for name in registered) == 2
    errors = [result["facts"].values() for name, result in results.items() if "run" in name]
    assert all(0 <= error < 1e-5 for facts in errors for error in facts)
    assert "tracked" in capsys.readouterr().out

    output = tmp_path / "memory.json"
    monkeypatch.setattr("sys.argv", ["benchmarks.memory", "--quick", "--output", str(output)])
    memory.main()
    peaks = json.loads(output.read_text())
    assert set(peaks["environment"]) >= {"commit", "torch"}
    monkeypatch.setattr(costs_table, "load", {"cpu": results, "memory": peaks}.get)
    assert len(costs_table.memory()[1]) == 6
    for name, result in results.items():
        shown = table.shown(name, result)
        assert any(map(shown.startswith, CASES)), f"{name}: every case has its table"
        header, rows = costs_table.times(shown)
        assert rows[0][0] == ""  # The name is the whole key; longer ones come after it.
        assert set(header) >= {"", *result["contenders"]}


def test_quick_run_of_guarantees_resumes(monkeypatch, tmp_path) -> None:
    output = tmp_path / "guarantees.json"
    arguments = ["benchmarks.guarantees", "--quick", "--seeds", "1", "--output", str(output), "--only"]
    for parts in (["equilibria"], ["equilibria", "digits"]):
        monkeypatch.setattr("sys.argv", [*arguments, *parts])
        before = json.loads(output.read_text())["equilibria"] if output.is_file() else None
        guarantees.main()
        results = json.loads(output.read_text())
        assert before in (None, results["equilibria"])
    assert results["digits"].keys() == {f"{name}, seed 0" for name in guarantees.CERTIFIED}


def test_quick_run_of_systems_resumes(monkeypatch, tmp_path) -> None:
    output = tmp_path / "systems.json"
    arguments = ["benchmarks.systems", "--quick", "--output", str(output), "--only"]
    for parts in (["returned"], ["returned", "attack", "steps", "network"]):
        monkeypatch.setattr("sys.argv", [*arguments, *parts])
        before = json.loads(output.read_text())["returned"] if output.is_file() else None
        systems.main()
        results = json.loads(output.read_text())
        assert before in (None, results["returned"])
    assert all(result["distance"] <= 1e-6 for result in results["returned"].values())
    assert all(result["gain above"] <= 1e-9 for result in results["attack"].values())


def test_quick_run_of_sparse_matrices(monkeypatch, tmp_path) -> None:
    output = tmp_path / "sparse.json"
    monkeypatch.setattr("sys.argv", ["benchmarks.sparse", "--quick", "--output", str(output)])
    sparse_radius.main()
    results = json.loads(output.read_text())
    assert set(results) == set(sparse_radius.KINDS)
    assert all(result["wrong"] == 0 for result in results.values())
    assert all(set(result["environment"]) >= {"commit", "scipy"} for result in results.values())


def test_quick_run_of_norms_resumes_and_attacks(monkeypatch, tmp_path) -> None:
    output = tmp_path / "norms.json"
    start = ["benchmarks.norms", "--quick", "--output", str(output)]
    for arguments in (["--only", "32 channels"], ["--only", "32 channels"], ["--attack", "50"]):
        before = json.loads(output.read_text()) if output.is_file() else {}
        monkeypatch.setattr("sys.argv", [*start, *arguments])
        norms.main()
        results = json.loads(output.read_text())
        assert before.items() <= results.items()
    assert results["attack"]["above"] <= 4e-7
    assert results["attack"]["below"] >= -1e-5
    monkeypatch.setattr(costs_table, "load", {"norms": results}.get)
    assert [row[0] for row in costs_table.norms()[1]] == ["Conv2d 3 x 3, 32 channels, Adam, one thread"]


def test_only_the_asked_group_is_run_and_the_rest_kept(text, monkeypatch, tmp_path) -> None:
    output = tmp_path / "cpu.json"
    output.write_text('{"an earlier one": {}}')
    monkeypatch.setattr(
        "sys.argv", ["benchmarks", "--quick", "--repeats", "1", "--output", str(output), "--only", "batch"]
    )
    runner.main()
    assert list(json.loads(output.read_text())) == [
        "an earlier one",
        "training step with SpectralRadiusNorm, n = 8, batch of 8",
    ]


def test_a_group_that_is_none_is_refused_and_the_groups_are_listed(monkeypatch, tmp_path, capsys) -> None:
    output = str(tmp_path / "cpu.json")
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "nosuch", "--output", output])
    with pytest.raises(SystemExit, match="2"):
        runner.main()
    expected = "--only: expected a part of one of .*'normalised, batch'.*'characters'.*, got 'nosuch'"
    assert re.search(expected, capsys.readouterr().err)


@pytest.mark.parametrize("name", networks.SYSTEMS)
@pytest.mark.parametrize("n", [10])
def test_parameters_of_the_recurrent_matrices_are_counted_as_the_page_says(name, n) -> None:
    system = networks.SYSTEMS[name]
    rnn = system.make(n)
    others = [p for key, p in rnn.named_parameters() if "weight_hh" not in key and "weight_gates" not in key]
    for parameter in others:
        parameter.requires_grad_(False)
    assert sp.num_free_parameters(rnn) == system.count(n)


CONSTRAINED = [name for name, system in networks.SYSTEMS.items() if system.violation]


@pytest.mark.parametrize("name", CONSTRAINED)
def test_a_network_outside_its_set_is_not_timed(name, monkeypatch) -> None:
    system = networks.SYSTEMS[name]

    def outside(n):
        rnn = system.make(n)
        if name == "NNRNN":  # Its set is all matrices: only the eigenvalues that it names can be wrong.
            monkeypatch.setattr(
                sp.SchurForm, "eigenvalues", lambda self, T, gamma, *rest: 0.9 * gamma.detach()
            )
        else:
            remove_parametrizations(rnn.cells[0], "weight_hh")
            rnn.cells[0].weight_hh.data += 0.1
        return rnn

    monkeypatch.setattr(networks, "SYSTEMS", {name: dataclasses.replace(system, make=outside)})
    with pytest.raises(AssertionError, match=f"{name}: expected its constraint to"):
        networks.training_step(8, 2, 3)


def test_peak_is_that_of_what_is_alive_at_a_time() -> None:
    def run() -> None:
        for _ in range(3):
            x = torch.empty(1000)
            x = x + torch.empty(1000)

    assert memory.peak_bytes(run) == 4 * 3000


@pytest.mark.parametrize("size", [10, 1000, 1_000_000])
def test_peak_counts_the_gradient_of_a_step_that_frees_the_one_before(size) -> None:
    parameter = torch.zeros(size, requires_grad=True)

    def run() -> None:
        parameter.grad = None
        parameter.grad = torch.ones(size)

    assert memory.peak_bytes(run) == 4 * size


def test_recurrences_keep_to_their_memory() -> None:
    """In units of all states: the states, a loss's gradient, and little else; or only that little."""
    peaks = memory.contenders(48, 32, 1000)
    assert peaks["all states read"] < 2.5
    assert peaks["last states read"] < 1.5
    assert peaks["last states read, checkpoint_every='auto', return_output=False"] < 0.15
    assert peaks["torch.nn.RNN, all states read"] > peaks["all states read"]


def test_missing_data_says_what_to_put_where(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", os.fspath(tmp_path))
    with pytest.raises(data.DataError, match=r"expected ptb/ptb.train.txt.* download shakespeare"):
        characters.characters(10)


@pytest.mark.parametrize("module", [runner, memory, dynamics, sparse_radius, norms])
@pytest.mark.parametrize("commit", ["0" * 40 + "-dirty", "unknown"])
def test_numbers_of_changed_code_are_not_written_among_the_committed_ones(
    module, commit, monkeypatch
) -> None:
    monkeypatch.setattr(record, "commit", lambda: commit)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick"])
    with pytest.raises(SystemExit, match=rf"expected numbers of committed code, got commit {commit}"):
        module.main()


def test_commit_is_dirty_once_code_has_changed_but_not_for_numbers_and_pages(monkeypatch, tmp_path) -> None:
    def git(*arguments):
        names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    files = {
        name: tmp_path / name for name in ("examples/papers/record.py", "docs/a.md", "spectral_param/a.py")
    }
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.write_text("before")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(record, "__file__", str(files["examples/papers/record.py"]))
    clean = record.commit.__wrapped__()
    assert re.fullmatch("[0-9a-f]{40}", clean)
    files["docs/a.md"].write_text("after")
    assert record.commit.__wrapped__() == clean
    files["spectral_param/a.py"].write_text("after")
    assert record.commit.__wrapped__() == f"{clean}-dirty"


def test_memory_of_a_call_counts_what_numpy_and_torch_hold() -> None:
    def run() -> None:
        np.empty(1_000_000)
        torch.empty(500_000, dtype=torch.float64)

    assert 12e6 <= case.held_bytes(run) < 13e6


def test_registration_is_timed_on_copies() -> None:
    seen = []
    plain = torch.nn.Linear(2, 2)
    layer, seconds = case.registered(plain, lambda copied: (seen.append(copied), time.sleep(0.002)))
    assert layer is seen[-1]
    assert len(set(map(id, [plain, *seen]))) == 5
    assert 0.002 <= seconds < 1


def test_quick_run_of_lipschitz_numbers_resumes(monkeypatch, tmp_path) -> None:
    output = tmp_path / "lipschitz.json"
    monkeypatch.setattr(
        lipschitz, "networks", lambda: {"slope 0": lipschitz.dense((64, 8, 10), torch.nn.ReLU())}
    )
    monkeypatch.setattr("sys.argv", ["benchmarks.lipschitz", "--quick", "--output", str(output)])
    lipschitz.main()
    before = json.loads(output.read_text())
    for numbers in (*before["depth"].values(), *before["digits"].values()):
        assert numbers["attack"] <= numbers["steps"] <= numbers["lmi"] <= numbers["norms"]
    lipschitz.main()
    assert json.loads(output.read_text()) == before
