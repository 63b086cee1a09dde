"""Eigenvalues, singular values, the departure from normality, and a summary of a model for its log."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param._eigen import dense
from spectral_param._matrices import decomposed
from spectral_param._parametrizations.base import Parametrization
from spectral_param._register.holders import is_kernel, known_gates
from spectral_param._scale import divided, power_of_two_scale
from spectral_param.analysis._matrices import matrices, square_matrices, without_nan
from spectral_param.functional._checks import check_module, with_arrays


@with_arrays
def eigenvalues(W: Tensor) -> Tensor:
    """Return the eigenvalues of each matrix, in descending order of modulus.

    Of a complex conjugate pair, the eigenvalue in the upper half plane comes first.

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.

    Returns:
        Complex tensor of shape ``(..., n)`` (``(..., k, n)`` for gate blocks) in double precision, NaN where
        a matrix is not finite.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is neither square nor a stack of square blocks.
        UnsupportedDtypeError: If W is not floating point or complex.

    Example:
        >>> spectral_param.analysis.eigenvalues(torch.tensor([[2.0, 1.0], [0.0, -3.0]]))
        tensor([-3.+0.j,  2.+0.j], dtype=torch.complex128)
    """
    W, finite = without_nan(square_matrices(W, "eigenvalues"))
    values = dense.eigenvalues(W)
    # LAPACK returns the upper one of a pair first, and both have the same modulus to the last bit.
    order = values.abs().argsort(dim=-1, descending=True, stable=True)
    return torch.where(finite[..., None], values.gather(-1, order), complex("nan+nanj"))


@with_arrays
def singular_values(W: Tensor) -> Tensor:
    """Return the singular values of each matrix, largest first.

    Args:
        W: Matrices ``(..., m, n)``, real or complex. The weights of an LSTM or GRU are stacks of gates: pass
            ``weight.unflatten(0, (4, -1))``, with 3 for a GRU.

    Returns:
        Real tensor of shape ``(..., min(m, n))`` in double precision, NaN where a matrix is not finite.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If W is not floating point or complex.

    Example:
        >>> spectral_param.analysis.singular_values(torch.tensor([[0.0, 10.0], [0.0, 0.0]]))
        tensor([10.,  0.], dtype=torch.float64)
    """
    W, finite = without_nan(matrices(W, "singular_values"))
    return torch.where(finite[..., None], decomposed(torch.linalg.svdvals, W), torch.nan)


# Note [Henrici's departure without cancellation]
#
# With a Schur form W = Q (Λ + N) Qᴴ, N strictly upper triangular, the departure is ‖N‖_F, and
# ‖W‖_F² = ‖Λ‖_F² + ‖N‖_F². The error of this difference of squares is eps ‖W‖_F², so for a normal matrix its
# root is 1e-8 ‖W‖_F instead of 0. The norm of N itself has no such loss. A Schur basis Q comes from the QR
# decomposition of the eigenvectors. Its error is the norm δ of the part of Qᴴ W Q below the diagonal, which
# is of the size of rounding unless the eigenvectors are nearly dependent. In that case W is far from normal,
# and the difference of squares is accurate: the error of its root is eps ‖W‖_F² / departure.
@with_arrays
def departure_from_normality(W: Tensor, normalized: bool = False) -> Tensor:
    r"""Return Henrici's departure from normality, :math:`\sqrt{‖W‖_F^2 - \sum_i |λ_i|^2}`.

    The departure is 0 exactly for normal matrices, such as orthogonal and symmetric ones. Their eigenvectors
    can be chosen orthogonal, so the eigenvalues alone determine the norms of the powers. The departure is the
    Frobenius norm of the strictly triangular part of the Schur form, which nnRNN trains.

    Source: P. Henrici, "Bounds for iterates, inverses, spectral variation and fields of values of non-normal
    matrices" (Numerische Mathematik 4, 1962).

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        normalized: Whether to divide by ‖W‖_F. The result does not depend on the scale of W: it is 0 for
            normal matrices, including the zero matrix, and 1 for nilpotent ones.

    Returns:
        Real tensor of shape ``(...)`` (``(..., k)`` for gate blocks) in double precision, NaN where a matrix
        is not finite. The computed departure is exact for a matrix that differs from W by rounding errors.
        These errors change the departure as much as they change the eigenvalues: little for normal matrices,
        much for nearly defective ones.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is neither square nor a stack of square blocks.
        UnsupportedDtypeError: If W is not floating point or complex.

    Example:
        >>> departure = spectral_param.analysis.departure_from_normality
        >>> departure(torch.tensor([[0.6, -0.8], [0.8, 0.6]])).item() < 1e-12
        True
        >>> departure(torch.tensor([[0.5, 3.0], [0.0, 0.5]])).item()
        3.0
    """
    W, finite = without_nan(square_matrices(W, "departure_from_normality"))
    # Scaled so that the squares of very large or small entries stay in range.
    scale = power_of_two_scale(W)
    W = divided(W, scale)
    values, vectors = dense.eigenvectors(W)
    Q = torch.linalg.qr(vectors).Q
    schur = Q.mH @ W.to(Q.dtype) @ Q
    norm = torch.linalg.matrix_norm(W)
    direct = torch.linalg.matrix_norm(schur.triu(1))
    direct_error = torch.linalg.matrix_norm(schur.tril(-1))
    eps = torch.finfo(W.dtype).eps
    by_squares = (norm.square() - values.abs().square().sum(dim=-1)).clamp(min=0).sqrt()
    squares_error = eps * norm.square() / torch.maximum(by_squares, eps**0.5 * norm)
    # For the zero matrix the errors are 0 and 0/0, and the direct value is right.
    departure = torch.where(direct_error > squares_error, by_squares, direct)
    departure = departure / torch.where(norm > 0, norm, 1) if normalized else departure * scale[..., 0, 0]
    return torch.where(finite, departure, torch.nan)


@torch.no_grad()
def spectral_summary(model: nn.Module) -> dict[str, float]:
    """Return spectral norm, spectral radius and departure from normality of each constrained weight, to log.

    A weight is constrained if it has a parametrization, of this library or another one. A rectangular weight
    has a norm only. A tall weight counts as a stack of blocks only if it has gates. Kernels of convolutions
    are left out, because the norm and radius of their matrices say little about the layer. For a weight
    without a constraint, and for the smallest singular value, there are :func:`singular_values` and
    :func:`eigenvalues`.

    Each weight costs three decompositions in double precision: log once in an epoch, not in each step. The
    call does not change training, not even in the last bit.

    Args:
        model: Any model. Where its parameters are sharded, they have to be gathered first.

    Returns:
        A dictionary of numbers with names such as ``spectral_norm/lstm.weight_hh_l0``, ``spectral_radius/…``
        and ``departure_from_normality/…``; TensorBoard makes a section of each prefix. A weight of several
        matrices, such as the gates of an LSTM, gets the largest number of its matrices, and a weight
        that is not finite has NaN. Pass the dictionary to ``self.log_dict`` of Lightning, or each number to
        ``add_scalar`` of TensorBoard.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 4))
        >>> _ = spectral_param.constrain(model[1], "weight", spectral_param.ScaledCayley())
        >>> for name, value in spectral_param.analysis.spectral_summary(model).items():
        ...     print(f"{name}: {value:.3f}")
        spectral_norm/1.weight: 1.000
        spectral_radius/1.weight: 1.000
        departure_from_normality/1.weight: 0.000
    """
    check_module(model, "model")
    found: dict[str, float] = {}
    for path, weight in model.named_modules():
        if not isinstance(weight, ParametrizationList):
            continue
        # Read as the module's attribute, so that torch's cache of parametrized tensors serves here, too.
        prefix, _, name = path.rpartition("parametrizations.")
        owner = model.get_submodule(prefix.removesuffix("."))
        W = getattr(owner, name)
        if W.ndim < 2 or not W.numel() or is_kernel(owner, name):
            continue
        gates = [link.gates for link in weight if isinstance(link, Parametrization)]
        blocks = W.unflatten(-2, (max(gates, default=known_gates(owner, name)), -1))
        values = {"spectral_norm": singular_values(blocks)}
        if blocks.shape[-2] == blocks.shape[-1]:
            values["spectral_radius"] = eigenvalues(blocks).abs()
            values["departure_from_normality"] = departure_from_normality(blocks)
        found |= {f"{key}/{prefix}{name}": value.amax().item() for key, value in values.items()}
    return found
