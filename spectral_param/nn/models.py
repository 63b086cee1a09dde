"""The papers' networks: each a choice of blocks for :class:`spectral_param.nn.BlockRNN`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.givens import Order
from spectral_param.nn.block_rnn import BlockRNN
from spectral_param.parametrizations import FourierUnitary, Givens, ScaledCayley, SpectralRadiusNorm
from spectral_param.parametrizations.spectral_radius import Mode


class ScoRNN(BlockRNN):
    r"""Orthogonal recurrence by the scaled Cayley transform.

    Helfrich, Willmott and Ye, "Orthogonal Recurrent Neural Networks with Scaled Cayley Transform"
    (ICML 2018): modReLU, start of section 4.2.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        negative_ones: Number or fraction of -1s in D. ``None``, the default, means half of them, which
            spreads the eigenvalues over the unit circle, or trained phases for a complex dtype; the
            paper tunes it in steps of a tenth.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> output, h_n = spectral_param.nn.ScoRNN(1, 32)(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 32])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        negative_ones: int | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input_size, [(hidden_size, ScaledCayley(negative_ones))], num_layers, **kwargs)


class ENRNN(BlockRNN):
    r"""Long-term memory in an orthogonal block, short-term memory in one of spectral radius ≤ 1.

    Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory" (AAAI
    2020), eq. (3): the recurrent matrix is
    :math:`\begin{bmatrix} W^{(L)} & W^{(C)} \\ 0 & W^{(S)} \end{bmatrix}`.

    Args:
        input_size: Number of features of the input.
        long_size: Size q of the orthogonal block; 0 for none.
        short_size: Size of the normalised block; 0 for none.
        num_layers: Number of layers.
        coupling: Whether the short-term state feeds the long-term one through W^(C).
        negative_ones: Number or fraction of -1s in the D of the orthogonal block, or ``None`` for half of
            them, or for trained phases with a complex dtype. The paper's are 0.3 (adding, copying),
            0.6 (characters) and 1.0 (speech).
        radius: Spectral radius of the short-term block.
        mode: ``"latched"`` as the paper trains, or another of
            :class:`spectral_param.SpectralRadiusNorm`.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Raises:
        ValueError: If both sizes are 0.

    Example:
        >>> rnn = spectral_param.nn.ENRNN(input_size=2, long_size=96, short_size=64)
        >>> output, h_n = rnn(torch.randn(750, 10, 2))
        >>> long, short = output.split(rnn.block_sizes, dim=-1)
        >>> long.shape, short.shape
        (torch.Size([750, 10, 96]), torch.Size([750, 10, 64]))
    """

    def __init__(
        self,
        input_size: int,
        long_size: int,
        short_size: int,
        num_layers: int = 1,
        *,
        coupling: bool = True,
        negative_ones: int | float | None = None,
        radius: float | Tensor = 1.0,
        mode: Mode = "latched",
        **kwargs: Any,
    ) -> None:
        blocks = [
            (long_size, ScaledCayley(negative_ones)),
            (short_size, SpectralRadiusNorm(radius, mode)),
        ]
        used = [(size, parametrization) for size, parametrization in blocks if size != 0]
        if not used:
            raise ValueError("long_size, short_size: expected at least one that is not 0.")
        super().__init__(input_size, used, num_layers, coupling=coupling, **kwargs)


class EUNN(BlockRNN):
    r"""Unitary recurrence by layers of rotations, of tunable capacity.

    Jing et al., "Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs" (ICML
    2017): modReLU, angles and phases uniform in [-π, π).

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers of the network.
        layers: Number L of layers of rotations in each recurrent matrix. ``None``, the default, for all,
            which reach every unitary matrix; the authors' code takes 2 unless told otherwise.
        order: ``"rectangular"`` or ``"fft"``; see :class:`spectral_param.Givens`.
        real_output: Whether the output has the real and the imaginary parts, 2n real features. ``None``, the
            default, for a complex dtype.
        dtype: Complex as the paper's, or real.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> rnn = spectral_param.nn.EUNN(1, 32, layers=2)
        >>> output, h_n = rnn(torch.randn(64, 8, 1))
        >>> output.shape, h_n.dtype
        (torch.Size([64, 8, 64]), torch.complex64)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        layers: int | None = None,
        order: Order = "rectangular",
        real_output: bool | None = None,
        dtype: torch.dtype = torch.complex64,
        **kwargs: Any,
    ) -> None:
        blocks = [(hidden_size, Givens(layers, order))]
        real_output = dtype.is_complex if real_output is None else real_output
        super().__init__(input_size, blocks, num_layers, real_output=real_output, dtype=dtype, **kwargs)


class URNN(BlockRNN):
    r"""Unitary recurrence of diagonals, reflections and Fourier transforms.

    Arjovsky, Shah and Bengio, "Unitary Evolution Recurrent Neural Networks" (ICML 2016): modReLU, and a
    recurrent matrix of 7n parameters, uniform phases and reflection vectors at the start.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        real_output: Whether the output has the real and the imaginary parts, 2n real features, as the paper
            reads the states.
        dtype: A complex one.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`, ``init`` excepted: the only
            start is the paper's.

    Example:
        >>> output, h_n = spectral_param.nn.URNN(1, 32)(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 64])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        real_output: bool = True,
        dtype: torch.dtype = torch.complex64,
        **kwargs: Any,
    ) -> None:
        blocks = [(hidden_size, FourierUnitary())]
        super().__init__(input_size, blocks, num_layers, real_output=real_output, dtype=dtype, **kwargs)
