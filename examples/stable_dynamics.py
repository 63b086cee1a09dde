"""Fit a stable linear model x' = A x + B u to recorded pairs: a torch.nn.Linear with a constraint.

Least squares knows nothing of stability: its A may have an eigenvalue outside the unit circle, and
the model then runs away when it is rolled out. Dividing A by its spectral radius stops that, and
damps everything else along with it. The constrained fit moves only what has to move.

    python examples/stable_dynamics.py                    # a simulated chain of masses
    python examples/stable_dynamics.py --data FOLDER      # a robot arm, FOLDER/franka/...
"""

import argparse
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.io
import scipy.linalg
import torch
from matplotlib.figure import Figure
from torch.nn.utils.parametrize import register_parametrization

from spectral_param import SpectralRadiusNorm

ARM_FILE = Path("franka", "Franka_TrainingData.mat")
ARM_SOURCE = "https://github.com/giorgosmamakoukas/MemoryEfficientStableLDS"
STEPS = 5000  # of the free roll-out
MAX_RATIO = 1.001  # what the constrained fit may cost, as a multiple of the least-squares residual
MAX_RADIUS = 1 + 1e-9


class Pairs(NamedTuple):
    """States X, the states Y one step later, and the inputs U in between: one pair to a row."""

    X: np.ndarray  # (N, n)
    Y: np.ndarray  # (N, n)
    U: np.ndarray  # (N, m)


def load_arm(folder):
    """Return the pairs recorded on a Franka Emika Panda arm (Mamakoukas et al., NeurIPS 2020).

    Args:
        folder: The data folder, with ``franka/Franka_TrainingData.mat`` in it.

    Raises:
        ValueError: If the file is missing or is not what it should be.
    """
    path = Path(folder) / ARM_FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing. Put it there; it is part of {ARM_SOURCE}.")
    try:
        content = scipy.io.loadmat(path)
    except Exception as error:  # A damaged file raises whatever its bytes happen to lead to.
        raise ValueError(f"{path}: expected a MATLAB file, version 7 or older ({error}).") from error
    for key in Pairs._fields:
        M = content.get(key)
        if not isinstance(M, np.ndarray) or M.dtype.kind not in "fiu" or not np.isfinite(M).all():
            got = "no such array" if M is None else "something else"
            raise ValueError(f"{path}: expected an array {key} of finite real numbers, got {got}.")
    X, Y, U = (content[key] for key in Pairs._fields)
    if not (X.ndim == U.ndim == 2 and X.shape == Y.shape and len(X) == len(U)):
        shapes = f"{X.shape}, {Y.shape} and {U.shape}"
        raise ValueError(f"{path}: expected X (N, n), Y (N, n) and U (N, m), got {shapes}.")
    return Pairs(*(M.astype(np.float64) for M in (X, Y, U)))


