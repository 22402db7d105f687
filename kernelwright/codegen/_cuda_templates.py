"""CUDA kernels of operators that are not loop nests of pointwise values: running sums and pooling."""

from __future__ import annotations

from kernelwright.codegen._cuda_math import C_TYPES, STORED_TYPES
from kernelwright.codegen._cuda_threads import definition
from kernelwright.codegen._ir import HALVES, Value
from kernelwright.codegen._kernel import Argument
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._size import Size, product
from kernelwright.codegen._triton_tiles import Kernel, is_large

_UNROLLED = 32  # windows up to this size are unrolled
# Threads along a row, STEPS neighbours each: sums of a thread, of a warp by shuffles, of a block in shared memory.
_ROWS = """\
    __shared__ {type} of_warps[BLOCK / 32];
    const {index} base = (({index})blockIdx.x) * {cols};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    {type} carry = {start};
    for ({index} begin = 0; begin < {cols}; begin += BLOCK * STEPS) {{
        const {index} at = begin + threadIdx.x * STEPS, rest = {cols} - at;
        const int count = rest < 0 ? 0 : rest < STEPS ? rest : STEPS;
        {type} value[STEPS];
        if (count > 0) {load}
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) {{
            if (s >= count) value[s] = {start};
            if (s > 0) value[s] = value[s - 1] {join} value[s];
        }}
        {type} within = value[STEPS - 1];
        for (int by = 1; by < 32; by *= 2) {{
            const {type} other = __shfl_up_sync(0xffffffffu, within, by);
            if (lane >= by) within = other {join} within;
        }}
        if (lane == 31) of_warps[warp] = within;
        const {type} neighbour = __shfl_up_sync(0xffffffffu, within, 1);
        __syncthreads();
        {type} before = carry;
        for (int w = 0; w < BLOCK / 32; ++w) {{
            if (w == warp) before = carry;
            carry = carry {join} of_warps[w];
        }}
        if (lane > 0) before = before {join} neighbour;
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) value[s] = before {join} value[s];
        if (count > 0) {store}
        __syncthreads();  // of_warps is written again
    }}"""
_TURNED = (
    "for (int s = 0; s < STEPS; ++s) if (s < count) value[s] = ({type})x[base + {cols} - 1 - at - s];",
    "for (int s = 0; s < STEPS; ++s) if (s < count) out[base + {cols} - 1 - at - s] = ({stored})value[s];",
)
# COLUMNS threads side by side, and below each other threads with STEPS elements of a column.
_COLUMNS = """\
    __shared__ {type} of_threads[BLOCK];
    const {index} first = ({index})blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    const bool inside = first < {rows} * {width};
    const {index} base = inside ? first / {width} * {cols} * {width} + first % {width} : 0;
    const int level = threadIdx.x / COLUMNS;
    {type} carry = {start};
    for ({index} begin = 0; begin < {cols}; begin += BLOCK / COLUMNS * STEPS) {{
        const {index} at = begin + level * STEPS;
        {type} value[STEPS];
        #pragma unroll
        for (int s = 0; s < STEPS; ++s) {{
            value[s] = inside && at + s < {cols} ? ({type})x[base + {step} * {width}] : ({type}){start};
            if (s > 0) value[s] = value[s - 1] {join} value[s];
        }}
        of_threads[threadIdx.x] = value[STEPS - 1];
        __syncthreads();
        {type} before = carry;
        for (int l = 0; l < BLOCK / COLUMNS; ++l) {{
            if (l == level) before = carry;
            carry = carry {join} of_threads[l * COLUMNS + threadIdx.x % COLUMNS];
        }}
        #pragma unroll
        for (int s = 0; s < STEPS; ++s)
            if (inside && at + s < {cols}) out[base + {step} * {width}] = ({stored})(before {join} value[s]);
        __syncthreads();  // of_threads is written again
    }}"""


def _arguments(x: Value, out: Value, sizes: KernelSizes) -> list[Argument]:
    tensors = [Argument("tensor", "x", x), Argument("tensor", "out", out)]
    return tensors + [Argument("size", name, size) for size, name in sizes.arguments.items()]


def _parameters(x: Value, out: Value, sizes: KernelSizes, index: str) -> list[str]:
    kinds = (f"const {STORED_TYPES[x.dtype]}", STORED_TYPES[out.dtype])
    return [
        f"{kinds[0]}* __restrict__ x",
        f"{kinds[1]}* __restrict__ out",
        *(f"{index} {name}" for name in sizes.arguments.values()),
    ]


def _index(*volumes: Size) -> str:
    """The type of indices. The last block may reach beyond the end."""
    return "long long" if is_large(v + (1 << 16) for v in volumes) else "int"


