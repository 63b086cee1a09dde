"""A network with a certificate, and one without, under attack: images of digits, changes in the 2-norm."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp

SIZES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
NETWORKS = ("SpectralNorm(1.0)", "no constraint")
TRAINED_ON, EPOCHS, BATCH, LR = 1400, 30, 100, 3e-3
# The outputs of a network with the constant 1 differ by at most the distance of images: the loss sees more.
LOSS_FACTOR = 10.0
ATTACK_STEPS = 40
# Of the search for the best certificate.
SEARCH_STEPS = 20


def compare(seed: int, quick: bool = False) -> list[dict[str, Any]]:
    """Return the numbers of both networks: accuracy under attack and two certificates, for each size.

    Args:
        seed: Seed of initial weights, order and attack.
        quick: Whether to take a single epoch.
    """
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    found = []
    for name in NETWORKS:
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )
        if name != "no constraint":
            sp.constrain(model, "*.weight", sp.SpectralNorm(1.0))
        _train(model, x[:TRAINED_ON], y[:TRAINED_ON], 1 if quick else EPOCHS)
        x_test, y_test = x[TRAINED_ON:], y[TRAINED_ON:]
        with torch.no_grad():
            outputs = model(x_test)
        constant = sp.analysis.lipschitz(model)
        right = outputs.argmax(dim=1) == y_test
        radii = {
            "certified": sp.analysis.certified_radius(
                outputs, model, "lmi", steps=1 if quick else SEARCH_STEPS
            ),
            "certified by the product": sp.analysis.certified_radius(outputs, constant),
        }
        found.append(
            {
                "network": name,
                "seed": seed,
                "lipschitz": float(constant),
                "sizes": list(SIZES),
                **{
                    name: [(right & (radius > size)).float().mean().item() for size in SIZES]
                    for name, radius in radii.items()
                },
                "attacked": [attacked(model, x_test, y_test, size) for size in SIZES],
            }
        )
    return found


def _train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(LOSS_FACTOR * model(x[batch]), y[batch]).backward()
            optimizer.step()
    model.eval()


def attacked(model: nn.Module, x: Tensor, y: Tensor, size: float) -> float:
    """Return the accuracy under changes of at most ``size``, by projected steps along the gradient.

    Args:
        model: The network.
        x: Images, ``(images, 64)``.
        y: Their classes.
        size: Largest 2-norm of a change.
    """
    right = torch.ones_like(y, dtype=torch.bool)
    d = torch.zeros_like(x)
    for _ in range(ATTACK_STEPS if size else 1):
        d.requires_grad_()
        outputs = model(x + d)
        right &= outputs.argmax(dim=1) == y  # An image is lost as soon as one change is found.
        others = outputs.scatter(1, y[:, None], -torch.inf).amax(dim=1)
        lead = outputs.gather(1, y[:, None])[:, 0] - others
        (slope,) = torch.autograd.grad(lead.sum(), d)
        d = d.detach() - 0.25 * size * slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
        d = d * (size / d.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
    return right.float().mean().item()
