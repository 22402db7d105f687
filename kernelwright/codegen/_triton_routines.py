"""Triton kernels of operators that are no loop nests: sums of segments, counts, uneven bins, the largest of a row."""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._partition import Step
from kernelwright.codegen._size import Size, product
from kernelwright.codegen._triton_nest import power_of_two
from kernelwright.codegen._triton_templates import scan_kernel
from kernelwright.codegen._triton_tiles import Kernel, is_large, literal, program_number


def routine_kernel(step: Step, name: str, title: str, variants: int) -> Kernel:
    """The kernel of a routine. It computes the step's first value, and its second one (indices) if that is wanted."""
    value, *more = step.values
    kind = value.attrs["routine"]
    if kind == "extreme":
        return scan_kernel(value, name, title, variants, more)
    return _KERNELS[kind](_Writer(step, name, title, variants))


class _Writer:
    """The parts of one kernel that all routines share."""

    def __init__(self, step: Step, name: str, title: str, variants: int) -> None:
        self.value, *self.more = step.values
        self.name, self.title, self.variants = name, title, variants
        self.sizes = KernelSizes()
        everything = [product(v.shape, variants) for v in (self.value, *self.value.inputs)]
        self.wide = ".to(tl.int64)" if is_large(everything) else ""
        self.program = program_number(bool(self.wide))

    def size(self, size: Size, name: str) -> str:
        """A size in the kernel."""
        return self.sizes.expr(size, name)

    def kernel(
        self,
        names: list[str],
        lines: list[str],
        grid: str,
        meta: dict[str, str],
        known: dict[str, Size],
        setup: list[str],
    ) -> Kernel:
        """The kernel; ``names`` are those of the inputs in memory."""
        tensors = [*zip(names, self.value.inputs, strict=True), ("out", self.value)]
        tensors += [("second", v) for v in self.more]
        arguments = [Argument("tensor", name, value) for name, value in tensors]
        arguments += [Argument("size", text, size) for size, text in self.sizes.arguments.items()]
        constants = [f"{c}: tl.constexpr" for c in meta if c.isupper()]
        head = f"def {self.name}({', '.join([*(a.name for a in arguments), *constants])}):"
        body = "\n".join("    " + line for line in lines)
        text = f'@triton.jit\n{head}\n    """{self.title}."""\n{body}\n'
        return Kernel(self.name, text, arguments, grid, meta, known, setup)


def _segments(w: _Writer) -> Kernel:
    """Sums over contiguous rows, one program for each segment: the order of the additions is fixed."""
    value, count = w.value, len(w.value.inputs)
    names = ["table", "offsets"] if count == 2 else ["table", "index", "offsets", "weight"][:count]
    rows, bounds = value.inputs[0 if count == 2 else 1], value.inputs[1 if count == 2 else 2]
    width = product(value.shape[1:], w.variants)
    columns, last = w.size(width, "width"), w.size(rows.shape[0], "rows")
    end = "tl.load(offsets + segment + 1)"
    if bounds.shape[0] == value.shape[0]:
        end = f"tl.load(offsets + segment + 1, mask=segment + 1 < {w.size(bounds.shape[0], 'bounds')}, other={last})"
    padding = value.attrs.get("padding")
    lines = [
        f"parts = tl.cdiv({columns}, COLUMNS)",
        f"segment = {w.program} // parts",
        f"column = {w.program} % parts * COLUMNS + tl.arange(0, COLUMNS)[None, :]",
        f"begin = tl.maximum(tl.load(offsets + segment), 0){w.wide}",
        f"end = tl.minimum({end}, {last})",
        "lanes = tl.full([ROWS, COLUMNS], 0.0, tl.float32)",
        *(["count = tl.full([ROWS, 1], 0, tl.int32)"] if padding is not None else []),
        "for start in range(begin, end, ROWS):",
        "    row = start + tl.arange(0, ROWS)[:, None]",
        "    inside = row < end",
    ]
    if count > 2:
        lines.append(f"    at = tl.load(index + row, mask=inside, other=0){w.wide}")
    if value.attrs.get("wraps"):
        lines.append(f"    at = tl.where(at < 0, at + {w.size(value.inputs[0].shape[0], 'entries')}, at)")
    if padding is not None:
        lines += [f"    inside = inside & (at != {padding})", "    count += inside.to(tl.int32)"]
    place = "at" if count > 2 else "row"
    lines.append(f"    value = tl.load(table + {place} * {columns} + column, "
                 f"mask=inside & (column < {columns}), other=0.0)")  # fmt: skip
    lines.append("    lanes += value" + (" * tl.load(weight + row, mask=inside, other=0.0)" if count > 3 else ""))
    lines.append("total = tl.sum(lanes, 0, keep_dims=True)")
    if value.attrs["mean"]:
        lines.append("size = " + ("tl.sum(count)" if padding is not None else "end - begin"))
        empty = literal(value.attrs["empty"], "float32")
        lines.append(f"total = tl.where(size > 0, total / size.to(tl.float32), {empty})")
    lines.append(f"tl.store(out + segment * {columns} + column, total, mask=column < {columns})")
    known = {"segments": value.shape[0], "width": width}
    setup = [f"columns = min(128, {power_of_two(width, 'width')})"]
    meta = {"ROWS": "max(1, BLOCK // columns)", "COLUMNS": "columns", "num_warps": "WARPS"}
    return w.kernel(names, lines, "{segments} * triton.cdiv({width}, columns)", meta, known, setup)


