"""Weights whose Frobenius norm, or the norm of each row, column or filter, is given or bounded."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from spectral_param._map import Map, unchanged
from spectral_param._parametrizations.bound import Bound, Measured, Measurement
from spectral_param._parametrizations.degenerate import UNTIL, warn_of_weight
from spectral_param._parametrizations.layout import Slices, slices_of
from spectral_param._parametrizations.tensors import real_entries
from spectral_param._scale import divided
from spectral_param._sets import spheres
from spectral_param.functional._checks import whole_number

Mode = Literal["equal", "at_most"]

# The largest number of slices that a message names.
_NAMED = 5


class FrobeniusNorm(Measured):
    r"""Gives a weight, or each of its slices, a fixed Frobenius norm: :math:`W = c\, T / ‖T‖_F`.

    The Frobenius norm is the square root of the sum of the squared moduli of all entries. With ``dim``, each
    slice has the norm c, for instance each row, column or filter.

    Example:
        >>> layer = torch.nn.Linear(64, 300)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.FrobeniusNorm(8.0))
        >>> layer.weight.norm()
        tensor(8.0000, grad_fn=<...>)
        >>> conv = torch.nn.Conv2d(3, 8, 3)
        >>> each_filter = spectral_param.FrobeniusNorm(1.0, "at_most", dim=0)
        >>> conv = spectral_param.constrain(conv, "weight", each_filter)
        >>> bool((conv.weight.flatten(1).norm(dim=1) <= 1 + 1e-6).all())
        True

    Args:
        norm: The norm c > 0: a number, or a tensor with one number for each slice (or gate, or slice of a
            gate). ``"present"`` means the norms at registration; the ``state_dict`` saves these numbers.
        mode: With ``"equal"``, the default, ‖W‖ = c. With ``"at_most"``, a slice T is scaled only if ‖T‖ > c;
            otherwise W = T, bit for bit.
        dim: The axis, counted from 0, that numbers the slices: each index of this axis is one slice, and the
            norm is over all other axes. So ``dim=0`` means rows of a linear layer, vectors of an embedding,
            or filters of a convolution; ``dim=1`` means columns of a linear layer, or the filters of a
            transposed convolution without groups.
            ``None``, the default, means that the whole weight is one slice. (-1 is refused, because -1 means
            the whole weight in PyTorch's ``weight_norm``, but the last axis in ``torch.renorm``.)

    Raises:
        ValueError: If an argument is outside its range; at registration, if the weight has no axis ``dim``,
            or if, with ``"equal"`` or ``"present"``, a slice is zero. The message names this slice.

    The weight has any number of dimensions from 1 on, and is real or complex. A weight of three dimensions is
    one weight, not a batch of matrices. For the kernel of a convolution, also with groups, ``dim`` is an axis
    of PyTorch's tensor. Each gate of an LSTM or GRU is scaled separately, and ``dim`` is an axis of one gate.
    A weight of one dimension is one slice.

    With the gradient G of W and E = T/‖T‖, the gradient of T is
    :math:`(c / ‖T‖)(G - E \operatorname{Re}<E, G>)`, a multiple of the part of G tangent to the sphere.
    Sources: Salimans and Kingma, "Weight Normalization: A Simple Reparameterization to Accelerate
    Training of Deep Neural Networks" (NeurIPS 2016), equation 3, with a fixed length; Srivastava, Hinton,
    Krizhevsky, Sutskever and Salakhutdinov, "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting" (JMLR 2014), for rows with ``"at_most"``, there called max-norm.

    Slices without a derivative have defined results:

    - NaN or infinity in a slice of T gives NaN in this slice of W and in the gradient.
    - No multiple of a zero slice has the norm c, so a zero slice is not changed. With ``"equal"`` a zero
      slice is refused at registration. If a slice becomes zero in training, a
      :class:`~spectral_param.errors.DegenerateEigenvalueWarning` is emitted once, for weights on the CPU. The
      row ``padding_idx`` of an embedding stays zero without a warning.

    With ``optimizer=`` (the weight is projected after each step), the optimizer gets only the part of the
    gradient tangent to the sphere. With ``"at_most"``, the gradient is reduced to the tangent part only for
    slices of norm c that a step would lengthen. So the weight stops at stationary points of the constrained
    problem, even if the optimizer divides the gradient entry by entry, as Adam does. With ``optimizer=``,
    ``"present"`` needs ``"equal"``: a checkpoint has only the weight then, and only with ``"equal"`` can the
    bounds be read from the weight.

    The distance of a slice W from the set is the modulus of ‖W‖ - c with ``"equal"``, and max(‖W‖ - c, 0)
    with ``"at_most"``. ``project`` returns the nearest weight of the set: each slice is scaled.
    """

    shapes = "any"
    convolutions = "entries"
    least_dims = 1

    ROUNDINGS = 8
    norm: Bound
    mode: Mode
    keeps_members = keeps_non_finite = True

    def __init__(self, norm: Bound = 1.0, mode: Mode = "equal", dim: int | None = None) -> None:
        super().__init__("norm", norm, mode=(mode, Mode))
        vars(self)["_dim"] = _checked_dim(dim)

    @property
    def dim(self) -> int | None:
        """The axis that numbers the slices, or None."""
        axis: int | None = vars(self)["_dim"]
        return axis

    def _layout_of(self, W: Tensor) -> Slices:
        # The groups of a convolution do not count as blocks: ``dim`` is an axis of the whole kernel.
        return slices_of(W, "FrobeniusNorm", self.dim, 1 if self.kernel_dims else self.gates)

    # The map --------------------------------------------------------------------------------------------

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return c T/‖T‖, or T for slices that the mode does not scale."""
        return _scaled(T, self._bound_for(T), self.mode)

    def evaluate(self, T: Tensor) -> Map:  # type: ignore[override]
        """Return c T/‖T‖ or T for a T without a graph, with a hand-written gradient."""
        E, size = spheres.polar_of_values(T)
        if isinstance(self.norm, str):  # After another parametrization, the first T determines "present".
            self._take_present(size)
        c = self._bound_for(T)
        scales = _scales(size, c, self.mode)
        W, all_scale = E.mul_(c[..., None, None]), False
        if T.is_cpu:
            self._warn_of_zeros(size)
            if not bool(scales.any()):
                return unchanged(T)
            all_scale = bool(scales.all())
        if not all_scale:
            W = _chosen(scales, W, T)

        def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor]:
            along = spheres.without(divided(W, c[..., None, None]), G)
            g = along.mul_((c / size)[..., None, None])
            return (g if all_scale else _chosen(scales, g, G),)

        return Map(W, pull_back, functools.partial(_scaled, c=c, mode=self.mode))

    def _warn_of_zeros(self, size: Tensor) -> None:
        if self._warned or self.mode != "equal" or not bool(self._zeros(size).any()):
            return
        self._warned = True
        warn_of_weight(
            "FrobeniusNorm: the norm of a slice is zero, so no multiple of the slice has the given norm, and "
            f"W = T there {UNTIL}."
        )

    def start(self, like: Tensor) -> Tensor:
        """Return Gaussian entries, scaled to the norm c; an embedding's row ``padding_idx`` is zero."""
        T = torch.randn_like(like)
        if self.padding_idx is not None:
            W = self._layout.join(T).clone()
            W[self.padding_idx] = 0
            T = self._matrices(W)
        self._start_bound()
        return spheres.polar(T)[0] * self._bound_for(T)[..., None, None]

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries of T (a complex entry counts as two), minus 1 for each given norm."""
        return real_entries(T) - (self.mode == "equal") * T.shape[:-2].numel()

    # The set --------------------------------------------------------------------------------------------

    def measure(self, W: Tensor, eps: float) -> Measurement:
        """Return the norm of each slice."""
        return Measurement(spheres.norms(W), 0.0)

    def _judged(self, W: Tensor, measured: Measurement, eps: float) -> tuple[Tensor, Tensor]:
        distance, resolution = super()._judged(W, measured, eps)
        return torch.where(self._is_padding(measured.size), 0, distance), resolution

    def near(self, W: Tensor, eps: float | None = None, solution: None = None) -> Tensor:
        """Return the nearest members, without branches on values of tensors; zero slices do not change.

        After a step of an optimizer (``eps`` is given), slices that are members up to rounding do not change.
        For half precision the tolerance is larger by eps/2, because rounding of the entries changes the norm
        by at most a relative eps/2.
        """
        own = torch.finfo(W.dtype).eps
        rounding = self.ROUNDINGS * own + (eps / 2 if eps is not None and eps > own else 0.0)
        return self._near(W, 0.0 if eps is None else rounding)

    def _near(self, W: Tensor, rounding: float) -> Tensor:
        """Return the nearest members; slices within the relative distance ``rounding`` do not change."""
        E, size = spheres.polar_of_values(W)
        c = self._bound_at(W, size)
        excess = size - c
        # A comparison with NaN is False, so slices with NaN do not change.
        moves = (excess.abs() if self.mode == "equal" else excess) > rounding * c
        return _chosen(moves & ~_is_zero(size), E.mul_(c[..., None, None]), W)

    @property
    def one_set(self) -> object:  # type: ignore[override]
        """The norm and the mode as a key, if all slices have the same norm, else None."""
        number = self._number()
        return None if number is None else ("Frobenius norm", number, self.mode)

    def tangent(self, W: Tensor, D: Tensor, active: Tensor | None = None) -> Tensor:
        """Return D - W Re<W, D>/‖W‖² for active slices of W; return D for other slices and zero slices."""
        along = spheres.tangent(W, D)
        return along if active is None else _chosen(active, along, D)

    def active(self, W: Tensor, G: Tensor) -> Tensor | None:
        """With ``"at_most"``, return which slices have norm c up to rounding and grow in a step along -G."""
        if self.mode == "equal":
            return None
        E, size = spheres.polar_of_values(W)
        rounding = self.ROUNDINGS * torch.finfo(W.dtype).eps + self._eps_of(W) / 2
        is_on_boundary = size >= self._bound_for(W) * (1 - rounding)
        return is_on_boundary & (spheres.inner(E, G) < 0)

    def as_matrices(self, W: Tensor) -> Tensor | None:
        """Return each gate as a matrix whose rows are the indices of axis 0; None for slices or a vector."""
        layout = self._layout
        assert isinstance(layout, Slices)
        rows, *others = layout.shape
        if self.dim is not None or not others:
            return None
        return W.reshape(*W.shape[:-2], rows // layout.gates, -1)

    @property
    def adds_up(self) -> bool:  # type: ignore[override]
        """Whether all slices have the same norm, the weight has no gates, and no slice has to stay zero."""
        is_gated = self.gates > 1 and not self.kernel_dims
        return getattr(self.norm, "ndim", 0) == 0 and not is_gated and self.padding_idx is None

    @property
    def present_is_plain(self) -> bool:  # type: ignore[override]
        """Whether the norms that "present" found can be read from the weight."""
        return self.mode == "equal"

    # Zero slices ----------------------------------------------------------------------------------------

    def check_start(self, W: Tensor) -> None:
        """Raise for zero slices, because no multiple of a zero slice has the given norm."""
        if self.mode != "equal" and not self._is_present:
            return
        where = self._zeros(spheres.norms(W)).nonzero().tolist()
        if not where:
            return
        names = ", ".join(self._name(index) for index in where[:_NAMED])
        more = f" and {len(where) - _NAMED} others" if len(where) > _NAMED else ""
        remedy = (
            "Start with init='paper' or init=torch.nn.init.normal_, take mode='at_most', or, for the padding "
            "row of an embedding, pass padding_idx to the Embedding."
        )
        if self.mode != "equal":
            remedy = "Pass a number, which with mode='at_most' holds for slices of zeros, too."
        raise ValueError(
            f"FrobeniusNorm: expected no slice of zeros, no multiple of which has a norm, got {names}{more}. "
            f"{remedy}"
        )

    def _name(self, index: list[int]) -> str:
        """Return a description of one slice, for a message."""
        is_gated = len(index) - (self.dim is not None)
        parts = [f"gate {index[0]}"] if is_gated else []
        parts += [] if self.dim is None else [f"slice {index[-1]} along dim {self.dim}"]
        return " of ".join(reversed(parts)) or "a weight of zeros"

    def _zeros(self, size: Tensor) -> Tensor:
        """Return which norms are zero, except for the row ``padding_idx`` of an embedding."""
        return _is_zero(size) & ~self._is_padding(size)

    def _is_padding(self, size: Tensor) -> Tensor:
        """Return which norms belong to the row ``padding_idx``, if this row is zero."""
        found = torch.zeros_like(size, dtype=torch.bool)
        if self.padding_idx is not None and self.dim == 0 and size.ndim == 1:
            found[self.padding_idx] = size[self.padding_idx] == 0
        return found

    def _take_present(self, size: Tensor) -> None:
        super()._take_present(torch.where(self._is_padding(size), 1, size))

    # --------------------------------------------------------------------------------------------------------

    def _set_name(self) -> str:
        what = "a weight" if self.dim is None else f"slices along dim {self.dim}"
        return super()._set_name().replace("a weight of norm", f"{what} of Frobenius norm")

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"{self._shown()}, mode={self.mode!r}, dim={self.dim}"


def _checked_dim(dim: object) -> int | None:
    """Return the argument ``dim``; raise if ``dim`` is not an axis >= 0 or None."""
    if dim is None:
        return None
    try:
        return whole_number(dim, "dim", least=0)
    except ValueError as error:
        raise ValueError(
            f"dim: expected an axis >= 0, or None for the norm of the whole weight, got {dim!r}. Negative "
            "numbers mean the whole weight to weight_norm, and an axis counted from the last one to "
            "torch.renorm."
        ) from error


def _scaled(T: Tensor, c: Tensor, mode: Mode) -> Tensor:
    """Return c T/‖T‖, or T for slices that the mode does not scale, by torch's operations."""
    E, size = spheres.polar(T)
    return _chosen(_scales(size.detach(), c, mode), E * c[..., None, None], T)


def _scales(size: Tensor, c: Tensor, mode: Mode) -> Tensor:
    """Return which slices, of norms ``size``, are scaled. A slice of norm NaN is scaled, so W becomes NaN."""
    scales = ~_is_zero(size)
    if mode == "equal":
        return scales
    return scales & ~(size <= c * (1 + FrobeniusNorm.ROUNDINGS * torch.finfo(size.dtype).eps))


def _is_zero(size: Tensor) -> Tensor:
    """Return which norms count as zero: 0, and norms so small that 1/‖T‖ overflows."""
    return size < torch.finfo(size.dtype).tiny


def _chosen(slices: Tensor, W: Tensor, other: Tensor) -> Tensor:
    return torch.where(slices[..., None, None], W, other)
