"""The benchmarks run, and the pages of costs, networks and stable fits say what the committed numbers say."""

import dataclasses
import json
import os
import re
import subprocess
import time
from pathlib import Path

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
    dynamics_forecasts_table,
    dynamics_table,
    memory,
    networks,
    plot,
    table,
)
from benchmarks import run as runner
from benchmarks import sparse as sparse_radius
from examples.papers import data, record
from examples.papers.networks import BASELINES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def text(monkeypatch, tmp_path):
    """A text to train on where the real ones are not."""
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text("to be or not to be, that is the question. " * 2000)
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))


def test_quick_run_writes_numbers_and_page(text, monkeypatch, tmp_path, capsys) -> None:
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
    monkeypatch.setattr(plot, "RESULTS", tmp_path)
    for title, points in costs_table.curves(results).items():
        axes = plot.growth(title)
        assert [line.get_label() for line in axes.lines] == list(points[0][2]["contenders"])
    axes = plot.relative(costs_table.NETWORKS)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["torch.nn.RNN", "torch.nn.LSTM"]
    assert len(axes.get_yticklabels()) == 3

    output = tmp_path / "memory.json"
    monkeypatch.setattr("sys.argv", ["benchmarks.memory", "--quick", "--output", str(output)])
    memory.main()
    peaks = json.loads(output.read_text())
    assert set(peaks["environment"]) >= {"commit", "torch"}
    written = costs_table.pages(results, peaks, NO_STEPS)
    page = "".join(written.values())
    assert "ENRNN on characters:" in written["costs_networks.md"]
    assert "| last states read | " in page
    assert "The weight of a new `Linear`, float64:" in page
    assert "| | solver auto: registration | solver dense: registration | solver auto: megabytes |" in page
    assert "Other measurements" not in page, "every case has its section"


def test_quick_run_of_sparse_matrices(monkeypatch, tmp_path) -> None:
    output = tmp_path / "sparse.json"
    monkeypatch.setattr("sys.argv", ["benchmarks.sparse", "--quick", "--output", str(output)])
    sparse_radius.main()
    results = json.loads(output.read_text())
    assert set(results) == set(sparse_radius.KINDS)
    assert all(result["wrong"] == 0 for result in results.values())
    assert all(set(result["environment"]) >= {"commit", "scipy"} for result in results.values())


def test_committed_numbers_of_sparse_matrices() -> None:
    results = json.loads((ROOT / "benchmarks/results/sparse.json").read_text())
    assert set(results) == set(sparse_radius.KINDS)
    assert all(len(result["matrices"]) == 10 for result in results.values())
    assert all(result["wrong"] == 0 for result in results.values())


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


