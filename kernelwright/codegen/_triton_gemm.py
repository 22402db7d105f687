"""Matrix products and convolutions in Triton, with their epilogues applied to the accumulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._ir import BYTES, HALVES, Value, root
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Expr, Nest
from kernelwright.codegen._partition import Step
from kernelwright.codegen._products import Layout, split_layout
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.codegen._triton_products import SHARED_BYTES, described, descriptors_fit, sides
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter, is_large, program_number

_LOCALS = {"batch", "line", "depth", "left", "right", "right_inside", "program", "first", "within", "height"}
_LOCALS |= {"tiles_m", "tiles_n", "tiles", "tile", "split", "share", "begin", "end", "row_start", "column_start"}
_LOCALS |= {"left_tiles", "right_tiles", "parts"}
_IMAGE_LOCALS = {"x_start", "y_start", "x", "y"}
_CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
_LARGEST_SHARE = 4096  # accumulators that one warp may have: 128 in each lane
_ALLOCATOR = (
    "triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device={device}))"
)


def gemm_kernels(step: Step, name: str, title: str, variants: int, options: Mapping[str, Any]) -> list[Kernel]:
    """The kernel of a product or a convolution with its epilogue. If the depth is split, a second kernel adds up.

    Args:
        options: the schedule: ``precision`` (of float32), ``splits`` (parts of the depth, each with programs of its
            own), ``persistent`` (only as many programs as run at once; each computes several tiles), and
            ``descriptors`` (operands are read through tensor descriptors where that is possible).
    """
    main = ProductWriter(step, variants, options)
    main.write(described=bool(options["descriptors"]) and descriptors_fit(step))
    return main.kernels(name, title)


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


class ProductWriter:
    """Writes the kernel that multiplies. Without splits it also applies the epilogue."""

    def __init__(self, step: Step, variants: int, options: Mapping[str, Any]) -> None:
        self.value = value = step.values[0]
        layout = _filters(value, variants) if value.op == "conv" else split_layout(value, variants)
        assert layout is not None  # own_products has checked it
        self.layout, self.options, self.splits = layout, options, int(options["splits"])
        self.nest = nest = step.epilogue or _plain(value, layout, variants)
        self.batches = product([lp.extent for lp in layout.batch], nest.variants)
        axes = [Axis("row", nest.outer), Axis("column", nest.inner)]
        self.writer = writer = TileWriter(nest, axes, given={value: "acc"})
        writer.names_taken |= _LOCALS | (_IMAGE_LOCALS if value.op == "conv" else set())
        others = [*nest.loads(), *(v for v, _, _ in nest.stores)] if self.splits == 1 else []
        writer.arguments_first([*self.operands(), *others])

    def operands(self) -> tuple[Value, ...]:
        """What the kernel multiplies, as it lies in memory."""
        return self.layout.left[0], self.layout.right[0]

    def volumes(self) -> list[Size]:
        """Elements of memory that only this kernel indexes."""
        return [product(self.value.shape, self.nest.variants) * self.splits]

    def write(self, *, described: bool) -> None:
        """All statements."""
        writer, layout, options = self.writer, self.layout, self.options
        program = writer.program(*self.operands())
        if is_large(self.volumes()):
            writer.wide, program = True, program_number(True)
        self.described = described and not writer.wide  # a descriptor's indices have 32 bits
        if self.described and not layout.batch:
            self._describe()
        if options["persistent"]:
            m, n = self._extents()
            count = self.batches * self.splits
            times = "" if count.equals(1) else f"{writer.sizes.expr(count, 'batches')} * "
            writer.emit(f"tiles = {times}tl.cdiv({m}, BLOCK_M) * tl.cdiv({n}, BLOCK_N)")
            writer.open(f"for tile in tl.range({program}, tiles, tl.num_programs(0), flatten=True):")
            program = "tile"
        self._tile(program)
        if self.described and layout.batch:
            self._describe()
        self.accumulate()
        self._finish()

    def kernels(self, name: str, title: str) -> list[Kernel]:
        """The kernel with its launch, and the one that adds up if the depth is split."""
        kernels = [self._kernel(name, title)]
        if self.splits > 1:
            place = f"{name}_parts"
            shape = "{m} * {n}" if not self.layout.batch else "{batches} * {m} * {n}"
            text = f"{place} = torch.empty(({self.splits}, {shape}), dtype=torch.float32, device={{device}})"
            kernels[0].setup.append(text)
            kernels.append(_adding_up(self.nest, self.value, name, title, self.splits))
        return kernels

    def _kernel(self, name: str, title: str) -> Kernel:
        sizes = {"m": self.layout.m.extent, "n": self.layout.n.extent, "batches": self.batches}
        factors = [str(self.splits)] * (self.splits > 1) + ["{batches}"] * bool(self.layout.batch)
        grid = " * ".join([*factors, "triton.cdiv({m}, BLOCK_M)", "triton.cdiv({n}, BLOCK_N)"])
        setup = [_ALLOCATOR] if self.described else []
        if self.options["persistent"]:
            setup.append(f"{name}_programs = torch.cuda.get_device_properties({{device}}).multi_processor_count")
            grid = f"min({name}_programs, {grid})"
        meta = {key: key for key in _CONSTANTS} | self.launch_options()
        arguments = self.arguments()
        if self.splits > 1:
            arguments.append(Argument("local", "parts", f"{name}_parts"))
        text = self.writer.function(name, title, _CONSTANTS, arguments)
        return Kernel(name, text, arguments, grid, meta, sizes, setup)

    def arguments(self) -> list[Argument]:
        """What the kernel is given before the place of its parts and the constants."""
        return self.writer.arguments()

    def launch_options(self) -> dict[str, str]:
        """The numbers of warps and of stages."""
        stages = "GEMM_STAGES"
        if self.value.dtype in HALVES:  # tiles of halves may be so large that fewer stages fit into shared memory
            stages = stages_within(self.stored_bytes(), "BLOCK_K * (BLOCK_M + BLOCK_N)")
        return {"num_warps": f"max(GEMM_WARPS, BLOCK_M * BLOCK_N // {_LARGEST_SHARE})", "num_stages": stages}

    def stored_bytes(self) -> int:
        """Bytes of an element of the tile that is stored while the next one's operands arrive; 0 if there is no next"""
        return (4 if self._stores_floats() else 2) if self.options["persistent"] else 0

    def _stores_floats(self) -> bool:
        return self.splits > 1 or any(value.dtype not in HALVES for value, _, _ in self.nest.stores)

    def _extents(self) -> tuple[str, str]:
        sizes = self.writer.sizes
        return sizes.expr(self.layout.m.extent, "rows"), sizes.expr(self.layout.n.extent, "cols")

    def _depth(self) -> str:
        inner = self.layout.inner.extent if self.layout.inner else Size.const(1, self.nest.variants)
        return self.writer.sizes.expr(self.layout.k.extent * inner, "depth_size")

    def _tile(self, program: str) -> None:
        """Write which tile this program computes. Programs that run together share rows of the left matrix."""
        writer, (m, n) = self.writer, self._extents()
        writer.emit(f"program = {program}")
        writer.emit(f"tiles_m, tiles_n = tl.cdiv({m}, BLOCK_M), tl.cdiv({n}, BLOCK_N)")
        if self.splits > 1:
            batches = f"{writer.sizes.expr(self.batches, 'batches')} * " if self.layout.batch else ""
            writer.emit(f"split = program // ({batches}tiles_m * tiles_n)")
            writer.emit(f"program = program % ({batches}tiles_m * tiles_n)")
        if self.layout.batch:
            writer.emit("batch = program // (tiles_m * tiles_n)")
            writer.emit("program = program % (tiles_m * tiles_n)")
            writer.decode("batch", self.layout.batch)
        writer.emit("first = program // (GROUP_M * tiles_n) * GROUP_M")
        writer.emit("height = tl.minimum(tiles_m - first, GROUP_M)")
        writer.emit("within = program % (GROUP_M * tiles_n)")
        for index, tile, size, block, subscript in (
            ("row", "(first + within % height)", m, "BLOCK_M", "[:, None]"),
            ("column", "(within // height)", n, "BLOCK_N", "[None, :]"),
        ):
            start = f"{tile} * {block}"
            if self.described:
                writer.emit(f"{index}_start = {start}")
                start = f"{index}_start"
            writer.emit(f"{index} = {start} + tl.arange(0, {block}){subscript}")
            writer.emit(f"{index}_inside = {index} < {size}")

    def open_depth(self, depth: str) -> None:
        """Begin the loop over the depth, or over this program's share of it."""
        writer, span = self.writer, f"0, {depth}"
        if self.splits > 1:
            writer.emit(f"share = tl.cdiv(tl.cdiv({depth}, BLOCK_K), {self.splits}) * BLOCK_K")
            writer.emit("begin = split * share")
            writer.emit(f"end = tl.minimum(begin + share, {depth})")
            span = "begin, end"
        writer.emit("acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)")
        writer.open(f"for start in range({span}, BLOCK_K):")

    def accumulate(self) -> None:
        """Write the loop over the depth."""
        writer, depth = self.writer, self._depth()
        gathered = _image(writer, self.value, self.layout) if self.value.op == "conv" else None
        self.open_depth(depth)
        if self.described:
            writer.emit(f"left = {self._described('left', 'row')}")
            writer.emit(f"right = {self._described('right', 'column')}")
        else:
            writer.emit(f"depth = start + {writer.lanes('BLOCK_K')}")
            self._load("left", self.layout.left, (self.layout.m, "row", "[None, :]"))
            if gathered is None:
                self._load("right", self.layout.right, (self.layout.n, "column", "[:, None]"))
            else:
                lines, place, inside = gathered
                for line in lines:
                    writer.emit(line)
                writer.emit(f"right_inside = column_inside & (depth[:, None] < {depth}) & {inside}")
                tensor = writer.tensor(self.layout.right[0])
                writer.emit(f"right = tl.load({tensor} + {place}, mask=right_inside, other=0)")
        asked = f', input_precision="{self.options["precision"]}"' if self.value.dtype == "float32" else ""
        writer.emit(f"acc = tl.dot(left, right, acc{asked})")
        writer.close()

    def _load(self, name: str, side: tuple[Value, Affine], across: tuple[Loop, str, str]) -> None:
        """Write the load of a tile through pointers."""
        writer, layout = self.writer, self.layout
        (value, position), (loop, index, subscript) = side, across
        depth = f"depth{subscript}"
        writer.variables |= {loop: index, layout.k: depth}
        if layout.inner is not None:
            size = writer.sizes.expr(layout.inner.extent, "depth_inner")
            writer.variables |= {layout.k: f"{depth} // {size}", layout.inner: f"{depth} % {size}"}
            writer.walks = [w for w in writer.walks if layout.k not in w[1]] + [(depth, [layout.k, layout.inner])]
        place = writer.position(position)
        mask = f"{index}_inside & ({depth} < {self._depth()})"
        writer.emit(f"{name} = tl.load({writer.tensor(value)} + {place}, mask={mask}, other=0){_cast(value)}")

    def _describe(self) -> None:
        """Write the descriptors of both sides. They read zeros beyond the end of a matrix."""
        writer, layout = self.writer, self.layout
        for name, block, (side, loop) in zip(("left", "right"), ("BLOCK_M", "BLOCK_N"), sides(layout), strict=True):
            (value, position), found = side, described(layout, side, loop)
            assert found is not None  # descriptors_fit has checked it
            step, along = found
            terms = tuple((lp, size) for lp, size in position.terms if lp not in (loop, layout.k))
            place = writer.position(Affine(position.offset, terms))
            shape = [writer.sizes.expr(loop.extent, "rows" if name == "left" else "cols"), self._depth()]
            blocks = [block, "BLOCK_K"]
            shape, blocks = (shape, blocks) if along else (shape[::-1], blocks[::-1])
            base = writer.tensor(value) + (f" + {place}" if place else "")
            stride, listed = writer.sizes.expr(step), (", ".join(part) for part in (shape, blocks))
            text = f"{base}, [{next(listed)}], [{stride}, 1], [{next(listed)}]"
            writer.emit(f"{name}_tiles = tl.make_tensor_descriptor({text})")

    def _described(self, name: str, index: str) -> str:
        """The load of a tile through its descriptor."""
        side, loop = sides(self.layout)[name == "right"]
        found = described(self.layout, side, loop)
        assert found is not None
        along, starts = found[1], (f"{index}_start", "start")
        turned = "" if along == (name == "left") else ".T"  # the product wants the depth along the left side's rows
        return f"{name}_tiles.load([{', '.join(starts if along else starts[::-1])}]){turned}{_cast(side[0])}"

    def _finish(self) -> None:
        """Write the epilogue, or the store of a part of the sums."""
        writer, nest, line = self.writer, self.nest, "row"
        m, n = self._extents()
        if self.layout.batch:
            line = "line"
            writer.emit(f"line = batch * {m} + row")
        if self.splits > 1:
            lines = writer.sizes.expr(self.batches * self.layout.m.extent, "lines")
            place = f"(split * {lines} + {line}) * {n} + column"
            writer.emit(f"tl.store(parts + {place}, acc, mask=row_inside & column_inside)")
            return
        if nest.outer:
            writer.decode(line, nest.outer)
        writer.decode("column", nest.inner)
        for value, expr, position in nest.stores:
            writer.store(value, expr, position)


