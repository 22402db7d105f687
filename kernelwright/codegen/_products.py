"""Generated matrix products and convolutions, with the operators that follow fused into their tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen._domain import NotFusible
from kernelwright.codegen._ir import BYTES, HALVES, STORED_TYPES, Index, Program, Value, root, through_view
from kernelwright.codegen._kernel import Argument, Function, NestWriter
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._nest import Nest, analyse, is_element
from kernelwright.codegen._partition import Step
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.records import KnobValue

_SMALL = 128  # rows, columns and depth up to which a matrix is small
# Of an H100: flops a second of a library's float32 products and convolutions, and of those in parts on matrix units.
_PRODUCT_FLOPS, _CONVOLUTION_FLOPS, _UNITS_FLOPS = 47e12, 33e12, 90e12
_MEMORY_BYTES, _LAUNCH_SECONDS = 3e12, 3e-6
PART_DEPTH = 32  # the depth of an image's parts is a multiple of it


def own_products(steps: list[Step], program: Program, options: Mapping[str, Any]) -> list[Step]:
    """Replace library products by generated kernels where the schedule says so, and fuse their epilogues."""
    results = {root(o) for o in program.outputs}
    readers: dict[Value, list[Step]] = {}
    for step in steps:
        for value in step.reads:
            readers.setdefault(value, []).append(step)
    replaced: dict[Step, Step] = {}
    own: dict[Step, Step] = {}  # products, with the steps that compute them and what follows
    dropped: set[Step] = set()
    for step in reversed(steps):
        choice = options.get({"matmul": "gemm", "conv": "conv"}.get(step.kind, ""))
        value = step.values[0]
        if not _is_own(value, choice):
            continue
        if not _writable(step, program, splits=options.get("backend") == "triton", units=choice == "units"):
            continue
        users = readers.get(value, [])
        user = users[0] if len(users) == 1 and value not in results else None
        epilogue = None
        if user is not None and user.kind == "nest" and user not in replaced:
            epilogue = _epilogue(user, value, program.variants)
        if user is None or epilogue is None:
            own[step] = replaced[step] = Step(f"own_{step.kind}", step.values, step.outputs)
        else:
            dropped.add(step)
            values = [*step.values, *user.values]
            own[step] = Step(f"own_{step.kind}", values, user.outputs, epilogue=epilogue, region=user.region)
            replaced[user] = own[step]
    if options.get("backend") == "triton":
        dropped |= _read_as_bytes(steps, own, readers, results)
    return [replaced.get(s, s) for s in steps if s not in dropped]


def _read_as_bytes(
    steps: Sequence[Step], own: Mapping[Step, Step], readers: Mapping[Value, list[Step]], results: set[Value]
) -> set[Step]:
    """Steps that only cast bytes for own products. These read the bytes, and cast what they have read."""
    found = set()
    for step in steps:
        value, users = step.values[0], readers.get(step.values[0], [])
        if (
            len(step.values) == 1
            and is_cast_byte(value)
            and value not in results
            and all(user in own for user in users)
        ):
            found.add(step)
            for user in users:
                own[user].values.append(value)
    return found


def is_cast_byte(value: Value) -> bool:
    """True for a cast from bytes in memory to float32."""
    cast = value.op == "cast" and value.dtype == "float32" and value.args[0].dtype in BYTES
    return cast and root(value.args[0]).op == "leaf"


def reads_bytes(value: Value) -> bool:
    """True for a matrix product with a side that is cast from bytes."""
    sides = value.args if value.op == "matmul" else ()
    return any(is_cast_byte(shown) for side in sides for shown in _views(side) if not shown.is_view)


def _is_own(value: Value, choice: KnobValue | None) -> bool:
    if choice == "units" and suits_units(value):
        return True
    return choice == "own" or (choice in ("mixed", "units") and value.op == "matmul" and not suits_library(value))


def suits_library(value: Value) -> bool:
    """True for a float32 product of more than small matrices in memory: on ordinary units, vendors' kernels win."""
    left, right = value.args
    if reads_bytes(value):
        return False
    rows = product(left.shape[:-1] if len(right.shape) == 2 else left.shape[-2:-1], len(left.shape[0].values))
    sizes = (rows, value.shape[-1], left.shape[-1])
    return value.op == "matmul" and value.dtype == "float32" and any(size.timed > _SMALL for size in sizes)


