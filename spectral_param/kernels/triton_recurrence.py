r"""The two walks of the recurrence h_t = σ(z_t + W h_{t-1}) on a GPU: forward, and back.

.. math:: δ_t = (G_t + W^T δ_{t+1}) ⊙ σ'_t

Notation, rows and activations are those of ``functional/recurrence.py``, which holds the reference and
all that is one matrix product for all steps.

*Resident*: one program walks one sequence from end to end, with W and the state in registers, for every
n whose W fits into those of one multiprocessor (n ≤ 192 in float32). Sequences do not depend on each
other, so no program waits for another, and a step costs n² multiplications and some barriers within one
program: no launch, and no memory traffic but its own row. Sums are in float32 whatever the settings for
tensor cores: one sequence is one row, for which those have no use.

*Stepwise*: for any n, a product by cuBLAS and one pointwise kernel in each step.

Registers are allotted in powers of two. A state of n entries is therefore held in two parts of
N1 + N2 ≥ n entries (160 = 128 + 32), and the matrix of the walk, M = W^T forward and W back, in four:

.. math:: (a, b) \begin{bmatrix} M_{11} & M_{12} \\ M_{21} & M_{22} \end{bmatrix} .

N2 = 1 stands for no second part. Entries beyond n are zero throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# A multiprocessor has 65536 registers. With more than this many for the matrix, others are spilled.
_MAX_ENTRIES = 192**2
# Few threads with many entries each: sums within a thread are cheaper than sums across threads.
_ENTRIES_PER_THREAD = 96
_MAX_WARPS = 8
_BLOCK = 512
# Newer releases of Triton do not contract a·b + c into one instruction unless told to.
_OPTIONS = {"enable_fp_fusion": True}


# Activations ----------------------------------------------------------------------------------------


@triton.jit
def _tanh(x):
    # Cephes' series near zero, where (1 - e) would lose the digits of x.
    square = x * x
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.625, x + x * square * series, tl.where(x < 0, -far, far))


@triton.jit
def _activate(z, bias, NONLINEARITY: tl.constexpr):
    """Return σ(z), or modReLU(z, bias)."""
    # Comparisons with NaN are false, and NaN has to come through.
    if NONLINEARITY == "modrelu":
        modulus = tl.abs(z) + bias
        modulus = tl.where(modulus < 0, 0.0, modulus)
        h = tl.where(z > 0, modulus, tl.where(z < 0, -modulus, modulus * 0.0))
    elif NONLINEARITY == "relu":
        h = tl.where(z < 0, 0.0, z)
    elif NONLINEARITY == "tanh":
        h = _tanh(z)
    else:
        h = z
    return h


@triton.jit
def _times_derivative(g, h, NONLINEARITY: tl.constexpr):
    """Return g σ', from the state h."""
    if NONLINEARITY == "tanh":
        g = g * (1.0 - h * h)
    elif NONLINEARITY != "identity":
        g = g * tl.where(h != 0, 1.0, 0.0)
    return g


# Resident -------------------------------------------------------------------------------------------


@triton.jit
def _load(pointer, row, n, count, N1: tl.constexpr, N2: tl.constexpr):
    """Return both parts of a row, zeros from entry ``count`` on."""
    i, j = tl.arange(0, N1), N1 + tl.arange(0, N2)
    start = pointer + row.to(tl.int64) * n
    return (
        tl.load(start + i, mask=i < count, other=0.0),
        tl.load(start + j, mask=j < count, other=0.0),
    )


@triton.jit
def _store(pointer, row, a, b, n, N1: tl.constexpr, N2: tl.constexpr):
    i, j = tl.arange(0, N1), N1 + tl.arange(0, N2)
    start = pointer + row.to(tl.int64) * n
    tl.store(start + i, a, mask=i < n)
    tl.store(start + j, b, mask=j < n)


