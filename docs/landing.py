"""The pictures of the landing page. ``python docs/landing.py`` writes them into one file, for the README."""

import matplotlib.pyplot as plt
import numpy as np
import torch

import spectral_param as sp

BEFORE, AFTER, OTHER = "#d1605e", "#1f9e89", "#808080"  # Legible on white and on black.


def picture(columns=1, size=(3.0, 2.5)):
    """Return axes on a transparent ground, with lines and text for light and dark pages."""
    parts = ("axes.edge", "axes.label", "axes.title", "text.", "xtick.", "ytick.")
    colors = {f"{part}color": OTHER for part in parts}
    with plt.rc_context({**colors, "axes.titlesize": 9.5, "font.size": 9}):
        figure, axes = plt.subplots(1, columns, figsize=(columns * size[0], size[1]), squeeze=False)
    figure.patch.set_alpha(0)
    for ax in axes[0]:
        ax.patch.set_alpha(0)
    return axes[0]


def any_weight(ax=None):
    """Draw the eigenvalues of a weight before and after it is given a spectral radius of 1."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    torch.nn.init.normal_(layer.weight, std=0.18)
    before = torch.linalg.eigvals(layer.weight.detach())
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm())
    after = torch.linalg.eigvals(layer.weight.detach())
    ax = picture()[0] if ax is None else ax
    circle = np.exp(2j * np.pi * np.linspace(0, 1, 200))
    ax.plot(circle.real, circle.imag, color=OTHER, linewidth=0.8)
    ax.plot(before.real, before.imag, ".", markersize=5, color=BEFORE, label="before")
    ax.plot(after.real, after.imag, ".", markersize=5, color=AFTER, label="after")
    ax.set(aspect="equal", title="Eigenvalues of a weight", xlabel="real part", ylabel="imaginary part")
    ax.legend(loc="upper left", bbox_to_anchor=(0.97, 1.05), labelcolor="linecolor", handletextpad=0)


def recurrent_networks(ax=None):
    """Draw how the gradient of the last state reaches the states before it, in networks at their start."""
    torch.manual_seed(0)
    x = torch.randn(200, 16, 2)
    networks = {
        "LSTM": (torch.nn.LSTM(2, 64), BEFORE),
        "RNN": (torch.nn.RNN(2, 64), OTHER),
        "ENRNN": (sp.nn.ENRNN(2, 40, 24), AFTER),
    }
    ax = picture()[0] if ax is None else ax
    for name, (rnn, color) in networks.items():
        norms = sp.analysis.loss_gradient_norms(rnn, x, lambda output: output[-1].sum())
        norms = norms[0].mean(dim=0)
        ax.semilogy(range(199, -1, -1), norms / norms[-1], color=color, label=name)
    ax.set(ylim=(1e-12, 1e2), title="Gradient back in time", xlabel="time steps back")
    ax.legend(labelcolor="linecolor")


def stable_dynamics(ax=None):
    """Draw roll-outs of the least-squares fit and of the stable fit of docs/dynamics.md."""
    rng = np.random.default_rng(0)
    t = 0.3 * np.arange(41)
    waves = np.stack([np.sin(w * t + p) for w in (0.7, 1.9) for p in (0.0, 1.0)], axis=1)
    states = (1 + 0.1 * t)[:, None] * waves @ rng.standard_normal((4, 4))
    states += 0.02 * rng.standard_normal(states.shape)
    X, Y = states[:-1], states[1:]
    models = {
        "least squares": (np.linalg.lstsq(X, Y, rcond=None)[0].T, BEFORE),
        "fit_stable": (sp.dynamics.fit_stable(X, Y).A, AFTER),
    }
    ax = picture()[0] if ax is None else ax
    for name, (A, color) in models.items():
        rollout = [states[0]]
        for _ in range(150):
            rollout.append(A @ rollout[-1])
        ax.plot([state[0] for state in rollout], color=color, label=name, linewidth=1)
    ax.plot(states[:, 0], ".", color=OTHER, markersize=3, label="data")
    ax.set(title="Roll-out of a fitted model", xlabel="time step")
    ax.legend(loc="upper left", labelcolor="linecolor")


def known_constant(ax=None):
    """Draw bounds of the Lipschitz constants of networks over their depth, with and without a constraint."""
    depths = (1, 2, 4, 6, 8, 10, 12)
    ax = picture()[0] if ax is None else ax
    for name, color in (("no constraint", BEFORE), ("SpectralNorm(1.0)", AFTER)):
        constants = []
        for depth in depths:
            torch.manual_seed(0)
            layers = [(torch.nn.Linear(32, 32), torch.nn.ReLU()) for _ in range(depth)]
            model = torch.nn.Sequential(*(part for layer in layers for part in layer))
            for linear, _ in layers:
                torch.nn.init.kaiming_normal_(linear.weight)
                if color == AFTER:
                    sp.constrain(linear, "weight", sp.SpectralNorm(1.0))
            constants.append(sp.analysis.lipschitz(model.eval()))
        ax.semilogy(depths, constants, ".-", color=color, label=name)
    ax.set(ylim=(0.3, None), title="Lipschitz constant, proven", xlabel="layers")
    ax.legend(labelcolor="linecolor")


def certified_gain(ax=None):
    """Draw the gain of a system over the frequency, before and after its H-infinity norm is bounded by 1."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(10, 10)
    with torch.no_grad():
        layer.weight[:8, :8] = 0.95 * torch.linalg.qr(torch.randn(8, 8)).Q
        layer.weight[:8, 8:], layer.weight[8:] = 0.3 * torch.randn(8, 2), 0.3 * torch.randn(2, 10)
    frequencies = np.linspace(0, np.pi, 400)
    ax = picture()[0] if ax is None else ax
    for name, color in (("before", BEFORE), ("BoundedGain(1.0)", AFTER)):
        if color == AFTER:
            sp.constrain(layer, "weight", sp.BoundedGain(1.0, states=8))
        M = layer.weight.detach().double().numpy()
        A, B, C, D = M[:8, :8], M[:8, 8:], M[8:, :8], M[8:, 8:]
        responses = [C @ np.linalg.solve(np.exp(1j * w) * np.eye(8) - A, B) + D for w in frequencies]
        ax.plot(frequencies, [np.linalg.norm(G, 2) for G in responses], color=color, label=name, linewidth=1)
    ax.axhline(1, color=OTHER, linestyle="--", linewidth=0.8)
    ax.set(ylim=(0, None), title="Gain of a system", xlabel="frequency, radians per step")
    ax.legend(labelcolor="linecolor")


def readme():
    """Write the pictures into one file."""
    style = {"figure.constrained_layout.use": True, "axes.spines.right": False, "axes.spines.top": False}
    with plt.rc_context({**style, "legend.frameon": False}):
        axes = picture(3, (3.2, 2.6))
        for draw, ax in zip((any_weight, recurrent_networks, stable_dynamics), axes, strict=True):
            draw(ax)
        plt.savefig("_static/overview.png", dpi=150)
