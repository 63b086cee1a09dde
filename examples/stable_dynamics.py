"""Fit a stable linear model x' = A x + B u to noisy recordings: a chain of masses, pushed at its end.

Least squares knows nothing of stability: its A has an eigenvalue outside the unit circle, and the model runs
away when it is rolled out. Dividing A by its spectral radius stops that, and damps everything else along with
it. ``fit_stable`` moves only what has to move.

    python examples/stable_dynamics.py
"""

import argparse
from pathlib import Path

import numpy as np
import scipy.linalg
from matplotlib.figure import Figure

from spectral_param.dynamics import fit_stable

STEPS = 5000  # of the free roll-out


def simulate_chain(masses=6, recordings=8, steps=100, dt=0.1, seed=0):
    """Return states X, the states Y one step later, and the pushes U in between, a pair to a row.

    Unit masses on unit springs; a weak spring holds the first one, and drag slows all: it is stable. The
    velocities are observed with ten times the noise of the positions, so that least squares sees growth.

    Args:
        masses: Number of masses; the state is their positions and velocities.
        recordings: Number of recordings, each from random positions at rest.
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
    pairs = []
    for _ in range(recordings):
        U = rng.standard_normal((steps, 2))
        X = [np.append(rng.standard_normal(masses), np.zeros(masses))]
        for u in U:
            X.append(AB @ np.append(X[-1], u))
        X = X + deviation * rng.standard_normal((steps + 1, n))
        pairs.append((X[:-1], X[1:], U))
    return tuple(map(np.vstack, zip(*pairs, strict=True)))


def three_fits(X, Y, U):
    """Return the three matrices A by name.

    Args:
        X: States.
        Y: The states one step later.
        U: Inputs.
    """
    A = np.linalg.lstsq(np.hstack([X, U]), Y, rcond=None)[0].T[:, : X.shape[1]]
    return {
        "least squares": A,
        "rescaled, A / ρ(A)": A / max(1.0, spectral_radius(A)),
        "fit_stable": fit_stable(X, Y, U).A,
    }


def spectral_radius(A):
    """Return the largest modulus of an eigenvalue."""
    return np.abs(np.linalg.eigvals(A)).max()


def residual(A, X, Y, U):
    """Return ‖Y - X Aᵀ - U Bᵀ‖ (Frobenius) with the B that fits this A best."""
    B = np.linalg.lstsq(U, Y - X @ A.T, rcond=None)[0].T
    return np.linalg.norm(Y - X @ A.T - U @ B.T)


def roll_out(A, start):
    """Return ‖x_t‖ for x_{t+1} = A x_t, t = 0 … STEPS: inputs of zero."""
    states = [start]
    for _ in range(STEPS):
        states.append(A @ states[-1])
    return np.linalg.norm(states, axis=1)


def draw(fits, norms):
    """Return a figure of the roll-outs and of the eigenvalues near the unit circle."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    # Okabe and Ito's colours, which colour-blind readers can tell apart.
    looks = zip(("#D55E00", "#666666", "#0072B2"), ("-", "--", "-."), "os^", strict=True)
    for (name, A), (color, line, marker) in zip(fits.items(), looks, strict=True):
        left.plot(norms[name], line, color=color, label=name)
        near = np.array([e for e in np.linalg.eigvals(A) if abs(e) > 0.99])
        right.plot(
            np.angle(near), 1e3 * (np.abs(near) - 1), marker, color=color, fillstyle="none", label=name
        )
    left.set(yscale="log", xlabel="step $t$", ylabel=r"$\Vert x_t\Vert$", title="Roll-out with u = 0")
    right.set(xlabel=r"$\arg\lambda$ (rad)", ylabel=r"$(|\lambda| - 1) \cdot 10^3$")
    right.set_title("Eigenvalues near the unit circle (above 0: unstable)", fontsize="medium")
    right.axhline(0, color="black", linewidth=1)
    right.legend()
    return figure


def main():
    """Fit, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path("examples-output"), help="folder of the figure (%(default)s)"
    )
    folder = parser.parse_args().output
    X, Y, U = simulate_chain()
    fits = three_fits(X, Y, U)
    norms = {name: roll_out(A, X[0]) for name, A in fits.items()}
    least = residual(fits["least squares"], X, Y, U)
    print(f"{'':20}{'residual ratio':>16}{'spectral radius':>18}{f'‖x_{STEPS}‖/‖x_0‖':>18}")
    for name, A in fits.items():
        ratio, grown = residual(A, X, Y, U) / least, norms[name][-1] / norms[name][0]
        print(f"{name:20}{ratio:16.7f}{spectral_radius(A):18.12f}{grown:18.3g}")
    folder.mkdir(parents=True, exist_ok=True)
    draw(fits, norms).savefig(folder / "stable_dynamics.png", dpi=150)
    print(f"Figure: {folder / 'stable_dynamics.png'}")


if __name__ == "__main__":
    main()
