r"""Products of input-dependent reflections, computed for all steps of a chunk at once.

A step has a query q, and r triples of a unit key k, a value v and a strength β. The step changes a state S,
of shape (d, e), and reads an output y:

.. math::
    S ← a_t S, \qquad S ← S - β_i k_i (k_i^T S - v_i^T) \;\; r\text{ times}, \qquad y_t = S^T q_t.

Sources: Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (2024);
Siems et al., "DeltaProduct" (2025). Let S be the state before a chunk, let the rows of K, V and Q be its
keys, values and queries, let t(i) be the step of row i of K, and let :math:`Γ_{ij} = \prod_{t(j) < τ
≤ t(i)} a_τ`. The rows of U, :math:`u_i = β_i (v_i - k_i^T S_{i-1})`, obey

.. math::
    (I + A) U = \mathrm{diag}(β) E, \quad A = \mathrm{tril}(\mathrm{diag}(β) (K K^T ⊙ Γ), -1), \quad
    E = V - \mathrm{diag}(γ) K S,

where γ is the decay since the chunk began. Then, with ω the decay from a row to the end of the chunk,

.. math::
    y = M U + \mathrm{diag}(γ) Q S, \quad M_{ti} = q_t^T k_i Γ_{ti} [t(i) ≤ t], \qquad
    S^+ = γ_{end} S + K^T \mathrm{diag}(ω) U.

The inverse of I + A has the entries :math:`-β_i k_i^T (\prod (I - β k k^T)) k_j`, at most 2 in modulus. But a
rounding error of :math:`k_i^T k_j` acts like an error of the length of k, and equal keys repeat this error in
each reflection. So the normalized keys, A and the solution U are computed in double precision if the device
has double precision. Everything else has the precision of the inputs.

The forward pass stores S before each chunk; the backward pass computes all other numbers again. Let g be the
gradient of y, D the gradient of S⁺, and Z the solution of :math:`(I + A)^T Z = M^T g + \mathrm{diag}(ω) K D`.
Then the gradients are

.. math::
    \bar E &= \mathrm{diag}(β) Z, \qquad \bar A = -\mathrm{tril}(Z U^T, -1), \qquad \bar M = g U^T, \\
    \bar β &= \mathrm{rowsum}(Z ⊙ E + \bar A ⊙ K K^T ⊙ Γ), \qquad \bar V = \bar E, \\
    \bar Q &= \mathrm{diag}(γ) g S^T + (\bar M ⊙ Γ) K, \\
    \bar K &= (B + B^T) K + (\bar M ⊙ Γ)^T Q - \mathrm{diag}(γ) \bar E S^T + \mathrm{diag}(ω) U D^T, \quad
    B = \mathrm{diag}(β) \bar A ⊙ Γ, \\
    \bar S &= γ_{end} D + Q^T \mathrm{diag}(γ) g - K^T \mathrm{diag}(γ) \bar E.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._precision import double_device
from spectral_param._recurrence.sequence import Gradients, Passed, Tensors

# All functions below take q (B, T, d), k (B, T r, d), v (B, T r, e) or None, β (B, T r), a (B, T) or None and
# S (B, d, e), all of one dtype.


def unit(k: Tensor) -> Tensor:
    """Return the vectors divided by their lengths. At a zero vector, this function is the identity."""
    return k * _inverse_length(k)


def _inverse_length(k: Tensor) -> Tensor:
    # No scaling is needed: squares of numbers from 1e-18 to 1e18 are within the range of single precision.
    square = k.square().sum(dim=-1, keepdim=True)
    return torch.where(square > 0, square, 1).rsqrt()


def delta_loop(
    q: Tensor, k: Tensor, v: Tensor | None, beta: Tensor, decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step, as in its definition."""
    r = k.shape[1] // q.shape[1]
    K = unit(k.to(_wide(k))).to(k.dtype)
    outputs = []
    for t in range(q.shape[1]):
        if decay is not None:
            state = decay[:, t, None, None] * state
        for i in range(r * t, r * (t + 1)):
            key = K[:, i, :, None]
            error = -key.mT @ state if v is None else torch.baddbmm(v[:, i, None], key.mT, state, alpha=-1)
            state = torch.baddbmm(state, key, beta[:, i, None, None] * error)
        outputs.append(q[:, t, None] @ state)
    return torch.cat(outputs, dim=1), state


