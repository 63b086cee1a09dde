"""Matrices of given spectral radius: the short-term memory of the ENRNN, and stable linear maps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from spectral_param import init
from spectral_param._context import is_traced
from spectral_param._eigen import proof
from spectral_param._eigen.dense import dominant_eigentriple
from spectral_param._eigen.derivative import divided_by_modulus, known_value
from spectral_param._eigen.solver import Name, RadiusFollower, Solver
from spectral_param._eigen.triple import Eigentriple, LeadingTriple, is_degenerate, rounding_tolerance
from spectral_param._map import Map, attach, recorded, unchanged, where
from spectral_param._parametrizations.bound import Bound, Measured, Measurement
from spectral_param._parametrizations.degenerate import UNTIL, warn_of_weight
from spectral_param._parametrizations.in_set import frozen
from spectral_param._scale import divided, rescaled

Mode = Literal["equal", "at_most", "latched"]
Of = Literal["weight", "absolute"]


class SpectralRadiusNorm(Measured):
    r"""Divides a matrix by its spectral radius: :math:`W = r\, T / ρ(T)`.

    ρ(W) = r with ``mode="equal"``, the default, and ρ(W) ≤ r with ``"at_most"``. The spectral radius
    determines the growth or decay of long products of W. The spectral radius does not bound a single step or
    a network with ReLU; :class:`spectral_param.SpectralNorm` bounds both.

    Example:
        >>> layer = torch.nn.Linear(64, 64)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SpectralRadiusNorm())
        >>> round(torch.linalg.eigvals(layer.weight).abs().max().item(), 4)
        1.0

    Args:
        radius: The spectral radius r > 0: a number, or a tensor with one number for each matrix of a batch
            (each gate of an LSTM or GRU weight). ``"present"`` means the radius that each matrix has at
            registration, so that a trained network keeps its outputs. The ``state_dict`` saves a radius that
            is a tensor, was found by ``"present"``, or was set later, but not a number given to the
            constructor.
        mode: With ``"equal"``, the default, always ρ(W) = r. With ``"at_most"``, T is scaled only if
            ρ(T) > r. As long as T is scaled, the loss does not depend on ρ(T), so training alone never brings
            ρ(W) back below r. Call :func:`spectral_param.rebase` after each optimizer step, pass
            ``optimizer=`` to :func:`spectral_param.constrain`, or take :class:`spectral_param.LyapunovForm`,
            with which ρ(W) can slowly come back. ``"latched"`` means ``"at_most"`` until ρ(T) > r for the
            first time in training. At this time a latch closes, and from then on ``"latched"`` means
            ``"equal"``. The paper trains in this way (section 4), and so does
            :class:`spectral_param.nn.ENRNN` by default. Each matrix of a batch has its own latch, saved in
            the ``state_dict``. Assigning a weight opens the latch. Transforms of torch.func, which allow no
            side effects, do not close the latch.
        solver: ``"dense"`` computes all eigenvalues by LAPACK. ``"tracking"`` follows the dominant eigenvalue
            from step to step, proves each result, and calls LAPACK if a proof fails (see "How it is tracked
            from step to step" in the derivation). Tracked eigenvalues have errors of the working precision ε,
            and the gradients of tracked eigenvalues have errors of about √ε. ``"auto"``, the default, means
            ``"tracking"`` from n = 96 on, where tracking is faster, else ``"dense"``. The tracking state is a
            cache and is not saved: a resumed run differs from an uninterrupted run by rounding. The argument
            may also be a :class:`spectral_param.Solver` of your own.
        of: ``"weight"``, the default, constrains ρ(W). ``"absolute"`` constrains ρ(\|W\|), the spectral
            radius of the absolute values of the entries; ρ above then means ρ(\|W\|). With ρ(\|W\|) < 1, the
            equation z = φ(W z + u) has one solution z for every u and every φ that acts entry by entry and is
            1-Lipschitz, such as ReLU or tanh, and iterating the equation finds this solution (El Ghaoui, Gu,
            Travacca, Askari and Tsai, "Implicit Deep Learning", SIAM J. Math. Data Sci. 2021). ρ(W) < 1 does
            not suffice for this property, and ‖W‖_∞ < 1 is stronger than necessary.

    Raises:
        ValueError: If an argument is outside its range.

    Source: Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory"
    (AAAI 2020), section 3.1, with ε = 0 as in the authors' experiments; the gradient is given in Prop. 3.2.

    The weight has shape ``(..., n, n)`` and is real or complex. After each optimizer step the first read
    costs one eigenvalue decomposition (from n = 96 on usually much less), and further reads cost almost
    nothing. With ``"at_most"`` or ``"latched"``, a few matrix products replace the decomposition if these
    products prove that ρ(T) ≤ r (for a single matrix on the host that is not tracked). Under torch.compile
    every read costs as much as the first read.

    The distance of a weight from the set is ``|ρ(W) - r|``. With ``"at_most"`` or an open latch, the distance
    is max(ρ(W) - r, 0). ``project`` scales W as the map does, and does not change latches.

    Matrices without a derivative have defined results:

    - NaN or infinity in T gives NaN in W and in the gradient.
    - If several eigenvalues have the largest modulus, the gradient of one of them is taken. The second
      derivative of ρ does not exist for such a T; for equal eigenvalues, as of the identity, the computed
      second derivative is NaN.
    - A dominant eigenvalue counts as defective if its unit eigenvectors have :math:`|v^H u| ≤ 10\sqrt{eps}`,
      both with and without balancing. A defective eigenvalue has no usable derivative. For such a T the
      gradient treats ρ as a constant.
    - If ρ(T) is zero in working precision, :math:`ρ ≤ n\, eps\, \max\sqrt{|T_{ij} T_{ji}|}`, or if 1/ρ
      overflows in the weight's dtype, no multiple of T has spectral radius r, so W = T.

    For a defective eigenvalue and for a ρ(T) of zero, a
    :class:`~spectral_param.errors.DegenerateEigenvalueWarning` is emitted once.
    """

    # ρ may exceed r by this many rounding errors before a weight is scaled or a latch closes.
    ROUNDINGS = 32
    radius: Bound
    keeps_non_finite = True
    mode: Mode
    of: Of
    tracking: RadiusFollower

    def __init__(
        self,
        radius: Bound = 1.0,
        mode: Mode = "equal",
        solver: Solver | Name = "auto",
        of: Of = "weight",
    ) -> None:
        super().__init__("radius", radius, mode=(mode, Mode), of=(of, Of))
        self.register_buffer("latched", None)
        # The follower is not part of the constraint's state, because it changes the weight only by rounding.
        vars(self)["tracking"] = RadiusFollower(solver)

    @property
    def solver(self) -> Solver | str:
        """The solver, or the name of a solver, that the constructor was given."""
        return self.tracking.choice

    def evaluate(self, T: Tensor) -> Map:  # type: ignore[override]
        """Return r T / ρ(T), or T for matrices that the mode does not scale; in training, close latches."""
        if self.mode != "equal" and self._is_slack(T):
            return unchanged(T)
        return self.made(T, self.tracking.follow(self._measured(T)))

    def made(self, T: Tensor, solution: LeadingTriple) -> Map:
        """Return r T / ρ(T) or T, using the dominant eigenvalues and eigenvectors in ``solution``."""
        triple, regular = solution
        if isinstance(self.radius, str):  # After another parametrization, the first T determines "present".
            self._take_present(triple.eigenvalue.abs())
        if not regular:
            return self._evaluate_any(T, triple)
        radius = self.radius if isinstance(self.radius, float) else self._bound_for(T)
        active = None
        if self.mode != "equal":
            # For one matrix on the host, ρ is a Python number, which is faster than a tensor.
            one = T.ndim == 2 and T.is_cpu
            size = abs(triple.eigenvalue.item()) if one else triple.eigenvalue.abs()
            self._close_latches(size, T)
            active = self._active(size, T)
            if active is False:
                return unchanged(T)
        divided_map = self._of_absolute if self.of == "absolute" else divided_by_modulus
        W = divided_map(T, triple, radius)
        return where(active[..., None, None], W, T) if isinstance(active, Tensor) else W

    def _of_absolute(self, T: Tensor, triple: Eigentriple, radius: Tensor | float) -> Map:
        """Return r T / ρ(|T|), if ρ(|T|) is a simple eigenvalue of |T| and not zero."""
        rho = known_value(T.abs(), triple, regular=True)

        def quotient(rho_of: Callable[[Tensor], Tensor], T: Tensor) -> Tensor:
            return T * (radius / rho_of(T.abs()))[..., None, None]

        evaluation = functools.partial(quotient, functools.partial(attach, rho))
        return recorded(evaluation, T, reference=functools.partial(quotient, rho.reference))

    def _evaluate_any(self, T: Tensor, triple: Eigentriple) -> Map:
        """Return the weight for matrices of extreme size or without a derivative."""
        # For T near the limits of the dtype, ρ or 1/ρ overflows, although W does not depend on T's size.
        _, scale = rescaled(T)
        size = triple.eigenvalue.abs()
        # All flags come in one transfer from the device: whether a size is extreme, and the two flags of
        # _doubts, which are valid only if no size is extreme.
        is_extreme, *doubts = torch.stack(
            [(scale != 1).any(), *self._doubts(T, scale, triple, size)]
        ).tolist()
        if is_extreme:
            triple = self._divided(triple, T, scale)
            size = triple.eigenvalue.abs() * scale[..., 0, 0]
            doubts = torch.stack(self._doubts(T, scale, triple, size)).tolist()
        if any(doubts) and not self._warned:
            self._warn(*doubts)
        self._close_latches(size, T)
        rho = known_value(self._measured(divided(T, scale)), triple)
        known, active, bound = frozen(self), self._active(size, T), self._bound_for(T)
        return recorded(lambda T: known._quotient(T, rho.reference, active, bound), T)

    @property
    def by_map_alone(self) -> str:  # type: ignore[override]
        """The reason why no optimizer can hold a weight in the set with ``"latched"``; else empty."""
        if self.mode != "latched":
            return ""
        return (
            "the checkpoint of a plain weight cannot save a latch (take 'at_most', and set mode to 'equal' "
            "where the latch would close)"
        )

    @property
    def depends_on_training(self) -> bool:  # type: ignore[override]
        """Whether a read in training may close a latch."""
        return self.mode == "latched"

    def _is_slack(self, T: Tensor) -> bool:
        """Return whether a few matrix products prove that T is not scaled; False for a batch of matrices."""
        if T.ndim > 2 or not T.is_cpu or T.shape[-1] >= self.tracking.least_size:
            return False
        radius = self.radius if isinstance(self.radius, float) else self._number()
        if radius is None or (self.mode == "latched" and self._closed(0.0, T)):
            return False
        return proof.has_radius_below(self._measured(T), radius)

    def _divided(self, triple: Eigentriple, T: Tensor, scale: Tensor) -> Eigentriple:
        """Return λ and eigenvectors of T/scale, computed anew if the λ of T has overflowed or lost digits."""
        limits, size = torch.finfo(T.dtype), triple.eigenvalue.abs()
        exact = (size > limits.tiny / limits.eps) & (size < limits.max)
        if bool((exact | (scale[..., 0, 0] == 1)).all()):
            return triple._replace(eigenvalue=divided(triple.eigenvalue[..., None, None], scale)[..., 0, 0])
        return self.tracking.follow(self._measured(divided(T, scale))).triple

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return r T / ρ(T), or T for matrices that the mode does not scale."""
        # Transforms of torch.func allow no side effects. In these transforms, is_traced returns False.
        if self.mode == "latched" and is_traced(T):
            S, scale = rescaled(T.detach())
            self._close_latches(self.tracking.recorded(self._measured(S)) * scale[..., 0, 0], T)
        return self._quotient(T, self.tracking.recorded, None, self._bound_for(T))

    def _quotient(
        self, T: Tensor, radius_of: Callable[[Tensor], Tensor], active: Tensor | None, bound: Tensor
    ) -> Tensor:
        S, scale = rescaled(T)
        A, scale = self._measured(S), scale[..., 0, 0]
        rho = radius_of(A)
        active = self._active((rho * scale).detach(), T) if active is None else active
        divided_by = active & ~_nilpotent(A, rho, scale)
        divisor = torch.where(divided_by, rho, 1) / bound
        return torch.where(divided_by[..., None, None], S / divisor[..., None, None], T)

    def _doubts(self, T: Tensor, scale: Tensor, triple: Eigentriple, size: Tensor) -> list[Tensor]:
        """Return two flags: whether a dominant eigenvalue is zero, and whether one is defective."""
        active = self._active(size, T)
        S, scale = self._measured(divided(T, scale)), scale[..., 0, 0]
        nilpotent = active & _nilpotent(S, triple.eigenvalue.abs(), scale)
        return [nilpotent.any(), (active & is_degenerate(triple.right, triple.left)).any()]

    def _warn(self, is_zero: bool, is_defective: bool) -> None:
        reason = "the dominant eigenvalue is defective, so the gradient treats its modulus as constant"
        if is_zero:
            reason = "the spectral radius is zero, so no multiple of T has the given radius, and W = T"
        self._warned = True
        warn_of_weight(f"SpectralRadiusNorm: {reason} {UNTIL}.")

    def measure(self, W: Tensor, eps: float) -> Measurement:
        """Return the spectral radius and its rounding error."""
        S, scale = rescaled(W)
        A = self._measured(S)
        solution = self.tracking.follow(A)
        triple, is_scaled, scale = solution.triple, bool((scale != 1).any()), scale[..., 0, 0]
        rounding = scale * rounding_tolerance(A, triple, eps)
        return Measurement(scale * triple.eigenvalue.abs(), rounding, None if is_scaled else solution)

    def start(self, like: Tensor) -> Tensor:
        """Return T whose eigenvalues have uniform moduli and angles: eq. (5) of the paper, times r."""
        T = init.disc_(torch.empty_like(like))
        if self.of == "absolute":
            T = T / dominant_eigentriple(T.abs()).eigenvalue.abs()[..., None, None]
        if self.mode == "latched":
            self.latched = torch.zeros_like(T.real[..., 0, 0])
        self._start_bound()
        self.tracking.forget()
        return T * self._bound_for(T)[..., None, None]

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        chosen = self.solver
        if chosen == "auto" and self._shape is not None:
            chosen = "auto: tracking" if self._shape[-1] >= self.tracking.least_size else "auto: dense"
        of = "" if self.of == "weight" else f", of={self.of!r}"
        return f"{self._shown()}, mode={self.mode!r}, solver={chosen!r}{of}"

    def _measured(self, T: Tensor) -> Tensor:
        """Return the matrix whose spectral radius is constrained: T, or the absolute values of T."""
        return T.abs() if self.of == "absolute" else T

    def _active(self, rho: Any, T: Tensor) -> Any:
        """Return which matrices are scaled; ρ is a tensor or, for one matrix, a number.

        A matrix with ρ = NaN is scaled, so that W becomes NaN.
        """
        if self.mode == "equal":
            return torch.ones_like(rho, dtype=torch.bool)
        above = self._exceeds(rho, T) | (rho != rho)
        if self.mode == "at_most" or above is True:
            return above
        return above | self._closed(rho, T)

    def _exceeds(self, rho: Any, T: Tensor) -> Any:
        """Return which matrices have ρ > r by more than rounding."""
        number = None if isinstance(rho, Tensor) else self._number()
        radius: Any = self._bound_for(T) if number is None else number
        return rho > radius * (1 + self.ROUNDINGS * torch.finfo(T.dtype).eps)

    def _closed(self, rho: Any, T: Tensor) -> Any:
        """Return which latches are closed: a tensor, or a bool if ρ is a number."""
        if self.latched is None:
            self.latched = T.real.new_zeros(T.shape[:-2])
        latched = self.latched.real  # Module.to(complex) makes the buffer complex.
        return latched > 0.5 if isinstance(rho, Tensor) else latched.item() > 0.5

    def _close_latches(self, rho: Any, T: Tensor) -> None:
        """In training, close the latches of matrices with ρ > r."""
        if not (self.training and self.mode == "latched"):
            return
        above = self._exceeds(rho, T)
        if isinstance(above, Tensor):
            closed = self._closed(rho, T)
            assert self.latched is not None
            self.latched.copy_((closed | above).to(self.latched.dtype))
        elif above and not self._closed(rho, T):
            assert self.latched is not None
            self.latched.fill_(1)

    def _set_name(self) -> str:
        name = super()._set_name()
        return name if self.of == "weight" else name.replace("radius", "radius of the absolute values")


def _nilpotent(S: Tensor, rho: Tensor, scale: Tensor) -> Tensor:  # (..., n, n), (...), (...) -> (...)
    """Return which matrices S have a ρ(S) of zero in working precision, or a 1/ρ(scale·S) that overflows."""
    return (rho <= _rounding(S, torch.finfo(S.dtype).eps)) | (rho * scale < torch.finfo(S.dtype).tiny)


def _rounding(T: Tensor, eps: float) -> Tensor:  # (..., n, n) -> (...)
    """Return n·eps·max sqrt|T_ij T_ji|; an eigenvalue of at most this modulus counts as zero.

    Like the eigenvalues, max sqrt|T_ij T_ji| does not change if coordinates are scaled, T -> D⁻¹TD with a
    diagonal D. This maximum is at most the largest modulus of an entry, and zero for a strictly triangular
    matrix.
    """
    roots = T.detach().abs().sqrt()
    largest: Tensor = (roots * roots.mT).amax(dim=(-2, -1))
    return T.shape[-1] * eps * largest
