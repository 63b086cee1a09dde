"""The papers' networks: each a choice of blocks for :class:`spectral_param.nn.BlockRNN`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from spectral_param.nn.block_rnn import BlockRNN
from spectral_param.parametrizations import Householder, ScaledCayley, SingularValues, SpectralRadiusNorm
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


class ORNN(BlockRNN):
    r"""Orthogonal recurrence by Householder reflections.

    Mhammedi, Hellicar, Rahman and Bailey, "Efficient Orthogonal Parametrisation of Recurrent Neural
    Networks Using Householder Reflections" (ICML 2017). The activation of a real network is the authors',
    leaky ReLU of slope 0.1, unless ``nonlinearity`` is given; the named ones of
    :class:`spectral_param.nn.BlockRNN` are faster. Complex numbers have no sign, so the default of a
    complex network is modReLU. The authors also train the first state: pass one of your own as ``hx``.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        reflections: Number of reflections, ``None`` for as many as hidden units.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> output, h_n = spectral_param.nn.ORNN(1, 32, reflections=8)(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 32])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        reflections: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not _is_complex(kwargs):
            kwargs.setdefault("nonlinearity", nn.LeakyReLU(0.1))
        super().__init__(input_size, [(hidden_size, Householder(reflections))], num_layers, **kwargs)


class SpectralRNN(BlockRNN):
    r"""Recurrence with singular values close to 1.

    Zhang, Lei and Dhillon, "Stabilizing Gradients for Deep Neural Networks via Efficient SVD
    Parameterization" (ICML 2018). The defaults are those of the authors' code, ReLU and a margin of 0.01,
    except that it takes n/4 reflections on each side. Complex numbers have no sign, so the default
    activation of a complex network is modReLU.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        margin: Distance from 1 that no singular value of the recurrent matrix reaches.
        reflections: Number of reflections on each side, ``None`` for as many as hidden units.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> rnn = spectral_param.nn.SpectralRNN(1, 32, margin=0.1, reflections=8)
        >>> output, h_n = rnn(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 32])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        margin: float = 0.01,
        reflections: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not _is_complex(kwargs):
            kwargs.setdefault("nonlinearity", "relu")
        blocks = [(hidden_size, SingularValues(margin, reflections))]
        super().__init__(input_size, blocks, num_layers, **kwargs)


def _is_complex(kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    return dtype is not None and bool(dtype.is_complex)
