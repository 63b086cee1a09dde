"""Seeded faults, each found by a test: ``python -m tests.mutations [NAME ...]``.

Each fault is put into a copy of the tree and the tests that should find it run there. The run fails where a
fault is not found, and before anything runs where a pattern does not occur exactly once in its file: the code
has changed, and the fault has to follow.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that a person could make.

    Attributes:
        name: What is wrong.
        file: Where.
        pattern: A regular expression with exactly one match in the file.
        replacement: What takes its place.
        tests: Arguments of pytest: what is to find it.
    """

    name: str
    file: str
    pattern: str
    replacement: str
    tests: tuple[str, ...]


CONFORMANCE = "tests/promises/test_conformance.py"

FAULTS = (
    Fault(
        "norm: what lies outside of the block is not bounded",
        "spectral_param/_eigen/norm.py",
        r"upper = proof\.block_bound\(.*",
        "upper = top",
        ("tests/internal/eigen/norm",),
    ),
    Fault(
        "norm: a bound is taken over from the last step, but not the move",
        "spectral_param/_eigen/norm.py",
        r"old \+ 1\.001 \* move",
        "old",
        ("tests/internal/eigen/norm",),
    ),
    Fault(
        "norm: the residual of a power step is left out of its bound",
        "spectral_param/_eigen/proof.py",
        r"return theta \+ defect / \(theta - second\) if",
        "return theta if",
        ("tests/internal/eigen/norm",),
    ),
    Fault(
        "norm: the bound of the second singular value counts wrongly",
        "spectral_param/_eigen/proof.py",
        r"eigvalsh\(H\)\[-2\] <= s",
        "eigvalsh(H)[-3] <= s",
        ("tests/internal/eigen/proof",),
    ),
    Fault(
        "norm-gradient: the term of the norm has the wrong sign",
        "spectral_param/_eigen/singular.py",
        r"\*outer, value=-1\)",
        "*outer, value=1)",
        (CONFORMANCE, "-k", "SpectralNorm and gradients"),
    ),
    Fault(
        "kernel: the grid of frequencies is taken for all of them",
        "spectral_param/_eigen/symbol.py",
        r"cosine \*= math\.cos\(math\.pi \* \(q - 1\) / \(2 \* n\)\)",
        "cosine *= 1.0",
        ("tests/promises/constraints/test_spectral_norm.py", "-k", "norm_of_a_layer"),
    ),
    Fault(
        "stride: the phases of a strided convolution are forgotten",
        "spectral_param/_constrain.py",
        r"return tuple\(s // math\.gcd\(s, d\) for",
        "return tuple(1 for",
        ("tests/promises/constraints/test_spectral_norm.py", "-k", "norm_of_a_layer"),
    ),
    Fault(
        "absolute: the gradient ignores the signs",
        "spectral_param/_parametrizations/spectral_radius.py",
        r"return T\.abs\(\) if self\.of",
        "return T.abs().detach() if self.of",
        (CONFORMANCE, "-k", "absolute and gradients"),
    ),
    Fault(
        "lost-term: the gradient of Cayley's diagonal lacks what is off its diagonal",
        "spectral_param/functional/_cayley.py",
        r"\.conj\(\) \* G\)\.sum\(dim=-2\)",
        ".conj() * G).diagonal(dim1=-2, dim2=-1)",
        (CONFORMANCE, "-k", "ScaledCayley and gradients"),
    ),
    Fault(
        "forward-mode: a tangent of reflections has the wrong sign",
        "spectral_param/functional/_householder.py",
        r"dU\.mH - dN @ X",
        "dU.mH + dN @ X",
        ("tests/promises/functional/test_forward_mode.py", "-k", "householder"),
    ),
    Fault(
        "small-cayley: the gradient of a small orthogonal weight is symmetric",
        "spectral_param/functional/_cayley.py",
        r"np\.subtract\(half, transposed, out=above\)",
        "np.add(half, transposed, out=above)",
        ("tests/promises/functional/test_cayley.py", "-k", "against_the_formula_in_double_precision"),
    ),
    Fault(
        "small-step: modReLU in numpy adds its bias before it takes the modulus",
        "spectral_param/_recurrence/short.py",
        r"z \*= sign\n            z \+= bias",
        "z += bias\n            z *= sign",
        ("tests/internal/recurrence",),
    ),
    Fault(
        "gate: the last block of a gated weight has the wrong sign",
        "spectral_param/_parametrizations/layout.py",
        r"W = W\.flatten\(-3, -2\)",
        "W = torch.cat([W[..., :-1, :, :], -W[..., -1:, :, :]], -3).flatten(-3, -2)",
        (CONFORMANCE, "-k", "right_inverse and 16x4"),
    ),
    Fault(
        "latch: not part of a checkpoint",
        "spectral_param/_parametrizations/spectral_radius.py",
        r'self\.register_buffer\("latched", None\)',
        'self.register_buffer("latched", None, persistent=False)',
        ("tests/promises/constraints/test_spectral_radius.py", CONFORMANCE, "-k", "latch"),
    ),
    Fault(
        "powers: their rounding errors do not count",
        "spectral_param/_eigen/dense.py",
        r"error, rounding = 0\.0, 4 \* len\(power\) \* _EPS",
        "error, rounding = 0.0, 0.0",
        ("tests/internal/eigen/dense",),
    ),
    Fault(
        "conjugate: the gradient of a complex eigenvalue lacks one",
        "spectral_param/_eigen/derivative.py",
        r"x\[\.\.\., :, None\], physical_conj\(y\)\[",
        "x[..., :, None], y[",
        ("tests/promises/functional/test_spectral_radius.py", "-k", "first_and_second"),
    ),
    Fault(
        "small: the gradient of a complex eigenvalue of a small matrix lacks a conjugate",
        "spectral_param/_eigen/derivative.py",
        r"w\[:, None\] \* right\.conj\(\)",
        "w[:, None] * right",
        (CONFORMANCE, "-k", "SpectralRadiusNorm and gradients"),
    ),
    Fault(
        "device: eigenvalues are those that the device computes, if it can",
        "spectral_param/_eigen/dense.py",
        r"return not is_on_host\(T\) and T\.shape\[-1\] <= HOST_SIZE",
        "return False",
        ("tests/promises/test_device.py", "-k", "without_eigenvalues"),
    ),
    Fault(
        "device: matrices are tracked one after the other",
        "spectral_param/_eigen/follower.py",
        r"tracking\.together\(\[(.*)\]\)",
        "[tracking.track(*each) for each in zip(matrices, states, strict=True)]",
        ("tests/promises/test_device.py", "-k", "launches_and_waits"),
    ),
    Fault(
        "audit: a followed eigenvalue is never doubted",
        "spectral_param/_eigen/tracking.py",
        r"shortfall = max\(shortfall, \(yield from audit\)\)",
        "pass",
        ("tests/internal/eigen",),
    ),
    Fault(
        "packed: a shorter step goes on from the wrong rows of the step before",
        "spectral_param/_recurrence/fused.py",
        r"segment\.length - segment\.sizes\[-1\]",
        "segment.length - segment.following",
        ("tests/internal/recurrence",),
    ),
    Fault(
        "segment: no gradient flows back over a checkpoint",
        "spectral_param/_recurrence/fused.py",
        r"_last_step\(segment, delta\)\.add_\(self\.start\)",
        "_last_step(segment, delta)",
        ("tests/internal/recurrence",),
    ),
    Fault(
        "resume: the state that is carried from batch to batch is lost",
        "examples/papers/trainer.py",
        r'self\._hidden = self\.processes\.scatter\(state\["hidden"\]\)',
        "self._hidden = None",
        ("tests/examples/papers/test_resume.py", "-k", "asked_to_stop"),
    ),
    Fault(
        "processes: the gradient lacks that of the others",
        "examples/papers/trainer.py",
        r"processes\.sum_gradients\(self\._trained\)",
        "pass",
        ("tests/examples/papers/test_parallel.py",),
    ),
    Fault(
        "copying: the marker comes a step late",
        "examples/papers/tasks/copying.py",
        r"inputs\[-DIGITS - 1\] = 9",
        "inputs[-DIGITS] = 9",
        ("tests/examples/papers/test_tasks.py",),
    ),
)


