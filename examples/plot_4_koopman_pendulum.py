r"""
A deep Koopman model of a pendulum
==================================

Two minutes of a pendulum, predicted from four seconds by a linear model inside a network.

A pendulum is nonlinear: large swings take longer than small ones. Yet there are functions
:math:`z = \varphi(x)` of its state that move *linearly*, :math:`z_{k+1} = A z_k`; this is Koopman's idea. A
neural network learns such functions together with the matrix :math:`A` (Lusch, Kutz and Brunton, Nature
Communications 2018).

We train on pieces of four seconds and predict two minutes. Errors of :math:`A` then act 600 times, so one
eigenvalue outside the unit circle ruins the model. :class:`~spectral_param.LyapunovForm` keeps all of them
inside.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_4_koopman_pendulum.png'
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import spectral_param as sp

torch.manual_seed(0)

# %%
# The pendulum
# ------------
#
# The state :math:`x` is the angle and the angular velocity, :math:`\ddot\alpha = -\sin\alpha -
# 0.2\,\dot\alpha`. We record 40 swings, a state every 0.2 seconds, and cut them into pieces of 20 steps.

dt, horizon = 0.2, 20


def pendulum(x, steps):
    """Return states (number, steps + 1, 2) from the starts x (number, 2), by Runge and Kutta."""

    def velocity(x):
        return torch.stack([x[:, 1], -torch.sin(x[:, 0]) - 0.2 * x[:, 1]], dim=1)

    states, h = [x], dt / 4
    for _ in range(steps):
        for _ in range(4):
            k1 = velocity(x)
            k2 = velocity(x + h / 2 * k1)
            k3 = velocity(x + h / 2 * k2)
            k4 = velocity(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(x)
    return torch.stack(states, dim=1)


angles = torch.linspace(-2.2, 2.2, 40, dtype=torch.float64)
recordings = pendulum(torch.stack([angles, 2 * torch.rand(40, dtype=torch.float64) - 1], dim=1), 100)
pieces = recordings.unfold(1, horizon + 1, 15).transpose(2, 3).flatten(0, 1)  # (pieces, horizon + 1, 2)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(*recordings.permute(2, 1, 0), color="#0072B2", linewidth=0.4)
left.set(title="Recordings in the phase plane", xlabel="angle (rad)", ylabel="angular velocity (rad/s)")
right.plot(dt * torch.arange(horizon + 1), pieces[:30, :, 0].T, color="#D55E00", linewidth=0.7)
right.set(title="Angles in 30 of the pieces trained on", xlabel="time (s)", ylabel="angle (rad)")
plt.show()

# %%
# The model
# ---------
#
# The latent state :math:`z` is the state itself and ten learned functions of it. So the decoder is simple:
# angle and velocity are the first two entries. Subtracting the value at rest makes :math:`z = 0` there.


class Koopman(nn.Module):
    """Learned functions of the state that move linearly."""

    def __init__(self, functions=10):
        super().__init__()
        self.functions = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, functions))
        self.motion = nn.Linear(2 + functions, 2 + functions, bias=False)
        self.double()

    def encode(self, x):
        """Return z (..., 12) for x (..., 2)."""
        return torch.cat([x, self.functions(x) - self.functions(torch.zeros_like(x))], dim=-1)

    def roll_out(self, start, steps):
        """Return z (number, steps + 1, 12) from the states start (number, 2)."""
        A = self.motion.weight
        z = self.encode(start)[:, None]
        while z.shape[1] <= steps:  # Each pass doubles the length: z, then Az, then A²(z, Az), ...
            z = torch.cat([z, z @ A.T], dim=1)
            A = A @ A
        return z[:, : steps + 1]

    def radius(self):
        """Return the spectral radius of A."""
        return sp.functional.spectral_radius(self.motion.weight.detach()).item()


# %%
# Training compares the roll-out with the encoded recording. We divide by the size of the motion in the piece,
# so that the small swings at the end of a recording count as much as the large ones.


def train(model, learning_rate, steps=300):
    """Train on all pieces, and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    size = pieces.square().sum(dim=(1, 2))
    for _ in range(steps):
        difference = model.roll_out(pieces[:, 0], horizon) - model.encode(pieces)
        squares = difference.square().sum(dim=1)  # (pieces, 12)
        loss = ((squares[:, :2].sum(dim=1) + 0.1 * squares[:, 2:].sum(dim=1)) / size).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


# %%
# Both models start from the same functions, and from the :math:`A` that ``fit_stable`` finds for them before
# they are trained. One is left free. The other one has a constraint, which first moves this :math:`A` into
# its set: all eigenvalues in the unit disc, and the norm of no power of :math:`A` above 4. So no motion grows
# by more than a factor of 4 before it decays; see :doc:`plot_7_radius_norm_growth`.
#
# The free model gets a smaller learning rate. With 0.01 its first steps increase the loss more than a
# hundredfold, and training does not recover from that.

free, stable = Koopman(), Koopman()
stable.load_state_dict(free.state_dict())
with torch.no_grad():
    encoded = free.encode(recordings)
    start = sp.dynamics.fit_stable(encoded[:, :-1].flatten(0, 1), encoded[:, 1:].flatten(0, 1), ridge=1e-6).A
    free.motion.weight.copy_(start)
sp.constrain(stable.motion, "weight", sp.LyapunovForm(radius=1.0, growth=4.0), init=start)

