"""A layer whose output solves an equation of its own."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param._constants.slopes import UnknownConstantError, slopes
from spectral_param._context import HALF
from spectral_param._parametrizations import LyapunovForm, SpectralNorm, SpectralRadiusNorm
from spectral_param._parametrizations.base import Parametrization
from spectral_param._register.constrain import constrain
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional import _equilibrium
from spectral_param.functional._checks import check_bool, check_tensor, chosen_dtype, described, whole_number
from spectral_param.nn._cell import PicklableModule

Activation = Literal["relu", "tanh", "sigmoid", "softplus", "leaky_relu", "hardtanh"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "leaky_relu": nn.LeakyReLU,
    "hardtanh": nn.Hardtanh,
}
_SETS = (
    "LyapunovForm(abscissa=a, growth=1), LyapunovForm(abscissa=a, metric='diagonal'), LyapunovForm(a, "
    "growth=1), LyapunovForm(a, metric='diagonal'), SpectralNorm(a) or SpectralRadiusNorm(a, of='absolute') "
    "with a number a < 1"
)


class Equilibrium(PicklableModule):
    r"""Returns the solution z of :math:`z = φ(Wz + Ux + b)`, which is unique for all parameters.

    A deep equilibrium model: as many layers as one likes with the same weights, in the memory of one layer. W
    stays in a set in which there is one solution, and Peaceman-Rachford splitting is proven to find it:

    .. list-table::
       :header-rows: 1

       * - constraint, for a < 1
         - W
       * - ``LyapunovForm(abscissa=a, growth=1)``
         - numerical range left of a
       * - ``LyapunovForm(abscissa=a, metric="diagonal")``
         - numerical range left of a in trained coordinates Θ: the largest set
       * - ``SpectralNorm(a)``, ``LyapunovForm(a, growth=1)``
         - :math:`‖W‖_2 ≤ a`
       * - ``LyapunovForm(a, metric="diagonal")``
         - :math:`‖ΘWΘ^{-1}‖_2 ≤ a`
       * - ``SpectralRadiusNorm(a, of="absolute")``
         - :math:`ρ(|W|) ≤ a`

    The default is the first constraint with a = 0, the choice of Winston and Kolter's own experiments. This
    set does not bound the norm of W, and z is a 1-Lipschitz function of Ux + b in the 2-norm: with :math:`m =
    1 - a`, two solutions are at most :math:`1/m` times as far apart as their inputs Ux + b. The diagonal
    metric allows more weights; in exchange the bound of this distance is multiplied by the condition of Θ.

    The gradient is the derivative of the solution, of every order, in reverse mode. The same iteration
    computes it, and no state of the forward iterations is kept. The computation is in the precision of W
    (single for half), also under autocast.

    Sources: Winston and Kolter, "Monotone operator equilibrium networks" (NeurIPS 2020); El Ghaoui, Gu,
    Travacca, Askari and Tsai, "Implicit deep learning" (2021), for the radius of \|W\|. Formulas, with the
    rate of convergence, stand above the code in ``spectral_param/functional/_equilibrium.py``.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number n of units.
        constraint: The constraint of W, one of the table. ``None`` is the default,
            ``LyapunovForm(abscissa=0.0, growth=1.0)``.
        nonlinearity: φ: ``"relu"``, the default, ``"tanh"``, ``"sigmoid"``, ``"softplus"``,
            ``"leaky_relu"``, ``"hardtanh"``; or a module of torch.nn that acts entry by entry, without
            parameters, with slopes from 0 to 1, such as ``torch.nn.ELU()``.
        bias: Whether to train b.
        max_iterations: The largest number of iterations for a solution. The default 5,000 is rarely reached:
            most solutions take tens to hundreds of iterations, more for larger W. A warning says if the limit
            is reached.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        weight_ih: U, ``(n, input_size)``.
        weight_hh: W, ``(n, n)``.
        bias: b, ``(n,)``, or None.
        iterations: How many iterations the last forward pass took; None before the first pass.
        residual: The largest :math:`‖z - φ(Wz + Ux + b)‖_2` of a row in that pass.

    Raises:
        ValueError: If a size is less than 1; if the constraint proves no solution; if φ is an activation that
            is not listed, such as GELU, SiLU, Mish and SELU, whose slopes leave [0, 1].
        UnsupportedDtypeError: If the dtype is complex.

    Example:
        >>> layer = spectral_param.nn.Equilibrium(3, 16)
        >>> x = torch.randn(8, 3)
        >>> z = layer(x)
        >>> again = torch.relu(z @ layer.weight_hh.mT + x @ layer.weight_ih.mT + layer.bias)
        >>> torch.allclose(z, again, atol=1e-5)
        True
    """

    bias: nn.Parameter | None
    weight_hh: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        constraint: Parametrization | None = None,
        *,
        nonlinearity: Activation | nn.Module = "relu",
        bias: bool = True,
        max_iterations: int = 5000,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = whole_number(input_size, "input_size")
        self.hidden_size = whole_number(hidden_size, "hidden_size")
        self.max_iterations = whole_number(max_iterations, "max_iterations")
        check_bool(bias, "bias")
        if chosen_dtype(dtype).is_complex:
            raise UnsupportedDtypeError(f"dtype: expected a real dtype, got {dtype}. φ acts on real units.")
        constraint = LyapunovForm(abscissa=0.0, growth=1.0) if constraint is None else constraint
        _check_constraint(constraint)
        self.nonlinearity = nonlinearity
        self.activation = _activation(nonlinearity)
        n = self.hidden_size
        factory: Any = {"device": device, "dtype": dtype}
        self.weight_ih = nn.Parameter(torch.empty(n, self.input_size, **factory))
        self.bias = nn.Parameter(torch.empty(n, **factory)) if bias else None
        self.weight_hh = nn.Parameter(torch.empty(n, n, **factory))
        self.iterations: int | None = None
        self.residual: float | None = None
        self.reset_parameters()
        constrain(self, "weight_hh", constraint)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw U, W and b as ``torch.nn.Linear`` does; W is then moved into its set."""
        for parameter in (self.weight_ih, self.weight_hh, self.bias):
            if parameter is not None:
                size = self.hidden_size if parameter is self.weight_hh else self.input_size
                nn.init.uniform_(parameter, -(size**-0.5), size**-0.5)

    def forward(self, input: Tensor, start: Tensor | None = None) -> Tensor:
        """Return z.

        Args:
            input: x, ``(..., input_size)``.
            start: Where the iteration starts, ``(..., n)``; the solution of a similar input saves iterations.
                The default is 0. The start changes the result only by rounding, and gets no gradient.

        Returns:
            ``(..., n)``.

        Raises:
            ValueError: If a shape does not fit.
        """
        self._check_shapes(input, start)
        W = self.weight_hh
        c = F.linear(input, self.weight_ih, self.bias)
        dtype = torch.float32 if W.dtype in HALF else W.dtype
        W, rows = W.to(dtype), c.to(dtype).reshape(-1, self.hidden_size)
        first = None if start is None else start.detach().to(dtype).reshape(-1, self.hidden_size)
        problem = _equilibrium.prepared(W, self.max_iterations)
        z, self.iterations = _equilibrium.equilibrium(W, rows, self.activation, problem, first)
        self.residual = _equilibrium.residual(W, rows, self.activation, z)
        return z.to(c.dtype).reshape(c.shape)

    def extra_repr(self) -> str:
        """Return the sizes and the activation, for ``repr``."""
        return f"{self.input_size}, {self.hidden_size}, nonlinearity={self.nonlinearity!r}"

    def _check_shapes(self, x: Tensor, start: Tensor | None) -> None:
        check_tensor(x, "input")
        if x.ndim < 1 or x.shape[-1] != self.input_size:
            raise ValueError(
                f"input: expected shape (..., {self.input_size}), got {tuple(x.shape)}. Pass input.mT if the "
                "features come first."
            )
        expected = (*x.shape[:-1], self.hidden_size)
        if start is not None and start.shape != expected:
            raise ValueError(
                f"start: expected shape {expected} for this input, got {tuple(start.shape)}. Repeat one for "
                "the whole batch with start.expand."
            )


