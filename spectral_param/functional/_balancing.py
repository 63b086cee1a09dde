r"""Doubly stochastic matrices (rows and columns of sum 1), computed from logits, and their derivative.

For each matrix T of finite numbers there is exactly one doubly stochastic W of the form

.. math:: W_{ij} = e^{T_{ij} + f_i + g_j}

by Sinkhorn (1964). For a given g, the row sums are 1 if :math:`f_i = -\log \sum_j e^{T_{ij} + g_j}`. With
this f, the column sums are 1 where the convex function :math:`φ(g) = -\sum_i f_i - \sum_j g_j` is least. Let
c be the vector of the column sums of W. The gradient of φ is c - 1, and the second derivative of φ is the
Laplacian L of the graph with the edge weights A_jk:

.. math:: A_{jk} = \sum_i W_{ij} W_{ik}, \qquad (Lx)_j = \sum_k A_{jk} (x_j - x_k).

The values, by Newton's steps
-----------------------------
Newton's step δ solves Lδ = 1 - c. Let D be the range of δ (its largest entry minus its least entry). Because
φ is a sum of functions log Σ e^x, the third derivative of φ along δ is at most D times the second derivative.
So log(1 + D)/D times the step always lowers φ, without a line search (Sun and Tran-Dinh 2019, "Generalized
self-concordant functions", with ν = 2). If D < 1/2, the whole step is taken.

For a small number t, W(tT) is found in a few steps. The f and g for 2t are about twice the f and g for t. So
the first t is chosen such that entries of tT differ by at most 8, and t is doubled as soon as D < 1.

L is singular, and if W is nearly reducible, edge weights of L are below the rounding error of c. So μ = 8nε
is added to the diagonal of L. Then a rounding error of c moves parts of g that W hardly couples by less than
1, which changes W only by rounding errors. The last steps multiply W itself, because a g of size 60 has an
error of 60ε.

The derivative, by one elimination without cancellation
-------------------------------------------------------
A change G of T changes W by :math:`P(G) = W ∘ (G - a 1^T - 1 b^T)`, where a and b make all row sums and
column sums of P(G) zero. The linear map P is symmetric, so P also maps gradients with respect to W to
gradients with respect to T. The row sums are zero if :math:`a_i = \sum_j W_{ij} (G_{ij} - b_j)`. The column
sums are zero if b is the least-squares fit of :math:`b_j - b_k` to the differences :math:`G_{ij} - G_{ik}`
with the weights :math:`W_{ij} W_{ik}`:

.. math:: \sum_k A_{jk} (b_j - b_k) = \sum_k F_{jk}, \qquad F_{jk} = \sum_i W_{ij} W_{ik} (G_{ij} - G_{ik}).

Entries of b are weighted means over spanning trees. So entries of b differ by at most n - 1 times the largest
difference of entries of G, however small the edge weights are. Rounding errors respect the bound n - 1 if the
F_jk of a node j are never summed over k. Instead, the elimination of node k adds

.. math:: A_{ik} A_{kj} / d_k \;\text{to}\; A_{ij}, \qquad
          (F_{ik} A_{kj} + A_{ik} F_{kj}) / d_k \;\text{to}\; F_{ij}, \qquad d_k = \sum_j A_{kj}.

Then the rounding error of F on each edge is relative to A on this edge. (For A alone, this is the elimination
of Grassmann, Taksar and Heyman, 1985.) Finally, let K = G - 1bᵀ, shifted in each row so that K is zero where
W is largest. The entries of P(G) are W_ij (K_ij - Σ_k W_ik K_ik).
"""

from __future__ import annotations

import torch
from torch import Tensor

# Largest difference of entries of tT for the first t.
_FIRST_RANGE = 8.0
# Limits of the range D of a step. If D < _WHOLE, the whole step is taken. If D < _CLOSE, t is doubled. If D <
# _QUADRATIC, each further step squares the error.
_WHOLE, _CLOSE, _QUADRATIC = 0.5, 1.0, 0.02
# Number of Newton steps: the largest number on the host, and the fixed number on a device. The worst logits
# that a search found need 35 steps, for n = 64.
STEPS = 50
# Number of matrices that are computed together on the host, so that their rows stay in the cache of a core.
CHUNK = 4096


def last_steps(dtype: torch.dtype) -> int:
    """Return the number of Newton steps, each squaring the error, that reduce an error of 2 % to rounding."""
    return 2 if dtype == torch.float32 else 3


# In all functions below, the last dimension is the batch: shapes are (n, n, B).


