"""
Forecast from noisy snapshots
=============================

A model that follows a vibrating chain, where others explode or decay.

Four masses hang on springs, one behind the other. Their positions and velocities are recorded with noise
while somebody pushes the last mass. We want a linear model that forecasts the chain from its first state and
the pushes alone. The model that least squares finds grows without bound. The stable model with the least
error of one step decays too fast. :class:`~spectral_param.dynamics.StableLinearModel` with ``noise="auto"``
follows the chain.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_3_forecast_from_noisy_snapshots.png'
import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg

import spectral_param as sp

# %%
# The recordings
# --------------
#
# The state is :math:`x = (\text{positions}, \text{velocities})`, and :math:`u` is the force on the last mass.
# Newton's law gives :math:`\dot x = F x + G u`. The force is constant between two snapshots, so one matrix
# exponential gives the exact step :math:`x_{k+1} = A x_k + B u_k`.

masses, dt = 4, 0.1
n = 2 * masses
stiffness = 2 * np.eye(masses) - np.eye(masses, k=1) - np.eye(masses, k=-1)
stiffness[-1, -1] = 1.0  # Nothing holds the last mass from behind.
F = np.block([[np.zeros((masses, masses)), np.eye(masses)], [-stiffness, -0.05 * np.eye(masses)]])
G = np.eye(n)[:, [-1]]
step = scipy.linalg.expm(dt * np.block([[F, G], [np.zeros((1, n + 1))]]))
A_true, B_true = step[:n, :n], step[:n, n:]


def roll_out(A, B, x, U):
    """Return the states (len(U) + 1, n) that follow x, each computed from the one before."""
    states = [x]
    for u in U:
        states.append(A @ states[-1] + B @ u)
    return np.array(states)


def spectral_radius(A):
    """Return the largest modulus of an eigenvalue."""
    return np.abs(np.linalg.eigvals(A)).max()


# %%
# Four recordings of six seconds start from random positions, at rest. The sensors of the velocities have ten
# times the noise of those of the positions.

rng = np.random.default_rng(5)
noise = np.repeat([0.01, 0.1], masses)
recordings, pushes = [], []
for _ in range(4):
    start = np.append(rng.standard_normal(masses), np.zeros(masses))
    pushes.append(rng.standard_normal((60, 1)))
    states = roll_out(A_true, B_true, start, pushes[-1])
    recordings.append(states + noise * rng.standard_normal(states.shape))

fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 4.5), sharex=True, layout="constrained")
time = dt * np.arange(61)
colors = plt.colormaps["viridis"](np.linspace(0, 0.9, masses))
for i in range(masses):
    top.plot(time, recordings[0][:, masses + i] + 4 * i, ".-", linewidth=0.5, color=colors[i])
bottom.step(time[:-1], pushes[0][:, 0], where="post", color="0.4")
top.set(title="Velocities of the four masses in the first recording, one above the other", yticks=[])
bottom.set(title="Force on the last mass", xlabel="time (s)")
plt.show()

# %%
# Least squares explodes
# ----------------------
#
# Each pair of successive snapshots is a row: ``X`` holds the states, ``Y`` the states one step later, ``U``
# the forces in between.

X = np.vstack([x[:-1] for x in recordings])
Y = np.vstack([x[1:] for x in recordings])
U = np.vstack(pushes)

AB = np.linalg.lstsq(np.hstack([X, U]), Y, rcond=None)[0].T
A_least, B_least = AB[:, :n], AB[:, n:]
print(f"spectral radius of the chain:         {spectral_radius(A_true):.4f}")
print(f"spectral radius of least squares:     {spectral_radius(A_least):.4f}")
assert spectral_radius(A_true) < 1 < spectral_radius(A_least)

# %%
# The least error of one step decays
# ----------------------------------
#
# :func:`~spectral_param.dynamics.fit_stable` minimises the same error over all :math:`A` with spectral radius
# at most 1. The roll-out is bounded now. But the noise of the velocities is in ``X`` too. A fit of one step
# takes the effect of this noise for friction: all oscillations lose energy much faster than the real ones.

one_step = sp.dynamics.fit_stable(X, Y, U)
print(f"error of one step, relative to least squares: {one_step.error / one_step.least_squares_error:.4f}")
assert one_step.reached <= 1 + 1e-12

# %%
# The forecast fit follows
# ------------------------
#
# ``noise="auto"`` holds out rows and forecasts them. So it finds out where the noise is: it drives the system
# (one step is the right fit), or it is in the measurements (whole recordings are, each from a start that is
# estimated). Recordings and pushes go in as they are.

model = sp.dynamics.StableLinearModel(noise="auto", lead=40, dt=dt).fit(recordings, U=pushes)
print(f"noise: {model.noise_}")
print(f"spectral radius: {model.fit_.reached:.4f}")
assert model.noise_ == "measurement"
assert abs(model.fit_.reached - spectral_radius(A_true)) < 1e-3

# %%
# We roll all models out for 40 seconds, seven times as long as a recording, on pushes that they have not
# seen.

models = {
    "least squares": (A_least, B_least, "#D55E00", "s"),
    "one step, stable": (one_step.A, one_step.B, "#999999", "D"),
    "forecast fit": (model.A_, model.B_, "#0072B2", "o"),
}
new_pushes = rng.standard_normal((400, 1))
start = np.append(rng.standard_normal(masses), np.zeros(masses))
truth = roll_out(A_true, B_true, start, new_pushes)
predicted = {name: roll_out(A, B, start, new_pushes) for name, (A, B, *_) in models.items()}
errors = {name: np.linalg.norm(x - truth) / np.linalg.norm(truth) for name, x in predicted.items()}
for name, error in errors.items():
    print(f"{name:17} relative error of the roll-out: {error:6.2f}")

assert errors["forecast fit"] < 0.2 * errors["one step, stable"] < errors["least squares"]

# %%
# The eigenvalues say why. An eigenvalue :math:`\lambda` is a motion :math:`\lambda^k`: it oscillates with the
# frequency :math:`\arg\lambda / 2\pi\,\Delta t` and grows at the rate :math:`\log|\lambda| / \Delta t`. In
# the chain all four oscillations lose energy at the same small rate. The forecast fit finds all of them.


def frequency_and_growth(A):
    """Return both for each eigenvalue of the upper half plane, per second."""
    values = np.linalg.eigvals(A)
    values = values[values.imag >= 0]
    return np.angle(values) / (2 * np.pi * dt), np.log(np.abs(values)) / dt


fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=[3, 2], layout="constrained")
time = dt * np.arange(401)
left.plot(time, truth[:, masses - 1], color="black", linewidth=3, alpha=0.3, label="the chain")
right.plot(*frequency_and_growth(A_true), "k+", markersize=11, label="the chain")
for name, (A, _, color, marker) in models.items():
    left.plot(time, predicted[name][:, masses - 1], color=color, linewidth=1, label=name)
    right.plot(*frequency_and_growth(A), marker, color=color, fillstyle="none", label=name)
limit = 2.5 * np.abs(truth[:, masses - 1]).max()
left.set(title="Position of the last mass, rolled out", xlabel="time (s)", ylim=(-limit, limit))
left.legend(loc="lower left", ncols=2, frameon=False)
right.axhline(0, color="black", linewidth=0.8)
right.set(title="Growth rates of the motions", xlabel="frequency (Hz)", ylabel="growth rate (1/s)")
right.set_ylim(-1, 0.3)
plt.show()

true_frequencies = np.sort(frequency_and_growth(A_true)[0])
frequencies = np.sort(model.frequencies_[model.frequencies_ > 0])
print(f"oscillations of the model: {frequencies.round(3)} Hz")
print(f"oscillations of the chain: {true_frequencies.round(3)} Hz")
assert np.allclose(frequencies, true_frequencies, rtol=0.02)

# %%
# How far can we trust it?
# ------------------------
#
# ``forecast_error_`` has the errors on the rows that were held out, beside those of two trivial forecasts:
# "no change" and the mean. If one of them is better, a warning says so.

fig, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for (name, error), color in zip(model.forecast_error_.items(), ("#0072B2", "#D55E00", "0.5"), strict=True):
    ax.plot(np.arange(1, 41), error, color=color, label=name)
ax.set(xlabel="steps ahead", ylabel="error, relative to the mean", ylim=(0, 2.2))
ax.legend(frameon=False)
plt.show()
assert np.nanmean(model.forecast_error_["model"]) < 0.5 * np.nanmean(model.forecast_error_["no change"])

# %%
# Sensors that do not see everything
# ----------------------------------
#
# Say that only positions are measured. Positions alone are not a state: from the same position the masses can
# move to either side. Three successive rows together are a state. ``delays=3`` stacks them, and ``simulate``
# starts from the last rows that were measured. More than three are better: noise averages out.

positions = [x[:, :masses] for x in recordings]
delayed = sp.dynamics.StableLinearModel(noise="auto", lead=30, delays=3, dt=dt).fit(positions, U=pushes)
measured = (truth + noise * rng.standard_normal(truth.shape))[:, :masses]
rolled = delayed.simulate(measured[:20], steps=381, U=new_pushes)
error = np.linalg.norm(rolled - truth[20:, :masses]) / np.linalg.norm(truth[20:, :masses])
print(f"from positions alone, relative error of the roll-out: {error:.2f}")
assert error < 0.5 * errors["one step, stable"]

# %%
# What to try next
# ----------------
#
# - Change the seed. Least squares is not always unstable; the fit of one step always decays too fast.
# - Let noise drive the chain instead of the sensors: :doc:`the page of stable dynamics </dynamics>` says what
#   each kind of noise does to a fit.
# - Derivatives in place of next states, by accelerometers for instance:
#   ``fit_stable(..., time="continuous")``.
# - Many sensors and few snapshots, as in a video: ``StableLinearModel(rank=10)``.
# - Train on: ``model.to_module()`` is a torch module that starts at the fit and stays stable. The next
#   tutorial, :doc:`plot_4_koopman_pendulum`, trains such a matrix together with a network.