def scan_kernel(value: Value, name: str, title: str, variants: int) -> Kernel:
    """A running sum or product along one dim. A carried total joins the pieces that a block takes at once."""
    x: Value = value.args[0]
    dim, sizes = value.attrs["dim"], KernelSizes()
    width, length = product(x.shape[dim + 1 :], variants), x.shape[dim]
    rows = product(x.shape[:dim], variants)
    index = _index(product(x.shape, variants))
    adds = value.attrs["kind"] == "cumsum"
    parts = {"type": C_TYPES[x.dtype], "stored": STORED_TYPES[value.dtype], "index": index}
    parts |= {"start": "0" if adds else "1", "join": "+" if adds else "*", "cols": sizes.expr(length, "cols")}
    turned = bool(value.attrs.get("reverse"))
    load, store = (
        _TURNED if turned else ("kw_load(value, x + base + at, count);", "kw_store(out + base + at, value, count);")
    )
    parts |= {"load": load.format(**parts), "store": store.format(**parts)}
    parts["step"] = f"({parts['cols']} - 1 - at - s)" if turned else "(at + s)"
    along = width.equals(1)
    if along:
        constant = f"{name.upper()}_THREADS"
        threads = f"max(32, min(REDUCE_BLOCK, 1 << ({length.timed - 1} // STEPS).bit_length()))"
        body, grid, known = _ROWS, "{rows}", {"rows": rows}
        meta = {"BLOCK": constant, "STEPS": "STEPS", "": f"{constant} = {threads}"}
    else:
        parts |= {"rows": sizes.expr(rows, "rows"), "width": sizes.expr(width, "width")}
        body, grid, known = _COLUMNS, "-(-{count} // COLUMNS)", {"count": rows * width}
        meta = {"BLOCK": "REDUCE_BLOCK", "STEPS": "STEPS", "COLUMNS": "COLUMNS"}
    lines = body.format(**parts).splitlines()
    text = definition(name, title, "BLOCK", _parameters(x, value, sizes, index), lines)
    return Kernel(name, text, _arguments(x, value, sizes), grid, meta, known)


def pool_kernel(value: Value, name: str, title: str, variants: int) -> Kernel:
    """A pooling kernel. Each thread computes one output element from its window."""
    x: Value = value.args[0]
    window, sizes = value.attrs["kernel"], KernelSizes()
    rank = len(window)
    letters, volume = "dhw"[-rank:], product(value.shape, variants)
    index, kind = _index(product(x.shape, variants), volume), C_TYPES[x.dtype]
    largest = value.attrs["kind"] == "max"
    counted = not largest and not value.attrs["include_pad"]
    lines = [
        f"const {index} at = ({index})blockIdx.x * BLOCK + threadIdx.x;",
        f"if (at >= {sizes.expr(volume, 'n')}) return;",
    ]
    spatial = value.shape[-rank:]
    for d, letter in enumerate(letters):
        inner = sizes.expr(product(spatial[d + 1 :], variants), f"inner_{letter}")
        whole = "at" if inner == "1" else f"at / {inner}"
        lines.append(f"const {index} out_{letter} = {whole} % {sizes.expr(spatial[d], f'out_{letter}_size')};")
    lines.append(f"const {index} plane = at / {sizes.expr(product(spatial, variants), 'plane_size')};")
    lines.append(f"{kind} result = {'-INFINITY' if largest else '0'};")
    lines += ["int counted = 0;"] if counted else []
    place, inside, indent = "plane", [], ""
    for d, letter in enumerate(letters):
        step, pad, gap = (sizes.expr(value.attrs[k][d], f"{k}_{letter}") for k in ("stride", "padding", "dilation"))
        size = sizes.expr(x.shape[d - rank], f"size_{letter}")
        if product(window, variants).is_const and product(window, variants).timed <= _UNROLLED:
            lines.append(f"{indent}#pragma unroll")
        extent = sizes.expr(window[d], f"window_{letter}")
        lines.append(f"{indent}for (int k_{letter} = 0; k_{letter} < {extent}; ++k_{letter}) {{")
        indent += "    "
        lines.append(f"{indent}const {index} {letter} = out_{letter} * {step} - {pad} + k_{letter} * {gap};")
        inside += [f"{letter} >= 0"] if pad != "0" else []
        inside.append(f"{letter} < {size}")
        place = f"({place}) * {size} + {letter}" if " " in place else f"{place} * {size} + {letter}"
    lines.append(f"{indent}if ({' && '.join(inside)}) {{")
    lines.append(f"{indent}    const {kind} value = {f'({kind})' if x.dtype in HALVES else ''}x[{place}];")
    lines.append(f"{indent}    result = {'kw_max::of(value, result)' if largest else 'result + value'};")
    lines += [f"{indent}    ++counted;"] if counted else []
    lines.append(f"{indent}}}")
    for depth in range(rank - 1, -1, -1):
        lines.append("    " * depth + "}")
    if not largest:
        divisor = "counted" if counted else sizes.expr(product(window, variants), "count")
        lines.append(f"result /= {divisor};")
    lines.append(f"out[at] = ({STORED_TYPES[value.dtype]})result;")
    parameters = _parameters(x, value, sizes, index)
    text = definition(name, title, "BLOCK", parameters, ["    " + line for line in lines])
    return Kernel(name, text, _arguments(x, value, sizes), "-(-{n} // BLOCK)", {"BLOCK": "BLOCK"}, {"n": volume})
