"""The pictures of the gallery: one function for each tutorial, whose docstring is the line below its title.

They are square, have no text, and are drawn on a transparent ground in colours for light and dark pages.
"""

import re

import matplotlib.pyplot as plt
import numpy as np
from landing import AFTER, BEFORE, OTHER
from matplotlib.patches import Circle, Rectangle


def plot_1_why_networks_forget(ax):
    """The gradient over a hundred steps: gone in an LSTM, kept in an ENRNN."""
    t = np.linspace(0, 1, 50)
    ax.plot(t, 0.85 - 3 * t, color=BEFORE, linewidth=4)
    ax.plot(t, 0.85 - 1.6 * t, color=OTHER, linewidth=4)
    ax.plot(t, 0.85 + 0 * t, color=AFTER, linewidth=4)
    ax.set(xlim=(-0.05, 1), ylim=(-0.05, 1))


def plot_2_constrain_your_lstm(ax):
    """One line for a model that exists, from training to deployment."""
    rng = np.random.default_rng(0)
    for x in (0.25, 0.75):
        for y in (0.25, 0.75):
            angles = rng.uniform(0, np.pi, 5)
            angles = np.concatenate([angles, -angles])
            ax.add_patch(Circle((x, y), 0.2, fill=False, color=OTHER, linewidth=2))
            ax.plot(x + 0.2 * np.cos(angles), y + 0.2 * np.sin(angles), "o", color=AFTER, markersize=7)
    ax.set(xlim=(0, 1), ylim=(0, 1))


def plot_3_forecast_from_noisy_snapshots(ax):
    """A model that follows a vibrating chain, where others explode or decay."""
    t = np.linspace(0, 1, 300)
    ax.plot(t, np.exp(2.4 * t) * np.sin(30 * t) / 11, color=BEFORE, linewidth=3)
    ax.plot(t, np.exp(-1.5 * t) * np.sin(30 * t) / 3, color=AFTER, linewidth=4)
    ax.set(xlim=(0, 1), ylim=(-1, 1))


def plot_4_koopman_pendulum(ax):
    """Two minutes of a pendulum, predicted from four seconds by a linear model inside a network."""
    angle, speed = np.meshgrid(np.linspace(-np.pi, np.pi, 80), np.linspace(-2.2, 2.2, 80))
    energy = speed**2 / 2 - np.cos(angle)
    ax.contour(
        angle, speed, energy, levels=(-0.85, -0.45, 0.05, 0.6), colors=[AFTER], linewidths=4, linestyles="-"
    )
    ax.set(xlim=(-2.5, 2.5), ylim=(-2.1, 2.1))


def plot_5_echo_state_network(ax):
    """One number decides whether a reservoir is of any use."""
    rng = np.random.default_rng(3)
    nodes = rng.uniform(0.08, 0.92, (16, 2))
    for i, j in rng.integers(0, 16, (30, 2)):
        ax.plot(*nodes[[i, j]].T, color=OTHER, linewidth=1.5)
    ax.plot(*nodes.T, "o", color=AFTER, markersize=11)
    ax.set(xlim=(0, 1), ylim=(0, 1))


def plot_6_dale_law(ax):
    """Neurons that excite or inhibit, trained to keep a rhythm."""
    rng = np.random.default_rng(0)
    for column in range(8):
        for row in range(8):
            color = BEFORE if column < 6 else "#3b7dd8"
            alpha = rng.uniform(0.15, 1)
            ax.add_patch(Rectangle((column, row), 0.86, 0.86, color=color, alpha=alpha, linewidth=0))
    ax.set(xlim=(0, 7.9), ylim=(0, 7.9))


def plot_7_radius_norm_growth(ax):
    """What each bound says about one step, many steps, and those in between."""
    t = np.linspace(0, 1, 200)
    ax.plot(t, 9 * t * np.exp(-5 * t) + 0.25 * np.exp(-5 * t), color=BEFORE, linewidth=4)
    ax.plot(t, 0.25 * np.exp(-2 * t), color=AFTER, linewidth=4)
    ax.axhline(0.25, color=OTHER, linewidth=2, linestyle="--")
    ax.set(xlim=(0, 1), ylim=(0, 0.85))


def plot_8_train_log_deploy(ax):
    """Spectra in TensorBoard's log, a resumed run of the same bits, a model that needs no library."""
    t = np.linspace(0, 1, 200)
    ax.axhline(0.85, color=OTHER, linewidth=2, linestyle="--")
    ax.plot(t, np.minimum(0.85, 0.3 + 1.3 * t**0.8), color=AFTER, linewidth=4)
    ax.plot([0.25, 0.75], [0.3 + 1.3 * 0.25**0.8, 0.85], "o", color=BEFORE, markersize=15)
    ax.set(xlim=(0, 1), ylim=(0.1, 1.05))


