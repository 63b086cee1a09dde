"""Faults that test_frobenius_norm.py finds."""

from tests.faults import Fault

_CLASS = "spectral_param/_parametrizations/frobenius_norm.py"
_SETS = "spectral_param/_sets/spheres.py"
_LAYOUT = "spectral_param/_parametrizations/layout.py"

FAULTS = (
    Fault(
        "sphere-axis: slices lie along the wrong axis",
        _LAYOUT,
        "W = W.movedim(is_gated + self.axis, is_gated)",
        "W = W.movedim(-1 - self.axis, is_gated)",
        "slices_are_those or within_a_gate",
    ),
    Fault(
        "sphere-join: slices come back along the first axis",
        _LAYOUT,
        ".movedim(is_gated, is_gated + self.axis)",
        "",
        "slices_are_those or within_a_gate",
    ),
    Fault(
        "sphere-groups: the groups of a convolution are weights of their own",
        _CLASS,
        "self.dim, 1 if self.kernel_dims else self.gates)",
        "self.dim, self.gates)",
        "slices_are_those",
    ),
    Fault(
        "sphere-size: squares of small and large entries under- and overflow",
        _SETS,
        "    return polar(W)[1] if size is None else size\n",
        "    return squares(W).sqrt()\n",
        "every_size",
    ),
    Fault(
        "sphere-direction: every norm counts as ordinary",
        _SETS,
        "_ORDINARY = (1e-10, 1e15)",
        "_ORDINARY = (-1.0, float('inf'))",
        "every_size",
    ),
    Fault(
        "sphere-sum: squares are added one by one",
        _SETS,
        '    return _of_all_parts(parts.sum(dim=(-2, -1)), "SUM")\n\n\ndef inner',
        "    return torch.linalg.vector_norm(parts.sqrt(), dim=(-2, -1)).square()\n\n\ndef inner",
        "three_million",
    ),
    Fault(
        "sphere-gradient: the gradient has its normal part",
        _CLASS,
        "along = spheres.without(divided(W, c[..., None, None]), G)",
        "along = G",
        "every_size or best_member or at_most",
    ),
    Fault(
        "sphere-scale: the gradient is not divided by the norm of T",
        _CLASS,
        "along.mul_((c / size)[..., None, None])",
        "along.mul_(c[..., None, None])",
        "every_size",
    ),
    Fault(
        "sphere-conjugate: the inner product of complex entries loses a sign",
        _SETS,
        "A.real * B.real + A.imag * B.imag",
        "A.real * B.real - A.imag * B.imag",
        "tangent or every_size",
    ),
    Fault(
        "sphere-active: every slice on the boundary is active",
        _CLASS,
        "return is_on_boundary & (spheres.inner(E, G) < 0)",
        "return is_on_boundary",
        "active",
    ),
    Fault(
        "sphere-inside: slices inside are active",
        _CLASS,
        "return is_on_boundary & (spheres.inner(E, G) < 0)",
        "return spheres.inner(E, G) < 0",
        "active",
    ),
    Fault(
        "sphere-chosen: tangent ignores what is active",
        _CLASS,
        "return along if active is None else _chosen(active, along, D)",
        "return along",
        "tangent",
    ),
    Fault(
        "sphere-zeros: zero slices start",
        _CLASS,
        "        if not where:\n            return\n",
        "        return\n",
        "refused_by_name",
    ),
    Fault(
        "sphere-held-zeros: zero slices start after the step",
        "spectral_param/_register/held.py",
        "    constraint.check_start(X)\n",
        "",
        "refused_by_name",
    ),
    Fault(
        "sphere-padding: the padding row of an embedding counts as a slice of zeros",
        "spectral_param/_register/holders.py",
        "            link.padding_idx = owner.padding_idx\n",
        "            pass\n",
        "padding",
    ),
    Fault(
        "sphere-padding-start: a new start fills the padding row",
        _CLASS,
        "            W[self.padding_idx] = 0\n",
        "",
        "padding",
    ),
    Fault(
        "sphere-half: rounding to half precision counts as a move",
        _CLASS,
        "+ (eps / 2 if eps is not None and eps > own else 0.0)",
        "",
        "half_precision",
    ),
    Fault(
        "sphere-half-loose: half precision may drift by 10 of its rounding errors",
        _CLASS,
        "(eps / 2 if eps is not None and eps > own else 0.0)",
        "(10 * eps if eps is not None and eps > own else 0.0)",
        "half_precision",
    ),
    Fault(
        "sphere-shared: weights of other norms are put back together",
        _CLASS,
        '("Frobenius norm", number, self.mode)',
        '("Frobenius norm", self.mode)',
        "many_weights",
    ),
    Fault(
        "sphere-inside-scaled: at_most scales up",
        _CLASS,
        "return scales & ~(size <= c * (1 + FrobeniusNorm.ROUNDINGS * torch.finfo(size.dtype).eps))",
        "return scales",
        "bit_for_bit",
    ),
    Fault(
        "sphere-count: a given norm takes away no parameter",
        _CLASS,
        'return real_entries(T) - (self.mode == "equal") * T.shape[:-2].numel()',
        "return real_entries(T)",
        "dimensions or within_a_gate",
    ),
)
