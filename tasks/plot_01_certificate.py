"""A network with a certificate
============================

One number bounds what any change of the input can do: no change below a radius changes the class.

Goes on in :doc:`/lipschitz`; :doc:`/tutorials/plot_10_known_lipschitz_constant` attacks such a network.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import spectral_param as sp

torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
sort = sp.nn.MaxMin()  # Keeps lengths, where ReLU loses half.
layers = [torch.nn.Linear(64, 128), sort, torch.nn.Linear(128, 128), sort, torch.nn.Linear(128, 10)]
model = sp.constrain(torch.nn.Sequential(*layers), "*.weight", sp.SpectralNorm(1.0))

optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for batch in torch.cat([torch.randperm(1400) for _ in range(10)]).split(50):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(10 * model(images[batch]), labels[batch]).backward()
    optimizer.step()

outputs = model.eval()(images[1400:]).detach()
constant = sp.analysis.lipschitz(model)
radius = sp.analysis.certified_radius(outputs, constant)
right = outputs.argmax(dim=1) == labels[1400:]
print(f"Lipschitz constant {constant:.4f}, {right.float().mean():.0%} of the test images are right,")
print(f"{(right & (radius > 0.25)).float().mean():.0%} whatever changes by at most 0.25")

sizes = torch.linspace(0, 1, 50)
plt.figure(figsize=(4.4, 3.4), layout="constrained")
plt.plot(sizes, [(right & (radius > size)).float().mean() for size in sizes])
plt.gca().set(xlabel="size of the change (2-norm)", ylabel="right, proven for all changes", ylim=(0, 1))
plt.show()
