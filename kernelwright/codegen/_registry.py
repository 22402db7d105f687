"""The table of lowerings: ATen operator to a function that writes it in small operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelwright.codegen._builder import Builder
from kernelwright.codegen._ir import Value

INTEGERS = ("int64", "int32", "bool")
Lowering = Callable[..., Any]
TABLE: dict[str, Lowering] = {}


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering under operator names (with or without overload)."""

    def register(function: Lowering) -> Lowering:
        for name in names:
            if name in TABLE:
                raise ValueError(f"two lowerings for {name}")
            TABLE[name] = function
        return function

    return register


def dim_of(x: Value, dim: int) -> int:
    """A dim counted from the front."""
    return dim % max(len(x.shape), 1)


def same_type(b: Builder, x: Any, y: Any) -> tuple[Any, Any]:
    """Two operands cast to their promoted dtype; numbers stay numbers."""
    dtype = b.promote([x, y])
    left, right = (b.cast(a, dtype) if isinstance(a, Value) and a.dtype != dtype else a for a in (x, y))
    return left, right
