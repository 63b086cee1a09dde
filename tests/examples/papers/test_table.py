"""The tables of the pages of results say what the result files say."""

from __future__ import annotations

import copy

import matplotlib as mpl
import pytest

from benchmarks.table import markdown
from examples.papers import config, measures, plot, record, table

ROW = config.load("mnist-scornn-170")


def result(row=ROW, seed=0, test=0.975, **changes):
    curve = [
        {
            "step": 1100 * i,
            "epoch": i,
            "seconds": 60.0 * i,
            "loss": 1.0,
            "validation": test - 0.01 / i,
            "test": test - 0.01 / i,
        }
        for i in (1, 2, 3)
    ]
    return {
        "row": row.name,
        "label": row.label,
        "seed": seed,
        "status": "finished",
        "config": row.settings,
        "changed": "",
        "environment": {"date": "2026-01-01", "commit": "0123456789abcdef", "cores": 2},
        "metric": "accuracy",
        "baseline": 0.1,
        "parameters": 16_415,
        "wall_seconds": 7200.0,
        "summary": measures.summary(curve, "accuracy", 0.1),
        "curve": curve,
        **changes,
    }


def replayed(same, *names):
    found = {"same": same, "step": 3, "difference": 2e-3, "rounding": 1e-6}
    replay = {"today": "b" * 40, "seed": 0, "steps": 50, "dtype": "float32"}
    return {name: {**replay, "commits": {"0123456789abcdef": found}} for name in names}


SAME = replayed(True, ROW.name, "mine", "worse", "better", "lstm")


@pytest.fixture
def show(monkeypatch):
    """Return a table, as lines of Markdown, of some rows, results and replays."""

    def shown(name, *arguments, rows=None, results, replays=SAME):
        monkeypatch.setattr(table.config, "load_all", lambda: config_rows if rows is None else rows)
        monkeypatch.setattr(table.record, "read_all", lambda folder: results)
        monkeypatch.setattr(table.replay, "read", lambda: replays)
        header, lines = getattr(table, name)(*arguments)
        return markdown(header, lines)

    config_rows = config.load_all()
    return shown


def test_rows_that_were_not_run_are_in_no_table(show) -> None:
    for name in ("scores mnist", "targets reached", "targets missed", "rows", "runs"):
        assert len(show(*name.split(), results={}).splitlines()) == 2


def test_a_row_with_several_seeds_counts_by_its_median(tmp_path, show) -> None:
    for seed, test in ((2, 0.9785), (0, 0.9765), (1, 0.9750)):
        run = result(seed=seed, test=test)
        record.write(record.path(tmp_path, run["row"], seed), run)
    found = record.read_all(tmp_path)
    assert [run["seed"] for run in found[ROW.name]] == [0, 1, 2]
    spread = "0.97317 (0.97167 to 0.97517, 3 seeds)"
    line = f"scoRNN 170 | {spread} | {spread} | 0.973 in the paper: equal |"
    assert line in show("targets", "reached", results=found)
    text = show("scores", "mnist", results=found)
    paper = "0.973 (Helfrich, Willmott and Ye (2018), table 1)"
    assert f"| scoRNN 170 | 16,415 | best test | 0.97317 (0.97317, 0.97167, 0.97517) | {paper} |" in text
    where = "date 2026-01-01, commit 0123456789ab, cores 2"
    assert f"| `mnist-scornn-170` | 1 | 2 |  | {where} |" in show("runs", results=found)


def test_test_at_best_validation_decides_and_the_best_test_stands_beside_it(show) -> None:
    summary = {"best validation": 0.98, "best test": 0.986, "test at best validation": 0.98}
    goals = [{"measure": "best test", "at_least": bound} for bound in ("0.975", "0.985")]
    row = config.Row("mine", "ENRNN 9/9", "mnist", ROW.task, {"name": "ENRNN"}, goal=goals)
    given = {"rows": [row], "results": {"mine": [result(row, summary=summary)]}}
    start = "| MNIST, pixel by pixel | ENRNN 9/9 | 0.98 | 0.986 |"
    assert f"{start} at least 0.975 |" in show("targets", "reached", **given)
    assert f"{start} at least 0.985 |" in show("targets", "missed", **given)
    assert "| all | 2 | 1 |" in show("counts", **given)