def _counts(w: _Writer) -> Kernel:
    """How often each number occurs in a row: each program counts a part of a row, and adds its counts."""
    value, index = w.value, w.value.inputs[-1]
    places = value.shape[-1].timed
    count, length = product(index.shape[:-1], w.variants), index.shape[-1]
    columns = w.size(length, "columns")
    lines = [
        f"parts = tl.cdiv({columns}, BLOCK * STEPS)",
        f"row = {w.program} // parts",
        f"first = {w.program} % parts * BLOCK * STEPS",
        "counts = tl.full([BINS], 0, tl.int32)",
        f"for start in range(first, min(first + BLOCK * STEPS, {columns}), BLOCK):",
        "    column = start + tl.arange(0, BLOCK)",
        f"    at = tl.load(x + row * {columns} + column, mask=column < {columns}, other=-1)",
        f"    counts += tl.histogram(at.to(tl.int32), BINS, mask=(at >= 0) & (at < {places}))",
        "place = tl.arange(0, BINS)",
        f"tl.atomic_add(out + row * {places} + place, counts.to(out.dtype.element_ty), "
        f'mask=(place < {places}) & (counts > 0), sem="relaxed")',
    ]
    bins = 1 << (places - 1).bit_length()
    meta = {"BLOCK": "BLOCK", "STEPS": "16", "BINS": str(bins), "num_warps": "WARPS"}
    names = ["begun", "x"][-len(value.inputs) :]
    grid = "{rows} * triton.cdiv({length}, BLOCK * 16)"
    return w.kernel(names, lines, grid, meta, {"rows": count, "length": length}, [])


