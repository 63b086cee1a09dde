"""A replay tells a change of the code from rounding."""

from __future__ import annotations

import io
import tarfile

import pytest

from examples.papers import cli, record, replay
from examples.papers.trainer import Trainer

from .helpers import CHARACTERS, arguments, write_row

EPS = 1e-7
NOW = [[1.0, 4.0], [0.9, 3.0], [0.8, 2.0]]
NOISY = [[1.0, 4.0 * (1 + EPS)], [0.9 * (1 + 1e-5), 3.0], [0.8, 2.0]]


def times(numbers, factor):
    """Return the numbers with those of the last step times 1 + factor."""
    return [*numbers[:-1], [x * (1 + factor) for x in numbers[-1]]]


def test_what_grew_from_noise_is_rounding_and_more_is_a_change() -> None:
    # That the noise is small by chance in the last step does not count.
    assert replay.compare(times(NOW, 9e-5), NOW, NOISY, EPS)["same"]
    found = replay.compare(times(NOW, 2e-4), NOW, NOISY, EPS)
    assert (found["same"], found["step"]) == (False, 3)
    assert (found["difference"], found["rounding"]) == pytest.approx((2e-4, 1e-5))
    early = [[1.0 + 1e-5, 4.0], *NOW[1:]]
    assert replay.compare(early, NOW, NOISY, EPS)["step"] == 1, "noise of later steps excuses nothing"
    assert replay.compare(NOW, NOW, NOW, EPS) == {"same": True, "step": 3, "difference": 0, "rounding": EPS}


def test_code_that_takes_fewer_steps_is_an_error() -> None:
    with pytest.raises(replay.ReplayError, match="as many steps of each code, got 2, 3, 3"):
        replay.compare(NOW[:2], NOW, NOW, EPS)


def run(*commits, **changes):
    sessions = [{"commit": commit} for commit in commits]
    environment = {"commit": commits[-1], "dtype": "float32"}
    config = {"network": {"name": "ENRNN"}}
    return {"seed": 3, "environment": environment, "sessions": sessions, "config": config, **changes}


def test_each_commit_of_each_run_counts() -> None:
    runs = [run("a", "b"), run("b-dirty", "c")]
    assert replay.commits(runs) == ["a", "b", "c"]
    same = {commit: {"same": True} for commit in "ab"}
    assert not replay.is_same(runs, {"commits": same}), "one was not replayed"
    assert replay.is_same(runs, {"commits": {**same, "c": {"same": True}}})
    assert not replay.is_same(runs, {"commits": {**same, "c": {"same": False}}})
    assert not replay.is_same(runs, None)
    lost = [run("a", "unknown")]
    assert not replay.is_same(lost, {"commits": same}), "nothing is known of one"
    assert set(replay.verdict(lost, "today", lambda *_: [[1.0, 1.0]] * 2)["commits"]) == {"a"}


def codes(**then):
    """Return what takes steps: of today's code, and of others that differ in the last step."""
    asked = []

    def take(commit, run, dtype, noise=0.0):
        asked.append((commit, dtype, noise > 0))
        if noise:
            return times(NOW, noise)
        return NOW if commit == "today" else times(NOW, then[dtype])

    return take, asked


def test_noise_is_only_asked_for_where_codes_differ() -> None:
    take, asked = codes(float32=0.0)
    found = replay.verdict([run("a")], "today", take)
    assert asked == [("today", "float32", False), ("a", "float32", False)]
    assert (found["dtype"], found["steps"], found["seed"]) == ("float32", 3, 3)
    assert found["commits"]["a"]["same"]


@pytest.mark.parametrize(("double", "same"), [(1e-15, True), (1e-9, False)])
def test_float64_decides_where_float32_differs(double, same) -> None:
    take, asked = codes(float32=1e-3, float64=double)
    found = replay.verdict([run("a")], "today", take)
    assert ("today", "float32", True) in asked
    assert (found["dtype"], found["commits"]["a"]["same"]) == ("float64", same)


def test_float64_decides_where_noise_in_float32_hides_the_first_step() -> None:
    def take(commit, run, dtype, noise=0.0):
        then = 1e-2 if dtype == "float32" else 1e-9
        return [[1 + (2e-3 if noise > 1e-9 else noise) + (0 if commit == "today" else then)]]

    found = replay.verdict([run("a")], "today", take)
    assert (found["dtype"], found["commits"]["a"]["same"]) == ("float64", False)


