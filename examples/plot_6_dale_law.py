r"""
A network that obeys Dale's law, in continuous time
===================================================

Neurons that excite or inhibit, trained to keep a rhythm.

A neuron of the cortex excites all the neurons that it reaches, or inhibits all of them: this is Dale's law.
For a model with the connections :math:`W` it means that each *column* of :math:`W` has one sign. For a rhythm
we want a second property: an unstable rest state, so that the activity does not die out.

This tutorial trains a network of 40 excitatory and 10 inhibitory neurons to draw circles, over and over. Two
constraints, one after the other, keep both properties through the whole training: signs by
:class:`~spectral_param.SignPattern`, and the growth rate about the rest state by
:class:`~spectral_param.SpectralAbscissa`.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_6_dale_law.png'
import copy
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.utils import parametrize

import spectral_param as sp

torch.manual_seed(0)

# %%
# The network
# -----------
#
# Neuron :math:`i` has the potential :math:`x_i` and fires at the rate :math:`r_i = \sigma(4x_i)`, between 0
# and 1, with :math:`\sigma` the logistic function. The potentials follow
#
# .. math:: \dot x_i = -\ell_i x_i + \sum_j W_{ij} \, (r_j - \tfrac12) ,
#
# where :math:`\ell_i` is the leak of the neuron. At rest, :math:`x = 0`, all rates are one half. The slope of
# the rate is 1 there, so small deviations from rest follow :math:`\dot x = Jx` with :math:`J = W -
# \mathrm{diag}(\ell)`. We therefore train :math:`J`: connections off the diagonal, leaks on the diagonal.
#
# The connections start as a loop: excitatory neurons excite each other and the inhibitory neurons, and these
# silence the excitatory ones. Activity rotates in such a loop. Each entry is random, between 0 and twice the
# mean of its block.

excitatory, inhibitory, dt = 40, 10, 0.1
n = excitatory + inhibitory


def random_loop():
    """Return connections (n, n) of random size: rows are targets, columns are sources."""
    from_excitatory = torch.tensor([1.9] * excitatory + [1.17] * inhibitory) / excitatory
    from_inhibitory = torch.tensor([-1.17] * excitatory + [-0.1] * inhibitory) / inhibitory
    means = torch.stack([from_excitatory] * excitatory + [from_inhibitory] * inhibitory, dim=1)
    return 2 * means * torch.rand(n, n)


class RateNetwork(nn.Module):
    """A rate network that moves a pen in the plane, by Euler steps of length dt."""

    def __init__(self):
        super().__init__()
        self.J = nn.Parameter(random_loop() - torch.eye(n))
        self.start = nn.Parameter(0.5 * torch.randn(n))
        self.pen = nn.Linear(n, 2)

    def forward(self, steps, noise=0.0):
        """Return positions of the pen (8, steps, 2) and rates (8, steps, n) of eight runs."""
        J = self.J
        leak = J.diagonal()
        W = J - leak.diag()
        x = self.start + noise * torch.randn(8, n)
        rates = []
        for _ in range(steps):
            rates.append(torch.sigmoid(4 * x))
            x = x + dt * (leak * x + (rates[-1] - 0.5) @ W.T)
        rates = torch.stack(rates, dim=1)
        return self.pen(rates), rates


net = RateNetwork()

# %%
# The constraints
# ---------------
#
# The pattern has a 1 for each entry that has to be positive and a -1 for each that has to be negative. The
# diagonal, which holds the leaks, may have any sign: it is NaN.

pattern = torch.ones(n, n)
pattern[:, excitatory:] = -1
pattern.fill_diagonal_(torch.nan)

# %%
# The rest state is unstable if an eigenvalue of :math:`J` has a positive real part. The *spectral abscissa*
# is the largest real part. ``SpectralAbscissa(0.3)`` sets it to 0.3: small activity grows by a factor e in
# 3.3 units of time, until the rates saturate. This constraint adds a multiple of the identity matrix. That
# changes the leaks and no connection, so the signs survive, and the two can be chained.

sp.constrain(net, "J", [sp.SignPattern(pattern), sp.SpectralAbscissa(0.3)])


def abscissa(J):
    """Return the largest real part of an eigenvalue."""
    return torch.linalg.eigvals(J).real.max().item()


def obeys_dale(J):
    """Return whether no entry off the diagonal has the wrong sign."""
    off_diagonal = J - J.diagonal().diag()
    return bool((off_diagonal[:, :excitatory] >= 0).all() and (off_diagonal[:, excitatory:] <= 0).all())


before = net.J.detach().clone()
print(f"spectral abscissa {abscissa(before):.3f}, Dale's law: {obeys_dale(before)}")

# %%
# Training
# --------
#
# The pen has to follow a circle, one turn in ten units of time. We train on two turns. Noise on the start
# teaches the network to come back to its orbit.

turn = round(10 / dt)
phase = 2 * math.pi * torch.arange(20 * turn) / turn
target = torch.stack([phase.sin(), phase.cos()], dim=-1)

optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)
losses = []
for _ in range(160):
    drawn, _ = net(2 * turn, noise=0.1)
    loss = (drawn - target[: 2 * turn])[:, 20:].square().mean()  # The first two units of time are free.
    losses.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    schedule.step()

J = net.J.detach()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.4f}")
print(f"spectral abscissa {abscissa(J):.3f}, Dale's law: {obeys_dale(J)}")
assert losses[-1] < 0.1
assert abs(abscissa(J) - 0.3) < 1e-4
assert obeys_dale(J)

# %%
# Signs and spectrum
# ------------------
#
# Columns of excitatory neurons are red, columns of inhibitory ones blue, after training as before. In the
# complex plane the rightmost eigenvalues lie on the line that the constraint sets. They are a conjugate pair:
# small activity grows and rotates. Training was free to move all eigenvalues to the left of the line.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
connections = J - J.diagonal().diag()
limit = connections.abs().quantile(0.98).item()
image = left.imshow(connections, cmap="RdBu_r", vmin=-limit, vmax=limit)
left.set(title="Connections after training", xlabel="from neuron", ylabel="to neuron")
fig.colorbar(image, ax=left, shrink=0.8, extend="both")
for matrix, style, label in ((before, "k.", "before training"), (J, "o", "after training")):
    values = torch.linalg.eigvals(matrix)
    right.plot(values.real, values.imag, style, markersize=5, label=label)
right.axvline(0.3, color="#D55E00", linewidth=1, label="spectral abscissa 0.3")
right.axvline(0, color="0.7", linewidth=1, zorder=0)
right.set(title="Eigenvalues of J", xlabel="growth rate", ylabel="angular frequency")
right.legend(frameon=False, loc="upper left")
plt.show()

# %%
# The activity
# ------------
#
# The picture shows the rates over the first four turns. Neurons are sorted by the time at which they fire
# most. Most of the excitatory neurons fire together. The inhibitory ones follow a moment later, and silence
# them.

with torch.no_grad():
    drawn, rates = net(20 * turn)
drawn, rates = drawn[0], rates[0]

fig, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, height_ratios=[4, 1.4], layout="constrained")
groups = {"Excitatory neurons": slice(None, excitatory), "Inhibitory neurons": slice(excitatory, None)}
for ax, (name, group) in zip(axes, groups.items(), strict=True):
    shown = rates[: 4 * turn, group]
    order = shown[turn : 2 * turn].argmax(dim=0).argsort()
    image = ax.imshow(shown[:, order].T, aspect="auto", cmap="magma", vmin=0, vmax=1, extent=[0, 40, 0, 1])
    ax.set(title=name, yticks=[])
axes[-1].set_xlabel("time")
fig.colorbar(image, ax=axes, label="firing rate", shrink=0.8)
plt.show()

last = rates[-4 * turn :] - rates[-4 * turn :].mean(dim=0)
excited, inhibited = last[:, :excitatory].mean(dim=1), last[:, excitatory:].mean(dim=1)
correlation = torch.stack([excited[: -turn // 2] @ inhibited[k : k - turn // 2] for k in range(turn // 2)])
lag = dt * correlation.argmax().item()
print(f"inhibition follows excitation after {lag:.1f} units of time, in a turn of {dt * turn:.0f}")
assert 0 < lag < 3

# %%
# The rhythm goes on
# ------------------
#
# The network was trained on two turns, and draws twenty. Then we add 0.6 to every leak. The connections stay
# as they are, but the abscissa becomes -0.3, the rest state stable, and the pen comes to rest.

silent = copy.deepcopy(net)
parametrize.remove_parametrizations(silent, "J")  # J is a plain parameter again.
with torch.no_grad():
    silent.J -= 0.6 * torch.eye(n)
    fading = silent(20 * turn)[0][0]

fig, axes = plt.subplots(1, 2, figsize=(9, 4), sharex=True, sharey=True, layout="constrained")
for ax, path, title in zip(
    axes, (drawn, fading), ("Abscissa 0.3: twenty turns", "Abscissa -0.3: the rhythm dies"), strict=True
):
    ax.plot(*target[: turn + 1].T, color="0.88", linewidth=9)
    ax.plot(*path.T, color="0.5", linewidth=0.5)
    dots = ax.scatter(*path.T, c=dt * torch.arange(len(path)), cmap="viridis", s=5, zorder=2)
    ax.set(title=title, aspect="equal")
fig.colorbar(dots, ax=axes, label="time", shrink=0.8)
plt.show()

size = drawn[-turn:].std(dim=0)
relative_size = size / target[:turn].std(dim=0)
print("size of the twentieth turn, relative to the target:", [round(s, 2) for s in relative_size.tolist()])
assert ((relative_size - 1).abs() < 0.2).all()
assert abscissa(silent.J.detach()) < 0
assert fading[-turn:].std(dim=0).max() < 0.05

# %%
# What to try next
# ----------------
#
# - Other curves: ``torch.stack([phase.sin(), (2 * phase).sin()], dim=-1)`` is a figure eight. It is harder to
#   learn, and with some seeds the network does not find it.
# - Missing connections: a 0 in the pattern. Take the sign of a connectome, or let only neighbours connect.
# - ``SpectralAbscissa(-0.1, mode="at_most")``: a network whose rest state stays stable, for reflexes and
#   filters. This is a statement about small activity; large activity may do something else.
# - In discrete time ``[SignPattern(pattern), SpectralRadiusNorm(0.9)]`` gives a weight the signs, on the
#   diagonal as well, and a spectral radius. See :doc:`/choosing`.
# - Stable matrices with excitation and inhibition are far from normal and amplify before they decay:
#   :doc:`plot_7_radius_norm_growth`.
