r"""A whole sequence of the recurrence h_t = σ(U x_t + W h_{t-1} + b).

Two paths with the same results. :func:`rnn_reference` is a loop of autograd operations, for any
activation and any dtype. ``_Recurrence`` is one autograd Function for the whole sequence, for the
named activations and real tensors: autograd's record of some ten operations for each time step costs
several times what they compute.

Backward through time, with G_t the gradient that arrives at h_t from outside:

.. math:: δ_t = (G_t + W^T δ_{t+1}) ⊙ σ'_t, \qquad
          dU = \sum_t δ_t x_t^T, \quad dW = \sum_t δ_t h_{t-1}^T, \quad dx_t = U^T δ_t.

σ'_t is known from h_t alone for every named activation (modReLU: 1 where h_t ≠ 0, and the
derivative with respect to its bias is sign(h_t)), so the states are all that is kept.

Rows: all time steps lie below each other in one matrix, step t with batch_sizes[t] rows, as in a
``PackedSequence``: longer sequences first, so the rows of step t continue the first rows of step t-1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from spectral_param.functional.modrelu import modrelu
from spectral_param.functional.precision import full_precision
from spectral_param.kernels import select

Named = Literal["modrelu", "relu", "tanh", "identity"]
Nonlinearity = Named | Callable[[Tensor], Tensor]
NAMES = get_args(Named)


def activate(z: Tensor, bias: Tensor | None, nonlinearity: Nonlinearity) -> Tensor:
    """Return σ(z + b), or modReLU(z, b), whose bias works on the modulus instead.

    Args:
        z: Pre-activation ``(..., n)``.
        bias: ``(n,)`` or None for none.
        nonlinearity: A name, or any function of one tensor.
    """
    if nonlinearity == "modrelu":
        if bias is None:
            return modrelu(z, z.real.new_zeros(()))
        # Module.to makes the real bias of a complex network complex.
        return modrelu(z, bias.real if bias.is_complex() else bias)
    if bias is not None:
        z = z + bias
    if nonlinearity == "relu":
        return torch.relu(z)
    if nonlinearity == "tanh":
        return torch.tanh(z)
    return z if nonlinearity == "identity" else nonlinearity(z)


def check_nonlinearity(nonlinearity: Nonlinearity) -> None:
    """Raise unless the activation is known or callable.

    Args:
        nonlinearity: What the user asked for.

    Raises:
        ValueError: If it is neither.
    """
    if nonlinearity not in NAMES and not callable(nonlinearity):
        raise ValueError(
            f"nonlinearity: expected one of {', '.join(NAMES)} or a callable, got {nonlinearity!r}."
        )


def rnn(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    nonlinearity: Nonlinearity = "modrelu",
    batch_sizes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Run :math:`h_t = σ(U x_t + W h_{t-1} + b)` over a sequence.

    Args:
        x: Inputs of shape ``(T, B, m)``, or ``(rows, m)`` with ``batch_sizes``.
        h0: Initial states ``(B, n)``.
        weight_ih: U of shape ``(n, m)``; None for the identity (m = n).
        weight_hh: W of shape ``(n, n)``.
        bias: b of shape ``(n,)``, or None. For ``"modrelu"`` it is the bias of the modulus.
        nonlinearity: ``"modrelu"``, ``"relu"``, ``"tanh"``, ``"identity"``, or any callable.
        batch_sizes: Number of sequences still running at each step, as in a ``PackedSequence``.

    Returns:
        All states, shaped like x with n features, and the last state of each sequence ``(B, n)``.

    Raises:
        ValueError: If the activation is unknown, the sequence is empty, or h0 does not fit.

    Example:
        >>> x, h0, U, W = torch.ones(3, 1, 1), torch.zeros(1, 1), torch.eye(1), 0.5 * torch.eye(1)
        >>> output, last = spectral_param.functional.rnn(x, h0, U, W, nonlinearity="identity")
        >>> output.flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    check_nonlinearity(nonlinearity)
    sizes = [x.shape[1]] * x.shape[0] if batch_sizes is None else [int(b) for b in batch_sizes]
    if not sizes:
        raise ValueError("rnn: expected at least one time step, got a sequence of length 0.")
    if h0.shape != (sizes[0], weight_hh.shape[-1]):
        raise ValueError(
            f"rnn: expected h0 of shape (batch, n) = {(sizes[0], weight_hh.shape[-1])}, got "
            f"{tuple(h0.shape)}."
        )
    rows = x.flatten(0, 1) if batch_sizes is None else x
    tensors = [t for t in (rows, h0, weight_ih, weight_hh, bias) if t is not None]
    if _has_fast_path(nonlinearity, tensors):
        output, last = _Recurrence.apply(  # type: ignore[no-untyped-call]
            rows, h0, weight_ih, weight_hh, bias, nonlinearity, sizes
        )
    else:
        output, last = rnn_reference(rows, h0, weight_ih, weight_hh, bias, nonlinearity, sizes)
    if batch_sizes is None:
        output = output.unflatten(0, x.shape[:2])
    return output, last


def _has_fast_path(nonlinearity: Nonlinearity, tensors: list[Tensor]) -> bool:
    """Return whether ``_Recurrence`` serves: named activation, ordinary real tensors of one dtype."""
    if torch.compiler.is_compiling() or nonlinearity not in NAMES:
        return False
    return all(
        t.dtype == tensors[0].dtype
        and not t.is_complex()
        and t.numel() > 0
        and not _is_batched(t)
        and forward_ad.unpack_dual(t).tangent is None
        for t in tensors
    )


def _is_batched(t: Tensor) -> bool:
    """Return whether a transform of torch.func, or the older vmap of autograd, has wrapped t."""
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(t) or functorch.is_legacy_batchedtensor(t)


@full_precision
def rnn_reference(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    nonlinearity: Nonlinearity,
    batch_sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Run the recurrence as a loop of autograd operations.

    Args:
        x: Inputs ``(rows, m)``, steps below each other.
        h0: Initial states ``(B, n)``.
        weight_ih: ``(n, m)``, or None for the identity.
        weight_hh: ``(n, n)``.
        bias: ``(n,)`` or None.
        nonlinearity: A name or a callable.
        batch_sizes: Rows of each step, not increasing.

    Returns:
        All states ``(rows, n)`` and the last state of each sequence ``(B, n)``.
    """
    z = x if weight_ih is None else x @ weight_ih.mT
    h = h0
    states = []
    for projected in z.split(list(batch_sizes)):
        running = len(projected)
        new = activate(projected + h[:running] @ weight_hh.mT, bias, nonlinearity)
        states.append(new)
        h = new if running == len(h) else torch.cat([new, h[running:]])
    return torch.cat(states), h


