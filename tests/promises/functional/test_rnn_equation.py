"""The recurrence is its equation, written out step by step: outputs and gradients, short and long."""

import pytest
import torch

from spectral_param.functional import rnn

ACTIVATIONS = {
    "modrelu": lambda z, b: torch.sgn(z) * torch.relu(z.abs() + b),
    "tanh": lambda z, b: torch.tanh(z + b),
    "relu": lambda z, b: torch.relu(z + b),
    "identity": lambda z, b: z + b,
}


def in_plain_sight(x, h, U, W, b, nonlinearity, sizes):
    """The equation, step by step."""
    states = []
    for rows in x.split(sizes):
        new = ACTIVATIONS[nonlinearity](rows @ U.mT + h[: len(rows)] @ W.mT, b)
        states.append(new)
        h = torch.cat([new, h[len(rows) :]])
    return torch.cat(states), h


@pytest.mark.parametrize("checkpoint_every", [None, 2])
@pytest.mark.parametrize("sizes", [[3] * 6, [4, 3, 2, 2, 1]], ids=str)
@pytest.mark.parametrize(
    ("nonlinearity", "dtype"),
    [
        *((name, torch.float64) for name in ACTIVATIONS),
        *((name, torch.complex128) for name in ACTIVATIONS if name != "relu"),
    ],
)
def test_recurrence_and_its_gradient_are_those_of_the_equation(
    nonlinearity, dtype, sizes, checkpoint_every
) -> None:
    n, m = 5, 2
    real_bias = nonlinearity == "modrelu" or not dtype.is_complex
    x, h, U, W = (torch.randn(s, dtype=dtype) for s in ((sum(sizes), m), (sizes[0], n), (n, m), (n, n)))
    W = W / torch.linalg.matrix_norm(W, 2)
    b = torch.randn(n, dtype=torch.float64 if real_bias else dtype) / 4  # Of both signs.
    tensors = [t.requires_grad_() for t in (x, h, U, W, b)]
    results = [
        rnn(*tensors, nonlinearity, sizes, checkpoint_every=checkpoint_every),
        in_plain_sight(*tensors, nonlinearity, sizes),
    ]
    G = [torch.randn_like(t) for t in results[0]]
    gradients = [torch.autograd.grad(each, tensors, G) for each in results]
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("return_output", [True, False])
@pytest.mark.parametrize("sizes", [[2] * 1003, [2] * 500 + [1] * 503], ids=["equal", "packed"])
def test_linear_recurrence_of_many_steps_is_that_of_the_equation(sizes, return_output) -> None:
    n, m = 4, 2
    x, h, U = (torch.randn(s, dtype=torch.float64) for s in ((sum(sizes), m), (2, n), (n, m)))
    W, b = (
        0.99 * torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q,
        torch.ones(n, dtype=torch.float64),
    )
    output, last = rnn(x, h, U, W, b, "identity", sizes, return_output=return_output)
    expected, expected_last = in_plain_sight(x, h, U, W, b, "identity", sizes)
    torch.testing.assert_close(last, expected_last)
    if return_output:
        torch.testing.assert_close(output, expected)
