"""The products of a Triton candidate: who computes them, in which tiles, and which choices matter.

The defaults are for an H100: 132 multiprocessors, 227 KB of shared memory for a block, and matrix units for halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.codegen._graph import Graph
from kernelwright.codegen._ir import HALVES, Value, root
from kernelwright.codegen._partition import Step, in_place
from kernelwright.codegen._plan import OWN_KINDS, Plan, all_steps, fold_biases, make_plan
from kernelwright.codegen._products import SCHEMES, Layout, reads_bytes, split_layout, suits_library, suits_units
from kernelwright.codegen._size import Affine, Loop, Size, product
from kernelwright.codegen._triton_loop import runs_inside
from kernelwright.records import KnobValue

SHARED_BYTES = 232448  # of shared memory that one block may have
_ITEM_BYTES = {"float32": 4, **dict.fromkeys(HALVES, 2)}
_PROCESSORS = 132
_FEW_TILES = _PROCESSORS  # up to which splitting the depth can fill multiprocessors: each runs several programs
_LONG_DEPTH = 1024
_ALIGNMENT = 16  # bytes, of the rows that a tensor descriptor reads

_HALVES: dict[str, tuple[KnobValue, ...]] = {
    "BLOCK_M": (16, 32, 64, 128),  # sums of 256 x 256 would not fit into shared memory
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (32, 64, 128),
    "GEMM_WARPS": (4, 8),
    "GEMM_STAGES": (2, 3, 4, 5),
}
_FLOATS: dict[str, tuple[KnobValue, ...]] = {
    "BLOCK_M": (32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "BLOCK_K": (16, 32),
    "GEMM_WARPS": (4, 8),
    "GEMM_STAGES": (2, 3, 4, 5),
}
# Large float32 products without matrix units took three times as long as a library's on an H100.
ON_UNITS: tuple[KnobValue, ...] = ("tf32x3", "ieee")
_TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "GEMM_WARPS", "GEMM_STAGES")


def triton_plan(graph: Graph, options: Mapping[str, Any]) -> Plan:
    """The plan of a Triton candidate.

    A nest that follows a product of the library overwrites its result. The library adds a bias that nothing else
    follows, unless no kernel would be left then.
    """
    plan = make_plan(graph, options)
    made = {v for s in plan.steps if s.kind in ("matmul", "conv") for v in s.outputs}
    results = {root(o) for o in plan.program.outputs}
    in_place(plan.steps, lambda value: value not in made or value in results)
    for step in plan.steps:
        step.alias = {v: p for v, p in step.alias.items() if p.shape == v.shape}
        if step.kind == "repeat":
            step.body = triton_plan(step.values[0].attrs["repeat"].step, options)
            step.inside = runs_inside(step)
    fold_biases(plan, on_device=True)
    return plan


def product_choices(graph: Graph, options: Mapping[str, Any]) -> dict[str, tuple[KnobValue, ...]]:
    """Values of choices that depend on a graph's products, the default first.

    Args:
        options: the defaults of all choices without regard to the graph.
    """
    steps = _own_steps(graph, options)
    products = [step.values[0] for step in steps if step.kind in ("matmul", "own_matmul", "own_conv")]
    if not products:
        return {}
    largest = max(products, key=_work)
    found = _half_tiles(largest) if largest.dtype in HALVES else _float_tiles(largest)
    for choice, preferred in (("gemm", _preferred(graph, options, products)), ("conv", options["conv"])):
        suited = [name for name in SCHEMES if any(_choice(v) == choice and suits_units(v, name) for v in products)]
        found[choice] = tuple(dict.fromkeys((preferred, *suited, "library", "own")))
    if any(value.dtype == "float32" for value in products):
        found["precision"] = ON_UNITS
    if reads_bytes(largest) and _pays_to_split(largest, found["BLOCK_M"][0], found["BLOCK_N"][0]):
        found["splits"] = 4, 1, 2, 8  # a library would read four times the bytes: there is time for a second launch
    return found


def _choice(value: Value) -> str:
    """The choice that says who computes a product."""
    return "conv" if value.op == "conv" else "gemm"


def _preferred(graph: Graph, options: Mapping[str, Any], products: Sequence[Value]) -> KnobValue:
    slow = {suits_library(value) for value in products if value.op == "matmul"}
    preferred = "own" if True not in slow else "mixed" if False in slow else "library"
    # If libraries computed all of it, the candidate would have no kernel.
    has_kernel = any(s.kind in OWN_KINDS for s in _steps(graph, {**options, "gemm": preferred}))
    return preferred if has_kernel else "own"


def _own_steps(graph: Graph, options: Mapping[str, Any]) -> list[Step]:
    """The steps with own products, and with convolutions on matrix units where that suits them."""
    chosen = {**options, "gemm": "own"}
    steps = _steps(graph, chosen)
    images = [step.values[0] for step in steps if step.kind in ("conv", "own_conv")]
    scheme = next((name for name in SCHEMES if any(suits_units(value, name) for value in images)), None)
    return steps if scheme is None else _steps(graph, {**chosen, "conv": scheme})


def on_units(value: Value, options: Mapping[str, Any]) -> bool:
    """Whether a product is computed on matrix units, from sides in parts."""
    return suits_units(value, options[_choice(value)])


def _steps(graph: Graph, options: Mapping[str, Any]) -> list[Step]:
    return [step for half in graph.halves for step in all_steps(triton_plan(half, options).steps)]


def _work(value: Value) -> int:
    """Multiplications of a product, in the timed variant."""
    batches, m, n, k = sizes_of(value)
    return batches * m * n * k


def sizes_of(value: Value) -> tuple[int, int, int, int]:
    """How many products, and the rows, columns and depth of each, in the timed variant."""
    variants = len(value.shape[0].values)
    if value.op == "conv":
        filters = value.args[1].shape
        pixels = product(value.shape[2:], variants)
        return value.shape[0].timed, filters[0].timed, pixels.timed, product(filters[1:], variants).timed
    layout = split_layout(value, variants)
    if layout is None:
        batches = product(value.shape[:-2], variants).timed
        return batches, value.shape[-2].timed, value.shape[-1].timed, value.args[0].shape[-1].timed
    batches = product([loop.extent for loop in layout.batch], variants).timed
    return batches, layout.m.extent.timed, layout.n.extent.timed, value.args[0].shape[-1].timed


def _half_tiles(value: Value) -> dict[str, tuple[KnobValue, ...]]:
    """Tiles of a product of halves."""
    rows, columns = _filling(value)
    k = sizes_of(value)[-1]
    if rows == columns == 128 and _tiles(value, 128, 256) >= 2 * _PROCESSORS:
        columns = 256  # fewer bytes from the caches
    large = rows * columns >= 128 * 128
    first = {
        "BLOCK_M": rows,
        "BLOCK_N": columns,
        "BLOCK_K": 64 if k > 32 else 32,
        "GEMM_WARPS": 8 if large else 4,
        "GEMM_STAGES": 3 if large else 4,
    }
    return {name: tuple(dict.fromkeys((first[name], *values))) for name, values in _HALVES.items()}


def _float_tiles(value: Value) -> dict[str, tuple[KnobValue, ...]]:
    """Tiles of a float32 product on matrix units: up to three parts of either side lie in shared memory at once."""
    rows, columns = _filling(value)
    first = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": 32, "GEMM_WARPS": 8 if rows * columns > 64 * 64 else 4,
             "GEMM_STAGES": 4}  # fmt: skip
    return {name: tuple(dict.fromkeys((first[name], *values))) for name, values in _FLOATS.items()}


def _filling(value: Value) -> tuple[int, int]:
    """Rows and columns of a product's tiles: 128 each, unless too few of them would fill the device."""
    _, m, n, _ = sizes_of(value)
    rows = next((size for size in (16, 32, 64) if m <= size), 128)
    columns = next((size for size in (32, 64) if n <= size), 128)
    while max(rows, columns) > 64 and _tiles(value, rows, columns) < _PROCESSORS:
        rows, columns = (rows, columns // 2) if columns >= rows else (rows // 2, columns)
    return rows, columns


# ------------------------------------------------------------------------------------------------ what matters


def relevant_to_products(graph: Graph, options: Mapping[str, Any]) -> set[str]:
    """The choices that affect a graph's own products, if it has any by some choice.

    Args:
        options: the graph's default schedule.
    """
    steps = [s for s in _own_steps(graph, options) if s.kind in ("own_matmul", "own_conv")]
    if not steps:
        return set()
    names = {*_TILES, *({"gemm"} if any(s.kind == "own_matmul" for s in steps) else ())}
    for step in steps:
        value, tile = step.values[0], (options["BLOCK_M"], options["BLOCK_N"])
        names |= {"precision"} if value.dtype == "float32" else set()
        names |= {"persistent"} if _tiles(value, *tile) > _PROCESSORS else set()
        names |= {"splits"} if _pays_to_split(value, *tile) else set()
        names |= {"descriptors"} if descriptors_fit(step) else set()
    return names


def _tiles(value: Value, rows: Any, columns: Any) -> int:
    batches, m, n, _ = sizes_of(value)
    return int(batches * -(-m // rows) * -(-n // columns))


def _pays_to_split(value: Value, rows: Any, columns: Any) -> bool:
    """Whether a product has so few tiles, and such a depth, that it can pay to split the depth."""
    return _tiles(value, rows, columns) <= _FEW_TILES and sizes_of(value)[-1] >= _LONG_DEPTH


def descriptors_fit(step: Step) -> bool:
    """True where tensor descriptors can read both sides of a product, in every variant."""
    value = step.values[0]
    layout = split_layout(value, len(value.shape[0].values)) if value.op == "matmul" else None
    if layout is None or layout.inner is not None:
        return False
    return all(described(layout, side, loop) is not None for side, loop in sides(layout))


def sides(layout: Layout) -> tuple[tuple[tuple[Value, Affine], Loop], tuple[tuple[Value, Affine], Loop]]:
    """Both sides of a product, each with the loop over its rows or columns."""
    return (layout.left, layout.m), (layout.right, layout.n)


def described(layout: Layout, side: tuple[Value, Affine], across: Loop) -> tuple[Size, bool] | None:
    """How a tensor descriptor reads one side of a product, or None if it cannot.

    Returns:
        The distance of two rows in memory, in elements, and whether the rows lie along the depth.
    """
    value, position = side
    along = position.coefficient(layout.k)
    beside = position.coefficient(across)
    rest = [size for loop, size in position.terms if loop not in (layout.k, across)]
    for unit, step, depth in ((along, beside, True), (beside, along, False)):
        strides = [*rest, position.offset, step]
        bytes_of = _ITEM_BYTES.get(value.dtype, 1)
        aligned = all(v * bytes_of % _ALIGNMENT == 0 for size in strides for v in size.values)
        if unit.equals(1) and aligned and all(v > 0 for v in step.values):
            return step, depth
    return None
