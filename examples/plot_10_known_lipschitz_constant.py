r"""
A network whose Lipschitz constant is known
===========================================

A convolutional network that provably moves no output further than its input.

How much can the output of a network change if its input changes a little? If every layer is Lipschitz, the
network is too, and the product of the layers' constants bounds the change:
:math:`‖f(x + d) - f(x)‖ ≤ L ‖d‖`, for every image and every attack. For such a bound the norm of each layer
has to be known. That of a convolution is not the norm of the matrix that holds its kernel.

This tutorial trains a small residual network with :math:`L = 1` on images of digits, attacks it, and does the
same with PyTorch's ``spectral_norm`` in place of the constraint.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_10_known_lipschitz_constant.png'
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import spectral_param as sp

torch.manual_seed(0)

# %%
# The network
# -----------
#
# A linear layer or a convolution has its norm as Lipschitz constant; ReLU has the constant 1. If the branch
# of a residual block has a constant of at most 1, so has the mean of the input and the branch's output. So if
# all norms are at most 1, the network has the Lipschitz constant 1. The loss sees the outputs times 20,
# because the cross entropy of small numbers teaches little.


def block(channels):
    """Return x -> (x + conv(relu(conv(x)))) / 2."""
    first, second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
    return sp.nn.Residual(nn.Sequential(first, nn.ReLU(), second), mean=True)


def network():
    """Return a network for images (batch, 1, 8, 8) that does not know its norms yet."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        block(16),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        block(32),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


# %%
# One line constrains all weights: :func:`spectral_param.constrain` knows stride and padding of each
# convolution.

exact = sp.constrain(network(), "*weight", sp.SpectralNorm(1.0))

# %%
# For comparison we take PyTorch's ``spectral_norm``. It reshapes the kernel of a convolution to a matrix, and
# divides by an estimate of the norm of this matrix.

estimated = network()
for module in list(estimated.modules()):
    if hasattr(module, "weight"):
        nn.utils.parametrizations.spectral_norm(module)

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(labels)


def train(model):
    """Train on 1,400 images and return the accuracy on the others."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(8):
        for batch in torch.randperm(1400).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(20 * model(images[batch]), labels[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(images[1400:]).argmax(dim=1) == labels[1400:]).float().mean().item()


accuracy = {name: train(model) for name, model in (("exact", exact), ("estimated", estimated))}
print(accuracy)
assert accuracy["exact"] > 0.8

# %%
# The norm of each layer
# ----------------------
#
# Power iteration with a layer and its transpose bounds the norm of the layer from below, for images of a
# given size.


def layer_norm(layer, shape):
    """Return the norm of the linear part of a layer on inputs of this shape."""
    x = torch.randn(1, *shape)
    with torch.no_grad():
        offset = layer(torch.zeros(1, *shape))
    for _ in range(50):
        x = (x / x.norm()).requires_grad_()
        y = layer(x) - offset
        (x,) = torch.autograd.grad(y, x, y.detach())
    return y.norm().item()


def norms(model):
    """Return the norms of all layers, each on inputs as it gets them."""
    found, handles = [], []
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    for layer in layers:
        handles.append(layer.register_forward_hook(lambda m, x, y: found.append((m, x[0].shape[1:]))))
    model(images[:1])
    for handle in handles:
        handle.remove()
    return [layer_norm(layer, shape) for layer, shape in found]


for name, model in (("exact", exact), ("estimated", estimated)):
    print(f"{name:10}", " ".join(f"{value:.3f}" for value in norms(model)))
assert max(norms(exact)) < 1 + 1e-5
assert max(norms(estimated)) > 1.2

# %%
# All norms of the first network are at most 1. With PyTorch's estimate, the norms of the convolutions are far
# above 1: the norm of a convolution is not that of its matrix.
#
# :func:`spectral_param.analysis.lipschitz` proves one number for the whole network, from the weights that it
# has, constrained or not:

for name, model in (("exact", exact), ("estimated", estimated)):
    print(f"{name}: the Lipschitz constant is at most {sp.analysis.lipschitz(model):.3f}")
assert sp.analysis.lipschitz(exact) < 1 + 1e-5

# %%
#
# An attack
# ---------
#
# We look for the change :math:`d` of norm 0.1 that moves the outputs most, by steps along the gradient, for
# every image of the test set. No attack can move the first network by more than 0.1.


def attack(model, x, size=0.1):
    """Return ‖f(x + d) - f(x)‖ / ‖d‖ for the worst d of this norm that was found, for each image."""
    with torch.no_grad():
        before = model(x)
    d = torch.randn_like(x)
    for _ in range(25):
        d = size * d / d.flatten(1).norm(dim=1)[:, None, None, None]
        d.requires_grad_()
        moved = (model(x + d) - before).flatten(1).norm(dim=1)
        (step,) = torch.autograd.grad(moved.sum(), d)
        d = step
    return (moved / size).detach()


models = {"exact": exact, "estimated": estimated}
stretch = {name: attack(model, images[1400:]) for name, model in models.items()}
for name, values in stretch.items():
    print(f"{name}: the largest change is {values.max():.3f} times that of the image")
assert stretch["exact"].max() < 1 + 1e-4
assert stretch["estimated"].max() > 1

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for name, color in (("estimated", "C1"), ("exact", "C0")):
    ax.hist(stretch[name].numpy(), bins=30, color=color, alpha=0.8, label=name)
ax.axvline(1, color="k", lw=1, ls="--", label="the bound")
ax.set(xlabel="change of the outputs / change of the image", ylabel="images")
ax.legend(frameon=False)

# %%
# What the bound is good for
# --------------------------
#
# If the largest output of an image leads the second by :math:`m`, no change of norm below :math:`m/\sqrt 2`
# alters the decision: a difference of two outputs changes by at most :math:`\sqrt 2 ‖d‖`. This radius is
# :func:`spectral_param.analysis.certified_radius`, for the trained network, without any search.

with torch.no_grad():
    scores = exact(images[1400:])
radius = sp.analysis.certified_radius(scores, sp.analysis.lipschitz(exact))
right = scores.argmax(dim=1) == labels[1400:]
for size in (0.05, 0.1, 0.2):
    print(
        f"right for every change of norm {size}: {(right & (radius > size)).float().mean():.2f} of the images"
    )
assert (right & (radius > 0.05)).float().mean() > 0.3
plt.show()

# %%
# Next
# ----
#
# - For a weight that is to keep lengths, not only to bound them: :doc:`plot_9_orthogonal_any_shape`.
# - Why the spectral radius bounds no single step: :doc:`plot_7_radius_norm_growth`.
