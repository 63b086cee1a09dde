r"""Stationary distributions of Markov chains.

A row stochastic W has π with π W = π. Eliminating state k, i.e. watching the chain only while it is
elsewhere, changes the other transitions to

.. math:: W_{ij} + W_{ik} W_{kj} / s_k, \qquad s_k = \sum_{j < k} W_{kj} \; (= 1 - W_{kk}).

With the sum in place of the difference nothing is ever subtracted, so each entry of π is accurate to rounding
of its own size, however small this entry or the transitions are. Grassmann, Taksar and Heyman, "Regenerative
analysis and steady state distributions for Markov chains" (Operations Research 33, 1985); O'Cinneide (1993)
has the proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param.analysis._matrices import as_double
from spectral_param.errors import NotSquareError
from spectral_param.functional._checks import check_matrix, check_real, with_arrays


class StationaryDistribution(NamedTuple):
    """The long run of a Markov chain.

    Attributes:
        distribution: The probabilities π of the states, ``(..., n)``; π W = π.
        mixing_rate: The factor by which the distance from π shrinks in each step in the long run: the second
            largest modulus of an eigenvalue, ``(...)``. 1 for a periodic chain, which does not approach π.
    """

    distribution: Tensor
    mixing_rate: Tensor


@with_arrays
def stationary_distribution(W: Tensor) -> StationaryDistribution:
    """Return the stationary distribution of row stochastic matrices, and the rate of mixing.

    W[i, j] is the probability of going from state i to state j. Each probability is accurate to rounding of
    its own size, even if states or parts of the chain are reached once in 1e30 steps. A state that the chain
    leaves forever has probability 0. The number of steps until the distance from π is a tenth is about
    ``log(0.1) / log(mixing_rate)``.

    Source: Grassmann, Taksar and Heyman, "Regenerative analysis and steady state distributions for Markov
    chains" (Operations Research 33, 1985).

    Args:
        W: Real square matrices ``(..., n, n)``, without negative entries, with rows of sum 1 to rounding.
            Rows are divided by their sums.

    Returns:
        Named tuple ``(distribution, mixing_rate)`` in double precision; NaN where a matrix is not finite.

    Raises:
        NotSquareError: If W is not square.
        ValueError: If W has negative entries, if its rows do not have the sum 1, or if the chain has several
            classes of states that it never leaves, so that the long run depends on the start.

    Example:
        >>> W = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
        >>> spectral_param.analysis.stationary_distribution(W)
        StationaryDistribution(distribution=tensor([0.7500, 0.2500], dtype=torch.float64),
                               mixing_rate=tensor(0.6000, dtype=torch.float64))
    """
    name = "stationary_distribution"
    check_matrix(W, name)
    check_real(W, name, "Probabilities are real.")
    n = W.shape[-1]
    if W.shape[-2] != n:
        raise NotSquareError(
            f"{name}: expected square matrices (..., n, n), got shape {tuple(W.shape)}. Both the rows "
            "and the columns are the states."
        )
    exact = as_double(W)
    finite = exact.isfinite().all(dim=(-2, -1))
    chains = torch.where(finite[..., None, None], exact, 1 / n)
    _check_stochastic(chains, 8 * n * torch.finfo(W.dtype).eps, name)
    found = [_of_one(chain) for chain in chains.reshape(-1, n, n).cpu().numpy()]
    pi = torch.from_numpy(np.stack([pi for pi, _ in found])).reshape(*W.shape[:-1]).to(exact.device)
    rate = torch.from_numpy(np.array([rate for _, rate in found])).reshape(W.shape[:-2]).to(exact.device)
    nan = torch.nan
    return StationaryDistribution(torch.where(finite[..., None], pi, nan), torch.where(finite, rate, nan))


def _check_stochastic(W: Tensor, tolerance: float, name: str) -> None:
    least, off = W.min().item(), (W.sum(dim=-1) - 1).abs().max().item()
    if least < 0:
        raise ValueError(f"{name}: expected probabilities, got {least:.3g}. Take W.clamp(min=0).")
    if off > tolerance:
        columns = (W.sum(dim=-2) - 1).abs().max().item()
        remedy = "Pass W.mT" if columns <= tolerance else "Divide by them: W / W.sum(dim=-1, keepdim=True)"
        raise ValueError(
            f"{name}: expected rows of sum 1, got sums that are off by up to {off:.3g}. {remedy}."
        )


def _of_one(W: Array) -> tuple[Array, float]:
    W = W / W.sum(axis=1, keepdims=True)
    n = len(W)
    count, label = connected_components(csr_array(W > 0), connection="strong")
    leaves = {label[i] for i, j in zip(*np.nonzero(W), strict=True) if label[i] != label[j]}
    closed = [c for c in range(count) if c not in leaves]
    if len(closed) > 1:
        parts = [np.flatnonzero(label == c).tolist() for c in closed]
        raise ValueError(
            "stationary_distribution: expected one class of states that is never left, got "
            f"{len(parts)}: {str(parts)[:100]}. The long run depends on where the chain starts: pass the "
            "chain of one class, W[states][:, states], or mix in a little of all, 0.999 * W + 0.001 / n."
        )
    states = np.flatnonzero(label == closed[0])
    pi = np.zeros(n)
    pi[states] = _by_elimination(W[np.ix_(states, states)])
    # Subtracting π moves the eigenvalue 1, whose vectors are π and 1, to 0.
    rate = float(np.abs(np.linalg.eigvals(W - pi)).max())
    return pi, min(rate, 1.0)


def _by_elimination(W: Array) -> Array:
    """Return π of an irreducible chain."""
    W = W.copy()
    for k in range(len(W) - 1, 0, -1):
        W[:k, k] /= W[k, :k].sum()
        W[:k, :k] += np.outer(W[:k, k], W[k, :k])
    pi = np.ones(1)
    for k in range(1, len(W)):
        pi = np.append(pi, pi @ W[:k, k])
        pi /= pi.max()  # Prevents overflow.
    return pi / pi.sum()
