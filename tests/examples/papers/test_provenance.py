"""Which runs are older than the code of their network; none of these tests needs the history."""

from __future__ import annotations

from examples.papers import config, networks, provenance

ROW = config.load("mnist-scornn-170")
RUN = {"row": ROW.name, "seed": 0, "environment": {"commit": "a" * 40}}


def today(commit: str, path: str) -> str | None:
    return (provenance.ROOT / path).read_text(encoding="utf-8")


def test_every_row_has_sources_that_exist() -> None:
    for row in config.load_all():
        found = provenance.sources(row)
        assert bool(found) == (row.network.get("name") not in ("GRU", "LSTM")), row.name
        for path, name in found:
            assert not name or f"class {name}(" in today("", path)
    assert set(provenance.OTHERS) - {"", "GORU"} == {*networks.BASELINES, *networks.BUILT}


def test_a_run_is_older_once_a_file_computes_something_else() -> None:
    cayley = "spectral_param/functional/cayley.py"
    assert not provenance.is_older(ROW, RUN, today)
    assert provenance.is_older(ROW, RUN, lambda commit, path: None if path == cayley else today(commit, path))
    changed = lambda commit, path: today(commit, path) + ("x = 1\n" if path == cayley else "")  # noqa: E731
    assert provenance.is_older(ROW, RUN, changed)
    assert not provenance.is_older(config.load("mnist-lstm-128"), RUN, changed)
    assert not provenance.is_older(config.load("pmnist-exprnn-512"), RUN, changed)


def test_every_session_of_a_run_counts() -> None:
    sessions = [{"commit": "a" * 40}, {"commit": "b" * 40}]
    only_today = lambda commit, path: today(commit, path) if commit[0] == "b" else None  # noqa: E731
    assert provenance.is_older(ROW, {**RUN, "sessions": sessions}, only_today)
    assert not provenance.is_older(ROW, {**RUN, "sessions": sessions[1:]}, only_today)


def test_words_are_no_code() -> None:
    before = '''"""About."""
import this

def f(x):
    """Old words."""
    if x < 0:
        raise ValueError("old words")
    return 2 * x  # why
'''
    after = before.replace("old words", "new words").replace("Old words", "New words").replace("# why", "")
    assert provenance.code(after.replace("import this", "import that"), "") == provenance.code(before, "")
    assert provenance.code(after.replace("2 * x", "3 * x"), "") != provenance.code(before, "")
    assert provenance.code(after.replace("x < 0", "x < 1"), "") != provenance.code(before, "")


def test_only_the_named_class_counts() -> None:
    text = "class A:\n    n = 1\n\nclass B:\n    n = 1\n"
    other = text.replace("class B:\n    n = 1", "class B:\n    n = 2")
    assert provenance.code(text, "A") == provenance.code(other, "A")
    assert provenance.code(text, "B") != provenance.code(other, "B")


def test_without_history_the_file_stays_as_it_is(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "older_runs.json"
    file.write_text('{"mnist-scornn-170": [0, 2]}')
    monkeypatch.setattr(provenance, "OLDER", file)
    monkeypatch.setattr(provenance, "has_history", lambda: False)
    provenance.update([ROW], {ROW.name: [RUN]})
    assert provenance.read() == {(ROW.name, 0), (ROW.name, 2)}
    assert "stays as it is" in capsys.readouterr().out
    monkeypatch.setattr(provenance, "has_history", lambda: True)
    monkeypatch.setattr(provenance, "is_older", lambda row, run: run["seed"] == 0)
    provenance.update([ROW], {ROW.name: [RUN, {**RUN, "seed": 1}]})
    assert provenance.read() == {(ROW.name, 0)}
