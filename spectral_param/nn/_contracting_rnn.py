"""A recurrent network that provably forgets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from spectral_param import init as init_
from spectral_param._parametrizations import LyapunovForm
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional._checks import chosen_dtype, is_finite
from spectral_param.nn._block_rnn import BlockRNN, LayerOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ContractingRNN(BlockRNN):
    r"""Recurrent network whose states forget where they started from, for every input and all parameters.

    :math:`h_t = φ(U x_t + W h_{t-1} + b)` with ReLU or tanh and
    ``LyapunovForm(radius=rate, growth=growth, metric="diagonal")`` for W. Two states h, h' of a layer that
    read the same inputs approach each other: :math:`‖h_k - h_k'‖_2 ≤ \mathrm{cond}(Θ)\, r^k\, ‖h_0 -
    h_0'‖_2`. With a bounded input the states are bounded, and gradients with respect to states do not
    explode. Each layer of a stack contracts at the rate for equal inputs. The proof does not hold if the
    output is fed back into the input.

    Θ is trained with W; :meth:`spectral_param.LyapunovForm.certificate` returns :math:`Θ^2` and cond(Θ), as
    in the example. :func:`spectral_param.analysis.lyapunov_certificate` with ``metric="diagonal"`` finds
    other coordinates, in which W contracts fastest; their condition can be larger than ``growth``.

    Source of the condition: Buehner and Young, "A tighter bound for the echo state property" (2006). See
    :class:`spectral_param.LyapunovForm`.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        rate: The rate r, 0 < r ≤ 1, in a step. The default 0.99 keeps 37 % of a difference, in the
            coordinates, for at most 100 steps. With 1 differences never grow.
        growth: A bound of cond(Θ), at least 1. ``None``, the default: 1e12. Little is lost with 10.
        nonlinearity: ``"relu"``, the default, or ``"tanh"``.
        dtype: Dtype of the parameters, real.
        options: ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``input_map``, ``init``,
            ``checkpoint_every``, ``return_output`` and ``device``, as in :class:`spectral_param.nn.BlockRNN`.
            The default of ``init`` is random rotations times 0.95 r: close to the rate, for a long memory,
            but not at it, where the gradient of the rate is zero.

    Raises:
        ValueError: If the rate is not in (0, 1], or if the activation is neither ReLU nor tanh. The slopes of
            modReLU with a positive bias, for instance, are not bounded.
        UnsupportedDtypeError: If the dtype is complex.

    Example:
        >>> rnn = spectral_param.nn.ContractingRNN(3, 32, rate=0.9)
        >>> x, start = torch.randn(100, 8, 3), 10 * torch.randn(1, 8, 32)
        >>> bool(torch.allclose(rnn(x)[1], rnn(x, start)[1], atol=1e-2))
        True
        >>> links = rnn.cells[0].parametrizations.weight_hh
        >>> square, condition = links[0].blocks[0].certificate(links.original0)
        >>> scaling, W = square.diagonal().sqrt(), rnn.cells[0].weight_hh.double()
        >>> bool(torch.linalg.matrix_norm(scaling[:, None] * W / scaling, 2) <= 0.9)
        True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        rate: float = 0.99,
        growth: float | None = None,
        nonlinearity: Literal["relu", "tanh"] = "relu",
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        if not (is_finite(rate) and 0 < rate <= 1):
            raise ValueError(
                f"rate: expected a number, 0 < rate <= 1, got {rate!r}. Beyond 1 nothing is forgotten: take "
                "spectral_param.nn.BlockRNN."
            )
        if nonlinearity not in ("relu", "tanh"):
            raise ValueError(
                f"nonlinearity: expected 'relu' or 'tanh', whose slopes are at most 1, got {nonlinearity!r}. "
                "For another activation of each unit, with slopes from -1 to 1, take the block (hidden_size, "
                "LyapunovForm(rate, metric='diagonal')) of spectral_param.nn.BlockRNN."
            )
        if chosen_dtype(dtype).is_complex:
            raise UnsupportedDtypeError(
                f"dtype: expected a real dtype, got {dtype}. ReLU and tanh act on real units."
            )
        self.rate = rate
        options.setdefault("init", partial(_rotations, size=0.95 * rate))
        blocks = [(hidden_size, LyapunovForm(rate, growth=growth, metric="diagonal"))]
        super().__init__(input_size, blocks, num_layers, nonlinearity=nonlinearity, dtype=dtype, **options)


def _rotations(W: Tensor, size: float) -> Tensor:
    return init_.henaff_(W).mul_(size)
