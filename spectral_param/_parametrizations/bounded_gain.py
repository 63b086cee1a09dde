"""Linear systems of bounded gain, parametrized together with the storage function that proves the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from spectral_param import init
from spectral_param._context import HALF
from spectral_param._map import Map
from spectral_param._matrices import decomposed, identity_like
from spectral_param._parametrizations.layout import Layout, Slices
from spectral_param._parametrizations.searched import Searched
from spectral_param._parametrizations.tensors import is_trained
from spectral_param._precision import relative_rounding, to_double
from spectral_param.errors import InManifoldError, NotAMatrixError
from spectral_param.functional._bounded_gain import (
    block_scales,
    bounded,
    change,
    evaluate,
    gain_of,
    in_units,
    originals,
    units,
)
from spectral_param.functional._checks import check_real, check_tensor, is_finite, whole_number
from spectral_param.functional._lyapunov import contraction_inverse
from spectral_param.functional._rooms import Attempt, nearest

# The gain is reduced below the bound by these relative distances, in order, until the bound can be proven.
# The gain of a weight outside the set is reduced by at least 1e-6 below the bound, because the map is flat on
# the bound.
_MARGINS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1)
_INSIDE = 1e-6
# Relative error of a computed gain.
_KNOWN = 1e-9
# An unstable A is scaled to this fraction of the bound of its spectral radius.
_STABLE = 0.99


class BoundedGain(Searched):
    r"""System :math:`x^+ = Ax + Bu,\; y = Cx + Du` of bounded gain, as the weight [[A, B], [C, D]].

    From x = 0, the outputs have :math:`\sum ‖y_t‖^2 ≤ γ^2 \sum ‖u_t‖^2` for every sequence of inputs: the
    gain, or H∞ norm, is at most γ. The bound γ holds for all originals, and also after the weight is rounded
    to its dtype, except for underflow in float16.

    Example:
        >>> system = torch.nn.Linear(8 + 2, 8 + 3)
        >>> system = spectral_param.constrain(system, "weight", spectral_param.BoundedGain(2.0, states=8))
        >>> A, B = system.weight[:8].split([8, 2], dim=-1)
        >>> C, D = system.weight[8:].split([8, 2], dim=-1)
        >>> spectral_param.analysis.h_infinity(A, B, C, D) <= 2.0 * (1 + 1e-9)
        True

    Args:
        gain: The bound γ > 0.
        states: The number n of states: A is the n x n block at the upper left.
        radius: The bound r of the spectral radius of A, 0 < r ≤ 1. The default is 1. With r < 1 the gain is
            at most γ also for signals weighted by :math:`r^{-t}`, so the system forgets past inputs at the
            rate r. With a radius r, the gain is the largest norm of C(zI - A)⁻¹B + D for \|z\| ≥ r.
        moduli: The least and the largest modulus of the eigenvalues of A, divided by r, for ``init="paper"``.
            Both numbers are at least 0 and below 1. A mode of modulus m decays to m^k in k steps: for long
            memories take numbers close to 1.

    Raises:
        ValueError: If an argument is outside its range; at registration, if the weight does not have more
            rows and more columns than states, or if the gain cannot be proven in the weight's dtype.
        UnsupportedDtypeError: If the weight is complex.

    .. math:: W = S^{-1} (K^T K + I/4)^{-1} K^T S', \quad S = \mathrm{diag}(T, I),\; S' = \mathrm{diag}(T, γI)

    This formula is for r = 1. W has a gain of at most γ for every K and every invertible T, and every system
    with a gain below γ and ρ(A) < 1 has this form. The derivation stands above the code in
    ``spectral_param/functional/_bounded_gain.py``. Sources: the bounded real lemma; Massai and
    Ferrari-Trecate, "Free parametrization of L2-bounded state space models" (2025), whose parametrization
    reaches all such systems if they have as many inputs as outputs.

    The weight has shape ``(..., n + p, n + m)`` for m inputs and p outputs, and is real. The originals are K
    of shape ``(..., n + m, n + p)`` and T of shape ``(..., n, n)``, but only the upper triangle of T is used.
    A step takes one Cholesky factorization, triangular solves and products in double precision. No
    eigenvalues are computed.

    Registration starts from the given weight. A weight outside the set keeps its frequency response up to a
    factor s = γ/gain: D is multiplied by s, and B and C by √s. Before this scaling, an A that is not stable
    up to rounding is scaled to the spectral radius 0.99 r. If rounding errors are too large to prove the
    gain, as for long series of filters in single precision, the factor s is smaller, by at most 10 %. The
    check first scales the states so that the couplings are balanced; so B and C may be of very different
    sizes. A weight whose gain cannot be proven at all is refused: for instance, ten or more states in series
    with couplings of 1000.

    A weight assigned later must have a gain of at most γ, up to rounding. The originals found for an assigned
    weight must reproduce each of the blocks A, B, C and D to a relative error of 1e-6, or to rounding if
    rounding is larger.
    The bound on the gain assumes that the state is zero at time 0. A state x at time 0 adds at most xᵀPx to
    the sum of ‖y‖², see :meth:`certificate`.

    On the bound the map's derivative towards the inside is zero, as for every smooth map onto this set. So
    training reaches the bound and leaves the bound again, but slowly. If the speed matters, start from a
    weight with a smaller gain.

    The distance of a weight from the set is the excess of its gain over γ. It says what the search can
    prove in the weight's precision: for a gain of at most γ that rounding errors do not let the search prove,
    the distance is the relative one to the weight whose gain is proven. The weight that the layer itself has
    computed is proven by its originals, so its distance is 0. ``project`` returns the weight
    with which training would start after registration, a little inside the set.
    """

    shapes = "any"
    acts_after = False

    def __init__(
        self,
        gain: float,
        states: int,
        radius: float = 1.0,
        *,
        moduli: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__()
        if not (is_finite(gain) and gain > 0):
            raise ValueError(
                f"gain: expected a finite number > 0, got {gain!r}. For outputs of zero take no system."
            )
        if not (is_finite(radius) and 0 < radius <= 1):
            raise ValueError(
                f"radius: expected a number, 0 < radius <= 1, got {radius!r}. Beyond 1 no gain is finite: "
                "take LyapunovForm(radius) for A alone."
            )
        try:
            low, high = map(float, moduli)
        except (TypeError, ValueError):
            low = high = math.nan
        if not 0 <= low <= high < 1:
            raise ValueError(f"moduli: expected two numbers, 0 <= least <= largest < 1, got {moduli!r}.")
        self.moduli = (low, high)
        self.gain, self.radius = float(gain), float(radius)
        self.states = whole_number(states, "states")

    def reference(self, K: Tensor, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return W for K ``(..., n + m, n + p)`` and T ``(..., n, n)``."""
        return bounded(K, T, self.gain, self.radius, self._eps_of(K))

    def evaluate(self, K: Tensor, T: Tensor) -> Map:  # type: ignore[override]
        """Return W, as a map with a hand-written gradient."""
        return evaluate(K, T, self.gain, self.radius, self._eps_of(K))

    def search(self, W: Tensor, eps: float) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the originals, found in double precision, and the excess of the gain over its bound.

        If the gain of a weight on the bound cannot be proven, a system farther inside is taken, and the
        relative distance to this system is returned in place of the excess.

        Raises:
            InManifoldError: If no gain can be proven in the dtype of the weight.
        """
        exact = to_double(W.detach().cpu())
        exact = exact / block_scales(exact, self.states, self.radius, 1.0, self.gain)
        dtype = self.dtype if self.dtype in HALF else W.dtype
        found, distances = zip(
            *(self._inverse(V, dtype, eps) for V in exact.reshape(-1, *W.shape[-2:])), strict=True
        )
        distance = torch.tensor(distances, dtype=W.dtype, device=W.device).reshape(W.shape[:-2])
        return self._originals(W, [*found]), distance

    def start(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return originals for an A whose eigenvalues are uniformly distributed between the two moduli.

        B and C are random, and a little smaller than the bound on the gain allows, because the map is flat on
        the bound. T is the identity.
        """
        n, (p, m) = self.states, (size - self.states for size in like.shape[-2:])
        batch = like.shape[:-2]
        low, high = (modulus**2 for modulus in self.moduli)
        A = init.henaff_(torch.empty(*batch, n, n, dtype=torch.float64, device="cpu"))
        # Both rows of a 2x2 rotation in A get the same modulus.
        uniform = torch.rand(*batch, (n + 1) // 2, dtype=torch.float64, device="cpu")
        moduli = (low + (high - low) * uniform).sqrt()
        moduli = moduli.repeat_interleave(2, dim=-1)[..., :n]
        A, rest = A * moduli[..., None], (1 - moduli.square()).sqrt()
        # [[A, R], [R, -Aᵀ]] is orthogonal for R = diag(rest), which commutes with A.
        left = _contraction(torch.randn(*batch, n, m, dtype=torch.float64, device="cpu"))
        right = _contraction(torch.randn(*batch, p, n, dtype=torch.float64, device="cpu"))
        above = torch.cat([A, rest[..., None] * left], dim=-1)
        below = torch.cat([right * rest[..., None, :], -right @ A.mT @ left], dim=-1)
        V = torch.cat([above, below], dim=-2).reshape(-1, n + p, n + m)
        return self._originals(like, [(contraction_inverse(each), identity_like(A)) for each in V])

    def free_parameters(self, K: Tensor, T: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries of W, the dimension of the set."""
        entries = K.numel() if is_trained(K) else 0
        n = self.states
        return max(entries, min(T.numel() // n * (n + 1) // 2, K.numel())) if is_trained(T) else entries

    @torch.no_grad()
    def certificate(self, K: Tensor, T: Tensor) -> Tensor:
        r"""Return the matrix P of the storage function xᵀPx that proves the bound γ on the gain.

        In each step :math:`x_{t+1}^T P x_{t+1}/r^2 + ‖y_t‖^2 ≤ x_t^T P x_t + γ^2 ‖u_t‖^2`. So from any x₀ the
        outputs have :math:`\sum ‖y_t‖^2 ≤ x_0^T P x_0 + γ^2 \sum ‖u_t‖^2`.

        Args:
            K: The first original.
            T: The second original.

        Returns:
            P = TᵀT of shape ``(..., n, n)``, in double precision.
        """
        check_tensor(K, "certificate: K")
        T = to_double(T).triu()
        return T.mT @ T

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"gain={self.gain}, states={self.states}, radius={self.radius}"

    # Implementation -----------------------------------------------------------------------------------

    def _layout_of(self, W: Tensor) -> Layout | Slices:
        check_real(W, "BoundedGain", "Take real and imaginary parts as states.")
        layout = super()._layout_of(W)
        m, p = layout.split(W).shape[-2:] if W.numel() else (0, 0)
        if min(m, p) <= self.states:
            raise NotAMatrixError(
                f"BoundedGain: expected more rows and columns of [[A, B], [C, D]] than the {self.states} "
                f"states, got shape {tuple(W.shape)}. Change states; for A alone take "
                "LyapunovForm."
            )
        return layout

    def _originals(self, like: Tensor, found: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        K, T = (torch.stack(each) for each in zip(*found, strict=True))
        batch = like.shape[:-2]
        K, T = K.reshape(*batch, *K.shape[-2:]), T.reshape(*batch, *T.shape[-2:])
        return K.to(like.device, like.dtype), T.to(like.device, like.dtype)

    def _inverse(self, V: Tensor, dtype: torch.dtype, eps: float) -> tuple[tuple[Tensor, Tensor], float]:
        """Return originals in ``dtype`` of V, a weight divided by gain and radius, and the distance of V."""
        working = torch.promote_types(dtype, torch.float32)
        known = _KNOWN + relative_rounding(len(V), eps, working)
        n, eps = self.states, torch.finfo(dtype).eps
        rounding = 10 * len(V) * eps
        d = units(V, n)
        V = in_units(V, d)
        size, gain = float(torch.linalg.eigvals(V[:n, :n]).abs().max()), gain_of(V, n)
        is_outside = not gain <= 1 + known
        excess = self.gain * (gain - 1) if is_outside else 0.0
        if is_outside and not size < 1 - len(V) * eps:  # A is unstable, or stable only by rounding.
            V[:n, :n] *= _STABLE / size
            gain = gain_of(V, n)

        def attempts(margin: float) -> Iterator[Attempt]:
            root = math.sqrt((1 - margin) / max(gain, 1 - margin))
            inner = V * block_scales(V, n, 1.0, root, root)
            for K, T in originals(inner, n, min(gain, 1 - margin), eps):
                K, T = K.to(dtype), (T / d).to(dtype)
                W = bounded(to_double(K), to_double(T), self.gain, self.radius, eps).to(dtype)
                W = in_units(to_double(W) / block_scales(V, n, self.radius, 1.0, self.gain), d)
                error = max(change(W, inner, n), change(in_units(W, 1 / d), in_units(inner, 1 / d), n))
                moved = 0.0 if margin <= max(_INSIDE, rounding) else margin + error
                yield Attempt((K, T, moved), error, error <= max(margin, rounding))

        best = nearest((0.0, attempts(margin)) for margin in _MARGINS[is_outside:])
        if best is None or not best.is_good:
            exact = "" if dtype == torch.float64 else ", or in float64"
            raise InManifoldError(
                f"BoundedGain: expected a weight whose gain {dtype} can prove, got one of a gain of "
                f"{self.gain * gain:.9g} for whose storage functions rounding errors are too large. Take a "
                f"system of smaller couplings{exact}."
            )
        K, T, moved = best.originals
        return (K, T), excess if is_outside else moved

    def _set_name(self) -> str:
        return f"a weight of gain <= {self.gain:.9g}, whose A has a radius <= {self.radius:.9g}"


def _contraction(X: Tensor) -> Tensor:
    """Return X scaled to the spectral norm 0.9."""
    return 0.9 * X / decomposed(torch.linalg.svdvals, X)[..., :1, None]
