"""The seeded faults: what a person could do by mistake, and the narrowest tests that find it.

A lost sign, conjugate or term, a transposition, one more or less, a forgotten condition, a state that is not
saved. :mod:`tests.mutations` puts them in. Most are found by tests of promises, through public names alone.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that a person could make.

    Attributes:
        name: A word, and what is wrong.
        file: Where.
        code: Text that occurs exactly once in the file.
        instead: What takes its place.
        tests: Arguments of pytest: what is to find it.
    """

    name: str
    file: str
    code: str
    instead: str
    tests: tuple[str, ...]


def contract(words: str) -> tuple[str, ...]:
    """Return trials of the conformance suite, whose names are constraint-check-shape-dtype."""
    return ("tests/promises/test_conformance.py", "-k", words)


def promise(file: str, words: str = "") -> tuple[str, ...]:
    """Return a file of tests of promises, or those of its tests that these words choose."""
    return (f"tests/promises/{file}", *(["-k", words] if words else []))


def fault_test(words: str) -> tuple[str, ...]:
    """Return tests that were written because no other one found a fault."""
    return promise("test_faults.py", words)


# README, "What holds" -----------------------------------------------------------------------------

PROMISES = (
    Fault(
        "reads: a second read evaluates the constraint again",
        "spectral_param/_parametrizations/memory.py",
        "if last is not None and last.marks == marks and _is_current(",
        "if last is not None and last.marks != marks and _is_current(",
        fault_test("evaluated_once"),
    ),
    Fault(
        "edits: an original that was edited in place without a new version counts as the same",
        "spectral_param/_parametrizations/memory.py",
        "    if not _are_same(originals, last.originals, asked):\n        return False\n",
        "",
        contract("repeated_reads and SpectralNorm"),
    ),
    Fault(
        "attributes: a weight stays the same after an attribute has been set",
        "spectral_param/_parametrizations/memory.py",
        'edits.append((content["_edits"], content',
        "edits.append((0, content",
        promise("constraints/test_memory.py", "seen"),
    ),
    Fault(
        "buffers: a buffer that was written to counts as the same",
        "spectral_param/_parametrizations/memory.py",
        "    if (state.buffers or before.buffers) and not _are_same(state.buffers, before.buffers, asked):\n",
        "    if False:\n",
        promise("constraints/test_memory.py", "seen"),
    ),
    Fault(
        "late-edit: the gradient of a read is that of what the buffers are later",
        "spectral_param/_parametrizations/memory.py",
        "if state is None or not _is_kept(state, before):",
        "if state is None:",
        contract("gradient_of_the_read and Householder"),
    ),
    Fault(
        "checkpointing: a remembered weight shortens the graph of the second of two forward passes",
        "spectral_param/_parametrizations/memory.py",
        "if _top_hooks(False) is not None:",
        "if False:",
        fault_test("checkpointed_segment"),
    ),
    Fault(
        "edited-weight: the memory keeps the tensor that the user gets",
        "spectral_param/_parametrizations/memory.py",
        "W = last.weight.clone()",
        "W = last.weight",
        contract("repeated_reads and ScaledCayley"),
    ),
    Fault(
        "start: registration takes the paper's start, and not the weight that the layer has",
        "spectral_param/_parametrizations/base.py",
        "elif self._from_paper:",
        "elif not self._from_paper:",
        contract("right_inverse and ScaledCayley and 4x4"),
    ),
    Fault(
        "projection: a weight outside of the set goes to any orthogonal one, not to the nearest",
        "spectral_param/_parametrizations/orthogonal.py",
        "factor: Tensor = U @ Vh",
        "factor: Tensor = U",
        fault_test("nearest"),
    ),
    Fault(
        "assignment: an assigned weight outside of the set is projected in silence",
        "spectral_param/_parametrizations/base.py",
        "originals = self._unconstrain(W.detach(), project=is_first)",
        "originals = self._unconstrain(W.detach(), project=True)",
        contract("rejects_outside and Householder"),
    ),
    Fault(
        "transform: values are looked at inside of torch.func",
        "spectral_param/_context.py",
        "if is_recorded() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:",
        "if is_recorded() or forward_ad._current_level >= 0:",
        contract("torch_func and SpectralRadiusNorm"),
    ),
    Fault(
        "autocast: it stays on while a constraint is computed",
        "spectral_param/_context.py",
        "if exists and torch.is_autocast_enabled(device):",
        "if not exists and torch.is_autocast_enabled(device):",
        contract("autocast and Householder"),
    ),
    Fault(
        "copy: a deep copy shares the class with the property that computes the weight",
        "spectral_param/_parametrizations/copies.py",
        "            if names:\n",
        "            if not names:\n",
        promise("constraints/test_base.py", "copy"),
    ),
    Fault(
        "rnn-copy: torch.nn.RNN keeps the graph of its last weight, which deepcopy refuses",
        "spectral_param/_parametrizations/copies.py",
        "if id(W) not in memo:",
        "if id(W) in memo:",
        contract("deepcopy_of_rnn and ScaledCayley"),
    ),
    Fault(
        "compiled: the gradient of a compiled spectral radius is transposed",
        "spectral_param/_eigen/derivative.py",
        "return g[..., None, None] * gradient, None, None",
        "return g[..., None, None] * gradient.mT, None, None",
        contract("compile and SpectralRadiusNorm and 4x4"),
    ),
    Fault(
        "exported: an exported program takes an operator of this library",
        "spectral_param/_context.py",
        "if not torch.compiler.is_compiling() or _is_exporting():",
        "if not torch.compiler.is_compiling():",
        contract("export and SpectralRadiusNorm and 4x4"),
    ),
    Fault(
        "nan: a weight of NaN is within the bound",
        "spectral_param/_parametrizations/spectral_radius.py",
        "above = self._exceeds(rho, T) | (rho != rho)",
        "above = self._exceeds(rho, T)",
        promise("constraints/test_spectral_radius.py", "nan"),
    ),
    Fault(
        "nilpotent: a matrix whose spectral radius is zero is divided by it",
        "spectral_param/_parametrizations/spectral_radius.py",
        "divided_by = self._active(size, T) & ~_nilpotent(A, rho, scale)",
        "divided_by = self._active(size, T)",
        promise("constraints/test_spectral_radius.py", "zero"),
    ),
    Fault(
        "defective: an eigenvalue without a derivative gets one of rounding errors",
        "spectral_param/_eigen/dense.py",
        "return float(10 * torch.finfo(dtype).eps ** 0.5)",
        "return float(torch.finfo(dtype).eps)",
        promise("functional/test_spectral_radius.py", "defective"),
    ),
    Fault(
        "units: eigenvalues are not balanced before they count as defective",
        "spectral_param/_eigen/dense.py",
        "if solution is None or not solution[3]:",
        "if solution is None:",
        promise("functional/test_spectral_radius.py", "units"),
    ),
    Fault(
        "half: a weight in half precision is computed in half precision",
        "spectral_param/_parametrizations/base.py",
        "if X.dtype in (torch.bfloat16, torch.float16):",
        "if X.dtype == torch.float16:",
        contract("bfloat16 and ScaledCayley"),
    ),
    Fault(
        "gate: the last block of a gated weight has the wrong sign",
        "spectral_param/_parametrizations/layout.py",
        "W = W.flatten(-3, -2)",
        "W = torch.cat([W[..., :-1, :, :], -W[..., -1:, :, :]], -3).flatten(-3, -2)",
        contract("right_inverse and 16x4"),
    ),
    Fault(
        "wide: a wide weight is not transposed back",
        "spectral_param/_parametrizations/layout.py",
        "        if self.is_wide:\n            W = W.mT\n",
        "",
        contract("right_inverse and 16x64"),
    ),
    Fault(
        "gru: a GRU has as many gates as an LSTM",
        "spectral_param/_constrain.py",
        'nn.GRU: (("weight_hh", "weight_ih"), 3),',
        'nn.GRU: (("weight_hh", "weight_ih"), 4),',
        promise("test_constrain.py", "gates"),
    ),
    Fault(
        "stride: the phases of a strided convolution are forgotten",
        "spectral_param/_constrain.py",
        "return tuple(s // math.gcd(s, d) for",
        "return tuple(1 for",
        promise("constraints/test_spectral_norm.py", "norm_of_a_layer or strid"),
    ),
)

