"""The tiles of an attention kernel: defaults for an H100, and the values that fit into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kernelwright.codegen._attention import Attention
from kernelwright.codegen._attention_gradient import AttentionGradient
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import HALVES
from kernelwright.codegen._plan import all_steps, make_plan
from kernelwright.codegen._size import product
from kernelwright.codegen._triton_products import ON_UNITS, SHARED_BYTES
from kernelwright.records import KnobValue

_PROCESSORS = 132
_VALUES: dict[str, tuple[int, ...]] = {
    "ATTENTION_M": (16, 32, 64, 128),
    "ATTENTION_N": (32, 64, 128),
    "ATTENTION_WARPS": (4, 8),
    "ATTENTION_STAGES": (1, 2, 3, 4),
}
# Multiplications of one thread in a float32 product, which are written out one by one. Beyond it ptxas spills.
_WRITTEN_OUT = 2048
_SUMS = 128  # sums of one thread, which stay in its registers


def attention_choices(graph: Graph, options: Mapping[str, Any]) -> dict[str, tuple[KnobValue, ...]]:
    """The values of an attention's choices, the default first; none if the graph has no fused attention.

    Args:
        options: the defaults of all choices without regard to the graph.
    """
    steps = [s for half in graph.halves for s in all_steps(make_plan(half, options).steps) if s.kind == "attention"]
    found: list[Attention] = [step.values[0].attrs["attention"] for step in steps]
    if not found:
        return {}
    largest = max(found, key=lambda a: a.scores.volume().timed * a.depth.extent.timed)
    half, head = largest.product.dtype in HALVES, _head(largest)
    first = _half_tiles(largest, head) if half else _float_tiles(head)
    first["ATTENTION_M"] = next((m for m in (16, 32) if largest.row.extent.timed <= m), first["ATTENTION_M"])
    out: dict[str, tuple[KnobValue, ...]] = {}
    for name, values in _VALUES.items():
        fitting = [value for value in values if _fits({**first, name: value}, head, half)]
        out[name] = tuple(dict.fromkeys((first[name], *fitting)))
    return out | _gradient_choices(found, head, half) | ({} if half else {"precision": ON_UNITS})


def _gradient_choices(found: Iterable[Attention], head: int, half: bool) -> dict[str, tuple[KnobValue, ...]]:
    """The same for backward passes. Five products in one loop leave fewer registers for each."""
    if not any(isinstance(one, AttentionGradient) for one in found):
        return {}
    wide = head > 64
    rows = 64 if half or not wide else 32  # a matrix unit takes 64 rows
    first = {"M": rows, "N": 64 if half else 32, "WARPS": 8 if wide else 4, "STAGES": 2 if half else 1}
    values = {"M": (16, 32, 64, 128), "N": (16, 32, 64, 128), "WARPS": (4, 8), "STAGES": (1, 2, 3)}
    out: dict[str, tuple[KnobValue, ...]] = {}
    for name, known in values.items():
        tiles = [{**first, name: value} for value in known]
        fitting = [tile[name] for tile in tiles if _gradient_fits(tile, head, half)]
        out[f"GRADIENT_{name}"] = tuple(dict.fromkeys((first[name], *fitting)))
    return out


def _gradient_fits(tile: Mapping[str, int], head: int, half: bool) -> bool:
    """True where the tiles of one side stay, those of the other are loaded ahead, and sums fit into registers."""
    rows, columns, warps, stages = (tile[name] for name in ("M", "N", "WARPS", "STAGES"))
    elements = 2 * head * (max(rows, columns) + stages * max(rows, columns)) + 2 * rows * columns
    written = 0 if half else rows * columns * head // (32 * warps)
    sums = 2 * max(rows, columns) * head // (32 * warps)
    return elements * (2 if half else 4) <= SHARED_BYTES and written <= _WRITTEN_OUT // 2 and sums <= _SUMS


def _head(attention: Attention) -> int:
    """The width of a head's tile, in the timed variant."""
    size = max(attention.depth.extent.timed, attention.out.extent.timed, 16)
    return 1 << (size - 1).bit_length()


def _half_tiles(attention: Attention, head: int) -> dict[str, int]:
    batches = product([lp.extent for lp in attention.batch], attention.scores.variants).timed
    few = batches * -(-attention.row.extent.timed // 128) < _PROCESSORS
    rows = 64 if few or head > 128 else 128
    warps = 8 if rows * head > 64 * 128 else 4
    stages = 3 if head < 256 else 2
    return {"ATTENTION_M": rows, "ATTENTION_N": 64, "ATTENTION_WARPS": warps, "ATTENTION_STAGES": stages}


def _float_tiles(head: int) -> dict[str, int]:
    columns = 64 if head <= 64 else 32
    rows, warps = (32, 8) if head > 128 else (64, 4)  # a matrix unit takes 64 rows, from four warps
    return {"ATTENTION_M": rows, "ATTENTION_N": columns, "ATTENTION_WARPS": warps, "ATTENTION_STAGES": 2}


def _fits(tiles: Mapping[str, int], head: int, half: bool) -> bool:
    """True where a block has the memory, and a thread the registers, for these tiles."""
    rows, columns, warps, stages = (tiles[name] for name in _VALUES)
    elements = rows * head + 2 * stages * columns * head + (0 if half else rows * columns)
    written = 0 if half else rows * columns * head // (32 * warps)
    return elements * (2 if half else 4) <= SHARED_BYTES and written <= _WRITTEN_OUT
