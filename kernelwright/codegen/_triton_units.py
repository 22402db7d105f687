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

from kernelwright.codegen._ir import Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._nest import Nest
from kernelwright.codegen._partition import Step
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.codegen._triton_gemm import ProductWriter, stages_within
from kernelwright.codegen._triton_tiles import Axis, Kernel, TileWriter, atom, is_large, program_number

PARTS = ("first", "second", "third")
_PRODUCTS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))  # parts of the left and of the right side
_PAD = 64  # the depth of the parts is a multiple of it: no load needs a mask along the depth
_ROWS = 32  # of a tile that is taken apart
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
    return sum(4 * len(PARTS) * k.sizes["rows"].timed * padded(k.sizes["k"].timed) for k in made)


class _Side:
    """One side of a product: its rows (columns, for the right side) lie along the depth once they are taken apart."""

    def __init__(self, name: str, value: Value, position: Affine, rows: Sequence[Loop], depth: Sequence[Loop]) -> None:
        self.name, self.value, self.position = name, value, position
        self.rows, self.depth, self.variants = list(rows), list(depth), len(value.shape[0].values)
        self.place = ""  # the variable of forward that holds the parts

    @property
    def count(self) -> Size:
        """The number of rows."""
        return product([loop.extent for loop in self.rows], self.variants)

    @property
    def length(self) -> Size:
        """The depth."""
        return product([loop.extent for loop in self.depth], self.variants)

    @property
    def volume(self) -> Size:
        """Elements of all parts."""
        return Size(
            tuple(len(PARTS) * n * padded(k) for n, k in zip(self.count.values, self.length.values, strict=True))
        )

    @property
    def row(self) -> Affine:
        """The number of a row."""
        return linearise([Affine.of(loop) for loop in self.rows], [loop.extent for loop in self.rows], self.variants)

    def kernels(self, name: str, apart: Apart, scope: object) -> list[Kernel]:
        """The kernel that takes the side apart, unless an earlier one has done so."""
        terms = [(loop.extent, self.position.coefficient(loop)) for loop in (*self.rows, *self.depth)]
        key = scope, self.value, self.position.offset, len(self.rows), *terms
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
        shape = f"({len(PARTS)}, {{rows}}, {padded_text(self.length, '{k}', 'triton')})"
        made = f"{self.place} = torch.empty({shape}, dtype=torch.bfloat16, device={{device}})"
        grid = f"triton.cdiv({{rows}}, {_ROWS}) * triton.cdiv({{k}}, {_PAD})"
        sizes = {"rows": self.count, "k": self.length}
        return [Kernel(function, text, arguments, grid, {"num_warps": "4"}, sizes, [made])]

    def _write(self, writer: TileWriter) -> None:
        rows, depth = writer.sizes.expr(self.count, "rows"), writer.sizes.expr(self.length, "depth_size")
        writer.emit(f"program = {program_number(writer.wide)}")
        writer.emit(f"across = tl.cdiv({depth}, {_PAD})")
        writer.emit(f"row = program // across * {_ROWS} + tl.arange(0, {_ROWS})[:, None]")
        writer.emit(f"depth = program % across * {_PAD} + tl.arange(0, {_PAD})[None, :]")
        writer.emit(f"row_inside = row < {rows}")
        for axis in writer.axes:
            writer.decode(axis.name, axis.loops)
        where = " + ".join(part for part in (writer.tensor(self.value), writer.position(self.position)) if part)
        inside = "row_inside" if self.is_padded else f"row_inside & (depth < {depth})"
        writer.emit(f"value = tl.load({where}, mask={inside}, other=0)")
        writer.emit("first = value.to(tl.bfloat16)")
        writer.emit("# What rounds to infinity is cut off instead, and infinity has no rest.")
        cut = 'value.to(tl.bfloat16, fp_downcast_rounding="rtz")'
        writer.emit(f'first = tl.where(tl.abs(first.to(tl.float32)) == float("inf"), {cut}, first)')
        writer.emit("rest = tl.where(value == first.to(tl.float32), 0.0, value - first.to(tl.float32))")
        writer.emit("second = rest.to(tl.bfloat16)")
        writer.emit("third = (rest - second.to(tl.float32)).to(tl.bfloat16)")
        writer.emit(f"long = {padded_text(self.length, depth, 'tl')}")
        writer.emit("place = parts + row * long + depth")
        for number, part in enumerate(PARTS):
            writer.emit(f"tl.store(place{_beyond(number, rows)}, {part}, mask=row_inside)")

    @property
    def is_padded(self) -> bool:
        """Whether the depth needs no padding, in any variant."""
        return all(k % _PAD == 0 for k in self.length.values)


class _UnitsWriter(ProductWriter):
    """Writes the product of two sides in parts."""

    def __init__(self, step: Step, variants: int, options: Mapping[str, Any]) -> None:
        super().__init__(step, variants, options)
        layout = self.layout
        depth = [layout.k, *([layout.inner] if layout.inner else [])]
        self.sides: dict[str, _Side] = {}
        for name, (value, position), across in (("left", layout.left, layout.m), ("right", layout.right, layout.n)):
            batch = [loop for loop in layout.batch if any(position.coefficient(loop).values)]
            self.sides[name] = _Side(name, value, position, [*batch, across], depth)
        self.writer.names_taken |= {f"{side}_{part}" for side in self.sides for part in (*PARTS, "parts", "at", "line")}
        self.writer.names_taken |= {"block", "long"}

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
        writer, layout = self.writer, self.layout
        depth = writer.sizes.expr(self.sides["left"].length, "depth_size")
        writer.emit(f"long = {padded_text(self.sides['left'].length, depth, 'tl')}")
        writer.variables |= {layout.m: "row", layout.n: "column"}
        counts = {}
        for name, side in self.sides.items():
            counts[name] = writer.sizes.expr(side.count, f"{name}_lines")
            writer.emit(f"{name}_line = {name}_parts + {atom(writer.position(side.row))} * long")
        self.open_depth("long")
        writer.emit(f"depth = start + {writer.lanes('BLOCK_K')}")
        for name, subscript in (("left", "[None, :]"), ("right", "[:, None]")):
            writer.emit(f"{name}_at = {name}_line + depth{subscript}")
        for number, part in enumerate(PARTS):
            for name, index in (("left", "row"), ("right", "column")):
                place = f"{name}_at{_beyond(number, counts[name])}"
                writer.emit(f"{name}_{part} = tl.load({place}, mask={index}_inside, other=0)")
        for left, right in _PRODUCTS[:-1]:
            before = "" if (left, right) == _PRODUCTS[0] else ", block"
            writer.emit(f"block = tl.dot(left_{PARTS[left]}, right_{PARTS[right]}{before})")
        writer.emit("# Infinity times a part that is zero says nothing of the product.")
        writer.emit("block = tl.where(block == block, block, 0.0)")
        writer.emit("acc += tl.dot(left_first, right_first, block)")
        writer.close()


def _beyond(number: int, rows: str) -> str:
    """How far a part lies behind the first one, as text."""
    return ("", f" + {rows} * long", f" + 2 * {rows} * long")[number]


def padded(depth: int) -> int:
    """The depth of the parts."""
    return -(-depth // _PAD) * _PAD


def padded_text(depth: Size, text: str, module: str) -> str:
    """The depth of the parts as text, with ``cdiv`` from a module."""
    if depth.is_const:
        return str(padded(depth.timed))
    return f"{module}.cdiv({text}, {_PAD}) * {_PAD}"