def _activation(given: Any) -> nn.Module:
    """Return φ as a module."""
    if isinstance(given, str) and given in _ACTIVATIONS:
        return _ACTIVATIONS[given]()
    expected = (
        f"one of {', '.join(map(repr, _ACTIVATIONS))}, or a module of torch.nn that acts entry by entry"
    )
    if not isinstance(given, nn.Module):
        got = repr(given) if isinstance(given, str) else described(given)
        raise ValueError(f"nonlinearity: expected {expected}, got {got}. Pass 'relu'.")
    try:
        found = slopes(given)
    except UnknownConstantError as error:
        raise ValueError(f"nonlinearity: expected {error}, got {given}. Pass 'relu'.") from None
    if found is None or any(True for _ in given.parameters()):
        raise ValueError(f"nonlinearity: expected {expected}, without parameters, got {given}. Pass 'relu'.")
    if found[0] < 0 or found[1] > 1:
        raise ValueError(
            f"nonlinearity: expected slopes from 0 to 1, got {given} with slopes from {found[0]:.3g} to "
            f"{found[1]:.3g}, for which no solution is proven. Pass 'relu' or 'softplus'."
        )
    return given


def _check_constraint(constraint: Any) -> None:
    """Raise unless a constraint proves that there is one solution, and splitting finds it."""
    if isinstance(constraint, LyapunovForm):
        proves = constraint.growth == 1 or constraint.metric == "diagonal"
        bound: Any = constraint.radius if constraint.abscissa is None else constraint.abscissa
    elif isinstance(constraint, SpectralNorm):
        proves, bound = True, constraint.norm
    elif isinstance(constraint, SpectralRadiusNorm):
        proves, bound = constraint.of == "absolute" and constraint.mode != "latched", constraint.radius
    else:
        proves, bound = False, None
    if not (proves and isinstance(bound, float) and bound < 1):
        got = repr(constraint) if isinstance(constraint, nn.Module) else described(constraint)
        raise ValueError(f"constraint: expected {_SETS}, got {got}. Leave it out for the first with a = 0.")