class Slices(NamedTuple):
    """Slices of a chunk: for tensors with one row per step, and for tensors with r rows per step."""

    steps: slice
    rows: slice


def slices(steps: int, r: int, chunk: int) -> list[Slices]:
    """Cut the steps into chunks; the last chunk may have fewer steps."""
    starts = range(0, steps, chunk)
    return [Slices(slice(i, i + chunk), slice(i * r, (i + chunk) * r)) for i in starts]


def _cut(tensors: Tensors, part: Slices) -> tuple[Any, ...]:
    """Return q, k, v, β and a of a chunk."""
    q, k, v, beta, decay, _ = tensors
    steps, rows = part
    return (
        q[:, steps],
        k[:, rows],
        None if v is None else v[:, rows],
        beta[:, rows, None],
        None if decay is None else decay[:, steps],
    )


class Decays(NamedTuple):
    """The products of decays within a chunk of c steps and n rows.

    Attributes:
        within: Γ between rows, ``(B, n, n)``.
        read: Γ from rows to steps, ``(B, c, n)``.
        rows: γ of each row, ``(B, n, 1)``.
        steps: γ of each step, ``(B, c, 1)``.
        rest: ω, ``(B, n, 1)``.
        end: γ at the end of the chunk, ``(B, 1, 1)``.
    """

    within: Tensor
    read: Tensor
    rows: Tensor
    steps: Tensor
    rest: Tensor
    end: Tensor


def products_of(a: Tensor) -> Tensor:
    """Return the product a_s ... a_t at index (t, s), ``(B, c, c + 1)``; the product is 1 for s > t."""
    c = a.shape[1]
    counts = torch.ones(c, c + 1, dtype=torch.bool, device=a.device).tril()
    # Products are used, not sums of logarithms, because a may be 0.
    return torch.where(counts, a[:, :, None], 1).cumprod(dim=1)


def decays(products: Tensor, r: int) -> Decays:
    """Return the products of decays that a chunk needs."""
    read = products[:, :, 1:].repeat_interleave(r, dim=2)
    return Decays(
        read.repeat_interleave(r, dim=1),
        read,
        products[:, :, :1].repeat_interleave(r, dim=1),
        products[:, :, :1],
        read[:, -1, :, None],
        products[:, -1:, :1],
    )


def _pulled_to_decays(products: Tensor, g: Decays, r: int) -> Tensor:
    """Return the gradient of the decays a, from the gradients of their products.

    The derivative of a_s ... a_t with respect to a_τ is the product of the factors before τ and after τ.
    """
    c = products.shape[1]
    columns = g.within.unflatten(1, (c, r)).sum(dim=2).unflatten(2, (c, r)).sum(dim=3)
    columns += g.read.unflatten(2, (c, r)).sum(dim=3)
    columns[:, -1] += g.rest[..., 0].unflatten(1, (c, r)).sum(dim=2)
    first = g.rows.unflatten(1, (c, r)).sum(dim=2) + g.steps
    first[:, -1:] += g.end
    before = torch.cat([torch.ones_like(products[:, :1]), products[:, :-1]], dim=1).tril()
    after = products[:, :, 1:].tril()
    return (before * (after.mT @ torch.cat([first, columns], dim=2))).sum(dim=2)


def _wide(like: Tensor) -> torch.dtype:
    """Return the dtype in which keys are normalized and systems are solved."""
    return torch.float64 if double_device(like.device) == like.device else like.dtype


