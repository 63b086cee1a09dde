"""Weights of given spectral norm, for layers (also convolutions) with known Lipschitz constants."""

from __future__ import annotations

import functools
from typing import Literal

import torch
from torch import Tensor

from spectral_param._context import is_traced
from spectral_param._eigen import symbol
from spectral_param._eigen.kernels import KernelFollower
from spectral_param._eigen.singular import SAFE_RANGE, Norm, divided_by_norm, norm, recorded_norm, tall
from spectral_param._eigen.singular import tolerance as followed_tolerance
from spectral_param._eigen.solver import Name, NormFollower, Solver
from spectral_param._map import Map, recorded, unchanged, where
from spectral_param._parametrizations.bound import Bound, Measured, Measurement
from spectral_param._parametrizations.degenerate import UNTIL, warn_of_weight
from spectral_param._parametrizations.in_set import frozen, unless_rounding
from spectral_param._parametrizations.layout import Layout
from spectral_param._precision import relative_rounding
from spectral_param._scale import divided, power_of_two_scale
from spectral_param._sets import spectral_ball

Mode = Literal["equal", "at_most"]

_FAR = 16.0  # A norm above this multiple of the bound is clipped by a slower, more precise method.


class SpectralNorm(Measured):
    r"""Divides a weight by its largest singular value: :math:`W = c\, T / ‖T‖_2` if :math:`‖T‖_2 > c`.

    A layer x -> W x + b with this W is Lipschitz with the constant c. Source: Miyato, Kataoka, Koyama and
    Yoshida, "Spectral Normalization for Generative Adversarial Networks" (ICLR 2018). The method of this
    paper, also used by ``torch.nn.utils.parametrizations.spectral_norm``, takes one power iteration per step
    and lets the norm exceed the bound. With this constraint the norm never exceeds the bound, up to rounding.

    Example:
        >>> layer = torch.nn.Linear(64, 300)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SpectralNorm(0.5))
        >>> torch.linalg.matrix_norm(layer.weight, 2)
        tensor(0.5000, grad_fn=<...>)
        >>> conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        >>> conv = spectral_param.constrain(conv, "weight", spectral_param.SpectralNorm(1.0))

    Args:
        norm: The bound c > 0: a number, or a tensor with one number for each matrix of a batch (gate, group).
            ``"present"`` means the norm that each matrix has at registration; the ``state_dict`` saves this
            number.
        mode: With ``"at_most"``, the default, T is scaled only if ‖T‖ > c; otherwise W = T, bit for bit. (c
            is compared with an upper bound slightly above ‖T‖, see below. If c lies between ‖T‖ and this
            upper bound, T is scaled although ‖T‖ ≤ c; the change is smaller than the gap between ‖T‖ and the
            upper bound.) As long as T is scaled, the loss does not depend on ‖T‖. So a weight of one row,
            whose only singular value is its length, cannot come back below the bound by training alone. Call
            :func:`spectral_param.rebase` after each optimizer step, or pass ``optimizer=`` to
            :func:`spectral_param.constrain`. With ``"equal"``, always ‖W‖ = c; for a convolution, the upper
            bound of the norm is c, see below.
        solver: ``"dense"`` computes σ = ‖T‖₂ by LAPACK, in double precision. ``"tracking"`` follows σ from
            step to step by products with thin matrices, and proves an upper bound in each step: by random
            vectors, with a probability of error below 1e-10, or by a Cholesky factorisation if singular
            values lie too close together. ``"auto"``, the default, means ``"tracking"`` if the smaller side
            of the matrix is at least 64, else ``"dense"``. The argument may also be a
            :class:`spectral_param.Solver` of your own.

    Raises:
        ValueError: If an argument is outside its range.

    The weight has any shape ``(..., m, n)`` and is real or complex. The solver returns a lower and an upper
    bound of σ = ‖T‖₂, and T is divided by the upper bound. Both bounds are equal if LAPACK computes σ. If σ
    is tracked, the bounds differ by a relative 5e-7 (1e-10 in double precision) at most. The gradient of σ is
    u vᴴ for the singular vectors u and v of σ. If several singular values are equal to σ, the singular
    vectors of one of these values are used. If σ is tracked, the error of the gradient is about the square
    root of the rounding error.

    **Convolutions.** With :func:`spectral_param.constrain`, the norm is the norm of the *layer*, for every
    size of the image, with zero or circular padding, stride, groups and dilation, and for transposed
    convolutions. The norm of the layer is at most the largest norm of the kernel's Fourier transform over all
    frequencies. T is divided by a bound that is at most 2.3 % above the largest norm of the layer over images
    of all sizes. (With circular padding *and* a stride, the norm depends on whether the stride divides the
    size of the image. For such a layer T is divided by the larger bound for stride 1.) The bound is computed
    from P frequencies: 231 for a kernel of size 3 x 3 and stride 1. A step takes O(n³) operations for each
    frequency that needs a new Cholesky factorisation as a proof. At the start of training with Adam all P
    frequencies need this proof, because a step changes the norms at the frequencies by more than these norms
    differ from each other. Later, only frequencies with norms close to the largest norm need the proof. With
    ``"dense"`` the norms of all P frequencies are computed in every step. A depthwise kernel takes O(P)
    operations. See ``spectral_param/_eigen/kernels.py``.

    Matrices without a derivative have defined results:

    - NaN or infinity in T gives NaN in W and in the gradient.
    - If T = 0, no multiple of T has the norm c, so W = T. With ``"equal"``, a
      :class:`~spectral_param.errors.DegenerateEigenvalueWarning` is emitted once for T = 0.

    The distance of a weight from the set is max(‖W‖ - c, 0) with ``"at_most"``, and the modulus of ‖W‖ - c
    with ``"equal"``; the proven upper bound is used for ‖W‖. With ``"at_most"``, ``project`` returns the
    nearest matrix: singular values above c become c. Convolutions, and weights with ``"equal"``, are scaled
    as by the map.

    **With optimizer=.** The weight is put back into the set after each optimizer step. With ``"at_most"``, a
    matrix above the bound is replaced by the nearest matrix in the set, which takes a decomposition of the
    smaller Gram matrix. With this projection SGD converges to the minimum. Adam and related optimizers get a
    gradient without the part that raises singular values at the bound, which takes another decomposition.
    With this gradient Adam comes much closer to the minimum than with ``step="project"``, but not as close as
    SGD. A convolution, or a weight with ``"equal"``, is scaled, and may stop short of the minimum with every
    optimizer. For example, if
    ‖W - diag(3, 2)‖² is minimized over norms of at most 1, scaling stops at diag(1, 2/3), but the minimum is
    at I. Training with the map (without ``optimizer=``) does not stop short in this way.
    """

    shapes = "any"
    convolutions = "layer"

    ROUNDINGS = 8
    _layout: Layout
    norm: Bound
    keeps_members = keeps_non_finite = True
    mode: Mode
    tracking: NormFollower
    kernels: KernelFollower

    def __init__(
        self,
        norm: Bound = 1.0,
        mode: Mode = "at_most",
        solver: Solver | Name = "auto",
    ) -> None:
        super().__init__("norm", norm, mode=(mode, Mode))
        # Set through `vars`, which does not count as a change of the constraint (see memory.py): the content
        # of a follower changes the weight only by rounding errors.
        vars(self).update(tracking=NormFollower(solver), kernels=KernelFollower(solver))

    @property
    def solver(self) -> Solver | str:
        """The solver, or the name of a solver, that the constructor was given."""
        return self.tracking.choice

    def evaluate(self, T: Tensor) -> Map:  # type: ignore[override]
        """Return c T/‖T‖, or T for matrices that the mode does not scale."""
        return self.made(T, self._followed(T))

    def made(self, T: Tensor, solution: Norm | symbol.Peak) -> Map:
        """Return c T/‖T‖ or T for a T without a graph, using the norms in ``solution``."""
        bound, sigma = solution.bound, solution.pair.value
        if isinstance(self.norm, str):  # After another parametrization, the first T determines "present".
            self._take_present(bound)
        low, high = SAFE_RANGE
        if not all(low < size < high for size in sigma.reshape(-1).tolist()):
            if not self._warned and self.mode == "equal" and bool(_is_zero(sigma, T).any()):
                self._warned = True
                warn_of_weight(
                    "SpectralNorm: the norm is zero, so no multiple of T has the given norm, and W = T "
                    f"{UNTIL}."
                )
            return recorded(functools.partial(frozen(self)._scaled, c=self._bound_for(T)), T)
        c = self._bound_for(T, bound)
        if self.mode != "equal":
            active = self._active(bound, T, c)
            if not bool(active.any()):
                return unchanged(T)
        c = c * (sigma / bound)
        if isinstance(solution, symbol.Peak):
            known = solution
            divided_map = recorded(lambda T: T * _over(c, symbol.norm_at(self._kernel(T), known)), T)
        else:
            divided_map = divided_by_norm(T, solution.pair, c)
        if self.mode == "equal" or bool(active.all()):
            return divided_map
        return where(active.to(T.device, non_blocking=True)[..., None, None], divided_map, T)

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return c T/‖T‖, or T for matrices that the mode does not scale, by torch's operations."""
        return self._scaled(T, self._bound_for(T))

    def _scaled(self, T: Tensor, c: Tensor) -> Tensor:
        """Return :meth:`reference` for the bound c, also for a T close to the limits of its dtype."""
        scale = power_of_two_scale(T.detach())
        S = divided(T, scale)
        traced = is_traced(T)
        if self._is_convolution():
            axes = len(self.strides)
            sigma, cosine = symbol.norm_on_grid(self._kernel(S), axes, traced)
        else:
            sigma, cosine = (recorded_norm if traced else norm)(tall(S)), 1.0
        scale = scale[..., 0, 0]
        size = (sigma * scale).detach()
        active = self._active(size / cosine, T, c) & ~_is_zero(size, T)
        divisor = torch.where(active, sigma, 1) / (cosine * c)
        return torch.where(active[..., None, None], S / divisor[..., None, None], T)

    def _active(self, bound: Tensor, T: Tensor, c: Tensor) -> Tensor:
        """Return which matrices are scaled. A matrix with the bound NaN is scaled, so W becomes NaN."""
        if self.mode == "equal":
            return torch.ones_like(bound, dtype=torch.bool)
        return ~(bound <= c * (1 + self.ROUNDINGS * torch.finfo(T.dtype).eps))

    def measure(self, W: Tensor, eps: float) -> Measurement:
        """Return a proven upper bound of the norm, and the largest possible gap between bound and norm."""
        # W is copied, because the follower keeps its argument, and the caller may change W later.
        solution = self._followed(W.detach().clone())
        error = relative_rounding(max(W.shape[-2:]), eps, W.dtype)
        if min(self._sides(W)) >= self.tracking.least_size:
            # A tracked norm may be this much below the bound by which W is divided.
            error += 2 * followed_tolerance(W.dtype)
        return Measurement(solution.bound, error * solution.bound, solution)

    def near(self, W: Tensor, eps: float | None = None, solution: Norm | symbol.Peak | None = None) -> Tensor:
        """Return the nearest matrices; with ``"equal"`` and for convolutions, return scaled weights."""
        if self.mode != "at_most" or self._is_convolution():
            return super().near(W, eps, solution)
        solution = solution or self._followed(W.detach().clone())
        c = self._bound_at(W, solution.bound)
        if not bool(self._active(solution.bound, W, c).any()):
            return W
        # Rounding may leave the norm of a nearest matrix above the bound. Such a matrix is scaled.
        nearest = spectral_ball.near
        if bool((solution.bound > _FAR * c).any()):
            nearest = spectral_ball.near_from_afar
        found = super().near(nearest(W, c.to(W.device, W.real.dtype)))
        return found if eps is None else unless_rounding(found, W, eps)

    stays_active = False

    @property
    def has_tangent(self) -> bool:
        """Whether :meth:`tangent` is defined: for matrices with ``"at_most"``, not for convolutions."""
        return super().has_tangent and self.mode == "at_most" and not self._is_convolution()

    def tangent(self, W: Tensor, D: Tensor, active: spectral_ball.Faces | None = None) -> Tensor:
        """Return the part of D that, to first order, does not move singular values away from the bound."""
        return spectral_ball.tangent(self._faces(W) if active is None else active, D)

    def active(self, W: Tensor, G: Tensor) -> spectral_ball.Faces | None:
        """Return the singular vectors whose singular values are at the bound and grow in a step along -G."""
        return spectral_ball.crossed(self._faces(W), G)

    def _faces(self, W: Tensor) -> spectral_ball.Faces:
        """Return the singular vectors whose singular values are at the bound, up to rounding."""
        size, rounding, _ = self.measure(W, self._eps_of(W))
        c = self._bound_for(W, size)
        rounding = rounding + self.ROUNDINGS * self._eps_of(W) * c
        if not bool((size >= c - rounding).any()):
            return W[..., :0], W.mT[..., :0]
        like = W.real
        return spectral_ball.touching(W, *(t.to(like.device, like.dtype) for t in (c, rounding)))

    def _least_change(self, dtype: torch.dtype) -> float:
        return super()._least_change(dtype) + 2 * followed_tolerance(dtype)

    def start(self, like: Tensor) -> Tensor:
        """Return Gaussian entries, scaled to the norm c."""
        T = torch.randn_like(like)
        self._start_bound()
        bound = self._followed(T).bound
        self.tracking.forget()
        c = self._bound_for(T)
        return T * (c / bound.to(c.dtype).to(c.device))[..., None, None]

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"{self._shown()}, mode={self.mode!r}, solver={self.solver!r}"

    def _followed(self, T: Tensor) -> Norm | symbol.Peak:
        """Return the norms of matrices, or of convolutions, with proven bounds."""
        if not self._is_convolution():
            return self.tracking.follow(tall(T))
        return self.kernels.follow(self._kernel(T), len(self.strides))

    # Convolutions -----------------------------------------------------------------------------------

    def _is_convolution(self) -> bool:
        """Return whether patches of a kernel overlap, so that the layer's norm is not the matrix's norm."""
        return any(k > s for k, s in zip(self._layout.kernel, self.strides, strict=False))

    def _sides(self, T: Tensor) -> tuple[int, ...]:
        """Return the sizes of the matrices whose norms are computed."""
        if not self._is_convolution():
            return T.shape[-2:]
        return self._kernel(T).shape[T.ndim - 2 : T.ndim]

    def _kernel(self, T: Tensor) -> Tensor:
        """Return the kernel T as a kernel of stride 1, with an input channel for each phase of the stride."""
        return symbol.phases(T.unflatten(-1, (-1, *self._layout.kernel)), self.strides)


def _is_zero(size: Tensor, T: Tensor) -> Tensor:
    """Return which norms ‖T‖ count as zero: 0, and norms so small that 1/‖T‖ overflows."""
    return size < torch.finfo(T.dtype).tiny


def _over(c: Tensor, sigma: Tensor) -> Tensor:
    return (c.to(sigma.dtype).to(sigma.device) / sigma)[..., None, None]
