"""The tables of the log, in order, and what the page "Results" draws of each."""

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
        draws: What the learning curves show: ``"test"``, ``"validation"``, or nothing.
        overview: The measure in the picture of all tasks; none by default.
    """

    title: str
    text: str
    measures: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    draws: str = "test"
    overview: str = ""


FIGURES = " The papers have figures only, no numbers."
ADDING = (
    "Mean squared error on 10,000 test sequences. A network that always answers 1 has an error of 1/6, the "
    "dashed line of the figure." + FIGURES
)
LEARNS = ("epochs to half the baseline", "best test", "last test")
COPYING = (
    "Cross-entropy on 1,000 test sequences. A guess has a cross-entropy of 10 ln(8)/(T + 20), the dashed "
    "line of the figure."
)
MNIST = (
    "Accuracy on the test images. Helfrich, Willmott and Ye report the best of all epochs. The output is a "
    "linear function of the last state. Only linear recurrences have hidden layers behind them, since their "
    "states are linear in what they read."
)
PTB = (
    "Bits per character on the raw files with 50 symbols. The state is carried over from one batch to the "
    "next. Helfrich and Ye report the best of all epochs."
)
KERG = (
    "Bits per character on the raw files with 50 symbols. The state is carried over from one batch to the "
    "next. The released code of Kerg et al. reads other files, with 49 symbols and ends of lines, so their "
    "numbers show the order of magnitude only."
)
SPEECH = (
    "Mean squared error in dB² over all bins of all frames, and three scores of audio that is made of the "
    "predicted magnitudes and the true phases, all of the network with the best validation error. SegSNR is "
    "the mean over frames of 10 ms, each limited to -10 to 35 dB, without silent frames. PESQ is the MOS-LQO "
    "of the package pesq. The papers compute SegSNR with Voicebox and presumably the raw P.862 score for "
    "PESQ, so neither is compared with theirs."
)

SECTIONS = {
    "adding-750": Section("Adding problem, T = 750", ADDING, LEARNS, overview="best test"),
    "adding-sizes": Section(
        "Adding problem, sizes of long-term and short-term state, 160 in all",
        "Figure 6 of Helfrich and Ye (2020). There, neither extreme learns as fast as the sizes between.",
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
    "copying-10000": Section(
        "Copying problem, T = 10,000",
        COPYING + " No paper that we know trains ungated networks at this length.",
        ("best test", "last test"),
        overview="best test",
    ),
    "copying-2000": Section(
        "Copying problem, T = 2000", COPYING + FIGURES, ("best test", "last test"), overview="best test"
    ),
    "copying-1000": Section("Copying problem, T = 1000", COPYING + FIGURES, ("best test", "last test")),
    "ptb-50": Section(
        "Penn Treebank characters, 50 steps",
        PTB,
        ("best test", "test at best validation"),
        overview="best test",
    ),
    "ptb-150": Section(
        "Penn Treebank characters, 150 steps",
        KERG,
        ("test at best validation",),
        overview="test at best validation",
    ),
    "ptb-300": Section("Penn Treebank characters, 300 steps", KERG, ("test at best validation",)),
    "mnist": Section(
        "MNIST, pixel by pixel", MNIST, ("best test", "test at best validation"), overview="best test"
    ),
    "pmnist": Section(
        "MNIST, pixel by pixel, permuted",
        MNIST,
        ("best test", "test at best validation"),
        overview="best test",
    ),
    "speech": Section(
        "Speech, AN4",
        f"{SPEECH} The papers' corpus is TIMIT, so their numbers show the order of magnitude only.",
        ("test at best validation", "SegSNR", "STOI", "PESQ"),
        draws="validation",
        overview="test at best validation",
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
        "A robot arm, $x' = A x + B u$. The residuals (Frobenius norm) and the spectral radii of A are those "
        "of least squares, of that A divided by its spectral radius, and of the fit under the constraint.",
        tuple(
            f"{what}, {fit}"
            for fit in ("least squares", "rescaled", "constrained")
            for what in ("residual", "residual ratio", "spectral radius")
        ),
        draws="",
    ),
}
