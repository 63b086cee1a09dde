"""The picture of "Constrain a trained network"."""

import copy

import numpy as np
import torch
from landing import AFTER, BEFORE, OTHER, picture
from sklearn.datasets import load_digits

import spectral_param as sp

CONSTRAINTS = {
    "not constrained": None,
    'SpectralRadiusNorm("present")': sp.SpectralRadiusNorm("present"),
    "SpectralRadiusNorm(1)": sp.SpectralRadiusNorm(1.0),
    "SingularValues(0.5)": sp.SingularValues(0.5),
    "ScaledCayley()": sp.ScaledCayley(),
}


class Classifier(torch.nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 32, batch_first=True)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x):
        """Return the scores of the classes for images (batch, 8, 8)."""
        return self.head(self.lstm(x)[1][0][-1])


def measure():
    """Return for each constraint the accuracy right after it, and after three more epochs."""
    torch.manual_seed(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x = torch.tensor(digits.images, dtype=torch.float32)[order] / 16
    y = torch.tensor(digits.target)[order]

    def train(model, optimizer, epochs):
        for _ in range(epochs):
            for batch in torch.randperm(1400).split(50):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()

    def accuracy(model):
        with torch.no_grad():
            return (model(x[1400:]).argmax(dim=1) == y[1400:]).double().mean().item()

    trained = Classifier()
    train(trained, torch.optim.Adam(trained.parameters(), lr=1e-2), 10)
    found = {}
    for name, constraint in CONSTRAINTS.items():
        model = copy.deepcopy(trained)
        if constraint is not None:
            sp.constrain(model, "lstm.weight_hh_l0", constraint)
        right_after = accuracy(model)
        train(model, torch.optim.Adam(sp.param_groups(model, lr=3e-3, constrained_lr=1e-3)), 3)
        found[name] = (right_after, accuracy(model))
    kept = found['SpectralRadiusNorm("present")'][0] == found["not constrained"][0]
    assert kept, "the present radius moves nothing"
    assert found["SpectralRadiusNorm(1)"][0] < found["not constrained"][0] - 0.1
    assert found["ScaledCayley()"][0] < found["SpectralRadiusNorm(1)"][0]
    return found


def accuracies():
    """Draw what :func:`measure` returns, on a transparent ground, for light and dark pages."""
    ax = picture(size=(4.4, 4.6))[0]
    found = measure()
    y = np.arange(len(found))
    for shift, color, label, values in (
        (-0.1, BEFORE, "right after", [pair[0] for pair in found.values()]),
        (0.15, AFTER, "after three more epochs", [pair[1] for pair in found.values()]),
    ):
        bars = ax.barh(y + shift, values, 0.24, color=color, label=label)
        ax.bar_label(bars, fmt="%.3f", padding=3, color=OTHER)
    ax.set(xlim=(0, 1.15), xlabel="test accuracy", xticks=(0, 0.5, 1))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    for at, name in zip(y, found, strict=True):
        ax.text(0, at - 0.27, name, va="bottom", color=OTHER)
    ax.invert_yaxis()
    ax.figure.legend(loc="outside lower center", ncols=2, labelcolor="linecolor")