def test_a_target_names_the_rows_that_decided(show) -> None:
    goal = {"measure": "best test", "better_than": ["worse", "better"]}
    network = {"name": "ENRNN"}
    row = config.Row("mine", "ENRNN 9/9", "mnist", ROW.task, network, goal=[goal])
    worse = config.Row("worse", "LSTM 8", "mnist", ROW.task, {"name": "LSTM"})
    better = config.Row("better", "LSTM 9", "mnist", ROW.task, {"name": "LSTM"}, changed="twice the rate")
    given = {
        "rows": [row, worse, better],
        "results": {"mine": [result(row)], "worse": [result(worse, test=0.9)]},
    }
    assert r"| better than LSTM 9 \* (not run) |" in show("targets", "missed", **given)
    assert r"better than LSTM 9 \* (not run): **open** |" in show("scores", "mnist", **given)
    given["results"]["better"] = [result(better, test=0.98)]
    assert r"| better than LSTM 9 \* (0.97667) |" in show("targets", "missed", **given)
    given["results"]["better"] = [result(better, test=0.97)]
    expected = r"| better than LSTM 8 (0.89667), LSTM 9 \* (0.96667) |"
    assert expected in show("targets", "reached", **given)
    assert expected not in show("targets", "missed", **given)


def test_targets_of_networks_to_compare_with_are_in_the_log_alone(show) -> None:
    row = config.Row("lstm", "LSTM 9", "mnist", ROW.task, {"name": "LSTM"}, paper=ROW.paper)
    given = {"rows": [row], "results": {"lstm": [result(row)]}}
    assert "LSTM 9" not in show("targets", "missed", **given)
    text = show("scores", "mnist", **given)
    assert (
        "|  |  | test at best validation | 0.97167 |  | 0.973 in the paper: worse: **not reached** |" in text
    )


def test_only_rows_that_a_replay_does_not_repeat_are_marked(show) -> None:
    given = {"rows": [ROW], "results": {ROW.name: [result(seed=seed, test=0.98) for seed in (0, 1)]}}
    for name in ("targets reached", "scores mnist"):
        for replays, marked in ((SAME, False), (replayed(False, ROW.name), True), ({}, True)):
            text = show(*name.split(), **given, replays=replays)
            assert ("| scoRNN 170 † |" in text) == marked
    text = show("rows", **given, replays=replayed(False, ROW.name))
    assert "0123456789ab **differs**, at step 3 by 2.0e-03 where noise makes 1.0e-06" in text
    assert f"| `{ROW.name}` |  | not replayed |" in show("rows", **given, replays={})


def test_origin_tells_from_which_step_on_a_run_had_another_commit(show) -> None:
    environment = {"date": "2026-01-01", "commit": "a" * 40, "cores": 2}
    sessions = [
        {"from step": 0, **environment},
        {"from step": 50, **environment},
        {"from step": 72, **environment, "commit": "b" * 40},
        {"from step": 90, **environment, "commit": "c" * 40 + "-dirty", "date": "2026-01-02"},
    ]
    last = {name: value for name, value in sessions[-1].items() if name != "from step"}
    results = {ROW.name: [result(environment=last, sessions=sessions)]}
    assert (
        "date 2026-01-01, from step 90 on 2026-01-02, commit aaaaaaaaaaaa, "
        "from step 72 on bbbbbbbbbbbb, from step 90 on cccccccccccc-dirty, cores 2 |"
    ) in show("runs", rows=[ROW], results=results)


