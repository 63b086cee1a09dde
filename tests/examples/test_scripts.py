import importlib.util
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

import spectral_param
from examples.papers import networks

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DATA = Path(os.environ.get("SPECTRAL_PARAM_DATA") or ROOT.parent / "shared" / "data")
ARM_FILE = Path("franka", "Franka_TrainingData.mat")


@pytest.fixture(scope="module")
def dynamics():
    spec = importlib.util.spec_from_file_location("stable_dynamics", EXAMPLES / "stable_dynamics.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def only_the_data_that_a_test_names(monkeypatch):
    monkeypatch.delenv("SPECTRAL_PARAM_DATA", raising=False)


def run_script(name, arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        torch.set_num_threads(threads)


def check_fits(dynamics, pairs):
    least, rescaled, constrained = dynamics.fit_all(pairs).values()
    assert dynamics.spectral_radius(least) > 1.001
    assert dynamics.spectral_radius(rescaled) <= 1 + 1e-9
    assert dynamics.spectral_radius(constrained) <= 1 + 1e-9
    X, Y, U = pairs
    B = np.linalg.lstsq(U, Y - X @ constrained.T, rcond=None)[0]
    residual = np.linalg.norm(Y - X @ constrained.T - U @ B)
    least_residual = np.linalg.norm(
        Y - np.hstack([X, U]) @ np.linalg.lstsq(np.hstack([X, U]), Y, rcond=None)[0]
    )
    assert residual == pytest.approx(dynamics.residual(constrained, pairs), rel=1e-9)
    assert residual <= 1.001 * least_residual
    assert dynamics.residual(rescaled, pairs) > 1.01 * least_residual
    start = pairs.X[0]
    assert dynamics.roll_out(least, start)[-1] > 5 * np.linalg.norm(start)
    assert dynamics.roll_out(constrained, start).max() < 2 * np.linalg.norm(start)
    return least_residual


def test_constrained_fit_of_the_simulated_chain_keeps_its_promise(dynamics):
    check_fits(dynamics, dynamics.simulate_chain())


@pytest.mark.skipif(not (DATA / ARM_FILE).is_file(), reason=f"needs {ARM_FILE} in $SPECTRAL_PARAM_DATA")
def test_constrained_fit_of_the_robot_arm_keeps_its_promise(dynamics):
    least_residual = check_fits(dynamics, dynamics.load_arm(DATA))
    assert least_residual == pytest.approx(2.160643, abs=1e-6)


def test_stable_dynamics_prints_its_table_and_draws(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_script("stable_dynamics.py", ["--output", tmp_path / "new"], monkeypatch)
    assert exit_info.value.code == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert "This is simulated." in first
    assert "--data" in first
    assert [line[:20].strip() for line in lines[2:5]] == [
        "least squares",
        "rescaled, A / ρ(A)",
        "constrained",
    ]
    _, ratio, radius, _ = map(float, lines[4][20:].split())
    assert ratio <= 1.001
    assert radius <= 1 + 1e-9
    assert (tmp_path / "new" / "stable_dynamics.png").stat().st_size > 10_000


def test_stable_dynamics_fails_when_the_fit_misses(dynamics, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dynamics, "fit_constrained", lambda A, pairs: A)
    assert dynamics.main(["--output", str(tmp_path)]) == 1
    assert "Missed: expected a ratio <= 1.001" in capsys.readouterr().err


def good_arrays():
    rng = np.random.default_rng(0)
    return {key: rng.standard_normal((30, n)) for key, n in (("X", 4), ("Y", 4), ("U", 2))}


BAD_ARRAYS = {
    "missing key": ({"U": None}, "array U of finite real numbers, got no such array"),
    "NaN": ({"Y": np.full((30, 4), np.nan)}, "array Y of finite real numbers, got something else"),
    "text": ({"X": "joint angles"}, "array X of finite real numbers, got something else"),
    "rows": ({"U": np.ones((29, 2))}, r"got \(30, 4\), \(30, 4\) and \(29, 2\)"),
    "columns": ({"Y": np.ones((30, 3))}, r"got \(30, 4\), \(30, 3\) and \(30, 2\)"),
    "rank": ({"U": np.ones((30, 2))}, "of rank 6, got 5"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_named(dynamics, tmp_path, case):
    replaced, message = BAD_ARRAYS[case]
    content = {key: M for key, M in (good_arrays() | replaced).items() if M is not None}
    (tmp_path / "franka").mkdir()
    scipy.io.savemat(tmp_path / ARM_FILE, content)
    with pytest.raises(ValueError, match=message):
        dynamics.fit_all(dynamics.load_arm(tmp_path))


def test_missing_or_damaged_file_is_one_line_on_stderr(dynamics, tmp_path, capsys):
    arguments = ["--data", str(tmp_path), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="2"):
        dynamics.main(arguments)
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / ARM_FILE} is missing. Put it there" in message
    assert "https://" in message

    (tmp_path / "franka").mkdir()
    (tmp_path / ARM_FILE).write_bytes(b"not a MATLAB file" * 20)
    with pytest.raises(SystemExit, match="2"):
        dynamics.main(arguments)
    assert "expected a MATLAB file, version 7 or older" in capsys.readouterr().err.splitlines()[-1]


def test_output_that_is_a_file_is_one_line_on_stderr(dynamics, tmp_path, capsys):
    (tmp_path / "taken").touch()
    with pytest.raises(SystemExit, match="2"):
        dynamics.main(["--output", str(tmp_path / "taken")])
    assert "taken" in capsys.readouterr().err.splitlines()[-1]


def test_existing_model_keeps_the_constraint_through_training_saving_and_removal(monkeypatch, capsys):
    run_script("existing_model.py", ["--steps", "3"], monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    radii = {line.split()[0]: list(map(float, line.split()[1:])) for line in [*lines[1:3], lines[4]]}
    assert max(radii["before"]) < 0.9
    assert radii["constrained"] == radii["trained"] == [0.95] * 4
    first, second = lines[3].removeprefix("outputs:").split("  ")[1:]
    assert first == second == "(64, 4) torch.float32"
    assert "ms before" in lines[5]
    assert lines[6] == "loaded, same outputs: True"
    assert lines[7].startswith("deployed, same outputs: True")
    assert "Parametrized" not in lines[7]


def test_existing_model_names_a_bad_number_of_steps(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_script("existing_model.py", ["--steps", "0"], monkeypatch)
    assert "--steps: expected at least 1, got 0" in capsys.readouterr().err


def test_orthogonality_drift_of_the_full_capacity_urnn_alone(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_script("orthogonality_drift.py", ["--steps", "40", "--output", tmp_path / "new"], monkeypatch)
    assert exit_info.value.code == 0
    lines = {line[:20].strip(): line[20:].split() for line in capsys.readouterr().out.splitlines()}
    start, end, *_ = map(float, lines["full-capacity uRNN"][:3])
    assert end > 1.5 * start
    assert float(lines["scoRNN"][2]) < 128 * torch.finfo(torch.float32).eps
    assert (tmp_path / "new" / "orthogonality_drift.png").stat().st_size > 10_000


def test_orthogonality_drift_names_a_bad_number_of_steps(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_script("orthogonality_drift.py", ["--steps", "0"], monkeypatch)
    assert "--steps: expected at least 1, got 0" in capsys.readouterr().err


def test_swap_the_recurrence_trains_every_network(monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_script("swap_the_recurrence.py", ["--quick", "--units", "10"], monkeypatch)
    assert exit_info.value.code == 0
    output = capsys.readouterr()
    header, *lines = output.out.splitlines()
    assert header.split() == ["system", "parameters", "test", "accuracy", "seconds", "per", "epoch"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    parts = {"BlockRNN", "BlockRNNCell", "GORUCell", "ModReLU", "SequenceLayer"}
    assert set(rows) == (set(spectral_param.nn.__all__) - parts) | set(networks.BASELINES)
    # Input weights and biases of 10 units, ten outputs, and the recurrent matrix.
    assert int(rows["ScoRNN"][0]) == 10 + 10 + 110 + 45
    assert int(rows["LSTM"][0]) == 4 * (10 + 10 + 100) + 110
    assert all(0 <= float(right) <= 1 and float(seconds) >= 0 for _, right, seconds in rows.values())
    assert "30/30" in output.err


def test_swap_the_recurrence_learns_with_one_that_is_named(monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_script("swap_the_recurrence.py", ["--systems", "ScoRNN", "--epochs", "2"], monkeypatch)
    assert exit_info.value.code == 0
    _, line = capsys.readouterr().out.splitlines()
    name, _, right, _ = line.split()
    assert name == "ScoRNN"
    assert float(right) > 0.5  # Guessing is 0.1.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "RNNN"], "invalid choice: 'RNNN'"),
        (["--epochs", "0"], "--epochs: expected at least 1, got 0"),
        (["--units", "3"], "--units: expected at least 4, got 3"),
    ],
)
def test_swap_the_recurrence_names_bad_arguments(arguments, message, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_script("swap_the_recurrence.py", arguments, monkeypatch)
    assert message in capsys.readouterr().err
