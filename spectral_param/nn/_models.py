"""The papers' networks: each is a :class:`spectral_param.nn.BlockRNN` with certain blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from spectral_param._parametrizations import (
    FourierUnitary,
    Givens,
    Householder,
    ScaledCayley,
    SchurForm,
    SingularValues,
    SkewExponential,
    SpectralRadiusNorm,
)
from spectral_param._parametrizations.schur_form import Form
from spectral_param._parametrizations.skew_exponential import Angles
from spectral_param._parametrizations.spectral_radius import Mode
from spectral_param._recurrence.activation import Nonlinearity
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional._checks import chosen_dtype
from spectral_param.functional._givens import Order
from spectral_param.nn._block_rnn import BlockRNN, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ScoRNN(BlockRNN):
    r"""Orthogonal recurrent network by the scaled Cayley transform.

    Source: Helfrich, Willmott and Ye, "Orthogonal Recurrent Neural Networks with Scaled Cayley Transform"
    (ICML 2018), with modReLU and the initialization of section 4.2.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        negative_ones: Number (``int``) or fraction (``float``) of -1s in D. ``None``, the default: half of
            the entries, which spreads the eigenvalues over the unit circle; for a complex dtype, trained
            phases. The paper tunes the fraction in steps of a tenth.
        options: ``nonlinearity``, ``real_output``, ``dtype``, ``bias``, ``batch_first``, ``dropout``,
            ``bidirectional``, ``input_map``, ``init``, ``checkpoint_every``, ``return_output`` and
            ``device``, as in :class:`spectral_param.nn.BlockRNN`.

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
    r"""Recurrent network with an orthogonal block for long-term memory and another for short-term memory.

    Source: Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory" (AAAI
    2020), eq. (2) and (3). The recurrent matrix is
    :math:`\begin{bmatrix} W^{(L)} & W^{(C)} \\ 0 & W^{(S)} \end{bmatrix}`
    with an orthogonal :math:`W^{(L)}`, and :math:`W^{(S)}` of spectral radius at most ``radius``.

    Args:
        input_size: Number of features of the input.
        long_size: Size of the orthogonal block; 0 for none.
        short_size: Size of the block of bounded spectral radius; 0 for none.
        num_layers: Number of layers.
        coupling: Whether the short-term state feeds the long-term state through W^(C). The default is
            ``True``, as in the paper; the default of :class:`spectral_param.nn.BlockRNN` is ``False``.
        negative_ones: Number (``int``) or fraction (``float``) of -1s in the D of the orthogonal block.
            ``None``, the default: half of the entries; for a complex dtype, trained phases. The paper has 0.3
            (adding, copying), 0.6 (characters) and 1.0 (speech).
        radius: Spectral radius of the short-term block.
        mode: How ``radius`` bounds the spectral radius. The default is ``"latched"``, as in the paper; the
            default of :class:`spectral_param.SpectralRadiusNorm` is ``"equal"``.
        options: ``nonlinearity``, ``real_output``, ``dtype``, ``bias``, ``batch_first``, ``dropout``,
            ``bidirectional``, ``input_map``, ``init``, ``checkpoint_every``, ``return_output`` and
            ``device``, as in :class:`spectral_param.nn.BlockRNN`.

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
                "hidden_size: expected long_size and short_size, whose sum is the hidden size, got "
                "hidden_size. Pass these two."
            )
        blocks = [
            (long_size, ScaledCayley(negative_ones)),
            (short_size, SpectralRadiusNorm(radius, mode)),
        ]
        used = [(size, parametrization) for size, parametrization in blocks if size != 0]
        if not used:
            raise ValueError("long_size, short_size: expected at least one that is not 0, got 0 and 0.")
        super().__init__(input_size, used, num_layers, coupling=coupling, **options)


class ScuRNN(BlockRNN):
    r"""Unitary recurrent network by the scaled Cayley transform with trained phases; the state is complex.

    Source: Maduranga, Helfrich and Ye, "Complex Unitary Recurrent Neural Networks using Scaled Cayley
    Transform" (AAAI 2019), with modReLU. Initially A is as in scoRNN, and the phases are uniform in [0, 2π).
    The input may be real. The authors also train the initial state: to do so, pass your own parameter as
    ``hx``. ``cells[0].parametrizations.weight_hh`` has A in ``original0`` and the phases in ``original1``.
    The authors give A and the phases different learning rates.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units, each a complex number.
        num_layers: Number of layers.
        real_output: Whether the output consists of the real parts of the states followed by the imaginary
            parts, ``2·hidden_size`` real features. The default is True. h_n stays complex.
        dtype: ``torch.complex64`` or ``torch.complex128``. The default has the precision of torch's default
            dtype: usually ``torch.complex64``.
        options: ``nonlinearity``, ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``input_map``,
            ``init``, ``checkpoint_every``, ``return_output`` and ``device``, as in
            :class:`spectral_param.nn.BlockRNN`.

    Raises:
        ValueError: If the dtype is not complex.

    Example:
        >>> output, h_n = spectral_param.nn.ScuRNN(1, 32)(torch.randn(64, 8, 1))
        >>> output.shape, output.dtype, h_n.dtype
        (torch.Size([64, 8, 64]), torch.float32, torch.complex64)
    """

    _defaults: ClassVar = {"real_output": True}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Unpack[Options]
    ) -> None:
        _make_complex(options, "The real counterpart of this network is spectral_param.nn.ScoRNN.")
        super().__init__(input_size, [(hidden_size, ScaledCayley())], num_layers, **options)


class ExpRNN(BlockRNN):
    r"""Orthogonal recurrent network by the exponential map, for real dtypes.

    Source: Lezcano-Casado and Martínez-Rubio, "Cheap Orthogonal Constraints in Neural Networks" (ICML 2019),
    with modReLU and :math:`W = e^A` for a skew-symmetric A. The paper trains A with a tenth of the learning
    rate (:func:`spectral_param.param_groups`). With :func:`spectral_param.rebase` every K steps, the network
    is dtriv of Lezcano-Casado, "Trivializations for Gradient-Based Optimization on Manifolds" (NeurIPS 2019).

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        angles: Initial rotation angles, ``"henaff"`` (the default) or ``"cayley"``; see
            :class:`spectral_param.SkewExponential`.
        options: ``nonlinearity``, ``real_output``, ``dtype``, ``bias``, ``batch_first``, ``dropout``,
            ``bidirectional``, ``input_map``, ``init``, ``checkpoint_every``, ``return_output`` and
            ``device``, as in :class:`spectral_param.nn.BlockRNN`.

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
    r"""Recurrent network with a non-normal matrix of known eigenvalues, by the real Schur form; real dtypes.

    Source: Kerg et al., "Non-normal Recurrent Neural Network (nnRNN)" (NeurIPS 2019), with modReLU and the
    initialization of section 4. The paper adds :func:`spectral_param.penalty` to the loss. The authors train
    P with a lower learning rate than the other parameters, and T with weight decay.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        P: Parametrization of the orthogonal matrix. None, the default, is ``SkewExponential("cayley")``.
        form: ``"exact"``, the default, or ``"paper"``, where the eigenvalues are not γ e^{±iθ} once training
            has moved T; :class:`spectral_param.SchurForm` describes this argument and the next three.
        radius: Bound of the spectral radius. None, the default: no bound.
        departure: Bound of the departure from normality. None, the default: no bound.
        delta: δ of the penalty.
        options: ``nonlinearity``, ``real_output``, ``dtype``, ``bias``, ``batch_first``, ``dropout``,
            ``bidirectional``, ``input_map``, ``init``, ``checkpoint_every``, ``return_output`` and
            ``device``, as in :class:`spectral_param.nn.BlockRNN`.

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
    r"""Unitary recurrent network by layers of rotations; their number sets the capacity.

    Source: Jing et al., "Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs"
    (ICML 2017), with modReLU. Initially angles and phases are uniform in [-π, π).

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers of the network.
        layers: Number L of layers of rotations in each recurrent matrix. ``None``, the default, is n for
            ``"rectangular"``, which reaches every unitary matrix. The default of the authors' code is 2.
        order: ``"rectangular"``, the default, or ``"fft"``; see :class:`spectral_param.Givens`.
        real_output: Whether the output consists of the real parts of the states followed by the imaginary
            parts, 2n real features. ``None``, the default, is True for a complex dtype.
        dtype: Complex, as in the paper, or real. The default is complex, in the precision of torch's default
            dtype.
        options: ``nonlinearity``, ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``input_map``,
            ``init``, ``checkpoint_every``, ``return_output`` and ``device``, as in
            :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> rnn = spectral_param.nn.EUNN(1, 32, layers=2)
        >>> output, h_n = rnn(torch.randn(64, 8, 1))
        >>> output.shape, h_n.dtype
        (torch.Size([64, 8, 64]), torch.complex64)
    """

    _defaults: ClassVar = {"real_output": None}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        layers: int | None = None,
        order: Order = "rectangular",
        **options: Unpack[Options],
    ) -> None:
        _make_complex(options, remedy=None)
        super().__init__(input_size, [(hidden_size, Givens(layers, order))], num_layers, **options)


class URNN(BlockRNN):
    r"""Unitary recurrent network by diagonal matrices, reflections and Fourier transforms.

    Source: Arjovsky, Shah and Bengio, "Unitary Evolution Recurrent Neural Networks" (ICML 2016), with
    modReLU. The recurrent matrix has 7n parameters. Initially phases and reflection vectors are uniform.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        real_output: Whether the output consists of the real parts of the states followed by the imaginary
            parts, 2n real features. The default is True, as in the paper.
        dtype: A complex dtype. The default has the precision of torch's default dtype.
        options: ``nonlinearity``, ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``input_map``,
            ``init``, ``checkpoint_every``, ``return_output`` and ``device``, as in
            :class:`spectral_param.nn.BlockRNN`. ``init`` can only be the paper's.

    Raises:
        ValueError: If the dtype is not complex.

    Example:
        >>> output, h_n = spectral_param.nn.URNN(1, 32)(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 64])
    """

    _defaults: ClassVar = {"real_output": True}

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Unpack[Options]
    ) -> None:
        _make_complex(options, "With a real dtype take EUNN or ORNN with few layers or reflections.")
        super().__init__(input_size, [(hidden_size, FourierUnitary())], num_layers, **options)


class ORNN(BlockRNN):
    r"""Orthogonal recurrent network by Householder reflections.

    Source: Mhammedi, Hellicar, Rahman and Bailey, "Efficient Orthogonal Parametrisation of Recurrent Neural
    Networks Using Householder Reflections" (ICML 2017). The default activation is the authors' choice, leaky
    ReLU of slope 0.1, and modReLU for a complex dtype, because complex numbers have no sign. The activations
    that :class:`spectral_param.nn.BlockRNN` knows by name are faster. The authors also train the initial
    state: to do so, pass your own parameter as ``hx``.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        reflections: Number of reflections. ``None``, the default, is ``hidden_size``.
        nonlinearity: Activation, as in :class:`spectral_param.nn.BlockRNN`. None, the default, is leaky ReLU
            (modReLU for a complex dtype).
        real_output: For a complex dtype: whether the output consists of the real parts of the states followed
            by the imaginary parts. The default is False.
        dtype: Dtype of the parameters, real or complex.
        options: ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``input_map``, ``init``,
            ``checkpoint_every``, ``return_output`` and ``device``, as in :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> output, h_n = spectral_param.nn.ORNN(1, 32, reflections=8)(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 32])
    """

    _defaults: ClassVar = {"nonlinearity": None}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        reflections: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        _set_activation(options, nn.LeakyReLU(0.1))
        super().__init__(input_size, [(hidden_size, Householder(reflections))], num_layers, **options)


class SpectralRNN(BlockRNN):
    r"""Recurrent network whose matrix has singular values close to 1.

    Source: Zhang, Lei and Dhillon, "Stabilizing Gradients for Deep Neural Networks via Efficient SVD
    Parameterization" (ICML 2018). The defaults, ReLU and a margin of 0.01, are taken from the authors' code,
    except for the number of reflections, which is n/4 in their code. For a complex dtype the default
    activation is modReLU, because complex numbers have no sign.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        margin: Largest distance of a singular value of the recurrent matrix from 1.
        reflections: Number of reflections on each side. ``None``, the default, is ``hidden_size``.
        nonlinearity: Activation, as in :class:`spectral_param.nn.BlockRNN`. None, the default, is ReLU
            (modReLU for a complex dtype).
        real_output: For a complex dtype: whether the output consists of the real parts of the states followed
            by the imaginary parts. The default is False.
        dtype: Dtype of the parameters, real or complex.
        options: ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``input_map``, ``init``,
            ``checkpoint_every``, ``return_output`` and ``device``, as in :class:`spectral_param.nn.BlockRNN`.

    Example:
        >>> rnn = spectral_param.nn.SpectralRNN(1, 32, margin=0.1, reflections=8)
        >>> output, h_n = rnn(torch.randn(64, 8, 1))
        >>> output.shape
        torch.Size([64, 8, 32])
    """

    _defaults: ClassVar = {"nonlinearity": None}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        margin: float = 0.01,
        reflections: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        _set_activation(options, "relu")
        super().__init__(
            input_size, [(hidden_size, SingularValues(margin, reflections))], num_layers, **options
        )


def _set_activation(options: Options, real: Nonlinearity) -> None:
    """Set the default activation: ``real``, or modReLU for a complex dtype."""
    if options.get("nonlinearity") is None:
        options["nonlinearity"] = "modrelu" if chosen_dtype(options.get("dtype")).is_complex else real


def _make_complex(options: Options, remedy: str | None) -> None:
    """Set missing options: a complex dtype in torch's default precision, and real outputs if it is complex.

    Raises:
        UnsupportedDtypeError: If there is a remedy for a real dtype, and the dtype is real.
    """
    dtype = options.get("dtype")
    options["dtype"] = dtype = torch.get_default_dtype().to_complex() if dtype is None else dtype
    if remedy is not None and not chosen_dtype(dtype).is_complex:
        raise UnsupportedDtypeError(
            f"dtype: expected torch.complex64 or torch.complex128, got {dtype}. {remedy}"
        )
    if options.get("real_output") is None:
        options["real_output"] = chosen_dtype(dtype).is_complex
