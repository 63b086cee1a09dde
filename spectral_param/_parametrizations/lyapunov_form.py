"""Stable matrices, parametrized together with the quadratic form that proves them stable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from spectral_param import init
from spectral_param._eigen.dense import dominant_eigentriple
from spectral_param._eigen.triple import Eigentriple, rounding_tolerance
from spectral_param._map import Map
from spectral_param._matrices import decomposed, identity_like
from spectral_param._parametrizations.bound import Bound, Bounded
from spectral_param._parametrizations.searched import Searched
from spectral_param._parametrizations.tensors import readable, real_entries
from spectral_param._precision import relative_rounding, to_double, to_like
from spectral_param._scale import frobenius
from spectral_param._sets.diagonal import near
from spectral_param.functional import _diagonal_metric as diagonal
from spectral_param.functional import _lyapunov as lyapunov
from spectral_param.functional._checks import check_real, check_time, is_finite
from spectral_param.functional._contraction import warn_of_gates
from spectral_param.functional._diagonal_metric import (
    contracting_inverse,
    dissipative_inverse,
    log_coordinates,
)
from spectral_param.functional._diagonal_scaling import least_abscissa, least_norm, precision
from spectral_param.functional._growth_form import form_of_growth, proves
from spectral_param.functional._lyapunov import LyapunovCertificate
from spectral_param.functional._rooms import Attempt, nearest
from spectral_param.functional._scaled_norm import CONDITION

Metric = Literal["full", "diagonal"]

# Relative distances by which a weight is moved inside the set, tried in order until a quadratic form is
# found.
_MARGINS = (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 1e-3, 3e-3, 1e-2, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
# A weight whose abscissa exceeds the bound is moved inside the bound by this fraction of the excess.
_INSIDE = 0.01


class LyapunovForm(Searched, Bounded):
    r"""Stable weight, :math:`ρ(W) ≤ r` or :math:`\mathrm{Re}\,λ_i ≤ a`, with its Lyapunov certificate.

    Take this constraint by default to train a stable weight. With ``growth=g`` the constraint also bounds how
    much the norms of the powers :math:`W^k` can grow before the powers decay.

    Example:
        >>> layer = torch.nn.Linear(64, 64)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.LyapunovForm(radius=0.99))
        >>> bool(spectral_param.functional.spectral_radius(layer.weight) <= 0.99 + 1e-6)
        True

    Args:
        radius: The bound r > 0 of the spectral radius: a number, or a tensor with one number for each matrix
            of a batch (each gate of an LSTM or GRU weight). ``"present"`` means the radius that each matrix
            has at registration; the ``state_dict`` saves this number. The default is 1, if there is no
            ``abscissa``.
        abscissa: The bound a of the real parts of the eigenvalues, per unit of time, for dx/dt = W x.
            ``abscissa`` takes the same values as ``radius``; give only one of the two.
        growth: A bound g ≥ 1 of the transient growth: :math:`‖W^k‖_2 ≤ g\,r^k` for all k, in continuous time
            :math:`‖e^{Wt}‖_2 ≤ g\,e^{at}`. The bound holds for all originals. With g = 1, W/r is a
            contraction, and the original is K alone (see below). ``None``, the default, means no bound, or
            the bound 1e12 with ``metric="diagonal"``.
        metric: ``"full"``, the default, proves that the linear map is stable. ``"diagonal"``, for real
            weights, also proves that networks are stable: :math:`h^+ = φ(Wh + Ux + b)` contracts at the rate
            r for every input x, every U and b, and every φ that acts entry by entry with slopes in [-1, 1],
            such as ReLU and tanh. With an abscissa a < 1, z = φ(Wz + u) has exactly one solution for every φ
            with slopes in [0, 1]. See below.

    Raises:
        ValueError: If an argument is outside its range.

    .. math:: W = r\, S^{-1} (K^H K + I/4)^{-1} K^H S

    This W has a spectral radius of at most r for all K and S, and every W with ρ(W) < r has this form. In
    continuous time the map is :math:`W = aI + (I + X^H X)^{-1} (Z - Z^H - Y^H Y)`. The derivation is at the
    top of ``spectral_param/functional/_lyapunov.py``. Sources: Tobenkin, Manchester and Megretski, "Convex
    parameterizations and fidelity bounds for nonlinear identification" (2017); Revay, Wang and Manchester,
    "Recurrent equilibrium networks" (2023); Gillis and Sharma, "On computing the distance to stability for
    matrices using linear dissipative Hamiltonian systems" (2017).

    Computing W takes one Cholesky factorisation, one solve and some matrix products. No eigenvalues are
    computed. In training the weight can reach the bound and leave the bound again, but slowly: on the bound,
    the map's derivative towards the inside is zero, as for every smooth map onto this set. (With
    ``SpectralRadiusNorm(mode="at_most")`` the weight gets stuck at the bound.) To train along the bound, take
    ``SpectralRadiusNorm(r, "at_most")`` with ``optimizer=``, which projects the weight after each step. Take
    :class:`SpectralRadiusNorm` for ρ(W) = r exactly, and :class:`SchurForm` to know or bound each eigenvalue.

    The weight has shape ``(..., n, n)`` and is real or complex. The ``original`` of shape ``(..., 2n, n)`` is
    K above S; in continuous time the original has the shape ``(..., 3n, n)`` and stacks Y, Z and X.

    Registration starts from the given weight. A weight outside the set is divided by its radius (in
    continuous time, the weight is shifted), and then moved inside until a quadratic form is found. A weight
    with a defective eigenvalue on the bound, as in a Jordan block, has no quadratic form. A weight within the
    bound keeps its value, up to rounding times the condition number of its quadratic form. In float32,
    weights that are far from normal, such as companion matrices, can move by several percent, and
    registration warns. Converting the module to another precision moves such weights, too. With
    ``growth=g``, registration searches for a quadratic form of condition at most g². If the search finds
    none, the weight is replaced by a near one that has such a form. In tests, weights that had been trained
    with the same bounds moved by less than 0.03 % for n up to 128, and by up to 3 % for n = 200.

    **Networks.** With ``metric="diagonal"`` S is a positive diagonal matrix Θ. The last row of the
    ``original`` is the logarithm of the diagonal of Θ, below K (shape ``(..., n + 1, n)``) or, in continuous
    time, below Y and Z (shape ``(..., 2n + 1, n)``). Two states h, h' of a network with the same inputs have
    ‖Θ(h⁺ - h'⁺)‖ ≤ r ‖Θ(h - h')‖, and hence ‖h_k - h_k'‖ ≤ cond(Θ) rᵏ ‖h₀ - h₀'‖: the network forgets its
    initial state. The set contains every W of norm at most r, every W with ρ(\|W\|) ≤ r, and every
    block-triangular W whose diagonal blocks have norms below r. The proof fails for feedback of the output,
    which changes W, and for modReLU with a positive bias, which is discontinuous at 0. A leaky network
    (1 - a)h + aφ(Wh + …) contracts at the rate 1 - a + ar. A bound on the abscissa does not prove that
    dh/dt = -h + φ(Wh + u) contracts. Registration keeps a weight of the set. A weight outside the set is
    multiplied by r and divided by its :func:`~spectral_param.functional.scaled_norm` (in continuous time, the
    weight is shifted). Registration is exact up to rounding times cond(Θ). A weight that needs a cond(Θ)
    above about 1e5 in float32, or 1e10 in float64, is moved farther inside the set, where rounding disturbs
    the weight less. In tests such weights moved by a few percent at most. The proof covers the rounding of
    the weight to its dtype, except for underflow in float16.
    Sources: Buehner and Young, "A tighter bound for the echo state property" (2006); Revay and Manchester,
    "Contracting implicit recurrent neural networks" (2020).

    The distance of a weight from the set is the excess of its radius (abscissa) over the bound. With a
    diagonal metric, the distance is the excess of the least norm (abscissa) that ΘWΘ⁻¹ has for a diagonal Θ.
    For a weight within the bound that has no quadratic form, the distance is measured to the nearest weight
    with a quadratic form that the search finds. The weight that the layer itself has computed is proven by
    its originals, so its distance is 0. ``project`` returns the weight with which training would
    start after registration.
    """

    acts_after = False
    keeps_members = True

    metric: Metric

    def __init__(
        self,
        radius: Bound | None = None,
        *,
        abscissa: Bound | None = None,
        growth: float | None = None,
        metric: Metric = "full",
    ) -> None:
        check_time(radius, abscissa)
        if abscissa is None:
            super().__init__("radius", 1.0 if radius is None else radius, metric=(metric, Metric))
            self.abscissa: Bound | None = None
        else:
            super().__init__("abscissa", abscissa, metric=(metric, Metric))
            self.radius: Bound | None = None
        if growth is not None and not (is_finite(growth) and growth >= 1):
            raise ValueError(
                f"growth: expected a finite number >= 1 or None, got {growth!r}. With 1, no step increases "
                "the norm; the norm of the power k = 0 is 1."
            )
        self.growth = None if growth is None else float(growth)
        if self._is_diagonal():
            self.by_map_alone = ""

    def reference(self, X: Tensor) -> Tensor:  # type: ignore[override]
        """Return W for an original of one of the shapes that the docstring of the class lists."""
        if self._is_diagonal():
            return self._diagonal_map(X)
        if self.growth is None and self.abscissa is None:
            radius = self.radius
            # The factor stays a float, because creating a tensor takes as long as a product of small
            # matrices.
            factor = radius if isinstance(radius, float) else self._bound_for(X)[..., None, None]
            return lyapunov.stable(X, factor)
        # V is computed in double precision, which takes little time compared with bounding the growth.
        V = self._map(to_double(X), torch.finfo(X.dtype).eps)
        return self._placed(to_like(V, X))

    def evaluate(self, X: Tensor) -> Map:  # type: ignore[override]
        """Return W; the gradient is hand-written for a radius with a diagonal metric or without growth."""
        if self.abscissa is not None or (X.is_complex() and self._is_diagonal()):
            return super().evaluate(X)
        if self._is_diagonal():
            return diagonal.evaluate(X, self._rates(X), self._condition(), self._eps_of(X))
        if self.growth is not None:
            return super().evaluate(X)
        radius = self.radius
        return lyapunov.evaluate(
            X, radius if isinstance(radius, float) else self._bound_for(X)[..., None, None]
        )

    def check_matrices(self, W: Tensor) -> None:
        """With a diagonal metric, raise for complex matrices."""
        if self._is_diagonal():
            check_real(W, "LyapunovForm", "Diagonal coordinates are for real units: take metric='full'.")

    def originals_for(self, W: Tensor, eps: float, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the originals, found by one search; the registered weight determines the bound "present"."""
        if is_first:
            self._renew()
            if self._is_diagonal() and self.gates > 1 and not self.kernel_dims:
                warn_of_gates("LyapunovForm")
        return super().originals_for(W, eps, is_first)

    def search(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the originals, found in double precision, and the excess of W over the bound.

        The excess is measured with the radius (abscissa) of W; with a diagonal metric, with the least norm
        (abscissa) that ΘWΘ⁻¹ has for a diagonal Θ. A weight within the bound may have no quadratic form: for
        instance, a Jordan block whose eigenvalue is on the bound. For such a W the search finds a near weight
        that has a quadratic form, and the second tensor is the largest difference of an entry between the two
        weights, divided by the bound in discrete time.
        """
        if self._is_diagonal():
            return self._search_diagonal(W, eps)
        triple, size = self._leading(W)
        bound = self._bound_at(W, size)
        excess = size - bound
        excess = torch.where(excess > rounding_tolerance(W, triple, eps), excess, 0)
        X, error = self._inverses(W, bound, size, eps)
        return X, torch.where(excess > 0, excess, error)

    def is_within(self, W: Tensor, eps: float, distance: Tensor) -> Tensor:
        """Return which matrices are within the bound on radius or abscissa, even without a quadratic form.

        With ``growth`` or a diagonal metric, only matrices at distance 0 are within the bounds.
        """
        if self._is_diagonal() or self.growth is not None:
            return distance <= 0
        size = self._leading(W)[1]
        return size <= self._bound_at(W, size)

    def _leading(self, W: Tensor) -> tuple[Eigentriple, Tensor]:
        """Return the dominant (rightmost) eigenvalue with its eigenvectors, and the radius (abscissa)."""
        triple = dominant_eigentriple(W, "modulus" if self.abscissa is None else "real")
        return triple, triple.eigenvalue.abs() if self.abscissa is None else triple.eigenvalue.real

    def inner(self, W: Tensor, margin: float) -> Tensor:
        """Return (1 - margin) W; in continuous time, also shift its eigenvalues to the left."""
        inner = (1 - margin) * W
        if self.abscissa is None:
            return inner
        shift = margin * frobenius(W) * identity_like(W)
        return inner - shift

    def _inverses(self, W: Tensor, bound: Tensor, size: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the original of W, and the error with which it reproduces W; rounding counts as 0.

        ``size`` is the radius (abscissa) of W.
        """
        exact = to_double(W.detach().cpu())
        bound, size = (t.detach().cpu().double().expand(W.shape[:-2]) for t in (bound, size))
        largest = torch.maximum(bound, size)[..., None, None]  # At least W's radius (abscissa).
        if self.abscissa is not None:
            # A weight above the bound is moved inside the bound. On the bound, Y is singular and the
            # derivative with respect to Y is zero, so training could not leave the bound.
            largest = largest + _INSIDE * (size - bound).clamp(min=0)[..., None, None]
        V = exact / largest if self.abscissa is None else exact - largest * identity_like(exact)
        matrices = V.reshape(-1, *V.shape[-2:])
        found, errors = zip(*(self._inverse(matrix, W.dtype) for matrix in matrices), strict=True)
        entries = matrices.abs().amax(dim=(-2, -1)).clamp(min=1)
        error = torch.tensor(errors, dtype=torch.float64, device="cpu")
        rounding = relative_rounding(W.shape[-1], eps, W.dtype)
        error = torch.where(error <= rounding * entries, 0, error).reshape(W.shape[:-2])
        X = torch.stack(found)
        X = X.reshape(*W.shape[:-2], *X.shape[-2:]).to(W.device, W.dtype)
        return X, error.to(W.device, W.real.dtype)

    def start(self, like: Tensor) -> Tensor:
        """Return the original of a weight with eigenvalues uniform on a disc inside the bound.

        The disc has the radius 0.95 r; in continuous time the disc has the radius 1 and touches the line
        Re z = a - 0.05 from the left.
        """
        self._start_bound()
        W = init.disc_(torch.empty_like(like))
        W = self._placed(0.95 * W if self.abscissa is None else W - 1.05 * identity_like(W))
        if self._is_diagonal():
            return self._search_diagonal(W, torch.finfo(W.dtype).eps)[0]
        bound = self._bound_for(W)
        return self._inverses(W, bound, bound, torch.finfo(W.dtype).eps)[0]

    def free_parameters(self, X: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries of W, the dimension of the set; a complex entry counts as two."""
        return real_entries(X) // self._rows(X.shape[-1]) * X.shape[-1]

    @torch.no_grad()
    def certificate(self, X: Tensor) -> LyapunovCertificate:
        """Return the quadratic form in the original, and the bound on the growth that this form proves.

        :func:`spectral_param.analysis.lyapunov_certificate` finds a quadratic form for any stable matrix.

        Args:
            X: The tensor that the optimizer trains.

        Returns:
            :class:`spectral_param.analysis.LyapunovCertificate` in double precision. The growth is infinite
            if the form is singular.

        Example:
            >>> layer = torch.nn.Linear(4, 4)
            >>> layer = spectral_param.constrain(layer, "weight", spectral_param.LyapunovForm(growth=3.0))
            >>> weight = layer.parametrizations.weight
            >>> bool(weight[0].certificate(weight.original).growth <= 3.0)
            True
        """
        X = to_double(X.detach())
        if self._is_diagonal():
            log = log_coordinates(X[..., -1, :], self._condition())
            growth = (log.amax(dim=-1) - log.amin(dim=-1)).exp()
            return LyapunovCertificate((2 * log).exp().diag_embed(), growth)
        form = lyapunov.form(X, self.abscissa is not None, self.growth)
        values = decomposed(torch.linalg.eigvalsh, form)
        ratio = values[..., -1] / values[..., 0]
        return LyapunovCertificate(form, torch.where(values[..., 0] > 0, ratio, torch.inf).sqrt())

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        metric = "" if self.metric == "full" else f", metric={self.metric!r}"
        return f"{self._shown()}, growth={self.growth}{metric}"

    # Implementation -----------------------------------------------------------------------------------

    def _keeps_value(self) -> str:
        if self._is_diagonal() or self.growth is not None:
            return ""
        name = "SpectralRadiusNorm" if self.abscissa is None else "SpectralAbscissa"
        return f". Or take spectral_param.{name}({self._bound}, 'at_most'), which keeps its value"

    def _blocks(self) -> int:
        """Return the number of blocks of n rows in the original."""
        return (2 if self.abscissa is None else 3) - (self.growth == 1)

    def _rows(self, n: int) -> int:
        """Return the number of rows of the original of a weight with n rows."""
        return (1 if self.abscissa is None else 2) * n + 1 if self._is_diagonal() else self._blocks() * n

    def _map(self, X: Tensor, eps: float) -> Tensor:
        """Return V with radius <= 1 (abscissa <= 0), even after rounding of V with relative error ``eps``."""
        if self.abscissa is not None:
            return lyapunov.dissipative(X, self.growth, eps)
        if self.growth is not None:
            return lyapunov.stable_with_growth(X, self.growth, eps)
        return lyapunov.stable_rounded(X, eps)

    def _placed(self, V: Tensor) -> Tensor:
        """Return W = rV, or W = aI + V in continuous time."""
        name, value = self._bound, getattr(self, self._bound)
        if isinstance(value, float) and value == (name == "radius"):
            return V
        bound = self._bound_for(V)[..., None, None]
        if name == "radius":
            return V * bound
        return V + bound * identity_like(V)

    def _inverse(self, V: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
        """Return an original of a matrix near V, and the largest error of an entry of this matrix.

        The error is measured before the original is rounded to ``dtype``.
        """
        eps = torch.finfo(dtype).eps
        close = 10 * len(V) * eps * max(1.0, float(V.abs().max()))
        least = math.inf
        found = self._form_of_growth(V)

        def attempts(inner: Tensor) -> Iterator[Attempt]:
            nonlocal least
            for original in (
                each for P in self._forms(inner, found) for each in self._candidates(inner, eps, P)
            ):
                error = float((self._map(original, eps) - V).abs().max())
                # Rounding of the original is tested, too: an ill-conditioned form amplifies rounding errors.
                rounded = float((self._read(original.to(dtype)) - V).abs().max())
                least = min(least, error)
                yield Attempt(original, rounded, error <= close and rounded <= 10 * close)

        def at_margins() -> Iterator[tuple[float, Iterator[Attempt]]]:
            for margin in _MARGINS:
                shift = margin * frobenius(V) * identity_like(V)
                inner = V * (1 - margin) if self.abscissa is None else V - shift
                yield float((inner - V).abs().max()), attempts(inner)

        best = nearest(at_margins())
        return (V.new_empty(0) if best is None else best.originals), least

    def _read(self, X: Tensor) -> Tensor:
        """Return the V that a read of the weight computes from an original in the weight's dtype."""
        if self.growth is None and self.abscissa is None:
            return to_double(lyapunov.evaluate(X, 1.0).value)
        return self._map(to_double(X), torch.finfo(X.dtype).eps)

    def _form_of_growth(self, V: Tensor) -> Tensor | None:
        """Return a form within the growth that proves V stable or nearly so; None if the clamped one does."""
        if self.growth is None or self.growth == 1:
            return None
        (clamped,), discrete = self._forms(V, None), self._as_discrete(V)
        return None if proves(discrete, clamped) else form_of_growth(discrete, clamped, self.growth)

    def _as_discrete(self, V: Tensor) -> Tensor:
        return V if self.abscissa is None else lyapunov.as_discrete(V)

    def _forms(self, V: Tensor, found: Tensor | None) -> list[Tensor]:
        """Return forms that may prove V stable; there may be none if V is not stable.

        With ``growth``, the form that is found without the bound is clamped to the bound, and ``found`` comes
        before it.
        """
        if self.growth == 1:
            return [identity_like(V)]
        P = lyapunov.quadratic_form(self._as_discrete(V))
        is_finite = bool(P.isfinite().all())
        if self.growth is None:
            return [P] if is_finite else []
        clamped = lyapunov.with_condition(P if is_finite else identity_like(V), self.growth)
        return [clamped] if found is None else [found, clamped]

    def _candidates(self, V: Tensor, eps: float, P: Tensor) -> list[Tensor]:
        """Return originals of V with the form P, the most exact original first."""
        originals, target = [], V
        # The map shrinks V a little to allow for rounding; each pass of the loop corrects more of the change.
        for _ in range(3):
            if self.abscissa is not None:
                try:
                    X = lyapunov.dissipative_inverse(target, P, self.growth)
                except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                    break  # P is so large that a product with P overflows.
            elif self.growth is not None:
                X = lyapunov.stable_with_growth_inverse(target, P, self.growth)
            else:
                X = lyapunov.stable_inverse(target, P)
            if not bool(X.isfinite().all()):
                break
            originals.append(X)
            target = target + V - self._map(X, eps)
        return originals[::-1]

    # The diagonal metric ---------------------------------------------------------------------------

    def near(self, W: Tensor, eps: float | None = None) -> Tensor:
        """Return members near W. Without ``eps``, :meth:`search` finds the members.

        ``eps`` is given after an optimizer step, and only with the diagonal metric. Then matrices outside the
        set are scaled into the set, or shifted in continuous time; members stay unchanged.
        """
        if eps is None:
            return super().near(W)
        exact = to_double(W.detach().cpu())
        bounds = self._bound_for(exact).expand(W.shape[:-2]).reshape(-1).tolist()
        return near(W, bounds, self._condition(), self.abscissa is None, eps)

    def _is_diagonal(self) -> bool:
        """Return whether the metric is a trained diagonal Θ; with ``growth=1``, Θ is the identity."""
        return self.metric == "diagonal" and self.growth != 1

    def _condition(self) -> float:
        """Return the bound of cond Θ."""
        return CONDITION if self.growth is None else self.growth

    def _rates(self, X: Tensor) -> float | Tensor:
        rate = self._number()
        return self._bound_for(X, to_double(X))[..., None, None] if rate is None else rate

    def _diagonal_map(self, X: Tensor) -> Tensor:
        """Return W for an original of the diagonal metric."""
        if self.abscissa is None:
            return diagonal.contracting(X, self._rates(X), self._condition(), self._eps_of(X))
        exact = to_double(X)
        shift = self._bound_for(X, exact).abs()[..., None, None]
        V = diagonal.dissipative(exact, self._condition(), self._eps_of(X), shift)
        return to_like(self._placed(V), X)

    def _search_diagonal(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the originals of W, and the excess of the least norm (abscissa) of ΘWΘ⁻¹ over the bound."""
        exact = to_double(W.detach().cpu())
        matrices = exact.reshape(-1, *W.shape[-2:])
        if isinstance(getattr(self, self._bound), str):
            least = least_norm if self.abscissa is None else least_abscissa
            sizes = [least(matrix.numpy(), self._condition()).size for matrix in matrices]
            self._take_present(torch.tensor(sizes, dtype=torch.float64, device="cpu").reshape(W.shape[:-2]))
        limits = self._bound_for(exact).expand(W.shape[:-2]).reshape(-1).tolist()
        found, excesses = [], []
        of_map = self._eps_of(W)
        for matrix, bound in zip(matrices, limits, strict=True):
            if self.abscissa is None:
                X, beyond = contracting_inverse((matrix / bound).numpy(), self._condition(), of_map, W.dtype)
                unit = bound
            else:
                V = (matrix - bound * identity_like(matrix)).numpy()
                X, mu = dissipative_inverse(V, self._condition(), of_map, W.dtype, abs(bound))
                unit = max(1.0, float(matrix.abs().max()))
                beyond = mu / unit
            rounding = relative_rounding(len(matrix), eps, W.dtype) + 10 * precision(len(matrix))
            found.append(X)
            excesses.append(beyond * unit if not beyond <= rounding else 0.0)
        X = torch.stack(found)
        excess = torch.tensor(excesses, dtype=W.dtype, device=W.device).reshape(W.shape[:-2])
        return X.reshape(*W.shape[:-2], *X.shape[-2:]).to(W.device), excess

    def _judgement(self) -> str:
        if self._is_diagonal() or self.growth is None or self.growth == 1:
            return super()._judgement()
        return "for which no such form was found, at a distance of"

    def _set_name(self) -> str:
        bound = getattr(self, self._bound)
        number = readable(bound) if isinstance(bound, Tensor) else f"{bound:.6g}"
        growth = "" if self.growth is None else f" and a condition of the form <= {self.growth:.6g}²"
        if self._is_diagonal():
            size = "norm" if self.abscissa is None else "abscissa"
            return f"a weight whose least {size} in diagonal coordinates is at most {number}{growth}"
        return f"a weight of spectral {self._bound} <= {number} with a quadratic form that proves it{growth}"
