"""A deep Koopman model of a pendulum: coordinates in which its motion is linear, and stays stable.

The latent state z is angle and velocity and ten learned functions of them, and moves linearly, z' = A z (Li,
Dietrich, Bollt and Kevrekidis, Chaos 2017). ``StableLinearModel`` fits A to what the untrained functions
give, ``to_module()`` makes it a torch module that keeps the spectral radius, and both are trained together
on roll-outs. The pendulum is damped, and so is the model, whatever the optimizer does.

    python examples/deep_koopman.py          # some 20 seconds on one core
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn.utils import parametrize

from spectral_param.dynamics import StableLinearModel

DT = 0.1
FUNCTIONS = 10
RADIUS = 0.995  # Without friction it would be 1.
HORIZON = 50  # steps of the roll-outs trained on
SHOWN = 300  # steps of the roll-out drawn


def pendulum(starts, steps):
    """Return recordings ``(number, steps + 1, 2)`` of angle and velocity, by Runge and Kutta.

    Args:
        starts: Where they begin, ``(number, 2)``.
        steps: How many more states.
    """

    def velocity(x):
        return torch.stack([x[:, 1], -torch.sin(x[:, 0]) - 0.2 * x[:, 1]], dim=1)

    states = [starts]
    for _ in range(steps):
        x = states[-1]
        k1 = velocity(x)
        k2 = velocity(x + DT / 2 * k1)
        k3 = velocity(x + DT / 2 * k2)
        k4 = velocity(x + DT * k3)
        states.append(x + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    return torch.stack(states, dim=1)


class Koopman(nn.Module):
    """Learned functions of the state, and their stable linear motion.

    Args:
        recordings: States ``(number, steps, 2)`` that the first A is fitted to.
    """

    def __init__(self, recordings):
        super().__init__()
        self.functions = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, FUNCTIONS)).double()
        with torch.no_grad():
            encoded = list(self.encode(recordings).numpy())
        self.motion = StableLinearModel(radius=RADIUS, ridge=1e-6).fit(encoded).to_module()

    def encode(self, x):
        """Return z ``(..., 2 + FUNCTIONS)``, zero at rest."""
        return torch.cat([x, self.functions(x) - self.functions(torch.zeros_like(x))], dim=-1)

    def forward(self, start, steps):
        """Return a roll-out of z, ``(number, steps + 1, 2 + FUNCTIONS)``; x is its first two numbers."""
        z = [self.encode(start)]
        with parametrize.cached():  # A is made from its parameter once.
            for _ in range(steps):
                z.append(self.motion(z[-1]))
        return torch.stack(z, dim=1)

    def radius(self):
        """Return the spectral radius of A."""
        return torch.linalg.eigvals(self.motion.A.detach()).abs().max().item()


def train(model, recordings, steps):
    """Train on random pieces of the recordings.

    Args:
        model: The model.
        recordings: States ``(number, steps, 2)``.
        steps: Of the optimizer.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    pieces = recordings.unfold(1, HORIZON + 1, 1).transpose(2, 3).flatten(0, 1)  # (number, HORIZON + 1, 2)
    for step in range(steps):
        x = pieces[torch.randint(len(pieces), (64,))]
        difference = model(x[:, 0], HORIZON) - model.encode(x)
        loss = difference[..., :2].square().mean() + 0.1 * difference.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 5) == 0:
            print(f"step {step:5}   loss {loss.item():.5f}   spectral radius {model.radius():.12f}")


def draw(truth, predicted, eigenvalues):
    """Return a figure of a roll-out and of the eigenvalues."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    times = DT * torch.arange(len(truth))
    left.plot(times, truth[:, 0], color="0.6", linewidth=3, label="pendulum")
    left.plot(times, predicted[:, 0], "--", color="#0072B2", label="model, rolled out from the first state")
    left.axvline(DT * HORIZON, color="black", linewidth=0.8, linestyle=":")
    left.set(xlabel="time (trained on roll-outs up to the dotted line)", ylabel="angle (rad)")
    left.legend(loc="upper right")
    circle = torch.linspace(0, 2 * math.pi, 200)
    right.plot(circle.cos(), circle.sin(), color="0.7")
    right.plot(eigenvalues.real, eigenvalues.imag, "o", color="#0072B2", fillstyle="none")
    right.set(aspect="equal", title="Eigenvalues of A")
    return figure


def main():
    """Simulate, fit, train, and draw a roll-out far longer than those trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=700, help="of the optimizer (%(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("examples-output"), help="folder of the figure (%(default)s)"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    angles = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64)
    recordings = pendulum(torch.stack([angles, torch.zeros_like(angles)], dim=1), 120)
    model = Koopman(recordings)
    train(model, recordings, arguments.steps)

    truth = pendulum(torch.tensor([[1.3, 0.0]], dtype=torch.float64), SHOWN)[0]
    with torch.no_grad():
        predicted = model(truth[:1], SHOWN)[0, :, :2]
    error = (predicted - truth).square().mean().sqrt() / truth.square().mean().sqrt()
    print(f"roll-out of {SHOWN} steps: relative error {error:.3f}, spectral radius {model.radius():.12f}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    eigenvalues = torch.linalg.eigvals(model.motion.A.detach())
    path = arguments.output / "deep_koopman.png"
    draw(truth, predicted, eigenvalues).savefig(path, dpi=150)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
