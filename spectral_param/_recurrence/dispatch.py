r"""The recurrence h_t = σ(U x_t + W h_{t-1} + b) over a whole sequence, and the choice of an implementation.

All paths give the same results. The reference path is a loop of autograd operations. The reference path
allows any activation and any transform. The fused path is several times faster, because it is one autograd
Function for the whole sequence. The fused path needs an activation that has a name; under torch.compile it
becomes one operator. The linear path computes many steps at a time if there is no activation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from spectral_param._context import autocast_off, is_compiled, is_plain
from spectral_param._recurrence import linear
from spectral_param._recurrence.activation import NAMES, Nonlinearity, check_nonlinearity, fitting_bias
from spectral_param._recurrence.node import rnn_fused
from spectral_param._recurrence.reference import rnn_checkpointed, rnn_reference
from spectral_param._recurrence.sequence import Cell, Recurrent, Result, Rows
from spectral_param.functional._checks import check_tensor, with_arrays

CheckpointEvery = int | Literal["auto"] | None


def run(cell: Cell, rows: Rows) -> Result:
    """Run a cell over rows as :func:`rnn` does, but without checks of shapes."""
    # All paths except the reference need a named activation, W as a matrix, tensors of one dtype, and no
    # tracer, transform or forward-mode AD.
    W, b, x = cell.weight_hh, cell.bias, rows.x
    tensors = [t for t in (x, rows.h0, cell.weight_ih, W) if isinstance(t, Tensor)]
    compiled = is_compiled()
    untransformed = compiled or is_plain(*(tensors if b is None else [*tensors, b]))
    named = isinstance(W, Tensor) and cell.nonlinearity in NAMES
    fits = named and all(t.dtype == x.dtype and t.numel() > 0 for t in tensors)
    if fits and b is not None:
        real = x.is_complex() and cell.nonlinearity == "modrelu"
        fits = b.dtype == (x.real.dtype if real else x.dtype)
    if not (untransformed and fits) or (cell.nonlinearity == "relu" and x.is_complex()):
        with autocast_off(x):
            if untransformed and not compiled and rows.checkpoint_every is not None:
                return rnn_checkpointed(cell, rows)
            output, last = rnn_reference(cell, rows)
        return output if rows.return_output else None, last
    # Without an activation, it may be faster to compute many steps at a time. `found` is None if powers of W
    # overflow.
    is_linear = cell.nonlinearity == "identity" and x.is_cpu and not compiled
    top = linear.exponent(cell, rows) if is_linear else None
    found = None if top is None else linear.rnn_linear(cell, rows, top)
    return rnn_fused(cell, rows, compiled) if found is None else found


@with_arrays
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
) -> Result:
    r"""Run :math:`h_t = σ(U x_t + W h_{t-1} + b)` over a sequence.

    Args:
        x: Inputs of shape ``(T, B, m)``, or ``(rows, m)`` with ``batch_sizes``.
        h0: Initial states ``(B, n)``.
        weight_ih: U of shape ``(n, m)``; None for the identity (m = n).
        weight_hh: W of shape ``(n, n)``, or a function that returns h Wᵀ for rows h ``(B, n)``. For a
            structured W, a function can be faster.
        bias: b of shape ``(n,)``, or None. For ``"modrelu"`` b is added to the modulus.
        nonlinearity: ``"modrelu"`` (the default, as in the papers), ``"tanh"``, ``"identity"``, ``"relu"``
            (real states only), or any callable.
        batch_sizes: Number of sequences still running at each step, as in a ``PackedSequence``.
        checkpoint_every: Store only one state in every k steps, and compute the other states again in the
            backward pass, k steps at a time. Computing states again adds a third to the work. ``"auto"``
            takes :math:`k = \sqrt T / 2`, which needs the least memory: the memory of about :math:`4 \sqrt T`
            steps instead of T steps. None, the default, stores all states.
        return_output: Whether to return all states, :math:`T B n` numbers. False together with
            ``checkpoint_every`` saves the memory for all states. False without an activation lets powers of W
            compute many steps at a time, which is much faster (on a CPU, for sequences of equal length).

    Returns:
        All states, shaped like x with n features, or None with ``return_output=False``; and the last state of
        each sequence ``(B, n)``.

    Raises:
        ValueError: If the activation or ``checkpoint_every`` has a value that is not listed above, if the
            sequence is empty, or if a shape or dtype does not fit.

    Example:
        >>> x, h0, U, W = torch.ones(3, 1, 1), torch.zeros(1, 1), torch.eye(1), 0.5 * torch.eye(1)
        >>> output, last = spectral_param.functional.rnn(x, h0, U, W, nonlinearity="identity")
        >>> output.flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    check_nonlinearity(nonlinearity)
    check_checkpoint_every(checkpoint_every)
    if not callable(weight_hh):
        check_tensor(weight_hh, "rnn: weight_hh")
    if x.ndim != (3 if batch_sizes is None else 2):
        raise ValueError(
            f"rnn: expected x of shape (T, B, m), or (rows, m) with batch_sizes, got {tuple(x.shape)}."
        )
    sizes = _sizes(x, batch_sizes)
    cell = Cell(weight_ih, weight_hh, bias, nonlinearity)
    rows = Rows(
        x.flatten(0, 1) if batch_sizes is None else x,
        h0,
        sizes,
        resolve_checkpoints(checkpoint_every, len(sizes)),
        return_output,
    )
    _check_shapes(cell, rows, h0)
    if bias is not None:
        # A new Cell is built, because torch 2.6 does not compile ``_replace``.
        cell = Cell(weight_ih, weight_hh, fitting_bias(bias, h0, nonlinearity), nonlinearity)
    output, last = run(cell, rows)
    if output is not None and batch_sizes is None:
        output = output.unflatten(0, x.shape[:2])
    return output, last


