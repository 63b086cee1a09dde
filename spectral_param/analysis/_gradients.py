r"""Gradients of hidden states: how strongly a recurrent network depends on its past.

Everything follows from the Jacobians of single steps, :math:`J_τ = ∂s_τ/∂s_{τ-1}` and
:math:`K_t = ∂s_t/∂x_t` for the whole state s (all layers; h and c for an LSTM):

.. math:: ∂s_τ/∂x_t = J_τ J_{τ-1} \cdots J_{t+1} K_t .
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from spectral_param._precision import double_device
from spectral_param.analysis._matrices import as_double, norm_2
from spectral_param.analysis._stepper import State, Stepper, evaluating
from spectral_param.functional._checks import check_matrix, check_square, whole_number, with_arrays


def gradient_norms(
    rnn: nn.Module,
    x: Tensor,
    hx: State | None = None,
    *,
    wrt: Literal["input", "state"] = "input",
    block_sizes: Sequence[int] | None = None,
) -> Tensor:
    """Return :math:`‖∂h_τ/∂x_t‖_2` or :math:`‖∂h_τ/∂h_t‖_2` for each pair of time steps and each block.

    Figures 4 and 5 of Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term
    Memory" (AAAI 2020) show :math:`‖∂h_τ^{(S)}/∂x_t‖_2` and :math:`‖∂h_τ^{(L)}/∂x_t‖_2` as heat maps. The
    norms are exact. Jacobians of single steps are computed in the network's precision and multiplied in
    double precision, so that norms as small as 1e-100 do not underflow. A complex state counts as its real
    and imaginary parts.

    With ``wrt="state"``, block i of h_τ is differentiated with respect to block i of h_t, and the rest of the
    state at time t is held fixed. For a BlockRNN this gives the diagonal blocks, for an LSTM the path through
    h alone.

    Args:
        rnn: A module with the interface of :class:`torch.nn.RNN`, with one direction and any number of
            layers: RNN, LSTM, GRU, ``BlockRNN`` and the networks built from it. The module is run in
            evaluation mode. h is the state of its last layer.
        x: Inputs as the module takes them, batched or not.
        hx: Initial state; None, the default, is zeros.
        wrt: ``"input"``, the default, for x_t, or ``"state"`` for h_t.
        block_sizes: Sizes of the blocks of h. None, the default, takes the module's blocks, or else one
            block.

    Returns:
        Tensor of shape ``(blocks, batch, T, T)`` in double precision, without ``batch`` for unbatched input.
        Row τ, column t; 0 for τ < t.

    Raises:
        ValueError: If the module has two directions, or an argument does not fit.

    Example:
        >>> rnn = spectral_param.nn.ENRNN(input_size=2, long_size=24, short_size=16)
        >>> long, short = spectral_param.analysis.gradient_norms(rnn, torch.randn(50, 10, 2))
        >>> short.shape, short[:, 0, 1].max().item()  # no dependence on inputs that come later
        (torch.Size([10, 50, 50]), 0.0)
    """
    if wrt not in ("input", "state"):
        raise ValueError(f"gradient_norms: expected wrt 'input' or 'state', got {wrt!r}.")
    with evaluating(rnn):
        stepper = Stepper(rnn, x, hx, block_sizes, "gradient_norms")
        time, batch = stepper.x.shape[:2]
        rows = stepper.block_rows()
        identity = torch.eye(stepper.start.shape[1], dtype=torch.float64, device=double_device(x.device))
        columns = rows[-1].stop - rows[0].start if wrt == "state" else stepper.x.shape[2]
        products = identity.new_zeros(batch, time, len(identity), columns)
        norms = identity.new_zeros(len(rows), batch, time, time)
        state = stepper.start
        for tau in range(time):
            state, J, K = stepper.jacobians(tau, state)
            products[:, :tau] = J[:, None] @ products[:, :tau]
            products[:, tau] = K if wrt == "input" else identity[:, rows[0].start : rows[-1].stop]
            for block, selected in enumerate(rows):
                part = products[:, : tau + 1, selected]
                if wrt == "state":
                    part = part[..., selected.start - rows[0].start : selected.stop - rows[0].start]
                norms[block, :, tau, : tau + 1] = norm_2(part)
    return norms if x.ndim == 3 else norms[:, 0]


def loss_gradient_norms(
    rnn: nn.Module,
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    hx: State | None = None,
    *,
    block_sizes: Sequence[int] | None = None,
) -> Tensor:
    """Return :math:`‖∂L/∂h_t‖_2` for each time step, sequence and block.

    This is the gradient that reaches h_t through the outputs from t on and through all later states. All
    norms together cost one backward pass. Source: figure 5 of Helfrich, Willmott and Ye, "Orthogonal
    Recurrent Neural Networks with Scaled Cayley Transform" (ICML 2018), appendix C.

    Args:
        rnn: A module with the interface of :class:`torch.nn.RNN`, with one direction, whose output is the
            state of its last layer. The module is run in evaluation mode.
        x: Inputs as the module takes them, batched or not.
        loss: Function of the module's output that returns one real number. Each norm belongs to one sequence,
            so a mean over the batch divides the norms by the batch size.
        hx: Initial state; None, the default, is zeros.
        block_sizes: Sizes of the blocks of h. None, the default, takes the module's blocks, or else one
            block.

    Returns:
        Tensor of shape ``(blocks, batch, T)`` in double precision, without ``batch`` for unbatched input.

    Raises:
        ValueError: If the module has two directions, or an argument does not fit.

    Example:
        >>> rnn, x = spectral_param.nn.ScoRNN(2, 16), torch.randn(30, 4, 2)
        >>> norms = spectral_param.analysis.loss_gradient_norms(rnn, x, lambda output: output[-1].sum())
        >>> norms.shape, torch.allclose(norms[0, :, -1], torch.tensor(16**0.5).double())
        (torch.Size([1, 4, 30]), True)
    """
    with evaluating(rnn):
        stepper = Stepper(rnn, x, hx, block_sizes, "loss_gradient_norms")
        states: list[Tensor] = []
        packed = stepper.start.requires_grad_()
        for t in range(len(stepper.x)):
            packed = stepper.step(stepper.x[t], packed)
            states.append(packed)
        output = torch.stack([stepper.output(state) for state in states])
        if x.ndim == 2:
            output = output[:, 0]
        elif stepper.batch_first:
            output = output.transpose(0, 1)
        value = loss(output)
        if value.numel() != 1 or value.is_complex():
            raise ValueError(
                f"loss_gradient_norms: expected a loss that is one real number, got {value.dtype} of shape "
                f"{tuple(value.shape)}. Take the sum or the mean."
            )
        grads = torch.stack(torch.autograd.grad(value, states, materialize_grads=True))  # (T, B, S)
    norms = [
        torch.linalg.vector_norm(as_double(grads[..., rows]), dim=-1).mT for rows in stepper.block_rows()
    ]
    stacked = torch.stack(norms)
    return stacked if x.ndim == 3 else stacked[:, 0]


@with_arrays
def gradient_norm_bounds(W: Tensor, steps: int, U: Tensor | None = None) -> Tensor:
    r"""Return the bounds of the ENRNN paper's Theorem 3.1 for τ = 0, …, ``steps``.

    .. math:: \left‖\frac{∂h_{t+τ}^{(S)}}{∂h_t^{(S)}}\right‖_2 ≤ ‖W^{(S)}‖_2^τ, \qquad
              \left‖\frac{∂h_{t+τ}^{(S)}}{∂x_t}\right‖_2 ≤ ‖W^{(S)}‖_2^τ\, ‖U^{(S)}‖_2

    for ReLU networks, and for a block that no other block feeds, such as h^(S). Source: Helfrich and Ye (AAAI
    2020); the proof is in section 8.1 of the arXiv version.

    The theorem assumes :math:`‖W^{(S)}‖_2 < 1`. The bounds hold without this assumption, but then they do not
    go to zero. A spectral radius below 1 does not imply a norm below 1: the short-term block of an ENRNN
    usually has a larger norm, and the bounds then say little. The bounds also hold for other activations with
    :math:`|σ'| ≤ 1`: tanh, real modReLU, and complex modReLU with biases ≤ 0. The bounds do not hold in every
    norm, because in norms other than the 2-norm the diagonal matrix of σ' can have a norm above 1.

    Args:
        W: Recurrent matrix of the block, ``(..., k, k)``.
        steps: Largest lag τ.
        U: Input matrix of the block, ``(..., k, m)``, for the second bound. None, the default, gives the
            first.

    Returns:
        Real tensor of shape ``(..., steps + 1)`` in double precision, NaN where a matrix is not finite.

    Raises:
        NotSquareError: If W is not square.
        ValueError: If ``steps`` is less than 1, or U and W have different numbers of rows.

    Example:
        >>> W, U = torch.tensor([[0.0, 0.5], [-0.5, 0.0]]), torch.tensor([[2.0], [0.0]])
        >>> spectral_param.analysis.gradient_norm_bounds(W, 3, U)
        tensor([2.0000, 1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    steps = whole_number(steps, "gradient_norm_bounds: steps")
    check_matrix(W, "gradient_norm_bounds")
    W = as_double(W)
    check_square(W, "gradient_norm_bounds")
    lags = torch.arange(steps + 1, dtype=torch.float64, device=W.device)
    norm = norm_2(W)[..., None]
    bounds = torch.where(norm.isnan(), norm, norm**lags)  # NaN to the power of 0 would be 1.
    if U is None:
        return bounds
    if U.ndim < 2 or U.shape[-2] != W.shape[-1] or U.numel() == 0:
        raise ValueError(
            f"gradient_norm_bounds: expected U of shape (..., k, m) with k = {W.shape[-1]}, got "
            f"{tuple(U.shape)}."
        )
    scale = norm_2(as_double(U))[..., None]
    # For U = 0 the bound is 0 even if the power of the norm is infinite.
    return torch.where((scale == 0) & ~bounds.isnan(), 0, bounds * scale)
