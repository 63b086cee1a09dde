"""Train a scoRNN and a full-capacity uRNN in float32, and watch how orthogonal they stay.

The scoRNN builds its matrix anew in every step, from a skew-symmetric one. The full-capacity uRNN
multiplies its matrix by a unitary one in every step, and the rounding errors of all steps add up:
appendix B of Helfrich, Willmott and Ye (2018), here on the adding problem.

    python -m examples.orthogonality_drift
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import spectral_param as sp
from examples.papers.networks import FullCapacityURNN, StiefelRMSprop, stiefel_groups

LENGTH, BATCH, UNITS = 30, 20, 128
PRECISION = UNITS * torch.finfo(torch.float32).eps  # What rounding once leaves, at the most.


def adding_problem(generator):
    """Return LENGTH numbers, two of them marked, and the sum of the marked ones, for a batch."""
    numbers = torch.rand(LENGTH, BATCH, generator=generator)
    marks = torch.zeros(LENGTH, BATCH)
    for half in marks.chunk(2):
        half.scatter_(0, torch.randint(len(half), (1, BATCH), generator=generator), 1.0)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(dim=0)


def defect(rnn):
    """Return ‖WᴴW − I‖_F of the recurrent matrix, computed in double precision."""
    W = rnn.cells[0].weight_hh.detach()
    W = W.to(torch.complex128 if W.is_complex() else torch.float64)
    return torch.linalg.matrix_norm(W.mH @ W - torch.eye(len(W), dtype=W.dtype)).item()


def train(rnn, make_optimizer, steps):
    """Train on the adding problem. Return the defect before every step and at the end, and the losses."""
    head = nn.Linear(rnn.output_size, 1)
    optimizer = make_optimizer(nn.ModuleList([rnn, head]))
    generator = torch.Generator().manual_seed(0)  # The same sequences for every network.
    defects, losses = [], []
    for _ in range(steps):
        defects.append(defect(rnn))
        x, y = adding_problem(generator)
        loss = nn.functional.mse_loss(head(rnn(x)[0][-1])[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*defects, defect(rnn)], losses


def plot(curves, path):
    """Draw the defects into a PNG file."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, defects), color, line in zip(curves.items(), ("#D55E00", "#0072B2"), ("-", "--"), strict=True):
        axes.plot(defects, line, color=color, label=name)
    axes.set(yscale="log", xlabel="training step", ylabel=r"$\Vert W^{H}W - I\Vert_F$ in float32")
    axes.set_title(f"Adding problem, T = {LENGTH}, n = {UNITS}", fontsize="medium")
    axes.axhline(PRECISION, color="0.4", linewidth=1, linestyle=":", label=r"$n\,\varepsilon$")
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main(argv=None):
    """Train both networks, print the table, draw the plot.

    Args:
        argv: The command line.

    Returns:
        The exit code: 0, or 1 if the scoRNN drifts or the full-capacity uRNN does not.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="training steps (default: %(default)s)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("examples-output"),
        help="folder for the plot (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error(f"--steps: expected at least 1, got {arguments.steps}")
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(str(error))

    torch.manual_seed(0)
    networks = {
        "full-capacity uRNN": (
            FullCapacityURNN(2, UNITS),
            lambda model: StiefelRMSprop(stiefel_groups(model, 1e-3, 1e-4)),
        ),
        "scoRNN": (
            sp.nn.ScoRNN(2, UNITS),
            lambda model: torch.optim.RMSprop(sp.param_groups(model, 1e-3, 1e-4), alpha=0.9),
        ),
    }
    print(
        f"{'‖WᴴW − I‖_F':20}{'start':>10}{'end':>10}{'largest':>10}{'ratio':>8}{'last loss':>11}{'time':>9}"
    )
    curves = {}
    for name, (rnn, make_optimizer) in networks.items():
        start = time.perf_counter()
        curves[name], losses = train(rnn, make_optimizer, arguments.steps)
        first, last, largest = curves[name][0], curves[name][-1], max(curves[name])
        seconds = time.perf_counter() - start
        numbers = f"{first:10.1e}{last:10.1e}{largest:10.1e}{last / first:8.1f}{losses[-1]:11.4f}"
        print(f"{name:20}{numbers}{seconds:7.0f} s")
    path = arguments.output / "orthogonality_drift.png"
    plot(curves, path)
    print(f"Plot: {path}")

    drifting, steady = curves["full-capacity uRNN"], curves["scoRNN"]
    if max(steady) > PRECISION or drifting[-1] <= drifting[0]:
        print(f"Missed: expected scoRNN below {PRECISION:.1e} and a drift of the other.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
