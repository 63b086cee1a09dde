"""The recordings of the robot arm, and the three fits of them."""

import numpy as np
import pytest
import scipy.io

from examples.papers import data
from examples.papers.tasks import dynamics

RECORDINGS = data.folder()
BAD_ARRAYS = {
    "missing key": ({"U": None}, "array U of finite real numbers, got no such array"),
    "NaN": ({"Y": np.full((30, 4), np.nan)}, "array Y of finite real numbers, got something else"),
    "text": ({"X": "joint angles"}, "array X of finite real numbers, got something else"),
    "rows": ({"U": np.ones((29, 2))}, r"got \(30, 4\), \(30, 4\) and \(29, 2\)"),
    "columns": ({"Y": np.ones((30, 3))}, r"got \(30, 4\), \(30, 3\) and \(30, 2\)"),
    "rank": ({"U": np.ones((30, 2))}, "linearly independent columns of X and U, got rank 5 of 6"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_named(monkeypatch, tmp_path, case):
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))
    replaced, message = BAD_ARRAYS[case]
    rng = np.random.default_rng(0)
    good = {key: rng.standard_normal((30, n)) for key, n in (("X", 4), ("Y", 4), ("U", 2))}
    content = {key: M for key, M in (good | replaced).items() if M is not None}
    (tmp_path / "franka").mkdir()
    scipy.io.savemat(tmp_path / dynamics.FILE, content)
    with pytest.raises(data.DataError, match=message):
        dynamics.fit()


def test_missing_or_damaged_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(tmp_path))
    with pytest.raises(data.DataError, match=r"mat is missing: part of https://.* download franka"):
        dynamics.load_arm()
    (tmp_path / "franka").mkdir()
    (tmp_path / dynamics.FILE).write_bytes(b"not a MATLAB file" * 20)
    with pytest.raises(data.DataError, match="expected a MATLAB file, version 7 or older"):
        dynamics.load_arm()


@pytest.mark.skipif(
    not (RECORDINGS / dynamics.FILE).is_file(), reason=f"needs {dynamics.FILE} in $SPECTRAL_PARAM_DATA"
)
def test_robot_arm_is_fitted_with_hardly_more_error_and_no_instability(monkeypatch):
    monkeypatch.setenv("SPECTRAL_PARAM_DATA", str(RECORDINGS))
    found = dynamics.fit()
    assert found["residual, least squares"] == pytest.approx(2.160643, abs=1e-6)
    assert found["spectral radius, least squares"] == pytest.approx(1.001383, abs=1e-6)
    assert found["residual ratio, rescaled"] > 1.01
    assert found["residual ratio, constrained"] < 1.00001
    assert found["spectral radius, constrained"] <= 1 + 1e-12


def test_three_fits_are_what_they_are_called():
    X, Y, U = pairs = dynamics.simulate()
    fits = dynamics.three_fits(*pairs)
    XU = np.hstack([X, U])
    least = np.linalg.norm(Y - XU @ np.linalg.lstsq(XU, Y, rcond=None)[0])
    assert dynamics.residual(fits["least squares"], *pairs) == pytest.approx(least, rel=1e-9)
    assert dynamics.spectral_radius(fits["least squares"]) > 1
    assert dynamics.spectral_radius(fits["rescaled"]) == pytest.approx(1)
    assert dynamics.spectral_radius(fits["constrained"]) <= 1 + 1e-12
    residuals = [dynamics.residual(A, *pairs) for A in fits.values()]
    assert residuals[0] < residuals[2] <= residuals[1]
