"""No tensor that the library makes takes its device or its dtype from PyTorch's defaults."""

import ast
from pathlib import Path

import pytest
from torch.utils._device import _device_constructors

import spectral_param

PACKAGE = Path(spectral_param.__file__).parent
# Functions that make a tensor on the default device. PyTorch's list is that of its mode for a default device.
FACTORIES = {function.__name__ for function in _device_constructors()} | {"fftfreq", "rfftfreq"}
# These have whole numbers, whatever the default dtype is.
WHOLE = {"randint", "randperm", "tril_indices", "triu_indices"}
# A tensor or an array that is passed has its dtype.
TAKES_DTYPE_OF_ITS_ARGUMENT = {"as_tensor", "asarray", "tensor"}


def factories(source: str) -> list[ast.Call]:
    """Return the calls of ``torch.zeros`` and the like in a file."""
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in FACTORIES
        and ast.unparse(node.func).split(".")[0] == "torch"
    ]


def missing(call: ast.Call) -> list[str]:
    """Return the arguments that a call leaves to PyTorch's defaults."""
    assert isinstance(call.func, ast.Attribute)
    given = {keyword.arg for keyword in call.keywords}
    if None in given:  # **options
        return []
    whole = call.func.attr in WHOLE or (call.func.attr == "arange" and not _has_fractions(call))
    return [name for name in ("device", *([] if whole else ["dtype"])) if name not in given]


def _has_fractions(call: ast.Call) -> bool:
    """Return whether a range may have other than whole numbers, which have a dtype of their own."""
    return any(isinstance(node, ast.Constant) and isinstance(node.value, float) for node in ast.walk(call))


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_device_and_dtype_of_each_factory_are_written(path) -> None:
    found = [
        f"{path}:{call.lineno}: {ast.unparse(call)} leaves {' and '.join(names)} to the default"
        for call in factories(path.read_text(encoding="utf-8"))
        if (names := missing(call))
    ]
    assert not found, "\n".join(found)
