"""Float32 products on matrix units: each side in parts of two bytes, and sums that are added up in float32.

A float32 number is the sum of three bfloat16 numbers. It is also the sum of two float16 numbers, but for its last bit,
if it is in their range: each row (column, for the right side) is multiplied by a power of two first, and the result by
its inverse. Of the products of parts only those are computed that are above 2^-23 of the largest: six, and three.

Matrix units cut off the digits that a sum has no room for, so an error grows with every addition in them. Therefore
each block of the depth starts from zero with its smallest products, and the sum of a block is added in float32.

Sources: Henry, Tang and Heinecke, ARITH 2019, for three bfloat16 parts; Ootomo and Yokota, IJHPCA 36(4), 2022, for two
float16 parts and for additions outside of the units; Fasi, Higham, Mikaitis and Pranesh, PeerJ CS 7:e330, 2021, for
what the units cut off.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.codegen._ir import Value, root
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Nest
from kernelwright.codegen._partition import Step
from kernelwright.codegen._products import PART_DEPTH, SCHEMES, Scheme, reads_patches
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.codegen._triton_gemm import ProductWriter, stages_within
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter, atom, is_large, program_number

_AXES = "zyx"
_PARTS = ("first", "second", "third")
_PAD = 64  # the depth of a matrix's parts is a multiple of it: no load needs a mask along the depth
_FEW = 2  # parts
_TILE = 2048  # elements that a program takes apart
# Scaled by 2^(14 - e), where 2^e is the power of two in a row's largest number, numbers are below float16's largest.
# Of an exponent with its bias of 127: its own, and those of the scale and of its inverse.
_LEAST, _SCALE, _INVERSE = 15, 268, 141
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


class _Side:
    """One side of a product: its rows (columns, for the right side) lie along the depth once they are taken apart.

    Attributes:
        shared: how many of the loops over rows number the groups of rows that have one scale.
        pad: the depth of the parts is a multiple of it.
        place: the variable of ``forward`` that holds the parts. That of the scales is named after it.
    """

    def __init__(
        self,
        name: str,
        operand: tuple[Value, Affine],
        rows: Sequence[Loop],
        depth: Sequence[Loop],
        scheme: Scheme,
        shared: int | None = None,
        pad: int = _PAD,
    ) -> None:
        self.name, self.scheme, self.pad = name, scheme, pad
        self.value, self.position = operand
        self.rows, self.depth, self.variants = list(rows), list(depth), len(self.value.shape[0].values)
        self.shared = len(self.rows) if shared is None else shared
        self.place = ""

    def _count(self, loops: Sequence[Loop]) -> Size:
        return product([loop.extent for loop in loops], self.variants)

    @property
    def count(self) -> Size:
        """The number of rows."""
        return self._count(self.rows)

    @property
    def length(self) -> Size:
        """The depth."""
        return self._count(self.depth)

    @property
    def long(self) -> Size:
        """The depth of the parts."""
        return Size(tuple(-(-depth // self.pad) * self.pad for depth in self.length.values))

    @property
    def volume(self) -> Size:
        """Elements of all parts."""
        return self.count * self.long * self.scheme.parts

    @property
    def row(self) -> Affine:
        """The number of a row."""
        return linearise([Affine.of(loop) for loop in self.rows], [loop.extent for loop in self.rows], self.variants)

    def long_text(self, text: str, module: str) -> str:
        """The text of the parts' depth.

        Args:
            text: of the side's own depth. module: whose ``cdiv`` rounds it up.
        """
        if self.length.is_const:
            return str(self.long.timed)
        return text if self.long == self.length else f"{module}.cdiv({text}, {self.pad}) * {self.pad}"

    def kernels(self, name: str, apart: Apart, scope: object) -> list[Kernel]:
        """The kernels that take the side apart, unless earlier ones have done so."""
        terms = [(loop.extent, self.position.coefficient(loop)) for loop in (*self.rows, *self.depth)]
        key = scope, self.value, self.scheme, self.pad, self.shared, self.position.offset, len(self.rows), *terms
        if key in apart.sides:
            self.place = apart.sides[key]
            return []
        apart.sides[key] = self.place = f"{name}_{self.name}"
        shape = f"({self.scheme.parts}, {{rows}}, {self.long_text('{k}', 'triton')})"
        made = f"{self.place} = torch.empty({shape}, dtype=torch.{self.scheme.dtype}, device={{device}})"
        begun = f"{self.place}_sizes = torch.zeros(({{groups}},), dtype=torch.int32, device={{device}})"
        found = [self._kernel("largest_of_rows", apart, self._find, begun)] if self.scheme.scaled else []
        taken = self._kernel("parts_of_rows", apart, self._take_apart, made)
        taken.again = 2 * 2 * self.volume.timed  # bytes of parts, which are written and read
        if found:
            found[0].sizes["groups"] = self._count(self.rows[: self.shared])
            found[0].again = 4 * self.count.timed * self.length.timed
        return [*found, taken]

    def _kernel(self, name: str, apart: Apart, write: Callable[[TileWriter], str], setup: str) -> Kernel:
        """A kernel whose programs read a tile of the side each. What it does with the tile is written by ``write``."""
        loops = [*self.rows, *self.depth]
        axes = [Axis("row", self.rows), Axis("depth", self.depth)]
        writer = TileWriter(Nest("pointwise", loops[:-1], loops[-1:], loops[-1], [], [], False, self.variants), axes)
        writer.names_taken |= {*_PARTS, "x", "program", "parts", "sizes", "across", "value", "size"}
        writer.names_taken |= {"exponent", "cut", "rest", "place", "long"}
        writer.tensors[self.value] = "x"
        writer.wide = is_large([self.volume, product(self.value.shape, self.variants)])
        self._read(writer)
        title = write(writer)
        places = {"parts": self.place, "sizes": f"{self.place}_sizes"}
        text = "\n".join(writer.lines)
        used = [Argument("local", local, place) for local, place in places.items() if f"{local} + " in text]
        arguments = [*writer.arguments(), *used]
        body = name, *(argument.name for argument in arguments), text
        number = sum(function.startswith(name) for function in apart.functions.values()) + 1
        function = apart.functions.setdefault(body, name if number == 1 else f"{name}_{number}")
        grid = f"triton.cdiv({{rows}}, {_TILE // self.pad}) * triton.cdiv({{k}}, {self.pad})"
        text = writer.function(function, title, [], arguments)
        sizes = {"rows": self.count, "k": self.length}
        return Kernel(function, text, arguments, grid, {"num_warps": "4"}, sizes, [setup])

    def _read(self, writer: TileWriter) -> None:
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

    def _group(self, writer: TileWriter) -> str:
        """Where the largest number of a row's group is."""
        inside = self._count(self.rows[self.shared :])
        return "sizes + row" if inside.equals(1) else f"sizes + row // {writer.sizes.expr(inside, 'group')}"

    def _find(self, writer: TileWriter) -> str:
        writer.emit('size = tl.where(tl.abs(value) < float("inf"), tl.abs(value), 0.0)')
        writer.emit("size = tl.max(size, axis=1, keep_dims=True).to(tl.int32, bitcast=True)")
        writer.emit(f'tl.atomic_max({self._group(writer)}, size, mask=row_inside, sem="relaxed")')
        return "Find the bits of the largest finite number of each group of rows"

    def _take_apart(self, writer: TileWriter) -> str:
        rows, depth = writer.sizes.expr(self.count, "rows"), writer.sizes.expr(self.length, "depth_size")
        kind, parts = f"tl.{self.scheme.dtype}", _PARTS[: self.scheme.parts]
        if self.scheme.scaled:
            writer.emit(f"size = tl.load({self._group(writer)}, mask=row_inside, other=0)")
            writer.emit(f"exponent = {_SCALE} - tl.maximum(size >> 23, {_LEAST})")
            writer.emit("value = value * (exponent << 23).to(tl.float32, bitcast=True)")
        writer.emit(f"first = value.to({kind})")
        if not self.scheme.scaled:
            writer.emit("# What rounds to infinity is cut off instead.")
            writer.emit(f'cut = value.to({kind}, fp_downcast_rounding="rtz")')
            writer.emit('first = tl.where(tl.abs(first.to(tl.float32)) == float("inf"), cut, first)')
        rest = "value"
        for before, part in itertools.pairwise(parts):
            same = f"{rest} == {before}.to(tl.float32)"  # of infinity as well, whose rest would not be a number
            writer.emit(f"rest = tl.where({same}, 0.0, {rest} - {before}.to(tl.float32))")
            writer.emit(f"{part} = rest.to({kind})")
            rest = "rest"
        writer.emit(f"long = {self.long_text(depth, 'tl')}")
        writer.emit("place = parts + row * long + depth")
        for number, part in enumerate(parts):
            beyond = ("", f" + {rows} * long", f" + 2 * {rows} * long")[number]
            writer.emit(f"tl.store(place{beyond}, {part}, mask=row_inside)")
        return f"Take rows apart into {len(parts)} parts"


