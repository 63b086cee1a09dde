r"""
A state-space layer with a certified gain
=========================================

The frequency response of a trained system stays below a gain that is given.

A controller was designed for a plant whose gain is at most γ. Its model is to be trained on data, and must
never have a larger gain: not in the end, and not on the way. This tutorial fits a linear model to a
recording, starts a state-space layer from it, trains the layer with a certified gain, and attacks the
certificate.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_12_certified_gain.png'
import matplotlib.pyplot as plt
import numpy as np
import torch

import spectral_param as sp

torch.manual_seed(0)
rng = np.random.default_rng(0)

# %%
# A recording
# -----------
# Two masses on springs, one of which gets harder when it is stretched. A force acts on the first mass. The
# positions and velocities are measured, with noise.


def record(steps, noise):
    """Return the force ``(steps, 1)`` and the states ``(steps, 4)`` from rest."""
    force = rng.standard_normal((steps, 1))
    x, states = np.zeros(4), []
    for u in force[:, 0]:
        states.append(x)
        for _ in range(10):  # Steps of 0.05.
            q, v = x[:2], x[2:]
            spring = 1.5 * (q[0] - q[1]) + 0.3 * (q[0] - q[1]) ** 3
            a = np.array([u - q[0] - spring - 0.25 * v[0], spring - q[1] - 0.25 * v[1]])
            v = v + 0.05 * a
            x = np.concatenate([q + 0.05 * v, v])
    return force, np.array(states) + noise * rng.standard_normal((steps, 4))


U, X = record(400, noise=0.1)
model = sp.dynamics.StableLinearModel().fit(X, U=U)
C = np.array([[0.0, 1.0, 0.0, 0.0]])  # The position of the second mass.
fitted = sp.analysis.h_infinity(model.A_, model.B_, C)
print(f"The gain of the fitted model is {fitted:.2f}.")

# %%
# Start the layer
# ---------------
# The bound is less than what the fit has. So the layer starts from the same poles and a smaller response. A
# fit of a smaller gain would be kept as it is.

GAIN = 0.9 * fitted
layer = sp.nn.StateSpace(1, 4, 1, gain=GAIN, bias=False, dtype=torch.float64)
layer.cells[0].start_from((model.A_, model.B_, C, None))
start = layer.cells[0].to_dlti()
print(f"The layer starts with {sp.analysis.h_infinity(start):.4f}, the bound is {GAIN:.4f}.")

# %%
# Train it
# --------
# On the error of simulations over 200 steps, from rest. All steps are computed at once.

recordings = [record(200, noise=0.0) for _ in range(16)]
forces, states = (torch.tensor(np.stack(part, axis=1)) for part in zip(*recordings, strict=True))
positions = states[:, :, 1:2]
optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
losses, gains = [], []
for step in range(120):
    loss = torch.nn.functional.mse_loss(layer(forces)[0], positions)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 20 == 0:
        gains.append(sp.analysis.h_infinity(layer.cells[0].to_dlti()))
assert max(gains) <= GAIN
assert losses[-1] < 0.8 * losses[0]
print(f"The error went from {losses[0]:.4f} to {losses[-1]:.4f}, and the gain was at most {max(gains):.4f}.")

# %%
# Attack it
# ---------
# No force of any length can have a larger effect. Power iteration looks for the strongest one of 500 steps.

u = torch.randn(500, 1, 1, dtype=torch.float64)
for _ in range(100):
    u = (u / u.norm()).requires_grad_()
    effect = layer(u)[0].norm()
    (u,) = torch.autograd.grad(effect, u)
assert 0.9 * GAIN < effect <= GAIN
print(f"The strongest force that was found has an effect of {effect.item():.4f} times its norm.")

# %%
# The frequency response says the same: its peak stays below the bound.

angles = np.linspace(0, np.pi, 500)
figure, axes = plt.subplots()
for system, label in ((start, "start"), (layer.cells[0].to_dlti(), "trained")):
    A, B, C, D = system.A, system.B, system.C, system.D
    response = C @ np.linalg.solve(np.exp(1j * angles)[:, None, None] * np.eye(4) - A, B) + D
    axes.plot(angles, np.abs(response[:, 0, 0]), label=label)
axes.axhline(GAIN, color="black", linestyle="--", label="certified")
axes.set(xlabel="frequency, radians a step", ylabel="gain", xlim=(0, np.pi))
axes.legend()
figure.tight_layout()

# %%
# More: :class:`spectral_param.nn.StateSpace` has several layers with activations between them, and the gain
# of the whole; :class:`spectral_param.BoundedGain` constrains a weight :math:`[[A, B], [C, D]]` of one's own.
