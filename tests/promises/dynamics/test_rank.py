"""Rows stacked by delays, of which some directions hold noise alone."""

import warnings

import numpy as np
import pytest

from spectral_param.dynamics import StableLinearModel
from tests.promises.dynamics.systems import ringing


def era(Y, count, dt, blocks=40):
    """Return frequencies and damping of so many modes, by the Eigensystem Realization Algorithm.

    Juang and Pappa, "An Eigensystem Realization Algorithm for modal parameter identification and model
    reduction", Journal of Guidance, Control and Dynamics, 1985.
    """
    last = len(Y) - blocks + 1
    H = np.vstack([Y[i : i + last].T for i in range(blocks)])
    left = np.linalg.svd(H, full_matrices=False)[0][:, : 2 * count]
    p = Y.shape[1]
    s = np.log(np.linalg.eigvals(np.linalg.lstsq(left[:-p], left[p:], rcond=None)[0]).astype(complex)) / dt
    s = s[s.imag > 0]
    return np.abs(s) / (2 * np.pi), -s.real / np.abs(s)


def worst(found, ratios, frequencies, damping):
    """Return the largest relative error of the damping of the modes whose frequencies are nearest."""
    nearest = np.abs(found - np.array(frequencies)[:, None]).argmin(axis=1)
    return np.abs(ratios[nearest] / damping - 1).max()


@pytest.mark.parametrize(
    ("frequencies", "damping", "sensors", "rows", "noise", "delays"),
    [
        ((4.0, 9.0), 0.002, 3, 400, 0.2, 6),
        pytest.param((2.0, 5.0), 0.005, 2, 600, 0.1, 8, marks=pytest.mark.nightly),
    ],
)
def test_directions_that_hold_noise_alone_are_left_out(frequencies, damping, sensors, rows, noise, delays):
    size, lead, dt = {}, 50, 0.02
    for seed in (0, 1):
        X, Y = ringing(frequencies, damping, sensors, rows + 200, noise, seed, dt)
        options = {"delays": delays, "dt": dt, "lead": lead}
        model = StableLinearModel(horizon="cv", **options).fit(Y[:rows])
        order, table = 2 * len(frequencies), model.choice_.table
        assert model.choice_.rank == order
        assert model.A_.shape == (delays * sensors,) * 2
        assert not model.eigenvalues_[order:].any()
        # Directions that hold noise alone add nothing to what rows that are held out see.
        of_all = np.equal(table["rank"], None)
        assert model.choice_.error < table["error"][of_all].min()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = model.natural_frequencies_, model.damping_ratios_
        full = StableLinearModel(horizon=12, **options).fit(Y[:rows])
        known = StableLinearModel(states=order, dt=dt, lead=lead).fit(Y[:rows])
        with pytest.warns(UserWarning, match="hold noise alone"):
            theirs = full.natural_frequencies_, full.damping_ratios_
        for name, of in (("ours", ours), ("full", theirs), ("era", era(Y[:rows], len(frequencies), dt))):
            size.setdefault(name, []).append(worst(*of, frequencies, damping))
        for at in range(rows, rows + 200 - lead, 10):
            for name, of in (("model", model), ("known", known)):
                size.setdefault(name, []).append(of.simulate(Y[at - 40 : at], lead) - X[at : at + lead])
    size = {name: np.linalg.norm(of) for name, of in size.items()}
    assert size["ours"] <= 1.1 * size["era"]
    assert size["ours"] <= 0.25 * size["full"]
    assert size["model"] <= 1.1 * size["known"]
