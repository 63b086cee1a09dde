"""Fits of dynamics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import spectral_param as sp
from tests.promises.jobs.tensors import Job, To


def recording(rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """States of a system of two, and its input."""
    rng = np.random.default_rng(0)
    u, x = rng.standard_normal((rows, 1)), np.zeros((rows, 2))
    A, B = np.array([[0.9, 0.2], [-0.2, 0.9]]), np.array([0.5, 1.0])
    for k in range(rows - 1):
        x[k + 1] = A @ x[k] + B * u[k, 0] + 0.01 * rng.standard_normal(2)
    return x, u


def _fits() -> dict[str, Job]:
    d = sp.dynamics
    x, u = recording()

    def tensors(to: To) -> tuple[Tensor, Tensor]:
        return to(torch.from_numpy(x).float()), to(torch.from_numpy(u).float())

    def estimator(*, arrays: bool = False, use_inputs: bool = True, **options: Any) -> Job:
        def job(to: To) -> Any:
            X, U = (x, u) if arrays else tensors(to)
            if not use_inputs:
                U = None
            fitted = d.StableLinearModel(**options).fit(X, U=U)
            found: list[Any] = [fitted.A_, fitted.predict(X, U=U), fitted.score(X, U=U)]
            if options.get("states") is None:
                module = fitted.to_module()
                found += [p.detach() for p in module.parameters()]
            return found

        return job

    def one_step(to: To) -> Any:
        X, U = tensors(to)
        fit = d.fit_stable(X[:-1], X[1:], U[:-1])
        return fit.A, fit.B, fit.error

    return {
        "fit_stable": one_step,
        "fit_stable, continuous": lambda to: (
            d.fit_stable(tensors(to)[0][:-1], tensors(to)[0].diff(dim=0), time="continuous").A
        ),
        "StableLinearModel": estimator(),
        "StableLinearModel, arrays": estimator(arrays=True),
        "StableLinearModel, measurement": estimator(noise="measurement", lead=5, offset=True),
        "StableLinearModel, states": estimator(states=2, use_inputs=True),
        "StableLinearModel, delays": estimator(delays=3, rank=4, use_inputs=False),
    }


FITS: dict[str, Job] = {f"dynamics: {name}": job for name, job in _fits().items()}
