"""A deep Koopman model of a pendulum: coordinates in which its motion is linear, and stays stable.

An encoder maps angle and velocity to a latent state z that moves linearly, z' = A z, and a decoder maps it back
(Lusch, Kutz and Brunton, Nature Communications 2018). ``StableLinearModel`` fits A to what the untrained encoder
says, ``to_module()`` makes it a torch module with spectral radius at most 1, and all three are trained together
on roll-outs. However long the roll-out, the model cannot blow up. The pendulum is damped and comes to rest, so that such coordinates exist.

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
LATENT = 12
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


def mlp(inputs, outputs, hidden=48):
    """Return a small network."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


class Koopman(nn.Module):
    """Encoder, stable linear motion, decoder.

    Args:
        recordings: States ``(number, steps, 2)`` that the first A is fitted to, as the encoder sees them.
    """

    def __init__(self, recordings):
        super().__init__()
        self.encoder, self.decoder = mlp(2, LATENT), mlp(LATENT, 2)
        with torch.no_grad():
            encoded = list(self.encoder(recordings).numpy())
        self.motion = StableLinearModel(ridge=1e-6).fit(encoded).to_module()

    def forward(self, start, steps):
        """Return the decoded and the latent roll-out, ``(number, steps + 1, ·)``."""
        latent = [self.encoder(start)]
        with parametrize.cached():  # A is made from its parameter once.
            for _ in range(steps):
                latent.append(self.motion(latent[-1]))
        z = torch.stack(latent, dim=1)
        return self.decoder(z), z

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
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    pieces = recordings.unfold(1, HORIZON + 1, 1).transpose(2, 3).flatten(0, 1)  # (number, HORIZON + 1, 2)
    for step in range(steps):
        x = pieces[torch.randint(len(pieces), (64,))]
        predicted, z = model(x[:, 0], HORIZON)
        encoded = model.encoder(x)
        loss = (predicted - x).square().mean() + (model.decoder(encoded) - x).square().mean()
        loss = loss + 0.1 * (z - encoded).square().mean()
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
        predicted = model(truth[:1], SHOWN)[0][0]
    error = (predicted - truth).square().mean().sqrt() / truth.square().mean().sqrt()
    print(f"roll-out of {SHOWN} steps: relative error {error:.3f}, spectral radius {model.radius():.12f}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    eigenvalues = torch.linalg.eigvals(model.motion.A.detach())
    path = arguments.output / "deep_koopman.png"
    draw(truth, predicted, eigenvalues).savefig(path, dpi=150)
    print(f"Figure: {path}")


if __name__ == "__main__":
    main()
