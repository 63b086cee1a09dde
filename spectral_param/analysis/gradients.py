r"""Gradients of hidden states: how strongly a recurrent network depends on its past.

Everything follows from the Jacobians of single steps, :math:`J_τ = ∂s_τ/∂s_{τ-1}` and
:math:`K_t = ∂s_t/∂x_t` for the whole state s (all layers; h and c for an LSTM):

.. math:: ∂s_τ/∂x_t = J_τ J_{τ-1} \cdots J_{t+1} K_t .

A Jacobian takes as many backward passes as there are state variables; they are run as one, on a batch that
repeats each sequence that many times. Complex states count as pairs of real ones: modReLU is not
complex-differentiable, and the norms are those of the real linear map.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.analysis.matrices import as_double, check_steps, norm_2

State = Tensor | tuple[Tensor, ...]


def gradient_norms(
    rnn: nn.Module,
    x: Tensor,
    hx: State | None = None,
    *,
    wrt: Literal["input", "state"] = "input",
    block_sizes: Sequence[int] | None = None,
    norm: Literal["spectral", "frobenius"] = "spectral",
) -> Tensor:
    r"""Return :math:`‖∂h_τ/∂x_t‖` or :math:`‖∂h_τ/∂h_t‖` for each pair of time steps and each block.

    Figures 4 and 5 of Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term
    Memory" (AAAI 2020) are :math:`‖∂h_τ^{(S)}/∂x_t‖_2` and :math:`‖∂h_τ^{(L)}/∂x_t‖_2` as heat maps. The
    norms are exact, not estimates. Steps are differentiated in the network's precision and multiplied in
    double precision, so what has vanished to 1e-100 is still a number.

    For ``wrt="state"`` block i of h_τ is differentiated by block i of h_t, everything else in the state of
    time t held fixed: the diagonal blocks of a BlockRNN, and for an LSTM the path through h alone.

    Args:
        rnn: A module with the interface of :class:`torch.nn.RNN`, one direction, any number of layers:
            ``BlockRNN`` and the networks made of it, RNN, LSTM, GRU. It is run in evaluation mode. h is
            the state of its last layer.
        x: Inputs, batched or not, as the module takes them.
        hx: Initial state; zeros by default.
        wrt: What h_τ is differentiated by.
        block_sizes: Sizes of the blocks of h. Those of the module, where it has them, or one block.
        norm: ``"spectral"``, the largest singular value, as in the paper, or ``"frobenius"``.

    Returns:
        Tensor of shape ``(blocks, batch, T, T)``, without ``batch`` for unbatched input, in double precision:
        row τ, column t, and 0 for τ < t.

    Raises:
        ValueError: If the module has two directions, or an argument does not fit.

    Example:
        >>> rnn = spectral_param.nn.ENRNN(input_size=2, long_size=24, short_size=16)
        >>> long, short = spectral_param.analysis.gradient_norms(rnn, torch.randn(50, 10, 2))
        >>> short.shape, short[:, 0, 1].max().item()  # nothing depends on what is not yet read
        (torch.Size([10, 50, 50]), 0.0)
    """
    if wrt not in ("input", "state") or norm not in ("spectral", "frobenius"):
        raise ValueError(
            "gradient_norms: expected wrt 'input' or 'state' and norm 'spectral' or 'frobenius', got "
            f"{wrt!r} and {norm!r}."
        )
    with _evaluating(rnn):
        stepper = _Stepper(rnn, x, hx, block_sizes, "gradient_norms")
        time, batch = stepper.x.shape[:2]
        rows = stepper.block_rows()
        identity = torch.eye(stepper.start.shape[1], dtype=torch.float64, device=x.device)
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
                norms[block, :, tau, : tau + 1] = (
                    norm_2(part) if norm == "spectral" else torch.linalg.matrix_norm(part)
                )
    return norms if x.ndim == 3 else norms[:, 0]


def loss_gradient_norms(
    rnn: nn.Module,
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    hx: State | None = None,
    *,
    block_sizes: Sequence[int] | None = None,
) -> Tensor:
    r"""Return :math:`‖∂L/∂h_t‖_2` for each time step, sequence and block.

    Figure 5 of Helfrich, Willmott and Ye, "Orthogonal Recurrent Neural Networks with Scaled Cayley
    Transform" (ICML 2018), appendix C: the gradient that arrives at h_t through the outputs from t on and
    through all later states. One backward pass.

    Args:
        rnn: A module with the interface of :class:`torch.nn.RNN`, one direction, whose output is the state
            of its last layer. It is run in evaluation mode.
        x: Inputs, batched or not, as the module takes them.
        loss: Function of the module's output that returns one real number. Note whether it takes the mean
            over the batch: the norms are of single sequences, and the mean divides them by the batch size.
        hx: Initial state; zeros by default.
        block_sizes: Sizes of the blocks of h. Those of the module, where it has them, or one block.

    Returns:
        Tensor of shape ``(blocks, batch, T)``, without ``batch`` for unbatched input, in double precision.

    Raises:
        ValueError: If the module has two directions, or an argument does not fit.

    Example:
        >>> rnn, x = spectral_param.nn.ScoRNN(2, 16), torch.randn(30, 4, 2)
        >>> norms = spectral_param.analysis.loss_gradient_norms(rnn, x, lambda output: output[-1].sum())
        >>> norms.shape, torch.allclose(norms[0, :, -1], torch.tensor(16**0.5).double())
        (torch.Size([1, 4, 30]), True)
    """
    with _evaluating(rnn):
        stepper = _Stepper(rnn, x, hx, block_sizes, "loss_gradient_norms")
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


def gradient_norm_bounds(W: Tensor, steps: int, U: Tensor | None = None) -> Tensor:
    r"""Return the bounds of the ENRNN paper's Theorem 3.1 for τ = 0, …, ``steps``.

    .. math:: \left‖\frac{∂h_{t+τ}^{(S)}}{∂h_t^{(S)}}\right‖_2 ≤ ‖W^{(S)}‖_2^τ, \qquad
              \left‖\frac{∂h_{t+τ}^{(S)}}{∂x_t}\right‖_2 ≤ ‖W^{(S)}‖_2^τ\, ‖U^{(S)}‖_2

    for ReLU networks. Helfrich and Ye (AAAI 2020), proof in section 8.1 of the arXiv version; no error found
    in it, numerically or otherwise. Its assumption :math:`‖W^{(S)}‖_2 < 1` is needed for the bounds to go to
    zero, not for them to hold, and a spectral radius below 1 does not imply it: the short-term block of an
    ENRNN usually has a norm above 1, where the bounds say little. What the proof needs of the activation is
    :math:`|σ'| ≤ 1`: true for tanh, for real modReLU, and for complex modReLU with biases ≤ 0. It needs the
    2-norm, too: in other norms, one where :math:`‖W^{(S)}‖ ≈ ρ(W^{(S)})` for instance, the diagonal matrix of
    σ' can have a norm above 1. The bound is for a block that no other feeds, as h^(S).

    Args:
        W: Recurrent matrix of the block, ``(..., k, k)``.
        steps: Largest lag τ.
        U: Input map of the block, ``(..., k, m)``, for the second bound; the first one without it.

    Returns:
        Real tensor of shape ``(..., steps + 1)`` in double precision, NaN where a matrix is not finite.

    Raises:
        ValueError: If ``steps`` is smaller than 1.

    Example:
        >>> W, U = torch.tensor([[0.0, 0.5], [-0.5, 0.0]]), torch.tensor([[2.0], [0.0]])
        >>> spectral_param.analysis.gradient_norm_bounds(W, 3, U)
        tensor([2.0000, 1.0000, 0.5000, 0.2500], dtype=torch.float64)
    """
    check_steps(steps, "gradient_norm_bounds")
    lags = torch.arange(steps + 1, dtype=torch.float64, device=W.device)
    norm = norm_2(as_double(W))[..., None]
    bounds = torch.where(norm.isnan(), norm, norm**lags)  # NaN to the power of 0 is 1.
    return bounds if U is None else bounds * norm_2(as_double(U))[..., None]


@contextlib.contextmanager
def _evaluating(rnn: nn.Module) -> Iterator[None]:
    """Without dropout, with each constrained weight built once, with gradients, cuDNN's RNNs excepted."""
    modes = {module: module.training for module in rnn.modules()}
    rnn.eval()
    try:
        # In evaluation mode cuDNN's recurrent networks have no backward pass.
        with torch.enable_grad(), parametrize.cached(), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


