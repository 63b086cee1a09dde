r"""Fisher memory of linear dynamics: how much information the noisy state has about a past signal.

.. math:: h_t = W h_{t-1} + v s_t + ξ_t, \qquad ξ_t \text{ white noise of unit variance in each unit.}

The state is Gaussian, and its covariance :math:`C = \sum_{k≥0} W^k (W^k)^H` does not depend on the signal. So
its Fisher information about the signal of k steps ago is :math:`J(k) = ‖C^{-1/2} W^k v‖^2`.

C solves C = W C Wᴴ + I. Doubling, C ← C + A C Aᴴ, A ← A², doubles the number of terms in each step. Here
doubling updates a triangular root, C = L Lᴴ: the new root is the R of a QR decomposition of [Lᴴ; (AL)ᴴ].
Since C ⪰ I, L⁻¹ is bounded. So J(k) = ‖L⁻¹ Wᵏ v‖² is accurate even if C is numerically singular: for a delay
line with gain, C has a condition number of about αⁿ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._matrices import identity_like
from spectral_param.analysis._matrices import as_double, norm_2, square_matrices, without_nan
from spectral_param.analysis._spectra import eigenvalues
from spectral_param.functional._checks import whole_number, with_arrays

# 2^50 terms are enough for a spectral radius of 1 - 1e-13.
_DOUBLINGS = 50


@with_arrays
def fisher_memory(W: Tensor, v: Tensor, steps: int) -> Tensor:
    r"""Return the Fisher memory curve :math:`J(k) = v^H (W^k)^H C^{-1} W^k v`, k = 0, …, ``steps``.

    Here :math:`C = \sum_k W^k (W^k)^H` is the covariance of the state of :math:`h_t = W h_{t-1} + v s_t +
    ξ_t` for white noise ξ of variance 1; for another variance, divide the result by the variance. The sum
    over all k is 1 for a normal W and a unit v, and at most n for any W. The sum over k and over an
    orthonormal basis of vectors v is n.

    Source: Ganguli, Huh and Sompolinsky, "Memory traces in dynamical systems" (PNAS 105, 2008).

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, of spectral radius below 1.
        v: Vector by which the signal enters, ``(..., n)``, broadcast against the matrices.
        steps: Largest k.

    Returns:
        Real tensor of shape ``(..., steps + 1)`` in double precision, NaN where W or v is not finite.

    Raises:
        NotSquareError: If W is not square.
        ValueError: If the spectral radius is not below 1 to working precision, so that C is infinite; if C
            exceeds double precision; or if the length of v is not n.

    Example:
        >>> delay_line = torch.diag(torch.ones(3), -1)
        >>> v = torch.tensor([1.0, 0.0, 0.0, 0.0])
        >>> spectral_param.analysis.fisher_memory(delay_line, v, steps=4)
        tensor([1.0000, 0.5000, 0.3333, 0.2500, 0.0000], dtype=torch.float64)
    """
    steps = whole_number(steps, "fisher_memory: steps")
    W = square_matrices(W, "fisher_memory")
    if v.ndim < 1 or v.shape[-1] != W.shape[-1]:
        raise ValueError(
            f"fisher_memory: expected v of shape (..., n) with n = {W.shape[-1]}, got {tuple(v.shape)}."
        )
    W, finite = without_nan(W)
    dtype = torch.promote_types(W.dtype, as_double(v).dtype)
    root = _noise_root(W).to(dtype)
    W = W.to(dtype)
    signals = [as_double(v).to(dtype)[..., None]]
    for _ in range(steps):
        signals.append(W @ signals[-1])
    shape = torch.broadcast_shapes(*(s.shape for s in signals))
    stacked = torch.cat([s.expand(shape) for s in signals], dim=-1)  # (..., n, steps + 1)
    whitened = torch.linalg.solve_triangular(root, stacked, upper=False)
    return torch.where(finite[..., None], whitened.abs().square().sum(dim=-2), torch.nan)


def _noise_root(W: Tensor) -> Tensor:  # (..., n, n)
    """Return the lower triangular L with L Lᴴ = Σ Wᵏ (Wᵏ)ᴴ."""
    A = W
    L = identity_like(W).expand(W.shape)
    for _ in range(_DOUBLINGS):
        # The remaining terms are then below rounding in every direction: A C Aᴴ ⪯ eps I ⪯ eps C.
        rest = torch.linalg.matrix_norm(A @ L)
        if bool((rest**2 <= torch.finfo(W.dtype).eps).all()):
            return L
        if not bool(rest.isfinite().all()):
            if bool((eigenvalues(W)[..., 0].abs() < 1).all()):
                raise ValueError(
                    "fisher_memory: expected a covariance of the noise below 1e308, got one that exceeds "
                    "double precision before the powers of W decay. Use a shorter chain or a smaller gain."
                )
            break
        L = torch.linalg.qr(torch.cat([L, A @ L], dim=-1).mH, mode="r").R.mH
        A = A @ A
    raise ValueError(
        "fisher_memory: expected a spectral radius below 1, got powers of W that do not decay, so the noise "
        "in the state grows without bound. Scale W, or constrain it with SpectralRadiusNorm(radius=0.99)."
    )


@with_arrays
def fisher_memory_bound(Theta: Tensor, steps: int, sharp: bool = False) -> Tensor:
    r"""Return the lower bound of nnRNN's Proposition 1 on the memory of a feed-forward chain.

    Kerg et al., "Non-normal Recurrent Neural Network (nnRNN)" (NeurIPS 2019): for a strictly lower triangular
    Θ with √α on the first sub-diagonal, and a signal that enters at the first unit,

    .. math:: J(k) ≥ \frac{α^k}{σ_{max}^{2(n-1)}} \, \frac{α - 1}{α^{k+1} - 1} .

    σ_max is the largest singular value of the unit triangular T with :math:`Θ = Θ_{delay} T`, where Θ_delay
    is the sub-diagonal alone, and :math:`σ_{max} = ‖Θ‖_2/\sqrt α`. T comes from Gram-Schmidt of the columns
    of Θ from the *last* to the first. The proposition does not say this, and with the usual order, from
    the first column, the bound is false. The bound holds for k < n only: Θⁿ = 0, so J(k) = 0 for k ≥ n, and
    this function returns 0 there.

    Derivation. J(k) is the maximum over u of :math:`|u^T Θ^k e_1|^2 / u^T C u`. For u = e_{k+1} the numerator
    is α^k. Because :math:`e_{k+1}^T Θ^m = 0` for m > k, the denominator is :math:`\sum_{m ≤ k} ‖e_{k+1}^T
    Θ^m‖^2 ≤ \sum_{m≤k} (α σ_{max}^2)^m`. This is the sharp bound. With σ_max ≥ 1 and m < n the printed bound
    follows.

    Args:
        Theta: Real ``(..., n, n)``, strictly lower triangular, with the same positive number along the first
            sub-diagonal.
        steps: Largest k.
        sharp: Whether to return :math:`α^k / \sum_{m≤k} (ασ_{max}^2)^m` instead, which is larger. The printed
            bound, the default, is very small for large n.

    Returns:
        Real tensor of shape ``(..., steps + 1)``, NaN where Theta is not finite.

    Raises:
        NotSquareError: If Theta is not square.
        ValueError: If Theta does not have that form.

    Example:
        >>> delay_line = torch.diag(torch.ones(3), -1)
        >>> spectral_param.analysis.fisher_memory_bound(delay_line, steps=4)
        tensor([1.0000, 0.5000, 0.3333, 0.2500, 0.0000], dtype=torch.float64)
    """
    steps = whole_number(steps, "fisher_memory_bound: steps")
    Theta = square_matrices(Theta, "fisher_memory_bound")
    n = Theta.shape[-1]
    gain = Theta.diagonal(offset=-1, dim1=-2, dim2=-1)
    if Theta.is_complex() or n < 2 or bool((Theta.triu() != 0).any() | ~(gain > 0).all()):
        raise ValueError(
            "fisher_memory_bound: expected real strictly lower triangular matrices (n >= 2) with positive "
            "entries on the first sub-diagonal, got others. Pass the Schur form Θ, not the weight P Θ Pᵀ."
        )
    if bool((gain - gain[..., :1]).abs().gt(1e-6 * gain[..., :1]).any()):
        raise ValueError(
            "fisher_memory_bound: expected one number sqrt(α) all along the first sub-diagonal, as "
            f"Proposition 1 assumes, got entries from {gain.min().item():.3g} to {gain.max().item():.3g}. "
            "Use fisher_memory for other matrices."
        )
    alpha = gain[..., :1].square()
    k = torch.arange(steps + 1, dtype=torch.float64, device=Theta.device)
    sigma_squared = norm_2(Theta)[..., None].square() / alpha
    # Both bounds are written without powers that overflow for a long chain.
    if sharp:
        terms = k * (alpha * sigma_squared).log()
        bound = (k * alpha.log() - terms.logcumsumexp(dim=-1)).exp()
    else:
        bound = sigma_squared ** (1 - n) / (alpha**-k).cumsum(dim=-1)
    return torch.where((k < n) | bound.isnan(), bound, 0)