# The gradient of each constraint ------------------------------------------------------------------

GRADIENTS = (
    Fault(
        "lost-term: the gradient of Cayley's diagonal lacks what is off its diagonal",
        "spectral_param/functional/_cayley.py",
        ".conj() * G).sum(dim=-2)",
        ".conj() * G).diagonal(dim1=-2, dim2=-1)",
        contract("ScaledCayley and gradients"),
    ),
    Fault(
        "small-cayley: the gradient of a small orthogonal weight is symmetric",
        "spectral_param/functional/_cayley.py",
        "np.subtract(half, transposed, out=above)",
        "np.add(half, transposed, out=above)",
        contract("ScaledCayley and gradients and float64"),
    ),
    Fault(
        "tall-cayley: the gradient of a small tall weight has a wrong sign",
        "spectral_param/functional/_cayley.py",
        "half = adjoint.dot(above if B is None else above - B.T.dot(below))",
        "half = adjoint.dot(above if B is None else above + B.T.dot(below))",
        contract("ScaledCayley and gradients and 5x3"),
    ),
    Fault(
        "unitary-cayley: the gradient of a unitary weight takes D without its conjugate",
        "spectral_param/functional/_cayley.py",
        "(-0.25 * d.conj())[..., None, :]",
        "(-0.25 * d)[..., None, :]",
        contract("ScaledCayley and gradients and complex128"),
    ),
    Fault(
        "exponential: the gradient of a power lacks a term",
        "spectral_param/functional/_exponential.py",
        "g_2 = g_2 + A2.mT @ g_4 + g_4 @ A2.mT + g_3 @ A.mT",
        "g_2 = g_2 + A2.mT @ g_4 + g_4 @ A2.mT",
        promise("functional/test_exponential.py"),
    ),
    Fault(
        "squaring: the gradient of a square is twice that of one factor",
        "spectral_param/functional/_exponential.py",
        "squared = X.mT @ G + G @ X.mT",
        "squared = 2 * X.mT @ G",
        promise("functional/test_exponential.py"),
    ),
    Fault(
        "geodesic: the tangent is not skew at the base",
        "spectral_param/functional/_exponential.py",
        "A = (C - C.mT) / 2",
        "A = (C + C.mT) / 2",
        fault_test("orthonormal"),
    ),
    Fault(
        "reflections: the gradient of the vectors takes the triangle once",
        "spectral_param/functional/_householder.py",
        "g_U = DY.mH - vectors @ (R + R.mH)",
        "g_U = DY.mH - vectors @ R",
        contract("Householder and gradients"),
    ),
    Fault(
        "angles: the gradient of complex reflections lacks a conjugate",
        "spectral_param/functional/_householder.py",
        "g_tau = (Y * (vectors.mH - N @ X).conj()).sum(dim=-1)",
        "g_tau = (Y * (vectors.mH - N @ X)).sum(dim=-1)",
        contract("Householder and gradients and complex128"),
    ),
    Fault(
        "forward-mode: a tangent of an eigenvector has the wrong sign",
        "spectral_param/_eigen/derivative.py",
        "du = _bordered_solve(T, eigenvalue, u, u, -dTu, degenerate)",
        "du = _bordered_solve(T, eigenvalue, u, u, dTu, degenerate)",
        promise("test_derivative_modes.py", "dominant_eigen"),
    ),
    Fault(
        "product: the gradient of a product transposes a complex factor",
        "spectral_param/_node.py",
        "left.mH @ G if",
        "left.mT @ G if",
        contract("Givens and gradients and complex128"),
    ),
    Fault(
        "rotations: the partner of a coordinate lacks the phase",
        "spectral_param/functional/_givens.py",
        "torch.cat([-s, e * s, 0 * one], dim=-1)",
        "torch.cat([-s, s, 0 * one], dim=-1)",
        contract("Givens and constraint_holds"),
    ),
    Fault(
        "fourier: the length of a vector counts as constant",
        "spectral_param/functional/_fourier.py",
        "square = (v * v.conj()).real.sum(dim=-1, keepdim=True)",
        "square = (v * v.conj()).real.sum(dim=-1, keepdim=True).detach()",
        contract("FourierUnitary and gradients"),
    ),
    Fault(
        "departure: the bound of the departure counts as constant",
        "spectral_param/_parametrizations/schur_form.py",
        "excess = departure(blocks) / self.departure**2",
        "excess = departure(blocks).detach() / self.departure**2",
        contract("SchurForm-bounded and gradients"),
    ),
    Fault(
        "annulus: an eigenvalue far below the lower bound ends outside of the annulus",
        "spectral_param/_parametrizations/schur_form.py",
        "return fold(gamma, low if low > 0 else -high, high)",
        "return fold(gamma, -high, high)",
        contract("SchurForm-annulus and large_originals"),
    ),
    Fault(
        "reflected: real parts are clamped at their bound, where the derivative is then zero",
        "spectral_param/functional/_schur.py",
        "return torch.where(x <= high, x, 2 * high - x)",
        "return x.clamp(max=high)",
        fault_test("beyond_the_bound"),
    ),
    Fault(
        "shear: an entry inside of a block moves its eigenvalues",
        "spectral_param/functional/_schur.py",
        "(other / shear).diag_embed(-1)",
        "(other * shear).diag_embed(-1)",
        contract("SchurForm and right_inverse"),
    ),
    Fault(
        "papers-form: the paper's form takes no entries of T inside of blocks",
        "spectral_param/functional/_schur.py",
        "strictly_lower(blocks.T, blocks.pairs if exact else None)",
        "strictly_lower(blocks.T, blocks.pairs)",
        contract("SchurForm-paper and right_inverse"),
    ),
    Fault(
        "lyapunov: the gradient of a small stable weight has a wrong factor",
        "spectral_param/functional/_lyapunov.py",
        "N *= 0.25",
        "N *= 0.5",
        contract("LyapunovForm and gradients and float64"),
    ),
    Fault(
        "long-lyapunov: the gradient of a stable weight lacks half of a Hermitian matrix",
        "spectral_param/functional/_lyapunov.py",
        "    N = half + half.mH\n",
        "    N = 2 * half\n",
        contract("LyapunovForm and gradients and complex128"),
    ),
    Fault(
        "growth: the bound of the condition is missed",
        "spectral_param/functional/_lyapunov.py",
        "(growth - 1) / (growth + 1) * contraction(K)",
        "(growth - 1) / growth * contraction(K)",
        contract("LyapunovForm-growth or LyapunovForm-abscissa-growth"),
    ),
    Fault(
        "dissipation: real parts have the wrong sign",
        "spectral_param/functional/_lyapunov.py",
        "A, identity = Z - Z.mH - Y.mH @ Y, identity_like(X)",
        "A, identity = Z - Z.mH + Y.mH @ Y, identity_like(X)",
        contract("LyapunovForm-abscissa"),
    ),
    Fault(
        "again: what is evaluated again for the backward pass gets a gradient without its second order",
        "spectral_param/_node.py",
        "t.view_as(t) if create_graph else t.detach().requires_grad_(wanted)",
        "t.detach().requires_grad_(wanted)",
        contract("LyapunovForm-growth and gradients"),
    ),
    Fault(
        "interval: singular values count from the middle with the slope of one half",
        "spectral_param/_parametrizations/singular_values.py",
        "return *left, *right, 2 * torch.atanh(t)",
        "return *left, *right, torch.atanh(t)",
        contract("SingularValues and right_inverse"),
    ),
    Fault(
        "right-vectors: they are transposed without their conjugate",
        "spectral_param/_parametrizations/singular_values.py",
        "return (U * sigma[..., None, :]) @ V.mH",
        "return (U * sigma[..., None, :]) @ V.mT",
        contract("SingularValues and right_inverse and complex128"),
    ),
    Fault(
        "singular-gradient: singular values are constants",
        "spectral_param/_parametrizations/singular_values.py",
        "torch.tanh(f / 2)",
        "torch.tanh(f.detach() / 2)",
        contract("SingularValues and gradients"),
    ),
    Fault(
        "norm-gradient: the term of the norm has the wrong sign",
        "spectral_param/_eigen/singular.py",
        "*outer, value=-1)",
        "*outer, value=1)",
        contract("SpectralNorm and gradients"),
    ),
    Fault(
        "norm-hessian: the second derivative takes the factor for a constant",
        "spectral_param/_eigen/singular.py",
        "f * sigma / _Leading.apply(T, sigma, v)[0]",
        "f * sigma / sigma",
        contract("SpectralNorm and gradients"),
    ),
    Fault(
        "vector-gradient: the derivative of a singular vector lacks its other side",
        "spectral_param/_eigen/singular.py",
        "terms.append(_outer(_times(T, v), y) + _outer(_times(T, y), v))",
        "terms.append(_outer(_times(T, v), y))",
        contract("SpectralNorm and gradients"),
    ),
    Fault(
        "kernel-gradient: the leading frequency has a wrong sign",
        "spectral_param/_eigen/symbol.py",
        "wave = torch.complex(angle.cos(), -angle.sin())",
        "wave = torch.complex(angle.cos(), -angle.cos())",
        promise("constraints/test_spectral_norm.py", "kernel or layer"),
    ),
    Fault(
        "conjugate: the gradient of a complex eigenvalue lacks one",
        "spectral_param/_eigen/derivative.py",
        "x[..., :, None], physical_conj(y)[",
        "x[..., :, None], y[",
        promise("functional/test_spectral_radius.py", "derivative"),
    ),
    Fault(
        "small: the gradient of a complex eigenvalue of a small matrix lacks a conjugate",
        "spectral_param/_eigen/derivative.py",
        "w[:, None] * right.conj()",
        "w[:, None] * right",
        contract("SpectralRadiusNorm and gradients"),
    ),
    Fault(
        "pair: the gradient of a real matrix takes one of two conjugate eigenvalues for both",
        "spectral_param/_eigen/derivative.py",
        "                result += w.imag[:, None] * right.imag\n",
        "                result -= w.imag[:, None] * right.imag\n",
        fault_test("conjugate_pair"),
    ),
    Fault(
        "left-vector: its derivative has the wrong sign",
        "spectral_param/_eigen/derivative.py",
        "terms.append(_outer(-v, y, real=not T.is_complex()))",
        "terms.append(_outer(v, y, real=not T.is_complex()))",
        contract("SpectralRadiusNorm and gradients"),
    ),
    Fault(
        "absolute: the gradient ignores the signs",
        "spectral_param/_parametrizations/spectral_radius.py",
        "return T.abs() if self.of",
        "return T.abs().detach() if self.of",
        contract("absolute and gradients"),
    ),
    Fault(
        "at-most: a radius within the bound is scaled up to it",
        "spectral_param/_parametrizations/spectral_radius.py",
        'if self.mode == "equal":\n            return torch.ones_like(rho, dtype=torch.bool)',
        'if self.mode != "latched":\n            return torch.ones_like(rho, dtype=torch.bool)',
        contract("SpectralRadiusNorm-at_most and right_inverse"),
    ),
    Fault(
        "tracked: the left vector of a tracked complex eigenvalue is not conjugated",
        "spectral_param/_eigen/tracking.py",
        "(u[0], v[0].conj_physical())",
        "(u[0], v[0])",
        fault_test("tracked_gradient"),
    ),
    Fault(
        "shift: the gradient of a spectral abscissa is that of a constant shift",
        "spectral_param/_parametrizations/spectral_abscissa.py",
        "shift = torch.where(self._active(shift.detach()), shift, 0)",
        "shift = torch.where(self._active(shift.detach()), shift, 0).detach()",
        contract("SpectralAbscissa and gradients"),
    ),
    Fault(
        "coupling: no gradient reaches the coupling of two blocks",
        "spectral_param/_parametrizations/block_triangular.py",
        "coupling.to(block.dtype))",
        "coupling.detach().to(block.dtype))",
        contract("BlockTriangular and gradients"),
    ),
    Fault(
        "triangle: couplings are read from below the diagonal",
        "spectral_param/_parametrizations/block_triangular.py",
        "return tuple(self._part(W, i, j) for i, j in self.coupling)",
        "return tuple(self._part(W, j, i).mT for i, j in self.coupling)",
        contract("BlockTriangular and right_inverse"),
    ),
    Fault(
        "sign: an entry that is zero has no derivative and stays zero",
        "spectral_param/_parametrizations/sign_pattern.py",
        "torch.where(_contradicts(T, pattern), -T, T))",
        "torch.where(pattern == _FREE, T, pattern * T.abs()))",
        fault_test("sign_of_zero"),
    ),
)

