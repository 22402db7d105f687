"""Formats that referee and workers share: dtype codes, tensor layouts, constructor arguments as JSON.

Shared by both sides, so neither torch nor pydantic is imported here at module level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kernelwright import datasets

DTYPES = tuple(datasets.ITEM_BYTES)
MAX_DIMENSIONS = datasets.MAX_DIMENSIONS
MAX_OUTPUTS = datasets.MAX_OUTPUTS  # keep in step with door.c
ITEM_BYTES = datasets.ITEM_BYTES
FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})

LEAVE = -1  # a reveal that ends the loop at the door; -2 - k asks for weights k
ROW_WORDS = 4 + 2 * MAX_DIMENSIONS
ALIGNMENT = 64
REVEAL_BYTES = 4096
ANSWER_BYTES = 8192
ANSWER_HEADER_WORDS = 16  # nonce, padding, number of outputs, padding


class TensorSpec(NamedTuple):
    """Layout of one tensor inside a slot or an arena: ``shape`` and ``stride`` in elements, ``offset`` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def elements(self) -> int:
        """Elements that the tensor's storage spans, gaps between them included."""
        if any(size == 0 for size in self.shape):
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def span_bytes(self) -> int:
        """Bytes that the tensor's storage spans."""
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def value_bytes(self) -> int:
        """Bytes of the values alone, without gaps."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """True if the elements lie densely in C order."""
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return False
            expected *= size
        return True


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """C-order strides, in elements, of a dense tensor of ``shape``."""
    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * max(int(shape[i + 1]), 1)
    return tuple(stride)


def place(specs: Sequence[TensorSpec], *, margin: int = 0) -> tuple[list[TensorSpec], int]:
    """Lay tensors out one after another, each aligned to 64 bytes and followed by at least ``margin`` bytes.

    Returns:
        The specs with their offsets, and the total size: a multiple of 64, and at least 64.
    """
    at, placed = 0, []
    for spec in specs:
        placed.append(spec._replace(offset=at))
        at += -(-(spec.span_bytes + margin) // ALIGNMENT) * ALIGNMENT
    return placed, max(at, ALIGNMENT)


def spec_to_json(spec: TensorSpec) -> list[Any]:
    """A spec as plain JSON."""
    return [spec.name, spec.dtype, list(spec.shape), list(spec.stride), spec.offset]


def spec_from_json(value: Any) -> TensorSpec:
    """The inverse of :func:`spec_to_json`; ValueError if malformed (it may come from a hostile worker)."""
    if not (isinstance(value, list) and len(value) == 5):
        raise ValueError("a tensor spec has five fields")
    name, dtype, shape, stride, offset = value
    if not (isinstance(shape, list) and isinstance(stride, list)):
        raise ValueError("a tensor spec has lists of sizes and strides")
    integers = [*shape, *stride, offset]
    if not isinstance(name, str) or dtype not in DTYPES or len(shape) != len(stride):
        raise ValueError("a tensor spec has a name, a known dtype, and as many strides as sizes")
    if any(type(i) is not int or not 0 <= i < 2**48 for i in integers) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("sizes, strides and offsets are integers below 2**48, in at most 8 dimensions")
    spec = TensorSpec(name, dtype, tuple(shape), tuple(stride), offset)
    if spec.span_bytes >= 2**40:
        raise ValueError("a tensor spans less than a terabyte")
    return spec


def encode_value(value: Any) -> Any:
    """A constructor or forward argument (number, string, None, dtype, nested list, tuple, dict) as JSON.

    Raises:
        TypeError: for a value that has no such form (a tensor, an object).
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [encode_value(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[encode_value(k), encode_value(v)] for k, v in value.items()]}
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return {"dtype": str(value).removeprefix("torch.")}
    raise TypeError(f"a {type(value).__name__} cannot be handed over as an argument")


def decode_value(value: Any) -> Any:
    """Inverse of :func:`encode_value`; imports torch only where a dtype occurs."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "float":
        return float(inner)
    if kind == "list":
        return [decode_value(v) for v in inner]
    if kind == "tuple":
        return tuple(decode_value(v) for v in inner)
    if kind == "dict":
        return {decode_value(k): decode_value(v) for k, v in inner}
    if kind == "dtype" and inner in DTYPES:
        import torch

        return getattr(torch, inner)
    raise ValueError(f"unknown kind of value {kind!r}")
