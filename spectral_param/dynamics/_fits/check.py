r"""Whether a fit of hidden states is what its rows allow: its innovations beside those of a regression.

The regression predicts y_k by least squares on the past of :mod:`.start`, whose far rows are averaged in
blocks. A fit in a poor minimum has larger innovations e. Akaike's criterion says whether that is more than
chance: the less of f + unknowns is better, with f = N/2 log det of the covariance of e.

Source: Akaike, "A new look at the statistical model identification" (1974).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._fits.start import blocks_of, means, newest
from spectral_param.dynamics._model.hidden import Options, Rows

SHORT = 0.25  # share by which a regression's errors are smaller than those of a fit that misses something
_FLOOR = 1e-13  # of variances, for outputs of unit 1: an error that is rounding


def shortfall(
    recordings: list[Rows], residuals: list[Array], unknowns: float, n: int, options: Options
) -> float:
    """Return by how much a regression's errors are smaller, relative to those of the fit; 0 if by chance.

    The recordings are in units of their deviations, and ``residuals`` are the innovations of their rows.
    """
    p, widths = recordings[0][0].shape[1], blocks_of(recordings, n, options.lags)
    span = sum(widths)
    left, given, after = [], [], []
    for (Y, U), e in zip(recordings, residuals, strict=True):
        if len(Y) > span:
            past = [means(M[:-1], widths[::-1]) for M in (Y, newest(U, options.lags))]
            now = U[span:] if options.feedthrough else U[span:, :0]
            given.append(np.hstack([*past, now, np.ones((len(Y) - span, int(options.offset)))]))
            after.append(Y[span:])
            left.append(e[span:])
    Z = np.vstack(given)
    R: Any = np.linalg.qr(np.hstack([Z, np.vstack(after)]), mode="r")
    rows, number, f = len(Z), Z.shape[1], []
    for of in (np.vstack(left), R[number:, number:]):
        f.append(0.5 * rows * float(np.linalg.slogdet(of.T @ of / rows + _FLOOR * np.eye(p))[1]))
    if f[1] + number * p >= f[0] + unknowns:
        return 0.0
    # The degrees of freedom of the regression are taken from its errors.
    return max(0.0, 1 - float(np.exp((f[1] - f[0]) / rows / p)) * (1 - number / rows) ** -0.5)
