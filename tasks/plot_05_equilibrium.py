"""An equilibrium
==============

The output solves z = φ(Wz + Ux + b); one solution exists whatever is trained, and the solver finds it.

Goes on in :doc:`/fixed_points`.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import spectral_param as sp

torch.manual_seed(0)
points, labels = make_moons(500, noise=0.15, random_state=0)
points, labels = torch.tensor(points).float(), torch.tensor(labels).float()
layer, head = sp.nn.Equilibrium(2, 24), torch.nn.Linear(24, 1)
optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=2e-2)
for _ in range(150):
    optimizer.zero_grad()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(head(layer(points))[:, 0], labels)
    loss.backward()
    optimizer.step()

with torch.no_grad():
    z = layer(points)
    other = layer(points, start=10 * torch.randn(500, 24))
    right = ((head(z)[:, 0] > 0) == (labels > 0)).float().mean()
    grid = torch.cartesian_prod(torch.linspace(-1.5, 2.5, 80), torch.linspace(-1, 1.5, 80))
    surface = head(layer(grid)).reshape(80, 80).T
print(f"{right:.0%} of the points are right, {layer.iterations} iterations, residual {layer.residual:.0e}")
print(f"from another start the same solution, to {(z - other).abs().max():.0e}")

plt.figure(figsize=(4.4, 3.4), layout="constrained")
plt.contourf(torch.linspace(-1.5, 2.5, 80), torch.linspace(-1, 1.5, 80), surface, levels=20, cmap="RdBu")
plt.scatter(*points.T, c=labels, cmap="RdBu", edgecolors="white", s=15, linewidth=0.5)
plt.show()
