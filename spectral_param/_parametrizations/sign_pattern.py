"""Weights whose entries have given signs or are zero: Dale's law, masks, connectomes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param._matrices import decomposed
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.layout import PLAIN
from spectral_param.functional._checks import as_numbers, check_real
from spectral_param.functional._spectral_radius import spectral_radius

_FREE = 2.0


class SignPattern(Parametrization):
    r"""Real weight whose entries have given signs: :math:`W_{ij} = p_{ij} |T_{ij}|` for p = ±1.

    Dale's law says that a neuron excites all of its targets or inhibits all of them: each column of a
    recurrent matrix has one sign. In masks, sparse reservoirs and connectomes a zero entry is a missing
    connection.

    Example:
        >>> dale = torch.ones(8, 8)
        >>> dale[:, 6:] = -1  # The last two neurons inhibit.
        >>> chain = [spectral_param.SignPattern(dale), spectral_param.SpectralRadiusNorm(0.9)]
        >>> rnn = spectral_param.constrain(torch.nn.RNN(3, 8), "weight_hh_l0", chain)
        >>> W = rnn.weight_hh_l0
        >>> bool((W[:, :6] >= 0).all() and (W[:, 6:] <= 0).all())
        True
        >>> round(spectral_param.functional.spectral_radius(W).item(), 4)
        0.9

    Args:
        pattern: Matrix ``(m, n)``, or a batch that broadcasts to the shape of the weight: 1 for entries ≥ 0,
            -1 for entries ≤ 0, 0 for entries that are zero, NaN for entries of any sign. The pattern may be a
            tensor, an array or nested lists, and is stored in a buffer. The matrices are the gates of an LSTM
            or GRU, and (output channels, input channels · kernel size) for each group of a convolution; a
            pattern of the weight's own shape is taken, too.

    Raises:
        ValueError: If an entry of the pattern is none of these four numbers, if all entries are NaN, or if
            the shape does not fit the weight.

    Source: Song, Yang and Wang, "Training Excitatory-Inhibitory Recurrent Neural Networks for Cognitive
    Tasks" (PLoS Computational Biology 2016), where :math:`W = W^{+} D` with rectified entries
    :math:`W^{+}`.

    The list ``[SignPattern(p), SpectralRadiusNorm(0.9)]`` gives a weight both properties, because
    :class:`spectral_param.SpectralRadiusNorm` multiplies all entries by one positive number. With the list in
    reverse order the weight does not have the spectral radius, because changed signs change the eigenvalues.
    :class:`spectral_param.SpectralAbscissa` shifts the diagonal. If ``SpectralAbscissa`` follows in the list,
    the diagonal of the pattern has to be NaN (or -1 for ``mode="at_most"``, which only makes the diagonal
    smaller). :func:`spectral_param.constrain` checks this condition.

    The map uses absolute values, whose derivative is ±1 (1 at T = 0). The paper uses a rectifier, whose
    derivative is 0 where its value is 0: an entry that has reached zero would stay zero. Registration and
    assignment take T = W; registration first sets entries of the wrong sign to zero.

    The distance of a weight from the set is the largest modulus of an entry of the wrong sign; ``project``
    takes the nearest weight of the set, in which all entries of the wrong sign are replaced by zeros.
    """

    pattern: Tensor
    shapes = "any"
    convolutions = "entries"
    assignable_after = True

    def __init__(self, pattern: Tensor | Sequence[Sequence[float]]) -> None:
        super().__init__()
        entries = as_numbers(pattern, "pattern", "a matrix of 1, -1, 0 and NaN", dtype=torch.float32).clone()
        known = entries.isnan() | (entries == 0) | (entries.abs() == 1)
        if entries.ndim < 2 or not bool(known.all()):
            strange = entries[~known].flatten()[:1].tolist() or [f"shape {tuple(entries.shape)}"]
            raise ValueError(
                "pattern: expected a matrix of 1 (positive), -1 (negative), 0 (zero) and NaN (free), got "
                f"{strange[0]}. torch.sign(W) is the pattern of a matrix W. For Dale's law, with one sign "
                "for each presynaptic neuron, pass signs.expand(n, n)."
            )
        if bool(entries.isnan().all()):
            raise ValueError(
                "pattern: expected an entry that is not NaN (free), got NaN everywhere, which constrains "
                "nothing. Writing into an expanded tensor changes all its rows: clone() it before. For free "
                "entries alone leave SignPattern out."
            )
        # The buffer has 2 for a free entry, because NaN is not equal to NaN: buffers with NaN could not be
        # compared.
        self.register_buffer("pattern", entries.nan_to_num(nan=_FREE))

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return T with the signs of the pattern."""
        pattern = self._pattern_of(T)
        # This is p sgn(T) T = p |T|, with the derivative 1 where T is zero.
        return torch.where(pattern == 0, torch.zeros_like(T), torch.where(_contradicts(T, pattern), -T, T))

    def check_matrices(self, W: Tensor) -> None:
        """Raise for complex matrices, and for matrices of a shape that the pattern does not fit."""
        check_real(W, "SignPattern", "Complex numbers have no sign.")
        self._pattern_of(W)

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return the largest modulus of an entry of the wrong sign."""
        return torch.where(self._is_wrong(W), W.abs(), 0).amax(dim=(-2, -1)), 0.0

    def near(self, W: Tensor) -> Tensor:
        """Return the nearest member: W with zeros in place of entries of the wrong sign."""
        return torch.where(self._is_wrong(W), 0, W)

    def invert(self, W: Tensor) -> Tensor:
        """Return T = W."""
        self.pattern = self.pattern.to(W.device)  # Moved now, so that later reads need not move the pattern.
        return W.clone()

    def _is_wrong(self, W: Tensor) -> Tensor:
        pattern = self._pattern_of(W)
        return ((pattern == 0) & (W != 0)) | _contradicts(W, pattern)

    def _set_name(self) -> str:
        return "entries with the signs of the pattern"

    def start(self, like: Tensor) -> Tensor:
        """Return Gaussian entries with the pattern's signs, scaled to spectral radius 1.

        A matrix that is not square is scaled to spectral norm 1. A matrix with radius (norm) 0 is not scaled.
        """
        T = self.reference(torch.randn_like(like))
        is_square = T.shape[-1] == T.shape[-2]
        rho = spectral_radius(T) if is_square else decomposed(torch.linalg.svdvals, T)[..., 0]
        return T / torch.where(rho > 0, rho, 1)[..., None, None]

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries that the pattern does not fix to zero."""
        return int((self._pattern_of(T) != 0).expand(T.shape).sum())

    def has_free_diagonal(self, or_negative: bool) -> bool:
        """Return whether all diagonal entries may have any sign.

        Args:
            or_negative: Whether diagonal entries that have to be ≤ 0 are accepted, too.
        """
        pattern = self.pattern
        if self.gates > 1 and pattern.shape[-2] == self.gates * pattern.shape[-1]:
            pattern = pattern.unflatten(-2, (self.gates, -1))
        diagonal = pattern.diagonal(dim1=-2, dim2=-1)
        return bool(((diagonal == _FREE) | (or_negative & (diagonal == -1))).all())

    def extra_repr(self) -> str:
        """Return the number of entries of each kind, for ``repr``."""
        p = self.pattern
        counts = {"positive": p == 1, "negative": p == -1, "zero": p == 0, "free": p == _FREE}
        return ", ".join(f"{name}={int(where.sum())}" for name, where in counts.items())

    def _pattern_of(self, X: Tensor) -> Tensor:
        """Return the pattern for matrices X; raise if its shape fits neither X nor the weight of X."""
        # The average of equal patterns may have rounding errors, so the pattern is rounded to integers.
        pattern = self.pattern.real.round().to(X.device, X.dtype)
        if _fits(pattern.shape, X.shape):
            return pattern
        whole = self._layout.join(X).shape if self._layout != PLAIN else X.shape
        if pattern.shape == whole:
            return self._layout.split(pattern)
        own = f" or equals {tuple(whole)}" if whole != X.shape else ""
        raise ValueError(
            f"pattern: expected a shape that broadcasts to the weight's {tuple(X.shape)}{own}, got "
            f"{tuple(pattern.shape)}. Give the pattern one entry for each entry of the weight."
        )


def _fits(pattern: torch.Size, shape: torch.Size) -> bool:
    """Return whether a pattern broadcasts to matrices of a shape."""
    extra = len(shape) - len(pattern)
    # torch 2.6 can compile this zip only because both arguments have the same length.
    return (
        extra >= 0
        and pattern[-2:] == shape[-2:]
        and all(a in (1, b) for a, b in zip(pattern[:-2], shape[extra:-2], strict=True))
    )


def _contradicts(X: Tensor, pattern: Tensor) -> Tensor:
    """Return a mask of the entries of X that have the wrong sign."""
    return (pattern * X < 0) & (pattern != _FREE)
