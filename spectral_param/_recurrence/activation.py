"""The activations that have a name (modReLU and others), and their biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

Named = Literal["modrelu", "relu", "tanh", "identity"]
Nonlinearity = Named | Callable[[Tensor], Tensor]
NAMES = get_args(Named)


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    r"""Return :math:`\frac{z}{|z|}\,\mathrm{ReLU}(|z| + b)`, for real or complex z.

    modReLU keeps the sign (the phase) of z and thresholds the modulus. For real z, modReLU has the derivative
    1 where its value is not 0, so gradients through an orthogonal recurrence keep their size. Source:
    Arjovsky, Shah and Bengio (2016); Helfrich, Willmott and Ye (2018), eq. (3).

    Args:
        z: The pre-activations, of any shape, real or complex.
        bias: The real b, broadcast against z. With a positive bias the function jumps at z = 0, where its
            value and its derivative are defined as 0.

    Returns:
        Tensor like z.

    Example:
        >>> spectral_param.functional.modrelu(torch.tensor([-2.0, 0.5, 3.0]), torch.tensor(-1.0))
        tensor([-1.,  0.,  2.])
    """
    return torch.sgn(z) * torch.relu(z.abs() + bias)


def check_nonlinearity(nonlinearity: Nonlinearity) -> None:
    """Raise a ValueError unless the activation is known or callable."""
    if nonlinearity not in NAMES and not callable(nonlinearity):
        raise ValueError(
            f"nonlinearity: expected one of {', '.join(NAMES)} or a callable, got {nonlinearity!r}."
        )


def fitting_bias(bias: Tensor, z: Tensor, nonlinearity: Nonlinearity) -> Tensor:
    """Return the bias ``(n,)`` in the dtype that fits pre-activations or states z.

    The dtype may not fit, because Module.to(complex) makes the real bias of modReLU complex, and because
    Module.double converts a real bias but not complex weights. All activations except modReLU add the bias
    to z.
    """
    if nonlinearity == "modrelu":
        bias = bias.real
    if not z.is_complex():
        return bias
    return bias.to(z.real.dtype if nonlinearity == "modrelu" else z.dtype)


def activate(z: Tensor, bias: Tensor | None, nonlinearity: Nonlinearity) -> Tensor:
    """Return σ(z + b), or modReLU(z, b), for pre-activations z ``(..., n)`` and a bias ``(n,)`` or None.

    Raises:
        ValueError: If the activation is ``"relu"`` and z is complex.
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
                f"nonlinearity: expected an activation that is defined for {z.dtype}, got 'relu'. Take "
                "'modrelu', or give the network a real dtype."
            )
        return torch.relu(z)
    if nonlinearity == "tanh":
        return torch.tanh(z)
    return z if nonlinearity == "identity" else nonlinearity(z)