def test_numbers_of_a_fit_have_no_noise() -> None:
    take, asked = codes(float32=1e-9)
    found = replay.verdict([run("a", config={})], "today", take)
    assert found["commits"]["a"]["same"]
    assert not any(noisy for *_, noisy in asked)
    take, _ = codes(float32=1e-6)
    assert not replay.verdict([run("a", config={})], "today", take)["commits"]["a"]["same"]


def archive(files) -> bytes:
    """Return files, by their names in the archive, as git archives a commit."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, path in files.items():
            tar.add(path, name, filter=lambda i: None if "__pycache__" in i.name else i)
    return file.getvalue()


@pytest.mark.nightly
def test_first_steps_are_those_of_the_code_in_the_archive(monkeypatch, tmp_path) -> None:
    # The tree of today stands for that of any commit: a test may run where there is no history.
    names = ("spectral_param", "examples/papers", "examples/__init__.py")
    tree = archive({name: replay.ROOT / name for name in names})
    monkeypatch.setattr(replay, "_git", lambda *arguments: tree)
    row = write_row(tmp_path, CHARACTERS, "characters")
    plain, step = [], Trainer.train_step

    def noted(self):
        step(self)
        plain.append([self.last["loss"], self.last["gradient"]])

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", noted)
        assert cli.main(arguments(tmp_path, row, "--seed", "1", "--dtype", "float64")) == 0
    noisy = replay.first_steps("any", {"row": row, "seed": 1}, "float64", 1e-9, steps=4)
    assert len(noisy) == 4
    found = replay.compare(noisy, plain[:4], plain[:4], 1e-9)
    assert 0 < found["difference"] < 1e-4


LIBRARY = """
class Trainer:
    last = {"loss": 1.0, "gradient": 2.0}
    def train_step(self): pass
def main(arguments):
    if "absent" in arguments: raise SystemExit("error: absent is no row")
    while True: Trainer().train_step()
"""


@pytest.mark.nightly
def test_code_that_does_not_run_is_an_error(monkeypatch, tmp_path) -> None:
    """Code of a few lines, which starts soon."""
    files = dict.fromkeys(("examples/papers/cli.py", "examples/papers/trainer.py"), "from .code import *")
    files |= {
        "examples/papers/code.py": LIBRARY,
        "examples/__init__.py": "",
        "spectral_param/__init__.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tree = archive({name: tmp_path / name for name in files})
    monkeypatch.setattr(replay, "_git", lambda *arguments: tree)
    with pytest.raises(replay.ReplayError, match=r"absent at any: expected 4 steps, got: .*absent"):
        replay.first_steps("any", {"row": "absent", "seed": 1}, "float64", steps=4)


def test_history_that_is_missing_is_an_error(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(replay, "ROOT", tmp_path)
    with pytest.raises(replay.ReplayError, match=r"expected the history of the repository.*git fetch"):
        replay.first_steps("0" * 40, {"row": "any", "seed": 0}, "float32")


def test_command_replays_what_is_new_and_says_what_it_found(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(replay, "REPLAYS", tmp_path / "replays.json")
    monkeypatch.setattr(replay, "_git", lambda *arguments: b"today\n")
    take, asked = codes(float32=0.0)
    monkeypatch.setattr(replay.verdict, "__defaults__", (take,))
    record.write(replay.REPLAYS, {})
    monkeypatch.setattr(record, "read_all", lambda _: {"a-row": [run("a")], "another": [run("a")]})
    assert cli.main(["replay", "a-row"]) == 0
    assert (
        "a-row, replayed with seed 3 in float32, 3 steps, against commit today: a same to"
        in capsys.readouterr().out
    )
    assert list(replay.read()) == ["a-row"]
    asked.clear()
    assert cli.main(["replay", "--new"]) == 0
    assert list(replay.read()) == ["a-row", "another"]
    assert len(asked) == 2
    assert cli.main(["replay", "unknown"]) == 1
    assert "expected rows that have been run, see `list`; got unknown" in capsys.readouterr().err
