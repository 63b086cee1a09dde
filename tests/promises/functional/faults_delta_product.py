"""Faults that test_delta_product.py finds."""

from tests.faults import Fault

CHUNKS = "spectral_param/_recurrence/delta_chunks.py"

FAULTS = (
    Fault(
        "read-before: a step reads the state before its reflections",
        CHUNKS,
        "return (row <= torch.arange(steps, device=like.device)[:, None]).to(like.dtype)",
        "return (row < torch.arange(steps, device=like.device)[:, None]).to(like.dtype)",
        "one_by_one",
    ),
    Fault(
        "decay-of-values: what a chunk writes does not decay until its end",
        CHUNKS,
        "return y, torch.baddbmm(Γ.end * state, K.mT, Γ.rest * U)",
        "return y, torch.baddbmm(Γ.end * state, K.mT, U)",
        "one_by_one",
    ),
    Fault(
        "gram: one of the two factors of the Gram matrix has no gradient",
        CHUNKS,
        "        .baddbmm_(g_gram.mT, K)\n",
        "",
        "one_by_one",
    ),
    Fault(
        "length: the gradient of a key has a part along the key",
        CHUNKS,
        "(g_K - K * (g_K * K).sum(dim=-1, keepdim=True)) * inverse_length",
        "g_K * inverse_length",
        "one_by_one",
    ),
    Fault(
        "beta: the gradient of the strengths forgets the Gram matrix",
        CHUNKS,
        "(Z * error).sum(dim=-1) + weighted.sum(dim=-1)",
        "(Z * error).sum(dim=-1)",
        "one_by_one",
    ),
    Fault(
        "single-solve: the system of a chunk is solved in single precision",
        CHUNKS,
        "return torch.float64 if double_device(like.device) == like.device else like.dtype",
        "return like.dtype",
        "single_precision",
    ),
    Fault(
        "constant-states: a second derivative takes the stored states for constants",
        "spectral_param/_recurrence/node.py",
        "if torch.is_grad_enabled() or any(g is not None and is_wrapped(g) for g in grads):",
        "if any(g is not None and is_wrapped(g) for g in grads):",
        "second_order",
    ),
    Fault(
        "zero: a key of zeros is divided by zero",
        CHUNKS,
        "return torch.where(square > 0, square, 1).rsqrt()",
        "return square.rsqrt()",
        "key_of_zeros",
    ),
)
