"""The papers' networks: each a choice of blocks for :class:`spectral_param.nn.BlockRNN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional.givens import Order
from spectral_param.nn.block_rnn import BlockRNN, ComplexOptions, LayerOptions, Options
from spectral_param.parametrizations import (
    FourierUnitary,
    Givens,
    Householder,
    ScaledCayley,
    SchurForm,
    SingularValues,
    SkewExponential,
    SpectralRadiusNorm,
)
from spectral_param.parametrizations.schur_form import Form
from spectral_param.parametrizations.skew_exponential import Angles
from spectral_param.parametrizations.spectral_radius import Mode
from spectral_param.recurrence.activation import Nonlinearity

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

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
        **options: Unpack[Options],
    ) -> None:
        super().__init__(input_size, [(hidden_size, ScaledCayley(negative_ones))], num_layers, **options)


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
        coupling: Whether the short-term state feeds the long-term one through W^(C). ``True`` as in the
            paper; :class:`spectral_param.nn.BlockRNN` has no couplings unless they are asked for.
        negative_ones: Number or fraction of -1s in the D of the orthogonal block, or ``None`` for half of
            them, or for trained phases with a complex dtype. The paper's are 0.3 (adding, copying),
            0.6 (characters) and 1.0 (speech).
        radius: Spectral radius of the short-term block.
        mode: ``"latched"``, as the paper trains, or another of
            :class:`spectral_param.SpectralRadiusNorm`, whose own default is ``"equal"``.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Raises:
        TypeError: If a ``hidden_size`` is given instead of the two sizes.
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
        **options: Unpack[Options],
    ) -> None:
        if "hidden_size" in options:
            raise TypeError(
                "hidden_size: expected long_size and short_size, which add up to it. Give these two."
            )
        blocks = [
            (long_size, ScaledCayley(negative_ones)),
            (short_size, SpectralRadiusNorm(radius, mode)),
        ]
        used = [(size, parametrization) for size, parametrization in blocks if size != 0]
        if not used:
            raise ValueError("long_size, short_size: expected at least one that is not 0.")
        super().__init__(input_size, used, num_layers, coupling=coupling, **options)


class ScuRNN(BlockRNN):
    r"""Unitary recurrence by the scaled Cayley transform with trained phases, and a complex state.

    Maduranga, Helfrich and Ye, "Complex Unitary Recurrent Neural Networks using Scaled Cayley
    Transform" (AAAI 2019): modReLU. A starts as in scoRNN, the phases uniform in [0, 2π). The input may
    be real. The authors also train the initial state; here it is given as ``hx``.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units, each a complex number.
        num_layers: Number of layers.
        real_output: Whether the output has the real parts of the states and, after them, the imaginary
            parts, ``2·hidden_size`` real features. The states h_n stay complex.
        dtype: ``torch.complex64`` or ``torch.complex128``; by default that of the default dtype's
            precision, ``torch.complex64`` as a rule.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Raises:
        ValueError: If the dtype is not complex.

    Example:
        >>> output, h_n = spectral_param.nn.ScuRNN(1, 32)(torch.randn(64, 8, 1))
        >>> output.shape, output.dtype, h_n.dtype
        (torch.Size([64, 8, 64]), torch.float32, torch.complex64)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        real_output: bool = True,
        dtype: torch.dtype | None = None,
        **options: Unpack[ComplexOptions],
    ) -> None:
        dtype = _complex_dtype(dtype, "The real counterpart of this network is spectral_param.nn.ScoRNN.")
        blocks = [(hidden_size, ScaledCayley())]
        super().__init__(input_size, blocks, num_layers, real_output=real_output, dtype=dtype, **options)


