import runpy
import sys
from pathlib import Path

import pytest
import torch

import spectral_param
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


def test_swap_the_recurrence_trains_every_network(monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_script("swap_the_recurrence.py", ["--quick", "--units", "10"], monkeypatch)
    assert exit_info.value.code == 0
    output = capsys.readouterr()
    header, *lines = output.out.splitlines()
    assert header.split() == ["system", "parameters", "test", "accuracy", "seconds", "per", "epoch"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    parts = {
        "Adapters",
        "adapt",
        "BlockRNN",
        "BlockRNNCell",
        "ContractingGRUCell",
        "Equilibrium",
        "DeltaProductCell",
        "GORUCell",
        "MaxMin",
        "ModReLU",
        "Residual",
        "SequenceLayer",
        "StateSpaceCell",
    }
    assert set(rows) == (set(spectral_param.nn.__all__) - parts) | set(networks.BASELINES)
    # Input weights and biases of 10 units, ten outputs, and the recurrent matrix.
    assert int(rows["ScoRNN"][0]) == 10 + 10 + 110 + 45
    assert int(rows["LSTM"][0]) == 4 * (10 + 10 + 100) + 110
    assert all(0 <= float(right) <= 1 and float(seconds) >= 0 for _, right, seconds in rows.values())
    assert "38/38" in output.err


@pytest.mark.nightly
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
