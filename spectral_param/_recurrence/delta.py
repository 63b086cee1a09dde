"""Products of input-dependent reflections: the function, its checks, and the choice of a path."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._context import HALF, is_compiled, is_plain, precise, promoted
from spectral_param._recurrence.delta_chunks import delta_chunked, delta_loop
from spectral_param._recurrence.node import run
from spectral_param._recurrence.sequence import Tensors
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional._checks import whole_number, with_arrays

# Numbers of rows in a chunk: few rows for many sequences, which fill the processor, and more rows for few
# sequences, whose operations would otherwise be too small.
_FEW, _MORE, _MOST = 16, 32, 64


@with_arrays
def delta_product(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    beta: Tensor,
    *,
    decay: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Run a linear recurrence whose transition matrix is a product of r input-dependent reflections.

    A state S, of shape (d, e), starts at ``state``. Step t multiplies S by :math:`a_t`, then changes S r
    times by

    .. math:: S ← S - β_i k_i (k_i^T S - v_i^T), \qquad \|k_i\| = 1,

    and reads :math:`y_t = S^T q_t`. The matrix :math:`I - β k k^T` has the eigenvalues 1 and 1 - β: β = 1
    replaces the value stored under k by v, β = 2 is a reflection, β = 0 does nothing. For β in [0, 2] and a
    in [0, 1] the transition matrix has a norm of at most 1. So two states that read the same inputs never
    move apart, and a gradient that flows back through the states never grows. A state itself can grow,
    because values are added to it: with one key, alternating values and β = 2, the state grows to 2T in T
    steps.

    Sources: Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length"
    (NeurIPS 2024); Grazzi et al., "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues"
    (ICLR 2025); Siems et al., "DeltaProduct" (2025). The derivation is in
    ``spectral_param/_recurrence/delta_chunks.py``.

    Args:
        q: Queries ``(..., T, d)``.
        k: Keys ``(..., T·r, d)``, r consecutive keys for each step. Keys are divided by their lengths; a key
            of zeros changes nothing.
        v: Values ``(..., T·r, e)``. None stands for zeros, at a lower cost.
        beta: Strengths β ``(..., T·r)``, from 0 to 2. Values outside this range are not checked, but the
            bounds above do not hold for them.
        decay: Decays a ``(..., T)``, from 0 to 1; None for 1.
        state: The first S ``(..., d, e)``; None for zeros.
        chunk: Number of steps c that are computed at once. None, the default, takes chunks of 16 to 64 keys,
            with fewer keys if there are more sequences. These sizes were fastest on a CPU.

    Returns:
        y ``(..., T, e)`` and the last S ``(..., d, e)``, both in the dtype that q, k, v, β, a and S promote
        to.

    Raises:
        ValueError: If a shape does not fit, the sequence is empty, ``chunk`` is less than 1, or there is
            neither ``v`` nor ``state``.
        UnsupportedDtypeError: If a tensor is complex or of integers.

    Training stores S before each chunk of c steps, :math:`d e T/c` numbers, and computes all other numbers of
    a chunk again in the backward pass. Inputs in half precision are computed in single precision. For inputs
    in single precision, keys are normalized and each chunk's linear system is solved in double precision, if
    the device has double precision. Without double precision, equal keys repeat the same rounding error in
    each step. After 4,096 steps of up to four reflections the relative differences from results in double
    precision are at most 1e-4, for random, equal and nearly equal keys. On a device without double precision
    these differences are at most 5e-3.

    Example:
        >>> swap = torch.tensor([[1.0, -1.0]])  # The reflection that exchanges two numbers.
        >>> q, state = torch.tensor([[1.0, 0.0]]).expand(5, 2), torch.tensor([[3.0], [7.0]])
        >>> y, state = spectral_param.functional.delta_product(
        ...     q, swap.expand(5, 2), None, torch.tensor([0.0, 2.0, 0.0, 2.0, 2.0]), state=state
        ... )
        >>> y.flatten().round(decimals=4)
        tensor([3., 7., 7., 3., 7.])
    """
    tensors, dtype = _checked(q, k, v, beta, decay, state)
    batch, steps = q.shape[:-2], q.shape[-2]
    rows = k.shape[-2] // steps
    c = _chunk(batch.numel(), rows) if chunk is None else whole_number(chunk, "chunk", otherwise=" or None")
    if dtype in HALF:
        tensors = [None if t is None else t.float() for t in tensors]
    with precise(q):
        y, last = _run(tensors, min(c, steps))
    return y.reshape(*batch, *y.shape[-2:]).to(dtype), last.reshape(*batch, *last.shape[-2:]).to(dtype)


