"""Classify digits, read pixel by pixel, with each of the library's recurrent networks in turn, and others.

The model is the same every time: a recurrent network that reads 64 pixels, and a linear map of its last
state. The data are scikit-learn's digits of 8 x 8 pixels. One seed, and settings that are the papers'
or customary, not tuned: the table shows what it takes to swap one network for another, and no ranking.
(The IRNN's authors train it for very many steps; here it has learned little when the time is over.)

    python -m examples.swap_the_recurrence
    python -m examples.swap_the_recurrence --systems ENRNN ScoRNN LSTM --epochs 80
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from tqdm import tqdm

import spectral_param as sp
from examples.papers import networks

LR = 1e-2
BATCH = 50


def adam(model):
    """Return Adam with one learning rate: for networks without a constraint, or whose papers have one."""
    return torch.optim.Adam(model.parameters(), lr=LR)


def slow(constraint):
    """Return what makes an Adam that trains a constraint ten times more slowly than the rest."""
    return lambda model: torch.optim.Adam(sp.param_groups(model, LR, LR / 10, constrained=constraint))


def stiefel(model):
    """Return the full-capacity uRNN's optimizer, the only one that keeps its matrix unitary."""
    return networks.StiefelRMSprop(networks.stiefel_groups(model, lr=1e-3, stiefel_lr=1e-3))


@dataclasses.dataclass(frozen=True)
class System:
    """A recurrent network of n units that reads one number at a time, and how it is trained."""

    network: Callable[[int], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam
    clip: float | None = None  # Largest norm of the gradient.


SYSTEMS = {
    "ENRNN": System(lambda n: sp.nn.ENRNN(1, n - 2 * n // 5, 2 * n // 5), slow(sp.ScaledCayley)),
    "ScoRNN": System(lambda n: sp.nn.ScoRNN(1, n), slow(sp.ScaledCayley)),
    "ScuRNN": System(lambda n: sp.nn.ScuRNN(1, n), slow(sp.ScaledCayley)),
    "NNRNN": System(lambda n: sp.nn.NNRNN(1, n), slow(sp.SkewExponential)),  # P alone is slow.
    "ExpRNN": System(lambda n: sp.nn.ExpRNN(1, n), slow(sp.SkewExponential)),
    "ContractingRNN": System(lambda n: sp.nn.ContractingRNN(1, n, rate=0.999)),
    "ContractingGRU": System(lambda n: sp.nn.ContractingGRU(1, n, rate=1)),
    "DeltaProduct": System(lambda n: sp.nn.DeltaProduct(1, n, num_heads=2 if n % 2 == 0 else 1)),
    "StateSpace": System(lambda n: sp.nn.StateSpace(1, n, n, 2, "relu", moduli=(0.99, 0.9999))),
    "ORNN": System(lambda n: sp.nn.ORNN(1, n)),
    "SpectralRNN": System(lambda n: sp.nn.SpectralRNN(1, n)),
    "EUNN": System(lambda n: sp.nn.EUNN(1, n, layers=2)),
    "URNN": System(lambda n: sp.nn.URNN(1, n)),
    "FullCapacityURNN": System(lambda n: networks.FullCapacityURNN(1, n), stiefel),
    "GORU": System(lambda n: sp.nn.GORU(1, n)),
    "RNNOrth": System(lambda n: networks.RNNOrth(1, n), clip=1.0),
    "IRNN": System(lambda n: networks.IRNN(1, n), clip=1.0),
    "LSTM": System(lambda n: networks.LSTM(1, n), clip=1.0),
    "GRU": System(lambda n: networks.GRU(1, n), clip=1.0),
}


class Classifier(nn.Module):
    """A recurrent network and a linear map of its last output."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent
        # Complex networks give real and imaginary parts, twice as many features as units.
        self.head = nn.Linear(recurrent.output_size, 10)

    def forward(self, x):
        """Return logits of shape (batch, 10) for pixels of shape (64, batch, 1)."""
        output, _ = self.recurrent(x)
        return self.head(output[-1])


def load(limit):
    """Return pixels (64, count, 1) and labels to train on, and the same to test on.

    Args:
        limit: Largest number of digits, None for all 1797.
    """
    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels[:limit] / 16, labels[:limit], test_size=0.2, random_state=0)
    train_x, test_x, train_y, test_y = map(torch.from_numpy, parts)
    train_x, test_x = (x.float().mT[..., None].contiguous() for x in (train_x, test_x))
    return (train_x, train_y), (test_x, test_y)


def train(system, model, data, epochs, bar):
    """Train the model, and return the seconds that each epoch took."""
    x, y = data
    optimizer = system.optimizer(model)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=epochs)
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in torch.randperm(len(y)).split(BATCH):
            loss = nn.functional.cross_entropy(model(x[:, batch]), y[batch])
            loss = loss + sp.penalty(model)  # Of the NNRNN's eigenvalues; zero for all others.
            optimizer.zero_grad()
            loss.backward()
            if system.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), system.clip)
            optimizer.step()
            bar.update()
        decay.step()
        seconds.append(time.perf_counter() - start)
    return seconds


@torch.no_grad()
def accuracy(model, data):
    """Return the share of digits that are named rightly."""
    x, y = data
    return (model.eval()(x).argmax(dim=-1) == y).float().mean().item()


def main(argv=None):
    """Train all networks and print the table.

    Args:
        argv: The command line.

    Returns:
        The exit code: 0, or 1 if a network's outputs are not finite.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME",
        help=f"of {', '.join(SYSTEMS)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--units", type=int, default=64, help="hidden units (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=40, help="training epochs (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help="one epoch on 100 digits, to see whether it runs"
    )
    arguments = parser.parse_args(argv)
    for name, least in (("units", 4), ("epochs", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name}: expected at least {least}, got {getattr(arguments, name)}")
    torch.set_num_threads(1)  # More are hardly faster for so small a model.
    epochs = 1 if arguments.quick else arguments.epochs
    train_data, test_data = load(100 if arguments.quick else None)

    rows = []
    batches = -(-len(train_data[1]) // BATCH)
    with tqdm(total=len(arguments.systems) * epochs * batches, unit="step") as bar:
        for name in arguments.systems:
            bar.set_description(name)
            torch.manual_seed(0)
            model = Classifier(SYSTEMS[name].network(arguments.units))
            seconds = train(SYSTEMS[name], model, train_data, epochs, bar)
            parameters = sp.num_free_parameters(model)
            rows.append((name, parameters, accuracy(model, test_data), statistics.median(seconds)))
            if not all(torch.isfinite(p).all() for p in model.parameters()):
                print(f"Missed: expected finite parameters of {name}.", file=sys.stderr)
                return 1

    print(f"{'system':18}{'parameters':>12}{'test accuracy':>15}{'seconds per epoch':>19}")
    for name, parameters, right, seconds in rows:
        print(f"{name:18}{parameters:12}{right:15.3f}{seconds:19.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
