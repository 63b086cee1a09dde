"""One verb for each constraint: ``verb(module, tensor_name, ...)`` constrains and returns the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from spectral_param.functional.givens import Order
from spectral_param.parametrizations import (
    BlockTriangular,
    FourierUnitary,
    Givens,
    Householder,
    Parametrization,
    ScaledCayley,
    SchurForm,
    SingularValues,
    SkewExponential,
    SpectralRadiusNorm,
)
from spectral_param.parametrizations.block_triangular import Blocks, Coupling
from spectral_param.parametrizations.eigentriple_memory import Solver
from spectral_param.parametrizations.schur_form import Form
from spectral_param.parametrizations.skew_exponential import Start
from spectral_param.parametrizations.spectral_radius import Mode

M = TypeVar("M", bound=nn.Module)
Init = Literal["paper"] | Tensor | Callable[[Tensor], object] | None


def constrain(module: M, tensor_name: str, parametrization: Parametrization, init: Init = None) -> M:
    """Register a parametrization of this library, with a choice of where to start.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter or buffer, ``"weight_hh_l0"`` for instance.
        parametrization: A new instance, for this tensor alone.
        init: ``None``: start from the tensor as it is. ``"paper"``: start as the constraint's paper
            does. A tensor, or a function that fills one in place as those of ``torch.nn.init`` do:
            start from that. What lies outside the set is projected onto it.

    Returns:
        The module.

    Raises:
        ValueError: If the module has no such tensor, or one whose last two dimensions are no matrices of
            a map from a state to a state; if ``init`` is something else or another shape.
    """
    weight = getattr(module, tensor_name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(
            f"tensor_name: expected the name of a tensor of {type(module).__name__}, got "
            f"{tensor_name!r}. It has {', '.join(dict(module.named_parameters(recurse=False)))}."
        )
    if is_parametrized(module, tensor_name):
        raise ValueError(
            f"tensor_name: expected a tensor without a parametrization, but {tensor_name!r} has one. "
            "Remove it first with torch.nn.utils.parametrize.remove_parametrizations, or chain the "
            "constraint behind it with register_parametrization."
        )
    _check_meaning(module, tensor_name)
    if init is not None and not isinstance(init, Tensor) and init != "paper" and not callable(init):
        raise ValueError(f"init: expected None, 'paper', a tensor or a function, got {init!r}.")
    if isinstance(init, Tensor) and init.shape != weight.shape:
        raise ValueError(
            f"init: expected a tensor of the weight's shape {tuple(weight.shape)}, got {tuple(init.shape)}."
        )
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            if isinstance(init, Tensor):
                weight.copy_(init)
            elif isinstance(init, str):
                parametrization.start_from_paper()
            elif callable(init):
                init(weight)
        register_parametrization(module, tensor_name, parametrization)
    except Exception:
        with torch.no_grad():
            weight.copy_(before)
        raise
    return module


def _check_meaning(module: nn.Module, tensor_name: str) -> None:
    """Raise for tensors whose shape may pass for that of square blocks, which they do not hold."""
    if isinstance(module, nn.modules.conv._ConvNd) and tensor_name == "weight":
        raise ValueError(
            f"{type(module).__name__}: expected a module with a weight matrix, got the kernels of a "
            "convolution, whose last dimensions are positions. Constrain a recurrent or a linear layer."
        )
    if isinstance(module, nn.LSTM) and module.proj_size and tensor_name.startswith("weight_hh"):
        raise ValueError(
            f"LSTM: expected recurrent weights of {module.hidden_size} columns, got {module.proj_size}, "
            "those of the projected state, so the gates are not square. Take proj_size=0."
        )


def spectral_radius(
    module: M,
    tensor_name: str = "weight",
    radius: float | Tensor = 1.0,
    mode: Mode = "equal",
    eps: float = 0.0,
    solver: Solver = "auto",
    *,
    init: Init = None,
) -> M:
    """Constrain the spectral radius of a weight. See :class:`spectral_param.SpectralRadiusNorm`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        radius: The spectral radius, a number or a tensor.
        mode: ``"equal"``, ``"at_most"`` or ``"latched"``.
        eps: Added to the spectral radius in the division.
        solver: ``"auto"``, ``"dense"`` or ``"tracking"``.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> lstm = spectral_param.spectral_radius(torch.nn.LSTM(8, 64), "weight_hh_l0", radius=0.95)
        >>> gates = lstm.weight_hh_l0.unflatten(0, (4, 64))
        >>> torch.linalg.eigvals(gates).abs().amax(dim=-1)  # each gate's block by itself
        tensor([0.9500, 0.9500, 0.9500, 0.9500], grad_fn=<AmaxBackward0>)
    """
    return constrain(module, tensor_name, SpectralRadiusNorm(radius, mode, eps, solver), init)


def scaled_cayley(
    module: M,
    tensor_name: str = "weight",
    negative_ones: int | float | None = None,
    *,
    init: Init = None,
) -> M:
    """Make a weight orthogonal, or unitary. See :class:`spectral_param.ScaledCayley`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        negative_ones: Number or fraction of -1s in D; None for what fits the weight.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> rnn = torch.nn.RNN(8, 64)
        >>> rnn = spectral_param.scaled_cayley(rnn, "weight_hh_l0", negative_ones=0.5, init="paper")
        >>> round(torch.linalg.matrix_norm(rnn.weight_hh_l0, 2).item(), 4)
        1.0
    """
    return constrain(module, tensor_name, ScaledCayley(negative_ones), init)


def block_triangular(
    module: M,
    tensor_name: str,
    blocks: Blocks,
    coupling: Coupling = False,
    *,
    init: Init = None,
) -> M:
    """Give the diagonal blocks of a weight a constraint each. See :class:`spectral_param.BlockTriangular`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        blocks: Pairs of size and parametrization, from top to bottom.
        coupling: Which blocks above the diagonal are not zero.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> blocks = [(6, spectral_param.ScaledCayley()), (4, spectral_param.SpectralRadiusNorm())]
        >>> rnn = spectral_param.block_triangular(torch.nn.RNN(2, 10), "weight_hh_l0", blocks)
        >>> rnn.weight_hh_l0.shape
        torch.Size([10, 10])
    """
    return constrain(module, tensor_name, BlockTriangular(blocks, coupling), init)


def schur_form(
    module: M,
    tensor_name: str = "weight",
    P: nn.Module | None = None,
    form: Form = "exact",
    *,
    radius: float | None = None,
    departure: float | None = None,
    delta: float = 1e-4,
    init: Init = None,
) -> M:
    """Train a weight through its real Schur form. See :class:`spectral_param.SchurForm`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        P: The parametrization of the orthogonal matrix; None for ``SkewExponential(start="cayley")``.
        form: ``"exact"``, or ``"paper"`` for its literal form.
        radius: Bound of the spectral radius, or None.
        departure: Bound of the departure from normality, or None.
        delta: δ of the penalty on the moduli.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> rnn = spectral_param.schur_form(torch.nn.RNN(8, 64), "weight_hh_l0", radius=0.99, init="paper")
        >>> round(spectral_param.functional.spectral_radius(rnn.weight_hh_l0).item(), 3)
        0.985
    """
    constraint = SchurForm(P, form, radius=radius, departure=departure, delta=delta)
    return constrain(module, tensor_name, constraint, init)


def skew_exponential(
    module: M, tensor_name: str = "weight", start: Start = "henaff", *, init: Init = None
) -> M:
    """Make a weight orthogonal by the exponential map. See :class:`spectral_param.SkewExponential`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        start: Which start ``init="paper"`` means, ``"henaff"`` or ``"cayley"``.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> rnn = spectral_param.skew_exponential(torch.nn.RNN(8, 64), "weight_hh_l0", init="paper")
        >>> round(torch.linalg.matrix_norm(rnn.weight_hh_l0, 2).item(), 4)
        1.0
    """
    return constrain(module, tensor_name, SkewExponential(start), init)


def givens(
    module: M,
    tensor_name: str = "weight",
    layers: int | None = None,
    order: Order = "rectangular",
    *,
    init: Init = None,
) -> M:
    """Make a weight a product of layers of 2x2 rotations. See :class:`spectral_param.Givens`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        layers: Number of layers; None for all.
        order: ``"rectangular"`` or ``"fft"``.
        init: Where to start; see :func:`spectral_param.constraints.constrain`. With fewer than n layers,
            what lies outside the set is dropped for the paper's start.

    Returns:
        The module.

    Example:
        >>> layer = spectral_param.givens(torch.nn.Linear(8, 8), layers=2, init="paper")
        >>> layer.weight[0].count_nonzero()  # two layers connect neighbours only
        tensor(3)
    """
    return constrain(module, tensor_name, Givens(layers, order), init)


def fourier_unitary(module: M, tensor_name: str = "weight") -> M:
    """Make a complex weight unitary as the uRNN does. See :class:`spectral_param.FourierUnitary`.

    It always starts as the paper does, whatever the weight is.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.

    Returns:
        The module.

    Example:
        >>> layer = torch.nn.Linear(8, 8, bias=False, dtype=torch.complex64)
        >>> spectral_param.num_free_parameters(spectral_param.fourier_unitary(layer))
        56
    """
    return constrain(module, tensor_name, FourierUnitary())


def householder(
    module: M, tensor_name: str = "weight", reflections: int | None = None, *, init: Init = None
) -> M:
    """Make a weight a product of Householder reflections. See :class:`spectral_param.Householder`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        reflections: Number of reflections; None for as many as the weight has rows.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> rnn = spectral_param.householder(torch.nn.RNN(8, 64), "weight_hh_l0", 16, init="paper")
        >>> round(torch.linalg.matrix_norm(rnn.weight_hh_l0, 2).item(), 4)
        1.0
    """
    return constrain(module, tensor_name, Householder(reflections), init)


def singular_values(
    module: M,
    tensor_name: str = "weight",
    margin: float = 0.01,
    reflections: int | None = None,
    center: float = 1.0,
    *,
    init: Init = None,
) -> M:
    """Keep the singular values of a weight in an interval. See :class:`spectral_param.SingularValues`.

    Args:
        module: The module that has the tensor.
        tensor_name: Name of its parameter.
        margin: Distance from the center that no singular value reaches.
        reflections: Number of reflections on each side; None for as many as the weight has rows.
        center: The center of the interval.
        init: Where to start; see :func:`spectral_param.constraints.constrain`.

    Returns:
        The module.

    Example:
        >>> layer = spectral_param.singular_values(torch.nn.Linear(64, 64), margin=0.2)
        >>> bool(torch.linalg.svdvals(layer.weight).max() < 1.2)
        True
    """
    return constrain(module, tensor_name, SingularValues(margin, reflections, center), init)
