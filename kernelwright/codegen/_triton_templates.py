"""Triton kernels of operators that are not loop nests of pointwise values: pooling, running sums and extremes."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._size import Size, product
from kernelwright.codegen._triton_nest import power_of_two
from kernelwright.codegen._triton_tiles import Kernel, is_large, program_number

_UNROLLED = 32  # windows up to this size are unrolled


def _function(
    name: str, title: str, sizes: KernelSizes, constants: list[str], lines: list[str], more: Sequence[str] = ()
) -> str:
    parameters = ["x", "out", *more, *sizes.arguments.values(), *(f"{c}: tl.constexpr" for c in constants)]
    body = "\n".join("    " + line for line in lines)
    return f'@triton.jit\ndef {name}({", ".join(parameters)}):\n    """{title}."""\n{body}\n'


def _arguments(x: Value, out: Value, sizes: KernelSizes, more: Sequence[Value] = ()) -> list[Argument]:
    tensors = [Argument("tensor", "x", x), Argument("tensor", "out", out)]
    tensors += [Argument("tensor", "second", v) for v in more]
    return tensors + [Argument("size", name, size) for size, name in sizes.arguments.items()]


# ------------------------------------------------------------------------------------------------ pooling


def pool_kernel(value: Value, name: str, title: str, variants: int) -> Kernel:
    """A pooling kernel. Each lane computes one output element and gathers its window element by element."""
    x: Value = value.args[0]
    window = value.attrs["kernel"]
    rank, sizes = len(window), KernelSizes()
    letters = "dhw"[-rank:]
    volume = product(value.shape, variants)
    n = sizes.expr(volume, "n")
    lines = [
        f"at = {program_number(is_large([product(x.shape, variants), volume]))} * BLOCK + tl.arange(0, BLOCK)",
        f"at_inside = at < {n}",
    ]
    lines += _decoded(value, letters, sizes, variants)
    largest = value.attrs["kind"] == "max"
    lines.append(f"result = tl.full([BLOCK], {_start(largest)}, tl.float32)")
    counted = not largest and not value.attrs["include_pad"]
    lines += ["count = tl.full([BLOCK], 0.0, tl.float32)"] if counted else []
    lines += _window(x, value, letters, sizes, counted)
    if not largest:
        divisor = "count" if counted else sizes.expr(product(window, variants), "count")
        lines.append(f"result = result / {divisor}")
    lines.append("tl.store(out + at, result, mask=at_inside)")
    text = _function(name, title, sizes, ["BLOCK"], lines)
    meta = {"BLOCK": "BLOCK", "num_warps": "WARPS"}
    return Kernel(name, text, _arguments(x, value, sizes), "triton.cdiv({n}, BLOCK)", meta, {"n": volume})


def _start(largest: bool) -> str:
    return 'float("-inf")' if largest else "0.0"


def _decoded(value: Value, letters: str, sizes: KernelSizes, variants: int) -> list[str]:
    """The plane and the position in it of every output element."""
    lines, spatial = [], value.shape[-len(letters) :]
    for d, letter in enumerate(letters):
        inner = sizes.expr(product(spatial[d + 1 :], variants), f"inner_{letter}")
        text = "at" if inner == "1" else f"at // {inner}"
        lines.append(f"out_{letter} = {text} % {sizes.expr(spatial[d], f'out_{letter}_size')}")
    return [*lines, f"plane = at // {sizes.expr(product(spatial, variants), 'plane_size')}"]


def _window(x: Value, value: Value, letters: str, sizes: KernelSizes, counted: bool) -> list[str]:
    """The loops over a window."""
    window, lines, indent = value.attrs["kernel"], [], ""
    volume = product(window, len(window[0].values))
    span = "tl.static_range" if volume.is_const and volume.timed <= _UNROLLED else "range"
    place, inside = "plane", ["at_inside"]
    for d, letter in enumerate(letters):
        whole = sizes.expr(x.shape[d - len(letters)], f"size_{letter}")
        step, pad, gap = (value.attrs[key][d] for key in ("stride", "padding", "dilation"))
        offset = f"k_{letter}" if gap.equals(1) else f"k_{letter} * {sizes.expr(gap, f'dilation_{letter}')}"
        border = "" if pad.equals(0) else f" - {sizes.expr(pad, f'padding_{letter}')}"
        stride = "" if step.equals(1) else f" * {sizes.expr(step, f'stride_{letter}')}"
        lines.append(f"{indent}for k_{letter} in {span}(0, {sizes.expr(window[d], f'window_{letter}')}):")
        indent += "    "
        lines.append(f"{indent}{letter} = out_{letter}{stride}{border} + {offset}")
        inside += [f"({letter} >= 0)"] if border else []
        inside.append(f"({letter} < {whole})")
        place = f"{place} * {whole} + {letter}" if " " not in place else f"({place}) * {whole} + {letter}"
    largest = value.attrs["kind"] == "max"
    wide = ".to(tl.float32)" if x.dtype in HALVES else ""
    lines.append(f"{indent}inside = {' & '.join(inside)}")
    lines.append(f"{indent}value = tl.load(x + {place}, mask=inside, other={_start(largest)}){wide}")
    if largest:
        lines.append(f"{indent}result = tl.where((value > result) | (value != value), value, result)")
    else:
        lines.append(f"{indent}result += value")
    return lines + ([f"{indent}count += inside.to(tl.float32)"] if counted else [])


# ------------------------------------------------------------------------------------------------ running sums


def scan_kernel(value: Value, name: str, title: str, variants: int, places: Sequence[Value] = ()) -> Kernel:
    """A running sum, product or extreme along one dim, block by block. A carried value joins the blocks.

    Args:
        places: the value that takes the positions of extremes, if they are wanted.
    """
    x: Value = value.args[0]
    dim = value.attrs["dim"]
    width, length = product(x.shape[dim + 1 :], variants), x.shape[dim]
    count, sizes = product([s for d, s in enumerate(x.shape) if d != dim], variants), KernelSizes()
    rows = width.equals(1)
    lanes, axis = ("ROWS", 1) if rows else ("COLUMNS", 0)
    across, along = ("[:, None]", "[None, :]") if rows else ("[None, :]", "[:, None]")
    shape = f"[{lanes}, 1]" if rows else f"[1, {lanes}]"
    large = is_large([product(x.shape, variants)])
    program, wide = program_number(large), ".to(tl.int64)" if large else ""
    steps = sizes.expr(length, "steps")
    step = f"start + tl.arange(0, BLOCK){wide}{along}"
    sign = value.attrs.get("compare")
    first, body = _extreme(sign, axis, shape, bool(places)) if sign else _sum(value, axis, shape)
    lines = [
        f"row = {program} * {lanes} + tl.arange(0, {lanes}){across}",
        f"row_inside = row < {sizes.expr(count, 'rows')}",
        f"base = {_base(sizes, width, steps)}",
        *first,
        f"for start in range(0, {steps}, BLOCK):",
        f"    step = {f'{steps} - 1 - ({step})' if value.attrs.get('reverse') else step}",
        f"    inside = row_inside & {'(step >= 0)' if value.attrs.get('reverse') else f'(step < {steps})'}",
        "    at = base + step" + ("" if rows else f" * {sizes.expr(width, 'width')}"),
        *(f"    {line}" for line in body),
    ]
    text = _function(name, title, sizes, [lanes, "BLOCK"], lines, ["second"] * len(places))
    setup = [f"block = min(TILE, {power_of_two(length, 'length')})", "tile_rows = max(1, TILE // block)"]
    meta = {"ROWS": "tile_rows", "BLOCK": "block"}
    if not rows:
        setup, meta = [], {"COLUMNS": "COLUMNS", "BLOCK": "max(1, TILE // COLUMNS)"}
    grid = f"triton.cdiv({{count}}, {meta[lanes]})"
    known = {"count": count, "length": length}
    arguments = _arguments(x, value, sizes, places)
    return Kernel(name, text, arguments, grid, {**meta, "num_warps": "REDUCE_WARPS"}, known, setup)


def _sum(value: Value, axis: int, shape: str) -> tuple[list[str], list[str]]:
    """The lines before the blocks, and those for one block, of a running sum or product."""
    kind = value.attrs["kind"]
    start, join = ("0", "+") if kind == "cumsum" else ("1", "*")
    total = f"tl.sum(value, {axis}, keep_dims=True)"
    if kind == "cumprod":
        total = f"tl.reduce(value, {axis}, kw_multiply, keep_dims=True)"
    return [f"carry = tl.full({shape}, {start}.0, tl.float32)"], [
        f"value = tl.load(x + at, mask=inside, other={start}).to(tl.float32)",
        f"tl.store(out + at, carry {join} tl.{kind}(value, {axis}), mask=inside)",
        f"carry {join}= {total}",
    ]


def _extreme(sign: str, axis: int, shape: str, places: bool) -> tuple[list[str], list[str]]:
    """The same of a running extreme, with its position if that is wanted.

    Of equal numbers the last one counts, and a NaN stays, as in torch.

    Args:
        sign: the comparison with which a later number takes the place of the one before it.
    """
    name, start = ("max", "-inf") if sign == ">=" else ("min", "inf")
    first = [f'carry = tl.full({shape}, float("{start}"), tl.float32)']
    body = [f'value = tl.load(x + at, mask=inside, other=float("{start}"))']
    if places:
        first.append(f"carry_at = tl.full({shape}, 0, tl.int32)")
        body.append("places = step.to(tl.int32) + tl.zeros_like(value).to(tl.int32)")
        body.append(f"best, best_at = tl.associative_scan((value, places), {axis}, kw_later_{name}_at)")
    else:
        body.append(f"best = tl.associative_scan(value, {axis}, kw_later_{name})")
    body += [f"taken = (best {sign} carry) | (best != best)", "last = inside & (step == start + BLOCK - 1)"]
    for part, none in (("", "0.0"), *((("_at", "0"),) if places else ())):
        body.append(f"best{part} = tl.where(taken, best{part}, carry{part})")
        body.append(f"carry{part} = tl.sum(tl.where(last, best{part}, {none}), {axis}, keep_dims=True)")
    body.append("tl.store(out + at, best, mask=inside)")
    return first, body + (["tl.store(second + at, best_at.to(tl.int64), mask=inside)"] if places else [])


def _base(sizes: KernelSizes, width: Size, steps: str) -> str:
    """Where a row begins."""
    if width.equals(1):
        return f"row * {steps}"
    inner = sizes.expr(width, "width")
    return f"row // {inner} * {steps} * {inner} + row % {inner}"
