"""A map from logits to matrices whose rows and columns have the sum 1, differentiable to any order.

The mathematics, with its derivation, is in ``_balancing.py``. For a plain tensor, the map becomes one node of
the autograd graph. Transforms of torch.func, forward mode, derivatives of higher order and torch.export use
an autograd Function instead. The derivative of this Function is computed from W by torch's operations, and
so is differentiable itself. A graph of torch.compile calls a custom operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param._context import HALF, full_precision, is_compiled, is_plain, not_nested
from spectral_param._map import Map, apply, differentiated
from spectral_param.errors import NotSquareError
from spectral_param.functional import _balancing as balancing
from spectral_param.functional._checks import check_matrix, check_real, with_arrays

# After the largest logits of rows and columns are subtracted, logits below -LIMIT are raised to -LIMIT.
LIMIT = 60.0


@with_arrays
@full_precision
def doubly_stochastic(T: Tensor) -> Tensor:
    r"""Return the doubly stochastic matrices of logits: positive, with rows and columns of sum 1.

    :math:`W_{ij} = e^{T_{ij} + f_i + g_j}` with numbers f_i and g_j that make all sums 1. W is unique. Equal
    logits give entries of 1/n; logits that strongly prefer a permutation give nearly this permutation. Adding
    a number to a row or a column of T does not change W. The spectral norm and the spectral radius of W are
    1, and so are those of every product of doubly stochastic matrices.

    The sums are 1 to rounding, also if W is nearly a permutation or nearly splits into blocks. Entries have
    absolute errors of about eps; the relative errors of small entries are larger. Sinkhorn's alternating
    divisions converge to the same W, but for logits of size 6 and more, their error after twenty steps is 5
    %. This function takes Newton steps. The gradient is computed by one elimination, not by differentiating
    the Newton steps.

    **Limit.** After the largest entry of each row, and then of each column, is subtracted, logits below -60
    are replaced by -60. So a T whose entries differ by at most 60 is not changed, and every finite T gives a
    doubly stochastic matrix. The gradient takes this limit into account.

    Source: Sinkhorn, "A relationship between arbitrary positive matrices and doubly stochastic matrices"
    (Annals of Mathematical Statistics 35, 1964).

    Args:
        T: Real logits of shape ``(..., n, n)``, for instance one matrix for each token.

    Returns:
        Tensor of the shape and the dtype of T. In half precision, W is computed in single precision and
        rounded. A matrix with NaN or infinite logits gives NaN, and does not affect the other matrices of the
        batch.

    Raises:
        NotAMatrixError: If T has fewer than two dimensions or no entries.
        NotSquareError: If T is not square.
        UnsupportedDtypeError: If T has a complex or an integer dtype.

    Example:
        >>> W = spectral_param.functional.doubly_stochastic(torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
        >>> W
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
        >>> streams = torch.randn(8, 4, 16)  # tokens, streams, features
        >>> mixing = spectral_param.functional.doubly_stochastic(torch.randn(8, 4, 4))
        >>> mixed = mixing @ streams
        >>> torch.allclose(mixed.sum(1), streams.sum(1), atol=1e-5)
        True
    """
    check_logits(T, "doubly_stochastic")
    return apply(evaluate, reference, T)


def evaluate(T: Tensor) -> Map:
    """Return the doubly stochastic W of a plain tensor T, as a ``Map`` with its gradient."""
    W = _computed(T)
    version = None if W.is_inference() else W._version

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        # If the caller has written to W in place, W is computed again.
        return (_pull_back(T, W if W._version == version else _computed(T), G),)

    return Map(W, pull_back, reference)


def check_logits(T: Tensor, name: str) -> None:
    """Raise unless T holds real square matrices."""
    check_matrix(T, name)
    check_real(T, name, "Pass real logits, for example T.real.")
    if T.shape[-1] != T.shape[-2]:
        raise NotSquareError(
            f"{name}: expected square matrices (..., n, n), got shape {tuple(T.shape)}. If all rows and all "
            "columns have the sum 1, there are as many of both. For rows alone take torch.softmax(T, dim=-1)."
        )


def _working(T: Tensor) -> Tensor:
    return T.float() if T.dtype in HALF else T


def reduced(T: Tensor) -> Tensor:
    """Return T, shifted to a largest entry of 0 in each row and column and clamped at -LIMIT; NaN stays."""
    X = (T - T.amax(dim=-1, keepdim=True)).clamp(min=torch.finfo(T.dtype).min)
    X = (X - X.amax(dim=-2, keepdim=True)).clamp(min=-LIMIT)
    return torch.where(T.isneginf(), torch.nan, X)


def _last(T: Tensor) -> Tensor:  # (..., n, n) -> (n, n, B)
    return T.reshape(-1, *T.shape[-2:]).movedim(0, -1)


def _first(W: Tensor, shape: torch.Size) -> Tensor:  # (n, n, B) -> shape
    return W.movedim(-1, 0).reshape(shape)


def _chunks(T: Tensor) -> list[slice]:
    """Return slices of the batch that are computed together; on a device, one slice contains all matrices."""
    count = T.shape[:-2].numel()
    size = balancing.CHUNK if T.is_cpu else count
    return [slice(first, first + size) for first in range(0, count, size)]


def _computed(T: Tensor) -> Tensor:
    """Return the doubly stochastic W of a plain tensor T."""
    n, looks = T.shape[-1], T.is_cpu
    W, matrices = torch.empty_like(T, memory_format=torch.contiguous_format), T.reshape(-1, n, n)
    for chunk, out in ((c, W.view(-1, n, n)[c]) for c in _chunks(T)):
        X = _last(reduced(_working(matrices[chunk]))).contiguous()
        out.copy_(balancing.scaled(X, looks).movedim(-1, 0))
    return W


def _pull_back(T: Tensor, W: Tensor, G: Tensor) -> Tensor:
    """Return the gradient with respect to T, for the gradient G with respect to W."""
    n = T.shape[-1]
    found = torch.empty_like(W)
    logits, values, grads, results = (t.reshape(-1, n, n) for t in (T, W, G, found))
    for chunk in _chunks(T):
        X = _working(logits[chunk])
        w, g = (_last(_working(t[chunk])).contiguous() for t in (values, grads))
        P = balancing.tangent(w, g).movedim(-1, 0)
        # The row and column sums of P are zero. So if no logit is clamped, the subtraction of the maxima in
        # `reduced` does not affect the gradient, and its backward pass can be skipped.
        if not T.is_cpu or not bool((X.amax(dim=(1, 2)) - X.amin(dim=(1, 2)) <= LIMIT).all()):
            (P,) = differentiated(reduced, (X,), [P], (True,))  # type: ignore[assignment]
        results[chunk] = P
    return found


class _Scaled(torch.autograd.Function):
    """The map from reduced logits to W, with derivatives of every order in every mode of torch."""

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        W = balancing.scaled(_last(X.detach()), looks=is_plain(X) and X.is_cpu)
        return _first(W, X.shape).contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    @full_precision
    def backward(ctx: Any, G: Tensor) -> Tensor:
        (W,) = ctx.saved_tensors
        return _first(balancing.tangent(_last(W), _last(G)), W.shape)

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dX: Tensor) -> Tensor:
        (W,) = ctx.saved_tensors
        return _first(balancing.tangent(_last(W), _last(dX)), W.shape)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], X: Tensor) -> tuple[Tensor, int]:
        return _Scaled.apply(X.movedim(in_dims[0], 0)), 0  # type: ignore[no-untyped-call]


def reference(T: Tensor) -> Tensor:
    """Return W by torch's operations, with derivatives of every order in every mode of torch."""
    if is_compiled():
        return _operator(T)
    W: Tensor = _Scaled.apply(reduced(_working(T)))  # type: ignore[no-untyped-call]
    return W.to(T.dtype)


# Compiled graphs call this operator. Without an operator, the Newton steps would be unrolled in the program.


@torch.library.custom_op("spectral_param::doubly_stochastic", mutates_args=())
def _operator(T: Tensor) -> Tensor:
    return _computed(T)


@_operator.register_fake
def _(T: Tensor) -> Tensor:
    return torch.empty_like(T, memory_format=torch.contiguous_format)


@torch.library.custom_op("spectral_param::doubly_stochastic_backward", mutates_args=())
def _operator_backward(T: Tensor, W: Tensor, G: Tensor) -> Tensor:
    return _pull_back(T, W, G)


@_operator_backward.register_fake
def _(T: Tensor, W: Tensor, G: Tensor) -> Tensor:
    return torch.empty_like(W)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, G: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "doubly_stochastic: expected at most one derivative in a compiled graph, got a second one. "
            "Differentiate twice in eager mode."
        )
    return _operator_backward(*ctx.saved_tensors, G)


_operator.register_autograd(_backward, setup_context=_save)