def put_in(fault: Fault, root: Path = ROOT) -> str:
    """Return the text of the file with the fault.

    Args:
        fault: The fault.
        root: The tree.

    Raises:
        ValueError: If the code that the fault is for has changed.
    """
    path = root / fault.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    changed, count = re.subn(fault.pattern, lambda _: fault.replacement, source)
    if count != 1:
        raise ValueError(
            f"{fault.name}: expected one match of {fault.pattern!r} in {fault.file}, got {count}. "
            "Let the fault follow the code"
        )
    return changed


def check(fault: Fault) -> bool:
    """Say which test finds a fault, and return whether one does.

    Args:
        fault: The fault.

    Raises:
        SystemExit: If its tests do not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in filter(None, listed.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        (tree / fault.file).write_text(put_in(fault), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault.tests],
            cwd=tree,
            # Inductor's folder of compiled graphs is shared by all processes; these graphs are for no others.
            env={**os.environ, "PYTHONPATH": str(tree), "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{fault.name}: its tests did not run.\n{done.stdout}{done.stderr}")
    found = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.MULTILINE)
    print(f"{fault.name}\n    {'found by ' + found[0] if found else 'NOT FOUND'}", flush=True)
    return bool(found)


def main() -> int:
    """Check the faults whose names begin as the arguments say, all without any; return the exit code."""
    asked = tuple(sys.argv[1:])
    chosen = [fault for fault in FAULTS if not asked or fault.name.startswith(asked)]
    if not chosen:
        raise SystemExit(f"expected some of {', '.join(f.name.split(':')[0] for f in FAULTS)}, got {asked}")
    misfits = []
    for fault in FAULTS:
        try:
            put_in(fault)
        except ValueError as error:
            misfits.append(str(error))
    if misfits:
        raise SystemExit("\n".join(misfits))
    results = [check(fault) for fault in chosen]
    print(f"{sum(results)} of {len(results)} faults found")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
