r"""
An echo-state network on the Mackey-Glass series
================================================

One number decides whether a reservoir is of any use.

An echo-state network predicts a time series with a recurrent network that is never trained: a large, sparse,
random *reservoir*. Only the linear map that reads it out is fitted, by ridge regression. The size of the
recurrent matrix decides whether the reservoir is of any use. This tutorial measures how the prediction error
depends on its spectral radius ρ (the largest modulus of an eigenvalue), and scales a reservoir to the largest
size for which it provably forgets, for every input.
"""

# %%
# The series
# ----------
# The Mackey-Glass equation is a standard test:
#
# .. math:: \dot x(t) = \frac{0.2\,x(t - 17)}{1 + x(t - 17)^{10}} - 0.1\,x(t).
#
# Its solution is chaotic: two solutions that start close together separate. We integrate it by the classical
# Runge-Kutta method with a step of 0.1 and keep one value per unit of time.

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_5_echo_state_network.png'
import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

import spectral_param as sp


def mackey_glass(length, delay=17, substeps=10, washout=1000):
    """Return ``length`` values of the Mackey-Glass series, one time unit apart."""

    def slope(now, delayed):
        return 0.2 * delayed / (1 + delayed**10) - 0.1 * now

    step, lag = 1 / substeps, delay * substeps
    x = [1.2] * (lag + 1)
    for i in range(lag, lag + substeps * (washout + length)):
        before, after = x[i - lag], x[i - lag + 1]
        between = (before + after) / 2
        k1 = slope(x[i], before)
        k2 = slope(x[i] + step / 2 * k1, between)
        k3 = slope(x[i] + step / 2 * k2, between)
        k4 = slope(x[i] + step * k3, after)
        x.append(x[i] + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    return np.array(x[-substeps * length :: substeps])


TRAIN, WASHOUT, HORIZON = 2000, 200, 84
series = np.tanh(mackey_glass(6000) - 1)  # centred, in the range of the units

figure, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
ax.plot(series[:800])
ax.set(xlabel="time", ylabel="x")
ax.set_title("The Mackey-Glass series, transformed by tanh(x - 1)")
plt.show()

# %%
# A sparse reservoir with a given spectral radius
# -----------------------------------------------
# 500 units, each connected to 2 per cent of the others. :func:`spectral_param.init.spectral_radius_` scales
# the entries of a sparse matrix so that its spectral radius is the given one. There is no parametrization,
# since nothing trains the matrix.

UNITS = 500


def reservoir(seed):
    """Return the recurrent matrix with radius 1, the input weights and the biases."""
    rng = np.random.default_rng(seed)
    W = scipy.sparse.random_array(
        (UNITS, UNITS), density=0.02, rng=rng, data_sampler=rng.standard_normal
    ).tocsr()
    W = sp.init.spectral_radius_(W, radius=1.0)
    return W, rng.uniform(-1, 1, UNITS), rng.uniform(-0.2, 0.2, UNITS)


W, w_in, bias = reservoir(seed=0)
eigenvalues = np.linalg.eigvals((0.9 * W).toarray())

figure, ax = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
ax.scatter(eigenvalues.real, eigenvalues.imag, s=9)
ax.add_patch(plt.Circle((0, 0), 0.9, fill=False, color="C3", linestyle="--", label="radius 0.9"))
ax.add_patch(plt.Circle((0, 0), 1.0, fill=False, color="0.5", label="unit circle"))
ax.set(xlabel="Re λ", ylabel="Im λ", aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
ax.set_title("Eigenvalues of the reservoir scaled to radius 0.9")
ax.legend(loc="upper right", fontsize="small")
plt.show()

assert abs(np.abs(eigenvalues).max() - 0.9) < 1e-6

# %%
# Many eigenvalues crowd at the edge. If the matrix is too large to compute all of them, one usually calls
# ``scipy.sparse.linalg.eigs(k=1)``, which can return one that is not the largest. ``spectral_radius_`` proves
# its value, or takes all eigenvalues, or raises an error.
#
# Fit the readout
# ---------------
# The reservoir runs over the series, :math:`h_t = \tanh(W h_{t-1} + w\,x_t + b)`. The readout is a linear
# map of :math:`h_t` fitted to :math:`x_{t+1}`. The first 200 states still depend on the zero state before
# them and are left out.


def drive(reservoir, inputs):
    """Return the states (steps, UNITS) of a reservoir that starts at zero and reads the inputs."""
    W, w_in, bias = reservoir
    h, states = np.zeros(UNITS), []
    for x in inputs:
        h = np.tanh(W @ h + w_in * x + bias)
        states.append(h)
    return np.array(states)


def with_one(states):
    """Append a constant feature."""
    return np.concatenate([states, np.ones((*states.shape[:-1], 1))], axis=-1)


def fit(reservoir, ridge=1e-6):
    """Return the readout weights (UNITS + 1,) of ridge regression."""
    states = with_one(drive(reservoir, series[: TRAIN - 1])[WASHOUT:])
    targets = series[WASHOUT + 1 : TRAIN]
    return np.linalg.solve(states.T @ states + ridge * np.eye(UNITS + 1), states.T @ targets)


# %%
# Predict in closed loop
# ----------------------
# To predict further than one step, the network reads its own prediction as the next input. It gets 200 true
# values to arrive at the right state, then none.


def predict(reservoir, readout, start, steps):
    """Return predictions of series[start : start + steps]; only values before start are used."""
    W, w_in, bias = reservoir
    h = drive(reservoir, series[start - WASHOUT : start])[-1]
    predictions = []
    for _ in range(steps):
        x = with_one(h) @ readout
        predictions.append(x)
        h = np.tanh(W @ h + w_in * x + bias)
    return np.array(predictions)


START, STEPS = 2600, 400
figure, axes = plt.subplots(3, 1, figsize=(8, 5.6), sharex=True, sharey=True, layout="constrained")
for ax, radius in zip(axes, (0.4, 0.9, 1.5), strict=True):
    scaled = (radius * W, w_in, bias)
    ax.plot(series[START : START + STEPS], color="0.6", linewidth=3, label="truth")
    ax.plot(predict(scaled, fit(scaled), START, STEPS), color="C0", linewidth=1.2, label="closed loop")
    ax.axvline(HORIZON, color="0.3", linestyle=":", linewidth=1)
    ax.set(ylabel="x", ylim=(-0.75, 0.45))
    ax.set_title(f"ρ = {radius}", fontsize="medium")
axes[0].legend(loc="lower right", fontsize="small")
axes[-1].set_xlabel("steps since the last true value")
figure.suptitle("Closed-loop prediction of the Mackey-Glass series with reservoirs of three radii")
plt.show()

# %%
# The radius decides
# ------------------
# The usual measure is the error after 84 steps in closed loop (dotted lines above), as a root mean square
# over many starts, relative to the standard deviation of the series: 1 means no better than the mean of the
# series. We take three reservoirs with each radius, and eight starts of each.

radii = np.array([0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6])
starts = range(TRAIN + WASHOUT, TRAIN + WASHOUT + 8 * 400, 400)
errors = np.zeros((3, len(radii)))
for seed in range(3):
    W, w_in, bias = reservoir(seed)
    for i, radius in enumerate(radii):
        scaled = (radius * W, w_in, bias)
        readout = fit(scaled)
        misses = [
            predict(scaled, readout, start, HORIZON)[-1] - series[start + HORIZON - 1] for start in starts
        ]
        errors[seed, i] = np.sqrt(np.mean(np.square(misses))) / series.std()
typical = np.exp(np.log(errors).mean(axis=0))  # the geometric mean

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(radii, errors.T, "o", color="C0", alpha=0.4, markersize=4)
ax.plot(radii, typical, color="C0")
ax.axhline(1, color="0.3", linestyle=":", linewidth=1)
ax.set(yscale="log", xlabel="spectral radius ρ", ylabel="relative error after 84 steps")
ax.set_title("Error of the prediction over the spectral radius of the reservoir")
plt.show()

for radius, error in zip(radii, typical, strict=True):
    print(f"ρ = {radius:.1f}: error {error:.3f}")

good = errors[:, (radii >= 0.9) & (radii <= 1.1)]
assert good.max() < 0.1
assert errors[:, radii <= 0.4].min() > 3 * good.max()
assert errors[:, radii >= 1.4].min() > 3 * good.max()

# %%
# With a small radius the reservoir forgets the past within a few steps, and the delay of 17 is out of its
# reach. With a large radius the reservoir has a life of its own: its state no longer follows from the
# inputs, so the same inputs do not give the same state. The best radius lies where memory is long and the
# inputs still rule. ρ < 1 is a rule of thumb, no law: the inputs push the units into the flat parts of tanh,
# so that here ρ = 1.1 works, too. And there are inputs for which a reservoir with ρ < 1 does not forget:
# :doc:`/reservoirs` has one.
#
# A reservoir that provably forgets
# ---------------------------------
# :func:`spectral_param.init.echo_state_` scales a reservoir to the largest size for which forgetting is
# proven for every input: in coordinates Θ that it returns, each step multiplies the difference of two states
# by at most ``rate``. We start two copies of the reservoir from different states and let them read the same
# series.

W, w_in, bias = reservoir(seed=0)
W, certificate = sp.init.echo_state_(W, rate=0.99)
print(f"rate {certificate.rate:.3f}, radius {certificate.radius:.3f}, cond Θ {certificate.condition:.2f}")

rng = np.random.default_rng(0)
states = rng.uniform(-1, 1, (2, UNITS))
theta, distances = certificate.scaling.numpy(), []
for x in series[:400]:
    distances.append(np.linalg.norm(theta * (states[0] - states[1])))
    states = np.tanh(states @ W.T + w_in * x + bias)
distances = np.array(distances)

figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.plot(distances / distances[0], label="measured")
ax.plot(0.99 ** np.arange(400), color="0.4", linestyle="--", label="proven for every input")
ax.set(yscale="log", xlabel="steps", ylabel="distance in ‖Θ·‖", ylim=(1e-12, 2))
ax.set_title("Two states of a reservoir that read the same series")
ax.legend()
plt.show()

assert (distances <= distances[0] * 0.99 ** np.arange(400) * (1 + 1e-9) + 1e-12).all()

certified = (W, w_in, bias)
readout = fit(certified)
misses = [predict(certified, readout, start, HORIZON)[-1] - series[start + HORIZON - 1] for start in starts]
print(f"error {np.sqrt(np.mean(np.square(misses))) / series.std():.3f}")

# %%
# The proof covers the reservoir while it reads the series. In closed loop the readout feeds its own
# prediction back, which adds the product of input and readout weights to W and voids it. So there the
# measured errors decide, and the radius is a number to tune. A reservoir that must not depend on where it
# started from, whatever it reads, is scaled by ``echo_state_``.
#
# The attractor
# -------------
# Left to itself for 3,000 steps, the network cannot follow the truth point by point. For a chaotic series,
# nothing can. But it should draw the same figure: x(t) against x(t - 17).

W, w_in, bias = reservoir(seed=0)
scaled = (0.9 * W, w_in, bias)
alone = predict(scaled, fit(scaled), TRAIN, 3000)

figure, axes = plt.subplots(1, 2, figsize=(8, 4.2), sharex=True, sharey=True, layout="constrained")
for ax, values, title, color in (
    (axes[0], series[TRAIN : TRAIN + 3000], "truth", "0.35"),
    (axes[1], alone, "network, closed loop", "C0"),
):
    ax.plot(values[17:], values[:-17], linewidth=0.5, color=color)
    ax.set(xlabel="x(t)", ylabel="x(t - 17)", aspect="equal")
    ax.set_title(title)
figure.suptitle("The Mackey-Glass attractor, and the network's own, ρ = 0.9")
plt.show()

assert abs(alone.mean() - series.mean()) < 0.05
assert abs(alone.std() / series.std() - 1) < 0.15

# %%
# What to try next
# ----------------
# - A longer delay, ``delay=30``, needs a longer memory. Which radius is best then?
# - Take 5,000 units with ``density=0.002``: no dense decomposition is needed to scale them.
# - Leaky units, :math:`h_t = (1 - a)\,h_{t-1} + a \tanh(\dots)`, have another map with another radius:
#   :doc:`/reservoirs` says how to set that radius.
# - Train the recurrent matrix as well, with its radius kept: ``sp.constrain(rnn, "weight_hh_l0",
#   sp.SpectralRadiusNorm(0.9))``, as in :doc:`plot_2_constrain_your_lstm`.
