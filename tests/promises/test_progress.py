"""Bars: for who asks for them, without a change of any result, and without tqdm for everybody else."""

import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch

import spectral_param as sp


@pytest.fixture
def shown(monkeypatch):
    """The titles of bars with their steps, each as done and in all."""
    found = {}

    class Bar:
        def __init__(self, total, desc, **options):
            self.total, self.title = total, desc
            found[desc] = (0, total)

        def __enter__(self):
            return self

        def __exit__(self, *of):
            return False

        def update(self, steps):
            found[self.title] = (found[self.title][0] + steps, self.total)

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar))
    return found


def constrained(held=False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if held else None
    return sp.constrain(model, "*.weight", sp.ScaledCayley(), optimizer=optimizer)[1].weight


def reservoir():
    places = np.random.default_rng(0).integers(0, 600, (2, 6000))
    entries = np.random.default_rng(1).standard_normal(6000)
    return scipy.sparse.csr_array((entries, places), shape=(600, 600))


def tightened():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 6)).eval()
    return sp.analysis.lipschitz(model, method="lmi", steps=3)


CALLS = {
    "constrain": (constrained, lambda done, total: done == total == 2),
    "constrain, with an optimizer": (lambda: constrained(held=True), lambda done, total: done == total == 2),
    "diagonal coordinates": (
        lambda: sp.functional.scaled_norm(torch.eye(5) + torch.ones(5, 5).triu()),
        lambda done, total: 0 < done <= total,
    ),
    "sparse spectral radius": (
        lambda: sp.init.spectral_radius_(reservoir(), 0.9).data,
        lambda done, total: done > 0 and total is None,
    ),
    "Lipschitz constant": (tightened, lambda done, total: 0 < done <= total == 3),
}


@pytest.mark.parametrize("title", CALLS)
def test_bars_are_drawn_within_it_alone_and_change_nothing(title, shown) -> None:
    call, is_right = CALLS[title]
    quiet = call()
    assert shown == {}
    with sp.progress():
        loud = call()
    assert is_right(*shown[title.split(",")[0]])
    np.testing.assert_array_equal(torch.as_tensor(quiet).detach(), torch.as_tensor(loud).detach())
    shown.clear()
    with pytest.raises(RuntimeError, match="elsewhere"), sp.progress():
        raise RuntimeError("elsewhere")
    call()
    assert shown == {}


def test_fits_show_bars_too(shown) -> None:
    X = np.random.default_rng(0).standard_normal((60, 2)).cumsum(axis=0)
    with sp.progress(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # A random walk has no better forecast than no change.
        sp.dynamics.StableLinearModel(noise="auto", lead=5).fit(X)
    assert shown["noise='auto'"][0] > 0


def test_without_tqdm_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match=r"progress: expected tqdm.*pip install"), sp.progress():
        pass


@pytest.mark.nightly
def test_tqdm_is_not_imported_for_who_does_not_ask() -> None:
    code = (
        "import sys, torch; before = 'tqdm' in sys.modules; import spectral_param as sp; "
        "sp.functional.scaled_norm(torch.ones(3, 3)); assert ('tqdm' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
