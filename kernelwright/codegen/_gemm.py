"""Matrix products in C++, with the operators that follow applied to each row of a tile while it is in cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelwright.codegen._ir import HALVES, STORED_TYPES, Value
from kernelwright.codegen._kernel import Argument, Function, NestWriter
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._partition import Step
from kernelwright.codegen._products import matrix_layout
from kernelwright.codegen._size import Affine, Loop, Size, product


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