class _UnitsWriter(ProductWriter):
    """Writes the product of two sides in parts.

    A convolution takes its image apart with the channels of a pixel side by side. The loop goes from tap to tap of the
    filters, and each of its blocks has channels of one tap. Where filters do not overlap, the image is a matrix of
    patches.
    """

    def __init__(self, step: Step, variants: int, options: Mapping[str, Any]) -> None:
        super().__init__(step, variants, options)
        self.scheme = SCHEMES[options["conv" if self.value.op == "conv" else "gemm"]]
        self.taps: Loop | None = None
        if self.value.op == "conv":
            self.sides = self._of_patches() if reads_patches(self.value) else self._of_image()
        else:
            self.sides = self._of_matrices()
        words = (*_PARTS, "parts", "sizes", "size", "at", "line", "part", "inside")
        taken = {f"{side}_{word}" for side in self.sides for word in words}
        self.writer.names_taken |= {*taken, *(f"{axis}_start" for axis in _AXES), *_AXES}
        self.writer.names_taken |= {"block", "long", "tap", "power", "half"}

    def _of_matrices(self) -> dict[str, _Side]:
        layout = self.layout
        depth = [layout.k, *([layout.inner] if layout.inner else [])]
        sides = {}
        for name, operand, across in (("left", layout.left, layout.m), ("right", layout.right, layout.n)):
            batch = [loop for loop in layout.batch if any(operand[1].coefficient(loop).values)]
            sides[name] = _Side(name, operand, [*batch, across], depth, self.scheme)
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
            "left": _Side("left", (root(filters), weights), [layout.m], depth, self.scheme),
            "right": _Side("right", (root(x), place), [layout.batch[0], *out], depth, self.scheme),
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
            "left": _Side("left", (root(filters), weights), [m, tap], [channel], self.scheme, 1, PART_DEPTH),
            "right": _Side("right", (root(x), image), [batch, pixel], [channel], self.scheme, 1, PART_DEPTH),
        }

    def operands(self) -> tuple[Value, ...]:
        """None: the kernel reads parts only."""
        return ()

    def volumes(self) -> list[Size]:
        """Elements of the parts as well."""
        return [*super().volumes(), *(side.volume for side in self.sides.values())]

    def arguments(self) -> list[Argument]:
        """The parts come first, and then the scales."""
        parts = [Argument("local", f"{name}_parts", side.place) for name, side in self.sides.items()]
        sizes = [Argument("local", f"{name}_sizes", f"{side.place}_sizes") for name, side in self.sides.items()]
        return [*parts, *(sizes if self.scheme.scaled else []), *super().arguments()]

    def launch_options(self) -> dict[str, str]:
        """Warps that have room for two tiles of sums, and stages that hold all parts of either side.

        With fewer parts, a block of the depth is twice as long, since a block is a wait for the units.
        """
        depth = "BLOCK_K" if self.taps is not None or self.scheme.parts > _FEW else "2 * BLOCK_K"
        stages = stages_within(self.stored_bytes(), f"{self.scheme.parts} * {depth} * (BLOCK_M + BLOCK_N)")
        warps = f"max(GEMM_WARPS, BLOCK_M * BLOCK_N // {_SHARE})"
        return {"BLOCK_K": depth, "num_warps": warps, "num_stages": stages}

    def accumulate(self) -> None:
        """Write the loop over the depth."""
        writer, left = self.writer, self.sides["left"]
        writer.emit(f"long = {left.long_text(writer.sizes.expr(left.length, 'depth_size'), 'tl')}")
        for name, side in self.sides.items():
            writer.emit(f"{name}_part = {writer.sizes.expr(side.count, f'{name}_lines')} * long")
        inside = "column_inside"
        groups = self._matrices() if self.taps is None else {"left": "row", "right": "batch"}
        if self.taps is not None:
            inside = self._windows(self.taps)
        parts = _PARTS[: self.scheme.parts]
        for number, part in enumerate(parts):
            for name, mask in (("left", "row_inside"), ("right", inside)):
                beyond = ("", f" + {name}_part", f" + 2 * {name}_part")[number]
                writer.emit(f"{name}_{part} = tl.load({name}_at{beyond}, mask={mask}, other=0)")
        pairs = sorted(((i, j) for i in range(len(parts)) for j in range(len(parts) - i)), key=lambda pair: -sum(pair))
        for place, (i, j) in enumerate(pairs[:-1]):
            before = ", block" if place else ""
            writer.emit(f"block = tl.dot(left_{parts[i]}, right_{parts[j]}{before})")
        writer.emit("# Infinity times a part that is zero says nothing of the product.")
        writer.emit("block = tl.where(block == block, block, 0.0)")
        writer.emit("acc += tl.dot(left_first, right_first, block)")
        writer.close()
        if self.scheme.scaled:
            self._scale_back(groups)

    def _scale_back(self, groups: Mapping[str, str]) -> None:
        """Multiply by the inverse of both scales: in two steps, since their product may be out of range."""
        writer = self.writer
        for name, mask in (("left", "row_inside"), ("right", "column_inside")):
            mask = "" if groups[name] == "batch" else f", mask={mask}, other=0"
            writer.emit(f"{name}_size = tl.maximum(tl.load({name}_sizes + {groups[name]}{mask}) >> 23, {_LEAST})")
        writer.emit(f"power = left_size + right_size - {2 * _INVERSE}")
        writer.emit("half = power >> 1")
        writer.emit("acc = acc * ((half + 127) << 23).to(tl.float32, bitcast=True)")
        writer.emit("acc = acc * ((power - half + 127) << 23).to(tl.float32, bitcast=True)")

    def _matrices(self) -> dict[str, str]:
        """Begin the loop over the depth of two matrices. Returns the numbers of their rows."""
        writer, layout = self.writer, self.layout
        writer.variables |= {layout.m: "row", layout.n: "column"}
        lines = {"left": "row", "right": "column"}
        if layout.batch:
            lines = {name: writer.position(side.row) for name, side in self.sides.items()}
        if self.value.op == "conv":  # a row of the right side is a pixel of the result
            lines["right"] = f"batch * {writer.sizes.expr(layout.n.extent, 'cols')} + column"
        for name, line in lines.items():
            writer.emit(f"{name}_line = {name}_parts + {atom(line)} * long")
        self.open_depth("long")
        writer.emit(f"depth = start + {writer.lanes('BLOCK_K')}")
        writer.emit("left_at = left_line + depth[None, :]")
        writer.emit("right_at = right_line + depth[:, None]")
        return lines

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