def _bins(w: _Writer) -> Kernel:
    """Means over bins of different sizes: the rows of a bin are added up, then the columns of each bin."""
    value, x = w.value, w.value.inputs[0]
    (tall, wide), (height, width) = x.shape[-2:], value.shape[-2:]
    count = product(value.shape[:-1], w.variants)
    n, h, across = w.size(count, "rows"), w.size(tall, "height"), w.size(wide, "width")
    out_h, out_w = w.size(height, "out_height"), w.size(width, "out_width")
    most = max(-(-t // s) + 1 for t, s in zip(tall.values, height.values, strict=True))
    lines = [
        f"row = {w.program} * ROWS + tl.arange(0, ROWS)[:, None]",
        f"at = tl.arange(0, WIDTH)[None, :]{w.wide}",
        f"y = row % {out_h}",
        f"top = y * {h} // {out_h}",
        f"bottom = ((y + 1) * {h} + {out_h} - 1) // {out_h}",
        "line = tl.full([ROWS, WIDTH], 0.0, tl.float32)",
        f"for step in range(0, {most}):",
        f"    inside = (top + step < bottom) & (at < {across}) & (row < {n})",
        f"    line += tl.load(x + (row // {out_h} * {h} + top + step) * {across} + at, mask=inside, other=0.0)",
        "place = tl.arange(0, BINS)[None, :]",
        f"left = place * {across} // {out_w}",
        f"right = ((place + 1) * {across} + {out_w} - 1) // {out_w}",
        "column = at[:, None, :]",
        "within = (column >= left[:, :, None]) & (column < right[:, :, None])",
        "total = tl.sum(tl.where(within, line[:, None, :], 0.0), 2)",
        "mean = total / ((bottom - top) * (right - left)).to(tl.float32)",
        f"tl.store(out + row * {out_w} + place, mean, mask=(row < {n}) & (place < {out_w}))",
    ]
    known = {"rows": count, "across": wide, "bins": width}
    setup = [f"width = {power_of_two(wide, 'across')}", f"bins = {power_of_two(width, 'bins')}",
             "tile_rows = max(1, TILE // (width * bins))"]  # fmt: skip
    meta = {"ROWS": "tile_rows", "WIDTH": "width", "BINS": "bins", "num_warps": "REDUCE_WARPS"}
    return w.kernel(["x"], lines, "triton.cdiv({rows}, tile_rows)", meta, known, setup)


def _top(w: _Writer) -> Kernel:
    """The largest numbers of a row, in order. Most blocks of a row hold none that belongs to those found so far.

    A number and its place are one 64-bit integer: first the bits of the number, in the order of its values with NaN
    above all, then the place, so that of equal numbers the first one counts.
    """
    value, x = w.value, w.value.inputs[0]
    count, length, kept = product(x.shape[:-1], w.variants), x.shape[-1], value.shape[-1]
    columns, k = w.size(length, "columns"), w.size(kept, "kept")
    turned = "bits" if value.attrs["largest"] else "~bits"
    lines = [
        f"row = {w.program}",
        "none = tl.full((), -(2**63), tl.int64)",
        "best = none + tl.arange(0, KEPT)",
        "least = tl.min(best, 0)",
        f"for start in range(0, {columns}, BLOCK):",
        "    at = start + tl.arange(0, BLOCK)",
        f"    inside = at < {columns}",
        f"    number = tl.load(x + row * {columns} + at, mask=inside, other=0.0)",
        "    bits = number.to(tl.int32, bitcast=True)",
        "    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)",
        "    bits = tl.where(number != number, 0x7FFFFFFF, bits)",
        f"    key = ({turned}).to(tl.int64) * 4294967296 + (4294967295 - at.to(tl.int64))",
        "    key = tl.where(inside, key, none)",
        "    first = tl.max(key, 0)",
        "    while first > least:",
        "        best = tl.where(best == least, first, best)",
        "        least = tl.min(best, 0)",
        "        key = tl.where(key == first, none, key)",
        "        first = tl.max(key, 0)",
        "rank = tl.sum((best[None, :] > best[:, None]).to(tl.int32), 1)",
        f"place = row * {k} + rank",
        "bits = (best >> 32).to(tl.int32)",
        f"bits = {turned}",
        "bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)",
        f"tl.store(out + place, bits.to(tl.float32, bitcast=True), mask=rank < {k})",
    ]
    if w.more:
        lines.append(f"tl.store(second + place, 4294967295 - (best & 4294967295), mask=rank < {k})")
    known = {"rows": count, "length": length, "kept": kept}
    setup = [f"block = min(TILE, {power_of_two(length, 'length')})"]
    meta = {"BLOCK": "block", "KEPT": power_of_two(kept, "kept"), "num_warps": "REDUCE_WARPS"}
    return w.kernel(["x"], lines, "{rows}", meta, known, setup)


_KERNELS: dict[str, Callable[[_Writer], Kernel]] = {
    "segments": _segments,
    "counts": _counts,
    "bins": _bins,
    "top": _top,
}