def plot_9_orthogonal_any_shape(ax):
    """A tied autoencoder as good as PCA, and a transformer with orthonormal layers."""
    rng = np.random.default_rng(1)
    for left, bottom, columns, rows in ((0, 0, 3, 8), (4, 2.5, 8, 3)):
        for column in range(columns):
            for row in range(rows):
                corner = (left + column, bottom + row)
                alpha = rng.uniform(0.2, 1)
                ax.add_patch(Rectangle(corner, 0.86, 0.86, color=AFTER, alpha=alpha, linewidth=0))
    ax.set(xlim=(-0.1, 12), ylim=(-2.1, 10))


def plot_10_known_lipschitz_constant(ax):
    """A convolutional network that provably moves no output further than its input."""
    t = np.linspace(-1, 1, 200)
    ax.fill_between(t, -np.abs(t), np.abs(t), color=AFTER, alpha=0.25, linewidth=0)
    ax.plot(t, t, color=OTHER, linewidth=2, linestyle="--")
    ax.plot(t, -t, color=OTHER, linewidth=2, linestyle="--")
    ax.plot(t, 0.5 * np.sin(1.9 * t), color=AFTER, linewidth=5)
    ax.set(xlim=(-1, 1), ylim=(-1, 1))


def plot_12_certified_gain(ax):
    """The frequency response of a trained system stays below a gain that is given."""
    w = np.linspace(0, np.pi, 300)
    ax.fill_between(w, 0, 1, color=AFTER, alpha=0.25, linewidth=0)
    ax.axhline(1, color=OTHER, linewidth=2, linestyle="--")
    ax.plot(w, 0.98 / np.sqrt(1 + 30 * (w - 0.9) ** 2), color=AFTER, linewidth=4)
    ax.plot(w, 1.25 / np.sqrt(1 + 60 * (w - 0.9) ** 2), color=BEFORE, linewidth=2)
    ax.set(xlim=(0, np.pi), ylim=(0, 1.4))


def plot_11_provably_forgets(ax):
    """Two trajectories of an attacked ReLU network stay inside an envelope that is known beforehand."""
    t = np.linspace(0, 10, 300)
    ax.fill_between(t, -np.exp(-0.25 * t), np.exp(-0.25 * t), color=AFTER, alpha=0.25, linewidth=0)
    for sign in (-1, 1):
        ax.plot(t, sign * np.exp(-0.25 * t), color=OTHER, linewidth=2, linestyle="--")
        ax.plot(t, sign * 0.9 * np.exp(-0.3 * t) * np.cos(1.1 * t), color=AFTER, linewidth=4)
    ax.set(xlim=(0, 10), ylim=(-1.1, 1.1))


def plot_13_hidden_states(ax):
    """Two sensors of a plant give its hidden states, a forecast with its band, and a controller."""
    t = np.linspace(0, 10, 300)
    wave, ahead = np.exp(-0.1 * t) * np.cos(1.5 * t), t > 4.5
    width = 0.35 * np.sqrt(np.maximum(t - 4.5, 0) / 5.5)
    ax.fill_between(
        t[ahead], (wave - width)[ahead], (wave + width)[ahead], color=AFTER, alpha=0.25, linewidth=0
    )
    ax.plot(t[ahead], wave[ahead], color=AFTER, linewidth=4)
    noise = 0.12 * np.random.default_rng(0).standard_normal(300)
    ax.plot(t[~ahead][::5], (wave + noise)[~ahead][::5], "o", color=OTHER, markersize=4)
    ax.set(xlim=(0, 10), ylim=(-1.2, 1.2))


def finish_gallery(gallery):
    """Draw the pictures of all tutorials, and write the lines below their titles.

    Args:
        gallery: The folder that sphinx-gallery has written.
    """
    page = gallery / "index.rst"
    text = page.read_text()
    for image in sorted((gallery / "images/thumb").glob("sphx_glr_plot_*_thumb.png")):
        name = re.fullmatch(r"sphx_glr_(\w+)_thumb", image.stem)[1]
        draw = globals().get(name)
        if draw is None:
            continue  # It keeps the picture that sphinx-gallery takes. A test asks for one of its own.
        figure = plt.figure(figsize=(2, 2))
        figure.patch.set_alpha(0)
        ax = figure.add_axes((0.04, 0.04, 0.92, 0.92))
        ax.set_axis_off()
        draw(ax)
        figure.savefig(image, dpi=200, transparent=True)
        plt.close(figure)
        title = re.search(
            rf"{name}_thumb\.png.*?(<div class=\"sphx-glr-thumbnail-title\">[^\n]*</div>)", text, re.S
        )
        text = text.replace(title[1], f'{title[1]}\n      <div class="thumbnail-line">{draw.__doc__}</div>')
    page.write_text(text)