def _run(tensors: Tensors, chunk: int) -> tuple[Tensor, Tensor]:
    """Run the recurrence by the fastest path that graphs and transforms allow."""
    if tensors[0].shape[1] == 1:
        return delta_loop(*tensors)
    compiled, given = is_compiled(), [t for t in tensors if t is not None]
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if compiled or (recorded and is_plain(*given)):
        y, last = run(tensors, "delta", [chunk], compiled=compiled)
        assert y is not None
        return y, last
    return delta_chunked(*tensors, chunk=chunk)


def _chunk(sequences: int, r: int) -> int:
    """Return how many steps to compute at once, with r keys per step."""
    rows = _MOST if sequences <= 8 else _MORE if sequences <= 32 else _FEW
    return max(rows // r, 1)


def _checked(
    q: Tensor, k: Tensor, v: Tensor | None, beta: Tensor, decay: Tensor | None, state: Tensor | None
) -> tuple[list[Tensor | None], torch.dtype]:
    """Return q, k, v, β, a and S in one dtype and with one batch dimension, and also return the dtype."""
    given = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay, "state": state}
    dtype = q.dtype
    for name, t in given.items():
        if t is None:
            continue
        if not t.is_floating_point():
            raise UnsupportedDtypeError(
                f"delta_product: {name}: expected a real floating point tensor, got {t.dtype}. Convert it, "
                "for example with .float(); two real numbers hold a complex one."
            )
        dtype = promoted(dtype, t.dtype)
    if q.ndim < 2 or 0 in q.shape[-2:]:
        raise ValueError(
            f"delta_product: q: expected shape (..., T, d) with at least one step, got {tuple(q.shape)}."
        )
    *batch, T, d = q.shape
    if k.ndim != q.ndim or not k.shape[-2] or k.shape[-2] % T:
        raise ValueError(
            f"delta_product: k: expected shape {(*batch, f'r·{T}', d)}, r keys for each of the {T} steps of "
            f"q, got {tuple(k.shape)}."
        )
    if v is None and state is None:
        raise ValueError(
            "delta_product: state: expected a first state with v=None, where nothing is written, got None. "
            "Pass torch.eye(d), or values v."
        )
    n = k.shape[-2]
    values = v if v is not None else state
    e = values.shape[-1] if values is not None and values.ndim else 0
    for name, shape in {
        "k": (*batch, n, d),
        "v": (*batch, n, e),
        "beta": (*batch, n),
        "decay": (*batch, T),
        "state": (*batch, d, e),
    }.items():
        t = given[name]
        if t is not None and t.shape != shape:
            raise ValueError(f"delta_product: {name}: expected shape {shape}, got {tuple(t.shape)}.")
    if state is None:
        given["state"] = q.new_zeros(*batch, d, e)
    trailing = {"q": 2, "k": 2, "v": 2, "beta": 1, "decay": 1, "state": 2}
    sequences = q.shape[:-2].numel()
    tensors = [
        None if t is None else t.to(dtype).reshape(sequences, *t.shape[t.ndim - trailing[name] :])
        for name, t in given.items()
    ]
    return tensors, dtype
