"""Float32 products on matrix units: each side in three bfloat16 parts, and sums that are added up in float32.

A float32 number is the sum of three bfloat16 numbers. Of the nine products of parts, six are computed; the others are
below 2^-24 of the largest. Matrix units cut off the digits that a sum has no room for, so an error grows with every
addition in them. Therefore each block of the depth starts from zero with its smallest products, and the sum of a block
is added in float32.

Sources: Henry, Tang and Heinecke, ARITH 2019, for three parts; Ootomo and Yokota, IJHPCA 36(4), 2022, for additions
outside of the units; Fasi, Higham, Mikaitis and Pranesh, PeerJ CS 7:e330, 2021, for what the units cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._ir import Value, root
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Nest
from kernelwright.codegen._partition import Step
from kernelwright.codegen._products import PART_DEPTH, reads_patches
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.codegen._triton_gemm import ProductWriter, stages_within
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter, atom, is_large, program_number

_AXES = "zyx"
PARTS = ("first", "second", "third")
_PRODUCTS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))  # parts of the left and of the right side
_PAD = 64  # the depth of a matrix's parts is a multiple of it: no load needs a mask along the depth
_TILE = 2048  # elements that a program takes apart
_FUNCTION = "parts_of_rows"  # how the names of functions that take a side apart begin
_SHARE = 2048  # sums that one warp may have: 64 in each lane, and as many of the present block


@dataclass
class Apart:
    """What the kernels of a candidate have taken apart so far.

    Attributes:
        sides: of products, by their place in memory; with the variable of ``forward`` that holds the parts.
        functions: that take rows apart, by their text; with their names.
    """

    sides: dict[tuple[Any, ...], str] = field(default_factory=dict)
    functions: dict[tuple[str, ...], str] = field(default_factory=dict)


def unit_kernels(
    step: Step, name: str, title: str, options: Mapping[str, Any], apart: Apart, scope: object
) -> list[Kernel]:
    """The kernels of a float32 product on matrix units: first those that take its sides apart.

    Args:
        options: the schedule, as for ``gemm_kernels``.
        apart: what earlier products have taken apart. New sides are added.
        scope: the function that the product belongs to. Others cannot read its variables.
    """
    writer = _UnitsWriter(step, len(step.values[0].shape[0].values), options)
    kernels = [kernel for side in writer.sides.values() for kernel in side.kernels(name, apart, scope)]
    writer.write(described=False)
    return kernels + writer.kernels(name, title)


def bytes_of_parts(kernels: Sequence[Kernel]) -> int:
    """Bytes that the kernels of a product move beyond its sides and its result: parts, written once and read once."""
    made = [k for k in kernels if k.name.startswith(_FUNCTION)]
    return sum(4 * len(PARTS) * k.sizes["rows"].timed * k.sizes["long"].timed for k in made)


class _Side:
    """One side of a product: its rows (columns, for the right side) lie along the depth once they are taken apart.

    Attributes:
        pad: the depth of the parts is a multiple of it.
        place: the variable of ``forward`` that holds the parts.
    """

    def __init__(
        self, name: str, value: Value, position: Affine, rows: Sequence[Loop], depth: Sequence[Loop], pad: int = _PAD
    ) -> None:
        self.name, self.value, self.position, self.pad = name, value, position, pad
        self.rows, self.depth, self.variants = list(rows), list(depth), len(value.shape[0].values)
        self.place = ""

    @property
    def count(self) -> Size:
        """The number of rows."""
        return product([loop.extent for loop in self.rows], self.variants)

    @property
    def length(self) -> Size:
        """The depth."""
        return product([loop.extent for loop in self.depth], self.variants)

    @property
    def long(self) -> Size:
        """The depth of the parts."""
        return Size(tuple(-(-depth // self.pad) * self.pad for depth in self.length.values))

    @property
    def volume(self) -> Size:
        """Elements of all parts."""
        return self.count * self.long * len(PARTS)

    @property
    def row(self) -> Affine:
        """The number of a row."""
        return linearise([Affine.of(loop) for loop in self.rows], [loop.extent for loop in self.rows], self.variants)

    def long_text(self, text: str, module: str) -> str:
        """The depth of the parts as text, from that of the depth, with ``cdiv`` from a module."""
        if self.length.is_const:
            return str(self.long.timed)
        return text if self.long == self.length else f"{module}.cdiv({text}, {self.pad}) * {self.pad}"

    def kernels(self, name: str, apart: Apart, scope: object) -> list[Kernel]:
        """The kernel that takes the side apart, unless an earlier one has done so."""
        terms = [(loop.extent, self.position.coefficient(loop)) for loop in (*self.rows, *self.depth)]
        key = scope, self.value, self.pad, self.position.offset, len(self.rows), *terms
        if key in apart.sides:
            self.place = apart.sides[key]
            return []
        apart.sides[key] = self.place = f"{name}_{self.name}"
        axes = [Axis("row", self.rows), Axis("depth", self.depth)]
        loops = [*self.rows, *self.depth]
        writer = TileWriter(Nest("pointwise", loops[:-1], loops[-1:], loops[-1], [], [], False, self.variants), axes)
        writer.names_taken |= {"x", "program", "parts", "across", "value", "rest", "place", "long", *PARTS}
        writer.tensors[self.value] = "x"
        writer.wide = is_large([self.volume, product(self.value.shape, self.variants)])
        self._write(writer)
        arguments = [*writer.arguments(), Argument("local", "parts", self.place)]
        body = *(argument.name for argument in arguments), *writer.lines
        number = len(apart.functions) + 1
        function = apart.functions.setdefault(body, _FUNCTION if number == 1 else f"{_FUNCTION}_{number}")
        text = writer.function(function, "Take rows apart into three bfloat16 parts", [], arguments)
        shape = f"({len(PARTS)}, {{rows}}, {self.long_text('{k}', 'triton')})"
        made = f"{self.place} = torch.empty({shape}, dtype=torch.bfloat16, device={{device}})"
        grid = f"triton.cdiv({{rows}}, {_TILE // self.pad}) * triton.cdiv({{k}}, {self.pad})"
        sizes = {"rows": self.count, "k": self.length, "long": self.long}
        return [Kernel(function, text, arguments, grid, {"num_warps": "4"}, sizes, [made])]

    def _write(self, writer: TileWriter) -> None:
        rows, depth = writer.sizes.expr(self.count, "rows"), writer.sizes.expr(self.length, "depth_size")
        height = _TILE // self.pad
        writer.emit(f"program = {program_number(writer.wide)}")
        writer.emit(f"across = tl.cdiv({depth}, {self.pad})")
        writer.emit(f"row = program // across * {height} + tl.arange(0, {height})[:, None]")
        writer.emit(f"depth = program % across * {self.pad} + tl.arange(0, {self.pad})[None, :]")
        writer.emit(f"row_inside = row < {rows}")
        for axis in writer.axes:
            writer.decode(axis.name, axis.loops)
        where = " + ".join(part for part in (writer.tensor(self.value), writer.position(self.position)) if part)
        inside = "row_inside" if self.long == self.length else f"row_inside & (depth < {depth})"
        writer.emit(f"value = tl.load({where}, mask={inside}, other=0)")
        writer.emit("first = value.to(tl.bfloat16)")
        writer.emit("# What rounds to infinity is cut off instead, and infinity has no rest.")
        writer.emit('cut = value.to(tl.bfloat16, fp_downcast_rounding="rtz")')
        writer.emit('first = tl.where(tl.abs(first.to(tl.float32)) == float("inf"), cut, first)')
        writer.emit("rest = tl.where(value == first.to(tl.float32), 0.0, value - first.to(tl.float32))")
        writer.emit("second = rest.to(tl.bfloat16)")
        writer.emit("third = (rest - second.to(tl.float32)).to(tl.bfloat16)")
        writer.emit(f"long = {self.long_text(depth, 'tl')}")
        writer.emit("place = parts + row * long + depth")
        for number, part in enumerate(PARTS):
            beyond = ("", f" + {rows} * long", f" + 2 * {rows} * long")[number]
            writer.emit(f"tl.store(place{beyond}, {part}, mask=row_inside)")


class _UnitsWriter(ProductWriter):
    """Writes the product of two sides in parts.

    A convolution takes its image apart with the channels of a pixel side by side. Its depth is walked tap by tap, and
    each block of the depth has channels of one tap. Where no element is read twice, the depth is that of a product.
    """

    def __init__(self, step: Step, variants: int, options: Mapping[str, Any]) -> None:
        super().__init__(step, variants, options)
        self.taps: Loop | None = None
        if self.value.op == "conv":
            self.sides = self._of_patches() if reads_patches(self.value) else self._of_image()
        else:
            self.sides = self._of_matrices()
        taken = {f"{side}_{part}" for side in self.sides for part in (*PARTS, "parts", "at", "line", "part", "inside")}
        self.writer.names_taken |= {*taken, *(f"{axis}_start" for axis in _AXES), *_AXES, "block", "long", "tap"}

    def _of_matrices(self) -> dict[str, _Side]:
        layout = self.layout
        depth = [layout.k, *([layout.inner] if layout.inner else [])]
        sides = {}
        for name, (value, position), across in (("left", layout.left, layout.m), ("right", layout.right, layout.n)):
            batch = [loop for loop in layout.batch if any(position.coefficient(loop).values)]
            sides[name] = _Side(name, value, position, [*batch, across], depth)
        return sides

    def _of_patches(self) -> dict[str, _Side]:
        """The filters as they are, and all elements that a filter sees as a row."""
        (x, filters), layout, variants = self.value.args, self.layout, self.nest.variants
        channel = Loop("c", filters.shape[1])
        seen = [Loop(f"tap_{axis}", size) for axis, size in zip(_axes(self.value), filters.shape[2:], strict=True)]
        out = [Loop(axis, size) for axis, size in zip(_axes(self.value), self.value.shape[2:], strict=True)]
        attrs = zip(out, seen, self.value.attrs["stride"], self.value.attrs["dilation"], strict=True)
        index = [Affine.of(pixel).scaled(step).plus(Affine.of(tap).scaled(gap)) for pixel, tap, step, gap in attrs]
        place = linearise([Affine.of(layout.batch[0]), Affine.of(channel), *index], x.shape, variants)
        depth = [channel, *seen]
        weights = linearise([Affine.of(layout.m), *map(Affine.of, depth)], filters.shape, variants)
        return {
            "left": _Side("left", root(filters), weights, [layout.m], depth),
            "right": _Side("right", root(x), place, [layout.batch[0], *out], depth),
        }

    def _of_image(self) -> dict[str, _Side]:
        """The channels of each tap of a filter, and of each pixel, as a row."""
        (x, filters), layout, variants = self.value.args, self.layout, self.nest.variants
        channel, pixel = Loop("c", filters.shape[1]), Loop("pixel", product(x.shape[2:], variants))
        self.taps = tap = Loop("tap", product(filters.shape[2:], variants))
        batch, m = layout.batch[0], layout.m
        weights = linearise(list(map(Affine.of, (m, channel, tap))), [m.extent, channel.extent, tap.extent], variants)
        image = linearise(
            list(map(Affine.of, (batch, channel, pixel))), [batch.extent, channel.extent, pixel.extent], variants
        )
        return {
            "left": _Side("left", root(filters), weights, [m, tap], [channel], PART_DEPTH),
            "right": _Side("right", root(x), image, [batch, pixel], [channel], PART_DEPTH),
        }

    def operands(self) -> tuple[Value, ...]:
        """None: the kernel reads parts only."""
        return ()

    def volumes(self) -> list[Size]:
        """Elements of the parts as well."""
        return [*super().volumes(), *(side.volume for side in self.sides.values())]

    def arguments(self) -> list[Argument]:
        """The parts come first."""
        parts = [Argument("local", f"{name}_parts", side.place) for name, side in self.sides.items()]
        return [*parts, *super().arguments()]

    def launch_options(self) -> dict[str, str]:
        """Warps that have room for two tiles of sums, and stages that hold three parts of either side."""
        stages = stages_within(self.stored_bytes(), f"{len(PARTS)} * BLOCK_K * (BLOCK_M + BLOCK_N)")
        return {"num_warps": f"max(GEMM_WARPS, BLOCK_M * BLOCK_N // {_SHARE})", "num_stages": stages}

    def accumulate(self) -> None:
        """Write the loop over the depth."""
        writer, left = self.writer, self.sides["left"]
        writer.emit(f"long = {left.long_text(writer.sizes.expr(left.length, 'depth_size'), 'tl')}")
        for name, side in self.sides.items():
            writer.emit(f"{name}_part = {writer.sizes.expr(side.count, f'{name}_lines')} * long")
        inside = "column_inside"
        if self.taps is None:
            self._matrices()
        else:
            inside = self._windows(self.taps)
        for number, part in enumerate(PARTS):
            for name, mask in (("left", "row_inside"), ("right", inside)):
                beyond = ("", f" + {name}_part", f" + 2 * {name}_part")[number]
                writer.emit(f"{name}_{part} = tl.load({name}_at{beyond}, mask={mask}, other=0)")
        for left_part, right_part in _PRODUCTS[:-1]:
            before = "" if (left_part, right_part) == _PRODUCTS[0] else ", block"
            writer.emit(f"block = tl.dot(left_{PARTS[left_part]}, right_{PARTS[right_part]}{before})")
        writer.emit("# Infinity times a part that is zero says nothing of the product.")
        writer.emit("block = tl.where(block == block, block, 0.0)")
        writer.emit("acc += tl.dot(left_first, right_first, block)")
        writer.close()

    def _matrices(self) -> None:
        """Begin the loop over the depth of two matrices."""
        writer, layout = self.writer, self.layout
        writer.variables |= {layout.m: "row", layout.n: "column"}
        lines = {name: writer.position(side.row) for name, side in self.sides.items()} if layout.batch else {}
        if self.value.op == "conv":  # a row of the right side is a pixel of the result
            lines["right"] = f"batch * {writer.sizes.expr(layout.n.extent, 'cols')} + column"
        for name, index in (("left", "row"), ("right", "column")):
            writer.emit(f"{name}_line = {name}_parts + {atom(lines.get(name, index))} * long")
        self.open_depth("long")
        writer.emit(f"depth = start + {writer.lanes('BLOCK_K')}")
        writer.emit("left_at = left_line + depth[None, :]")
        writer.emit("right_at = right_line + depth[:, None]")

    def _windows(self, taps: Loop) -> str:
        """Begin the loop over the taps and channels of a convolution. Returns the mask of its pixels."""
        writer, value, variants = self.writer, self.value, self.nest.variants
        x, filters = value.args
        axes, attrs = _axes(value), value.attrs
        count = writer.sizes.expr(taps.extent, "taps")
        for d, axis in enumerate(axes):
            below = product(value.shape[3 + d :], variants)
            at = "column" if below.equals(1) else f"column // {writer.sizes.expr(below, f'{axis}_below')}"
            at = at if d == 0 else f"{at} % {writer.sizes.expr(value.shape[2 + d], f'out_{axis}')}"
            step, border = attrs["stride"][d], attrs["padding"][d]
            at = at if step.equals(1) else f"({at}) * {writer.sizes.expr(step, f'stride_{axis}')}"
            at = at if border.equals(0) else f"{at} - {writer.sizes.expr(border, f'padding_{axis}')}"
            writer.emit(f"{axis}_start = {at}")
        writer.emit(f"left_line = left_parts + row * ({count} * long)")
        pixels = writer.sizes.expr(product(x.shape[2:], variants), "pixels")
        writer.emit(f"right_line = right_parts + batch * {pixels} * long")
        self.open_depth(f"{count} * long")
        writer.emit("tap = start // long")
        writer.emit(f"depth = start % long + {writer.lanes('BLOCK_K')}")
        inside, place = ["column_inside"], ""
        for d, axis in enumerate(axes):
            below = product(filters.shape[3 + d :], variants)
            tap = "tap" if below.equals(1) else f"tap // {writer.sizes.expr(below, f'taps_{axis}')}"
            tap = tap if d == 0 else f"{tap} % {writer.sizes.expr(filters.shape[2 + d], f'window_{axis}')}"
            gap, size = attrs["dilation"][d], writer.sizes.expr(x.shape[2 + d], f"size_{axis}")
            tap = f"{axis}_start + {atom(tap)}" + ("" if gap.equals(1) else f" * {writer.sizes.expr(gap, 'dilation')}")
            writer.emit(f"{axis} = {tap}")
            inside += [] if attrs["padding"][d].equals(0) else [f"({axis} >= 0)", f"({axis} < {size})"]
            place = f"({place}) * {size} + {axis}" if place else axis
        writer.emit(f"right_inside = {' & '.join(inside)}")
        writer.emit("left_at = left_line + (start + tl.arange(0, BLOCK_K))[None, :]")
        writer.emit(f"right_at = right_line + {atom(place)} * long + depth[:, None]")
        return "right_inside"


def _axes(value: Value) -> str:
    """A letter for each dim of a convolution's image."""
    return _AXES[5 - len(value.shape) :]