def test_scores_of_fewer_utterances_say_of_how_many(show) -> None:
    counts = {"SegSNR utterances": 130, "STOI utterances": 128, "PESQ utterances": 130}
    row = config.load("speech-lstm-158")
    results = {row.name: [result(row, summary={"STOI": 0.8, **counts})]}
    text = show("runs", rows=[row], results=results)
    assert "| STOI of 128 of the 130 utterances |" in text
    assert "SegSNR of" not in text
    counts["STOI utterances"] = 130
    results = {row.name: [result(row, summary={"STOI": 0.8, **counts})]}
    assert "of the 130 utterances" not in show("runs", rows=[row], results=results)


@pytest.mark.parametrize(
    "name", ["timit-enrnn-374-94", "timit-lstm-158", "timit-lstm-468", "timit-scornn-425"]
)
def test_scores_of_speech_on_another_scale_are_no_targets(name, show) -> None:
    row = config.load(name)
    summary = {"SegSNR": 9.0, "STOI": 0.9, "PESQ": 4.0}
    text = show("scores", "timit", rows=[row], results={name: [result(row, summary=summary)]})
    assert {line.split("|")[3].strip() for line in text.splitlines() if "in the paper: " in line} == {"STOI"}


def test_divergence_and_changes_are_said(show) -> None:
    network = {"name": "ENRNN"}
    row = config.Row(
        "mine", "ENRNN 9/9", "mnist", ROW.task, network, changed="twice the rate", paper=ROW.paper
    )
    run = result(row, status="diverged", diverged="diverged at step 7: loss nan", summary={})
    given = {"rows": [row], "results": {"mine": [run]}}
    missed = show("targets", "missed", **given)
    assert r"| ENRNN 9/9 \* | never |  | best test: 0.973 in the paper: worse |" in missed
    assert r"| ENRNN 9/9 \* | 16,415 | best test | never |" in show("scores", "mnist", **given)
    assert "| `mine` | 0 | 2 | diverged at step 7: loss nan |" in show("runs", **given)
    assert "| `mine` | twice the rate |" in show("rows", **given)


@pytest.mark.parametrize(
    ("ours", "printed", "higher", "verdict"),
    [
        (0.9734, "0.973", True, "equal"),
        (0.9736, "0.973", True, "better"),
        (0.9724, "0.973", True, "worse"),
        (1.39, "1.40", False, "better"),
        (1.4049, "1.40", False, "equal"),
        (1.406, "1.40", False, "worse"),
        (float("inf"), "1.40", False, "worse"),
        (1e30, "0.13", False, "worse"),
        (1e308, "0.13", True, "better"),
        (5e-324, "0.13", False, "better"),
    ],
)
def test_verdict_is_equal_where_ours_rounds_to_the_papers(ours, printed, higher, verdict) -> None:
    assert measures.compare(ours, printed, higher) == verdict


def test_zeros_that_come_of_rounding_are_shown() -> None:
    numbers = (1.41996, 0.9607, 4.9, 1.0, 1.1270e-5 + 1e-11, float("inf"))
    assert [table._number(x) for x in numbers] == ["1.4200", "0.9607", "4.9", "1", "1.1270e-05", "never"]


def test_goals_are_reached_missed_or_open() -> None:
    results = {"a": [result(test=0.98)], "b": [result(test=0.99)]}

    def state(row, **bound):
        return measures.reached({"measure": "best test", **bound}, results, row, "accuracy")

    assert state("a", at_least="0.97") is True
    assert state("a", at_least="0.985") is False
    assert state("a", below="0.98") is True
    assert state("a", at_most="0.9") is False
    assert state("b", better_than=["a"]) is True
    assert state("a", better_than=["b"]) is False
    assert state("a", not_above=["b"]) is False
    assert state("b", better_than=["a", "c"]) is None
    assert state("a", better_than=["b", "c"]) is False  # whatever c will have
    assert state("c", at_least="0.97") is None
    results["d"] = [result(status="diverged", summary={"last loss": None})]
    for bound in ({"at_least": "0.1"}, {"not_above": ["d"]}):
        assert measures.reached({"measure": "last loss", **bound}, results, "d", "MSE") is False
    with pytest.raises(ValueError, match="expected a bound"):
        state("a")