# Where a fast path is chosen ----------------------------------------------------------------------

CHOICES = (
    Fault(
        "second: a gradient that is not a function of the original is taken for one",
        "spectral_param/_node.py",
        "if torch.is_grad_enabled() or is_wrapped(G):",
        "if is_wrapped(G):",
        contract("ScaledCayley and gradients"),
    ),
    Fault(
        "batched: numpy's gradient is taken for many gradients at a time",
        "spectral_param/_node.py",
        "if torch.is_grad_enabled() or is_wrapped(G):",
        "if torch.is_grad_enabled():",
        contract("LyapunovForm and torch_func"),
    ),
    Fault(
        "precision: a backward pass under autocast multiplies in half precision",
        "spectral_param/_node.py",
        "        with precise(G):\n            if",
        "        if True:\n            if",
        contract("ScaledCayley and autocast"),
    ),
    Fault(
        "released: the graph of a read stays after its backward pass",
        "spectral_param/_parametrizations/memory.py",
        "graph, held[0] = held[0], None",
        "graph = held[0]",
        ("tests/internal/parametrizations/memory", "-k", "freed"),
    ),
    Fault(
        "hooks: a first read saves more than a second one",
        "spectral_param/_parametrizations/memory.py",
        "if _top_hooks(False) is not None:",
        "if False:",
        promise("constraints/test_memory.py", "hooks"),
    ),
    Fault(
        "compiled-hessian: a compiled spectral radius has a second derivative of zero, and says nothing",
        "spectral_param/_eigen/derivative.py",
        "    if torch.is_grad_enabled():\n        raise NotImplementedError(",
        "    if False:\n        raise NotImplementedError(",
        promise("test_compile.py", "second_derivatives_of_the_radius"),
    ),
    Fault(
        "device: eigenvalues are those that the device computes, if it can",
        "spectral_param/_eigen/dense.py",
        "return not is_on_host(T) and T.shape[-1] <= HOST_SIZE",
        "return False",
        promise("test_device.py", "without_eigenvalues"),
    ),
    Fault(
        "accuracy: an inverse by blocks is used however inaccurate it is",
        "spectral_param/functional/_cayley.py",
        "return Z if defect.item() < 8 * n**0.5 * finfo_eps(T.dtype) else None",
        "return Z",
        promise("functional/test_cayley.py", "block or every_size"),
    ),
    Fault(
        "condition: large originals take the inverse of small ones",
        "spectral_param/functional/_cayley.py",
        "if (skew and float(torch.linalg.vector_norm(plus)) <= limit) or _is_tame(plus, Z, limit):",
        "if True:",
        promise("functional/test_cayley.py", "size or huge"),
    ),
    Fault(
        "large-exponential: a large skew matrix is squared as often as it takes",
        "spectral_param/functional/_exponential.py",
        "if not bool(large.any()):",
        "if True:",
        fault_test("far_from_the_base"),
    ),
    Fault(
        "one-axis: a kernel that overlaps along one axis alone counts as a matrix",
        "spectral_param/_parametrizations/spectral_norm.py",
        "return any(k > s for k, s in",
        "return all(k > s for k, s in",
        fault_test("one_axis"),
    ),
    Fault(
        "closed-latch: a weight that powers prove small is not scaled, though its latch is closed",
        "spectral_param/_parametrizations/spectral_radius.py",
        'if radius is None or (self.mode == "latched" and self._closed(0.0, T)):',
        "if radius is None:",
        promise("constraints/test_spectral_radius.py", "latch"),
    ),
    Fault(
        "signed-slack: powers of the weight are taken for those of its absolute values",
        "spectral_param/_parametrizations/spectral_radius.py",
        "return has_radius_below(self._measured(T), radius)",
        "return has_radius_below(T, radius)",
        fault_test("absolute_values_at_most"),
    ),
    Fault(
        "complex-steps: numpy, which knows real states, computes complex ones",
        "spectral_param/_recurrence/fused.py",
        "        and W.dtype in (torch.float32, torch.float64)\n",
        "",
        fault_test("recurrence"),
    ),
    Fault(
        "batched-recurrence: many gradients at a time are taken in place",
        "spectral_param/_recurrence/fused.py",
        "if torch.is_grad_enabled() or any(g is not None and is_wrapped(g) for g in grads):",
        "if torch.is_grad_enabled():",
        promise("nn/test_block_rnn.py", "jacobian"),
    ),
    Fault(
        "dual-recurrence: the fused recurrence, which has no tangent, runs in forward mode",
        "spectral_param/_recurrence/dispatch.py",
        "return not any(is_wrapped(t) or forward_ad.unpack_dual(t).tangent is not None for t in tensors)",
        "return not any(map(is_wrapped, tensors))",
        promise("nn/test_block_rnn.py", "forward_mode"),
    ),
    Fault(
        "lengths: many linear steps at a time are taken of sequences that end before others",
        "spectral_param/_recurrence/linear.py",
        "    if rows.sizes[-1] != batch:\n        return None\n",
        "",
        fault_test("linear_recurrence"),
    ),
    Fault(
        "later-link: a product without the matrix forgets the constraint that acts after",
        "spectral_param/nn/_block_rnn.py",
        "if isinstance(first, BlockTriangular) and not after:",
        "if isinstance(first, BlockTriangular):",
        promise("nn/test_block_rnn.py", "changed_afterwards"),
    ),
)

