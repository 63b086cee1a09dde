"""Matrices of given spectral radius: the short-term memory of the ENRNN, and stable linear maps."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spectral_param import init
from spectral_param.eigen import Eigentriple, dominant_eigentriple
from spectral_param.errors import DegenerateEigenvalueWarning, InManifoldError
from spectral_param.functional.checks import finfo_eps, is_plain, is_traced
from spectral_param.functional.spectral_radius import (
    condition_reciprocal,
    degenerate_threshold,
    is_degenerate,
    spectral_radius,
)
from spectral_param.parametrizations.base import Parametrization, real_entries
from spectral_param.parametrizations.eigentriple_memory import EigentripleMemory, Solver

Mode = Literal["equal", "at_most", "latched"]


class SpectralRadiusNorm(Parametrization):
    r"""Divides a matrix by its spectral radius: :math:`W = r\, T / (ρ(T) + ε)`.

    Source: Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory"
    (AAAI 2020), section 3.1. The gradient is Prop. 3.2 with 1/ρ in place of the printed 1/(ρ + ε) in
    front of its second term; both agree for ε = 0.

    Weights of shape ``(..., n, n)``, real or complex. Costs one eigenvalue decomposition per optimizer
    step, however often the weight is read (under torch.compile: per read).

    Degenerate matrices are defined, too:

    - NaN or infinity in T gives NaN in W and in the gradient.
    - Several eigenvalues of the largest modulus: the gradient of one of them. There is no second
      derivative at such a T; for equal eigenvalues (the identity) it comes out as NaN.
    - A dominant eigenvalue that is defective in working precision, :math:`|v^H u| ≤ 10\sqrt{eps}` for
      its unit eigenvectors, has no derivative: ρ is then taken for a constant.
    - ρ(T) = 0 to working precision, :math:`ρ ≤ n\, eps\, \max|T_{ij}|`: no multiple of T has the
      radius asked for, and W = T.

    The last two emit one :class:`~spectral_param.errors.DegenerateEigenvalueWarning`.

    Args:
        radius: The spectral radius r > 0, a number, or a tensor with one for each matrix of a batch
            (each gate of an LSTM or GRU weight).
        mode: ``"equal"``: ρ(W) = r always. ``"at_most"``: T is scaled only where ρ(T) > r.
            ``"latched"``: like ``"at_most"`` until the first time that ρ(T) > r in training, and like
            ``"equal"`` from then on, as the paper trains (section 4); each matrix of a batch by
            itself, saved in the ``state_dict``. Assigning a weight opens the latch again. Inside
            torch.func's transforms, which promise no side effects, the latch is read and never closed.
        eps: ε ≥ 0. 0, the default, is what the authors ran; a positive one makes ρ(W) < r. Modes other
            than ``"equal"`` then scale T where ρ(T) + ε > r.
        solver: ``"dense"`` computes all eigenvalues through LAPACK. ``"tracking"`` follows the dominant
            one from step to step, proves each result, and asks LAPACK when a proof fails (see
            "How it is followed from step to step" in the derivation). λ is right to working precision,
            u and v in the gradient to its root. ``"auto"``: ``"tracking"`` from n = 96 on, where it is
            faster.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> layer = torch.nn.Linear(64, 64)
        >>> register_parametrization(layer, "weight", spectral_param.SpectralRadiusNorm())
        ParametrizedLinear(...)
        >>> torch.linalg.eigvals(layer.weight).abs().max().item()
        1.0...
    """

    latched: Tensor | None

    def __init__(
        self,
        radius: float | Tensor = 1.0,
        mode: Mode = "equal",
        eps: float = 0.0,
        solver: Solver = "auto",
    ) -> None:
        super().__init__()
        for name, value, choices in (
            ("mode", mode, get_args(Mode)),
            ("solver", solver, get_args(Solver)),
        ):
            if value not in choices:
                raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}.")
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps: expected a finite number >= 0, got {eps!r}. The usual one is 0.")
        if isinstance(radius, nn.Parameter):
            raise ValueError("radius: expected a number or a tensor, got a Parameter. It is not trained.")
        values = torch.as_tensor(radius, dtype=torch.float64, device="cpu").detach()
        if not bool(((values > 0) & values.isfinite()).all()):
            raise ValueError(
                f"radius: expected finite positive numbers, got {radius!r}. "
                "For a weight that forgets at once, use a small radius, not zero."
            )
        # A tensor stays float64 on the host, so that a trip through bfloat16 does not change it.
        self.radius = values.clone() if values.ndim > 0 else values.item()
        self.mode = mode
        self.eps = eps
        self.solver = solver
        self.register_buffer("latched", None)
        self._eigentriples = EigentripleMemory(solver)
        self._warned = False

    assignable_behind = True

    def constrain(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return r T / (ρ(T) + ε) where the mode asks for it, T elsewhere."""
        radius = self._radius_for(T)
        rho, defective = self._spectral_radius(T)
        active = self._active(rho, radius)
        nilpotent = rho <= _rounding(T, finfo_eps(T.dtype))
        scaled = active & ~nilpotent
        divisor = torch.where(scaled, self._shifted(rho), 1)
        # r/ρ, in steps whose derivatives stay within the range of numbers as long as r/ρ does: r/ρ² does not.
        size = divisor.detach()
        factor = torch.where(scaled, radius / (divisor / size) / size, 1)
        if defective is not None and not self._warned:
            self._warn(active & nilpotent, active & defective)
        return T * factor[..., None, None]

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Tensor:
        """Return T, a multiple of W: W itself unless W has to be moved or ε > 0."""
        radius = self._radius_for(W)
        triple = dominant_eigentriple(W)
        rho, tolerance = triple.eigenvalue.abs(), _tolerance(W, triple, eps)
        nilpotent = rho <= _rounding(W, eps)
        # With ε > 0 the set is the open disc ρ < r: its edge belongs to T = ∞.
        edge = radius - _tolerance(W, triple, finfo_eps(W.dtype)) if self.eps > 0 else radius + tolerance
        outside = rho > edge
        if self.mode == "equal" and self.eps == 0:
            outside = ((rho - radius).abs() > tolerance) & ~nilpotent
        if not project and bool(outside.any()):
            self._raise_outside(rho, radius)

        factor = torch.where(outside, radius / rho, 1)
        if self.eps > 0:
            # T = cW is mapped to W for c = ε/(r - ρ). Where T is not scaled, below r - ε, c is 1.
            c = self.eps / torch.where(outside, 1, radius - rho)
            c = c if self.mode == "equal" else c.clamp(min=1)
            factor = torch.where(outside | nilpotent, factor, c)
        if self.mode == "latched":
            self.latched = outside
        self._eigentriples.forget()
        self._warned = False
        return W * factor[..., None, None]

    def start(self, like: Tensor) -> Tensor:
        """Return T with eigenvalues of uniform modulus and angle: eq. (5), times the radius."""
        T = init.disc_(torch.empty_like(like))
        if self.mode == "latched":
            self.latched = torch.zeros(T.shape[:-2], dtype=torch.bool, device=T.device)
        radius = self._radius_for(T).expand(T.shape[:-2])
        return T * radius[..., None, None]

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries of T, a complex one counted as two."""
        return real_entries(T)

    def get_extra_state(self) -> Tensor:
        """Return what tracking needs to go on from a checkpoint to the same bits; else an empty tensor.

        That is two blocks of vectors and T as of the last read, as float64 numbers.
        """
        return self._eigentriples.pack()

    def set_extra_state(self, state: Tensor) -> None:
        """Go on from a checkpoint.

        Args:
            state: What :meth:`get_extra_state` returned.
        """
        self._eigentriples.unpack(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # A checkpoint without a tracked state, of a plain dictionary of tensors for instance, is complete.
        state_dict.setdefault(f"{prefix}_extra_state", torch.zeros(0, dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        chosen: str = self.solver
        if self.solver == "auto" and self._shape is not None:
            chosen = "auto: tracking" if self._eigentriples.tracks(self._shape[-1]) else "auto: dense"
        return f"radius={self.radius}, mode={self.mode!r}, eps={self.eps}, solver={chosen!r}"

    def _shifted(self, rho: Tensor) -> Tensor:
        """Return ρ + ε, of rho's dtype also where torch.func's dual numbers would promote a scalar."""
        return rho if self.eps == 0 else rho + torch.full_like(rho, self.eps)

    def _radius_for(self, T: Tensor) -> Tensor:  # -> broadcasts against (..., k) or (...)
        if not isinstance(self.radius, Tensor):
            # Not from the host, which on a device would wait for the copy.
            return T.real.new_full((), self.radius)
        radius = self.radius.to(T.real.dtype).to(T.device, non_blocking=True)
        try:
            torch.broadcast_to(radius, T.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"radius: expected a number or a tensor that broadcasts to {tuple(T.shape[:-2])}, one "
                f"radius for each matrix, got shape {tuple(radius.shape)}."
            ) from None
        return radius

    def _spectral_radius(self, T: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ρ(T), and where its eigenvalue is defective unless that is known or cannot be looked at."""
        if is_traced(T):
            return spectral_radius(T), None
        triple = self._eigentriples.read(T)
        rho = triple.eigenvalue.abs()
        if is_plain(T) and self._eigentriples.followed:
            return rho, None
        return rho, is_degenerate(triple.right, triple.left)

    def _active(self, rho: Tensor, radius: Tensor) -> Tensor:
        """Return which matrices are normalised. A NaN radius counts, so that W becomes NaN."""
        if self.mode == "equal":
            return torch.ones_like(rho, dtype=torch.bool)
        # Rounding alone neither scales a weight nor closes a latch.
        limit = radius * (1 + 32 * finfo_eps(rho.dtype))
        above = ~(self._shifted(rho) <= limit)
        if self.mode == "at_most":
            return above
        if self.latched is None:
            self.latched = torch.zeros_like(rho, dtype=torch.bool)
        # torch.func's transforms promise no side effects, so inside them the latch is only read.
        if self.training and (is_plain(rho) or torch.compiler.is_compiling()):
            self.latched.logical_or_(self._shifted(rho) > limit)
        return above | self.latched

    def _warn(self, nilpotent: Tensor, defective: Tensor) -> None:
        if not is_plain(nilpotent):
            return
        if bool(nilpotent.any()):
            reason = "the spectral radius is zero, so no multiple of T has the radius asked for: W = T"
        elif bool(defective.any()):
            reason = (
                "the dominant eigenvalue is defective and has no derivative: "
                "its modulus is taken for a constant"
            )
        else:
            return
        self._warned = True
        warnings.warn(
            f"SpectralRadiusNorm: {reason} in this precision, until T moves away from such matrices.",
            DegenerateEigenvalueWarning,
            stacklevel=6,  # through constrain, forward and torch's own two calls: the line that reads
        )

    def _raise_outside(self, rho: Tensor, radius: Tensor) -> None:
        relation = "<" if self.eps > 0 else "=" if self.mode == "equal" else "<="
        raise InManifoldError(
            f"SpectralRadiusNorm: expected a weight of spectral radius {relation} "
            f"{_readable(radius)}, got {_readable(rho)}. Assign weight * (radius / "
            "spectral_param.functional.spectral_radius(weight)) instead, or remove the parametrization, "
            "set the weight and register a new instance, which projects it."
        )


def _readable(values: Tensor) -> str:
    return ", ".join(f"{value:.6g}" for value in values.flatten().tolist())


def _rounding(T: Tensor, eps: float) -> Tensor:  # (..., n, n) -> (...)
    """Return n·eps·max|T_ij|, at and below which an eigenvalue cannot be told from zero."""
    largest: Tensor = T.detach().abs().amax(dim=(-2, -1))
    return T.shape[-1] * eps * largest


def _tolerance(W: Tensor, triple: Eigentriple, eps: float) -> Tensor:  # -> (...)
    """Return how far ρ may be off for rounding alone: ten roundings, times λ's condition number."""
    floor = degenerate_threshold(W.dtype)
    return 10 * _rounding(W, eps) / condition_reciprocal(triple.right, triple.left).clamp(min=floor)
