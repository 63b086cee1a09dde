"""A set of one's own
==================

Filters whose entries sum to 0 do not see how bright an image is: a set with the methods that training needs.

Goes on in :doc:`/custom`, with starts, checks and derivatives.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import spectral_param as sp


class ZeroSum(sp.Parametrization):
    shapes, convolutions = "any", "entries"

    def reference(self, T):
        return T - T.mean(dim=-1, keepdim=True)

    near = invert = reference

    def outside(self, W, eps):
        return W.sum(dim=-1).abs().amax(dim=-1), 10 * W.shape[-1] * eps


torch.manual_seed(0)
images, labels = map(torch.tensor, (load_digits().images[:, None] / 16, load_digits().target))
layers = torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 10)
model = sp.constrain(torch.nn.Sequential(*layers).double(), "0.weight", ZeroSum())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for batch in torch.cat([torch.randperm(1400) for _ in range(10)]).split(50):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
right = (model(images + 5)[1400:].argmax(dim=1) == labels[1400:]).float()
print(f"{right.mean():.0%} of images that are brighter by 5 are right")
plt.imshow(model[0].weight.detach().reshape(2, 8, 3, 3).permute(0, 2, 1, 3).reshape(6, 24), cmap="RdBu")
plt.show()
