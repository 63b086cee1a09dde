"""State-space layers with stable dynamics or a certified gain."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

from spectral_param._context import autocast_off
from spectral_param._parametrizations import BoundedGain, LyapunovForm
from spectral_param._parametrizations.tensors import as_tuple, originals_of
from spectral_param._recurrence.dispatch import run
from spectral_param._recurrence.sequence import Cell, Rows, first_states, previous
from spectral_param._register.constrain import constrain
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional._checks import check_bool, chosen_dtype, described, whole_number
from spectral_param.functional._systems import is_system, system_of
from spectral_param.nn._cell import PicklableModule, check_step
from spectral_param.nn._sequence_layer import SequenceLayer, converted

# Activations with slopes from 0 to 1.
Slope1 = Literal["relu", "tanh", "leaky_relu", "elu"]
_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "leaky_relu": F.leaky_relu, "elu": F.elu}


class StateSpaceCell(PicklableModule):
    r"""One system :math:`x^+ = Ax + Bu,\; y = φ(Cx + Du + b)`, of a certified gain or with a stable A.

    Args:
        input_size: Number m of inputs.
        state_size: Number n of states.
        output_size: Number p of outputs.
        nonlinearity: φ, as in :class:`StateSpace`; None for the identity.
        gain: The bound of the gain, or None for a stable A only.
        radius: The bound of the spectral radius of A.
        moduli: Moduli of the eigenvalues at the start, as in :class:`StateSpace`.
        bias: Whether to train b, which starts at zero.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        weight: With a gain: [[A, B], [C, D]] of shape ``(n + p, n + m)``, with
            :class:`spectral_param.BoundedGain`.
        weight_hh: Without a gain: A, ``(n, n)``, with :class:`spectral_param.LyapunovForm`; and
            ``weight_ih``, B, ``weight_ho``, C, and ``weight_io``, D.
        bias: b, ``(p,)``, or None.

    Raises:
        ValueError: If a size or a bound is out of its range, or the activation is unknown.
        UnsupportedDtypeError: If the dtype is complex.

    Example:
        >>> cell = spectral_param.nn.StateSpaceCell(2, 8, 3, gain=1.0)
        >>> y, x = cell(torch.randn(5, 2))
        >>> y.shape, x.shape
        (torch.Size([5, 3]), torch.Size([5, 8]))
    """

    bias: nn.Parameter | None
    _starts_itself = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        output_size: int,
        *,
        nonlinearity: Slope1 | None = None,
        gain: float | None = None,
        radius: float = 1.0,
        moduli: tuple[float, float] = (0.9, 0.999),
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if nonlinearity is not None and nonlinearity not in _ACTIVATIONS:
            raise ValueError(
                f"nonlinearity: expected {', '.join(_ACTIVATIONS)} or None, whose slopes are at most 1, got "
                f"{nonlinearity!r}. Others, as gelu, raise the gain: apply them to the outputs of single "
                "layers, and multiply the constants."
            )
        check_bool(bias, "bias")
        dtype = chosen_dtype(dtype)
        if dtype.is_complex:
            raise UnsupportedDtypeError(
                f"dtype: expected a real dtype, got {dtype}. Two real states hold a complex one."
            )
        self.input_size = m = whole_number(input_size, "input_size")
        self.state_size = n = whole_number(state_size, "state_size")
        self.output_size = p = whole_number(output_size, "output_size")
        self.nonlinearity, self.gain, self.radius = nonlinearity, gain, radius
        self.moduli = moduli
        if gain is None:
            A, B, C, D = self._split(self._fresh().to(torch.empty(0, device=device, dtype=dtype)))
            self.weight_hh, self.weight_ih = nn.Parameter(A.clone()), nn.Parameter(B.clone())
            self.weight_ho, self.weight_io = nn.Parameter(C.clone()), nn.Parameter(D.clone())
            constrain(self, "weight_hh", LyapunovForm(radius))
        else:
            self.weight = nn.Parameter(torch.empty(n + p, n + m, device=device, dtype=dtype))
            constrain(self, "weight", self._form(), init="paper")
        b = nn.Parameter(torch.zeros(p, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", b)

    def system(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return A, B, C and D."""
        if self.gain is None:
            return self.weight_hh, self.weight_ih, self.weight_ho, self.weight_io
        return self._split(self.weight)

    def to_dlti(self) -> Any:
        """Return the linear system, without φ and b, as a ``scipy.signal.dlti`` with a step of 1."""
        from scipy.signal import dlti

        return dlti(*(part.detach().cpu().double().numpy() for part in self.system()), dt=1.0)

    @torch.no_grad()
    def start_from(self, system: Any) -> None:
        """Give the cell the matrices of a system, for instance one that was fitted to a recording.

        A system outside the bounds is moved inside as at a registration; see
        :class:`spectral_param.BoundedGain` and :class:`spectral_param.LyapunovForm`.

        Args:
            system: A, B, C, D in a tuple, D perhaps None; or a discrete-time system of scipy or
                python-control.

        Raises:
            ValueError: If ``system`` is no such system, or has other sizes.
        """
        parts: Any = (system, None, None, None) if is_system(system) else system
        if not (isinstance(parts, (tuple, list)) and len(parts) == 4):
            raise ValueError(
                f"system: expected a system of scipy or python-control, or a tuple (A, B, C, D), got "
                f"{described(system)}. D may be None."
            )
        A, B, C, D = parts
        found, continuous = system_of(A, B, C, D, dt=1.0)
        if continuous:
            raise ValueError(
                "system: expected one in discrete time, got one in continuous time. Sample it: "
                "system.to_discrete(dt) of scipy, system.sample(dt) of python-control."
            )
        for name, here, given in zip("ABCD", self.system(), found, strict=True):
            if here.shape != given.shape:
                raise ValueError(f"{name}: expected shape {tuple(here.shape)}, got {given.shape}.")
        A, B, C, D = (torch.tensor(part, dtype=torch.float64, device="cpu") for part in found)
        self._take(torch.cat([torch.cat([A, B], dim=1), torch.cat([C, D], dim=1)]))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize again as in the constructor, for instance after ``to_empty``."""
        if self.bias is not None:
            self.bias.zero_()
        # A weight of certified gain is restarted by its constraint.
        if self.gain is None or not is_parametrized(self, "weight"):
            self._take(self._fresh())

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output and the next state.

        Args:
            input: u, ``(batch, input_size)`` or ``(input_size,)``.
            hx: x, ``(batch, state_size)`` or ``(state_size,)``; zeros by default.

        Returns:
            y, with ``output_size`` features, and x⁺.

        Raises:
            ValueError: If a shape or a dtype does not fit.
        """
        check_step(input, hx, self.input_size, self.state_size)
        A, B, C, D = self.system()
        u = converted("input", input, A.dtype)
        x = u.new_zeros(*u.shape[:-1], self.state_size) if hx is None else converted("hx", hx, A.dtype)
        with autocast_off(u):
            return self.output(x, u, C, D), F.linear(x, A) + F.linear(u, B)

    def output(self, x: Tensor, u: Tensor, C: Tensor, D: Tensor) -> Tensor:
        """Return φ(Cx + Du + b) for rows x and u."""
        y = F.linear(x, C) + F.linear(u, D, self.bias)
        return y if self.nonlinearity is None else _ACTIVATIONS[self.nonlinearity](y)

    def extra_repr(self) -> str:
        """Return sizes and bounds, for ``repr``."""
        return (
            f"{self.input_size}, {self.state_size}, {self.output_size}, nonlinearity={self.nonlinearity!r}, "
            f"gain={self.gain}, radius={self.radius}"
        )

    def _form(self) -> BoundedGain:
        gain = 1.0 if self.gain is None else self.gain
        return BoundedGain(gain, self.state_size, self.radius, moduli=self.moduli)

    def _fresh(self) -> Tensor:
        """Return the weight of a new system, in double precision, of a gain below 1 if no gain is given."""
        fresh = nn.Module()
        sizes = (self.state_size + self.output_size, self.state_size + self.input_size)
        fresh.weight = nn.Parameter(torch.empty(sizes, dtype=torch.float64, device="cpu"))
        constrain(fresh, "weight", self._form(), init="paper")
        weight = fresh.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    def _split(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n = self.state_size
        return W[:n, :n], W[:n, n:], W[n:, :n], W[n:, n:]

    def _take(self, W: Tensor) -> None:
        """Give the cell the system [[A, B], [C, D]], moved into its set."""
        if self.gain is not None:
            self._put("weight", W)
            return
        A, B, C, D = self._split(W)
        self._put("weight_hh", A)
        for weight, part in ((self.weight_ih, B), (self.weight_ho, C), (self.weight_io, D)):
            weight.copy_(part)

    def _put(self, name: str, W: Tensor) -> None:
        """Give a weight these values, moved into its set."""
        if not is_parametrized(self, name):
            getattr(self, name).copy_(W)
            return
        chain: Any = self.parametrizations[name]  # type: ignore[index]
        like = originals_of(chain)[0]
        found = chain[0].originals_for(W.to(like.dtype), torch.finfo(like.dtype).eps, is_first=True)
        for original, value in zip(originals_of(chain), as_tuple(found), strict=True):
            original.copy_(value)


class StateSpace(SequenceLayer):
    r"""Layers of systems :math:`x_{t+1} = Ax_t + Bu_t,\; y_t = Cx_t + Du_t + b`, of a certified gain.

    The module has the interface of :class:`torch.nn.RNN`; many time steps are computed in parallel. With
    ``gain=γ`` the whole module maps two sequences of inputs whose difference has the norm δ, over all times,
    to outputs that differ by at most γδ, from the same initial states. Without bias the module maps inputs of
    norm δ to outputs of norm at most γδ. This holds for all parameters, not only for the trained ones. Gains
    of layers multiply; each layer has the same share. Two directions side by side multiply the gain by √2.
    Rounding in the forward pass, and dropout in training, which scales by 1/(1 - p), are not included.

    Args:
        input_size: Number of inputs.
        state_size: Number of states of each layer and direction; and of outputs of all layers but the last.
        output_size: Number of outputs of each direction of the last layer.
        num_layers: Number of layers.
        nonlinearity: Between layers: ``"relu"``, ``"tanh"``, ``"leaky_relu"`` or ``"elu"``, whose slopes are
            at most 1; None, the default: none.
        gain: The bound γ > 0, by :class:`spectral_param.BoundedGain`. None, the default: A is kept stable by
            :class:`spectral_param.LyapunovForm`, and B, C and D are free.
        radius: The bound r of the spectral radius of each A, 0 < r ≤ 1. The default is 1.
        moduli: The least and the largest modulus, divided by r, of the eigenvalues of A at the start. The
            default forgets after some hundred steps; for memories of T steps take numbers around 1 - 1/T.
        bias: Whether to train a bias b of the output of each layer, zero at the start.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers.
        bidirectional: Whether a second system for each layer reads the sequence backwards.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        cells: A :class:`StateSpaceCell` for each layer and direction, in the order of h_n. Its
            ``to_dlti()`` is the system for scipy, and ``start_from`` takes such a system.
        output_size: Number of features of the output.

    Raises:
        ValueError: If an argument does not fit.
        UnsupportedDtypeError: If the dtype is complex.

    The output at time t depends on inputs up to t, with ``bidirectional`` on all inputs. At the start A has
    eigenvalues uniform on a ring, as in the LRU (Orvieto et al., "Resurrecting recurrent neural networks for
    long sequences", 2023).

    Example:
        >>> net = spectral_param.nn.StateSpace(3, 16, 2, 2, nonlinearity="relu", gain=1.0, bias=False)
        >>> u = torch.randn(100, 8, 3)
        >>> y, x = net(u)
        >>> y.shape, x.shape, bool(y.norm() <= u.norm())
        (torch.Size([100, 8, 2]), torch.Size([2, 8, 16]), True)
    """

    def __init__(
        self,
        input_size: int,
        state_size: int,
        output_size: int,
        num_layers: int = 1,
        nonlinearity: Slope1 | None = None,
        gain: float | None = None,
        radius: float = 1.0,
        *,
        moduli: tuple[float, float] = (0.9, 0.999),
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        whole_number(state_size, "state_size")
        super().__init__(
            input_size,
            state_size,
            num_layers,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        self.output_size = whole_number(output_size, "output_size") * self.num_directions
        self.state_size, self.nonlinearity, self.gain = self.hidden_size, nonlinearity, gain
        share = None
        if gain is not None:
            BoundedGain(gain, self.state_size)  # Raises for an invalid bound of the module.
            share = gain ** (1 / self.num_layers) / self.num_directions**0.5
        self.cells = nn.ModuleList()
        for i, features in enumerate(self.cell_input_sizes()):
            is_last = i >= (self.num_layers - 1) * self.num_directions
            cell = StateSpaceCell(
                features,
                self.state_size,
                output_size if is_last else self.state_size,
                nonlinearity=nonlinearity,
                gain=share,
                radius=radius,
                moduli=moduli,
                bias=bias,
                device=device,
                dtype=dtype,
            )
            if is_last:
                cell.nonlinearity = None
            self.cells.append(cell)

    def run_cell(
        self, cell: nn.Module, rows: Tensor, h0: Tensor | None, sizes: list[int], return_output: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Run one layer in one direction; see :class:`spectral_param.nn.SequenceLayer`."""
        assert isinstance(cell, StateSpaceCell)
        A, B, C, D = cell.system()
        rows = converted("input", rows, A.dtype)
        h0 = None if h0 is None else converted("hx", h0, A.dtype)
        recurrence, given = Cell(B, A, None, "identity"), Rows(rows, h0, sizes)
        states, last = run(recurrence, given)
        assert states is not None
        with autocast_off(rows):
            x = torch.cat([first_states(recurrence, given), previous(states, sizes)])
            return cell.output(x, rows, C, D), last

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, for ``repr``."""
        gain = "" if self.gain is None else f", gain={self.gain}"
        return f"{super().extra_repr()}, nonlinearity={self.nonlinearity!r}{gain}"
