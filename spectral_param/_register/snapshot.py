"""A snapshot of a module before registration, which is restored if registration fails."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations


class Snapshot:
    """The state of a module and one of its tensors before a constraint is registered."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self._owner, self._name = owner, name
        tables: list[dict[str, Any]] = [owner._parameters, owner._buffers]
        self._tables = [(table, dict(table)) for table in tables]
        self._tensor = owner._parameters.get(name, owner._buffers.get(name))
        if self._tensor is None:
            self._links: Any = owner.parametrizations[name]  # type: ignore[index]
            self._count = len(self._links)
        else:
            self._data, self._entries = self._tensor.data, self._tensor.detach().clone()

    def restore(self) -> None:
        """Restore the module: the same tensor in the same memory, or its chain of parametrizations."""
        if self._tensor is None:
            del self._links[self._count :]
            return
        if is_parametrized(self._owner, self._name):
            remove_parametrizations(self._owner, self._name)
        for table, content in self._tables:  # Restore the tensors, and their order.
            table.clear()
            table.update(content)
        self._tensor.data = self._data
        self._tensor.data.copy_(self._entries)
