r"""
Orthogonal layers of any shape
==============================

A tied autoencoder as good as PCA, and a transformer with orthonormal layers.

Most weights are not square: encoders, feed-forward layers, projections, embeddings. A tall weight can have
orthonormal columns, a wide one orthonormal rows. Such a layer keeps the length of what passes through it
(tall), or projects without stretching (wide), and its transpose is its inverse on the subspace that it keeps.

This tutorial trains an autoencoder whose decoder is the transpose of its encoder, and compares it with
principal component analysis, which has the smallest error that such an autoencoder can reach. Then it makes
the feed-forward layers of a transformer orthogonal.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_9_orthogonal_any_shape.png'
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import spectral_param as sp

torch.manual_seed(0)

# %%
# A tied autoencoder
# ------------------
#
# The data are 1,797 images of handwritten digits with 64 pixels. An encoder :math:`W` of shape (8, 64) gives
# 8 numbers for each image, and its transpose makes an image of them: :math:`\hat x = W^T W x`. If the rows
# of :math:`W` are orthonormal, this is an orthogonal projection. One line makes them so. The weight is wide;
# the same line works for a tall one.

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32) / 16
labels = torch.tensor(labels)
pixels = images - images.mean(dim=0)

encoder = sp.constrain(nn.Linear(64, 8, bias=False), "weight", sp.ScaledCayley())
print(encoder.weight.shape)

# %%
# Training minimises the squared error per image. The smallest error of all projections to 8 dimensions is
# that of principal component analysis: the sum of the squared singular values that it leaves out, per image.

optimizer = torch.optim.Adam(encoder.parameters(), lr=0.03)
errors = []
for _ in range(300):
    optimizer.zero_grad()
    W = encoder.weight
    error = (pixels - pixels @ W.mT @ W).square().sum(dim=1).mean()
    error.backward()
    optimizer.step()
    errors.append(error.item())

left, sigma, right = torch.linalg.svd(pixels, full_matrices=False)
best = (sigma[8:].square().sum() / len(pixels)).item()
print(f"error {errors[-1]:.4f}, principal component analysis {best:.4f}")
assert best * (1 - 1e-5) <= errors[-1] < 1.001 * best

# %%
# The rows stayed orthonormal in each of the steps, to rounding error. They need not be the principal
# components themselves, but they span the same space: the cosines of the angles between both spaces are 1.

W = encoder.weight.detach()
print(f"max |W Wᵀ - I| = {(W @ W.mT - torch.eye(8)).abs().max():.1e}")
cosines = torch.linalg.svdvals(W @ right[:8].mT)
print(f"smallest cosine: {cosines.min():.4f}")
assert (W @ W.mT - torch.eye(8)).abs().max() < 1e-5
assert cosines.min() > 0.99

figure, (curve, *pictures) = plt.subplots(
    1, 5, figsize=(9, 2.4), layout="constrained", width_ratios=[2.2, 1, 1, 1, 1]
)
curve.plot(errors, label="autoencoder")
curve.axhline(best, color="k", ls="--", lw=1, label="PCA")
curve.set(xlabel="step", ylabel="squared error", ylim=(0, None))
curve.legend(frameon=False)
shown = (images.mean(dim=0) + pixels @ W.mT @ W).detach()
for ax, values, title in zip(
    pictures,
    (images[0], shown[0], images[4], shown[4]),
    ("image", "8 numbers", "image", "8 numbers"),
    strict=True,
):
    ax.imshow(values.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    ax.set_title(title, fontsize="medium")
    ax.set_axis_off()

# %%
# The feed-forward layers of a transformer
# ----------------------------------------
#
# Each of its blocks multiplies by a tall weight, applies a nonlinear function, and multiplies by a wide
# weight. A pattern constrains both weights of every block. We read each image as a sequence of eight rows,
# and train one transformer with the constraint and one without.


class Classifier(nn.Module):
    """A transformer that reads an image row by row."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.position = nn.Parameter(0.1 * torch.randn(8, 32))
        block = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(32, 10)

    def forward(self, x):
        """Return the scores of the classes for images (batch, 8, 8)."""
        return self.classify(self.blocks(self.embed(x) + self.position).mean(dim=1))


def accuracy_after_training(model):
    """Train on 1,400 images and return the accuracy on the others."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x = images.reshape(-1, 8, 8)
    for _ in range(12):
        for batch in torch.randperm(1400).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(x[1400:]).argmax(dim=1) == labels[1400:]).float().mean().item()


torch.manual_seed(0)
plain = Classifier()
torch.manual_seed(0)
orthogonal = sp.constrain(Classifier(), "blocks.layers.*.linear?.weight", sp.ScaledCayley())
for name, model in (("plain", plain), ("orthogonal", orthogonal)):
    print(f"{name}: accuracy {accuracy_after_training(model):.3f}")

# %%
# Both learn the task. The singular values differ: training spreads those of the plain weights, and the
# constraint keeps all of them at 1.


def singular_values(model):
    """Return those of all weights of the feed-forward layers."""
    return [torch.linalg.svdvals(getattr(b, n).weight.detach()) for b in model.blocks.layers for n in LAYERS]


LAYERS = ("linear1", "linear2")
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for values, color, label in (
    (singular_values(plain), "C1", "plain"),
    (singular_values(orthogonal), "C0", "orthogonal"),
):
    for i, sigma in enumerate(values):
        ax.plot(sigma, color=color, alpha=0.8, label=label if i == 0 else None)
ax.set(xlabel="index", ylabel="singular value", ylim=(0, None))
ax.legend(frameon=False)
assert all((sigma - 1).abs().max() < 1e-4 for sigma in singular_values(orthogonal))

# %%
# After training
# --------------
#
# :func:`spectral_param.remove` leaves plain parameters of the same values. The model is then an ordinary one,
# to export or to load without this library.

before = orthogonal(images[:5].reshape(-1, 8, 8))
sp.remove(orthogonal)
assert torch.allclose(orthogonal(images[:5].reshape(-1, 8, 8)), before, atol=1e-5)
print(type(orthogonal.blocks.layers[0].linear1).__name__)
plt.show()

# %%
# Next
# ----
#
# - :class:`~spectral_param.Householder` and :class:`~spectral_param.SkewExponential` take any shape, too.
#   :class:`~spectral_param.SingularValues` lets the singular values vary in an interval.
# - Times beside PyTorch's own ``orthogonal``: :doc:`/costs`.
