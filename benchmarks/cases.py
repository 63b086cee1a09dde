"""All benchmark cases, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from benchmarks import constraints, eigen, elsewhere, networks, plain, recurrences
from benchmarks.case import Case

# (n, batch, steps) of the papers' adding, copying and MNIST networks, and of characters.
SEQUENCES = [(160, 50, 750), (192, 20, 2020), (170, 128, 784), (1030, 32, 50)]
Linear = tuple[int, int, int, Literal["last", "all"]]
# Without activation, and which states are read.
LINEAR: list[Linear] = [
    (256, 128, 784, "last"),
    (64, 1, 10_000, "last"),
    (64, 1, 10_000, "all"),
    (16, 16, 2_000, "all"),
]


RECTANGLES = [(64, 16), (512, 512), (1024, 64), (1024, 256), (2048, 64), (768, 3072)]


def cases(quick: bool, only: str = "") -> Iterator[Case]:
    """Yield the cases, each built and checked when its turn comes.

    Args:
        quick: Whether to shrink everything, to test the machinery.
        only: Part of the name of the groups that are wanted.
    """
    for name, build in groups(quick).items():
        if only in name:
            yield from build()


def groups(quick: bool) -> dict[str, Callable[[], Iterable[Case]]]:
    """Give each group of cases a name, and a function that builds them.

    Args:
        quick: Whether to shrink everything.

    Returns:
        The functions by name.
    """
    sizes = (16, 32) if quick else (16, 32, 64, 128, 256, 512, 1024, 2048)
    batched = 8 if quick else 64
    sequences = [(16, 4, 10)] if quick else SEQUENCES
    linear: list[Linear] = [(4, 1, 400, "last")] if quick else LINEAR
    lengths = (5, 10) if quick else (50, 100, 200, 400, 800, 1600, 3200)
    network = (16, 4) if quick else (160, 50)
    rectangles = [(16, 4)] if quick else RECTANGLES
    norms = [(16, 4)] if quick else [(256, 256), (768, 768), (768, 3072)]
    blocks = [(2, 4)] if quick else [(128, 32), (32, 128)]
    small = [(16, 40, 2)] if quick else [(16, 20, 16), (32, 64, 32), (64, 100, 32)]
    return {
        "plain way, radius": lambda: (plain.radius_step(n) for n in ((64,) if quick else (8, 16, 32, 64))),
        "plain way, Cayley": lambda: (plain.cayley_step(n) for n in ((64,) if quick else (16, 64, 128, 256))),
        "plain way, networks": lambda: (plain.network_step(*each) for each in small),
        "training runs": lambda: eigen.on_training_runs(*((16, 64) if quick else (320, 720))),
        "adversarial runs": lambda: eigen.on_adversarial_runs(*((30, 24) if quick else (60, 256))),
        "normalised": lambda: (constraints.normalised_step(n) for n in sizes),
        "new Linear, float32": lambda: (constraints.normalised_step(n, fresh=True) for n in sizes),
        "new Linear, float64": lambda: (
            constraints.normalised_step(n, fresh=True, dtype="float64") for n in sizes
        ),
        "normalised, batch": lambda: [constraints.normalised_step(batched, batched)],
        "orthogonal": lambda: (constraints.orthogonal_step(n) for n in sizes[1:]),
        "any shape": lambda: (constraints.rectangle_step(*each) for each in rectangles),
        "any shape, blocks": lambda: (constraints.blocks_step(*each) for each in blocks),
        "any shape, very tall": lambda: [constraints.tall_step(*((90, 5) if quick else (30_000, 50)))],
        "bounded norm": lambda: (
            constraints.norm_step(*each, *kind)
            for kind in ((True,), (False,), (True, True))
            for each in norms
        ),
        "bounded norm, kernels": lambda: (
            constraints.kernel_norm_step(*((4, 5) if quick else (64, 16)), stride) for stride in (1, 2)
        ),
        "elsewhere": lambda: [] if quick else elsewhere.cases(),
        "recurrences": lambda: (recurrences.sequence(*each) for each in sequences),
        "growing recurrences": lambda: (recurrences.growing_sequence(*network, steps) for steps in lengths),
        "a cell in a loop": lambda: (
            recurrences.cell_in_a_loop(n) for n in ((8,) if quick else (32, 128, 256))
        ),
        "linear recurrences": lambda: (recurrences.linear_sequence(*each) for each in linear),
        "networks": lambda: (networks.training_step(n) for n in ((16,) if quick else networks.SIZES)),
        "characters": lambda: [recurrences.character_step(*((6, 10, 2) if quick else (310, 720, 300)))],
    }
