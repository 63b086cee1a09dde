"""Matrices whose rows are probabilities: transitions of Markov chains, weights of averages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.tensors import is_trained
from spectral_param._precision import relative_rounding
from spectral_param.functional._checks import check_real, is_finite

# Logarithm of the number that replaces an entry of zero: e^-60 is far below a rounding error, and
# doubly_stochastic accepts logarithms of this size.
LEAST = -60.0
#: The reason why no optimizer can hold a stochastic weight in its set.
NO_ZEROS = "its projection has no entries of zero, so a member would not keep its bits"
#: Advice for complex weights, in the message.
AMPLITUDES = "Pass W.abs().square(), for example, the probabilities of complex amplitudes."


class Stochastic(Parametrization):
    r"""Weight with entries ≥ 0 and rows of sum 1: each output is a weighted mean of the inputs.

    A square weight is the transition matrix of a Markov chain: W[i, j] is the probability of going from i to
    j. A square stochastic weight has the spectral radius 1, and so has every product of such weights.
    :func:`spectral_param.analysis.stationary_distribution` gives the long-run distribution of the chain.

    Example:
        >>> counts = torch.tensor([[90.0, 10.0], [3.0, 7.0]])
        >>> chain = torch.nn.Linear(2, 2, bias=False)
        >>> chain = spectral_param.constrain(chain, "weight", spectral_param.Stochastic(), init=counts)
        >>> chain.weight.detach()
        tensor([[0.9000, 0.1000],
                [0.3000, 0.7000]])

    Args:
        floor: A number ε, 0 <= ε < 1. No entry is below ε/n, for n columns. All eigenvalues except 1 then
            have moduli of at most 1 - ε, so that the distance from the stationary distribution shrinks at
            least by the factor 1 - ε per step. With the default, 0, entries are at least 0.

    Raises:
        ValueError: If ``floor`` is outside its range.

    The weight is :math:`W = (1 - ε)\,\mathrm{softmax}(T) + ε/n`, with the softmax of each row of T. The
    eigenvalues of W other than 1 are 1 - ε times the eigenvalues of softmax(T): the left eigenvectors of
    these eigenvalues have entries of sum 0, so the term ε/n maps these eigenvectors to 0 (Brauer, "Limits for
    the characteristic roots of a matrix IV", Duke Mathematical Journal 19, 1952).

    Registration takes a weight of any shape without negative entries, and divides each row by its sum. If the
    result S has an entry below ε/n in a row, the row is replaced by (1 - s) times the row plus s/n, with the
    smallest s for which all entries of the row are at least ε/n. Negative entries and rows without a positive
    entry are refused. For a random start take ``init="paper"``, which draws Gaussian logits T.

    An entry of 0 becomes about :math:`e^{-60}`, which is less than a rounding error. (With the floor ε, an
    entry of ε/n grows by about :math:`e^{-60}`.) The derivative of such an entry is equally small, so **zeros
    stay zeros in training**, as one wants for the missing edges of a graph. To let all entries train,
    register ``0.9 * W + 0.1 / n``.
    """

    shapes = "any"
    convolutions = "entries"
    by_map_alone = NO_ZEROS

    def __init__(self, floor: float = 0.0) -> None:
        super().__init__()
        self.floor = checked_floor(floor)

    def reference(self, T: Tensor) -> Tensor:  # type: ignore[override]
        """Return (1 - ε) softmax(T) + ε/n."""
        return mixed(torch.softmax(T, dim=-1), self.floor)

    def check_matrices(self, W: Tensor) -> None:
        """Raise for complex matrices."""
        check_real(W, "Stochastic", AMPLITUDES)

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return :func:`largest_error` of W, and the rounding error of this number."""
        return largest_error(W, self.floor, dims=(-1,)), relative_rounding(W.shape[-1], eps, W.dtype)

    def near(self, W: Tensor) -> Tensor:
        """Return rows divided by their sums; :func:`raised` lifts entries below ε/n.

        Raises:
            ValueError: If W has negative entries or a row of zeros.
        """
        check_scalable(W, (-1,), "Stochastic")
        W = W.clamp(min=0)
        W = W / W.amax(dim=-1, keepdim=True)  # Not to overflow.
        return raised(W / W.sum(dim=-1, keepdim=True), self.floor, dims=(-1,))

    def invert(self, W: Tensor) -> Tensor:
        """Return logits T for W: the logarithms of softmax(T) = (W - ε/n)/(1 - ε)."""
        return logits(W, self.floor)

    def _set_name(self) -> str:
        return f"a weight with rows of sum 1 and no entry below {self.floor:g}/n"

    def start(self, like: Tensor) -> Tensor:
        """Return Gaussian logits."""
        return torch.randn_like(like)

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return the sum of m(n - 1) over all m x n matrices; 0 if T is not trained."""
        return is_trained(T) * (T.numel() - T[..., 0].numel())

    def extra_repr(self) -> str:
        """Return the argument, for ``repr``."""
        return f"floor={self.floor}"


def logits(W: Tensor, floor: float) -> Tensor:
    """Return log S for the matrix S that :func:`mixed` maps to W; entries below -60 are raised to -60."""
    return ((W - floor / W.shape[-1]) / (1 - floor)).clamp(min=math.exp(LEAST)).log()


def mixed(S: Tensor, floor: float) -> Tensor:
    """Return (1 - ε) S + ε/n."""
    return S if floor == 0 else (1 - floor) * S + floor / S.shape[-1]


def raised(S: Tensor, floor: float, dims: tuple[int, ...]) -> Tensor:
    """Return (1 - s) S + s/n, with the smallest s >= 0 for which no entry along ``dims`` is below floor/n."""
    n = S.shape[-1]
    least = n * S.amin(dim=dims, keepdim=True)
    share = torch.where(least < floor, (floor - least) / (1 - least), 0)
    return S + share * (1 / n - S)


def largest_error(W: Tensor, floor: float, dims: tuple[int, ...]) -> Tensor:
    """Return the maximum of the errors of W.

    The errors are the differences between 1 and the sums of W along each of ``dims``, and n times the largest
    amount by which an entry is below floor/n.
    """
    lacking = (floor - W.shape[-1] * W.amin(dim=(-2, -1))).clamp(min=0)
    return torch.stack([lacking, *((W.sum(dim=dim) - 1).abs().amax(dim=-1) for dim in dims)]).amax(dim=0)


def check_scalable(W: Tensor, dims: tuple[int, ...], name: str) -> None:
    """Raise if W has negative entries, or a row or column (along one of ``dims``) of zeros."""
    least = W.min()
    if least < -10 * W.shape[-1] * torch.finfo(W.dtype).eps * W.max():
        raise ValueError(
            f"{name}: expected a weight without negative entries, got {least:.6g}. Take init='paper', a "
            "random start, or give a weight: spectral_param.constrain(module, name, constraint, "
            "init=W.abs()), or init=W.exp() if W has logits."
        )
    for dim, kind in zip(dims, ("row", "column"), strict=False):
        if not bool((W.amax(dim=dim) > 0).all()):
            raise ValueError(
                f"{name}: expected a positive entry in each {kind}, got a {kind} of zeros, which has no "
                "multiple of sum 1. Give it an entry, on the diagonal for example: init=W + torch.eye(n)."
            )


def checked_floor(floor: float) -> float:
    """Return the argument ``floor``; raise if ``floor`` is outside its range."""
    if not (is_finite(floor) and 0 <= floor < 1):
        raise ValueError(
            f"floor: expected 0 <= floor < 1, got {floor!r}. It is n times the least entry of a weight with "
            "n columns: for entries of at least p pass n * p."
        )
    return float(floor)
