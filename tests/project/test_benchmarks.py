"""The benchmarks run, write each number with its origin, and find what is stale and what differs."""

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
from benchmarks import results, runner, sample, table
from benchmarks.cases import case, networks
from benchmarks.measures import cpu, guarantees, lipschitz, measure, memory, subjects
from benchmarks.problems import characters
from benchmarks.task import Task
from examples.papers import data, origin, record

FACTS = {"date", "commit", "processor", "cores", "threads", "python", "torch", "spectral_param"}
LONG = (
    "after_step",
    "batch_norms",
    "choice",
    "cpu",
    "deployed",
    "device",
    "dynamics",
    "forecasts",
    "gates",
    "groups",
    "guarantees",
    "lipschitz",
    "mixing",
    "modes",
    "nearest_gates",
    "nonnormal",
    "norms",
    "paths",
    "sparse",
    "stable_weights",
    "states",
    "steps",
    "systems",
)


@pytest.fixture
def text(monkeypatch, tmp_path):
    """A text and a recording to train on where the real ones are not."""
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "input.txt").write_text("to be or not to be, that is the question. " * 2000)
    (tmp_path / "sysid").mkdir()
    rows = np.sin(np.arange(300)[:, None] / (3, 5, 7, 9))
    np.savetxt(tmp_path / "sysid" / "cascaded_tanks.csv", rows, delimiter=",", header="u,v,y,w")
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))


@pytest.fixture
def reading(monkeypatch, tmp_path):
    """Tables are those of the numbers in this folder."""
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    table.load.cache_clear()
    yield tmp_path
    table.load.cache_clear()


# The runner ---------------------------------------------------------------------------------------


def by_length():
    for each in subjects():
        measure(each)  # Some register a device. Autograd counts devices at its first backward pass.
    return [pytest.param(each, marks=pytest.mark.nightly) if each in LONG else each for each in subjects()]


@pytest.mark.parametrize("subject", by_length())
def test_quick_run_writes_numbers_with_their_origin_and_goes_on_where_it_was(
    subject, text, reading, capsys
) -> None:
    if subject == "device":
        pytest.importorskip("benchmarks.standin", exc_type=ImportError)
    arguments = [subject, "--quick", "--new", "--output", str(reading)]
    failed = runner.main(arguments)
    found = results.read(reading, subject)
    output = capsys.readouterr()
    if subject in ("dynamics", "forecasts"):  # The arm's recordings are not there.
        assert failed
        assert "download franka" in output.err
    else:
        assert not failed
    assert all(f"{subject}: {name}, " in output.out for name in found)
    assert all(result["environment"].keys() >= {*FACTS, "took"} for result in found.values())
    runner.main(arguments)
    assert results.read(reading, subject) == found


TASKS = ("a", "ab", "c")


@pytest.fixture
def calls(monkeypatch):
    """Tasks that say when they run."""
    found = []

    def task(name):
        return Task(name, lambda: found.append((name, torch.get_num_threads())) or {"value": len(found)}, 1)

    monkeypatch.setattr(memory, "tasks", lambda quick: map(task, TASKS))
    monkeypatch.setattr(memory, "DEPENDS", ("benchmarks",))
    return found


def run(tmp_path, *options):
    return runner.main(["memory", "--output", str(tmp_path), *options])