class _Recurrence(torch.autograd.Function):
    """The same for a named activation, walking back through time by hand."""

    @staticmethod
    @full_precision
    def forward(
        x: Tensor,
        h0: Tensor,
        weight_ih: Tensor | None,
        weight_hh: Tensor,
        bias: Tensor | None,
        nonlinearity: Named,
        batch_sizes: list[int],
    ) -> tuple[Tensor, Tensor]:
        # One buffer for everything: a step's rows start as U x_t and become h_t in place.
        contiguous = torch.contiguous_format
        states = x.clone(memory_format=contiguous) if weight_ih is None else x @ weight_ih.mT
        if bias is not None and nonlinearity != "modrelu":
            states += bias
        if (kernel := select.choose(states, len(h0))) != "torch":
            threshold = bias if nonlinearity == "modrelu" else None
            forward = select.load(kernel).forward
            return states, forward(states, h0, weight_hh, threshold, nonlinearity, batch_sizes)
        threshold = x.new_zeros(()) if bias is None else bias
        weight = weight_hh.mT
        previous = h0
        for step in states.split(batch_sizes):
            step.addmm_(previous[: len(step)], weight)
            _activate_(step, threshold, nonlinearity)
            previous = step
        return states, states[_last_rows(batch_sizes, x.device)]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:5], output[0])
        ctx.nonlinearity, ctx.batch_sizes = inputs[5:]

    @staticmethod
    @full_precision
    def backward(ctx: Any, g_states: Tensor, g_last: Tensor) -> tuple[Tensor | None, ...]:
        x, h0, weight_ih, weight_hh, _, states = ctx.saved_tensors
        if torch.is_grad_enabled() or _is_batched(g_states) or _is_batched(g_last):
            # create_graph=True, so this backward pass will itself be differentiated; or it is mapped
            # over many gradients at once, which in-place steps cannot be.
            with torch.enable_grad():
                return _reference_backward(ctx, g_states, g_last)
        batch_sizes: list[int] = ctx.batch_sizes
        if (kernel := select.choose(states, len(h0))) != "torch":
            walk = select.load(kernel).backward
            delta, carry = walk(states, g_states, g_last, weight_hh, ctx.nonlinearity, batch_sizes)
        else:
            delta, carry = _walk_back(states, g_states, g_last, weight_hh, ctx.nonlinearity, batch_sizes)

        needs = ctx.needs_input_grad
        g_x = g_weight_ih = g_weight_hh = g_bias = None
        if needs[0]:
            g_x = delta if weight_ih is None else delta @ weight_ih
        if needs[2]:
            g_weight_ih = delta.mT @ x
        if needs[3]:
            first, later = delta.split([batch_sizes[0], len(delta) - batch_sizes[0]])
            g_weight_hh = torch.addmm(first.mT @ h0, later.mT, _previous(states, batch_sizes))
        if needs[4]:
            sign = states.sign() if ctx.nonlinearity == "modrelu" else 1
            g_bias = (delta * sign).sum(dim=0)
        return g_x, carry, g_weight_ih, g_weight_hh, g_bias, None, None