# Proofs: a term is left out -----------------------------------------------------------------------

PROOFS = (
    Fault(
        "norm-block: what lies outside of the block is not bounded",
        "spectral_param/_eigen/norm.py",
        "upper = proof.block_bound(leading, defect, b)",
        "upper = top",
        fault_test("norm_that_is_followed"),
    ),
    Fault(
        "norm-move: a bound is taken over from the last step, but not the move",
        "spectral_param/_eigen/norm.py",
        "old + 1.001 * move",
        "old",
        fault_test("norm_that_is_followed"),
    ),
    Fault(
        "norm-power: the residual of a power step is left out of its bound",
        "spectral_param/_eigen/proof.py",
        "return theta + defect / (theta - second) if",
        "return theta if",
        fault_test("norm_that_is_followed"),
    ),
    Fault(
        "norm-second: the bound of the second singular value counts wrongly",
        "spectral_param/_eigen/proof.py",
        "eigvalsh(H)[-2] <= s",
        "eigvalsh(H)[-3] <= s",
        ("tests/internal/eigen/proof",),
    ),
    Fault(
        "chebyshev: random vectors are taken for the leading one",
        "spectral_param/_eigen/proof.py",
        "math.cosh(math.asinh(size / TAU) / degree)",
        "math.cosh(math.asinh(size / 10) / degree)",
        ("tests/internal/eigen/proof",),
    ),
    Fault(
        "cholesky: a factorisation that failed is a proof",
        "spectral_param/_eigen/proof.py",
        "return failed == 0",
        "return failed >= 0",
        promise("constraints/test_spectral_norm.py", "layer or path or kernel"),
    ),
    Fault(
        "grid: a grid of frequencies is taken for all of them",
        "spectral_param/_eigen/symbol.py",
        "cosine *= math.cos(math.pi * (q - 1) / (2 * n))",
        "cosine *= 1.0",
        promise("constraints/test_spectral_norm.py", "layer or grid"),
    ),
    Fault(
        "powers: their rounding errors do not count",
        "spectral_param/_eigen/dense.py",
        "error, rounding = 0.0, 4 * len(power) * _EPS",
        "error, rounding = 0.0, 0.0",
        fault_test("rounding_errors_of_powers"),
    ),
    Fault(
        "audit: a followed eigenvalue is never doubted",
        "spectral_param/_eigen/tracking.py",
        "shortfall = max(shortfall, _audit(power, right, left, ritz, compressions[-1], log2, generator))",
        "pass",
        fault_test("radius_that_is_followed"),
    ),
    Fault(
        "resolvent: of the powers outside of the blocks, the audit counts none but the first",
        "spectral_param/_eigen/tracking.py",
        "M = sum(first_bounds) / (1 - last) / (1 - delta) if last < 1 else math.inf",
        "M = first_bounds[0] if last < math.inf else math.inf",
        fault_test("radius_that_is_followed"),
    ),
    Fault(
        "sparse: a Ritz value of a sparse matrix is believed without a proof",
        "spectral_param/_eigen/sparse.py",
        "return float(leader) if 2 * k * delta <= TOLERANCE * leader else None",
        "return float(leader)",
        ("tests/internal/eigen/sparse",),
    ),
    Fault(
        "cycle: the radius of a cycle is the mean of its weights",
        "spectral_param/_eigen/sparse.py",
        "return math.exp(np.log(np.abs(T.data)).mean())",
        "return float(np.abs(T.data).mean())",
        fault_test("sparse_cycle"),
    ),
)

# What is saved ------------------------------------------------------------------------------------

STATES = (
    Fault(
        "latch: not part of a checkpoint",
        "spectral_param/_parametrizations/spectral_radius.py",
        'self.register_buffer("latched", None)',
        'self.register_buffer("latched", None, persistent=False)',
        promise("constraints/test_spectral_radius.py", "latch"),
    ),
    Fault(
        "evaluation: a latch closes in evaluation, too",
        "spectral_param/_parametrizations/spectral_radius.py",
        "        if not self.training:\n            return\n",
        "",
        promise("constraints/test_spectral_radius.py", "latch"),
    ),
    Fault(
        "present: a bound that was read from the weight is not part of a checkpoint",
        "spectral_param/_parametrizations/bound.py",
        "self.register_buffer(name, self._beside_weight(values))",
        "self.register_buffer(name, self._beside_weight(values), persistent=False)",
        promise("constraints/test_spectral_norm.py", "present"),
    ),
    Fault(
        "rounded-bound: a conversion rounds the bound as it rounds the weight",
        "spectral_param/_parametrizations/bound.py",
        "self._buffers[self._bound] = self._beside_weight(values)",
        "self._buffers[self._bound] = fn(values)",
        promise("constraints/test_bound.py", "conversion"),
    ),
    Fault(
        "meta-bound: the meta device loses the bound",
        "spectral_param/_parametrizations/bound.py",
        'if device.type == "meta":\n            return values\n',
        "",
        promise("constraints/test_bound.py", "meta"),
    ),
    Fault(
        "loaded-bound: a load puts another tensor in the place of the bound that a graph holds",
        "spectral_param/_parametrizations/bound.py",
        "present.copy_(value)",
        "self._buffers[name] = value",
        promise("constraints/test_bound.py", "in_place"),
    ),
    Fault(
        "diagonal: the D of the Cayley transform is not part of a checkpoint",
        "spectral_param/_parametrizations/scaled_cayley.py",
        'self.register_buffer("signs", None)',
        'self.register_buffer("signs", None, persistent=False)',
        contract("ScaledCayley and state_dict"),
    ),
    Fault(
        "signs: those of reflections are not part of a checkpoint",
        "spectral_param/_parametrizations/householder.py",
        'self.register_buffer("signs", None)',
        'self.register_buffer("signs", None, persistent=False)',
        fault_test("other_determinant"),
    ),
    Fault(
        "base: that of an exponential is not part of a checkpoint",
        "spectral_param/_parametrizations/skew_exponential.py",
        'self.register_buffer("base", None)',
        'self.register_buffer("base", None, persistent=False)',
        contract("SkewExponential and state_dict"),
    ),
    Fault(
        "pairs: which eigenvalues are complex is not part of a checkpoint",
        "spectral_param/_parametrizations/schur_form.py",
        'self.register_buffer("pairs", None)',
        'self.register_buffer("pairs", None, persistent=False)',
        contract("SchurForm and state_dict"),
    ),
    Fault(
        "permutation: not part of a checkpoint",
        "spectral_param/_parametrizations/fourier_unitary.py",
        'self.register_buffer("permutation", None)',
        'self.register_buffer("permutation", None, persistent=False)',
        contract("FourierUnitary and state_dict"),
    ),
    Fault(
        "averaged-signs: the mean of two signs is taken for a sign",
        "spectral_param/_parametrizations/decoded.py",
        "found = torch.copysign(torch.ones_like(x), x)",
        "found = x.clone()",
        fault_test("other_determinant"),
    ),
    Fault(
        "averaged-base: the mean of two bases is taken for an orthogonal matrix",
        "spectral_param/_parametrizations/decoded.py",
        "if defect <= 30 * n**0.5 * eps or not bool(B.isfinite().all()):",
        "if True:",
        contract("SkewExponential and averaging"),
    ),
    Fault(
        "trained-model: the module of a fitted model has A transposed",
        "spectral_param/dynamics/_module.py",
        "self.A = _parameter(A)",
        "self.A = _parameter(A.T)",
        promise("dynamics/test_model.py", "module"),
    ),
)

