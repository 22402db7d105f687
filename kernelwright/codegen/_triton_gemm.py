"""Matrix products in Triton, with what follows them done on the accumulators."""

from __future__ import annotations

from kernelwright.codegen._ir import Value
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._partition import Step
from kernelwright.codegen._products import Layout, matrix_layout
from kernelwright.codegen._size import Affine, Loop, linearise, product
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter

_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")


def gemm_kernel(step: Step, name: str, title: str, variants: int) -> Kernel:
    """The kernel of a product and its epilogue."""
    value = step.values[0]
    layout = matrix_layout(value, variants)
    assert layout is not None  # the partition has asked already
    nest = step.epilogue or _plain(value, variants)
    axes = [Axis("row", nest.outer), Axis("column", nest.inner)]
    writer = TileWriter(nest, axes, given={value: "acc"})
    writer.names_taken |= {"batch", "line", "depth", "depth_inside", "left", "right", "program", "within", "height"}
    (left, _), (right, _) = layout.left, layout.right
    writer.arguments_first([left, right, *nest.loads(), *(v for v, _, _ in nest.stores)])
    _tiles(writer, layout, writer.program(left, right))
    _accumulate(writer, layout, value.dtype)
    _epilogue(writer, layout)
    batches = product([lp.extent for lp in layout.batch], variants)
    grid = "triton.cdiv({m}, BLOCK_M) * triton.cdiv({n}, BLOCK_N)"
    sizes = {"m": layout.m.extent, "n": layout.n.extent, "batches": batches}
    meta = {key: key for key in _CONSTANTS} | {"num_warps": "GEMM_WARPS", "num_stages": "GEMM_STAGES"}
    text = writer.function(name, title, _CONSTANTS)
    return Kernel(name, text, writer.arguments(), f"{{batches}} * {grid}" if layout.batch else grid, meta, sizes)


def _plain(value: Value, variants: int) -> Nest:
    """The nest of a product that is only stored."""
    rows, columns = Loop("row", product(value.shape[:-1], variants)), Loop("column", value.shape[-1])
    at = linearise([Affine.of(rows), Affine.of(columns)], [rows.extent, columns.extent], variants)
    result = Expr("load", value, position=at)
    return Nest("pointwise", [rows], [columns], columns, [(value, result, at)], [result], False, variants)


def _tiles(writer: TileWriter, layout: Layout, program: str) -> None:
    """Which tile this program computes: programs that run together share rows of the left matrix."""
    m, n = writer.sizes.expr(layout.m.extent, "rows"), writer.sizes.expr(layout.n.extent, "cols")
    writer.emit(f"program = {program}")
    writer.emit(f"tiles_m, tiles_n = tl.cdiv({m}, BLOCK_M), tl.cdiv({n}, BLOCK_N)")
    if layout.batch:
        writer.emit("batch = program // (tiles_m * tiles_n)")
        writer.emit("program = program % (tiles_m * tiles_n)")
        writer.decode("batch", layout.batch)
    writer.emit("first = program // (GROUP_M * tiles_n) * GROUP_M")
    writer.emit("height = tl.minimum(tiles_m - first, GROUP_M)")
    writer.emit("within = program % (GROUP_M * tiles_n)")
    for index, tile, size, block, subscript in (
        ("row", "(first + within % height)", m, "BLOCK_M", "[:, None]"),
        ("column", "(within // height)", n, "BLOCK_N", "[None, :]"),
    ):
        writer.emit(f"{index} = {tile} * {block} + tl.arange(0, {block}){subscript}")
        writer.emit(f"{index}_inside = {index} < {size}")


def _accumulate(writer: TileWriter, layout: Layout, dtype: str) -> None:
    depth = writer.sizes.expr(layout.k.extent, "depth_size")
    precision = ', input_precision="ieee"' if dtype == "float32" else ""
    writer.emit("acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)")
    writer.open(f"for start in range(0, {depth}, BLOCK_K):")
    writer.emit("depth = start + tl.arange(0, BLOCK_K)")
    operands = (("left", layout.left, layout.m, "row", "[None, :]"), ("right", layout.right, layout.n, "column", "[:, None]"))
    for name, (value, position), loop, index, subscript in operands:
        variables = {**writer.variables, loop: index, layout.k: f"depth{subscript}"}
        place = writer.sizes.affine(position, variables, offset=True)
        mask = f"{index}_inside & (depth{subscript} < {depth})"
        writer.emit(f"{name} = tl.load({writer.tensor(value)} + {place}, mask={mask}, other=0)")
    writer.emit(f"acc = tl.dot(left, right, acc{precision})")
    writer.close()


def _epilogue(writer: TileWriter, layout: Layout) -> None:
    nest, line = writer.nest, "row"
    if layout.batch:
        line = "line"
        writer.emit(f"line = batch * {writer.sizes.expr(layout.m.extent, 'rows')} + row")
    if nest.outer:
        writer.decode(line, nest.outer)
    writer.decode("column", nest.inner)
    for value, expr, position in nest.stores:
        writer.store(value, expr, position)
