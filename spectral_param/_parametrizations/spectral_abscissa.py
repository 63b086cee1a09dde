"""Matrices of given spectral abscissa: stable linear dynamics in continuous time."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from spectral_param import init
from spectral_param._eigen.dense import leading_eigentriple
from spectral_param._eigen.derivative import known_value, unseen_value
from spectral_param._eigen.triple import LeadingTriple, is_degenerate, rounding_tolerance
from spectral_param._map import Map
from spectral_param._matrices import identity_like
from spectral_param._parametrizations.bound import Bound, Measured, Measurement
from spectral_param._parametrizations.degenerate import UNTIL, warn_of_weight
from spectral_param._parametrizations.sign_pattern import SignPattern

Mode = Literal["equal", "at_most"]


class SpectralAbscissa(Measured):
    r"""Shifts a matrix so that its rightmost eigenvalue has a given real part: :math:`W = T - (α(T) - a) I`.

    :math:`α(T) = \max \mathrm{Re}\, λ_i(T)` is the asymptotic growth rate of :math:`\dot x = T x`. The system
    is stable for α < 0, as a discrete-time system is for ρ < 1. The shift moves all eigenvalues by the same
    real number. Eigenvectors, imaginary parts and the departure from normality do not change. The gradient
    is exact: :math:`dα/dT = \mathrm{Re}(\bar v u^T / (v^H u))` for the left and right eigenvectors v and u of
    the rightmost eigenvalue.

    Example:
        >>> layer = torch.nn.Linear(64, 64)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SpectralAbscissa(-0.1))
        >>> round(torch.linalg.eigvals(layer.weight).real.max().item(), 4)
        -0.1

    Args:
        abscissa: The spectral abscissa a, per unit of time: a number, or a tensor with one number for each
            matrix of a batch (each gate of an LSTM or GRU weight). The default is 0, the edge of stability.
            ``"present"`` means the abscissa that each matrix has at registration; the ``state_dict`` saves
            this number.
        mode: With ``"equal"``, the default, always α(W) = a. With ``"at_most"``, T is shifted only if
            α(T) > a. As long as T is shifted, the loss does not depend on multiples of I in T, so training
            alone never brings α(W) back below a. Call :func:`spectral_param.rebase` after each optimizer
            step, or pass ``optimizer=`` to :func:`spectral_param.constrain`.

    Raises:
        ValueError: If an argument is outside its range.

    The weight has shape ``(..., n, n)`` and is real or complex. After each optimizer step the first read
    costs one eigenvalue decomposition, and further reads cost almost nothing. Under torch.compile every read
    costs one eigenvalue decomposition.

    The distance of a weight from the set is ``|α(W) - a|`` with ``"equal"``, and max(α(W) - a, 0) with
    ``"at_most"``. ``project`` shifts W as the map does.

    Matrices without a derivative have defined results:

    - NaN or infinity in T, or an α that overflows, gives NaN in W and in the gradient.
    - If several eigenvalues are rightmost, the gradient of one of them is taken.
    - A rightmost eigenvalue counts as defective if its unit eigenvectors have :math:`|v^H u| ≤ 10\sqrt{eps}`,
      both with and without balancing. A defective eigenvalue has no usable derivative. For such a T the
      gradient treats α as a constant, and a :class:`~spectral_param.errors.DegenerateEigenvalueWarning` is
      emitted once.
    """

    ROUNDINGS = 4
    abscissa: Bound
    mode: Mode

    def __init__(self, abscissa: Bound = 0.0, mode: Mode = "equal") -> None:
        super().__init__("abscissa", abscissa, mode=(mode, Mode))

    def evaluate(self, T: Tensor) -> Map:  # type: ignore[override]
        """Return T - (α(T) - a) I, or T for matrices that the mode does not shift."""
        return self.made(T, leading_eigentriple(T, "real"))

    def made(self, T: Tensor, solution: LeadingTriple) -> Map:
        """Return T - (α(T) - a) I or T, using the rightmost eigenvalues and eigenvectors in ``solution``."""
        triple, regular = solution
        if isinstance(self.abscissa, str):  # After another parametrization, the first T determines "present".
            self._take_present(triple.eigenvalue.real)
        bound = self._bound_for(T)
        shift = triple.eigenvalue.real - bound
        active = self._active(shift)
        if not (regular or self._warned) and bool((active & is_degenerate(triple.right, triple.left)).any()):
            self._warned = True
            warn_of_weight(
                "SpectralAbscissa: the rightmost eigenvalue is defective, so the gradient treats its "
                f"real part as constant {UNTIL}."
            )
        of_alpha = known_value(T, triple, "real", regular)

        def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor]:
            trace = G.diagonal(dim1=-2, dim2=-1).sum(dim=-1).real
            (g,) = of_alpha.pull_back(-trace * active, needed)
            assert g is not None
            return (G + g,)

        def reference(T: Tensor) -> Tensor:
            return self._shifted(T, of_alpha.reference(T) - bound, active)

        return Map(self._shifted(T, shift, active), pull_back, reference)

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return T - (α(T) - a) I, or T for matrices that the mode does not shift, by torch's operations."""
        shift = unseen_value(T, "real") - self._bound_for(T)
        return self._shifted(T, shift, self._active(shift.detach()))

    def _shifted(self, T: Tensor, shift: Tensor, active: Tensor) -> Tensor:
        return T - torch.where(active, shift, 0)[..., None, None] * identity_like(T)

    def check_after(self, links: list[nn.Module]) -> None:
        """Raise if the shift would change a diagonal that a sign pattern fixes.

        Raises:
            ValueError: If the shift may change a diagonal entry whose sign, or whose value 0, is fixed by a
                :class:`spectral_param.SignPattern` before this constraint.
        """
        # With "at_most" the shift only decreases the diagonal, so negative entries stay negative.
        or_negative = self.mode == "at_most"
        patterns = [link for link in links if isinstance(link, SignPattern)]
        if not all(pattern.has_free_diagonal(or_negative=or_negative) for pattern in patterns):
            raise ValueError(
                "constraint: expected a SignPattern with NaN on the diagonal before SpectralAbscissa, which "
                "shifts the diagonal, got 1, 0 or -1 there. Set the diagonal of the pattern to NaN, for any "
                "sign: pattern.clone().fill_diagonal_(torch.nan). -1 may stay with mode='at_most'."
            )

    def _active(self, shift: Tensor) -> Tensor:
        """Return which matrices are shifted. A matrix with the shift NaN is shifted, so W becomes NaN."""
        return torch.ones_like(shift, dtype=torch.bool) if self.mode == "equal" else ~(shift <= 0)

    def measure(self, W: Tensor, eps: float) -> Measurement:
        """Return the spectral abscissa and its rounding error."""
        solution = leading_eigentriple(W, "real")
        triple = solution.triple
        return Measurement(triple.eigenvalue.real, rounding_tolerance(W, triple, eps), solution)

    def _stays(self, W: Tensor, moved: Tensor) -> Tensor:
        # A shift changes only the diagonal, so it is compared with the diagonal. Compared with larger entries
        # outside the diagonal, a shift could look like rounding.
        before, after = (X.diagonal(dim1=-2, dim2=-1) for X in (W, moved))
        return (after - before).abs().amax(dim=-1) <= self._least_change(W.dtype) * before.abs().amax(dim=-1)

    def start(self, like: Tensor) -> Tensor:
        """Return T with eigenvalues uniform on a disc of radius 1 that touches Re z = a from the left."""
        T = init.disc_(torch.empty_like(like))
        self._start_bound()
        shift = self._bound_for(T) - 1
        return T + shift[..., None, None] * identity_like(T)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"{self._shown()}, mode={self.mode!r}"
