import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import spectral_param
from examples import deep_koopman, stable_dynamics
from examples.papers import networks

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


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


def test_stable_dynamics_prints_its_table_and_draws(tmp_path, monkeypatch, capsys):
    run_script("stable_dynamics.py", ["--output", tmp_path / "new"], monkeypatch)
    _, *lines, _ = capsys.readouterr().out.splitlines()
    rows = {line[:20].strip(): tuple(map(float, line[20:].split())) for line in lines}
    least, rescaled, stable = rows.values()
    assert list(rows) == ["least squares", "rescaled, A / ρ(A)", "fit_stable"]
    assert least[1] > 1.001
    assert least[2] > 1e6
    assert rescaled[0] > 1.01
    assert 1 < stable[0] <= 1.0002
    assert stable[1] <= 1
    assert stable[2] < 2
    assert (tmp_path / "new" / "stable_dynamics.png").stat().st_size > 10_000


def test_fits_of_the_example_are_what_they_are_called():
    X, Y, U = stable_dynamics.simulate_chain(masses=3, recordings=2, steps=60)
    fits = stable_dynamics.three_fits(X, Y, U)
    XU = np.hstack([X, U])
    least = np.linalg.norm(Y - XU @ np.linalg.lstsq(XU, Y, rcond=None)[0])
    assert stable_dynamics.residual(fits["least squares"], X, Y, U) == pytest.approx(least, rel=1e-9)
    radius = np.abs(np.linalg.eigvals(fits["least squares"])).max()
    assert stable_dynamics.spectral_radius(fits["least squares"]) == radius
    np.testing.assert_array_equal(fits["fit_stable"], spectral_param.dynamics.fit_stable(X, Y, U).A)
    norms = stable_dynamics.roll_out(fits["fit_stable"], X[0])
    assert norms[:2] == pytest.approx([np.linalg.norm(X[0]), np.linalg.norm(fits["fit_stable"] @ X[0])])


def test_deep_koopman_learns_stays_stable_and_draws(tmp_path, monkeypatch, capsys):
    run_script("deep_koopman.py", ["--steps", 25, "--output", tmp_path], monkeypatch)
    *lines, last, _ = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[3]) for line in lines]
    radii = [float(line.split()[-1]) for line in [*lines, last]]
    assert len(losses) == 5
    assert max(losses) < 0.1
    assert max(radii) <= 0.995
    assert float(last.split()[6].rstrip(",")) < 2  # bounded after 300 steps
    assert (tmp_path / "deep_koopman.png").stat().st_size > 10_000


def test_pendulum_loses_energy_slowly_and_small_swings_are_those_of_the_linear_one():
    starts = torch.tensor([[0.01, 0.0], [1.5, 0.0]], dtype=torch.float64)
    x = deep_koopman.pendulum(starts, 100)
    energy = 1 - torch.cos(x[..., 0]) + x[..., 1].square() / 2
    assert (energy.diff(dim=1) < 1e-9).all()
    t, frequency = deep_koopman.DT * torch.arange(101, dtype=torch.float64), (1 - 0.1**2) ** 0.5
    exact = torch.exp(-0.1 * t) * (torch.cos(frequency * t) + 0.1 / frequency * torch.sin(frequency * t))
    torch.testing.assert_close(x[0, :, 0], 0.01 * exact, rtol=0, atol=1e-6)


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
