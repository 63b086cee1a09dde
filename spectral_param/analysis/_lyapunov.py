"""Lyapunov certificates: for linear maps by any quadratic form, for networks by a diagonal form."""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from spectral_param.analysis._quadratic_form import lyapunov_certificate as quadratic_certificate
from spectral_param.functional._checks import check_choices, is_finite
from spectral_param.functional._contraction import ContractionCertificate, contraction_certificate
from spectral_param.functional._lyapunov import LyapunovCertificate

Metric = Literal["full", "diagonal"]


@overload
def lyapunov_certificate(
    W: Tensor, radius: float | None = None, metric: Literal["full"] = "full"
) -> LyapunovCertificate: ...


@overload
def lyapunov_certificate(
    W: Any, radius: float | None = None, *, metric: Literal["diagonal"]
) -> ContractionCertificate: ...


def lyapunov_certificate(
    W: Any, radius: float | None = None, metric: Metric = "full"
) -> LyapunovCertificate | ContractionCertificate:
    r"""Return coordinates in which a matrix is a contraction: the proof that it is stable.

    ``metric="full"``, the default: a quadratic form M with :math:`W^H M W ≤ r^2 M`. It proves
    :math:`‖W^k‖_2 ≤ \sqrt{\mathrm{cond}\, M}\; r^k` for all k. Compare this bound with what
    :func:`transient_growth` measures. M exists if all eigenvalues are inside the disc of radius r, or on its
    edge and semisimple. The form does not have the least condition, so the bound may be too large.

    ``metric="diagonal"``: a positive diagonal Θ and the rate :math:`r = ‖ΘWΘ^{-1}‖_2`. They prove that every
    network :math:`h^+ = φ(Wh + Ux + b)` contracts in ‖Θ·‖ at this rate, for every input, U and b, if φ acts
    on each unit and has slopes in [-1, 1]. Two states that see the same inputs have :math:`‖h_k - h_k'‖_2 ≤
    \mathrm{cond}(Θ)\, r^k\, ‖h_0 - h_0'‖_2`. Feedback of the output into the network changes W, and the proof
    does not hold. Source: Buehner and Young (2006); see :func:`spectral_param.functional.scaled_norm`.

    A weight of :class:`spectral_param.LyapunovForm` already has its metric:
    :meth:`spectral_param.LyapunovForm.certificate` returns it.

    Args:
        W: Square matrices ``(..., n, n)``, or gate blocks ``(..., k·n, n)``. Real or complex with ``"full"``;
            real with ``"diagonal"``, which also takes one sparse matrix ``(n, n)``, of scipy or torch, with n
            up to 5000.
        radius: With ``"full"`` the radius r > 0; 1 by default. With ``"diagonal"`` a rate that is enough: the
            search stops at this rate, with a Θ of smaller condition. The default is the least rate, up to a
            relative 1e-6, or 1e-4 for n > 512.
        metric: ``"full"`` or ``"diagonal"``.

    Returns:
        Named tuple ``(form, growth)`` or ``(scaling, rate, radius, condition)`` in double precision. With
        r < 1, WᴴMW - M is negative definite.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is neither square nor a stack of square blocks.
        UnsupportedDtypeError: With ``"diagonal"``, if W is complex.
        NotProvenError: With ``"diagonal"``, if a sparse W has more than 5000 rows, or its spectral radius
            cannot be proven.
        ValueError: If the radius is not positive and finite, or the metric is neither ``"full"`` nor
            ``"diagonal"``.

    Example:
        >>> W = torch.tensor([[0.9, 1.0], [0.0, 0.5]])
        >>> certificate = spectral_param.analysis.lyapunov_certificate(W)
        >>> measured = spectral_param.analysis.transient_growth(W, steps=100).peak
        >>> bool(measured <= certificate.growth)
        True
        >>> certificate = spectral_param.analysis.lyapunov_certificate(W, 0.95, metric="diagonal")
        >>> bool(certificate.rate <= 0.95)
        True
    """
    check_choices(metric=(metric, Metric))
    if radius is not None and not (is_finite(radius) and radius > 0):
        raise ValueError(f"lyapunov_certificate: radius: expected a finite number > 0, got {radius!r}.")
    if metric == "full":
        return quadratic_certificate(W, 1.0 if radius is None else radius)
    return contraction_certificate(W, 0.0 if radius is None else radius, "lyapunov_certificate")
