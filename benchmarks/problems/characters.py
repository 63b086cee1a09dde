"""The ENRNN that the paper trains on characters (section 5.4), as a source of real work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import spectral_param as sp
from examples.papers import data

TEXTS = ("ptb/ptb.train.txt", "shakespeare/input.txt")
SYMBOLS = 65  # of the second; the first has 50


def characters(count: int) -> Tensor:
    """Return the first characters of Penn Treebank, or of tiny Shakespeare, as numbers.

    Args:
        count: How many.

    Raises:
        DataError: If neither is there.
    """
    folder = data.folder()
    for path in (folder / text for text in TEXTS):
        if path.is_file():
            text = path.read_text()
            symbols = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
            return torch.tensor([symbols[symbol] for symbol in text[:count]])
    raise data.DataError(f"{folder}: expected {' or '.join(TEXTS)}, got neither. {data.remedy(TEXTS[1])}.")


def model(long: int, short: int, solver: str) -> nn.ModuleDict:
    """Return the network: a linear embedding, an ENRNN that reads it as it is, and a linear readout.

    Args:
        long: Size of the orthogonal block.
        short: Size of the normalised block.
        solver: Solver of the eigenvalue.
    """
    n = long + short
    blocks = [(long, sp.ScaledCayley(0.6)), (short, sp.SpectralRadiusNorm(mode="latched", solver=solver))]
    rnn = sp.nn.BlockRNN(n, blocks, coupling=True, nonlinearity="relu", input_map="identity")
    nn.init.orthogonal_(rnn.cells[0].parametrizations.weight_hh.original2)
    embedding = nn.Embedding(SYMBOLS, n)
    nn.init.xavier_uniform_(embedding.weight)  # what it is beside the input map that it stands for
    return nn.ModuleDict({"embed": embedding, "rnn": rnn, "head": nn.Linear(n, SYMBOLS)})


def optimizer_for(network: nn.Module) -> torch.optim.Optimizer:
    """Return the paper's optimizer: 1e-4 for the orthogonal block, 1e-3 for everything else.

    Args:
        network: The network.
    """
    return torch.optim.Adam(sp.param_groups(network, 1e-3, 1e-4, constrained=sp.ScaledCayley))


def step(
    network: nn.ModuleDict, optimizer: torch.optim.Optimizer, text: Tensor, state: Tensor | None = None
) -> Tensor:
    """Take one training step.

    Args:
        network: The network.
        optimizer: Its optimizer.
        text: Characters ``(time + 1, batch)``, each the target of the one before.
        state: Initial state.

    Returns:
        The last state.
    """
    output, state = network["rnn"](network["embed"](text[:-1]), state)
    loss = nn.functional.cross_entropy(network["head"](output).flatten(0, 1), text[1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return state
