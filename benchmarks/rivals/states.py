"""Fits of other packages to one recording, in their own environment: ``python states_rivals.py IN OUT``.

It needs none of this repository. The packages are nfoursid, sippy_unipi and statsmodels; one that is missing,
or fails, is named in the result. Each fit is returned in innovation form, A, B, C, D, K.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
import warnings
from typing import Any

import numpy as np

LAGS = (2, 4, 8, 12, 16, 24)  # of the regressions, the best by AIC


def nfoursid(Y: Any, U: Any, n: int) -> tuple[Any, ...]:
    """Return the model of nfoursid, N4SID."""
    import pandas
    import scipy.linalg
    from nfoursid.nfoursid import NFourSID

    outputs, inputs = ([f"{name}{i}" for i in range(M.shape[1])] for name, M in (("y", Y), ("u", U)))
    frame = pandas.DataFrame(np.hstack([Y, U]), columns=outputs + inputs)
    rows = 2 * n + 10 if len(Y) > 600 else n + 5
    found = NFourSID(frame, output_columns=outputs, input_columns=inputs, num_block_rows=rows)
    found.subspace_identification()
    model, covariance = found.system_identification(rank=n)
    p = len(outputs)
    R, S, Q = covariance[:p, :p], covariance[p:, :p], covariance[p:, p:]
    P = scipy.linalg.solve_discrete_are(model.a.T, model.c.T, Q, R, s=S)
    K = np.linalg.solve(model.c @ P @ model.c.T + R, (model.a @ P @ model.c.T + S).T).T
    return model.a, model.b, model.c, model.d, K


def sippy(Y: Any, U: Any, n: int, method: str) -> tuple[Any, ...]:
    """Return a model of SIPPY."""
    import sippy_unipi

    found = sippy_unipi.system_identification(Y.T, U.T, method, SS_fixed_order=n, SS_A_stability=True)
    return found.A, found.B, found.C, found.D, found.K


def statsmodels(Y: Any, U: Any, n: int) -> tuple[Any, ...]:
    """Return the vector autoregression with lagged inputs that AIC chooses."""
    from statsmodels.tsa.api import VAR
    from statsmodels.tsa.ar_model import AutoReg

    p, m = Y.shape[1], U.shape[1]
    best: Any = None
    for lags in LAGS:
        if len(Y) < 3 * lags * (p + m):
            continue
        late = np.hstack([U[lags - i : len(U) - i] for i in range(1, lags + 1)]) if m else None
        if p == 1:
            # The first rows of late inputs are unknown: both begin ``lags`` rows later.
            found = AutoReg(Y[lags:, 0], lags, trend="n", exog=late).fit()
            of_y, of_u = found.params[None, :lags], found.params[None, lags:]
        else:
            found = VAR(Y[lags:], exog=late).fit(lags, trend="n")
            of_u, of_y = np.split(np.asarray(found.params).T, [m * lags], axis=1)
        if best is None or found.aic < best[0]:
            best = (found.aic, lags, of_y, of_u)
    _, lags, of_y, of_u = best
    size, begin = lags * (p + m), lags * p
    A, B, K = np.zeros((size, size)), np.zeros((size, m)), np.zeros((size, p))
    C = np.hstack([of_y, of_u])
    A[:p] = C
    A[p:begin, : begin - p] = np.eye(begin - p)
    if m:
        A[begin + m :, begin : size - m] = np.eye(size - begin - m)
        B[begin : begin + m] = np.eye(m)
    K[:p] = np.eye(p)
    return A, B, C, np.zeros((p, m)), K


METHODS = {
    "nfoursid": nfoursid,
    "SIPPY, CVA": lambda Y, U, n: sippy(Y, U, n, "CVA"),
    "SIPPY, N4SID": lambda Y, U, n: sippy(Y, U, n, "N4SID"),
    "SIPPY, PARSIM-K": lambda Y, U, n: sippy(Y, U, n, "PARSIM-K"),
    "statsmodels, VAR with inputs": statsmodels,
}


def main() -> None:
    """Fit all methods to the recording in the file and write the models."""
    data = np.load(sys.argv[1])
    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for name, fit in METHODS.items():
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = fit(data["Y"], data["U"], int(data["n"]))
        except Exception as failure:  # What a package cannot fit is a result.
            facts[name] = {"failed": f"{type(failure).__name__}: {failure}"[:100]}
            continue
        facts[name] = {"cpu_seconds": time.process_time() - began}
        arrays |= {f"{name}/{letter}": np.asarray(M) for letter, M in zip("ABCDK", model, strict=True)}
    packages = {}
    for name in ("nfoursid", "sippy_unipi", "statsmodels"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "not installed"
    np.savez(sys.argv[2], facts=json.dumps({"fits": facts, "packages": packages}), **arrays)


if __name__ == "__main__":
    main()