def readable(steps: int, r: int, like: Tensor) -> Tensor:
    """Return a mask ``(steps, steps · r)``: 1 at (t, i) if row i belongs to step t or earlier, else 0."""
    row = torch.arange(steps * r, device=like.device) // r
    return (row <= torch.arange(steps, device=like.device)[:, None]).to(like.dtype)


def chunk_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    beta: Tensor,
    decay: Tensor | None,
    *,
    state: Tensor,
    mask: Tensor,
    wide: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return y and S⁺ of one chunk; β has the shape ``(B, n, 1)``."""
    unrounded = unit(k.to(wide))
    K = unrounded.to(k.dtype)
    A = (beta.to(wide) * unrounded) @ unrounded.mT
    M = (q @ K.mT) * mask
    if decay is None:
        error = -(K @ state) if v is None else torch.baddbmm(v, K, state, alpha=-1)
        U = _solved(A, beta * error)
        return torch.baddbmm(M @ U, q, state), torch.baddbmm(state, K.mT, U)
    products, r = products_of(decay.to(wide)), k.shape[1] // q.shape[1]
    A = A * decays(products, r).within
    Γ = decays(products.to(k.dtype), r)
    error = -Γ.rows * (K @ state)
    U = _solved(A, beta * (error if v is None else v + error))
    y = (M * Γ.read) @ U + Γ.steps * (q @ state)
    return y, torch.baddbmm(Γ.end * state, K.mT, Γ.rest * U)


def _solved(A: Tensor, B: Tensor) -> Tensor:
    """Return U with (I + tril(A, -1)) U = B, in the dtype of B."""
    return torch.linalg.solve_triangular(A, B.to(A.dtype), upper=False, unitriangular=True).to(B.dtype)


def _masks(parts: list[Slices], q: Tensor, k: Tensor) -> Iterator[Tensor]:
    """Yield the mask of each chunk; the last chunk may be shorter."""
    r = k.shape[1] // q.shape[1]
    length = min(parts[0].steps.stop, q.shape[1])
    mask = readable(length, r, q)
    for part in parts:
        c = min(part.steps.stop, q.shape[1]) - part.steps.start
        yield mask if c == length else mask[:c, : c * r]


def delta_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    beta: Tensor,
    decay: Tensor | None,
    state: Tensor,
    *,
    chunk: int,
    starts: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence chunk by chunk by autograd operations; append S before each chunk to ``starts``."""
    tensors = (q, k, v, beta, decay, state)
    parts = slices(q.shape[1], k.shape[1] // q.shape[1], chunk)
    wide, outputs = _wide(q), []
    for part, mask in zip(parts, _masks(parts, q, k), strict=True):
        if starts is not None:
            starts.append(state)
        y, state = chunk_forward(*_cut(tensors, part), state=state, mask=mask, wide=wide)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


class Plan(NamedTuple):
    """Runs the recurrence forward and backward for the tensors q, k, v, β, a and S.

    Attributes:
        chunk: Number of steps that are computed at once.
    """

    chunk: int

    def forward(self, tensors: Tensors) -> Passed:
        """Return y, the last state and, for the backward pass, S before each chunk, ``(chunks, B, d, e)``."""
        starts: list[Tensor] = []
        y, last = self.reference(*tensors, starts=starts)
        return y, last, None, torch.stack(starts), None

    def backward(self, tensors: Tensors, kept: Tensors, grads: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of ``tensors``, given the gradients of y and of the last state."""
        q, k, *_, state = tensors
        parts = slices(q.shape[1], k.shape[1] // q.shape[1], self.chunk)
        masks, wide = list(_masks(parts, q, k)), _wide(q)
        found = [None if t is None else torch.empty_like(t) for t in tensors[:5]]
        g = q.new_zeros(*q.shape[:2], state.shape[-1]) if grads[0] is None else grads[0]
        D = torch.zeros_like(state) if grads[1] is None else grads[1]
        for part, mask, S in zip(reversed(parts), reversed(masks), reversed(kept[1].unbind()), strict=True):
            cut = _cut(tensors, part)
            each, D = _chunk_backward(*cut, S=S, mask=mask, wide=wide, g=g[:, part.steps], D=D)
            for whole, piece, is_step in zip(found, each, (True, False, False, False, True), strict=True):
                if whole is not None and piece is not None:
                    whole[:, part.steps if is_step else part.rows] = piece
        return (*found, D)

    def reference(self, *tensors: Any, starts: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return y and the last state by autograd operations; append S before each chunk to ``starts``."""
        return delta_chunked(*tensors, chunk=self.chunk, starts=starts)


def _chunk_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    beta: Tensor,
    decay: Tensor | None,
    *,
    S: Tensor,
    mask: Tensor,
    wide: torch.dtype,
    g: Tensor,
    D: Tensor,
) -> tuple[tuple[Tensor | None, ...], Tensor]:
    """Return the gradients of q, k, v, β, a and S for one chunk."""
    k_wide = k.to(wide)
    inverse_length = _inverse_length(k_wide)
    unrounded = k_wide * inverse_length
    gram = unrounded @ unrounded.mT
    A = beta.to(wide) * gram
    Γ: Decays | None = None
    products, r = None, k.shape[1] // q.shape[1]
    if decay is not None:
        products = products_of(decay.to(wide))
        A *= decays(products, r).within
        products = products.to(k.dtype)
        Γ = decays(products, r)
    n = A.shape[-1]
    inverse = torch.linalg.solve_triangular(
        A, torch.eye(n, dtype=wide, device=A.device).expand_as(A), upper=False, unitriangular=True
    ).to(k.dtype)
    K, gram, inverse_length = unrounded.to(k.dtype), gram.to(k.dtype), inverse_length.to(k.dtype)

    KS, KD, QK = K @ S, K @ D, (q @ K.mT) * mask
    error = KS.neg() if Γ is None else -Γ.rows * KS
    if v is not None:
        error += v
    U = inverse @ (beta * error)
    if Γ is None:
        Z = inverse.mT @ torch.baddbmm(KD, QK.mT, g)
        γg, ωU = g, U
    else:
        Z = inverse.mT @ torch.baddbmm(Γ.rest * KD, (QK * Γ.read).mT, g)
        γg, ωU = Γ.steps * g, Γ.rest * U
    g_M = (g @ U.mT) * mask
    g_A = (Z @ U.mT).tril_(-1).neg_()
    g_gram = g_A if Γ is None else g_A * Γ.within
    weighted = g_gram * gram
    g_beta = (Z * error).sum(dim=-1) + weighted.sum(dim=-1)
    g_v = beta * Z
    γg_E = g_v if Γ is None else Γ.rows * g_v
    g_QK = g_M if Γ is None else g_M * Γ.read
    g_gram = beta * g_gram
    g_q = torch.baddbmm(γg @ S.mT, g_QK, K)
    g_K = (
        (ωU @ D.mT)
        .baddbmm_(γg_E, S.mT, alpha=-1)
        .baddbmm_(g_QK.mT, q)
        .baddbmm_(g_gram, K)
        .baddbmm_(g_gram.mT, K)
    )
    g_k = (g_K - K * (g_K * K).sum(dim=-1, keepdim=True)) * inverse_length
    g_S = torch.baddbmm(D if Γ is None else Γ.end * D, q.mT, γg).baddbmm_(K.mT, γg_E, alpha=-1)
    g_decay = None
    if products is not None:
        of_products = Decays(
            beta * g_A * gram,
            g_M * QK,
            -(g_v * KS).sum(dim=-1, keepdim=True),
            (g * (q @ S)).sum(dim=-1, keepdim=True),
            (U * KD).sum(dim=-1, keepdim=True),
            (D * S).sum(dim=(-2, -1)).reshape(-1, 1, 1),
        )
        g_decay = _pulled_to_decays(products, of_products, r)
    return (g_q, g_k, None if v is None else g_v, g_beta, g_decay), g_S
