"""Arguments of a recurrence, and all that comes out of it: outputs and gradients."""

from __future__ import annotations

import torch


def arguments(sizes, features, n, dtype, bias=True, linear=True, nonlinearity="modrelu"):
    def leaf(*shape, scale=1.0, dtype=dtype):
        return (scale * torch.randn(shape, dtype=dtype)).requires_grad_()

    dtype_of_bias = dtype.to_real() if nonlinearity == "modrelu" else dtype
    gain = 0.3 if dtype.is_complex and nonlinearity == "tanh" else 1.0  # away from its poles
    return (
        leaf(sum(sizes), features if linear else n, scale=0.5),
        leaf(sizes[0], n, scale=0.5),
        leaf(n, features, scale=gain) if linear else None,
        leaf(n, n, scale=gain * n**-0.5),
        leaf_of_bias(bias, leaf(n, scale=0.1, dtype=dtype_of_bias)),
    )


def leaf_of_bias(bias, mixed):
    """None, or a bias of mixed signs (True), or a negative one, for which modReLU has a way of its own."""
    if bias == "negative":
        mixed = (-mixed.detach().abs()).to(mixed.dtype).requires_grad_()
    return mixed if bias else None


def results(function, args, *rest, of=(0, 1), **kwargs):
    """Outputs, and every gradient of a random function of them."""
    outputs = function(*args, *rest, **kwargs)
    generator = torch.Generator().manual_seed(1)
    G = [torch.randn(outputs[i].shape, dtype=outputs[i].dtype, generator=generator) for i in of]
    G = [g.to(outputs[i].device) for g, i in zip(G, of, strict=True)]
    leaves = [a for a in args if a is not None and a.requires_grad]
    gradients = torch.autograd.grad([outputs[i] for i in of], leaves, G)
    return [*(outputs[i] for i in of), *gradients]


def assert_same(found, expected, tolerance=None) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)