def check_checkpoint_every(checkpoint_every: CheckpointEvery) -> None:
    """Raise a ValueError unless the argument is a number of steps, "auto" or None."""
    if checkpoint_every in (None, "auto"):
        return
    if not isinstance(checkpoint_every, (int, np.integer)) or checkpoint_every < 1:
        raise ValueError(
            "checkpoint_every: expected a positive number of steps, 'auto' or None, got "
            f"{checkpoint_every!r}."
        )


def resolve_checkpoints(checkpoint_every: CheckpointEvery, steps: int) -> int | None:
    """Return the number of steps from one stored state to the next; None if all states are stored."""
    return math.ceil(math.sqrt(steps) / 2) if checkpoint_every == "auto" else checkpoint_every


def _check_shapes(cell: Cell, rows: Rows, h0: Tensor) -> None:
    U, W, b, _ = cell
    sizes = rows.sizes
    n = (W if isinstance(W, Tensor) else h0).shape[-1]
    features = n if U is None else U.shape[-1]
    if not sizes:
        raise ValueError("rnn: expected at least one time step, got a sequence of length 0.")
    if any(following > size for size, following in itertools.pairwise(sizes)):
        raise ValueError(
            f"rnn: expected batch_sizes that do not increase, got {sizes}. Sort the sequences, longest first."
        )
    if isinstance(W, Tensor) and W.shape != (n, n):
        raise ValueError(f"rnn: expected weight_hh of shape (n, n) = {(n, n)}, got {tuple(W.shape)}.")
    if U is not None and U.shape != (n, features):
        raise ValueError(f"rnn: expected weight_ih of shape (n, m) = {(n, features)}, got {tuple(U.shape)}.")
    if b is not None and b.shape != (n,):
        raise ValueError(f"rnn: expected bias of shape (n,) = {(n,)}, got {tuple(b.shape)}.")
    if rows.x.shape != (sum(sizes), features):
        raise ValueError(
            f"rnn: expected x of shape (rows, m) = {(sum(sizes), features)}, with all steps stacked, got "
            f"{tuple(rows.x.shape)}."
        )
    if h0.shape != (sizes[0], n):
        raise ValueError(f"rnn: expected h0 of shape (batch, n) = {(sizes[0], n)}, got {tuple(h0.shape)}.")
    for name, factor, other, t in (("weight_ih", U, "x", rows.x), ("weight_hh", W, "h0", h0)):
        if isinstance(factor, Tensor) and factor.dtype != t.dtype:
            raise ValueError(
                f"rnn: expected {other} in the dtype of {name}, {factor.dtype}, got {t.dtype}. Convert one "
                f"of them: {other}.to({name}.dtype)."
            )


def _sizes(x: Tensor, batch_sizes: Sequence[int] | None) -> list[int]:
    """Return the number of rows of each step."""
    if batch_sizes is None:
        return [x.shape[1]] * x.shape[0]
    try:
        return [int(size) for size in batch_sizes]
    except (TypeError, ValueError):
        raise ValueError(
            f"batch_sizes: expected a list of integers, one for each step, got {batch_sizes!r}."
        ) from None
