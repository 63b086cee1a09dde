"""Constrain the recurrence of an LSTM inside a model that exists already, by one line.

The model is a sequence classifier as people write it; nothing in it knows of spectral_param.

    python examples/existing_model.py
"""

import argparse
import copy
import io
import statistics
import time

import torch
from torch import nn
from torch.nn.utils.parametrize import remove_parametrizations

import spectral_param


class SequenceClassifier(nn.Module):
    """Embedding, LSTM, linear."""

    def __init__(self, tokens=32, classes=4, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(tokens, 16)
        self.lstm = nn.LSTM(16, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        """Return logits of shape (batch, classes) for tokens of shape (batch, steps)."""
        _, (h, _) = self.lstm(self.embedding(x))
        return self.head(h[-1])


def print_radii(when, model):
    """Print the spectral radius of the recurrent weight of each gate."""
    blocks = model.lstm.weight_hh_l0.detach().unflatten(0, (4, -1))  # (4n, n) -> (4, n, n)
    radii = torch.linalg.eigvals(blocks).abs().amax(dim=-1).tolist()
    print(f"{when:26}" + "".join(f"{radius:10.4f}" for radius in radii))


def train_step(model, optimizer, x, y):
    """Take one training step and return how long it took, in seconds."""
    start = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    return time.perf_counter() - start


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=30, help="training steps (default: %(default)s)")
steps = parser.parse_args().steps
if steps < 1:
    parser.error(f"--steps: expected at least 1, got {steps}")

torch.manual_seed(0)
torch.set_num_threads(1)  # Times of so small a model depend less on what else is running.
x = torch.randint(32, (64, 50))
y = x[:, 0] % 4  # The class is in the first token: it has to be remembered for 50 steps.

plain = SequenceClassifier()
model = copy.deepcopy(plain)
print(f"{'spectral radius of gate':26}     input    forget      cell    output")
print_radii("before", model)
spectral_param.constrain(
    model.lstm, "weight_hh_l0", spectral_param.SpectralRadiusNorm(radius=0.95)
)  # The one line.
print_radii("constrained", model)
print("outputs:", *(f"{tuple(out.shape)} {out.dtype}" for out in (plain(x), model(x))), sep="  ")

# Training is as ever. Plain and constrained steps alternate, to be timed under like conditions.
pairs = [(m, torch.optim.Adam(m.parameters(), lr=1e-2)) for m in (plain, model)]
times = [[train_step(m, optimizer, x, y) for m, optimizer in pairs] for _ in range(steps)]
print_radii("trained", model)
before, after = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
print(f"median training step: {before:.1f} ms before, {after:.1f} ms constrained")

# A checkpoint is loaded into a new model after the same line.
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
loaded = SequenceClassifier()
spectral_param.constrain(loaded.lstm, "weight_hh_l0", spectral_param.SpectralRadiusNorm(radius=0.95))
loaded.load_state_dict(torch.load(file))
print("loaded, same outputs:", torch.equal(loaded(x), model(x)))

# For deployment the constraint is taken off. What remains is a plain torch.nn.LSTM.
remove_parametrizations(model.lstm, "weight_hh_l0")
print("deployed, same outputs:", torch.equal(loaded(x), model(x)), type(model.lstm))