def test_summary_of_a_curve() -> None:
    points = [(1, 0.5, 0.16), (2, 0.2, 0.08), (3, 0.3, 0.05)]
    curve = [{"epoch": e, "validation": v, "test": t} for e, v, t in points]
    found = measures.summary(curve, "MSE", 1 / 6)
    assert found["best test"] == 0.05
    assert found["test at best validation"] == 0.08
    assert found["epochs to half the baseline"] == 2
    assert measures.summary(curve[:1], "MSE", 1 / 6)["epochs to half the baseline"] is None
    assert measures.summary([], "MSE", 1 / 6) == {}
    for metric in ("accuracy", "bits per character"):
        assert "epochs to half the baseline" not in measures.summary(curve, metric, 0.5)


@pytest.mark.parametrize("metric", ["MSE", "accuracy"])
def test_points_that_are_not_finite_are_never_the_best(metric) -> None:
    nan, inf = float("nan"), float("inf")
    points = [(nan, nan), (inf, inf), (-inf, -inf), (0.5, 0.25), (nan, nan)]
    curve = [{"epoch": e, "validation": v, "test": t} for e, (v, t) in enumerate(points)]
    found = measures.summary(curve, metric, 0.0)
    assert (found["best validation"], found["best test"]) == (0.5, 0.25)
    assert found["test at best validation"] == 0.25
    found = measures.summary(curve[:2], metric, 0.0)
    assert found["best validation"] is found["best test"] is found["test at best validation"] is None
    assert measures.values([result(summary=found, metric=metric)], "best test")[0] in (inf, -inf)


def test_figure_has_a_line_for_each_seed_and_one_entry_for_each_row(tmp_path, monkeypatch) -> None:
    mpl.use("Agg")
    monkeypatch.setattr(plot.record, "RESULTS", tmp_path)
    other = config.load("mnist-lstm-128")
    for run in (result(), result(seed=1), result(other)):
        record.write(record.path(tmp_path, run["row"], run["seed"]), run)
    axes = plot.curves("mnist")
    assert len(axes.lines) == 3
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["LSTM 128", "scoRNN 170"]
    mse = copy.deepcopy(result(config.load("adding-750-lstm-60")))
    mse.update(metric="MSE", baseline=1 / 6)
    record.write(record.path(tmp_path, mse["row"], 0), mse)
    axes = plot.curves("adding-750")
    assert axes.get_yscale() == "log"
    assert len(axes.lines) == 2, "one curve and the baseline"


def test_overview_has_a_dot_for_each_seed_and_a_diamond_for_each_paper(tmp_path, monkeypatch) -> None:
    mpl.use("Agg")
    monkeypatch.setattr(plot.record, "RESULTS", tmp_path)
    for run in (result(test=0.97), result(seed=1, test=0.98), result(config.load("mnist-enrnn-95-63"))):
        record.write(record.path(tmp_path, run["row"], run["seed"]), run)
    (axes,) = plot.overview().axes
    assert [text.get_text() for text in axes.texts] == ["ENRNN 95/63", "scoRNN 170"]
    drawn = [list(line.get_xdata()) for line in axes.lines]
    assert pytest.approx([0.97 - 0.01 / 3, 0.98 - 0.01 / 3]) in drawn
    assert [0.973] in drawn


def test_numbers_that_are_not_finite_become_null(tmp_path) -> None:
    record.write(tmp_path / "a.json", {"a": [float("nan"), 1.0], "b": {"c": float("inf")}})
    assert (
        tmp_path / "a.json"
    ).read_text() == '{\n "a": [\n  null,\n  1.0\n ],\n "b": {\n  "c": null\n }\n}\n'