def _cast(value: Value) -> str:
    """What follows the load of an operand."""
    return ".to(tl.float32)" if value.dtype in BYTES else ""


def stages_within(stored: int, floats: str) -> str:
    """As many stages as are asked for and fit into a block's shared memory.

    Args:
        stored: bytes of an element of a tile of the result that lies there as well.
        floats: half of the bytes of a stage, as text.
    """
    room = f"({SHARED_BYTES} - BLOCK_M * BLOCK_N * {stored}) // 2" if stored else str(SHARED_BYTES // 2)
    return f"max(1, min(GEMM_STAGES, {room} // ({floats})))"


def _adding_up(nest: Nest, value: Value, name: str, title: str, splits: int) -> Kernel:
    """The kernel that adds up the parts of a product, always in the same order, and applies the epilogue."""
    axis = Axis("at", [*nest.outer, *nest.inner])
    writer = TileWriter(nest, [axis], given={value: "acc"})
    writer.names_taken |= {"parts", "split", "size"}
    writer.arguments_first([*nest.loads(), *(v for v, _, _ in nest.stores)])
    program = writer.program()
    if is_large([nest.volume() * splits]):
        writer.wide, program = True, program_number(True)
    writer.declare(axis, f"{program} * BLOCK", "BLOCK")
    writer.emit("acc = tl.zeros([BLOCK], tl.float32)")
    writer.open(f"for split in range({splits}):")
    place = f"parts + split * {writer.sizes.expr(nest.volume(), 'n')} + at"
    writer.emit(f"acc += tl.load({place}, mask=at_inside, other=0)")
    writer.close()
    for stored, expr, position in nest.stores:
        writer.store(stored, expr, position)
    arguments = [*writer.arguments(), Argument("local", "parts", f"{name}_parts")]
    own = f"{name}_finish"
    text = writer.function(own, f"{title}: the parts of its sums", ["BLOCK"], arguments)
    meta, n = {"BLOCK": "BLOCK", "num_warps": "WARPS"}, nest.volume()
    return Kernel(own, text, arguments, "triton.cdiv({n}, BLOCK)", meta, {"n": n}, again=8 * splits * n.timed)
