"""
From a recording to a controller
================================

Two sensors of a plant give its hidden states, a forecast with its band, and a controller.

A motor turns a wheel through a shaft that twists. We may set the torque of the motor, and two sensors, both
noisy, see the speed of the motor and the angle of the wheel. Nothing measures the twist of the shaft. From
one recording, :class:`~spectral_param.dynamics.StableLinearModel` with ``states="auto"`` finds a model with
hidden states: it forecasts the sensors, says how far to trust the forecast, and gives the matrices from which
a controller is designed.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_13_hidden_states.png'
import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg

import spectral_param as sp

# %%
# The plant
# ---------
#
# The states are the speeds of motor and wheel, the twist of the shaft, and the angle of the wheel, which a
# soft spring draws back. Newton's law gives :math:`\dot x = F x + G u`, and the torque is constant between
# two samples.

dt = 0.05
F = np.array([[-0.4, 0.1, -8.0, 0.0], [0.1, -0.3, 8.0, -1.0], [1.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
G = np.array([[4.0], [0.0], [0.0], [0.0]])
step = scipy.linalg.expm(dt * np.block([[F, G], [np.zeros((1, 5))]]))
A_true, B_true = step[:4, :4], step[:4, 4:]
C_true = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])

# %%
# The recording
# -------------
#
# The torque jumps at random times, so that the plant answers at all frequencies. A small random torque on the
# motor and the wheel, which nobody records, and the noise of the sensors make the rest.

rng = np.random.default_rng(0)
rows, fitted = 1200, 1000
jumps = rng.integers(0, 2, rows // 4) * 2.0 - 1.0
U = np.repeat(jumps, 4)[:, None]
x, Y = np.zeros(4), []
for u in U:
    Y.append(C_true @ x + [0.1, 0.02] * rng.standard_normal(2))
    x = A_true @ x + B_true @ u + [0.05, 0.05, 0.0, 0.0] * rng.standard_normal(4)
Y = np.array(Y)

# %%
# The fit
# -------
#
# ``"auto"`` tries 1, 2, 3, ... states and takes those of the least BIC, which weighs the likelihood against
# the number of unknowns. From 4 states on, more do not help.

model = sp.dynamics.StableLinearModel(states="auto", lead=60, dt=dt).fit(Y[:fitted], U=U[:fitted])
print(f"{model.states_} states")
table = model.choice_.table
for number, through, bic in zip(table["states"], table["feedthrough"], table["bic"], strict=True):
    print(f"{number}{' with D' if through else '       '}: {bic:9.1f}")

# %%
# The states are hidden: their coordinates are as good as any others. The eigenvalues do not depend on
# coordinates. Here the true ones are in the right column.

true = np.linalg.eigvals(A_true)
for found, exact in zip(np.sort_complex(model.eigenvalues_), np.sort_complex(true), strict=False):
    print(f"{found:.3f}  {exact:.3f}")
print(f"radius of A {np.abs(model.eigenvalues_).max():.4f}, of A - KC {model.fit_.predictor_reached:.4f}")

# %%
# A forecast with its band
# ------------------------
#
# The filter reads the recording to its end and finds the state. From there the model forecasts three seconds
# for the torques that we plan. In 90 % of such forecasts the measured value lies in the band, at each step.

forecast = model.forecast(60, U=U[fitted - 1 : fitted + 60], coverage=0.9)
later = Y[fitted : fitted + 60]
inside = (forecast.lower <= later) & (later <= forecast.upper)
print(f"{inside.mean():.0%} of the measurements that followed lie in the band")

t = dt * np.arange(rows)
figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
for i, (ax, label) in enumerate(zip(axes, ("speed of the motor", "angle of the wheel"), strict=True)):
    ax.plot(t[fitted - 80 : fitted + 60], Y[fitted - 80 : fitted + 60, i], ".", color="0.5", label="measured")
    ahead = t[fitted : fitted + 60]
    ax.fill_between(ahead, forecast.lower[:, i], forecast.upper[:, i], alpha=0.3, label="90 %")
    ax.plot(ahead, forecast.mean[:, i], label="forecast")
    ax.axvline(t[fitted - 1], color="0.5", linewidth=0.8)
    ax.set_ylabel(label)
axes[1].set_xlabel("time in seconds")
axes[0].legend(frameon=False, loc="upper left", ncols=3)
plt.show()

# %%
# Matrices for a controller
# -------------------------
#
# ``to_dlti`` gives the system to scipy.signal; python-control takes ``control.ss(A, B, C, D, dt)``. The
# design needs the matrices alone. A linear-quadratic regulator weighs the angle of the wheel against the
# torque, and its states come from the filter of the fit:
# :math:`\hat x^+ = A \hat x + B u + K (y - C \hat x)`.

system = model.to_dlti()
A, B, C, K = system.A, system.B, system.C, model.K_
P = scipy.linalg.solve_discrete_are(A, B, 1e4 * C[1:].T @ C[1:], np.eye(1))
gain = np.linalg.solve(B.T @ P @ B + np.eye(1), B.T @ P @ A)


def released(controlled):
    """Return the true angles of the wheel after it was turned by 1 and let go."""
    x, state, angles = np.array([0.0, 0.0, 0.0, 1.0]), np.zeros(len(A)), []
    noise = np.random.default_rng(1)
    for _ in range(200):
        angles.append(x[3])
        y = C_true @ x + [0.1, 0.02] * noise.standard_normal(2)
        u = -gain @ state if controlled else np.zeros(1)
        state = A @ state + B @ u + K @ (y - C @ state)
        x = A_true @ x + B_true @ u
    return np.array(angles)


left, right = released(False), released(True)
print(f"after four to ten seconds the angle is at most {np.abs(left[80:]).max():.2f} by itself,")
print(f"and {np.abs(right[80:]).max():.2f} with the controller")

figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
ax.plot(dt * np.arange(200), left, color="0.5", label="by itself")
ax.plot(dt * np.arange(200), right, label="with the controller")
ax.set(xlabel="time in seconds", ylabel="angle of the wheel")
ax.legend(frameon=False)
plt.show()