loss = {"free": train(free, 0.003), "stable": train(stable, 0.01)}
for name, model in (("free", free), ("stable", stable)):
    print(f"{name:7} loss {loss[name]:.4f}   spectral radius {model.radius():.4f}")
assert max(loss.values()) < 0.05
assert stable.radius() <= 1 + 1e-9
assert free.radius() > 1.01

# %%
# Two minutes from four seconds
# -----------------------------
#
# Both models fit the pieces. We let a pendulum swing that neither has seen, and roll both out for two
# minutes, thirty times as long as a piece.

x0 = torch.tensor([[1.3, 0.0]], dtype=torch.float64)
truth = pendulum(x0, 600)[0]
with torch.no_grad():
    predicted = {"free": free.roll_out(x0, 600)[0, :, :2], "stable": stable.roll_out(x0, 600)[0, :, :2]}

fig, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
time = dt * torch.arange(601)
for ax, (name, x), color in zip(axes, predicted.items(), ("#D55E00", "#0072B2"), strict=True):
    ax.plot(time, truth[:, 0], color="0.75", linewidth=4, label="pendulum")
    ax.plot(time, x[:, 0], color=color, linewidth=1.2, label=f"{name} model")
    ax.axvspan(0, dt * horizon, color="0.93", zorder=0)
    ax.set(title=f"Roll-out of the {name} model", ylabel="angle (rad)", ylim=(-2.2, 2.2), xlim=(0, 60))
    ax.legend(loc="upper right", ncols=2, frameon=False)
axes[1].set_xlabel("time (s); grey: as long as the pieces trained on")
plt.show()

error = {name: ((x - truth).norm() / truth.norm()).item() for name, x in predicted.items()}
print(f"relative error over two minutes: free {error['free']:.1e}, stable {error['stable']:.3f}")
assert error["free"] > 100
assert error["stable"] < 0.25

# %%
# What the eigenvalues mean
# -------------------------
#
# Each eigenvalue :math:`\lambda` of :math:`A` belongs to an *eigenfunction*, a function of the state that is
# multiplied by :math:`\lambda` in each step. In continuous time :math:`\log\lambda / \Delta t` is its growth
# rate and frequency. For small swings we know the answer: :math:`\ddot\alpha = -\alpha - 0.2\,\dot\alpha` has
# :math:`-0.1 \pm 0.995i`. The model has found a pair close to it.

A = stable.motion.weight.detach()
eigenvalues, left_vectors = torch.linalg.eig(A.T)
rates = eigenvalues.log() / dt
small_swing = torch.tensor(complex(-0.1, (1 - 0.1**2) ** 0.5))
nearest = (rates - small_swing).abs().argmin()
print(f"small swings: {small_swing.item():.3f}, nearest in the model: {rates[nearest].item():.3f}")
assert (rates[nearest] - small_swing).abs() < 0.2

# %%
# The left picture shows the eigenvalues of both models next to the unit circle. In the right one the colour
# is the phase of the eigenfunction of this pair: the clock of the pendulum, which runs at the same speed in
# large swings and in small ones. The white lines are levels of the modulus. It decays at the same rate
# everywhere, so the black swing crosses one line every five seconds.

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=[2, 3], layout="constrained")
for name, model, color in (("free", free, "#D55E00"), ("stable", stable, "#0072B2")):
    values = sp.analysis.eigenvalues(model.motion.weight.detach())
    sp.analysis.plot_eigenvalues(values, left, facecolors="none", edgecolors=color, s=36, label=name)
left.set(title="Eigenvalues of both models", xlim=(0.5, 1.15), ylim=(-0.75, 0.75))
left.legend(loc="lower left")

angle, velocity = np.meshgrid(np.linspace(-2.2, 2.2, 221), np.linspace(-2.0, 2.0, 201))
grid = torch.from_numpy(np.stack([angle, velocity], axis=-1))
with torch.no_grad():
    eigenfunction = (stable.encode(grid).to(left_vectors.dtype) @ left_vectors[:, nearest]).numpy()
image = right.imshow(
    np.angle(eigenfunction), origin="lower", extent=[-2.2, 2.2, -2, 2], cmap="twilight", aspect="auto"
)
with torch.no_grad():
    at_start = (stable.encode(x0).to(left_vectors.dtype) @ left_vectors[:, nearest]).abs().item()
levels = at_start * np.exp(5 * rates[nearest].real.item() * np.arange(6, -4, -1))
right.contour(angle, velocity, np.abs(eigenfunction), levels, colors="white", linewidths=0.8)
right.plot(*truth[:150].T, color="black", linewidth=1)
right.set(title="Phase of the eigenfunction of small swings", xlabel="angle (rad)", ylabel="velocity (rad/s)")
fig.colorbar(image, ax=right, ticks=[-3, 0, 3], label="phase (rad)")
plt.show()

# %%
# What to try next
# ----------------
#
# - ``SpectralRadiusNorm(mode="at_most")`` keeps the radius at most 1 by dividing :math:`A` as a whole. Once
#   training has pushed the undivided matrix beyond the bound, its size has no effect and so no gradient: the
#   radius tends to stay at the bound, and the model does not come to rest.
# - No friction: replace 0.2 by 0, and use the orthogonal :class:`~spectral_param.ScaledCayley`, with which
#   nothing grows and nothing decays.
# - A fit without learned functions: :doc:`plot_3_forecast_from_noisy_snapshots`, and ``to_module()`` to train
#   on from it.
# - Inputs: add ``u @ B.T`` to each step.
