"""Single steps of a recurrent module, and their Jacobians.

A Jacobian needs one backward pass for each state variable. These passes run as a single pass over a batch
that repeats each sequence once for each state variable. Complex states count as pairs of real numbers,
because modReLU is not complex-differentiable; norms refer to the real linear map.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.analysis._matrices import as_double
from spectral_param.functional._checks import check_module
from spectral_param.nn._sequence_layer import converted

State = Tensor | tuple[Tensor, ...]


@contextlib.contextmanager
def evaluating(rnn: nn.Module) -> Iterator[None]:
    """Run a module in evaluation mode, but with gradients, and build each constrained weight once.

    Yields:
        Nothing. Afterwards all submodules are in their previous modes.
    """
    check_module(rnn, "rnn")
    modes = {module: module.training for module in rnn.modules()}
    rnn.eval()
    try:
        # In evaluation mode cuDNN's recurrent networks have no backward pass.
        with torch.enable_grad(), parametrize.cached(), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


class Stepper:
    """One step of a module as a function of real matrices: inputs (B, m) and packed states (B, S).

    ``block_sizes`` are the sizes of the blocks of h, or None for the block sizes of the module; ``name`` is
    the caller in messages.

    Raises:
        ValueError: If the module has two directions, or an argument does not fit.
    """

    def __init__(
        self, rnn: nn.Module, x: Tensor, hx: State | None, block_sizes: Sequence[int] | None, name: str
    ) -> None:
        if isinstance(rnn, nn.RNNCellBase):
            raise ValueError(
                f"{name}: expected a module that reads a whole sequence, as torch.nn.RNN, got a "
                f"{type(rnn).__name__}. Take a torch.nn.RNN, LSTM or GRU, and give it the cell's weights."
            )
        if getattr(rnn, "bidirectional", False):
            raise ValueError(
                f"{name}: expected a network of one direction, got a bidirectional one, whose states also "
                "depend on the future. Analyse a network for each direction."
            )
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{name}: expected a tensor of sequences of one length, got {type(x).__name__}. Analyse the "
                "sequences of a PackedSequence one by one."
            )
        if x.ndim not in (2, 3) or x.numel() == 0:
            raise ValueError(
                f"{name}: expected inputs of 2 (unbatched) or 3 dimensions, got shape {tuple(x.shape)}."
            )
        self.rnn = rnn
        self.batch_first = bool(getattr(rnn, "batch_first", False))
        batched = x.ndim == 3
        if not batched:
            x = x[:, None]
        elif self.batch_first:
            x = x.transpose(0, 1)
        self.input_is_complex = x.is_complex()
        self.x = _as_real(x.detach())
        like = self._call(x[:1].detach(), None)
        parts = [torch.zeros_like(part) for part in _parts(like)]
        if hx is not None:
            parts = _states(_parts(hx), parts, batched, name)
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
        """Return the rows of the last layer's blocks in a packed state."""
        ends = [self.last_layer.start + self.width * end for end in accumulate(self.sizes, initial=0)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def step(self, x: Tensor, packed: Tensor) -> Tensor:
        """Return the packed state (B, S) after one step with inputs (B, m)."""
        if self.input_is_complex:
            x = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        hx = self._unpack(packed)
        return self._pack(list(_parts(self._call(x[None], hx))))

    def jacobians(self, t: int, packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (B, S, S), (B, S, m)
        """Return the state after step t, and the Jacobians J and K with respect to state and input."""
        batch, size = packed.shape
        state = packed.repeat_interleave(size, dim=0).requires_grad_()
        x = self.x[t].repeat_interleave(size, dim=0).requires_grad_()
        new = self.step(x, state)
        cotangents = torch.eye(size, dtype=new.dtype, device=new.device).repeat(batch, 1)
        K, J = torch.autograd.grad(new, (x, state), cotangents, materialize_grads=True)
        shape = (batch, size, -1)
        return new.detach()[::size], as_double(J.reshape(shape)), as_double(K.reshape(shape))

    def output(self, packed: Tensor) -> Tensor:
        """Return the module's output at one step, (B, features), from its packed state."""
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


def _states(given: tuple[Tensor, ...], like: list[Tensor], batched: bool, name: str) -> list[Tensor]:
    """Return the parts of a state in the dtypes of the network; raise unless they have the right shapes."""
    shapes = [tuple(part.shape) for part in given]
    expected = [tuple(part.shape if batched else part[:, 0].shape) for part in like]
    if shapes != expected:
        layout = "(layers, batch, n), also with batch_first" if batched else "(layers, n) for unbatched input"
        raise ValueError(f"{name}: expected hx of shape {expected}, got {shapes}. Reshape it to {layout}.")
    pairs = zip(given, like, strict=True)
    return [converted(f"{name}: hx", part.detach(), p.dtype).reshape(p.shape) for part, p in pairs]


def _as_real(X: Tensor) -> Tensor:
    """Return a complex tensor (..., n) as a real tensor (..., 2 n), and a real tensor as it is."""
    return torch.view_as_real(X.resolve_conj()).flatten(-2) if X.is_complex() else X
