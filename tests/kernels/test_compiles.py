"""The resident kernels compile for Hopper, on any machine, and keep all of W in registers there."""

import os

import pytest

triton = pytest.importorskip("triton", reason="needs the package triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from spectral_param.kernels import triton_recurrence as t  # noqa: E402


def assembly(kernel, n, **constants):
    N1, N2 = t._parts(n)
    constants |= {"N1": N1, "N2": N2}
    kinds = {"batch": "i32", "steps": "i32", "n": "i32", "starts": "*i64", "lengths": "*i64"}
    names = kernel.arg_names
    # As a launch finds it: memory begins at multiples of 16 bytes, and n is one of 16.
    aligned = [x for x in names if x not in (*constants, "batch", "steps")]
    source = ASTSource(
        fn=kernel,
        signature={x: "constexpr" if x in constants else kinds.get(x, "*fp32") for x in names},
        constexprs={(names.index(x),): value for x, value in constants.items()},
        attrs={(names.index(x),): [["tt.divisibility", 16]] for x in aligned},
    )
    options = {"num_warps": t._warps(N1, N2), **t._OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["sass"]


@pytest.mark.parametrize("kernel", [t._forward_kernel, t._backward_kernel], ids=["forward", "backward"])
@pytest.mark.parametrize("tables", [{}, {"starts": None, "lengths": None}], ids=["packed", "dense"])
def test_largest_matrix_stays_in_registers(kernel, tables) -> None:
    sass = assembly(kernel, 192, NONLINEARITY="modrelu", **tables)
    assert "FFMA" in sass
    # STL and LDL write and read what did not fit.
    assert "STL" not in sass
    assert "LDL" not in sass
