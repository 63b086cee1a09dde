r"""A whole sequence of the recurrence h_t = σ(U x_t + W h_{t-1} + b).

Three paths with the same results: ``rnn_reference`` is a loop of autograd operations, for any activation
and inside any transform. ``rnn_fused`` is one autograd Function for the whole sequence, for the named
activations and several times faster. ``rnn_linear`` takes many steps at a time where there is no activation.

Rows: all time steps lie below each other in one matrix, step t with batch_sizes[t] rows, as in a
``PackedSequence``: longer sequences first, so the rows of step t continue the first rows of step t-1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from spectral_param.functional import recurrence_linear
from spectral_param.functional.recurrence_fused import is_batched, rnn_fused
from spectral_param.functional.recurrence_reference import (
    NAMES,
    Named,
    Nonlinearity,
    Recurrent,
    activate,
    check_nonlinearity,
    fitting_bias,
    rnn_checkpointed,
    rnn_reference,
)
from spectral_param.functional.recurrence_steps import Support

__all__ = [
    "CheckpointEvery",
    "Named",
    "Nonlinearity",
    "Recurrent",
    "Support",
    "activate",
    "check_checkpoint_every",
    "check_nonlinearity",
    "reversal",
    "rnn",
    "rnn_reference",
]

CheckpointEvery = int | Literal["auto"] | None


def check_checkpoint_every(checkpoint_every: CheckpointEvery) -> None:
    """Raise unless it is a number of steps, "auto" or None.

    Args:
        checkpoint_every: What the user asked for.

    Raises:
        ValueError: If it is something else.
    """
    if checkpoint_every in (None, "auto"):
        return
    if not isinstance(checkpoint_every, int) or checkpoint_every < 1:
        raise ValueError(
            "checkpoint_every: expected a positive number of steps, 'auto' or None, got "
            f"{checkpoint_every!r}."
        )


def rnn(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Recurrent,
    bias: Tensor | None = None,
    nonlinearity: Nonlinearity = "modrelu",
    batch_sizes: Sequence[int] | None = None,
    *,
    checkpoint_every: CheckpointEvery = None,
    return_output: bool = True,
    support: Support | None = None,
) -> tuple[Tensor | None, Tensor]:
    r"""Run :math:`h_t = σ(U x_t + W h_{t-1} + b)` over a sequence.

    Args:
        x: Inputs of shape ``(T, B, m)``, or ``(rows, m)`` with ``batch_sizes``.
        h0: Initial states ``(B, n)``.
        weight_ih: U of shape ``(n, m)``; None for the identity (m = n).
        weight_hh: W of shape ``(n, n)``, or a function that returns h Wᵀ for rows h ``(B, n)``: structured
            matrices have faster ways than a product with W.
        bias: b of shape ``(n,)``, or None. For ``"modrelu"`` it is the bias of the modulus.
        nonlinearity: ``"modrelu"``, ``"tanh"``, ``"identity"``, for real states ``"relu"``, or any
            callable.
        batch_sizes: Number of sequences still running at each step, as in a ``PackedSequence``.
        checkpoint_every: Keep one state in so many steps for the backward pass, which computes the
            others again, so many steps at a time: a third more work. ``"auto"`` takes
            :math:`\sqrt T / 2`, where what is kept and what is computed again at a time are least
            together, about :math:`4 \sqrt T` steps of states instead of T. None, the default, keeps all
            states.
        return_output: Whether to return all states, :math:`T B n` numbers that exist at least until the
            caller drops them. With ``checkpoint_every`` and without them, no memory of that size is
            taken. Without an activation the last states alone are faster by far: powers of W take
            many steps at a time, on a CPU and for sequences of one length.
        support: Where the matrix W may differ from zero: pairs of slices of rows and columns, whose rows
            follow each other from 0 to n. Outside W has to be zero, and its gradient is not defined:
            products with what is there are left out where that is faster. None, the default, for everywhere.

    Returns:
        All states, shaped like x with n features, or None if they are not wanted; and the last state of
        each sequence ``(B, n)``.

    Raises:
        ValueError: If the activation or ``checkpoint_every`` is none of those above, the sequence is
            empty, a shape does not fit, or ``support`` leaves out a row.

    Example:
        >>> x, h0, U, W = torch.ones(3, 1, 1), torch.zeros(1, 1), torch.eye(1), 0.5 * torch.eye(1)
        >>> output, last = spectral_param.functional.rnn(x, h0, U, W, nonlinearity="identity")
        >>> output.flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    check_nonlinearity(nonlinearity)
    check_checkpoint_every(checkpoint_every)
    sizes = [x.shape[1]] * x.shape[0] if batch_sizes is None else [int(b) for b in batch_sizes]
    rows = x.flatten(0, 1) if batch_sizes is None else x
    _check_shapes(rows, h0, weight_ih, weight_hh, bias, sizes)
    _check_support(support, h0.shape[-1])
    every = math.ceil(math.sqrt(len(sizes)) / 2) if checkpoint_every == "auto" else checkpoint_every
    if bias is not None:
        bias = fitting_bias(bias, h0, nonlinearity)

    output: Tensor | None
    if isinstance(weight_hh, Tensor) and _has_fast_path(nonlinearity, rows, h0, weight_ih, weight_hh, bias):
        named = cast("Named", nonlinearity)
        found = None
        if named == "identity":
            found = _many_steps(rows, h0, weight_ih, weight_hh, bias, sizes, every, return_output, support)
        output, last = found or rnn_fused(
            rows, h0, weight_ih, weight_hh, bias, named, sizes, every, return_output, support
        )
    elif every is not None and _are_ordinary((rows, h0, weight_ih, weight_hh, bias)):
        output, last = rnn_checkpointed(
            rows, h0, weight_ih, weight_hh, bias, nonlinearity, sizes, every, return_output
        )
    else:
        output, last = rnn_reference(rows, h0, weight_ih, weight_hh, bias, nonlinearity, sizes)
    if not return_output or output is None:
        return None, last
    return (output.unflatten(0, x.shape[:2]) if batch_sizes is None else output), last