def test_help_writes_no_pages(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(table, "DOCS", tmp_path)
    monkeypatch.setattr("sys.argv", ["table", "--help"])
    with pytest.raises(SystemExit, match="0"):
        table.main()
    assert "usage: python -m benchmarks.table" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def test_pages_are_those_of_the_committed_numbers() -> None:
    results, peaks, steps, dynamics, forecasts = (
        json.loads((ROOT / "benchmarks/results" / name).read_text())
        for name in ("cpu.json", "memory.json", "device.json", "dynamics.json", "forecasts.json")
    )
    for name, page in costs_table.pages(results, peaks, steps).items():
        assert (ROOT / "docs" / name).read_text() == page
    assert (ROOT / "docs/networks.md").read_text() == table.networks_page(results)
    assert (ROOT / "docs/dynamics_compared.md").read_text() == dynamics_forecasts_table.page(forecasts)
    assert (ROOT / "docs/dynamics_one_step.md").read_text() == dynamics_table.page(dynamics)


NO_MEMORY = {"peaks": {"": {}}, "environment": {}}
NO_STEPS = {"steps": {}}


def measured(curve=None, facts=(), **seconds):
    """Return a result with these medians."""
    contenders = {name: {"median": time, "least": time, "most": time} for name, time in seconds.items()}
    return {
        "contenders": contenders,
        "repeats": 3,
        "environment": {"cores": 7},
        "facts": dict(facts),
        "curve": curve,
    }


def test_costs_page_has_a_row_for_each_case_and_the_ratios_of_the_ends() -> None:
    plain = {n: {"ours": 0.002 * n, "plain way": 0.001} for n in (1, 2, 4)}
    results = {f"{n}": measured((costs_table.PLAIN, "n", n), **times) for n, times in plain.items()}
    name = "spectral radius, forward and backward, n = 8, steps"
    autograd = {"autograd through torch.linalg.eigvals": 0.004}
    results[f"{name} 1 to 2"] = measured(
        facts={"largest |ρ(W) - 1|, all steps": 2e-7}, tracked=0.001, **autograd
    )
    results[f"{name} 3 to 4"] = measured(tracked=0.002, **autograd)
    results["of a new kind"] = measured(ours=0.5, theirs=3.0)
    page = costs_table.pages(results, NO_MEMORY, NO_STEPS)["costs.md"]
    assert "| `SpectralRadiusNorm`, layer | plain way | 2 (n = 1) | 8 (n = 4) |" in page
    assert "| spectral radius alone, in training | plain way | 0.25 to 0.5 (n = 8) |  |" in page
    assert "| n = 2 | 4 | 1 |" in page
    assert r"| | tracked | autograd through torch.linalg.eigvals | largest \|ρ(W) - 1\| |" in page
    assert "| n = 8, steps 1 to 2 | 1 | 4 | 2.0e-07 |" in page
    assert "| n = 8, steps 3 to 4 | 2 | 4 |  |" in page
    assert "| of a new kind | 500 | 3000 |" in page.split("## Other measurements")[1]
    assert "Adversarial" not in page
    assert page.count("3 repeats; cores 7.") == 1


def fits(reached=1.0, **ratios):
    """Return the fits of a problem of discrete time; an infinite ratio is that of an unstable fit."""
    return {
        name: {
            "ratio": ratio,
            "reached": 1.5 if ratio == float("inf") else reached,
            "finished": True,
            "cpu_seconds": 0.25,
            "bytes": 2**20,
            "growth": 3.0,
        }
        for name, ratio in {"least squares": float("inf"), **ratios}.items()
    }


def test_page_of_stable_fits_counts_what_each_method_reaches() -> None:
    inf = float("inf")
    every = [
        fits(rescaling=3.0, clipping=2.0, SOC=inf, fit_stable=1.5),
        fits(rescaling=3.0, clipping=1.25, SOC=inf, fit_stable=1.5),
        fits(rescaling=1.5, clipping=1.75, SOC=1.25, fit_stable=1.25),
    ]
    for found in every:
        found["fit_stable, radius=0.999"] = {**found["fit_stable"], "growth": 4.0}
    results = {
        f"texture, n = 2, {i} frames": {"fits": found, "seconds_allowed": 10.0, "environment": {"cores": 7}}
        for i, found in enumerate(every)
    }
    forecast = {"fit_stable": 0.5, "horizon='cv'": 0.2, "BOPDMD, stable": 0.1, "no change": 1.5}
    methods = {name: {"error": error, "cpu_seconds": 0.25} for name, error in forecast.items()}
    forecasts = {"oscillators, 60 rows": {"fits": methods, "environment": {"cores": 9}}}
    page = dynamics_table.page(results) + dynamics_forecasts_table.page(forecasts)
    words = " ".join(page.split())
    assert "stable in 3 of 3 problems. In 2 of them, no other stable method" in words
    assert "| clipping | 3 | 1 | 750,000 | 0.25, 0.25 |" in page
    assert "| SOC | 1 | 1 | ∞ | 0.25, 0.25 |" in page
    assert "| `fit_stable` | 3 | 2 | 500,000 | 0.25, 0.25 |" in page
    assert "within 5 % of the best of all methods in 0 of 1 problems, and the best in 0." in words
    assert "more than 1 % in 0." in words
    assert "| no change | 15; 0 | 0.25, 0.25 |" in page
    assert "| oscillators, 60 rows | 0.2 | BOPDMD, stable, 0.1 | 0.5 | 1.5 |" in page
    assert "- cores 9\n" in page
    assert "raised the growth in 3 of 3 problems" in page
    assert "Continuous time" not in page
    assert "- cores 7\n" in page


def test_figure_of_stable_fits_has_a_row_for_each_method() -> None:
    (axes,) = plot.stable_fits().axes
    assert len(axes.get_yticklabels()) == len(dynamics_table.METHODS) - 1
    assert axes.lines
    (axes,) = plot.forecasts().axes
    assert len(axes.get_yticklabels()) == len(dynamics_forecasts_table.METHODS)
    assert axes.lines


def rows_of_the_networks(results) -> dict[str, list[str]]:
    lines = [line for line in table.networks_page(results).splitlines() if line.startswith("| ")][1:]
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {re.findall(r"\w+", name)[-1]: rest for name, *rest in cells}


def test_networks_page_has_the_measured_ratios_and_says_what_is_not_measured() -> None:
    n, other = networks.SIZES
    times = {name: {"median": 0.001 * (i + 1)} for i, name in enumerate(networks.SYSTEMS)}
    contenders = times | {networks.BASELINE: {"median": 0.002}}
    measured = {
        "contenders": contenders,
        "repeats": 3,
        "environment": {"cores": 7},
        "facts": {},
        "curve": None,
    }
    results = {networks.name(n): measured}
    rows = rows_of_the_networks(results)
    assert list(rows) == list(networks.SYSTEMS)
    assert [row[4] for row in rows.values()] == [f"{(i + 1) / 2:.2g}" for i in range(len(rows))]
    assert {row[5] for row in rows.values()} == {"not measured"}
    page = table.networks_page(results)
    assert f"n = {n}: `torch.nn.RNN` took 2 milliseconds. 3 repeats; cores 7." in page
    assert f"n = {other}: `torch" not in page
    assert "of the networks" not in "".join(costs_table.pages(results, NO_MEMORY, NO_STEPS).values())


def test_networks_page_has_every_network() -> None:
    parts = {"BlockRNN", "BlockRNNCell", "GORUCell", "ModReLU", "SequenceLayer"}
    assert set(networks.SYSTEMS) == (set(sp.nn.__all__) - parts) | set(BASELINES)


@pytest.mark.parametrize("name", networks.SYSTEMS)
@pytest.mark.parametrize("n", [10, 16])
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


@pytest.mark.parametrize("module", [runner, memory, dynamics, sparse_radius])
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
