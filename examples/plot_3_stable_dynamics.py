"""
Stable dynamics from noisy snapshots
====================================

Six masses hang on springs, one behind the other. Their positions and velocities are recorded with noise while
somebody pushes the last mass. We want a linear model that predicts the chain from its first state and the
pushes alone. Friction damps the real chain, but the model that least squares finds grows without bound.
:func:`~spectral_param.dynamics.fit_stable` finds a stable model with almost the same error.
"""

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

masses, dt = 6, 0.1
n = 2 * masses
stiffness = 2 * np.eye(masses) - np.eye(masses, k=1) - np.eye(masses, k=-1)
stiffness[0, 0], stiffness[-1, -1] = 1.01, 1.0  # A weak spring holds the first mass, nothing the last.
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
# Four recordings of ten seconds start from random positions, at rest. The sensors of the velocities have ten
# times the noise of those of the positions.

rng = np.random.default_rng(5)
noise = np.repeat([0.002, 0.02], masses)
recordings, pushes = [], []
for _ in range(4):
    start = np.append(rng.standard_normal(masses), np.zeros(masses))
    pushes.append(rng.standard_normal((100, 1)))
    states = roll_out(A_true, B_true, start, pushes[-1])
    recordings.append(states + noise * rng.standard_normal(states.shape))

fig, (top, bottom) = plt.subplots(2, 1, figsize=(8, 4.5), sharex=True, layout="constrained")
time = dt * np.arange(101)
colors = plt.colormaps["viridis"](np.linspace(0, 0.9, masses))
for i in range(masses):
    top.plot(time, recordings[0][:, i] + 2.5 * i, color=colors[i])
top.set(title="Positions of the six masses in the first recording, one above the other", yticks=[])
bottom.step(time[:-1], pushes[0][:, 0], where="post", color="0.4")
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
# This eigenvalue is only 0.6 per cent too large. In one step the noise hides that. A roll-out multiplies by
# it again and again, and :math:`1.0058^{1000} \approx 325`.
#
# The usual remedy divides the whole matrix by its spectral radius. The result is stable, but *every* motion
# now loses another 0.6 per cent per step, also those that least squares had found correctly.

A_divided = A_least / spectral_radius(A_least)
B_divided = np.linalg.lstsq(U, Y - X @ A_divided.T, rcond=None)[0].T  # the best B for this A

# %%
# The stable fit of least error
# -----------------------------
#
# ``fit_stable`` minimises the same error over all :math:`B` and over all :math:`A` with spectral radius at
# most 1.

fit = sp.dynamics.fit_stable(X, Y, U)

print(f"spectral radius: {fit.reached:.12f}")
print(f"error, relative to that of least squares: {fit.error / fit.least_squares_error:.4f}")
assert fit.reached <= 1 + 1e-12
assert fit.error < 1.005 * fit.least_squares_error

# %%
# Stability costs less than half a per cent of the error of one step. We roll all three models out for 100
# seconds, ten times as long as a recording, on pushes that they have not seen.

models = {
    "least squares": (A_least, B_least, "#D55E00", "s"),
    "divided by its radius": (A_divided, B_divided, "#999999", "D"),
    "fit_stable": (fit.A, fit.B, "#0072B2", "o"),
}
new_pushes = rng.standard_normal((1000, 1))
start = np.append(rng.standard_normal(masses), np.zeros(masses))
truth = roll_out(A_true, B_true, start, new_pushes)
predicted = {name: roll_out(A, B, start, new_pushes) for name, (A, B, *_) in models.items()}
errors = {name: np.linalg.norm(x - truth) / np.linalg.norm(truth) for name, x in predicted.items()}
for name, error in errors.items():
    print(f"{name:22} relative error of the roll-out: {error:6.2f}")

assert errors["least squares"] > 5
assert errors["fit_stable"] < 0.7 * errors["divided by its radius"]

# %%
# The eigenvalues say why. An eigenvalue :math:`\lambda` is a motion :math:`\lambda^k`: it oscillates with the
# frequency :math:`\arg\lambda / 2\pi\,\Delta t` and grows at the rate :math:`\log|\lambda| / \Delta t`. Least
# squares finds the five faster oscillations almost exactly. The slowest one takes 200 seconds, of which a
# recording shows ten; in its place least squares has two motions that do not oscillate, and one of them
# grows. Dividing spoils what was right. ``fit_stable`` puts the growing motion on the line, moves its
# partner, and leaves the five oscillations where they were.


def frequency_and_growth(A):
    """Return both for each eigenvalue of the upper half plane, per second."""
    values = np.linalg.eigvals(A)
    values = values[values.imag >= 0]
    return np.angle(values) / (2 * np.pi * dt), np.log(np.abs(values)) / dt


fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=[3, 2], layout="constrained")
time = dt * np.arange(1001)
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
plt.show()

# %%
# The same as a model
# -------------------
#
# :class:`~spectral_param.dynamics.StableLinearModel` is the same fit with the methods of scikit-learn. It
# takes whole recordings, so that no pairs have to be made, and it has frequencies, growth rates and modes.
# ``radius="cv"`` chooses a radius: it fits with several and keeps the one whose roll-outs predict recordings
# best that were left out of the fit.

model = sp.dynamics.StableLinearModel(radius="cv", dt=dt).fit(recordings, U=pushes)
rolled = model.simulate(start, 1000, new_pushes)
error = np.linalg.norm(rolled - truth[1:]) / np.linalg.norm(truth[1:])
print(f"radius chosen: {model.radius_}, relative error of the roll-out: {error:.2f}")
assert error < 0.7 * errors["divided by its radius"]

frequencies = np.sort(model.frequencies_[model.frequencies_ > 0])
true_frequencies = np.sort(frequency_and_growth(A_true)[0])
print(f"oscillations of the model: {frequencies.round(3)} Hz")
print(f"oscillations of the chain: {true_frequencies.round(3)} Hz")
assert np.allclose(frequencies, true_frequencies[1:], rtol=0.02)  # all but the slowest

# %%
# Continuous time
# ---------------
#
# Where derivatives are measured, by accelerometers for instance, the model is :math:`\dot x = A x + B u` and
# ``Y`` holds the derivatives. Stable now means that no eigenvalue has a positive real part: the *spectral
# abscissa*, the largest real part, is at most 0. ``abscissa=`` moves this bound, as ``radius=`` does above.

derivatives = X @ F.T + U @ G.T  # at the recorded states
derivatives += 0.02 * rng.standard_normal(derivatives.shape)
AB = np.linalg.lstsq(np.hstack([X, U]), derivatives, rcond=None)[0].T
continuous = sp.dynamics.fit_stable(X, derivatives, U, time="continuous")
abscissa = np.linalg.eigvals(AB[:, :n]).real.max()
print(f"spectral abscissa of least squares: {abscissa:9.6f}")
print(f"spectral abscissa of fit_stable:    {continuous.reached:9.6f}")
assert continuous.reached <= 1e-12 < abscissa

# %%
# What to try next
# ----------------
#
# - Change the seed. With seed 1 least squares is hardly unstable, and the three models predict about equally
#   well. Where least squares is stable, ``fit_stable`` returns it.
# - A fit on the bound never forgets, and its powers may grow before they stop: look at ``fit.growth``, and
#   read :doc:`when not to use the least error </dynamics>`.
# - Many sensors and few snapshots, as in a video: ``StableLinearModel(rank=10)``.
# - Train on: ``model.to_module()`` is a torch module that starts at the fit and stays stable. The next
#   tutorial, :doc:`plot_4_koopman_pendulum`, trains such a matrix together with a network.