def _walk_back(
    states: Tensor,
    g_states: Tensor,
    g_last: Tensor,
    weight_hh: Tensor,
    nonlinearity: Named,
    batch_sizes: list[int],
) -> tuple[Tensor, Tensor]:
    """Return δ_t for all rows, and the gradient of h0."""
    delta = _derivative(states, nonlinearity)
    # Row i: what the later steps send to the state of sequence i, at first the gradient of its
    # last state. A sequence that has ended waits until the walk back reaches its last step.
    carry = g_last.clone(memory_format=torch.contiguous_format)
    steps = list(zip(delta.split(batch_sizes), g_states.split(batch_sizes), strict=True))
    for step, arriving in reversed(steps):
        running = carry[: len(step)]
        step.mul_(running.add_(arriving))
        torch.mm(step, weight_hh, out=running)
    return delta, carry


def _reference_backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients with a graph of their own, through the reference path."""
    # Aliases: the saved tensors may depend on each other (a state carried over, a shared weight), and
    # only what goes through this call belongs into its gradient.
    tensors: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:5]]
    x, h0, weight_ih, weight_hh, bias = tensors
    outputs = rnn_reference(x, h0, weight_ih, weight_hh, bias, ctx.nonlinearity, ctx.batch_sizes)
    wanted = [t for t, needed in zip(tensors, ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True, allow_unused=True))
    return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:5]), None, None)


def _activate_(z: Tensor, bias: Tensor, nonlinearity: Named) -> None:
    if nonlinearity == "modrelu":
        modulus = z.abs().add_(bias).relu_()
        z.sign_().mul_(modulus)
    elif nonlinearity == "relu":
        z.relu_()
    elif nonlinearity == "tanh":
        z.tanh_()


def _derivative(h: Tensor, nonlinearity: Named) -> Tensor:
    """Return σ' from the state h, in a new tensor."""
    if nonlinearity == "tanh":
        return 1 - h.square()
    if nonlinearity == "identity":
        return torch.ones_like(h)
    return (h != 0).to(h.dtype)


def _starts(batch_sizes: Sequence[int]) -> Tensor:
    """Return the first row of each step."""
    return torch.tensor([0, *batch_sizes[:-1]]).cumsum(0)


def _lengths(batch_sizes: Sequence[int]) -> Tensor:
    """Return the number of steps of each sequence."""
    return (torch.tensor(batch_sizes)[:, None] > torch.arange(batch_sizes[0])).sum(dim=0)


def _last_rows(batch_sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return the row of each sequence's last step."""
    starts = _starts(batch_sizes)[_lengths(batch_sizes) - 1]
    return (starts + torch.arange(batch_sizes[0])).to(device)


def reversal(batch_sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return the permutation of rows that turns each sequence back to front; its own inverse.

    Args:
        batch_sizes: Rows of each step, not increasing.
        device: Where to put it.
    """
    step = torch.arange(len(batch_sizes)).repeat_interleave(torch.tensor(batch_sizes))
    sequence = torch.arange(len(step)) - _starts(batch_sizes)[step]
    mirrored = _lengths(batch_sizes)[sequence] - 1 - step
    return (_starts(batch_sizes)[mirrored] + sequence).to(device)


def _previous(states: Tensor, batch_sizes: Sequence[int]) -> Tensor:
    """Return, for each row after the first step, the state of its sequence one step before."""
    batch = batch_sizes[0]
    if batch_sizes[-1] == batch:
        return states[: len(states) - batch]
    pairs = zip(_starts(batch_sizes).tolist(), batch_sizes[1:], strict=False)
    return torch.cat([states[start : start + size] for start, size in pairs])