# Fits ---------------------------------------------------------------------------------------------

FITS = (
    Fault(
        "inputs: the best B does not count what A does",
        "spectral_param/dynamics/_one_step/reduce.py",
        "self.C - self.S @ A.T",
        "self.C",
        promise("dynamics/test_fit.py", "long_search or ridge or tensors"),
    ),
    Fault(
        "bound: no eigenvalue of a fit exceeds the bound",
        "spectral_param/dynamics/_one_step/fit.py",
        "return 0.0 if found <= bound + _ROUNDING * size else (found - bound) / scale",
        "return 0.0",
        promise("dynamics/test_fit.py", "bound"),
    ),
    Fault(
        "half-plane: a real eigenvalue of continuous time is moved the wrong way",
        "spectral_param/dynamics/_one_step/regions.py",
        "return min(b, -margin)",
        "return max(b, -margin)",
        fault_test("continuous_time"),
    ),
    Fault(
        "basis: the gradient over Schur bases has a wrong sign",
        "spectral_param/dynamics/_one_step/schur.py",
        "K -= T.T @ EL",
        "K += T.T @ EL",
        ("tests/internal/dynamics/one_step", "-k", "gradient"),
    ),
    Fault(
        "ridge: the error of a fit counts its ridge",
        "spectral_param/dynamics/_one_step/fit.py",
        "samples = len(X) - (n + m if ridge > 0 else 0)",
        "samples = len(X)",
        promise("dynamics/test_fit.py", "ridge"),
    ),
    Fault(
        "peak: powers end before the largest one",
        "spectral_param/dynamics/_growth.py",
        "elif frobenius < 1:",
        "else:",
        fault_test("growth_of_a_fit"),
    ),
    Fault(
        "adjoint: the gradient of a forecast is carried back by A, not its transpose",
        "spectral_param/dynamics/_forecast/windows.py",
        "adjoint = residual + adjoint @ A\n",
        "adjoint = residual + adjoint @ A.T\n",
        fault_test("forecast"),
    ),
    Fault(
        "estimated: the start of a forecast is not the one that fits best",
        "spectral_param/dynamics/_forecast/windows.py",
        "total += (Y[first + k + 1] - forced) @ power",
        "total += (Y[first + k + 1] - forced) @ power.T",
        fault_test("forecast"),
    ),
    Fault(
        "many-unknowns: the gradient of a large forecast lacks a term",
        "spectral_param/dynamics/_forecast/descent.py",
        "in_E = inner @ E @ moved.T.T + inner.T @ E @ moved.T",
        "in_E = inner @ E @ moved.T.T",
        fault_test("forecast"),
    ),
    Fault(
        "held-out: rows that are held out are fitted, too",
        "spectral_param/dynamics/_selection/choose.py",
        "in ((0, low, fold.kept), (low, high, fold.held), (high, len(Y), fold.kept)):",
        "in ((0, len(Y), fold.kept), (low, high, fold.held)):",
        fault_test("held_out"),
    ),
    Fault(
        "shrinkage: the worst ridge is chosen",
        "spectral_param/dynamics/_selection/choose.py",
        "best = int(np.argmin(errors))",
        "best = int(np.argmax(errors))",
        promise("dynamics/test_horizon.py", "continuous"),
    ),
    Fault(
        "choice: the worst of the fits of one step is chosen",
        "spectral_param/dynamics/_selection/choose.py",
        "return of(int(np.argmin(errors))), of(first)",
        "return of(int(np.argmax(errors))), of(first)",
        fault_test("choice"),
    ),
    Fault(
        "mean-input: the offset ignores the mean of the inputs",
        "spectral_param/dynamics/_data.py",
        "c = self.mean_x - A @ self.mean_x - inputs @ self.mean_u",
        "c = self.mean_x - A @ self.mean_x",
        fault_test("offset"),
    ),
    Fault(
        "offset: the first column of B is taken for it",
        "spectral_param/dynamics/_estimator.py",
        "self.offset_: Array = B[:, -1] if self.offset else np.zeros(n)",
        "self.offset_: Array = B[:, 0] if self.offset else np.zeros(n)",
        fault_test("offset"),
    ),
    Fault(
        "delays: the oldest row of a state is taken for the newest",
        "spectral_param/dynamics/_data.py",
        "return states[:, -self.width :]",
        "return states[:, : self.width]",
        promise("dynamics/test_horizon.py", "delays"),
    ),
    Fault(
        "held-input: a step of continuous time is one unit long",
        "spectral_param/dynamics/_estimator.py",
        "both = scipy.linalg.expm(self.dt * np.block(",
        "both = scipy.linalg.expm(np.block(",
        promise("dynamics/test_model.py", "continuous"),
    ),
    Fault(
        "later-input: a simulation from several rows begins with the inputs before them",
        "spectral_param/dynamics/_estimator.py",
        "_rolled_out(A, x, driven[before:])",
        "_rolled_out(A, x, driven[: len(driven) - before])",
        promise("dynamics/test_horizon.py", "several"),
    ),
)

# Networks -----------------------------------------------------------------------------------------

