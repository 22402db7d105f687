"""What referee and keeper agree on: rows that fill tensors, dtypes, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from kernelwright.evaluator.wire import tensors as wire

# In the order of ``Dtype`` in keeper.cu; a bool is a byte there.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
ITEM_BYTES = wire.ITEM_BYTES
DIMENSIONS = wire.MAX_DIMENSIONS
MOST_OUTPUTS = wire.MAX_OUTPUTS
TABLE_ENTRIES = 4096


class Fill(IntEnum):
    """Ways to fill a tensor, as in keeper.cu."""

    TABLE = 0
    PROBE_TABLE = 1
    UNIFORM_INTEGERS = 2
    EITHER = 3
    ROWS_OF_TABLE = 4
    ENDS = 5


class Piece(NamedTuple):
    """One tensor to fill.

    memory, offset: where it lies. elements, item: their number, and bytes of one. table, table_at: memory and offset of
    a table of quantiles, 0 if ``kind`` needs none. key: secret, of this piece alone. row: elements of a row. low, high:
    bounds of integers, both included, or two bit patterns. ends: where the lower and the upper numbers begin and end;
    they take turns by row, beginning anew after ``high`` rows.
    """

    memory: int
    offset: int
    elements: int
    table: int
    table_at: int
    key: int
    kind: int
    item: int
    row: int = 1
    low: int = 0
    high: int = 0
    ends: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def merged(shape: Sequence[int], stride: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same layout in as few dimensions as possible, at least one: neighbours that lie densely become one."""
    pairs: list[list[Any]] = []
    for size, step in zip(shape, stride, strict=True):
        if size == 1:
            continue
        if pairs and pairs[-1][1] == size * step:
            pairs[-1] = [pairs[-1][0] * size, step]
        else:
            pairs.append([size, step])
    sizes, steps = zip(*pairs, strict=True) if pairs else ((1,), (1,))
    return list(sizes), list(steps)
