"""The parameter counts that the papers print, for the networks of this library.

A count is of everything trained: the recurrent network, a linear output and its bias, and what a row
adds. Conventions of the papers that our networks do not share:

- The authors of the uRNNs and of the oRNN train the initial state, 2n and n real numbers:
  ``initial_state=True``.
- "Recurrent": what scoRNN's section 5.2 prints is the count of the recurrent matrices alone.

"≈ 200k" has two significant digits, "≈ 135k" three: a printed count is as exact as its digits without
the zeros at the end, at least two. Where our count is elsewhere, the row has it, and why.
"""

import dataclasses
from collections.abc import Callable

from torch import nn

import spectral_param as sp
from examples.papers.networks import LSTM, FullCapacityURNN
from spectral_param.nn import ENRNN, NNRNN, ORNN, URNN, ScoRNN, SpectralRNN

SCORNN = "Helfrich, Willmott and Ye (2018)"
NNRNN_PAPER = "Kerg et al. (2019)"
ENRNN_PAPER = "Helfrich and Ye (2020)"
ADDING, COPYING, TIMIT, MNIST, PTB = (2, 1), (10, 9), (129, 129), (1, 10), (50, 50)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of one table.

    Attributes:
        paper: Where the table is.
        table: Its number, or the section that gives the count.
        network: The class.
        sizes: Its hidden sizes.
        task: Input size and output size.
        printed: The printed count in thousands.
        kwargs: Further arguments of the network.
        initial_state: Whether the count has a trained initial state.
        embedding: In how many dimensions the input is embedded before the network, if it is.
        recurrent_only: Whether the printed count is that of the recurrent matrix alone.
        count: Where our count does not round to the printed one: our count.
        why: And why.
    """

    paper: str
    table: str
    network: Callable[..., nn.Module]
    sizes: tuple[int, ...]
    task: tuple[int, int]
    printed: float
    kwargs: dict = dataclasses.field(default_factory=dict)
    initial_state: bool = False
    embedding: int | None = None
    recurrent_only: bool = False
    count: int | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"{self.paper}, {self.table}, {self.network.__name__} {self.sizes}"


# Characters: embedded, through the identity into the ENRNN, whose ReLU has a bias (section 5.4).
CHARACTERS = {"embedding": 1030, "kwargs": {"input_map": "identity", "nonlinearity": "relu"}}
UNCOUPLED = {"kwargs": {"coupling": False}}
STATE = {"initial_state": True}
RECURRENT = {"recurrent_only": True}

ROWS = (
    # Adding problem.
    Row(SCORNN, "5.2", ScoRNN, (170,), ADDING, 14, **RECURRENT),
    Row(SCORNN, "5.2", LSTM, (60,), ADDING, 14, **RECURRENT),
    Row(SCORNN, "5.2", FullCapacityURNN, (120,), ADDING, 14, **RECURRENT),
    Row(
        SCORNN,
        "5.2",
        URNN,
        (950,),
        ADDING,
        14,
        **STATE,
        count=15_201,
        why="9 % more. Without the initial state 13k (13,301), so 14k is between the two.",
    ),
    Row(ENRNN_PAPER, "5.1", ENRNN, (96, 64), ADDING, 15),
    Row(ENRNN_PAPER, "5.1", LSTM, (60,), ADDING, 15),
    Row(ENRNN_PAPER, "5.1", ScoRNN, (170,), ADDING, 15),
    Row(ENRNN_PAPER, "5.1", FullCapacityURNN, (120,), ADDING, 15, **STATE),
    Row(ENRNN_PAPER, "5.1", ORNN, (128,), ADDING, 2.6, {"reflections": 16}, **STATE),
    Row(
        ENRNN_PAPER,
        "5.1",
        SpectralRNN,
        (60,),
        ADDING,
        15,
        {"reflections": 16},
        count=1_949,
        why="87 % less. 15k is the LSTM with 60 units beside it. All weights of a recurrent network of 60"
        " units without a constraint are 3,841.",
    ),
    # Copying problem.
    Row(SCORNN, "5.1", ScoRNN, (190,), COPYING, 22),
    Row(SCORNN, "5.1", LSTM, (68,), COPYING, 22),
    Row(SCORNN, "5.1", FullCapacityURNN, (128,), COPYING, 22, **STATE),
    Row(
        SCORNN,
        "5.1",
        URNN,
        (470,),
        COPYING,
        22,
        **STATE,
        count=22_569,
        why="23k if rounded, 22k if cut off, or without the initial state (21,629).",
    ),
    Row(
        NNRNN_PAPER,
        "5.1",
        NNRNN,
        (128,),
        COPYING,
        18.9,
        count=18_953,
        why="19.0k if rounded, 18.9k if cut off, or without the 9 biases of the output (18,944).",
    ),
    Row(ENRNN_PAPER, "5.2", ENRNN, (172, 20), COPYING, 22),
    Row(ENRNN_PAPER, "arXiv, table 1", LSTM, (192,), COPYING, 158),
    # Pixel-by-pixel MNIST.
    Row(SCORNN, "table 1", ScoRNN, (170,), MNIST, 16),
    Row(SCORNN, "table 1", ScoRNN, (360,), MNIST, 69),
    Row(SCORNN, "table 1", ScoRNN, (512,), MNIST, 137),
    Row(SCORNN, "table 1", LSTM, (128,), MNIST, 68),
    Row(SCORNN, "table 1", LSTM, (256,), MNIST, 270),
    Row(SCORNN, "table 1", LSTM, (512,), MNIST, 1058),
    Row(SCORNN, "table 1", FullCapacityURNN, (116,), MNIST, 16, **STATE),
    Row(SCORNN, "table 1", FullCapacityURNN, (512,), MNIST, 270, **STATE),
    Row(
        SCORNN,
        "table 3",
        FullCapacityURNN,
        (360,),
        MNIST,
        137,
        **STATE,
        count=138_610,
        why="1.2 % more. Presumably the count of scoRNN 512, which the size was chosen to match.",
    ),
    Row(SCORNN, "table 1", URNN, (512,), MNIST, 16, **STATE),
    Row(SCORNN, "table 1", URNN, (2170,), MNIST, 69, **STATE),
    # TIMIT.
    Row(SCORNN, "table 2", ScoRNN, (224,), TIMIT, 83),
    Row(SCORNN, "table 2", ScoRNN, (322,), TIMIT, 135),
    Row(SCORNN, "table 2", ScoRNN, (425,), TIMIT, 200),
    Row(SCORNN, "table 2", LSTM, (84,), TIMIT, 83),
    Row(
        SCORNN,
        "table 2",
        LSTM,
        (120,),
        TIMIT,
        135,
        count=135_609,
        why="0.5 % more: 136k if rounded, 135k if cut off, or without the 129 biases of the output.",
    ),
    Row(SCORNN, "table 2", LSTM, (158,), TIMIT, 200),
    Row(SCORNN, "table 2", FullCapacityURNN, (128,), TIMIT, 83, **STATE),
    Row(
        SCORNN,
        "table 2",
        FullCapacityURNN,
        (192,),
        TIMIT,
        135,
        **STATE,
        count=136_641,
        why="1.2 % more. Presumably the count of scoRNN 322, which the size was chosen to match.",
    ),
    Row(SCORNN, "table 2", FullCapacityURNN, (256,), TIMIT, 200, **STATE),
    Row(SCORNN, "table 2", URNN, (158,), TIMIT, 83, **STATE),
    Row(SCORNN, "table 2", URNN, (256,), TIMIT, 135, **STATE),
    Row(SCORNN, "table 2", URNN, (378,), TIMIT, 200, **STATE),
    Row(ENRNN_PAPER, "table 1", ENRNN, (374, 94), TIMIT, 200, **UNCOUPLED),
    Row(ENRNN_PAPER, "table 1", ScoRNN, (425,), TIMIT, 200),
    Row(ENRNN_PAPER, "table 1", LSTM, (158,), TIMIT, 200),
    Row(ENRNN_PAPER, "table 1", LSTM, (468,), TIMIT, 1200),
    # Penn Treebank characters.
    Row(ENRNN_PAPER, "table 2", LSTM, (350,), PTB, 1016, embedding=350),
    Row(ENRNN_PAPER, "table 2", LSTM, (1030,), PTB, 8600, embedding=1030),
    Row(ENRNN_PAPER, "table 2", ORNN, (512,), PTB, 183, **STATE),
    Row(ENRNN_PAPER, "table 2", NNRNN, (1024,), PTB, 1320, embedding=200),  # As the nnRNN authors' code.
    Row(
        ENRNN_PAPER,
        "table 2",
        ENRNN,
        (310, 720),
        PTB,
        1016,
        **CHARACTERS,
        count=893_575,
        why="12 % less. Exactly 1016k is the LSTM with 350 units beside it. No choice of what to count"
        " that we found gives it (A with all its entries: 942k; embedding and output twice: 997k).",
    ),
)


def count(row: Row) -> int:
    inputs, outputs = row.task
    rnn = row.network(row.embedding or inputs, *row.sizes, **row.kwargs)
    if row.recurrent_only:
        weights = sp.num_free_parameters(rnn)
        return weights - sum(p.numel() * (1 + p.is_complex()) for p in not_recurrent(rnn))
    # The output reads real features: of a complex network the real and the imaginary parts.
    parts = [rnn, nn.Linear(rnn.output_size, outputs)]
    if row.embedding:
        parts.append(nn.Embedding(inputs, row.embedding))
    # A complex state is as many real numbers as the output has.
    return sp.num_free_parameters(nn.ModuleList(parts)) + (rnn.output_size if row.initial_state else 0)


def not_recurrent(rnn: nn.Module) -> list[nn.Parameter]:
    named = [(name, p) for name, p in rnn.named_parameters() if p.requires_grad]
    return [p for name, p in named if "weight_hh" not in name]


def test_counts_are_the_printed_ones() -> None:
    for row in ROWS:
        digits = max(2, len(str(row.printed).replace(".", "").rstrip("0")))
        counted = count(row)
        rounded = float(f"{counted:.{digits - 1}e}")
        if row.count is None:
            assert rounded == 1000 * row.printed, row
        else:
            assert counted == row.count, row
            assert rounded != 1000 * row.printed, "The row agrees: drop its count."
            assert row.why