NETWORKS = (
    Fault(
        "small-step: modReLU in numpy adds its bias before it takes the modulus",
        "spectral_param/_recurrence/short.py",
        "z *= sign\n            z += bias",
        "z += bias\n            z *= sign",
        fault_test("recurrence"),
    ),
    Fault(
        "threshold: the gradient of the bias of modReLU lacks the sign of the state",
        "spectral_param/_recurrence/short.py",
        '(h.sgn().mul_(delta) if nonlinearity == "modrelu" else delta)',
        "delta",
        fault_test("recurrence"),
    ),
    Fault(
        "phase: the derivative of complex modReLU turns the wrong way",
        "spectral_param/_recurrence/fused.py",
        "h.sgn().square_().mul_(-q)",
        "h.sgn().square_().mul_(q)",
        fault_test("recurrence"),
    ),
    Fault(
        "packed: a shorter step goes on from the wrong rows of the step before",
        "spectral_param/_recurrence/fused.py",
        "segment.length - segment.sizes[-1]",
        "segment.length - segment.following",
        fault_test("recurrence"),
    ),
    Fault(
        "segment: no gradient flows back over a checkpoint",
        "spectral_param/_recurrence/fused.py",
        "_last_step(segment, delta).add_(self.start)",
        "_last_step(segment, delta)",
        fault_test("recurrence"),
    ),
    Fault(
        "support: the gradient of a block matrix is carried back by the blocks of its transpose",
        "spectral_param/_recurrence/fused.py",
        "[(columns, rows) for rows, columns in self._support]",
        "self._support",
        promise("nn/test_block_rnn.py", "blocks"),
    ),
    Fault(
        "response: the doubled response of a linear network has its halves exchanged",
        "spectral_param/_recurrence/linear.py",
        "rows = torch.cat([rows @ powers[-1].mT, rows])",
        "rows = torch.cat([rows, rows @ powers[-1].mT])",
        fault_test("linear_recurrence"),
    ),
    Fault(
        "sorted: the initial states of a packed sequence are sorted as its results are sorted back",
        "spectral_param/nn/_sequence_layer.py",
        "hx = hx.index_select(1, x.sorted_indices)",
        "hx = hx.index_select(1, x.unsorted_indices)",
        fault_test("packed_sequence"),
    ),
    Fault(
        "unsorted: the last states of a packed sequence are not sorted back",
        "spectral_param/nn/_sequence_layer.py",
        "h_n = h_n.index_select(1, x.unsorted_indices)",
        "pass",
        promise("nn/test_block_rnn.py", "packed"),
    ),
    Fault(
        "backwards: the states of the second direction stay in reverse order",
        "spectral_param/nn/_sequence_layer.py",
        "outputs.append(output[reverse] if backwards else output)",
        "outputs.append(output)",
        promise("nn/test_block_rnn.py", "torch_nn_rnn"),
    ),
    Fault(
        "mirror: a short sequence is reversed as the longest one is",
        "spectral_param/_recurrence/sequence.py",
        "mirrored = lengths[sequence] - 1 - step",
        "mirrored = (lengths[0] - 1 - step) % lengths[sequence]",
        promise("nn/test_block_rnn.py", "packed"),
    ),
    Fault(
        "carried: the last layer gets the initial state of the first one",
        "spectral_param/nn/_sequence_layer.py",
        "list(hx.reshape(count, sizes[0], n))",
        "list(hx.reshape(count, sizes[0], n))[::-1]",
        promise("nn/test_block_rnn.py", "torch_nn_rnn"),
    ),
    Fault(
        "dropout: the output of the last layer is dropped, too",
        "spectral_param/nn/_sequence_layer.py",
        "            if layer < self.num_layers - 1:\n                rows = _dropout",
        "            if layer < self.num_layers:\n                rows = _dropout",
        promise("nn/test_block_rnn.py", "dropout"),
    ),
    Fault(
        "feeding: the long-term block of an ENRNN does not get the short-term state",
        "spectral_param/nn/_models.py",
        "        coupling: bool = True,\n",
        "        coupling: bool = False,\n",
        promise("nn/test_parameter_counts.py"),
    ),
    Fault(
        "goru: the gate that keeps a state replaces it",
        "spectral_param/_recurrence/goru.py",
        "new = torch.lerp(modrelu(candidate + r * rotated, threshold), previous, z)",
        "new = torch.lerp(previous, modrelu(candidate + r * rotated, threshold), z)",
        promise("functional/test_goru.py"),
    ),
    Fault(
        "real-output: imaginary parts come first",
        "spectral_param/nn/_sequence_layer.py",
        "rows = torch.cat([rows.real, rows.imag], dim=-1)",
        "rows = torch.cat([rows.imag, rows.real], dim=-1)",
        promise("nn/test_models.py", "imaginary"),
    ),
)

# Starts -------------------------------------------------------------------------------------------

STARTS = (
    Fault(
        "right-half: the start of scoRNN has angles on all of the upper half",
        "spectral_param/init.py",
        "_uniform(blocks, n // 2, 0, math.pi / 2, generator))",
        "_uniform(blocks, n // 2, 0, math.pi, generator))",
        promise("test_init.py"),
    ),
    Fault(
        "henaff: the start of expRNN has angles on the upper half only",
        "spectral_param/init.py",
        "-math.pi, math.pi, generator",
        "0, math.pi, generator",
        promise("test_init.py"),
    ),
    Fault(
        "area: moduli are dense in the middle of the disc",
        "spectral_param/init.py",
        "moduli = moduli.sign() * moduli.abs().sqrt()",
        "moduli = moduli.sign() * moduli.square()",
        promise("test_init.py"),
    ),
    Fault(
        "radius-start: a random start has the radius 1, whatever was asked for",
        "spectral_param/init.py",
        "blocks *= (radius / spectral_radius(exact))[..., None, None]",
        "blocks *= (1 / spectral_radius(exact))[..., None, None]",
        promise("test_init.py"),
    ),
    Fault(
        "minus-ones: the -1s of scoRNN's start stand at the beginning",
        "spectral_param/_parametrizations/scaled_cayley.py",
        "d[..., n - (n // 2 if count is None else count) :] = -1",
        "d[..., : n // 2 if count is None else count] = -1",
        fault_test("minus_ones"),
    ),
)

# Analyses -----------------------------------------------------------------------------------------

ANALYSES = (
    Fault(
        "displacement: it is not relative to the size of the weight",
        "spectral_param/analysis/_displacement.py",
        "moved[full] = distance / size if size > 0 else distance",
        "moved[full] = distance",
        promise("test_remove.py", "move"),
    ),
    Fault(
        "fisher: the noise of twice as many steps is that of one more",
        "spectral_param/analysis/_fisher.py",
        "A = A @ A",
        "A = A @ W",
        promise("analysis/test_fisher.py"),
    ),
    Fault(
        "proposition: the bound of nnRNN's memory has a power too many",
        "spectral_param/analysis/_fisher.py",
        "bound = sigma_squared ** (1 - n) /",
        "bound = sigma_squared ** (-n) /",
        promise("analysis/test_fisher.py"),
    ),
    Fault(
        "theorem: the bound of a gradient has a step too many",
        "spectral_param/analysis/_gradients.py",
        "torch.where(norm.isnan(), norm, norm**lags)",
        "torch.where(norm.isnan(), norm, norm ** (lags + 1))",
        promise("analysis/test_gradients.py", "bounds or theorem"),
    ),
    Fault(
        "jacobian: that of a step is transposed",
        "spectral_param/analysis/_gradients.py",
        "products[:, :tau] = J[:, None] @ products[:, :tau]",
        "products[:, :tau] = J[:, None].mT @ products[:, :tau]",
        promise("analysis/test_gradients.py", "jacobian or differences"),
    ),
    Fault(
        "last-layer: gradients are those of the first layer",
        "spectral_param/analysis/_stepper.py",
        "slice((layers - 1) * n * self.width, layers * n * self.width)",
        "slice(0, n * self.width)",
        promise("analysis/test_gradients.py"),
    ),
    Fault(
        "kreiss: the distance from the origin is taken for that from the circle",
        "spectral_param/analysis/_transient.py",
        "return height.exp() * norm",
        "return (1 + height.exp()) * norm",
        promise("analysis/test_transient.py", "kreiss"),
    ),
    Fault(
        "is-global: the power 0, whose norm is 1, proves that no later one is larger",
        "spectral_param/analysis/_transient.py",
        "(norms[..., 1:] <= 1).any(dim=-1)",
        "(norms <= 1).any(dim=-1)",
        promise("analysis/test_transient.py", "global"),
    ),
    Fault(
        "lower-schur: the basis of a complex matrix lacks a conjugate",
        "spectral_param/analysis/_schur_structure.py",
        "upper.mH.resolve_conj()",
        "upper.mT",
        promise("analysis/test_schur_structure.py"),
    ),
    Fault(
        "schur-pair: the eigenvalues of a block count its entries with the wrong sign",
        "spectral_param/analysis/_schur_structure.py",
        ".square() + b * c).sqrt()",
        ".square() - b * c).sqrt()",
        promise("analysis/test_schur_structure.py"),
    ),
    Fault(
        "subdiagonal: those above the diagonal are measured",
        "spectral_param/analysis/_schur_structure.py",
        "magnitudes.diagonal(offset=-k, dim1=-2, dim2=-1)",
        "magnitudes.diagonal(offset=k, dim1=-2, dim2=-1)",
        promise("analysis/test_schur_structure.py"),
    ),
    Fault(
        "certificate: it is that of the radius 1, whatever was asked for",
        "spectral_param/analysis/_quadratic_form.py",
        'square_matrices(W, "lyapunov_certificate") / radius',
        'square_matrices(W, "lyapunov_certificate")',
        promise("analysis/test_lyapunov.py"),
    ),
    Fault(
        "orthogonality: of a tall weight the rows are measured, and of a wide one the columns",
        "spectral_param/analysis/_orthogonality.py",
        "W = W.mH if W.shape[-2] < W.shape[-1] else W",
        "W = W.mH if W.shape[-2] > W.shape[-1] else W",
        promise("analysis/test_orthogonality.py"),
    ),
    Fault(
        "recorder: it keeps a tensor that training changes",
        "spectral_param/analysis/_orthogonality.py",
        "value = self._measure().detach().clone()",
        "value = self._measure().detach()",
        promise("analysis/test_orthogonality.py"),
    ),
    Fault(
        "henrici: the eigenvalues count as departure from normality",
        "spectral_param/analysis/_spectra.py",
        "torch.linalg.matrix_norm(schur.triu(1))",
        "torch.linalg.matrix_norm(schur.triu())",
        promise("analysis/test_spectra.py", "departure"),
    ),
    Fault(
        "order: the smallest eigenvalue comes first",
        "spectral_param/analysis/_spectra.py",
        "argsort(dim=-1, descending=True, stable=True)",
        "argsort(dim=-1, descending=False, stable=True)",
        promise("analysis/test_spectra.py"),
    ),
    Fault(
        "summary: of several gates the mean is logged, not the largest number",
        "spectral_param/analysis/_spectra.py",
        "value.amax().item()",
        "value.mean().item()",
        promise("analysis/test_spectra.py", "summary"),
    ),
    Fault(
        "heat-map: the part below the diagonal is empty",
        "spectral_param/analysis/_plot.py",
        "torch.ones_like(mean, dtype=torch.bool).triu(1)",
        "torch.ones_like(mean, dtype=torch.bool).tril(-1)",
        promise("analysis/test_plot.py"),
    ),
)

