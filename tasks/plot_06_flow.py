"""A flow
======

Residual blocks of Lipschitz constant below 1 are invertible: a density of the data, and samples from it.

Goes on in :doc:`/invertible`; :doc:`/tutorials/plot_15_invertible_blocks` integrates the density.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import spectral_param as sp

torch.manual_seed(0)
points = 1.5 * torch.tensor(make_moons(4000, noise=0.08, random_state=0)[0]).float()
bodies = [(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)) for _ in range(8)]
flow = torch.nn.ModuleList(sp.nn.Residual(torch.nn.Sequential(*body)) for body in bodies)
sp.constrain(flow, "*weight", sp.SpectralNorm(0.95**0.5))  # The constant of a block: at most 0.95.

normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
optimizer = torch.optim.Adam(flow.parameters(), lr=2e-2)
for _ in range(150):
    y, logs = points[torch.randint(4000, (256,))], 0.0
    for block in flow:
        logs, y = logs + block.log_abs_det(y), block(y)
    loss = -(normal.log_prob(y) + logs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
gauss = torch.distributions.MultivariateNormal(torch.zeros(2), torch.cov(points.T))
print(f"nats per point {loss.item():.2f}, by a normal distribution {gauss.entropy():.2f}")

samples = normal.sample((1500,))
for block in reversed(flow):
    samples = block.inverse(samples).detach()
figure, axes = plt.subplots(1, 2, figsize=(5.6, 3), layout="constrained", sharex=True, sharey=True)
axes[0].plot(*points[:1500].T, ".", markersize=2)
axes[1].plot(*samples.T, ".", markersize=2, color="C1")
plt.show()