def test_what_is_new_or_stale_is_measured_and_the_rest_kept(calls, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(origin, "commit", lambda: "HEAD")
    monkeypatch.setattr(origin, "has_history", lambda: True)
    run(tmp_path, "--only", "a")
    assert calls == [("a", 1), ("ab", 1)]
    run(tmp_path)
    assert calls[2:] == [("c", 1)]
    found = results.read(tmp_path, "memory")
    found["ab"]["environment"]["commit"] = origin.UNKNOWN
    (tmp_path / "memory.json").write_text(results.text(found))
    assert json.loads(results.text(found)) == found
    assert results.list_stale(["memory"], tmp_path) == 1
    run(tmp_path, "--new")
    assert len(calls) == 3
    run(tmp_path)
    assert calls[3:] == [("ab", 1)]
    run(tmp_path, "--again")
    assert [name for name, _ in calls[4:]] == list(TASKS)
    assert results.list_stale(["memory"], tmp_path) == 0


def test_what_cannot_be_measured_is_said_and_the_others_are(monkeypatch, tmp_path, capsys) -> None:
    def wrong():
        raise AssertionError("expected 1, got 2")

    tasks = [
        Task("wrong", wrong),
        Task("absent", dict, packages=("nosuch",)),
        Task("right", lambda: {"value": 1, "infinite": [-np.inf]}, packages=("numpy",)),
    ]
    monkeypatch.setattr(memory, "tasks", lambda quick: tasks)
    assert run(tmp_path) == 1
    (result,) = results.read(tmp_path, "memory").values()
    assert result["infinite"] == [None]
    assert result["environment"]["numpy"] == np.__version__
    said = capsys.readouterr().err
    assert "memory: wrong: expected 1, got 2" in said
    assert "memory: absent: expected the package nosuch, got none" in said


def test_a_subject_that_is_none_is_refused_and_the_subjects_are_listed(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        runner.main(["nosuch"])
    assert re.search("subject: expected some of .*choice, .*, got nosuch", capsys.readouterr().err)


@pytest.mark.parametrize("commit", ["0" * 40 + "-dirty", "unknown"])
def test_numbers_of_changed_code_are_not_written_among_the_committed_ones(commit, monkeypatch) -> None:
    monkeypatch.setattr(origin, "commit", lambda: commit)
    with pytest.raises(SystemExit, match=rf"expected numbers of committed code, got commit {commit}"):
        runner.main(["--quick", "--output", str(results.RESULTS)])


# Origins ------------------------------------------------------------------------------------------


@pytest.fixture
def repository(monkeypatch, tmp_path):
    """A repository of two files and two commits; returns how git is called there."""

    def git(*arguments):
        names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    for name in ("docs/a.md", "spectral_param/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("before")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    git("commit", "-m", "second", "--allow-empty")
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    asked = (
        origin.commit,
        origin.has_history,
        origin.is_ancestor,
        origin._has_changed,
        origin._has_other_code,
    )
    for function in asked:
        function.cache_clear()
    yield git
    for function in asked:
        function.cache_clear()


def test_commit_is_dirty_once_code_has_changed_but_not_for_numbers_and_pages(repository) -> None:
    clean = origin.commit()
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (origin.ROOT / "docs/a.md").write_text("after")
    origin.commit.cache_clear()
    assert origin.commit() == clean
    (origin.ROOT / "spectral_param/a.py").write_text("after")
    origin.commit.cache_clear()
    assert origin.commit() == f"{clean}-dirty"


def test_a_number_is_stale_once_what_it_depends_on_has_changed(repository) -> None:
    first = repository("rev-parse", "HEAD~")
    (origin.ROOT / "spectral_param/a.py").write_text("after")
    repository("commit", "-a", "-m", "third")
    assert origin.is_stale(first, ["spectral_param"])
    assert not origin.is_stale(first, ["docs"])
    assert not origin.is_stale(first, [".", ":(exclude)spectral_param"])
    assert not origin.is_stale(repository("rev-parse", "HEAD"), ["spectral_param"])
    assert origin.is_stale(origin.UNKNOWN, ["docs"])
    assert origin.is_stale(f"{first}-dirty", ["docs"])


def test_comments_and_docstrings_make_no_number_stale(repository) -> None:
    file = origin.ROOT / "spectral_param/a.py"
    commits = []
    for source in (
        '"""Doc."""\n\n\ndef f(x):\n    """Return x."""\n    return x\n',
        '"""Another."""\n\n\ndef f(x):\n    """Return the same."""\n    # As it is.\n    return x\n',
        '"""Another."""\n\n\ndef f(x):\n    """Return the same."""\n    # As it is.\n    return x + 1\n',
    ):
        file.write_text(source)
        repository("commit", "-a", "-m", "another")
        commits.append(repository("rev-parse", "HEAD"))
        origin._has_changed.cache_clear()
        origin._has_other_code.cache_clear()
        if len(commits) == 2:
            assert not origin.is_stale(commits[0], ["spectral_param"])
    assert origin.is_stale(commits[0], ["spectral_param"])
    assert origin.is_stale(commits[1], ["spectral_param"])


def faults_of(environment):
    """Return what an origin lacks, and its commit if that led to nothing here."""
    if not isinstance(environment, dict) or not environment.keys() >= FACTS:
        return ["no origin"]
    commit = environment["commit"]
    return [] if commit == origin.UNKNOWN or origin.is_ancestor(commit) else [f"{commit} is no ancestor"]


def test_a_lost_commit_and_a_number_without_an_origin_are_found(repository) -> None:
    known = dict.fromkeys(FACTS, "") | {"commit": repository("rev-parse", "HEAD~")}
    assert faults_of(known) == []
    assert faults_of(known | {"commit": "unknown"}) == []
    repository("checkout", "--orphan", "other")
    repository("commit", "-m", "no descendant")
    origin.is_ancestor.cache_clear()
    for commit in (known["commit"], "0" * 40, ""):
        assert faults_of(known | {"commit": commit}) == [f"{commit} is no ancestor"]
    del known["commit"]
    assert faults_of(known) == faults_of(None) == ["no origin"]


@pytest.mark.skipif(not origin.has_history(), reason="needs all commits: no copy of files, no shallow clone")
def test_every_number_has_its_origin_and_every_recorded_commit_is_an_ancestor() -> None:
    origins = [
        (subject, name, result.get("environment"))
        for subject in subjects()
        for name, result in results.read(results.RESULTS, subject).items()
    ]
    for row, runs in record.read_all().items():
        for run in runs:
            origins += [(row, run["seed"], each) for each in (run["environment"], *run.get("sessions", ()))]
    wrong = [(file, name, fault) for file, name, facts in origins for fault in faults_of(facts)]
    assert origins
    assert wrong == []


@pytest.mark.parametrize("subject", subjects())
def test_a_measure_depends_on_paths_that_exist_and_has_a_task_for_each_number(subject) -> None:
    for path in measure(subject).DEPENDS:
        assert (origin.ROOT / path.removeprefix(":(exclude)")).exists(), path
    tasks = [task.name for task in measure(subject).tasks(False)]
    assert len(set(tasks)) == len(tasks)
    assert results.read(results.RESULTS, subject).keys() <= set(tasks)


# A sample -----------------------------------------------------------------------------------------


def test_a_sample_finds_a_number_that_differs_and_no_time(monkeypatch, reading, capsys) -> None:
    found = {"seconds": 1.0, "values": [1.0, 2.0], "count": 3, "noise": 1e-16}
    monkeypatch.setattr(sample, "RESULTS", reading)
    monkeypatch.setattr(memory, "VARIES", "noise", raising=False)
    monkeypatch.setattr(memory, "tasks", lambda quick: [Task(name, lambda: dict(found)) for name in "abcd"])
    run(reading)
    found |= {"seconds": 9.0, "values": (1.001, 2.001), "noise": 0.0}
    assert sample.compared(["memory"], 1) == 0
    found["values"] = [1.0, 2.1]
    assert sample.compared(["memory"], 1) == 1
    output = capsys.readouterr().out
    assert "8 of 12 numbers are the same" in output
    assert "memory: b: values 1: recorded 2, now 2.1" in output


def test_a_sample_is_one_in_so_many_and_another_one_each_day() -> None:
    days = [f"2026-01-{day:02}" for day in range(1, 29)]
    drawn = [{task.name for task, _ in sample.chosen("stable_weights", 20, day)} for day in days]
    lasting = {
        name
        for name, result in results.read(results.RESULTS, "stable_weights").items()
        if sample.lasting("stable_weights", name, result)
    }
    assert lasting == {name for name in results.read(results.RESULTS, "stable_weights") if "regress" in name}
    assert set().union(*drawn) <= lasting
    assert 0.5 < sum(map(len, drawn)) / (len(days) * len(lasting) / 20) < 2
    assert len(set(map(frozenset, drawn))) > 1


# Tables -------------------------------------------------------------------------------------------


def test_a_stale_number_is_marked_on_its_page(calls, reading, monkeypatch) -> None:
    run(reading)
    monkeypatch.setattr(table, "is_stale", lambda subject, result: result["value"] == 2)
    found = table.load("memory")
    assert [table.marked(name, result) for name, result in found.items()] == ["a", "ab †", "c"]
    assert table.marked("all", found.values()) == "all †"
    assert [row[0] for row in table.origins("memory", "c", "a")[1]] == ["c; a †"]


@pytest.mark.nightly
def test_tables_of_costs_are_those_of_their_numbers(text, reading) -> None:
    assert runner.main(["cpu", "memory", "norms", "--quick", "--output", str(reading)]) == 0
    found = table.load("cpu")
    assert len(found) == 35
    rows = [row for result in found.values() for row in result["contenders"].values()]
    assert all(row["least"] <= row["median"] <= row["most"] for row in rows)
    assert all(row["bytes"] > 0 for row in rows)
    registered = {
        name for name, r in found.items() for row in r["contenders"].values() if row["registration"]
    }
    assert sum("SpectralRadiusNorm" in name for name in registered) == 8
    assert sum("ScaledCayley" in name or "orthogonal weight" in name for name in registered) == 2
    errors = [result["facts"].values() for name, result in found.items() if "run" in name]
    assert all(0 <= error < 1e-5 for facts in errors for error in facts)
    for name, result in found.items():
        shown = table.shown(name, result)
        header, rows = cpu.times(shown)
        assert (
            rows[0][0].removesuffix(table.MARK) == ""
        )  # The name is the whole key; longer ones come after it.
        assert set(header) >= {"", *result["contenders"]}
    assert len(memory.peaks()[1]) == 6
    for name in ("attack", "attack, matrices"):
        assert table.load("norms")[name]["above"] <= 4e-7
        assert table.load("norms")[name]["below"] >= -1e-5


def test_certified_networks_have_their_rows(reading) -> None:
    runner.main(["guarantees", "--quick", "--only", "equilibria", "--output", str(reading)])
    assert [row[0].removesuffix(table.MARK) for row in guarantees.fixed_points()[1]] == list(
        guarantees.EQUILIBRIA
    )


# Cases --------------------------------------------------------------------------------------------


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

    assert case.peak_bytes(run) == 4 * 3000


@pytest.mark.parametrize("size", [10, 1000, 1_000_000])
def test_peak_counts_the_gradient_of_a_step_that_frees_the_one_before(size) -> None:
    parameter = torch.zeros(size, requires_grad=True)

    def run() -> None:
        parameter.grad = None
        parameter.grad = torch.ones(size)

    assert case.peak_bytes(run) == 4 * size


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_lipschitz_numbers_are_in_their_order() -> None:
    """No attack above a proof, no proof above the product of norms."""
    wanted = ("layers: 2", "digits: slope 0")
    for task in lipschitz.tasks(quick=True):
        if task.name in wanted:
            numbers = task.run()
            assert numbers["attack"] <= numbers["steps"] <= numbers["lmi"] <= numbers["norms"]
