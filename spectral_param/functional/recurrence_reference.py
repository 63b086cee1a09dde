"""The recurrence as a loop of autograd operations: for any activation, dtype and transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spectral_param.functional.modrelu import modrelu
from spectral_param.functional.recurrence_segments import segments
from spectral_param.precision import without_autocast

Named = Literal["modrelu", "relu", "tanh", "identity"]
Nonlinearity = Named | Callable[[Tensor], Tensor]
NAMES = get_args(Named)
# W by its entries, or as a function h -> h Wᵀ of rows h.
Recurrent = Tensor | Callable[[Tensor], Tensor]


def fitting_bias(bias: Tensor, z: Tensor, nonlinearity: Nonlinearity) -> Tensor:
    """Return the bias in the dtype that it has to have for z.

    Module.to makes the real bias of modReLU complex, and Module.double converts a real bias beside complex
    weights that stay as they are.

    Args:
        bias: ``(n,)``.
        z: Pre-activation, or a state, which has the same dtype.
        nonlinearity: A name, or any function of one tensor. All but modReLU add their bias to z.
    """
    if nonlinearity == "modrelu":
        bias = bias.real
    if not z.is_complex():
        return bias
    return bias.to(z.real.dtype if nonlinearity == "modrelu" else z.dtype)


def activate(z: Tensor, bias: Tensor | None, nonlinearity: Nonlinearity) -> Tensor:
    """Return σ(z + b), or modReLU(z, b), whose bias works on the modulus instead.

    Args:
        z: Pre-activation ``(..., n)``.
        bias: ``(n,)`` or None for none.
        nonlinearity: A name, or any function of one tensor.

    Raises:
        ValueError: If it is ``"relu"`` and z is complex.
    """
    if nonlinearity == "modrelu":
        if bias is None:
            return modrelu(z, z.real.new_zeros(()))
        return modrelu(z, fitting_bias(bias, z, nonlinearity))
    if bias is not None:
        z = z + fitting_bias(bias, z, nonlinearity)
    if nonlinearity == "relu":
        if z.is_complex():
            raise ValueError(
                f"nonlinearity: expected one that is defined for {z.dtype}, got 'relu'. Take 'modrelu', "
                "which is its counterpart for complex states, or give the network a real dtype."
            )
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


@without_autocast
def rnn_reference(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Recurrent,
    bias: Tensor | None,
    nonlinearity: Nonlinearity,
    batch_sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Run the recurrence as a loop of autograd operations.

    Args:
        x: Inputs ``(rows, m)``, steps below each other.
        h0: Initial states ``(B, n)``.
        weight_ih: ``(n, m)``, or None for the identity.
        weight_hh: ``(n, n)``, or a function h -> h Wᵀ.
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
        product = h[:running] @ weight_hh.mT if isinstance(weight_hh, Tensor) else weight_hh(h[:running])
        new = activate(projected + product, bias, nonlinearity)
        states.append(new)
        h = new if running == len(h) else torch.cat([new, h[running:]])
    return torch.cat(states), h


def rnn_checkpointed(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Recurrent,
    bias: Tensor | None,
    nonlinearity: Nonlinearity,
    batch_sizes: Sequence[int],
    checkpoint_every: int,
    return_output: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Run the same loop, keeping one state in so many for backward, which runs the loop again.

    Args:
        x: Inputs ``(rows, m)``, steps below each other.
        h0: Initial states ``(B, n)``.
        weight_ih: ``(n, m)``, or None for the identity.
        weight_hh: ``(n, n)``, or a function h -> h Wᵀ.
        bias: ``(n,)`` or None.
        nonlinearity: A name or a callable.
        batch_sizes: Rows of each step, not increasing.
        checkpoint_every: Number of steps from one kept state to the next.
        return_output: Whether all states are wanted.

    Returns:
        All states ``(rows, n)``, or None, and the last state of each sequence ``(B, n)``.
    """
    h = h0
    states = []
    for segment in segments(batch_sizes, checkpoint_every):
        running = segment.sizes[0]
        part, new = checkpoint(
            rnn_reference,
            x[segment.rows],
            h[:running],
            weight_ih,
            weight_hh,
            bias,
            nonlinearity,
            segment.sizes,
            use_reentrant=False,
        )
        if return_output:
            states.append(part)
        h = new if running == len(h) else torch.cat([new, h[running:]])
    return torch.cat(states) if return_output else None, h