class ExpRNN(BlockRNN):
    r"""Orthogonal recurrence by the exponential map.

    Lezcano-Casado and Martínez-Rubio, "Cheap Orthogonal Constraints in Neural Networks" (ICML 2019):
    modReLU, :math:`W = e^A` with A skew-symmetric, trained more slowly than the rest (by a tenth). With
    :func:`spectral_param.rebase` every K steps it is dtriv, of Lezcano-Casado, "Trivializations for
    Gradient-Based Optimization on Manifolds" (NeurIPS 2019). Real dtypes only.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        angles: ``"henaff"`` or ``"cayley"``; see :class:`spectral_param.SkewExponential`.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> output, h_n = spectral_param.nn.ExpRNN(1, 32)(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 32])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        angles: Angles = "henaff",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(input_size, [(hidden_size, SkewExponential(angles))], num_layers, **options)


class NNRNN(BlockRNN):
    r"""Recurrence of given eigenvalues that need not be normal, by the real Schur form.

    Kerg et al., "Non-normal Recurrent Neural Network (nnRNN)" (NeurIPS 2019): modReLU, start of section
    4. The paper adds :func:`spectral_param.penalty` to the loss, and its authors train P more slowly than
    the rest, and give T a weight decay. Real dtypes only.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        P: The parametrization of the orthogonal matrix; None for ``SkewExponential("cayley")``.
        form: ``"exact"``, or ``"paper"`` for its literal form, whose eigenvalues leave γ e^{±iθ} in
            training.
        radius: Bound of the spectral radius, or None.
        departure: Bound of the departure from normality, or None.
        delta: δ of the penalty.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> rnn = spectral_param.nn.NNRNN(1, 32)
        >>> output, h_n = rnn(torch.randn(64, 8, 1))
        >>> loss = output[-1].square().mean() + spectral_param.penalty(rnn)
        >>> slow = spectral_param.SkewExponential  # P alone
        >>> groups = spectral_param.param_groups(rnn, lr=5e-4, constrained_lr=1e-6, constrained=slow)
        >>> optimizer = torch.optim.RMSprop(groups)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        P: nn.Module | None = None,
        form: Form = "exact",
        radius: float | None = None,
        departure: float | None = None,
        delta: float = 1e-4,
        **options: Unpack[Options],
    ) -> None:
        constraint = SchurForm(P, form, radius=radius, departure=departure, delta=delta)
        super().__init__(input_size, [(hidden_size, constraint)], num_layers, **options)


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
        dtype: Complex as the paper's, or real. By default complex, in the precision of the default dtype.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

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
        dtype: torch.dtype | None = None,
        **options: Unpack[ComplexOptions],
    ) -> None:
        dtype = torch.get_default_dtype().to_complex() if dtype is None else dtype
        blocks = [(hidden_size, Givens(layers, order))]
        real_output = dtype.is_complex if real_output is None else real_output
        super().__init__(input_size, blocks, num_layers, real_output=real_output, dtype=dtype, **options)


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
        dtype: A complex one, by default in the precision of the default dtype.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`, ``init`` excepted: the only
            start is the paper's.

    Raises:
        ValueError: If the dtype is not complex.

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
        dtype: torch.dtype | None = None,
        **options: Unpack[ComplexOptions],
    ) -> None:
        dtype = _complex_dtype(dtype, "EUNN and ORNN have few parameters, too, and are real if asked.")
        blocks = [(hidden_size, FourierUnitary())]
        super().__init__(input_size, blocks, num_layers, real_output=real_output, dtype=dtype, **options)


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
        nonlinearity: As :class:`spectral_param.nn.BlockRNN` has them; None for the default above.
        real_output: For a complex dtype: whether the output has the real parts of the states and, after them,
            the imaginary parts.
        dtype: Dtype of the parameters, real or complex.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

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
        nonlinearity: Nonlinearity | None = None,
        real_output: bool = False,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        if nonlinearity is None:
            nonlinearity = "modrelu" if dtype is not None and dtype.is_complex else nn.LeakyReLU(0.1)
        super().__init__(
            input_size,
            [(hidden_size, Householder(reflections))],
            num_layers,
            nonlinearity=nonlinearity,
            real_output=real_output,
            dtype=dtype,
            **options,
        )


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
        nonlinearity: As :class:`spectral_param.nn.BlockRNN` has them; None for the default above.
        real_output: For a complex dtype: whether the output has the real parts of the states and, after them,
            the imaginary parts.
        dtype: Dtype of the parameters, real or complex.
        options: Further arguments of :class:`spectral_param.nn.BlockRNN`.

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
        nonlinearity: Nonlinearity | None = None,
        real_output: bool = False,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        if nonlinearity is None:
            nonlinearity = "modrelu" if dtype is not None and dtype.is_complex else "relu"
        blocks = [(hidden_size, SingularValues(margin, reflections))]
        super().__init__(
            input_size,
            blocks,
            num_layers,
            nonlinearity=nonlinearity,
            real_output=real_output,
            dtype=dtype,
            **options,
        )


def _complex_dtype(dtype: torch.dtype | None, remedy: str) -> torch.dtype:
    """Return the dtype, by default complex in the precision of the default dtype; refuse a real one."""
    dtype = torch.get_default_dtype().to_complex() if dtype is None else dtype
    if not dtype.is_complex:
        raise UnsupportedDtypeError(
            f"dtype: expected torch.complex64 or torch.complex128, got {dtype}. {remedy}"
        )
    return dtype
