"""The page on stability lists each private name of PyTorch in use, and each bug that is worked around.

A test that fails here after an update of PyTorch says what can go.
"""

from __future__ import annotations

import ast
import copy
import pickle
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize

import spectral_param as sp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/stability.md").read_text(encoding="utf-8")

# Where a name that PyTorch makes public would be. Not torch.jit, which is on its way out.
PUBLIC = ("torch", "torch.autograd", "torch.autograd.forward_ad", "torch.autograd.graph", "torch.compiler")
PUBLIC += ("torch.func", "torch.nn.modules", "torch.nn.utils.parametrize", "torch.overrides", "torch.utils")


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of the table below a heading of the page, by what stands first in backticks."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {line[0].strip("| `"): line[1:] for line in lines}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(source: str) -> set[str]:
    """Return the private names of PyTorch that a module uses: with their path, or as those of a class."""
    tree, paths, found = ast.parse(source), {"torch": "torch"}, set()

    def path(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            before = path(node.value)
            return before and f"{before}.{node.attr}"
        return paths.get(node.id, "") if isinstance(node, ast.Name) else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                name = paths[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if any(map(is_private, name.split("."))):
                    found.add(name)
    for node in ast.walk(tree):  # A short name for a private module.
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and path(node.value):
            paths[node.targets[0].id] = path(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if name := path(node):
                if any(map(is_private, name.split("."))):
                    found.add(name)
            elif is_private(node.attr):
                found.add(node.attr)
        elif isinstance(node, ast.FunctionDef) and is_private(node.name):
            found.add(node.name)  # It may stand for PyTorch's.
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_private(node.value):
            found.add(node.value)  # As in module.__dict__["_buffers"].
    names = set()
    for name in found:
        if "." in name:
            names.add(name)
        elif hasattr(Tensor, name):
            names.add(f"Tensor.{name}")
        elif hasattr(nn.Module(), name):
            names.add(f"Module.{name}")
    # Not what only leads to another one.
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


LISTED = rows("Private names of PyTorch").keys()


def test_page_lists_the_private_names_in_use() -> None:
    used = set().union(*(private_names(file.read_text()) for file in (ROOT / "spectral_param").rglob("*.py")))
    assert used - LISTED == set(), "in use, but not on docs/stability.md"
    assert LISTED - used == set(), "on docs/stability.md, but no longer in use"


def test_private_names_are_found_whichever_way_they_are_used() -> None:
    source = """
import torch
from torch import nn
from torch.utils import _pytree as tree
from torch.autograd import forward_ad

class A(nn.Module):
    def _apply(self, f):
        functorch = torch._C._functorch
        return functorch.first(torch._C.second()), self._own, f._version, tree.leaves

forward_ad._level, vars(A)["_buffers"], torch.nn.Linear, "_of_ours"
"""
    assert private_names(source) == {
        "torch._C._functorch.first",
        "torch._C.second",
        "torch.autograd.forward_ad._level",
        "torch.utils._pytree.leaves",
        "Tensor._version",
        "Module._apply",
        "Module._buffers",
    }


@pytest.mark.parametrize("name", [name for name in sorted(LISTED) if name.startswith("torch.")])
def test_pytorch_has_no_public_name_instead(name) -> None:
    last = name.removesuffix(".Jvp").split(".")[-1].lstrip("_")
    found = [f"{module}.{last}" for module in PUBLIC if hasattr(pkgutil.resolve_name(module), last)]
    assert not found, f"{name} can go: there is {found[0]}"


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, dx):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * dx


def loses_the_outer_derivative() -> bool:
    def along(f):
        return lambda t: torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]

    return along(along(Cube.apply))(torch.tensor(2.0)).item() != 12


class Double(nn.Module):
    def forward(self, X):
        return 2 * X


def doubled() -> nn.Module:
    return parametrize.register_parametrization(nn.Linear(2, 2), "weight", Double())


def copies_share_a_class() -> bool:
    layer = doubled()
    return type(copy.deepcopy(layer)) is type(layer)


def cannot_be_pickled() -> bool:
    try:
        pickle.dumps(doubled())
    except RuntimeError:
        return True
    return False


@torch.library.custom_op("stability::conjugate", mutates_args=())
def conjugate(x: Tensor) -> Tensor:
    return x.conj() * torch.ones_like(x)


@conjugate.register_fake
def _(x):
    return torch.empty_like(x)


def cannot_copy_fake_tensors() -> bool:
    with FakeTensorMode():
        try:
            copy.deepcopy(torch.tensor(0))
        except (RuntimeError, UserWarning):  # Here warnings are errors.
            return True
    return False


def ignores_the_conjugate_bit() -> bool:
    x = torch.tensor([1j])
    torch.compiler.reset()
    return not torch.equal(torch.compile(conjugate, backend="aot_eager")(x), x.conj())


def has_a_wrong_coefficient() -> bool:
    t = torch.tensor(0.5)
    rotation = torch.stack([t.cos(), -t.sin(), t.sin(), t.cos()]).reshape(2, 2)
    found = torch.linalg.matrix_exp(torch.tensor([[0, -0.5], [0.5, 0]]))
    return (found - rotation).abs().max().item() > 1e-6


def forgets_that_it_is_coalesced() -> bool:
    return not torch.eye(2).to_sparse_coo().coalesce().mul_(2).is_coalesced()


def is_supported_in_2_6() -> bool:
    (oldest,) = re.findall(r'"torch>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    return tuple(map(int, oldest)) < (2, 7)


def forgets_a_term_of_reverse_over_forward() -> bool:
    A = torch.eye(3, dtype=torch.float64) + torch.arange(9.0, dtype=torch.float64).reshape(3, 3) / 10
    b = torch.arange(3.0, dtype=torch.float64)[:, None]

    def f(t):
        return torch.linalg.solve(A + t * A.mT, b).square().sum()

    def tangent(t):
        return torch.func.jvp(f, (t,), (torch.ones_like(t),))[1]

    zero = torch.zeros((), dtype=torch.float64)
    return not torch.isclose(torch.func.grad(tangent)(zero), torch.func.grad(torch.func.grad(f))(zero))


BUGS = {
    "_context.not_nested": loses_the_outer_derivative,
    "_context.solve": forgets_a_term_of_reverse_over_forward,
    "_eigen.triple.physical_conj": ignores_the_conjugate_bit,
    "functional.exponential": has_a_wrong_coefficient,
    "init.spectral_radius_": forgets_that_it_is_coalesced,
    "nn._cell": cannot_be_pickled,
    "_parametrizations.copies": copies_share_a_class,
    "_parametrizations.copies.deep_copy": cannot_copy_fake_tensors,
    "_context.is_compiled": is_supported_in_2_6,
    "_context.promoted": is_supported_in_2_6,
    "_parametrizations.memory": is_supported_in_2_6,
}


def test_page_lists_the_bugs_that_are_worked_around() -> None:
    assert rows("Bugs and gaps of PyTorch").keys() == BUGS.keys()
    for name in BUGS:
        pkgutil.resolve_name(f"spectral_param.{name}")


PINNED = re.findall(r"torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text())[0]


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < tuple(map(int, PINNED)),
    reason="an older PyTorch may not have the bug yet",
)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_is_worked_around_is_still_there(name) -> None:
    assert BUGS[name](), (
        f"PyTorch {torch.__version__} no longer needs what {name} does, see docs/stability.md"
    )


def test_every_public_module_lists_its_names() -> None:
    modules = [getattr(sp, name) for name in sp.__all__ if isinstance(getattr(sp, name), type(sp))]
    names = {module.__name__.removeprefix("spectral_param.") for module in modules}
    assert names == rows("What is public").keys()
    for module in (sp, *modules):
        assert all(hasattr(module, name) and not is_private(name) for name in module.__all__)


def test_every_other_module_is_private_by_its_name() -> None:
    found = {module.name for module in pkgutil.iter_modules(sp.__path__) if not module.name.startswith("_")}
    assert found == rows("What is public").keys()
    inside = {
        module.name
        for name in found
        for module in pkgutil.iter_modules(getattr(getattr(sp, name), "__path__", []))
    }
    assert all(name.startswith("_") for name in inside)