def suits_units(value: Value) -> bool:
    """True for a float32 product for which a GPU's matrix units are expected to need less time than the library does.

    They compute six products of parts, after both sides have been read and written in parts.
    """
    if not (suits_library(value) or _is_plain_image(value)):
        return False
    variants = len(value.shape[0].values)
    results, left, right = (product(v.shape, variants).timed for v in (value, *value.args))
    depth, padded, library = value.args[0].shape[-1].timed, 1.0, _PRODUCT_FLOPS
    if value.op == "conv":
        channels = value.args[1].shape[1].timed
        depth, library = product(value.args[1].shape[1:], variants).timed, _CONVOLUTION_FLOPS
        padded = 1.0 if reads_patches(value) else -(-channels // PART_DEPTH) * PART_DEPTH / channels
    flops, sides = 2.0 * results * depth, left + right
    known = max(flops / library, 4.0 * (sides + results) / _MEMORY_BYTES)
    parts = max(padded * flops / _UNITS_FLOPS, (6.0 * padded * sides + 4.0 * results) / _MEMORY_BYTES)
    parts += (4.0 + 6.0 * padded) * sides / _MEMORY_BYTES + 2 * _LAUNCH_SECONDS
    return bool(parts < known)


def _is_plain_image(value: Value) -> bool:
    """True for a float32 convolution of one group whose operands lie in memory as they are."""
    if value.op != "conv" or value.dtype != "float32" or value.attrs["transposed"] or value.attrs["named"] is not None:
        return False
    variants = len(value.shape[0].values)
    return value.attrs["groups"].equals(1) and all(operand_memory(a, variants) is root(a) for a in value.args)


def reads_patches(value: Value) -> bool:
    """True for a convolution that reads no element of its image twice."""
    pairs = zip(value.args[1].shape[2:], value.attrs["stride"], strict=True)
    apart = all(
        size <= step for window, stride in pairs for size, step in zip(window.values, stride.values, strict=True)
    )
    return apart and all(border.equals(0) for border in value.attrs["padding"])


def _writable(step: Step, program: Program, *, splits: bool, units: bool) -> bool:
    value = step.values[0]
    if step.kind == "conv" and units:
        return True
    if step.kind == "conv" and splits:  # Triton's kernel: images of two dims, one group
        plain = all(operand_memory(a, program.variants) is root(a) for a in value.args)
        simple = len(value.shape) == 4 and not value.attrs["transposed"] and value.attrs["groups"].equals(1)
        return plain and simple and value.attrs["named"] is None
    if step.kind == "conv":
        return True
    if splits:
        return split_layout(value, program.variants) is not None
    return matrix_layout(value, program.variants, copies=True) is not None


def operand_memory(value: Value, variants: int) -> Value:
    """The value to pass as row-major memory: its root if it only reshapes the root, else a copy of the value itself."""
    loops = [Loop(f"d{d}", size) for d, size in enumerate(value.shape)]
    index = tuple(Affine.of(lp) for lp in loops)
    found = access(value, index, variants)
    plain = found is not None and found[1] == linearise(index, value.shape, variants)
    return root(value) if plain else value


def _epilogue(user: Step, value: Value, variants: int) -> Nest | None:
    """The nest of a product's reader over the rows and columns of the product, or None if it does not fit."""
    columns = value.shape[-1] if value.op == "matmul" else product(value.shape[2:], variants)
    try:
        nest = analyse(user.region, user.outputs, variants, columns)
    except NotFusible:
        return None
    if nest.mode != "pointwise" or not all(is_element(nest, e) for _, e, _ in nest.stores):
        return None
    loops = [*nest.outer, *nest.inner]
    natural = linearise([Affine.of(lp) for lp in loops], [lp.extent for lp in loops], variants)
    spots = {e.position for e in nest.order if e.kind == "load" and e.value is value}
    gathered = any(e.kind == "gather" and e.value.args[0] is value for e in nest.order)
    return nest if spots == {natural} and not gathered and nest.volume() == product(value.shape, variants) else None


# ------------------------------------------------------------------------------------------------ access patterns


@dataclass
class Layout:
    """How a product reads its operands: batch loops, and the loops over rows, columns and depth.

    ``inner`` is the inner one of two depth loops. It is set if no single index can walk along an operand's depth.
    """

    batch: list[Loop]
    m: Loop
    n: Loop
    k: Loop
    left: tuple[Value, Affine]
    right: tuple[Value, Affine]
    inner: Loop | None = None


def access(
    value: Value, index: Index, variants: int, copies: bool = False, casts: bool = False
) -> tuple[Value, Affine] | None:
    """The memory of an operand and the position in it, or None.

    Args:
        copies: a view may be copied into memory. casts: bytes may be read, to be cast by the reader.
    """
    shown, place = value, index
    while shown.is_view or (casts and is_cast_byte(shown)):
        if not shown.is_view:
            shown = shown.args[0]
            continue
        found = through_view(shown, place, variants)
        if found is None:
            return (value, linearise(index, value.shape, variants)) if copies else None
        shown, place = shown.args[0], found
    return shown, linearise(place, shown.shape, variants)


def split_layout(value: Value, variants: int) -> Layout | None:
    """The access pattern of a product. Its depth may be two loops, as when attention heads are apart in memory."""
    found = matrix_layout(value, variants, casts=True)
    depth = value.args[0].shape[-1]
    for size in (s for operand in value.args for shown in _views(operand) for s in shown.shape):
        if found is None and size.divides(depth) and not size.equals(1) and size != depth:
            found = matrix_layout(value, variants, size, casts=True)
    return found


def _views(value: Value) -> Iterator[Value]:
    """A value, followed by the chain of values that it is a view of."""
    yield value
    while value.is_view:
        value = value.args[0]
        yield value


def matrix_layout(
    value: Value, variants: int, split: Size | None = None, *, copies: bool = False, casts: bool = False
) -> Layout | None:
    """The access pattern of a product, or None if an operand is not a strided matrix.

    Args:
        split: the extent of the inner one of two loops over the depth; None for one loop.
        copies: copy an operand that is not a strided matrix. casts: read bytes, which the kernel then casts.
    """
    left, right = value.args
    leading = [Loop(f"b{d}", size) for d, size in enumerate(left.shape[:-2])]
    m, n, k = Loop("m", left.shape[-2]), Loop("n", value.shape[-1]), Loop("k", left.shape[-1])
    depth, inner = Affine.of(k), None
    if split is not None:
        k, inner = Loop("k", left.shape[-1] // split), Loop("k_inner", split)
        depth = Affine.of(k).scaled(split).plus(Affine.of(inner))

    def at(*loops: Loop) -> Index:
        return tuple(Affine.of(lp) for lp in loops)

    batch_right = leading if len(right.shape) > 2 else []
    ends = (*at(n), depth) if value.attrs["transposed"] else (depth, *at(n))
    a = access(left, (*at(*leading, m), depth), variants, copies, casts)
    b = access(right, (*at(*batch_right), *ends), variants, copies, casts)
    if a is None or b is None:
        return None
    layout = Layout(leading, m, n, k, a, b, inner)
    return _merged(layout, variants)


def _merged(layout: Layout, variants: int) -> Layout:
    """Merge batch loops with each other, and with the row loop if B does not depend on them."""
    while layout.batch:
        last = layout.batch[-1]
        inner = layout.m if layout.right[1].coefficient(last).equals(0) else None
        if inner is None and len(layout.batch) > 1:
            first = layout.batch[-2]
            if all(p.coefficient(first) == p.coefficient(last) * last.extent for _, p in (layout.left, layout.right)):
                joined = Loop(first.name, first.extent * last.extent)
                layout = _join(layout, first, last, joined)
                layout.batch = [*layout.batch[:-2], joined]
                continue
            return layout
        if inner is None or layout.left[1].coefficient(last) != layout.left[1].coefficient(layout.m) * layout.m.extent:
            return layout
        joined = Loop("m", last.extent * layout.m.extent)
        layout = _join(layout, last, layout.m, joined)
        layout.m, layout.batch = joined, layout.batch[:-1]
    return layout


def _join(layout: Layout, first: Loop, second: Loop, joined: Loop) -> Layout:
    def moved(position: Affine) -> Affine:
        rest = tuple((lp, s) for lp, s in position.terms if lp not in (first, second))
        step = position.coefficient(second)
        return Affine(position.offset, (*rest, (joined, step)) if any(step.values) else rest)

    (a, p), (b, q) = layout.left, layout.right
    return Layout(layout.batch, layout.m, layout.n, layout.k, (a, moved(p)), (b, moved(q)), layout.inner)


# ------------------------------------------------------------------------------------------------ text


@dataclass
class Tail:
    """What happens to a finished row of a tile: the epilogue's helper function and its arguments."""

    helper: str
    call: str
    arguments: list[Argument]
    streams: list[str]


def tail_of(step: Step, name: str, title: str, options: Mapping[str, Any], taken: frozenset[str]) -> Tail:
    """The epilogue of a step as a helper function. Without an epilogue, the call stores the row."""
    value = step.values[0]
    if step.epilogue is None:
        call = "std::copy({acc}, {acc} + ({count}), out + {rows} * {columns} + {begin});"
        return Tail("", call, [Argument("tensor", "out", value)], [])
    writer = NestWriter(step.epilogue, f"{name}_epilogue", title, {}, options, "segment", value)
    helper = writer.write()
    arguments = [Argument(a.kind, a.name if a.name not in taken else f"{a.name}_", a.value) for a in helper.arguments]
    passed = ", ".join(a.name for a in arguments)
    call = f"{name}_epilogue({{acc}}, {passed}, {{rows}}{{begin}}, {{count}});"
    return Tail(helper.text + "\n", call, arguments, _streams(step, arguments))


def _streams(step: Step, arguments: Sequence[Argument]) -> list[str]:
    """Names of the float32 tensors that an epilogue reads at the same positions as the product."""
    nest, value = step.epilogue, step.values[0]
    assert nest is not None
    spots = {e.position for e in nest.order if e.kind == "load" and e.value is value}
    values = [e.value for e in nest.order if e.kind == "load" and e.position in spots and e.value is not value]
    return [a.name for a in arguments if a.kind == "tensor" and a.value in values and a.value.dtype == "float32"]


def rows_passed(step: Step, batch: tuple[str, Size], row: tuple[str, Size], sizes: KernelSizes) -> str:
    """The outer loop variables of an epilogue, each with a comma after it, from the batch and row of a tile.

    Without an epilogue, the text is the row of the output.
    """
    flat = f"{batch[0]} * {sizes.expr(row[1], 'rows')} + {row[0]}" if batch[0] else row[0]
    if step.epilogue is None:
        return f"({flat})"
    outer = step.epilogue.outer
    if len(outer) < 2:
        return f"{flat}, " if outer else ""
    if batch[0] and [lp.extent for lp in outer] == [batch[1], row[1]]:
        return f"{batch[0]}, {row[0]}, "
    parts = []
    for n, loop in enumerate(outer):
        inner = sizes.expr(product([lp.extent for lp in outer[n + 1 :]], len(row[1].values)), "inner")
        text = f"({flat})" if inner == "1" else f"({flat}) / {inner}"
        parts.append(text if n == 0 else f"{text} % {sizes.expr(loop.extent, 'extent')}")
    return "".join(f"{part}, " for part in parts)


def _prefetches(tail: Tail, flat: str, columns: str) -> str:
    """Statements that prefetch a tile's rows of the epilogue's tensors before the tile is computed."""
    if not tail.streams:
        return ""
    asks = " ".join(f"__builtin_prefetch({name} + ({flat}) * {columns} + begin + q);" for name in tail.streams)
    pad = "\n" + " " * 24
    loops = "for (int64_t r = 0; r < tile_rows; ++r)" + pad + "    for (int64_t q = 0; q < count; q += 16) "
    return loops + (asks if len(tail.streams) == 1 else "{ " + asks + " }") + pad


def _signature(name: str, arguments: Sequence[Argument], written: set[Value]) -> str:
    parts = []
    for argument in arguments:
        if argument.kind == "tensor":
            const = "" if argument.value in written else "const "
            parts.append(f"{const}{STORED_TYPES[argument.value.dtype]}* __restrict {argument.name}")
        else:
            parts.append(("int64_t " if argument.kind == "size" else "float ") + argument.name)
    head = f'extern "C" void {name}({", ".join(parts)}) {{'
    return head if len(head) <= 110 else f'extern "C" void {name}(\n    ' + ",\n    ".join(parts) + ") {"


def operands(pairs: Sequence[tuple[str, Value]], tail: Tail) -> tuple[list[Argument], dict[str, str]]:
    """Tensor arguments without repeats (an epilogue may read an operand of the product again)."""
    arguments: list[Argument] = []
    names: dict[str, str] = {}
    for name, value in pairs:
        known = next((a for a in (*arguments, *tail.arguments) if a.value is value), None)
        names[name] = known.name if known else name
        if known is None:
            arguments.append(Argument("tensor", name, value))
    return arguments, names


def widen(pairs: Sequence[tuple[str, Value]], names: dict[str, str], sizes: KernelSizes, variants: int) -> str:
    """Statements that copy 16-bit operands into floats. ``names`` is updated to the names of the copies."""
    lines = []
    for name, value in pairs:
        if value.dtype in HALVES:
            given, count = names[name], sizes.expr(product(value.shape, variants), f"{name}_count")
            lines.append(f"    const std::vector<float> wide_{name}({given}, {given} + {count});\n")
            names[name] = f"wide_{name}.data()"
    return "".join(lines)


_NAMES = """
a b packed panel acc row begin count group block blocks panels vectors panel_size share batch job first last p
i r width first_row last_row tile_rows m n depth
"""
_RESERVED = frozenset(_NAMES.split())  # variables of the templates below
_GEMM = """
{helper}// {title}
// Panels of B are packed a group at a time (a group stays in L2); tiles of rows then run over the group's panels.
{signature}
{widened}    const int64_t vectors = ({n} + LANES - 1) / LANES, panels = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
    const int64_t panel_size = {depth} * TILE_VECTORS * LANES;
    const int64_t group = std::max<int64_t>(1, std::min(panels, GROUP_FLOATS / panel_size));
    const int64_t share = ({m} + omp_get_max_threads() - 1) / omp_get_max_threads();
    const int64_t block = std::max<int64_t>(64, std::min<int64_t>(1024, share)), blocks = ({m} + block - 1) / block;
    auto first_column = [&](int64_t panel) {{ return std::min<int64_t>(panel * vectors / panels * LANES, {n}); }};
    #pragma omp parallel if ({work} > 262144)
    {{
        std::vector<float> packed(group * panel_size);
        alignas(64) float acc[TILE_ROWS * TILE_VECTORS * LANES];
        #pragma omp for schedule(static)
        for (int64_t job = 0; job < {jobs}; ++job) {{
            {decode}const int64_t first_row = job % blocks * block;
            const int64_t last_row = std::min<int64_t>(first_row + block, {m});
            for (int64_t first = 0; first < panels; first += group) {{
                const int64_t last = std::min(first + group, panels);
                for (int64_t p = first; p < last; ++p) {{
                    const int64_t begin = first_column(p), count = first_column(p + 1) - begin;
                    float* panel = packed.data() + (p - first) * panel_size;
                    pack_any({b} + {b_offset}begin * {b_n}, {b_k}, {b_n}, {depth}, count, panel);
                }}
                for (int64_t i = first_row; i < last_row; i += TILE_ROWS) {{
                    const int64_t tile_rows = std::min(TILE_ROWS, last_row - i);
                    for (int64_t p = first; p < last; ++p) {{
                        const int64_t begin = first_column(p), count = first_column(p + 1) - begin;
                        const float* panel = packed.data() + (p - first) * panel_size;
                        {prefetch}const int64_t width =
                            tile_any({a} + {a_offset}i * {a_m}, {a_m}, {a_k}, panel, {depth}, tile_rows, count, acc);
                        for (int64_t r = 0; r < tile_rows; ++r) {call}
                    }}
                }}
            }}
        }}
    }}
}}
"""


def gemm_function(step: Step, name: str, title: str, variants: int, options: Mapping[str, Any]) -> Function:
    """A matrix product with its epilogue."""
    value = step.values[0]
    layout = matrix_layout(value, variants, copies=True)
    assert layout is not None
    tail = tail_of(step, name, title, options, _RESERVED)
    arguments, names = operands([("a", layout.left[0]), ("b", layout.right[0])], tail)
    sizes = sizes_of(tail)
    m, n, depth = (sizes.expr(lp.extent, t) for lp, t in ((layout.m, "m"), (layout.n, "n"), (layout.k, "depth")))
    (left, a), (right, b) = layout.left, layout.right
    widened = widen([("a", left), ("b", right)], names, sizes, variants)
    batches = product([lp.extent for lp in layout.batch], variants)
    variables, decode = _decoded(layout.batch, sizes)
    count = sizes.expr(batches, "batches")

    def offset(position: Affine) -> str:
        text = sizes.affine(position, variables, offset=True)
        return f"{text} + " if text else ""

    batch = ("batch" if layout.batch else "", batches)
    rows = rows_passed(step, batch, ("i + r", layout.m.extent), sizes)
    flat = f"batch * {m} + i + r" if layout.batch else "i + r"
    fields = {
        "helper": tail.helper, "title": title, "widened": widened, "m": m, "n": n, "depth": depth, "decode": decode,

        "jobs": ("" if count == "1" else f"{count} * ") + "blocks",
        "work": " * ".join([*([count] if count != "1" else []), m, n, depth]),
        "a": names["a"], "b": names["b"], "a_offset": offset(a), "b_offset": offset(b),
        "a_m": sizes.expr(a.coefficient(layout.m), "a_row"), "a_k": sizes.expr(a.coefficient(layout.k), "a_step"),
        "b_k": sizes.expr(b.coefficient(layout.k), "b_row"), "b_n": sizes.expr(b.coefficient(layout.n), "b_step"),
        "call": tail.call.format(acc="acc + r * width", rows=rows, begin="begin", count="count", columns=n),
        "prefetch": _prefetches(tail, flat, n),
    }  # fmt: skip
    return finished(_GEMM, fields, name, step, arguments, tail, sizes)


def _decoded(loops: Sequence[Loop], sizes: KernelSizes) -> tuple[dict[Loop, str], str]:
    """Variables of the batch loops, and the statements that compute them."""
    if not loops:
        return {}, ""
    lines = ["const int64_t batch = job / blocks;"]
    if len(loops) == 1:
        return {loops[0]: "batch"}, lines[0] + "\n            "
    variables, rest = {}, "batch"
    for loop in reversed(loops):
        extent = sizes.expr(loop.extent, loop.name)
        variables[loop] = f"i_{loop.name}"
        whole = loop is loops[0]
        lines.append(f"const int64_t i_{loop.name} = {rest}{'' if whole else f' % {extent}'};")
        rest = f"({rest} / {extent})"
    return variables, "\n            ".join(lines) + "\n            "


def finished(
    template: str,
    fields: dict[str, str],
    name: str,
    step: Step,
    arguments: list[Argument],
    tail: Tail,
    sizes: KernelSizes,
) -> Function:
    """Fill a template with the arguments of the product and of its epilogue."""
    everything = [*arguments, *tail.arguments, *(Argument("size", n, s) for s, n in sizes.arguments.items())]
    signature = _signature(name, everything, set(step.outputs))
    return Function(name, template.format(signature=signature, **fields), everything)


def sizes_of(tail: Tail) -> KernelSizes:
    """The sizes of a product's function. Sizes that its epilogue takes anyway keep the epilogue's names."""
    sizes = KernelSizes()
    sizes.derived = {a.value: a.name for a in tail.arguments if a.kind == "size"}
    return sizes