class _Stepper:
    """One step of a module as a function of real matrices: inputs (B, m) and packed states (B, S)."""

    def __init__(
        self, rnn: nn.Module, x: Tensor, hx: State | None, block_sizes: Sequence[int] | None, name: str
    ) -> None:
        if getattr(rnn, "bidirectional", False):
            raise ValueError(
                f"{name}: expected a network of one direction, got a bidirectional one, whose states depend "
                "on the future, too. Analyse a network of each direction."
            )
        if x.ndim not in (2, 3) or x.numel() == 0:
            raise ValueError(
                f"{name}: expected inputs of 2 (unbatched) or 3 dimensions, got shape {tuple(x.shape)}."
            )
        self.rnn = rnn
        self.batch_first = bool(getattr(rnn, "batch_first", False))
        if x.ndim == 2:
            x = x[:, None]
        elif self.batch_first:
            x = x.transpose(0, 1)
        self.input_is_complex = x.is_complex()
        self.x = _as_real(x.detach())
        like = self._call(x[:1].detach(), None)
        parts = [torch.zeros_like(part) for part in _parts(like)]
        if hx is not None:
            if [part.numel() for part in _parts(hx)] != [part.numel() for part in parts]:
                raise ValueError(
                    f"{name}: expected hx of shape {[tuple(part.shape) for part in parts]} (without batch for "
                    f"unbatched input), got {[tuple(part.shape) for part in _parts(hx)]}."
                )
            parts = [h.detach().to(p.dtype).reshape(p.shape) for h, p in zip(_parts(hx), parts, strict=True)]
        self.is_tuple = isinstance(like, tuple)
        self.shapes = [(len(p), p.shape[2], p.is_complex()) for p in parts]
        self.start = self._pack(parts)
        layers, n, is_complex = self.shapes[0]
        self.sizes = list(block_sizes or getattr(rnn, "block_sizes", None) or [n])
        if sum(self.sizes) != n or min(self.sizes) < 1:
            raise ValueError(
                f"{name}: expected block_sizes that are positive and add up to the hidden size {n}, got "
                f"{self.sizes}."
            )
        self.width = 2 if is_complex else 1
        self.last_layer = slice((layers - 1) * n * self.width, layers * n * self.width)

    def block_rows(self) -> list[slice]:
        """Return where the blocks of the last layer's h stand in a packed state."""
        ends = [self.last_layer.start + self.width * end for end in accumulate(self.sizes, initial=0)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def step(self, x: Tensor, packed: Tensor) -> Tensor:
        """Return the packed state after one step."""
        if self.input_is_complex:
            x = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        hx = self._unpack(packed)
        return self._pack(list(_parts(self._call(x[None], hx))))

    def jacobians(self, t: int, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next state, (B, S, S) by the state before and (B, S, m) by the input, both double."""
        batch, size = packed.shape
        state = packed.repeat_interleave(size, dim=0).requires_grad_()
        x = self.x[t].repeat_interleave(size, dim=0).requires_grad_()
        new = self.step(x, state)
        cotangents = torch.eye(size, dtype=new.dtype, device=new.device).repeat(batch, 1)
        K, J = torch.autograd.grad(new, (x, state), cotangents, materialize_grads=True)
        shape = (batch, size, -1)
        return new.detach()[::size], as_double(J.reshape(shape)), as_double(K.reshape(shape))

    def output(self, packed: Tensor) -> Tensor:
        """Return the module's output at one step, (B, features), from its state."""
        h = packed[:, self.last_layer]
        if self.width == 2:
            h = torch.view_as_complex(h.unflatten(-1, (-1, 2)))
            return torch.cat([h.real, h.imag], dim=-1) if getattr(self.rnn, "real_output", False) else h
        return h

    def _call(self, x: Tensor, hx: State | None) -> Any:
        return self.rnn(x.transpose(0, 1) if self.batch_first else x, hx)[1]

    def _pack(self, parts: list[Tensor]) -> Tensor:  # (layers, B, n) each -> (B, S)
        return torch.cat([_as_real(part).transpose(0, 1).flatten(1) for part in parts], dim=1)

    def _unpack(self, packed: Tensor) -> State:
        parts = []
        widths = [layers * n * (2 if is_complex else 1) for layers, n, is_complex in self.shapes]
        for part, (layers, _, is_complex) in zip(packed.split(widths, dim=1), self.shapes, strict=True):
            part = part.unflatten(1, (layers, -1)).transpose(0, 1)
            part = torch.view_as_complex(part.unflatten(-1, (-1, 2))) if is_complex else part.contiguous()
            parts.append(part)
        return tuple(parts) if self.is_tuple else parts[0]


def _parts(state: State) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _as_real(X: Tensor) -> Tensor:
    """Return (..., n) complex as (..., 2 n) real."""
    return torch.view_as_real(X.resolve_conj()).flatten(-2) if X.is_complex() else X
