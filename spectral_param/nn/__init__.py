"""Layers: used like those of ``torch.nn``."""

from spectral_param.nn.block_rnn import BlockRNN, BlockRNNCell
from spectral_param.nn.models import ENRNN, ORNN, ScoRNN, SpectralRNN
from spectral_param.nn.modrelu import ModReLU

__all__ = ["ENRNN", "ORNN", "BlockRNN", "BlockRNNCell", "ModReLU", "ScoRNN", "SpectralRNN"]
