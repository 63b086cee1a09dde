"""The tables of the log, in order, and what the page "Results" draws of each."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Section:
    """One table with its figure.

    Attributes:
        title: Its heading.
        measures: What is shown of each row, besides what its paper reports.
        also: Rows of other sections that belong here, too.
        draws: What the learning curves show: ``"test"``, ``"validation"``, or nothing.
        overview: The measure in the picture of all tasks; none by default.
    """

    title: str
    measures: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    draws: str = "test"
    overview: str = ""


BEST, LAST, CHOSEN = "best test", "last test", "test at best validation"
LEARNS = ("epochs to half the baseline", BEST, LAST)
SPEECH = (CHOSEN, "SegSNR", "STOI", "PESQ")
SIZES = ("adding-750-enrnn-96-64", "adding-750-enrnn-96-64-adam")

SECTIONS = {
    "adding-750": Section("Adding problem, T = 750", LEARNS, overview=BEST),
    "adding-sizes": Section(
        "Adding problem, sizes of long-term and short-term state, 160 in all", LEARNS, SIZES
    ),
    "adding-sizes-96": Section(
        "Adding problem, short-term states beside a long-term one of 96", LEARNS, SIZES
    ),
    "adding-200": Section("Adding problem, T = 200", LEARNS),
    "adding-400": Section("Adding problem, T = 400", LEARNS),
    "copying-10000": Section("Copying problem, T = 10,000", (BEST, LAST), overview=BEST),
    "copying-2000": Section("Copying problem, T = 2000", (BEST, LAST), overview=BEST),
    "copying-1000": Section("Copying problem, T = 1000", (BEST, LAST)),
    "ptb-50": Section("Penn Treebank characters, 50 steps", (BEST, CHOSEN), overview=BEST),
    "ptb-150": Section("Penn Treebank characters, 150 steps", (CHOSEN,), overview=CHOSEN),
    "ptb-300": Section("Penn Treebank characters, 300 steps", (CHOSEN,)),
    "mnist": Section("MNIST, pixel by pixel", (BEST, CHOSEN), overview=BEST),
    "pmnist": Section("MNIST, pixel by pixel, permuted", (BEST, CHOSEN), overview=BEST),
    "speech": Section("Speech, AN4", SPEECH, draws="validation", overview=CHOSEN),
    "timit": Section("Speech, TIMIT", SPEECH, draws="validation"),
    "speed": Section("Minutes per epoch, unpermuted MNIST", ("minutes per epoch",), draws=""),
    "dynamics": Section(
        "Stable dynamics",
        tuple(
            f"{what}, {fit}"
            for fit in ("least squares", "rescaled", "constrained")
            for what in ("residual", "residual ratio", "spectral radius")
        ),
        draws="",
    ),
}
