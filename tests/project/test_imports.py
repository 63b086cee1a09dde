"""Imports point one way: no circle, none upwards, and what is beside the package stands above it."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the ground up. A module may import from its own layer and from those below.
LAYERS = (
    ("errors", "_guesses"),
    ("_context", "_matrices", "_paths", "_precision", "_progress", "_scale"),
    ("_at_host", "_map"),
    ("_eigen", "_recurrence", "functional", "_sets"),
    ("_parametrizations", "init"),
    ("_held",),
    ("_register",),
    ("_model",),
    ("_rebase", "_violation"),
    ("_constants",),
    ("dynamics", "nn"),
    ("analysis", "testing"),
    ("",),  # spectral_param/__init__.py
)
HEIGHTS = {name: height for height, layer in enumerate(LAYERS) for name in layer}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_of(path): path
    for folder in ("spectral_param", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def imports(name: str) -> set[str]:
    """The modules of this repository that one imports, inside functions and for type checkers, too."""
    found = set()
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (above, node.module)))
            # "from package import module" does not need what else the package imports.
            submodules = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= submodules if len(submodules) == len(node.names) else {base, *submodules}
    return found & MODULES.keys()


@functools.cache
def graph(folder: str) -> dict[str, set[str]]:
    """What each module of a folder imports."""
    return {name: imports(name) for name in MODULES if name.split(".")[0] == folder}


def layer(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def upwards(imported: dict[str, set[str]]) -> list[str]:
    return [
        f"{name} imports {target}"
        for name, targets in imported.items()
        for target in sorted(targets)
        if HEIGHTS[layer(target)] > HEIGHTS[layer(name)]
    ]


def test_every_part_of_the_package_has_its_layer() -> None:
    assert {layer(name) for name in graph("spectral_param")} <= HEIGHTS.keys()


def test_no_import_points_upwards() -> None:
    assert upwards(graph("spectral_param")) == []


@pytest.mark.parametrize("folder", ["spectral_param", "examples", "benchmarks"])
def test_imports_have_no_circle(folder) -> None:
    graphlib.TopologicalSorter(graph(folder)).prepare()


@pytest.mark.parametrize(
    ("folder", "below"),
    [
        ("spectral_param", {"spectral_param"}),
        ("examples", {"spectral_param", "examples"}),
        ("benchmarks", {"spectral_param", "examples", "benchmarks"}),
    ],
)
def test_what_is_beside_the_package_stands_above_it(folder, below) -> None:
    for name, targets in graph(folder).items():
        assert {target.split(".")[0] for target in targets} <= below, name


def test_papers_know_nothing_of_the_demo() -> None:
    for name, targets in graph("examples").items():
        if name.startswith("examples.papers"):
            assert not any(target.startswith("examples.demo") for target in targets), name


# The rooms of dynamics, from the ground up, and what each may take of the rest of the package.
ROOMS = {
    "_data": {"_matrices", "functional._checks"},
    "_one_step": {"_matrices", "_precision", "_scale", "functional._checks"},
    "_model": {"_matrices", "_parametrizations", "functional._checks"},
    "_fits": {"_matrices"},
    "_choice": {"_matrices", "_progress"},
    "_estimator": {"_matrices", "functional._checks"},
    "": {"_guesses"},  # spectral_param/dynamics/__init__.py
}
# Growth is of the results of one step, too.
BESIDE = {("spectral_param.dynamics._one_step.fit", "spectral_param.dynamics._model.growth")}
# Torch only where tensors are read or made.
TENSORS = {"_data.arrays", "_one_step.fit", "_model.module"}


def test_dynamics_is_built_room_by_room() -> None:
    heights = {room: height for height, room in enumerate(ROOMS)}
    for name, targets in graph("spectral_param").items():
        if not name.startswith("spectral_param.dynamics"):
            continue
        room = ([*name.split("."), ""])[2]
        for target in targets:
            if target == "spectral_param.dynamics" or target.startswith("spectral_param.dynamics."):
                below = heights[([*target.split("."), ""])[2]] <= heights[room]
                assert below or (name, target) in BESIDE, f"{name} imports {target}"
            else:
                taken = target.removeprefix("spectral_param.")
                assert any(taken.startswith(of) for of in ROOMS[room]), f"{name} imports {target}"


def test_dynamics_needs_torch_only_where_tensors_are_read_or_made() -> None:
    importing = set()
    for name, path in MODULES.items():
        if not name.startswith("spectral_param.dynamics."):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typed = [node for node in tree.body if isinstance(node, ast.If)]  # for type checkers alone
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            torch = any(module.split(".")[0] == "torch" for module in modules)
            if torch and not any(node in ast.walk(of) for of in typed):
                importing.add(name.removeprefix("spectral_param.dynamics."))
    assert importing == TENSORS


def test_circles_and_imports_upwards_are_found() -> None:
    assert upwards({"spectral_param.errors": {"spectral_param.nn.cells"}}) == [
        "spectral_param.errors imports spectral_param.nn.cells"
    ]
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()
    assert "spectral_param._context" in graph("spectral_param")["spectral_param.functional._cayley"]
    assert "examples.papers.trainer" in graph("examples")["examples.demo.memory"]
    assert {"spectral_param.init", "spectral_param.nn"} <= graph("spectral_param")["spectral_param"]


def test_an_import_takes_no_more_than_it_needs() -> None:
    """torch's compiler takes as long as the rest of the package; the others need not be installed."""
    code = (
        "import sys, torch, numpy, scipy; before = set(sys.modules); import spectral_param.dynamics; "
        "spectral_param.functional.scaled_norm(torch.ones(3, 3)); "
        "others = {'torch._dynamo', 'sympy', 'sklearn', 'pandas', 'matplotlib', 'tqdm'}; "
        "print(sorted(others & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
