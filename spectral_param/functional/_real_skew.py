"""Functions of real skew-symmetric matrices, by their Schur form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import schur
from torch import Tensor

from spectral_param._matrices import Array, decomposed


def twice_inverse_of_skew(S: Tensor) -> Tensor:
    """Return 2(I + S)⁻¹ in double precision, with an error of the order of eps for skew S of any norm."""
    if S.is_complex():
        angles, V = decomposed(torch.linalg.eigh, 1j * S)  # S = -V diag(iλ) Vᴴ
        return (V * (2 / torch.complex(torch.ones_like(angles), -angles))[..., None, :]) @ V.mH
    found = [_of_real_skew(matrix) for matrix in S.reshape(-1, *S.shape[-2:]).numpy()]
    return torch.from_numpy(np.stack(found)).reshape(S.shape)


def _of_real_skew(S: Array) -> Array:
    """Return 2(I + S)⁻¹ by the real Schur form, whose blocks are 0 and [0, -b; b, 0].

    The complex eigendecomposition is not used: computed eigenvectors of iλ and -iλ are conjugate only up to
    eps‖S‖, so the real part of their product would not be orthogonal.
    """
    with np.errstate(over="ignore", divide="ignore"):
        return of_real_skew(
            S,
            lambda b: 2 / (1 + b**2),
            lambda b: np.where(b != 0, 2 / (b + 1 / b), 0),  # 2b/(1 + b²)
        )


def of_real_skew(S: Array, even: Callable[[Array], Array], odd: Callable[[Array], Array]) -> Array:
    """Return QFQᵀ for the real Schur form S = QΛQᵀ; F has blocks [even(b), odd(b); -odd(b), even(b)].

    The blocks of Λ are [0, -b; b, 0], or [0] with b = 0.
    """
    form, Q = schur(S, check_finite=False)
    lower = np.diag(form, -1)
    b = np.where(lower != 0, (lower - np.diag(form, 1)) / 2, 0)
    turned = odd(b)
    # Each row gets the b of its block. The sum has only one nonzero term: between blocks, b is 0.
    diagonal = even(np.append(b, 0) + np.append(0, b))
    product = Q * diagonal
    product[:, 1:] += Q[:, :-1] * turned
    product[:, :-1] -= Q[:, 1:] * turned
    return product @ Q.T