@triton.jit
def _load_matrix(M, n, N1: tl.constexpr, N2: tl.constexpr):
    i, j = tl.arange(0, N1), N1 + tl.arange(0, N2)
    return (
        tl.load(M + i[:, None] * n + i[None, :], mask=(i < n)[:, None] & (i < n)[None, :], other=0.0),
        tl.load(M + i[:, None] * n + j[None, :], mask=(i < n)[:, None] & (j < n)[None, :], other=0.0),
        tl.load(M + j[:, None] * n + i[None, :], mask=(j < n)[:, None] & (i < n)[None, :], other=0.0),
        tl.load(M + j[:, None] * n + j[None, :], mask=(j < n)[:, None] & (j < n)[None, :], other=0.0),
    )


@triton.jit
def _fold(X, ROWS: tl.constexpr):
    """Return the sum of all blocks of ROWS rows of X."""
    return tl.sum(tl.reshape(X, [X.shape[0] // ROWS, ROWS, X.shape[1]]), axis=0)


@triton.jit
def _product(a, b, M11, M12, M21, M22, N2: tl.constexpr):
    """Return the row vector (a, b) M."""
    if N2 > 1:
        # Folded to the height of the lower blocks within each thread, so that only two sums are left
        # that all threads have to meet for.
        c = tl.sum(_fold(a[:, None] * M11, N2) + b[:, None] * M21, axis=0)
        d = tl.sum(_fold(a[:, None] * M12, N2) + b[:, None] * M22, axis=0)
    else:
        c, d = tl.sum(a[:, None] * M11, axis=0), b
    return c, d


@triton.jit
def _row(step, sequence, batch, starts):
    return step * batch.to(tl.int64) + sequence if starts is None else tl.load(starts + step) + sequence


@triton.jit(do_not_specialize=["batch", "steps"])
def _forward_kernel(
    states,  # (rows, n): z_t, overwritten by h_t
    h0,  # (batch, n)
    matrix,  # (n, n): W transposed
    bias,  # (n,) for modReLU, or None
    starts,  # (steps,): first row of each step; None if all steps have as many rows
    lengths,  # (batch,): number of steps of each sequence; None with starts
    batch,
    steps,
    n,
    NONLINEARITY: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
):
    sequence = tl.program_id(0)
    length = steps if lengths is None else tl.load(lengths + sequence).to(tl.int32)
    i, j = tl.arange(0, N1), N1 + tl.arange(0, N2)
    M11, M12, M21, M22 = _load_matrix(matrix, n, N1, N2)
    bias_1, bias_2 = 0.0, 0.0
    if bias is not None:
        bias_1, bias_2 = _load(bias, sequence * 0, n, n, N1, N2)
    a, b = _load(h0, sequence, n, n, N1, N2)
    for step in range(length):
        row = _row(step, sequence, batch, starts)
        # Asked for before the product, so that it arrives meanwhile.
        z_1, z_2 = _load(states, row, n, n, N1, N2)
        c, d = _product(a, b, M11, M12, M21, M22, N2)
        # The masks keep 0 · inf = NaN out of the entries beyond n.
        a = tl.where(i < n, _activate(z_1 + c, bias_1, NONLINEARITY), 0.0)
        b = tl.where(j < n, _activate(z_2 + d, bias_2, NONLINEARITY), 0.0)
        _store(states, row, a, b, n, N1, N2)


@triton.jit(do_not_specialize=["batch", "steps"])
def _backward_kernel(
    states,  # (rows, n): h_t
    delta,  # (rows, n): G_t, overwritten by δ_t
    g_h0,  # (batch, n), written
    matrix,  # (n, n): W
    starts,  # as above
    lengths,
    batch,
    steps,
    n,
    NONLINEARITY: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
):
    sequence = tl.program_id(0)
    length = steps if lengths is None else tl.load(lengths + sequence).to(tl.int32)
    i, j = tl.arange(0, N1), N1 + tl.arange(0, N2)
    M11, M12, M21, M22 = _load_matrix(matrix, n, N1, N2)
    c, d = tl.zeros([N1], tl.float32), tl.zeros([N2], tl.float32)
    row = _row(length - 1, sequence, batch, starts)
    g_1, g_2 = _load(delta, row, n, n, N1, N2)
    h_1, h_2 = _load(states, row, n, n, N1, N2)
    for back in range(length):
        a = tl.where(i < n, _times_derivative(g_1 + c, h_1, NONLINEARITY), 0.0)
        b = tl.where(j < n, _times_derivative(g_2 + d, h_2, NONLINEARITY), 0.0)
        _store(delta, row, a, b, n, N1, N2)
        # The rows of the step before this one, which arrive during the product, too.
        step = length - 2 - back
        count = tl.where(step >= 0, n, 0)
        row = _row(tl.where(step >= 0, step, 0), sequence, batch, starts)
        g_1, g_2 = _load(delta, row, n, count, N1, N2)
        h_1, h_2 = _load(states, row, n, count, N1, N2)
        c, d = _product(a, b, M11, M12, M21, M22, N2)
    _store(g_h0, sequence, c, d, n, N1, N2)


def is_resident_size(n: int) -> bool:
    """Return whether a float32 W of this size fits into the registers of one multiprocessor.

    Args:
        n: Size of the state.
    """
    return _entries(*_parts(n)) <= _MAX_ENTRIES


def forward_resident(
    states: Tensor,
    h0: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    nonlinearity: str,
    batch_sizes: Sequence[int],
) -> None:
    """Replace z_t by h_t in all rows.

    Args:
        states: z_t = U x_t, with the bias unless that is modReLU's, ``(rows, n)``, contiguous.
        h0: States before the first step ``(batch, n)``.
        weight_hh: W, ``(n, n)``.
        bias: modReLU's bias ``(n,)``; None for none.
        nonlinearity: Name of the activation.
        batch_sizes: Rows of each step, not increasing.
    """
    starts, lengths = _tables(batch_sizes, states.device)
    _launch_resident(
        _forward_kernel,
        (states, h0.contiguous(), weight_hh.mT.contiguous()),
        (None if bias is None else bias.contiguous(), starts, lengths),
        batch_sizes,
        nonlinearity,
    )


def backward_resident(
    states: Tensor, delta: Tensor, weight_hh: Tensor, nonlinearity: str, batch_sizes: Sequence[int]
) -> Tensor:
    """Replace G_t by δ_t in all rows.

    Args:
        states: h_t, ``(rows, n)``, contiguous.
        delta: G_t, that of the last states included, ``(rows, n)``, contiguous.
        weight_hh: W, ``(n, n)``.
        nonlinearity: Name of the activation.
        batch_sizes: Rows of each step, not increasing.

    Returns:
        The gradient of the states before the first step.
    """
    g_h0 = states.new_empty(batch_sizes[0], states.shape[1])
    _launch_resident(
        _backward_kernel,
        (states, delta, g_h0, weight_hh.contiguous()),
        _tables(batch_sizes, states.device),
        batch_sizes,
        nonlinearity,
    )
    return g_h0


def _launch_resident(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    optional: tuple[Tensor | None, ...],
    batch_sizes: Sequence[int],
    nonlinearity: str,
) -> None:
    n, batch = tensors[0].shape[1], batch_sizes[0]
    N1, N2 = _parts(n)
    with torch.cuda.device_of(tensors[0]):
        kernel[(batch,)](
            *tensors,
            *optional,
            batch,
            len(batch_sizes),
            n,
            NONLINEARITY=nonlinearity,
            N1=N1,
            N2=N2,
            num_warps=_warps(N1, N2),
            **_OPTIONS,
        )


def _parts(n: int) -> tuple[int, int]:
    """Return N1 and N2, powers of two with N1 + N2 >= n and no more entries than it takes."""
    whole = max(16, triton.next_power_of_2(n))
    rest = max(16, triton.next_power_of_2(n - whole // 2))
    return (whole // 2, rest) if rest < whole // 2 else (whole, 1)


def _entries(N1: int, N2: int) -> int:
    return (N1 + N2) ** 2 if N2 > 1 else N1**2


def _warps(N1: int, N2: int) -> int:
    warps: int = triton.next_power_of_2(triton.cdiv(_entries(N1, N2), 32 * _ENTRIES_PER_THREAD))
    return min(warps, _MAX_WARPS)


def _tables(batch_sizes: Sequence[int], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return the first row of each step and the length of each sequence, or None where rows are equal."""
    batch = batch_sizes[0]
    if batch_sizes[-1] == batch:
        return None, None
    sizes = torch.tensor(batch_sizes)
    starts = sizes.cumsum(0) - sizes
    lengths = (sizes[:, None] > torch.arange(batch)).sum(dim=0)
    both = torch.cat([starts, lengths])
    if device.type == "cuda":
        # From pinned memory, so that the host need not wait for it to arrive.
        both = both.pin_memory().to(device, non_blocking=True)
    return both[: len(sizes)], both[len(sizes) :]


# Stepwise -------------------------------------------------------------------------------------------


@triton.jit
def _modrelu_kernel(z, bias, size, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(z + i, mask=i < size)
    tl.store(z + i, _activate(value, tl.load(bias + i % n, mask=i < size), "modrelu"), mask=i < size)


@triton.jit
def _derivative_kernel(g, h, size, NONLINEARITY: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = _times_derivative(tl.load(g + i, mask=i < size), tl.load(h + i, mask=i < size), NONLINEARITY)
    tl.store(g + i, value, mask=i < size)


def forward_stepwise(
    states: Tensor,
    h0: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    nonlinearity: str,
    batch_sizes: Sequence[int],
) -> None:
    """Do what :func:`forward_resident` does, with two launches in each step.

    Args:
        states: As there.
        h0: As there.
        weight_hh: As there.
        bias: As there.
        nonlinearity: As there.
        batch_sizes: As there.
    """
    n, weight = states.shape[1], weight_hh.mT
    threshold = states.new_zeros(n) if bias is None else bias.contiguous()
    previous = h0
    with torch.cuda.device_of(states):
        for step in states.split(list(batch_sizes)):
            step.addmm_(previous[: len(step)], weight)
            if nonlinearity == "modrelu":
                grid = (triton.cdiv(step.numel(), _BLOCK),)
                _modrelu_kernel[grid](step, threshold, step.numel(), n, BLOCK=_BLOCK, **_OPTIONS)
            elif nonlinearity == "relu":
                step.relu_()
            elif nonlinearity == "tanh":
                step.tanh_()
            previous = step


def backward_stepwise(
    states: Tensor, delta: Tensor, weight_hh: Tensor, nonlinearity: str, batch_sizes: Sequence[int]
) -> Tensor:
    """Do what :func:`backward_resident` does, with two launches in each step.

    Args:
        states: As there.
        delta: As there.
        weight_hh: As there.
        nonlinearity: As there.
        batch_sizes: As there.

    Returns:
        The gradient of the states before the first step.
    """
    deltas, hs = delta.split(list(batch_sizes)), states.split(list(batch_sizes))
    later = delta[:0]
    with torch.cuda.device_of(states):
        for step, h in zip(reversed(deltas), reversed(hs), strict=True):
            if len(later) > 0:
                step[: len(later)].addmm_(later, weight_hh)
            if nonlinearity != "identity":
                grid = (triton.cdiv(step.numel(), _BLOCK),)
                _derivative_kernel[grid](step, h, step.numel(), nonlinearity, BLOCK=_BLOCK, **_OPTIONS)
            later = step
    return torch.mm(later, weight_hh)
