"""Matrices whose singular values lie in an interval (Spectral-RNN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param._matrices import decomposed
from spectral_param._parametrizations.foreign import count_free
from spectral_param._parametrizations.householder import Householder
from spectral_param._parametrizations.in_set import is_inside, unless_rounding
from spectral_param._parametrizations.searched import Searched
from spectral_param._parametrizations.tensors import as_real, as_tuple, is_trained
from spectral_param._precision import relative_rounding
from spectral_param.functional._checks import is_finite

# Registration moves singular values from outside the interval to this fraction of the margin from the center.
# At the edge itself the derivative of the sigmoid is zero.
EDGE = 0.99


class SingularValues(Searched):
    r"""Weight :math:`W = U\, \mathrm{diag}(σ)\, V^H` with all singular values in center ± margin.

    U and V are products of Householder reflections. The weight has any shape. Multiplication by W changes the
    length of a vector by a factor in center ± margin (for a wide weight, by at most center + margin).

    Example:
        >>> layer = torch.nn.Linear(64, 256)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SingularValues(margin=0.1))
        >>> sigma = torch.linalg.svdvals(layer.weight)
        >>> bool(sigma.max() < 1.1001), bool(sigma.min() > 0.8999)
        (True, True)

    Args:
        margin: Largest distance m of a singular value from the center; 0 < m <= center. In exact arithmetic σ
            stays inside the interval. For a large trained number f (defined below; 20 in float32), σ rounds
            to the edge, where the gradient is zero. The default is 0.01, as in the authors' code.
        reflections: Number k of reflections in each of U and V. ``None``, the default, is n, which reaches
            every weight of the set. The authors' code uses n/4.
        center: The center c of the interval. The default is 1, as in the paper.

    Raises:
        ValueError: If an argument is outside its range.

    Source: Zhang, Lei and Dhillon, "Stabilizing Gradients for Deep Neural Networks via Efficient SVD
    Parameterization" (ICML 2018). U and V are products of Householder reflections, parametrized as by
    :class:`spectral_param.Householder`, and :math:`σ = c + 2m\,(\mathrm{sigmoid}(f) - ½)` for the center c
    and the margin m. No singular value decomposition is differentiated, so equal singular values, as in the
    paper's initialization, cause no problem.

    The originals of a real weight are ``original0`` and ``original1``, the vectors of the reflections of U
    and V, and ``original2``, which is f. A complex weight has vectors and angles of U, vectors and angles of
    V, and f, as ``original0`` … ``original4``.

    The weight has any shape. For a tall weight, ``(..., m, n)``, U has n orthonormal columns; a wide weight
    is the transpose of a tall weight. Registration computes the singular value decomposition, and moves
    singular values from outside the interval to 0.99 of the margin from the center. (For real weights and
    center 1, ``geotorch.AlmostOrthogonal`` has the same set; its U and V are matrix exponentials.)

    With k < n reflections, U and V cannot be computed from a weight whose singular values are close
    together. So registration needs the random ``init="paper"``, and only the weight that was read last can be
    assigned. To copy a trained weight, use its ``state_dict``.

    The distance of a weight from the set is the largest distance of a singular value from the interval;
    ``project`` clips the singular values, which gives the nearest weight of the set.
    """

    shapes = "tall"

    acts_after = False
    keeps_members = True

    def __init__(self, margin: float = 0.01, reflections: int | None = None, center: float = 1.0) -> None:
        super().__init__()
        if not (is_finite(center) and center > 0):
            raise ValueError(f"center: expected a finite number > 0, got {center!r}.")
        if not (is_finite(margin) and 0 < margin <= center):
            raise ValueError(
                f"margin: expected 0 < margin <= center = {center}, got {margin!r}. For the interval from a "
                "to b pass margin=(b - a) / 2 and center=(a + b) / 2. For an orthogonal weight (margin 0) "
                "take Householder or ScaledCayley."
            )
        self.margin = margin
        self.center = center
        self.left = Householder(reflections)
        self.right = Householder(reflections)
        self.by_map_alone = self.left.by_map_alone

    def reference(self, *originals: Tensor) -> Tensor:
        """Return U diag(σ) Vᴴ."""
        left, right, f = _factors(originals)
        U, V = self.left.reference(*left), self.right.reference(*right)
        # Module.double converts f, but not complex vectors.
        f = as_real(f).to(U.real.dtype)
        return (U * (self.center + self.margin * torch.tanh(f / 2))[..., None, :]) @ V.mH

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return pairs of a constraint and its originals, for this constraint and for U and V."""
        left, right, _ = _factors(originals)
        return [(self, originals), *self.left.parts(*left), *self.right.parts(*right)]

    def check_matrices(self, W: Tensor) -> None:
        """Raise for more reflections than columns, and for matrices that are not square if k is given."""
        self.left.check_matrices(W)

    def search(self, W: Tensor, eps: float) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the originals of U and V, f, and the largest distance of a singular value from the interval.

        Singular values outside the interval are moved to 0.99 of the margin, because the map is flat at the
        edge.

        Raises:
            InManifoldError: For fewer reflections than columns, because such reflections cannot be computed
                from W.
        """
        U, sigma, Vh, excess = self._decomposed(W, eps)
        t = (sigma - self.center) / self.margin
        rounding = self._eps_of(W)
        t = torch.where(excess > 0, EDGE * t.sign(), t).clamp(-1 + rounding, 1 - rounding)
        left, right = as_tuple(self.left.invert(U)), as_tuple(self.right.invert(Vh.mH))
        return (*left, *right, 2 * torch.atanh(t)), excess.amax(dim=-1)

    def near(self, W: Tensor, eps: float | None = None) -> Tensor:
        """Return the nearest member: W with its singular values clipped to the interval."""
        U, sigma, Vh, _ = self._decomposed(W, torch.finfo(W.dtype).eps)
        clipped = (U * sigma.clamp(self.center - self.margin, self.center + self.margin)[..., None, :]) @ Vh
        return clipped if eps is None else unless_rounding(clipped, W, eps)

    def _decomposed(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return U, σ, Vᴴ, and the distance of each σ from the interval; rounding counts as distance 0."""
        n = W.shape[-1]
        count = self.left.count(n)
        if count < n:
            remedy = "reflections=None, which reaches every weight of the set"
            raise self._has_no_inverse(f"{count} reflections on each side", remedy)
        U, sigma, Vh = decomposed(torch.linalg.svd, W, full_matrices=False)
        excess = (sigma - self.center).abs() - self.margin
        rounding = relative_rounding(n, eps, W.dtype) * sigma.amax(dim=-1, keepdim=True)
        return U, sigma, Vh, torch.where(is_inside(excess, rounding), 0, excess)

    def start(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return U and V initialized as by Householder, and f = 0: all singular values are at the center."""
        n = like.shape[-1]
        square = like[..., :n, :]
        f = torch.zeros_like(like[..., 0, :].real)
        return *as_tuple(self.left.start(like)), *as_tuple(self.right.start(square)), f

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the free parameters of U and V, plus n, but at most the number of entries of W."""
        left, right, f = _factors(originals)
        total = f.numel() * is_trained(f) + count_free(self.left, left) + count_free(self.right, right)
        return min(total, f.numel() * left[0].shape[-2] * (2 if left[0].is_complex() else 1))

    def _set_name(self) -> str:
        return f"a weight with singular values in {self.center} ± {self.margin}"

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"margin={self.margin}, reflections={self.left.reflections}, center={self.center}"


def _factors(originals: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
    """Return the originals of U, the originals of V, and f."""
    *factors, f = originals
    half = len(factors) // 2
    return tuple(factors[:half]), tuple(factors[half:]), f
