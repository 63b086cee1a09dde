"""Spheres with relative steps
===========================

Weights of fixed norm turn by the learning rate in each step, whatever the loss is multiplied by.

Goes on in :doc:`/after_step`; :doc:`/transformers` has spheres in a transformer.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import spectral_param as sp

images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
figure, axes = plt.subplots(1, 2, figsize=(5.6, 3), layout="constrained", sharey=True)
for ax, title in zip(axes, ("plain SGD", "spheres, relative steps"), strict=True):
    for scale in (0.01, 1.0, 100.0):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64, bias=False), torch.nn.ReLU(), torch.nn.Linear(64, 10, bias=False)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if ax is axes[1]:
            sp.constrain(model, "*", sp.FrobeniusNorm(8.0), optimizer=optimizer, step="relative")
        losses = []
        for batch in torch.cat([torch.randperm(1400) for _ in range(5)]).split(50):
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            (scale * loss).backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"{title}, loss times {scale:g}: {sum(losses[-20:]) / 20:.3f}")
        ax.semilogy(losses, label=f"loss times {scale:g}")
    ax.set(title=title, xlabel="training step", ylim=(1e-2, 10))
axes[0].set_ylabel("loss")
axes[0].legend(fontsize="small")
plt.show()
