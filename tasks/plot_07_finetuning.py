"""Orthogonal fine-tuning
======================

A frozen network is rotated block by block to a new task; each layer keeps its singular values.

Goes on in :doc:`/transformers`; :doc:`/after_step` trains the weights themselves.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import spectral_param as sp

torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
turned = images.unflatten(1, (8, 8)).rot90(dims=(1, 2)).flatten(1)  # The new task.
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def train(parameters, x, epochs, lr):
    """Train on 1,400 images, and return the accuracy on the others."""
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for batch in torch.cat([torch.randperm(1400) for _ in range(epochs)]).split(50):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
        optimizer.step()

    return (model(x[1400:]).argmax(dim=1) == labels[1400:]).float().mean()


print(f"{train(model.parameters(), images, 20, 3e-3):.0%} of upright digits are right")
plt.plot(torch.linalg.svdvals(model[0].weight).detach(), color="0.7", linewidth=6, label="pretrained")
adapters = sp.nn.adapt(model, "0", block_size=32)
print(f"{adapters}: {train(adapters.parameters(), turned, 10, 1e-2):.0%} of digits on their side")
plt.plot(torch.linalg.svdvals(adapters.merge()[0].weight).detach(), label="fine-tuned")
plt.legend(title="singular values")
plt.show()