# Verbs: constrain, remove and functions of a whole model -------------------------------------------

VERBS = (
    Fault(
        "chain: a list of constraints acts from the last one to the first",
        "spectral_param/_constrain.py",
        "    first, *later = links\n    present",
        "    first, *later = links[::-1]\n    present",
        promise("test_constrain.py", "chain"),
    ),
    Fault(
        "pattern: all matches of a pattern share one constraint",
        "spectral_param/_constrain.py",
        "    link = copy.deepcopy(link)\n    if isinstance(link, Parametrization):\n        link.gates",
        "    if isinstance(link, Parametrization):\n        link.gates",
        promise("test_constrain.py", "pattern"),
    ),
    Fault(
        "restored: a constraint that fails leaves the weight that it has changed",
        "spectral_param/_constrain.py",
        "        self._tensor.data.copy_(self._values)\n",
        "",
        promise("test_constrain.py", "fail"),
    ),
    Fault(
        "alias: a tensor that is registered twice is constrained under one name",
        "spectral_param/_constrain.py",
        "    if aliases:\n",
        "    if False:\n",
        promise("test_constrain.py", "twice"),
    ),
    Fault(
        "pruned: a weight that a mask multiplies afterwards is constrained",
        "spectral_param/_constrain.py",
        "f\"{name.removesuffix('_orig')}_mask\" in owner._buffers",
        'f"{name}_mask" in owner._buffers',
        promise("test_constrain.py", "pruned"),
    ),
    Fault(
        "padding: the norm of a layer that repeats pixels is bounded by that of its kernel",
        "spectral_param/_constrain.py",
        'if mode not in ("zeros", "circular"):',
        'if mode not in ("zeros", "circular", "reflect", "replicate"):',
        promise("constraints/test_spectral_norm.py", "padding"),
    ),
    Fault(
        "remove: a constraint of this library stays where another one acts beside it",
        "spectral_param/_constrain.py",
        "if not any(isinstance(link, Parametrization) for link in links):",
        "if not all(isinstance(link, Parametrization) for link in links):",
        promise("test_remove.py"),
    ),
    Fault(
        "rate: constrained weights have the learning rate of the others by default",
        "spectral_param/_model.py",
        "lr / 10 if constrained_lr is None else constrained_lr",
        "lr if constrained_lr is None else constrained_lr",
        promise("test_constrain.py", "param_groups"),
    ),
    Fault(
        "decay: the originals of constrained weights decay, and the others do not",
        "spectral_param/_model.py",
        "= weight_decay, 0.0",
        "= 0.0, weight_decay",
        promise("test_constrain.py", "param_groups"),
    ),
    Fault(
        "counted-twice: the originals of a constraint count beside its free parameters",
        "spectral_param/_model.py",
        "            counted.update(originals)\n",
        "",
        promise("test_constrain.py", "free_parameters"),
    ),
    Fault(
        "penalty: that of a model is that of its last weight",
        "spectral_param/_model.py",
        "total = total.to(own.device) + own",
        "total = own",
        promise("constraints/test_schur_form.py", "penalty"),
    ),
    Fault(
        "rebase: the original is kept although the base has moved",
        "spectral_param/_parametrizations/skew_exponential.py",
        "                T.zero_()\n",
        "",
        promise("constraints/test_skew_exponential.py", "base"),
    ),
)

# Errors: wrong input is accepted ------------------------------------------------------------------

ERRORS = (
    Fault(
        "finite: a weight with one infinite entry is accepted",
        "spectral_param/functional/_checks.py",
        "if not bool(X.isfinite().all()):",
        "if bool(X.isnan().all()):",
        fault_test("not_finite"),
    ),
    Fault(
        "empty: an empty weight is accepted",
        "spectral_param/functional/_checks.py",
        "if X.ndim < 2 or X.numel() == 0:",
        "if X.ndim < 2:",
        contract("bad_input and SpectralRadiusNorm"),
    ),
    Fault(
        "integers: a weight of integers is accepted",
        "spectral_param/functional/_checks.py",
        "if not (X.is_floating_point() or X.is_complex()):",
        "if X.dtype == torch.bool:",
        contract("bad_input and SpectralNorm"),
    ),
    Fault(
        "count: True is accepted as the number 1",
        "spectral_param/functional/_checks.py",
        "if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:",
        "if not isinstance(value, (int, np.integer)) or value < least:",
        fault_test("true_is_no_number"),
    ),
    Fault(
        "defect: a weight whose squares overflow counts as orthogonal",
        "spectral_param/_parametrizations/orthogonal.py",
        "if not defect <= 10 * W.shape[-1] * eps:",
        "if defect > 10 * W.shape[-1] * eps:",
        promise("constraints/test_base.py", "overflow"),
    ),
    Fault(
        "zero-radius: a radius of zero is accepted",
        "spectral_param/_parametrizations/bound.py",
        "return bool((values.isfinite() & (values > self.above)).all())",
        "return bool((values.isfinite() & (values >= self.above)).all())",
        promise("constraints/test_spectral_radius.py", "range"),
    ),
    Fault(
        "loaded: a checkpoint with a bound of NaN is loaded",
        "spectral_param/_parametrizations/bound.py",
        "if not (value.shape in known and kind.allows(value)):",
        "if value.shape not in known:",
        promise("constraints/test_base.py", "saved_bound"),
    ),
    Fault(
        "samples: a fit has fewer samples than unknowns",
        "spectral_param/dynamics/_one_step/fit.py",
        "elif len(X) < n + m + 1:",
        "elif len(X) < n:",
        promise("dynamics/test_fit.py", "wrong_input"),
    ),
    Fault(
        "imaginary: the imaginary part of an input is dropped by a real network",
        "spectral_param/nn/_sequence_layer.py",
        "    if x.is_complex() and not dtype.is_complex:\n",
        "    if False:\n",
        promise("nn/test_block_rnn.py", "complex"),
    ),
    Fault(
        "input-digits: an input of higher precision is rounded",
        "spectral_param/nn/_sequence_layer.py",
        "finfo_eps(x.dtype) < finfo_eps(dtype):",
        "finfo_eps(x.dtype) < 0:",
        promise("nn/test_conversions.py", "higher_precision"),
    ),
    Fault(
        "double-complex: Module.double leaves complex networks in single precision",
        "spectral_param/nn/_cell.py",
        "            fn = _by_precision(fn)\n",
        "            pass\n",
        promise("nn/test_conversions.py", "built_in_double"),
    ),
    Fault(
        "real-parts: biases and angles of a complex network become complex",
        "spectral_param/nn/_cell.py",
        "return found.real.clone() if found.is_complex() else found",
        "return found",
        promise("nn/test_conversions.py", "built_in_double"),
    ),
    Fault(
        "half-complex: complex networks in half precision",
        "spectral_param/nn/_cell.py",
        "    if dtype in HALF:\n",
        "    if dtype in ():\n",
        promise("nn/test_conversions.py", "half_precision"),
    ),
    Fault(
        "imaginary-parts: a constraint lets imaginary parts of its weight go",
        "spectral_param/_parametrizations/base.py",
        "            self._check_stays_complex(fn)\n",
        "            pass\n",
        promise("nn/test_conversions.py", "complex_weight"),
    ),
    Fault(
        "filled: a module that a loader has filled tensor by tensor cannot be moved",
        "spectral_param/_parametrizations/base.py",
        '                self._become_like(torch.empty_like(self._like, device="cpu"))\n',
        "                pass\n",
        promise("constraints/test_base.py", "filled"),
    ),
    Fault(
        "nested-precision: constraints keep the precision in which they were constructed",
        "spectral_param/_parametrizations/base.py",
        "        for part in self.modules():\n",
        "        for part in (self,):\n",
        promise("nn/test_conversions.py", "nested"),
    ),
    Fault(
        "shapes: initial states of another batch are accepted",
        "spectral_param/nn/_sequence_layer.py",
        "        if hx.shape != expected:\n",
        "        if hx.shape[-1] != expected[-1]:\n",
        promise("nn/test_block_rnn.py", "initial_state"),
    ),
)

