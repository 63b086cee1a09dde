"""What the demo trains in its first part: rows like those of the papers' tables, one for each network."""

from __future__ import annotations

from examples.papers.config import Row

TITLE = "Digits, pixel by pixel"
SEEDS = 3
STEPS, CURVE_POINTS = 500, 25
GUESSING = 0.1  # Ten classes of nearly equal size.


def _row(network: dict[str, object], lr: float, orthogonal_lr: float | None = None) -> Row:
    """Return a row whose rates fall linearly to zero."""
    optimizer = [{"name": "Adam", "lr": lr}]
    if orthogonal_lr is not None:  # The papers train the orthogonal block more slowly.
        optimizer.insert(0, {"parameters": "ScaledCayley", "name": "Adam", "lr": orthogonal_lr})
    return Row(
        name=f"digits-{network['name']}",
        label=str(network["name"]),
        section="digits",
        task={"name": "digits", "batch_size": 50},
        network=network,
        optimizer=optimizer,
        training={
            "steps": STEPS,
            "evaluate_every": STEPS // CURVE_POINTS,
            "measured": ["validation"],
            "clip_norm": 1.0,
            "schedule": {"name": "linear"},
        },
    )


# The hidden sizes give all networks the same number of free parameters, within 2 %. Of the learning rates
# 3e-3, 1e-2, 3e-2 and 1e-1, each has the one of the best validation accuracy, with the seeds 0 and 1.
COMPARED = (
    # Half of them -1, as in scoRNN: eigenvalues all around the circle.
    _row({"name": "ENRNN", "long_size": 46, "short_size": 30, "negative_ones": 0.5}, 3e-2, 3e-3),
    _row({"name": "ScoRNN", "hidden_size": 81}, 3e-2, 3e-3),
    _row({"name": "LSTM", "hidden_size": 30, "second_bias": True}, 3e-2),  # Two biases, as torch's.
)


def rows(quick: bool = False) -> list[Row]:
    """Return what to train, in order.

    Args:
        quick: Whether to take tiny networks, little data and a few steps, to test the machinery.
    """
    return [row.quick() if quick else row for row in COMPARED]
