"""The tables of the page "Results", in order."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Section:
    """One table with its figure.

    Attributes:
        title: Its heading.
        text: What stands above it.
        measures: What is shown of each row, besides what its paper reports.
        also: Rows of other sections that belong here, too.
        draws: What the figure shows: ``"test"``, ``"validation"``, or nothing.
    """

    title: str
    text: str
    measures: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    draws: str = "test"


ADDING = (
    "Mean squared error on 10,000 sequences. Always answering 1 has 1/6, the dashed line. The papers have "
    "figures only."
)
LEARNS = ("epochs to half the baseline", "best test", "last test")
COPYING = (
    "Cross-entropy on 1,000 sequences, 4,000 steps. A guess has 10 ln(8)/(T + 20), the dashed line. The "
    "papers have figures only."
)
MNIST = (
    "Accuracy on the test images. The papers report the best of all epochs, and so is it compared. The "
    "output is linear in the last state, except for networks without activation: their state is linear in "
    "the image, so that a hidden layer reads it."
)
PTB = (
    "Bits per character, raw files, 50 symbols, the state carried over. Helfrich and Ye report the best of "
    "all epochs."
)
KERG = (
    "Bits per character, raw files, 50 symbols, the state carried over. The released code of Kerg et al. "
    "reads other files, with 49 symbols and ends of lines: their numbers are beside ours for the order alone."
)
SPEECH = (
    "Mean squared error in dB², over all bins of all frames that exist, and scores of audio with the "
    "predicted magnitudes and the true phases; the network that was best on the validation data. "
    "SegSNR is the mean over frames of 10 ms, each within -10 to 35 dB, without those of silence, and PESQ "
    "is the MOS-LQO that the package pesq returns; the papers' SegSNR is that of Voicebox and their PESQ "
    "presumably the raw score of P.862, so neither is compared with theirs."
)

SECTIONS = {
    "adding-750": Section("Adding problem, T = 750", ADDING, LEARNS),
    "adding-sizes": Section(
        "Adding problem, sizes of long-term and short-term state, 160 in all",
        "Figure 6 of Helfrich and Ye (2020): neither extreme learns as fast.",
        LEARNS,
        also=("adding-750-enrnn-96-64", "adding-750-enrnn-96-64-adam"),
    ),
    "adding-sizes-96": Section(
        "Adding problem, short-term states beside a long-term one of 96",
        "Figure 6 of the arXiv version of Helfrich and Ye (2020).",
        LEARNS,
        also=("adding-750-enrnn-96-64", "adding-750-enrnn-96-64-adam"),
    ),
    "adding-200": Section("Adding problem, T = 200", ADDING, LEARNS),
    "adding-400": Section("Adding problem, T = 400", ADDING, LEARNS),
    "copying-2000": Section("Copying problem, T = 2000", COPYING, ("best test", "last test")),
    "copying-1000": Section("Copying problem, T = 1000", COPYING, ("best test", "last test")),
    "ptb-50": Section("Penn Treebank characters, 50 steps", PTB, ("best test", "test at best validation")),
    "ptb-150": Section("Penn Treebank characters, 150 steps", KERG, ("test at best validation",)),
    "ptb-300": Section("Penn Treebank characters, 300 steps", KERG, ("test at best validation",)),
    "mnist": Section("MNIST, pixel by pixel", MNIST, ("best test", "test at best validation")),
    "pmnist": Section("MNIST, pixel by pixel, permuted", MNIST, ("best test", "test at best validation")),
    "speech": Section(
        "Speech, AN4",
        f"{SPEECH} The papers' corpus is TIMIT, so their numbers are beside ours for the order alone.",
        ("test at best validation", "SegSNR", "STOI", "PESQ"),
        draws="validation",
    ),
    "timit": Section(
        "Speech, TIMIT", SPEECH, ("test at best validation", "SegSNR", "STOI", "PESQ"), draws="validation"
    ),
    "speed": Section(
        "Minutes per epoch, unpermuted MNIST",
        "Median training step times 1,100 steps, batches of 50. The paper's minutes are those of a GTX 1080.",
        ("minutes per epoch",),
        draws="",
    ),
    "dynamics": Section(
        "Stable dynamics",
        "A robot arm, $x' = A x + B u$: residuals (Frobenius) and spectral radii of A by least squares, by "
        "dividing that A by its spectral radius, and by the fit under the constraint.",
        tuple(
            f"{what}, {fit}"
            for fit in ("least squares", "rescaled", "constrained")
            for what in ("residual", "residual ratio", "spectral radius")
        ),
        draws="",
    ),
}