def _check_shapes(
    rows: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Recurrent,
    bias: Tensor | None,
    sizes: list[int],
) -> None:
    n = (weight_hh if isinstance(weight_hh, Tensor) else h0).shape[-1]
    features = n if weight_ih is None else weight_ih.shape[-1]
    if not sizes:
        raise ValueError("rnn: expected at least one time step, got a sequence of length 0.")
    if any(following > size for size, following in itertools.pairwise(sizes)):
        raise ValueError(
            f"rnn: expected batch_sizes that do not increase, got {sizes}. Sort the sequences, longest first."
        )
    if isinstance(weight_hh, Tensor) and weight_hh.shape != (n, n):
        raise ValueError(f"rnn: expected weight_hh of shape (n, n) = {(n, n)}, got {tuple(weight_hh.shape)}.")
    if weight_ih is not None and weight_ih.shape != (n, features):
        raise ValueError(
            f"rnn: expected weight_ih of shape (n, m) = {(n, features)}, got {tuple(weight_ih.shape)}."
        )
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"rnn: expected bias of shape (n,) = {(n,)}, got {tuple(bias.shape)}.")
    if rows.shape != (sum(sizes), features):
        raise ValueError(
            f"rnn: expected x of shape (rows, m) = {(sum(sizes), features)}, all steps below each other, "
            f"got {tuple(rows.shape)}."
        )
    if h0.shape != (sizes[0], n):
        raise ValueError(f"rnn: expected h0 of shape (batch, n) = {(sizes[0], n)}, got {tuple(h0.shape)}.")


def _check_support(support: Support | None, n: int) -> None:
    if support is None:
        return
    rows = [i for part, _ in support for i in range(n)[part]]
    if rows != list(range(n)) or any(part.step not in (None, 1) for pair in support for part in pair):
        raise ValueError(
            f"rnn: expected a support of slices without steps, whose rows follow each other from 0 to {n}, "
            f"got {support}."
        )


def _has_fast_path(
    nonlinearity: Nonlinearity,
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
) -> bool:
    """Return whether ``rnn_fused`` serves: a named activation, ordinary tensors of one dtype."""
    if nonlinearity not in NAMES or not _are_ordinary((x, h0, weight_ih, weight_hh, bias)):
        return False
    if nonlinearity == "relu" and x.is_complex():
        return False
    dtype_of_bias = x.dtype.to_real() if nonlinearity == "modrelu" else x.dtype
    return (bias is None or bias.dtype == dtype_of_bias) and all(
        t is None or (t.dtype == x.dtype and t.numel() > 0) for t in (x, h0, weight_ih, weight_hh)
    )


def _many_steps(
    rows: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    sizes: list[int],
    every: int | None,
    return_output: bool,
    support: Support | None,
) -> tuple[Tensor | None, Tensor] | None:
    """Run a linear recurrence many steps at a time; None where that is not faster, or overflows."""
    # On other devices nobody has measured it. Whether it overflows is a question to the numbers, which
    # would make the program wait for a GPU, and which tensors under a tracer or without data cannot answer.
    plain = type(weight_hh) in (Tensor, Parameter) and _get_current_dispatch_mode() is None
    if weight_hh.device.type != "cpu" or not plain or sizes[0] != sizes[-1]:
        return None
    m, n = rows.shape[-1], len(weight_hh)
    # It keeps another order of the inputs, and of all states. Those who ask for checkpoints want less memory.
    if every is not None and (return_output or 4 * m > n):
        return None
    top = recurrence_linear.exponent(len(sizes), sizes[0], m, n, return_output)
    if top is None:
        return None
    return recurrence_linear.rnn_linear(rows, h0, weight_ih, weight_hh, bias, top, return_output, support)


def _are_ordinary(tensors: Sequence[Recurrent | None]) -> bool:
    """Return whether neither a tracer nor a transform nor forward-mode AD sees these tensors."""
    # torch.jit.trace records in-place steps wrongly.
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return not traced and all(
        not is_batched(t) and forward_ad.unpack_dual(t).tangent is None
        for t in tensors
        if isinstance(t, Tensor)
    )


def _starts(batch_sizes: Sequence[int]) -> Tensor:
    """Return the first row of each step."""
    return torch.tensor([0, *batch_sizes[:-1]]).cumsum(0)


def _lengths(batch_sizes: Sequence[int]) -> Tensor:
    """Return the number of steps of each sequence."""
    return (torch.tensor(batch_sizes)[:, None] > torch.arange(batch_sizes[0])).sum(dim=0)


def reversal(batch_sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return the permutation of rows that turns each sequence back to front; its own inverse.

    Args:
        batch_sizes: Rows of each step, not increasing.
        device: Where to put it.
    """
    # With its size, so that torch.compile knows it, too.
    rows = sum(batch_sizes)
    step = torch.arange(len(batch_sizes)).repeat_interleave(torch.tensor(batch_sizes), output_size=rows)
    sequence = torch.arange(len(step)) - _starts(batch_sizes)[step]
    mirrored = _lengths(batch_sizes)[sequence] - 1 - step
    return (_starts(batch_sizes)[mirrored] + sequence).to(device)
