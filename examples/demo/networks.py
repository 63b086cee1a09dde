"""The three networks, each with a linear output on the last state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import spectral_param as sp


class SequenceModel(nn.Module):
    """Recurrent network whose last state is mapped to the answer.

    Args:
        recurrent: Layer with the interface of :class:`torch.nn.RNN`.
        output_size: Number of outputs.
    """

    def __init__(self, recurrent: sp.nn.BlockRNN | nn.LSTM, output_size: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.output = nn.Linear(recurrent.hidden_size, output_size)

    def forward(self, x: Tensor) -> Tensor:  # (time, batch, feature) -> (batch, output)
        """Return the answers.

        Args:
            x: Sequences ``(time, batch, feature)``.
        """
        states, _ = self.recurrent(x)
        answer: Tensor = self.output(states[-1])
        return answer


def build_network(
    name: str, sizes: tuple[int, ...], input_size: int, output_size: int, seed: int
) -> SequenceModel:
    """Return a new network; the same seed gives the same initial weights.

    Args:
        name: ``"ENRNN"``, ``"ScoRNN"`` or ``"LSTM"``.
        sizes: Hidden sizes, see :class:`examples.demo.settings.Job`.
        input_size: Number of features in each time step.
        output_size: Number of outputs.
        seed: Seed of the initial weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SequenceModel(_recurrent(name, sizes, input_size), output_size)


def _recurrent(name: str, sizes: tuple[int, ...], input_size: int) -> sp.nn.BlockRNN | nn.LSTM:
    if name == "ENRNN":
        long_size, short_size = sizes
        # Half of them -1, as in ScoRNN: eigenvalues all around the circle learn fastest here.
        return sp.nn.ENRNN(input_size, long_size, short_size, negative_ones=0.5)
    if name == "ScoRNN":
        return sp.nn.ScoRNN(input_size, *sizes)
    lstm = nn.LSTM(input_size, *sizes)
    n = lstm.hidden_size
    with torch.no_grad():
        # Gates lie below each other as i, f, g, o. A forget gate that starts open is customary.
        for name, value in (("bias_ih_l0", 1.0), ("bias_hh_l0", 0.0)):
            lstm.get_parameter(name)[n : 2 * n] = value
    return lstm


def recurrent_blocks(model: SequenceModel) -> dict[str, Tensor]:
    """Return the square blocks of the recurrent matrix by name: W(L) and W(S), or the four gates.

    Args:
        model: One of the three networks.
    """
    recurrent = model.recurrent
    with torch.no_grad():
        if isinstance(recurrent, nn.LSTM):
            gates: tuple[Tensor, ...] = recurrent.get_parameter("weight_hh_l0").chunk(4)
            return dict(zip("ifgo", gates, strict=True))
        weight = recurrent.cells[0].weight_hh
        assert isinstance(weight, Tensor)
        sizes = list(recurrent.block_sizes)
        blocks = [row.split(sizes, 1)[i] for i, row in enumerate(weight.split(sizes))]
        names = ("W(L)", "W(S)") if len(sizes) == 2 else ("W",)
        return dict(zip(names, blocks, strict=True))


def eigenvalues(model: SequenceModel) -> dict[str, Tensor]:
    """Return the eigenvalues of each recurrent block.

    Args:
        model: One of the three networks.
    """
    blocks = recurrent_blocks(model)
    return {name: torch.linalg.eigvals(block) for name, block in blocks.items()}


def spectral_radii(model: SequenceModel) -> dict[str, float]:
    """Return the spectral radius of each recurrent block.

    Args:
        model: One of the three networks.
    """
    return {name: values.abs().max().item() for name, values in eigenvalues(model).items()}
