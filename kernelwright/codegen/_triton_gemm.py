"""Matrix products and convolutions in Triton, with their epilogues applied to the accumulators."""

from __future__ import annotations

from kernelwright.codegen._ir import Value
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._partition import Step, root
from kernelwright.codegen._products import Layout, split_layout
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter

_LOCALS = {"batch", "line", "depth", "left", "right", "right_inside", "program", "first", "within", "height"}
_LOCALS |= {"tiles_m", "tiles_n"}
_IMAGE_LOCALS = {"x_start", "y_start", "x", "y"}
_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")


def gemm_kernel(step: Step, name: str, title: str, variants: int) -> Kernel:
    """The kernel of a product or a convolution and its epilogue."""
    value = step.values[0]
    layout = _filters(value, variants) if value.op == "conv" else split_layout(value, variants)
    assert layout is not None  # own_products has checked it
    nest = step.epilogue or _plain(value, layout, variants)
    axes = [Axis("row", nest.outer), Axis("column", nest.inner)]
    writer = TileWriter(nest, axes, given={value: "acc"})
    writer.names_taken |= _LOCALS | (_IMAGE_LOCALS if value.op == "conv" else set())
    (left, _), (right, _) = layout.left, layout.right
    writer.arguments_first([left, right, *nest.loads(), *(v for v, _, _ in nest.stores)])
    _tiles(writer, layout, writer.program(left, right))
    gathered = _image(writer, value, layout) if value.op == "conv" else None
    _accumulate(writer, layout, value.dtype, gathered)
    _epilogue(writer, layout)
    batches = product([lp.extent for lp in layout.batch], variants)
    grid = "triton.cdiv({m}, BLOCK_M) * triton.cdiv({n}, BLOCK_N)"
    sizes = {"m": layout.m.extent, "n": layout.n.extent, "batches": batches}
    meta = {key: key for key in _CONSTANTS} | {"num_warps": "GEMM_WARPS", "num_stages": "GEMM_STAGES"}
    text = writer.function(name, title, _CONSTANTS)
    return Kernel(name, text, writer.arguments(), f"{{batches}} * {grid}" if layout.batch else grid, meta, sizes)


def _filters(value: Value, variants: int) -> Layout:
    """A convolution as a product for each image: filters times the windows of all pixels."""
    x, weight = value.args
    batch, k = Loop("b", value.shape[0]), Loop("k", product(weight.shape[1:], variants))
    m, n = Loop("m", weight.shape[0]), Loop("n", product(value.shape[2:], variants))
    filters = linearise([Affine.of(m), Affine.of(k)], [m.extent, k.extent], variants)
    return Layout([batch], m, n, k, (root(weight), filters), (root(x), Affine.zero(variants)))


def _image(writer: TileWriter, value: Value, layout: Layout) -> tuple[list[str], str, str]:
    """The text that reads a tile of windows: statements of the depth loop, the position in memory, and the mask."""
    x, weight = value.args
    channels = writer.sizes.expr(x.shape[1], "channels")
    height, width = (writer.sizes.expr(s, f"kernel_{d}") for s, d in zip(weight.shape[2:], "hw", strict=True))
    channel = f"depth[:, None] // ({height} * {width})"
    taps = (f"depth[:, None] // {width} % {height}", f"depth[:, None] % {width}")
    across = writer.sizes.expr(value.shape[-1], "out_w")
    pixels = (f"column // {across}", f"column % {across}")
    place, inside, lines = f"(batch * {channels} + {channel})", [], []
    for d, letter in enumerate("yx"):
        step, border, gap = (value.attrs[key][d] for key in ("stride", "padding", "dilation"))
        start = pixels[d] if step.equals(1) else f"({pixels[d]}) * {writer.sizes.expr(step, f'stride_{letter}')}"
        start += "" if border.equals(0) else f" - {writer.sizes.expr(border, f'padding_{letter}')}"
        writer.emit(f"{letter}_start = {start}")
        tap = taps[d] if gap.equals(1) else f"({taps[d]}) * {writer.sizes.expr(gap, f'dilation_{letter}')}"
        lines.append(f"{letter} = {letter}_start + {tap}")
        whole = writer.sizes.expr(x.shape[2 + d], f"size_{letter}")
        inside += [f"({letter} >= 0)"] * (not border.equals(0)) + [f"({letter} < {whole})"]
        place = f"({place} * {whole} + {letter})"
    return lines, place[1:-1], " & ".join(inside)


def _plain(value: Value, layout: Layout, variants: int) -> Nest:
    """The nest of a product that is only stored."""
    lines = product([lp.extent for lp in (*layout.batch, layout.m)], variants)
    rows, columns = Loop("row", lines), Loop("column", layout.n.extent)
    at = linearise([Affine.of(rows), Affine.of(columns)], [rows.extent, columns.extent], variants)
    result = Expr("load", value, position=at)
    return Nest("pointwise", [rows], [columns], columns, [(value, result, at)], [result], False, variants)


def _tiles(writer: TileWriter, layout: Layout, program: str) -> None:
    """Write which tile this program computes. Programs that run together share rows of the left matrix."""
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


def _accumulate(writer: TileWriter, layout: Layout, dtype: str, gathered: tuple[list[str], str, str] | None) -> None:
    """Write the loop over the depth. ``gathered`` says how to read a right side that is not a matrix."""
    inner = layout.inner.extent if layout.inner else Size.const(1, len(layout.k.extent.values))
    depth = writer.sizes.expr(layout.k.extent * inner, "depth_size")
    precision = ', input_precision="ieee"' if dtype == "float32" else ""
    writer.emit("acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)")
    writer.open(f"for start in range(0, {depth}, BLOCK_K):")
    writer.emit(f"depth = start + {writer.lanes('BLOCK_K')}")
    _load_side(writer, "left", layout, layout.left, (layout.m, "row", "[None, :]"), depth)
    if gathered is None:
        _load_side(writer, "right", layout, layout.right, (layout.n, "column", "[:, None]"), depth)
    else:
        lines, place, inside = gathered
        for line in lines:
            writer.emit(line)
        writer.emit(f"right_inside = column_inside & (depth[:, None] < {depth}) & {inside}")
        writer.emit(f"right = tl.load({writer.tensor(layout.right[0])} + {place}, mask=right_inside, other=0)")
    writer.emit(f"acc = tl.dot(left, right, acc{precision})")
    writer.close()


def _load_side(
    writer: TileWriter,
    name: str,
    layout: Layout,
    side: tuple[Value, Affine],
    across: tuple[Loop, str, str],
    depth_size: str,
) -> None:
    (value, position), (loop, index, subscript) = side, across
    depth = f"depth{subscript}"
    writer.variables |= {loop: index, layout.k: depth}
    if layout.inner is not None:
        size = writer.sizes.expr(layout.inner.extent, "depth_inner")
        writer.variables |= {layout.k: f"{depth} // {size}", layout.inner: f"{depth} % {size}"}
        writer.walks = [w for w in writer.walks if layout.k not in w[1]] + [(depth, [layout.k, layout.inner])]
    place = writer.position(position)
    mask = f"{index}_inside & ({depth} < {depth_size})"
    writer.emit(f"{name} = tl.load({writer.tensor(value)} + {place}, mask={mask}, other=0)")


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
