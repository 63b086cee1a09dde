"""A differentiable map: its value, its vector-Jacobian product, and the same function by torch's operations.

Fast code runs on plain tensors alone and returns a :class:`Map`, which becomes one node of autograd's graph.
Compilers, exporters and the transforms of torch.func see the map's ``reference`` instead. This module decides
when values may be read, and in which precision a backward pass runs. Derivatives of higher order come from
the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import full_precision, is_plain, is_wrapped, precise

# (gradient of the value, which inputs need a gradient) -> gradients of the inputs; None where not needed.
PullBack = Callable[[Tensor, tuple[bool, ...]], Sequence[Tensor | None]]


class Map(NamedTuple):
    """A function at one point.

    The pull-back and the reference hold all numbers that they need, so later changes of a bound or a buffer
    do not affect a backward pass. Neither may hold tensors of the user's graph, because a map is kept after
    the read.

    Attributes:
        value: A tensor without a graph that nobody else writes to.
        pull_back: Returns the gradients. It is called without grad mode, and in full precision.
        reference: The same function by torch's operations, for derivatives of higher order.
        is_private: Whether nobody else can write to the inputs. The node then keeps the inputs itself, so
            that higher derivatives exist after autograd has freed the graph.
    """

    value: Tensor
    pull_back: PullBack
    reference: Callable[..., Tensor]
    is_private: bool = False


class _Node(torch.autograd.Function):
    """(map, *inputs) -> the value of the map.

    There is no ``setup_context``, because PyTorch would bind the arguments in each call, which takes as long
    as the decomposition of an 8 x 8 matrix.
    """

    @staticmethod
    def forward(ctx: Any, the: Map, *inputs: Tensor) -> Tensor:
        ctx.pull_back, ctx.reference = the.pull_back, the.reference
        ctx.kept = inputs if the.is_private else None
        if not the.is_private:
            ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        # The returned tensor gets a graph, which a remembered map must not hold.
        return the.value.detach()

    @staticmethod
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        if G is None:  # No gradient is needed.
            return (None,) * len(ctx.needs_input_grad)
        needed = ctx.needs_input_grad[1:]
        # PyTorch raises here if an input has been written to since; the pull-back would not notice.
        inputs = ctx.saved_tensors if ctx.kept is None else ctx.kept
        recorded = torch.is_grad_enabled() or is_wrapped(G)  # vmap can only map torch's operations.
        with precise(G):
            if recorded:
                return None, *differentiated(ctx.reference, inputs, [G], needed)
            return None, *ctx.pull_back(G, needed)


# torch's own method first searches the arguments for tensors that a transform of torch.func has left behind,
# which takes as long as copying a small matrix. Plain tensors need no search.
attach: Callable[..., Tensor] = super(torch.autograd.Function, _Node).apply


def apply(evaluate: Callable[..., Map], reference: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return the value of a function of tensors: by one node if values may be read, else by the reference."""
    if not is_plain(*inputs):
        return reference(*inputs)
    return attach(evaluate(*(t.detach() for t in inputs)), *inputs)


class Recorded:
    """The pull-back through autograd's graph of a function.

    The graph is used only once: a second backward pass evaluates the function again.
    """

    #: The result and the leaves of its graph, until the graph is used.
    graph: tuple[Tensor, list[Tensor]] | None = None

    def __init__(
        self,
        function: Callable[..., Tensor],
        values: tuple[Tensor, ...],
        graph: tuple[Tensor, list[Tensor]] | None = None,
    ) -> None:
        self.function, self.values = function, values
        if graph is not None:
            self.graph = graph

    def __call__(self, G: Tensor, needed: tuple[bool, ...]) -> Sequence[Tensor | None]:
        # ``pop`` is a single operation, so only one of two threads gets the graph.
        graph = vars(self).pop("graph", None)
        if graph is None:
            return differentiated(self.function, self.values, [G], needed)
        W, leaves = graph
        return _gradients([W], leaves, [G], needed)


def recorded(
    function: Callable[..., Tensor], *values: Tensor, reference: Callable[..., Tensor] | None = None
) -> Map:
    """Return the map of a function that autograd differentiates.

    Args:
        function: A function of tensors, recorded if grad mode is on.
        values: Plain tensors without a graph.
        reference: The function for derivatives of higher order, by default ``function``.
    """
    reference = function if reference is None else reference
    if not torch.is_grad_enabled():
        return Map(function(*values), Recorded(function, values), reference)
    leaves = [t.detach().requires_grad_() for t in values]
    W = function(*leaves)
    graph = (W, leaves) if W.requires_grad else None
    return Map(W.detach(), Recorded(function, values, graph), reference)


def unchanged(T: Tensor) -> Map:
    """Return the identity map at T."""
    return Map(T, lambda G, _: (G,), Tensor.clone)


def where(chosen: Tensor, the: Map, T: Tensor) -> Map:
    """Return the map ``the`` where the constant ``chosen`` is true, and the identity elsewhere."""

    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor]:
        (g,) = the.pull_back(G, needed)
        assert g is not None
        return (torch.where(chosen, g, G),)

    def reference(T: Tensor) -> Tensor:
        return torch.where(chosen, the.reference(T), T)

    return Map(torch.where(chosen, the.value, T), pull_back, reference)


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
    if not used:  # No result depends on a needed input.
        return (None,) * len(needed)
    results, cotangents = zip(*used, strict=True)
    return _gradients(results, aliases, cotangents, needed, create_graph)


def _gradients(
    results: Sequence[Tensor],
    inputs: Sequence[Any],
    grads: Sequence[Tensor],
    needed: Sequence[bool],
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return autograd's gradients of the inputs that need them, and None for all other inputs."""
    wanted = [t for t, is_needed in zip(inputs, needed, strict=True) if is_needed]
    each = iter(torch.autograd.grad(results, wanted, grads, create_graph=create_graph, allow_unused=True))
    return tuple(next(each) if is_needed else None for is_needed in needed)


@full_precision
def matmul(A: Tensor, X: Tensor) -> Tensor:  # (..., k, n), (..., n, m) -> (..., k, m)
    """Return AX, with derivatives, in the precision of its factors, even under autocast."""
    if not (torch.is_grad_enabled() and (A.requires_grad or X.requires_grad)):
        return A @ X
    batch = torch.broadcast_shapes(A.shape[:-2], X.shape[:-2])
    return apply(_product, torch.matmul, A.expand(*batch, *A.shape[-2:]), X.expand(*batch, *X.shape[-2:]))


def _product(A: Tensor, X: Tensor) -> Map:
    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        return G @ X.mH if needed[0] else None, A.mH @ G if needed[1] else None

    return Map(A @ X, pull_back, torch.matmul)
