"""Analyses of matrices and networks, and pictures."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import nn

import spectral_param as sp
from tests.promises.jobs.tensors import HOST, Job, To, normal, stable


def _analyses() -> dict[str, Job]:
    a, W = sp.analysis, stable(6)
    lower = functools.cache(lambda: a.lower_schur(stable(6)).Theta.float())
    delays = torch.diag(torch.ones(5, **HOST), -1)

    def rnn(to: To) -> nn.Module:
        torch.manual_seed(0)
        return to(nn.RNN(2, 4, dtype=torch.float32, device="cpu"))

    def net(to: To) -> nn.Module:
        torch.manual_seed(0)
        made: Any = {"dtype": torch.float32, "device": "cpu"}
        linear = [
            nn.Linear(3, 6, **made),
            nn.ReLU(),
            nn.Linear(6, 6, **made),
            nn.Tanh(),
            nn.Linear(6, 2, **made),
        ]
        return to(nn.Sequential(*linear).eval())

    def image(to: To) -> nn.Module:
        torch.manual_seed(0)
        made: Any = {"dtype": torch.float32, "device": "cpu"}
        parts = [
            nn.Conv2d(2, 3, 3, padding=1, **made),
            nn.BatchNorm2d(3, **made),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.LayerNorm(27, **made),
            nn.Linear(27, 4, **made),
            nn.LogSoftmax(dim=-1),
        ]
        return to(nn.Sequential(*parts).eval())

    def recorded(to: To) -> Any:
        recorder = a.Recorder(lambda: a.orthogonality_error(to(W)))
        empty = recorder.values
        recorder.record(3)
        return recorder.steps, recorder.values, empty.shape

    def constrained(to: To) -> Any:
        layer = to(nn.Linear(6, 6, dtype=torch.float32, device="cpu"))
        layer.weight.data = to(W.clone())
        return layer

    shape = (2, 4, 4)
    return {
        "certified_radius": lambda to: a.certified_radius(to(normal(3, 2)), net(to)),
        "certified_radius, lmi": lambda to: a.certified_radius(to(normal(3, 2)), net(to), method="lmi"),
        "contraction": lambda to: a.contraction(rnn(to), 1.0)[:2],
        "contraction, measured": lambda to: a.contraction(rnn(to), 5.0, inputs=to(normal(6, 3, 2)))[5:],
        "departure_from_normality": lambda to: a.departure_from_normality(to(W)),
        "displacement": lambda to: a.displacement(constrained(to), "weight", sp.ScaledCayley()),
        "eigenvalues": lambda to: a.eigenvalues(to(W)),
        "fisher_memory": lambda to: a.fisher_memory(to(W), to(normal(6)), 5),
        "fisher_memory_bound": lambda to: a.fisher_memory_bound(to(delays), 5, sharp=True),
        "gradient_norm_bounds": lambda to: a.gradient_norm_bounds(to(W), 5, to(normal(6, 2))),
        "gradient_norms": lambda to: a.gradient_norms(rnn(to), to(normal(6, 3, 2))),
        "gradient_norms, state": lambda to: a.gradient_norms(rnn(to), to(normal(6, 3, 2)), wrt="state"),
        "h_infinity": lambda to: a.h_infinity(to(W), to(normal(6, 2)), to(normal(3, 6))),
        "kreiss_constant": lambda to: a.kreiss_constant(to(stable(2))),
        "lipschitz": lambda to: a.lipschitz(net(to)),
        "lipschitz, lmi": lambda to: a.lipschitz(net(to), method="lmi", steps=2),
        "lipschitz, image": lambda to: a.lipschitz(image(to), input_shape=shape, constants={"6": 2.0}),
        "loss_gradient_norms": lambda to: a.loss_gradient_norms(
            rnn(to), to(normal(6, 3, 2)), lambda output: output.square().sum()
        ),
        "lower_schur": lambda to: a.lower_schur(to(W)),
        "stationary_distribution": lambda to: a.stationary_distribution(to(W.softmax(dim=-1))),
        "lyapunov_certificate": lambda to: a.lyapunov_certificate(to(W)),
        "lyapunov_certificate, diagonal": lambda to: a.lyapunov_certificate(to(W), metric="diagonal"),
        "orthogonality_error": lambda to: a.orthogonality_error(to(W)),
        "Recorder": recorded,
        "schur_eigenvalues": lambda to: a.schur_eigenvalues(to(lower())),
        "singular_values": lambda to: a.singular_values(to(W)),
        "spectral_summary": lambda to: a.spectral_summary(
            sp.constrain(constrained(to), "weight", sp.ScaledCayley())
        ),
        "subdiagonal_magnitudes": lambda to: a.subdiagonal_magnitudes(to(lower())),
        "transient_growth": lambda to: a.transient_growth(to(W), 5),
    }


def drawings(to: To) -> Any:
    """The data of every picture."""
    import matplotlib.pyplot as plt

    a, W = sp.analysis, to(stable(6))
    theta = a.lower_schur(W).Theta
    recorder = a.Recorder(lambda: a.singular_values(W))
    recorder.record(0)
    recorder.record(2)
    torch.manual_seed(0)
    rnn = to(nn.RNN(2, 4, dtype=torch.float32, device="cpu"))
    norms = a.gradient_norms(rnn, to(normal(6, 3, 2)))
    axes = [
        a.plot_eigenvalues(a.eigenvalues(W)),
        a.plot_singular_values(a.singular_values(W)),
        a.plot_recording(recorder),
        a.plot_schur_form(theta),
        a.plot_fisher_memory(a.fisher_memory(W, to(normal(6)), 5)),
        a.plot_transient_growth(a.transient_growth(W, 5)),
        a.plot_gradient_norms(norms),
    ]
    found = [np.asarray(line.get_xydata(), dtype=float) for ax in axes for line in ax.lines]
    plt.close("all")
    return found


ANALYSES: dict[str, Job] = {
    **{f"analysis: {name}": job for name, job in _analyses().items()},
    "analysis: pictures": drawings,
}
