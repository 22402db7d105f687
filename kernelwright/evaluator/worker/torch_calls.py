"""Counts torch's work inside a call: the operators that it dispatches, and their arithmetic.

Runs in workers. Products and convolutions are counted by torch's own formulas (``torch.utils.flop_counter``). Any other
operator that rounds counts one operation for each element of its largest tensor, so an exponential counts as one, too.
This is a convention, not a measurement. The report of a contestant's worker is a claim.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.evaluator.worker.operators import is_exact, is_passive


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Make a module impossible to import for the moment, unless it was imported already."""
    hides = name not in sys.modules
    if hides:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hides:
            del sys.modules[name]


with _hidden("triton"):  # its kernels are not counted here, and its import takes 0.3 s
    from torch.utils.flop_counter import flop_registry

_MOST_NAMES = 64


class OperatorLog(TorchDispatchMode):  # type: ignore[misc]
    """A context manager that remembers dispatched operators by name, such as ``aten.mm``, and adds up ``flops``.

    ``steps`` counts the operators that compute: no views, and no operators that only create or copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.steps = 0
        self._names: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operator imports torch._dynamo, one second, just to be skipped by it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        qualified = str(func._schema.name).replace("::", ".")
        self._names[qualified] = self._names.get(qualified, 0) + 1
        plain = qualified.rpartition(".")[2].rstrip("_")
        self.steps += not (is_passive(plain) or _is_view(func))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
        elif not is_exact(plain) and not _is_view(func):
            results = result if isinstance(result, tuple) else (result,)
            floats = [t for t in (*args, *results) if isinstance(t, Tensor) and t.is_floating_point()]
            self.flops += max((t.numel() for t in floats), default=0)
        return result

    def names(self) -> dict[str, int]:
        """Operators with the number of their dispatches; of many operators, the most frequent ones."""
        ordered = sorted(self._names.items(), key=lambda item: -item[1])
        return dict(ordered[:_MOST_NAMES])


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