def simulate_chain(masses=6, trajectories=8, steps=100, dt=0.1, seed=0):
    """Return pairs of a damped chain of unit masses on unit springs, pushed at its last two.

    A weak spring holds its first mass and drag slows all, so it is stable. The velocities are
    observed with ten times the noise of the positions, which makes least squares see growth.

    Args:
        masses: Number of masses; the state is their positions and velocities.
        trajectories: Number of recordings, each from random positions at rest.
        steps: Length of a recording.
        dt: Time between two observations.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    stiffness = 2 * np.eye(masses) - np.eye(masses, k=1) - np.eye(masses, k=-1)
    stiffness[0, 0], stiffness[-1, -1] = 1.01, 1.0
    n, zero, I = 2 * masses, np.zeros((masses, masses)), np.eye(masses)
    # x' = F x + G u with u constant between two observations, solved by one matrix exponential.
    FG = np.block([[zero, I, zero], [-stiffness, -0.05 * I, I], [np.zeros((masses, 3 * masses))]])
    AB = scipy.linalg.expm(dt * FG)[:n, [*range(n), -2, -1]]
    deviation = np.repeat([0.002, 0.02], masses)
    recordings = []
    for _ in range(trajectories):
        U = rng.standard_normal((steps, 2))
        X = [np.append(rng.standard_normal(masses), np.zeros(masses))]
        for u in U:
            X.append(AB @ np.append(X[-1], u))
        X = X + deviation * rng.standard_normal((steps + 1, n))
        recordings.append((X[:-1], X[1:], U))
    return Pairs(*map(np.vstack, zip(*recordings, strict=True)))


def without_inputs(pairs):
    """Return X and Y projected onto the complement of U: what no choice of B can change."""
    Q, _ = np.linalg.qr(pairs.U)
    return (M - Q @ (Q.T @ M) for M in (pairs.X, pairs.Y))


def residual(A, pairs):
    """Return ‖Y - X Aᵀ - U Bᵀ‖ (Frobenius) with the B that fits this A best."""
    X, Y = without_inputs(pairs)
    return np.linalg.norm(Y - X @ A.T)


def spectral_radius(A):
    """Return the largest modulus of an eigenvalue."""
    return np.abs(np.linalg.eigvals(A)).max()


class Whitened(torch.nn.Module):
    """Stores T Rᵀ instead of T. In these coordinates the loss is curved alike in all directions.

    Args:
        R: The triangular factor of X = Q R.
    """

    def __init__(self, R):
        super().__init__()
        self.R = R

    def forward(self, P):
        """Return T."""
        return torch.linalg.solve_triangular(self.R, P.mT, upper=True).mT

    def right_inverse(self, T):
        """Return T Rᵀ."""
        return T @ self.R.mT


def fit_constrained(A, pairs):
    """Return the A of spectral radius at most 1 that fits best, found by L-BFGS.

    Args:
        A: The least-squares solution. Registration divides it by its spectral radius, and this is
            where the search starts.
        pairs: The data.
    """
    X, Y = without_inputs(pairs)
    Q, R = np.linalg.qr(X)
    # ‖X Aᵀ - Y‖² = ‖R Aᵀ - Qᵀ Y‖² + const: n rows in place of N.
    inputs, targets = torch.from_numpy(R), torch.from_numpy(Q.T @ Y)

    layer = torch.nn.Linear(*A.shape, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(A))
    register_parametrization(layer, "weight", Whitened(inputs))
    register_parametrization(layer, "weight", SpectralRadiusNorm(mode="at_most"))

    # Zero tolerances: it ends when the line search finds nothing better in float64.
    optimizer = torch.optim.LBFGS(
        layer.parameters(),
        max_iter=500,
        history_size=20,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        loss = (layer(inputs) - targets).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return layer.weight.detach().numpy()


def fit_all(pairs):
    """Return the three matrices A by name.

    Raises:
        ValueError: If the data does not determine A and B.
    """
    XU = np.hstack([pairs.X, pairs.U])
    AB, _, rank, _ = np.linalg.lstsq(XU, pairs.Y, rcond=None)
    if rank < XU.shape[1]:
        raise ValueError(f"expected [X U] of rank {XU.shape[1]}, got {rank}: A is not determined.")
    A = AB[: pairs.X.shape[1]].T
    return {
        "least squares": A,
        "rescaled, A / ρ(A)": A / max(1, spectral_radius(A)),
        "constrained": fit_constrained(A, pairs),
    }


def roll_out(A, start):
    """Return ‖x_t‖ for x_{t+1} = A x_t, t = 0 … STEPS: inputs of zero."""
    x = start
    norms = [np.linalg.norm(x)]
    for _ in range(STEPS):
        x = A @ x
        norms.append(np.linalg.norm(x))
    return np.array(norms)


def plot(fits, norms, title, path):
    """Draw the roll-outs and the eigenvalues near the unit circle into a PNG file."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    # Okabe and Ito's colours, which colour-blind readers can tell apart.
    styles = (("#D55E00", "-", "o"), ("#666666", "--", "s"), ("#0072B2", "-.", "^"))
    for (name, A), (color, line, marker) in zip(fits.items(), styles, strict=True):
        left.plot(norms[name], line, color=color)
        eigenvalues = np.linalg.eigvals(A)
        near = eigenvalues[np.abs(eigenvalues) > 0.99]
        look = {"color": color, "marker": marker, "markersize": 7, "markerfacecolor": "none"}
        right.plot(np.angle(near), 1e3 * (np.abs(near) - 1), linestyle="none", **look)
        left.plot([], [], line, label=name, **look)  # One entry of the legend for both.
    left.set(yscale="log", xlabel="step $t$", ylabel=r"$\Vert x_t\Vert$ (units of the data)")
    left.set_title("Free roll-out (u = 0) from the first recorded state", fontsize="medium")
    left.grid(color="0.9")
    right.set(xlabel=r"$\arg\lambda$ (rad)", ylabel=r"$(|\lambda| - 1) \cdot 10^3$")
    right.set_title("Eigenvalues near the unit circle", fontsize="medium")
    bottom, top = right.get_ylim()
    top = max(top, 0) + 0.15 * (top - bottom)  # Room for the text.
    right.axhspan(0, top, color="0.93", zorder=0)
    right.axhline(0, color="black", linewidth=1, zorder=1)
    right.annotate("outside: unstable", (0.02, 0.97), xycoords="axes fraction", va="top")
    right.set_ylim(bottom, top)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


def main(argv=None):
    """Fit, print the table, draw the plot.

    Args:
        argv: The command line.

    Returns:
        The exit code: 0, or 1 if the constrained fit misses what it promises.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        default=os.environ.get("SPECTRAL_PARAM_DATA"),
        help=f"folder with {ARM_FILE} in it (default: $SPECTRAL_PARAM_DATA; without it, simulate)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("examples-output"),
        help="folder for the plot (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        if arguments.data:
            title, pairs = "Franka robot arm", load_arm(arguments.data)
        else:
            title, pairs = "Simulated chain of masses", simulate_chain()
            print(
                "This is simulated. For the robot arm: "
                f"--data FOLDER with {ARM_FILE} in it, from {ARM_SOURCE}"
            )
        fits = fit_all(pairs)
    except (OSError, ValueError) as error:
        parser.error(str(error))

    norms = {name: roll_out(A, pairs.X[0]) for name, A in fits.items()}
    least = residual(fits["least squares"], pairs)
    print(f"{title}: {len(pairs.X)} pairs, {pairs.X.shape[1]} states, {pairs.U.shape[1]} inputs")
    print(f"{'':20}{'residual':>10}{'ratio':>12}{'spectral radius':>18}{f'‖x_{STEPS}‖/‖x_0‖':>18}")
    for name, A in fits.items():
        error, growth = residual(A, pairs), norms[name][-1] / norms[name][0]
        print(f"{name:20}{error:10.6f}{error / least:12.7f}{spectral_radius(A):18.12f}{growth:18.3g}")
    path = arguments.output / "stable_dynamics.png"
    plot(fits, norms, title, path)
    print(f"Plot: {path}")

    A = fits["constrained"]
    if residual(A, pairs) > MAX_RATIO * least or spectral_radius(A) > MAX_RADIUS:
        print(f"Missed: expected a ratio <= {MAX_RATIO} and a radius <= 1 + 1e-9.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