def scaled(X: Tensor, looks: bool) -> Tensor:
    """Return W for logits X, whose largest entry is 0 in each row and column.

    With ``looks``, values are read after each step, and the iteration ends once all matrices have converged.
    """
    n, eps = X.shape[0], torch.finfo(X.dtype).eps
    t = _FIRST_RANGE / (-X.amin(dim=(0, 1))).clamp(min=_FIRST_RANGE)
    g = -(t * X).exp().sum(dim=0).log()
    f = torch.zeros_like(g)
    for _ in range(STEPS):
        W = (t * X + (f[:, None] + g)).exp()
        rows = W.sum(dim=1)
        W = W / rows[:, None]
        f = f - rows.log()
        excess = W.sum(dim=0) - 1
        step, size = newton_step(W, excess)
        if looks:
            done = (size < _QUADRATIC) | (excess.abs().amax(dim=0) <= 4 * n * eps)
            if bool((((t == 1) & done) | size.isnan()).all()):
                break
        g = g + step
        longer = torch.where(size < _CLOSE, 2 * t, t).clamp(max=1)
        f, g, t = f * (longer / t), g * (longer / t), longer
    for _ in range(last_steps(X.dtype)):
        W = W * step.exp()
        W = W / W.sum(dim=1, keepdim=True)
        step, _ = newton_step(W, W.sum(dim=0) - 1)
    W = W * step.exp()
    return W / W.sum(dim=1, keepdim=True)


def newton_step(W: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Return Newton's step, shortened if its range is large, and the range of the whole step."""
    n, B = W.shape[1:]
    shift = 8 * n * torch.finfo(W.dtype).eps
    step = _by_elimination(W, -excess, shift) if 4 * n * n <= B else _by_cholesky(W, -excess, shift)
    size = step.amax(dim=0) - step.amin(dim=0)
    return torch.where(size < _WHOLE, step, step * (size.log1p() / size)), size


def _by_cholesky(W: Tensor, r: Tensor, shift: float) -> Tensor:
    """Solve (L + shift I) x = r for the Laplacian L of WᵀW by a Cholesky factor."""
    W = W.movedim(-1, 0)
    A = W.mT @ W
    A.diagonal(dim1=-2, dim2=-1).zero_()
    L = torch.diag_embed(A.sum(dim=-1) + shift) - A
    factor = torch.linalg.cholesky_ex(L).L
    return torch.cholesky_solve(r.mT[..., None], factor)[..., 0].mT


def _by_elimination(W: Tensor, r: Tensor, shift: float) -> Tensor:
    """Solve (L + shift I) x = r by Gaussian elimination, which is faster for many small matrices."""
    n = len(W)
    A = [(W[:, k : k + 1] * W[:, k + 1 :]).sum(dim=0) for k in range(n)]  # A_kj for j > k
    shares, means = [], []
    for k in range(n - 1):
        d = A[k].sum(dim=0) + shift
        share, mean = A[k] / d, r[0] / d
        r = r[1:] + share * r[0]
        for i in range(n - 2 - k):
            A[k + 1 + i] = A[k + 1 + i] + A[k][i] * share[i + 1 :]
        shares.append(share)
        means.append(mean)
    found = torch.zeros_like(r)
    for share, mean in zip(reversed(shares), reversed(means), strict=True):
        found = torch.cat([(mean + (share * found).sum(dim=0))[None], found])
    return found


def tangent(W: Tensor, G: Tensor) -> Tensor:
    """Return P(G), the change of W for the change G of T, by operations differentiable in W and G."""
    K = G - _fit(W, G)
    largest = W.detach().argmax(dim=1, keepdim=True)
    K = K - K.gather(1, largest)
    return W * (K - (W * K).sum(dim=1, keepdim=True))


def _fit(W: Tensor, G: Tensor) -> Tensor:  # -> (n, B)
    """Return the least-squares fit b of the formulas at the top of the file."""
    n = len(W)
    A = torch.stack([(W[:, k : k + 1] * W).sum(dim=0) for k in range(n)])
    F = torch.stack([(W[:, k : k + 1] * W * (G[:, k : k + 1] - G)).sum(dim=0) for k in range(n)])
    shares, means = [], []
    for _ in range(n - 1):
        a, f = A[0, 1:], F[0, 1:]
        d = a.sum(dim=0)
        d = torch.where(d > 0, d, 1)  # A node whose edges all have weight 0 gets b = 0.
        share, mean = a / d, f / d
        A = A[1:, 1:] + a[:, None] * share
        F = F[1:, 1:] + (a[:, None] * mean - f[:, None] * share)
        shares.append(share)
        means.append(mean.sum(dim=0))
    found = torch.zeros_like(W[0, :1])
    for share, mean in zip(reversed(shares), reversed(means), strict=True):
        found = torch.cat([(mean + (share * found).sum(dim=0))[None], found])
    return found
