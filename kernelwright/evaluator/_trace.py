"""What torch does inside a call: the operators that it dispatches. Worker side; a claim like all else from there."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_MOST_NAMES = 64


class OperatorLog(TorchDispatchMode):  # type: ignore[misc]
    """A context manager that remembers the names of dispatched operators, such as ``aten.mm``."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch._dynamo, one second, just to be skipped by it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func._schema.name).replace("::", ".")
        self._names[name] = self._names.get(name, 0) + 1
        return func(*args, **(kwargs or {}))

    def names(self) -> dict[str, int]:
        """Operators with how often each was dispatched; the most frequent ones where there are many."""
        ordered = sorted(self._names.items(), key=lambda item: -item[1])
        return dict(ordered[:_MOST_NAMES])
