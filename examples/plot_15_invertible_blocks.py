r"""
A flow of invertible blocks
===========================

Residual blocks that can be inverted, and a density that integrates to 1.

A residual block :math:`x + f(x)` is invertible if f has a Lipschitz constant below 1. Then blocks in a row
map data to normal noise and back, and the change of variables gives the density of the data: a normalizing
flow without any special architecture. The only condition is on the norms of the weights.

This tutorial trains such a flow on two moons, integrates its density, and draws samples.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_15_invertible_blocks.png'
import math

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons
from torch import nn

import spectral_param as sp

torch.manual_seed(0)

# %%
# The blocks
# ----------
#
# The constant of f is at most the product of the norms of its layers, as tanh has slopes from 0 to 1. One
# line holds each norm at :math:`\sqrt{0.95}` or below. A block can then compress by 1 - 0.95 and stretch by
# 1 + 0.95, and blocks in a row by far more.

RATE, BLOCKS, UNITS = 0.95, 10, 32


def block():
    """Return x + f(x) for points of the plane."""
    return sp.nn.Residual(nn.Sequential(nn.Linear(2, UNITS), nn.Tanh(), nn.Linear(UNITS, 2)))


flow = nn.ModuleList(block() for _ in range(BLOCKS))
flow = sp.constrain(flow, "*weight", sp.SpectralNorm(math.sqrt(RATE)))

# %%
# The density
# -----------
#
# The flow maps a point x of the data to a normal y. Its log density is that of y and the logarithms of the
# determinants of all blocks, which :meth:`spectral_param.nn.Residual.log_abs_det` computes exactly for points
# of the plane.


def log_density(x):
    """Return the logarithm of the density at points ``(points, 2)``."""
    found = -math.log(2 * math.pi) * torch.ones(len(x))
    for each in flow:
        found = found + each.log_abs_det(x)
        x = each(x)
    return found - x.square().sum(dim=1) / 2


points = torch.tensor(make_moons(4000, noise=0.08, random_state=0)[0], dtype=torch.float32)
points = 1.5 * (points - points.mean(dim=0)) / points.std(dim=0)
optimizer = torch.optim.Adam(flow.parameters(), lr=2e-2)
losses = []
for _ in range(200):
    optimizer.zero_grad()
    loss = -log_density(points[torch.randint(4000, (256,))]).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
reached = sum(losses[-20:]) / 20
gauss = 1 + math.log(2 * math.pi) + torch.linalg.slogdet(torch.cov(points.T)).logabsdet.item() / 2
print(f"nats per point: {reached:.2f}; a normal distribution with the covariance of the data has {gauss:.2f}")

assert reached < gauss - 0.5

# %%
# It integrates to 1
# ------------------
# A wrong determinant would not show in the loss. It shows in the integral of the density over the plane, here
# as a sum over a grid.

STEP = 0.05
axis = torch.arange(-5, 5, STEP)
grid = torch.cartesian_prod(axis, axis)
with torch.no_grad():
    density = torch.cat([log_density(part) for part in grid.split(20_000)]).exp()
mass = (density.double().sum() * STEP**2).item()
print(f"the density integrates to {mass:.5f}")

assert abs(mass - 1) < 1e-3

# %%
# Samples
# -------
# The way back: each block is inverted by a fixed point iteration. The rate proves how many iterations suffice
# for single precision, and most points need fewer.

with torch.no_grad():
    samples, counts = torch.randn(1500, 2), []
    noise = samples
    for each in reversed(flow):
        samples = each.inverse(samples)
        counts.append(each.iterations)
    again = samples
    for each in flow:
        again = each(again)
print(f"at most {max(counts)} iterations a block; noise comes back to {(again - noise).abs().max():.0e}")

assert (again - noise).abs().max() < 1e-3

figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharex=True, sharey=True)
for ax, title, shown in ((axes[0], "data", points[:1500]), (axes[2], "samples", samples)):
    ax.plot(*shown.T, ".", markersize=2)
    ax.set(title=title)
axes[1].imshow(density.reshape(len(axis), -1).T, origin="lower", extent=(-5, 5, -5, 5), cmap="Blues")
axes[1].set(title="density", xlim=(-3.5, 3.5), ylim=(-3.5, 3.5))
for ax in axes:
    ax.set(aspect="equal")
plt.show()

# %%
# Large events
# ------------
# For images the Jacobian is too large. ``log_abs_det(x, method="series")`` then returns a random number whose
# mean is the logarithm of the determinant, and whose gradient is right in the mean, too: enough to train by
# stochastic gradients.

with torch.no_grad():
    found = torch.stack([flow[0].log_abs_det(points[:50], method="series").mean() for _ in range(100)])
    exact = flow[0].log_abs_det(points[:50]).mean().item()
error = (found.std() / 10).item()
print(f"exact {exact:.4f}, by the series {found.mean():.4f} with a standard error of {error:.4f}")

assert abs(found.mean().item() - exact) < 4 * error + 1e-5

# %%
# Next
# ----
#
# - The constant of a whole network: :doc:`plot_10_known_lipschitz_constant`.
