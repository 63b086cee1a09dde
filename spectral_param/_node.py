"""The one node of a graph: a value that was computed without a graph, and how to pull a gradient back.

For ordinary tensors. What records a graph and transforms of torch.func see a map's ``reference``, torch's own
operations. Decided here, once: the precision of a backward pass, and derivatives of higher order, which are
those of the reference.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import full_precision, is_plain, is_wrapped, precise

# The gradients of the inputs for that of the value; None for those that are not needed. It holds no tensor of
# a graph: a read is remembered with it.
PullBack = Callable[[Tensor, tuple[bool, ...]], Sequence[Tensor | None]]


class Map(NamedTuple):
    """See :func:`node`."""

    value: Tensor
    pull_back: PullBack
    reference: Callable[..., Tensor]
    # Whether nobody else may write to the inputs. The node keeps them then, whatever autograd frees.
    is_private: bool = False


class _Node(torch.autograd.Function):
    """(map, *inputs) -> the value of the map.

    Without ``setup_context``, for which PyTorch binds the arguments in each call: that takes as long as the
    decomposition of an 8 x 8 matrix.
    """

    @staticmethod
    def forward(ctx: Any, the: Map, *inputs: Tensor) -> Tensor:
        ctx.pull_back, ctx.reference = the.pull_back, the.reference
        ctx.kept = inputs if the.is_private else None
        if not the.is_private:
            ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        return the.value

    @staticmethod
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        if G is None:  # Nothing depends on the value that a gradient is asked for.
            return (None,) * len(ctx.needs_input_grad)
        needed = ctx.needs_input_grad[1:]
        recorded = torch.is_grad_enabled() or is_wrapped(G)  # By vmap, which maps torch's operations alone.
        with precise(G):
            if recorded:
                inputs = ctx.saved_tensors if ctx.kept is None else ctx.kept
                return None, *differentiated(ctx.reference, inputs, [G], needed)
            return None, *ctx.pull_back(G, needed)


# torch's own method first looks in the arguments for tensors that a transform of torch.func has left behind,
# which takes as long as copying a small matrix. An ordinary tensor is none.
attach: Callable[..., Tensor] = super(torch.autograd.Function, _Node).apply


def node(value: Tensor, pull_back: PullBack, reference: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return a value as a differentiable function of ordinary tensors.

    Args:
        value: A new tensor without a graph.
        pull_back: Returns the gradients. It is called without grad mode, and in full precision.
        reference: The same function of ``inputs`` by torch's operations, for derivatives of higher order.
        inputs: What the value is differentiated by.
    """
    return attach(Map(value, pull_back, reference), *inputs)


_grad_fn, _first = operator.attrgetter("grad_fn"), operator.itemgetter(0)


def pull_back_of(
    value: Tensor, inputs: tuple[Tensor, ...], reference: Callable[..., Tensor] | None = None
) -> PullBack | None:
    """Return how the one node between ``inputs`` and a value pulls back; None if there are more.

    Where the value is the one input, as that of a bound that is not reached, a gradient stays what it is.
    With a ``reference``, the node takes that, and its inputs are private from now on; see :class:`Map`.
    """
    if len(inputs) == 1 and value is inputs[0]:
        return _unchanged
    found: Any = value.grad_fn
    pull_back: PullBack | None = getattr(found, "pull_back", None)
    if pull_back is None or list(map(_grad_fn, inputs)) != list(map(_first, found.next_functions)):
        return None
    if reference is not None:
        found.kept, found.reference = inputs, reference
    return pull_back


def _unchanged(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor]:
    return (G,)


def differentiated(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Any],
    grads: Sequence[Tensor | None],
    needed: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a function of ``inputs``, for the gradients ``grads`` of its results.

    For the backward pass of an autograd Function: the function is evaluated again, with a graph of the
    gradients if grad mode is on. A gradient that is not ``needed`` is None.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, so that autograd.grad finds only the paths through this call: the inputs may depend on each
        # other.
        aliases: list[Any] = [
            None if t is None else t.view_as(t) if create_graph else t.detach().requires_grad_(wanted)
            for t, wanted in zip(inputs, needed, strict=True)
        ]
        results = function(*aliases)
    results = (results,) if isinstance(results, Tensor) else results
    used = [(r, g) for r, g in zip(results, grads, strict=True) if g is not None and r.requires_grad]
    if not used:  # Nothing depends on what is needed.
        return (None,) * len(needed)
    found = iter(
        torch.autograd.grad(
            [result for result, _ in used],
            [t for t, wanted in zip(aliases, needed, strict=True) if wanted],
            [g for _, g in used],
            create_graph=create_graph,
            allow_unused=True,
        )
    )
    return tuple(next(found) if wanted else None for wanted in needed)


@full_precision
def matmul(A: Tensor, X: Tensor) -> Tensor:  # (..., k, n), (..., n, m) -> (..., k, m)
    """Return AX, with derivatives, in the precision of its factors whatever autocast says."""
    if not (torch.is_grad_enabled() and is_plain(A, X) and (A.requires_grad or X.requires_grad)):
        return A @ X
    batch = torch.broadcast_shapes(A.shape[:-2], X.shape[:-2])
    A, X = A.expand(*batch, *A.shape[-2:]), X.expand(*batch, *X.shape[-2:])
    left, right = A.detach(), X.detach()

    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        return G @ right.mH if needed[0] else None, left.mH @ G if needed[1] else None

    return node(left @ right, pull_back, torch.matmul, A, X)
