"""The picture of after_step.md."""

import numpy as np
import torch
from matplotlib import pyplot as plt

import spectral_param as sp

BEFORE, AFTER, OTHER = "#d1605e", "#1f9e89", "#606060"  # Legible on white and on black.


def _path(step: str) -> np.ndarray:
    """Return the weights of a run of Adam on the sphere, for a linear cost."""
    weight = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor([-0.2, 0.9, 0.4]))})
    optimizer = torch.optim.Adam(weight.parameters(), lr=0.03)
    sp.constrain(weight, "w", sp.FrobeniusNorm(1.0), optimizer=optimizer, step=step)
    path = [weight["w"].detach().clone()]
    for _ in range(300):
        optimizer.zero_grad()
        (-weight["w"] @ _COST).backward()
        optimizer.step()
        path.append(weight["w"].detach().clone())
    return torch.stack(path).numpy()


_COST = torch.tensor([0.95, 0.1, 0.3]) / torch.tensor([0.95, 0.1, 0.3]).norm()


def limits() -> None:
    """Draw where Adam ends on a sphere, projected and along the sphere."""
    figure = plt.figure(figsize=(5, 4.2))
    axes = figure.add_subplot(projection="3d")
    u, v = np.mgrid[0 : 2 * np.pi : 40j, 0 : np.pi : 20j]
    sphere = np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)
    axes.plot_surface(*sphere, color="lightgray", alpha=0.25, linewidth=0)
    for step, colour in (("project", BEFORE), ("tangent", AFTER)):
        path = _path(step)
        axes.plot(*path.T, color=colour, label=f'step="{step}"')
        axes.scatter(*path[-1], color=colour, s=30)
    axes.scatter(*_COST, color=OTHER, marker="*", s=90, label="minimum")
    axes.view_init(elev=20, azim=35)
    axes.set_box_aspect((1, 1, 1), zoom=1.5)
    axes.set_axis_off()
    axes.legend(loc="upper left")