# The contract of one's own constraints -------------------------------------------------------------

TESTING = (
    Fault(
        "unchecked: the second derivatives of a constraint of one's own are not compared",
        "spectral_param/testing.py",
        '(gradgradcheck, "second derivatives", parametrization, tensors, fast_mode=True)',
        '(gradcheck, "second derivatives", parametrization, tensors, fast_mode=True)',
        promise("test_testing.py", "gradients"),
    ),
    Fault(
        "violation: of the matrices of a batch the best one is looked at",
        "spectral_param/testing.py",
        "    violation = case.violation(W.detach()).max().item()\n    assert violation <= limit",
        "    violation = case.violation(W.detach()).min().item()\n    assert violation <= limit",
        fault_test("check_of_ones_own"),
    ),
    Fault(
        "refused: a message without what was given passes",
        "spectral_param/testing.py",
        '    assert "got" in message, f"expected a message with \'got\' and what was given: {message}"\n',
        "",
        promise("test_testing.py", "message"),
    ),
    Fault(
        "constant: a gradient of zero passes for the right one",
        "spectral_param/testing.py",
        "assert min(shape[-2:]) == 1 or largest > 1e-3",
        "assert min(shape[-2:]) == 1 or largest >= 0",
        promise("test_testing.py", "zeros"),
    ),
)

# Diagonal coordinates -----------------------------------------------------------------------------

DIAGONAL = (
    Fault(
        "box: the coordinates may have the square of the condition that is asked for",
        "spectral_param/functional/_diagonal_scaling.py",
        "math.log(square) + 1e-3, math.log(condition) / 2, goal)",
        "math.log(square) + 1e-3, math.log(condition), goal)",
        promise("functional/test_scaled_norm.py"),
    ),
    Fault(
        "pull: the gradient of the barrier has the rows alone",
        "spectral_param/functional/_diagonal_scaling.py",
        "_found(2 * (left - right), n",
        "_found(2 * left, n",
        promise("functional/test_scaled_norm.py"),
    ),
    Fault(
        "room: an estimate of a norm that is too small is taken for its bound",
        "spectral_param/functional/_proven_norm.py",
        "    while not _is_below(gram, s):",
        "    while False:",
        ("tests/internal/functional/proven_norm",),
    ),
    Fault(
        "coordinates: the certificate has the inverse of its coordinates",
        "spectral_param/functional/_contraction.py",
        "np.exp(least_norm(W, CONDITION, enough).log)",
        "np.exp(-least_norm(W, CONDITION, enough).log)",
        promise("analysis/test_diagonal_metric.py"),
    ),
    Fault(
        "rounded: a weight that is rounded to half precision has no room for it",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "return max(finfo_eps(X.dtype), finfo_eps(self.dtype))",
        "return finfo_eps(X.dtype)",
        promise("constraints/test_diagonal_metric.py", "rounded"),
    ),
    Fault(
        "transposed: the weight contracts in the inverse of its coordinates",
        "spectral_param/functional/_diagonal_metric.py",
        "return d.exp()[..., None, :] * (-d).exp()[..., :, None]",
        "return d.exp()[..., :, None] * (-d).exp()[..., None, :]",
        promise("constraints/test_diagonal_metric.py"),
    ),
    Fault(
        "pull-back: the gradient of the coordinates lacks the derivative of tanh",
        "spectral_param/functional/_diagonal_metric.py",
        "(P.sum(axis=0) - P.sum(axis=1)) * slope",
        "P.sum(axis=0) - P.sum(axis=1)",
        contract("diagonal and gradients"),
    ),
    Fault(
        "squared: in continuous time the coordinates enter once",
        "spectral_param/functional/_diagonal_metric.py",
        "(Z - Z.mT - Y.mT @ Y) * (-2 * d).exp()",
        "(Z - Z.mT - Y.mT @ Y) * (-d).exp()",
        promise("constraints/test_diagonal_metric.py", "abscissa"),
    ),
    Fault(
        "leak: a leaky reservoir is scaled as one without a leak",
        "spectral_param/init.py",
        "reciprocal() * ((rate - (1 - leak)) / leak)",
        "reciprocal() * rate",
        promise("test_echo_state.py", "meet"),
    ),
    Fault(
        "scaled: the certificate of a reservoir is that of the weight before",
        "spectral_param/init.py",
        "return W, certificate(matrices_of(W, name), scalings, leak)",
        "return W, certificate(matrices, scalings, leak)",
        promise("test_echo_state.py"),
    ),
    Fault(
        "forgets: the recurrent matrix has the bound of the linear map",
        "spectral_param/nn/_contracting_rnn.py",
        'LyapunovForm(rate, growth=growth, metric="diagonal")',
        "LyapunovForm(rate, growth=growth)",
        promise("nn/test_contracting_rnn.py"),
    ),
    Fault(
        "subclasses: a module counts as what its class is derived from",
        "spectral_param/analysis/_lipschitz.py",
        "        if kind is nn.Sequential:",
        "        if isinstance(module, nn.Sequential):",
        promise("analysis/test_lipschitz.py", "refused"),
    ),
    Fault(
        "identity: a residual block has the constant of its function",
        "spectral_param/analysis/_lipschitz.py",
        "return (1 + self.of(function",
        "return (self.of(function",
        promise("analysis/test_lipschitz.py", "residual"),
    ),
    Fault(
        "overlap: windows of max pooling that overlap count as one",
        "spectral_param/analysis/_layer_constants.py",
        "math.ceil(k / (s // math.gcd(s, d)))",
        "1",
        promise("analysis/test_lipschitz.py", "max_pooling"),
    ),
    Fault(
        "frequencies: the norm of a convolution is that on the grid of frequencies",
        "spectral_param/analysis/_layer_constants.py",
        "/ leader.cosine * (1 + _SAME + rounding)",
        "* (1 + _SAME + rounding)",
        promise("analysis/test_lipschitz.py", "linear_layer or attack"),
    ),
    Fault(
        "margin: two logits move as one",
        "spectral_param/analysis/_lipschitz.py",
        "return margin / (math.sqrt(2) * lipschitz)",
        "return margin / lipschitz",
        promise("analysis/test_lipschitz.py", "radi"),
    ),
)

# The papers' programs -----------------------------------------------------------------------------

PAPERS = (
    Fault(
        "resume: the state that is carried from batch to batch is lost",
        "examples/papers/trainer.py",
        'self._hidden = self.processes.scatter(state["hidden"])',
        "self._hidden = None",
        ("tests/examples/papers/test_resume.py", "-k", "asked_to_stop"),
    ),
    Fault(
        "processes: the gradient lacks that of the others",
        "examples/papers/trainer.py",
        "processes.sum_gradients(self._trained)",
        "pass",
        ("tests/examples/papers/test_parallel.py", "-m", "nightly"),
    ),
    Fault(
        "copying: the marker comes a step late",
        "examples/papers/tasks/copying.py",
        "inputs[-DIGITS - 1] = 9",
        "inputs[-DIGITS] = 9",
        ("tests/examples/papers/test_tasks.py",),
    ),
)

FAULTS = (
    *PROMISES,
    *GRADIENTS,
    *CHOICES,
    *PROOFS,
    *STATES,
    *FITS,
    *NETWORKS,
    *STARTS,
    *ANALYSES,
    *VERBS,
    *ERRORS,
    *TESTING,
    *DIAGONAL,
    *PAPERS,
)
