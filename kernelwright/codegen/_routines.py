"""C++ templates for operators that are not loop nests: running extremes, top-k, sums by index, resampling."""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.codegen._ir import STORED_TYPES, Value
from kernelwright.codegen._kernel import Argument, Function
from kernelwright.codegen._names import literal
from kernelwright.codegen._partition import Step
from kernelwright.codegen._routine_texts import BILINEAR, BINS, NEAREST, PREFETCH, SEGMENTS, TOP
from kernelwright.codegen._size import Size, product

Sizes = list[tuple[str, Size]]
Routine = Callable[[Value, dict[str, str], bool, int], tuple[str, Sizes]]
ROUTINES: dict[str, Routine] = {}


def routine_function(step: Step, name: str, title: str, variants: int) -> Function:
    """The kernel of a routine. It computes the step's first value, and its second one (indices) if that is wanted."""
    value, *more = step.values
    types = {f"t{n}": STORED_TYPES[v.dtype] for n, v in enumerate(value.inputs)}
    parts = {"name": name, "title": title, "type": STORED_TYPES[value.dtype], **types}
    text, sizes = ROUTINES[value.attrs["routine"]](value, parts, bool(more), variants)
    arguments = [Argument("tensor", f"in{n}", v) for n, v in enumerate(value.inputs)]
    arguments.append(Argument("tensor", "out", value))
    arguments += [Argument("tensor", "second", v) for v in more]
    arguments += [Argument("size", n, s) for n, s in sizes]
    arguments += [Argument("number", n, x) for n, x in value.attrs.get("numbers", ())]
    return Function(name, text, arguments)


def _routine(name: str) -> Callable[[Routine], Routine]:
    def register(function: Routine) -> Routine:
        ROUTINES[name] = function
        return function

    return register


def _around(value: Value, dim: int, variants: int) -> tuple[Size, Size, Size]:
    """How many elements lie before a dim, along it and behind it."""
    shape = value.shape
    return product(shape[:dim], variants), shape[dim], product(shape[dim + 1 :], variants)


# ------------------------------------------------------------------------------------------------ running extremes

_EXTREME_ROWS = """
// {title}
// Of equal numbers the last one counts, and a NaN stays, as in torch.
extern "C" void {name}(const {t0}* __restrict in0, {type}* __restrict out{index_parameter}, int64_t rows,
                       int64_t cols) {{
    #pragma omp parallel for schedule(static) if (rows * cols > 65536)
    for (int64_t row = 0; row < rows; ++row) {{
        const {t0}* in_row = in0 + row * cols;
        {type}* out_row = out + row * cols;
        {type} best = in_row[0];
{index_start}        for (int64_t j = 0; j < cols; ++j) {{
            const {type} x = in_row[j];
            const bool taken = x {compare} best || x != x;
            best = taken ? x : best;
            out_row[j] = best;
{index_step}        }}
    }}
}}
"""
_EXTREME_COLUMNS = """
// {title}
// The columns of a block advance together. Of equal numbers the last one counts, and a NaN stays, as in torch.
extern "C" void {name}(const {t0}* __restrict in0, {type}* __restrict out{index_parameter}, int64_t outer,
                       int64_t steps, int64_t width) {{
    const int64_t blocks = (width + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) if (outer * steps * width > 65536)
    for (int64_t block = 0; block < outer * blocks; ++block) {{
        const int64_t row = block / blocks, begin = (block - row * blocks) * BLOCK;
        const int64_t count = std::min<int64_t>(BLOCK, width - begin), first = row * steps * width + begin;
        {type} best[BLOCK];
        std::copy(in0 + first, in0 + first + count, best);
{index_start}        for (int64_t k = 0; k < steps; ++k) {{
            const {t0}* in_row = in0 + first + k * width;
            {type}* out_row = out + first + k * width;
{index_row}            #pragma omp simd
            for (int64_t v = 0; v < count; ++v) {{
                const {type} x = in_row[v];
                const bool taken = x {compare} best[v] || x != x;
                best[v] = taken ? x : best[v];
                out_row[v] = best[v];
{index_step}            }}
        }}
    }}
}}
"""


@_routine("extreme")
def _extreme(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    outer, steps, inner = _around(value, value.attrs["dim"], variants)
    rows = inner.equals(1)
    indices = {
        "index_parameter": ", int64_t* __restrict second",
        "index_start": "        int64_t at = 0;\n" if rows else "        int64_t at[BLOCK] = {};\n",
        "index_row": "            int64_t* at_row = second + first + k * width;\n",
        "index_step": "            at = taken ? j : at;\n            second[row * cols + j] = at;\n"
        if rows
        else "                at[v] = taken ? k : at[v];\n                at_row[v] = at[v];\n",
    }
    parts |= indices if second else dict.fromkeys(indices, "")
    parts["compare"] = value.attrs["compare"]
    if rows:
        return _EXTREME_ROWS.format(**parts), [("rows", outer), ("cols", steps)]
    return _EXTREME_COLUMNS.format(**parts), [("outer", outer), ("steps", steps), ("width", inner)]


# ------------------------------------------------------------------------------------------------ largest of a row


@_routine("top")
def _top(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    largest = value.attrs["largest"]
    parts["before"] = "x > y || (x != x && y == y)" if largest else "x < y || (y != y && x == x)"
    parts["not_before"] = "<=" if largest else ">="
    parts["index_parameter"] = ", int64_t* __restrict second" if second else ""
    own = "        std::vector<int64_t> places(k);\n        int64_t* at = places.data();\n"
    parts["index_start"] = "        int64_t* at = second + row * k;\n" if second else own
    x: Value = value.args[0]
    rows = product(x.shape[:-1], variants)
    return TOP.format(**parts), [("rows", rows), ("cols", x.shape[-1]), ("k", value.shape[-1])]


# ------------------------------------------------------------------------------------------------ sums by index


@_routine("segments")
def _segments(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    """Inputs: rows and bounds; or a table, the rows' indices into it, bounds, and optional weights."""
    gathered, weighted = len(value.inputs) > 2, len(value.inputs) > 3
    given = [f"const {parts[f't{n}']}* __restrict in{n}" for n in range(len(value.inputs))]
    mean, empty = value.attrs["mean"], literal(value.attrs["empty"], "float32")
    parts |= {
        "parameters": ", ".join(given),
        "offsets": "in2" if gathered else "in1",
        "row_type": parts["t0"],
        "row": "in1[i]" if gathered else "i",
        "prefetch": PREFETCH if gathered else "",
        "given": ", ".join(f"in{n}" for n in range(len(value.inputs))),
        "term": "in3[i] * from[v]" if weighted else "from[v]",
        "scale": f"end > begin ? 1.0f / (float)(end - begin) : {empty}" if mean else "1.0f",
        "scaled": " * scale" if mean else "",
    }
    text = SEGMENTS.format(**parts)
    if not mean:
        text = "\n".join(line for line in text.split("\n") if "const float scale" not in line)
    rows, bounds = value.inputs[1 if gathered else 0], value.inputs[2 if gathered else 1]
    width = product(value.shape[1:], variants)
    return text, [("segments", value.shape[0]), ("width", width), ("rows", rows.shape[0]), ("bounds", bounds.shape[0])]


_ADD_ROWS = """
// {title}
// Threads take columns, since rows may go to the same place. What would go beyond the end is left out.
extern "C" void {name}({parameters}, {type}* __restrict out, int64_t outer, int64_t places, int64_t rows,
                       int64_t width) {{
    {start}
    const int64_t threads = rows * width > 65536 ? omp_get_max_threads() : 1;
    const int64_t share = (width + 16 * threads - 1) / (16 * threads) * 16;
    #pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < width; first += share) {{
        const int64_t count = std::min(share, width - first);
        for (int64_t o = 0; o < outer; ++o) {{
            for (int64_t r = 0; r < rows; ++r) {{
                if ((uint64_t){index}[r] >= (uint64_t)places) continue;
                const {source_type}* from = {source} + (o * rows + r) * width + first;
                {type}* to = out + (o * places + {index}[r]) * width + first;
                #pragma omp simd
                for (int64_t v = 0; v < count; ++v) to[v] += {term};
            }}
        }}
    }}
}}
"""


def _start(value: Value) -> str:
    """The statement that initialises the sums, with a number or with the first input."""
    fill = value.attrs["fill"]
    if fill is None:
        return "std::copy(in0, in0 + outer * places * width, out);"
    return f"std::fill(out, out + outer * places * width, {STORED_TYPES[value.dtype]}({fill}));"


@_routine("add_rows")
def _add_rows(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    """Inputs: the initial sums (unless they are a number), the index of each row, the rows."""
    index: Value = value.inputs[-2]
    first = len(value.inputs) - 2
    given = [f"const {parts[f't{n}']}* __restrict in{n}" for n in range(len(value.inputs))]
    scale = value.attrs["scale"]
    parts |= {
        "parameters": ", ".join(given),
        "start": _start(value),
        "index": f"in{first}",
        "source": f"in{first + 1}",
        "source_type": parts[f"t{first + 1}"],
        "term": "from[v]" if scale == 1 else f"{STORED_TYPES[value.dtype]}({scale}) * from[v]",
    }
    outer, places, inner = _around(value, value.attrs["dim"], variants)
    sizes = [("outer", outer), ("places", places), ("rows", index.shape[0]), ("width", inner)]
    return _ADD_ROWS.format(**parts), sizes


_ADD_ELEMENTS = """
// {title}
extern "C" void {name}({parameters}, {type}* __restrict out, int64_t outer, int64_t places, int64_t rows,
                       int64_t width) {{
    {start}
    #pragma omp parallel for schedule(static) if (outer * rows * width > 65536)
    for (int64_t o = 0; o < outer; ++o) {{
        {type}* to = out + o * places * width;
        for (int64_t r = 0; r < rows; ++r) {{
            const int64_t first = (o * rows + r) * width;
            for (int64_t v = 0; v < width; ++v) {{
                const int64_t at = {index}[first + v];
                if ((uint64_t)at < (uint64_t)places) to[at * width + v] += {term};
            }}
        }}
    }}
}}
"""
_COUNT_ELEMENTS = """
// {title}
// Four tables by turns: a step does not wait for the one before that counted the same place. Their last place is for
// what would go beyond the end.
extern "C" void {name}({parameters}, {type}* __restrict out, int64_t outer, int64_t places, int64_t rows) {{
    constexpr int64_t width = 1;
    {start}
    #pragma omp parallel if (outer * rows > 65536)
    {{
        const int64_t size = places + 1;
        std::vector<{type}> tables(4 * size);
        {type}* table = tables.data();
        const auto place = [places](int64_t at) {{ return (int64_t)std::min((uint64_t)at, (uint64_t)places); }};
        #pragma omp for schedule(static)
        for (int64_t o = 0; o < outer; ++o) {{
            std::fill(tables.begin(), tables.end(), {type}(0));
            const {index_type}* at = {index} + o * rows;
            int64_t r = 0;
            for (; r + 4 <= rows; r += 4) {{
                table[place(at[r])] += {term0};
                table[size + place(at[r + 1])] += {term1};
                table[2 * size + place(at[r + 2])] += {term2};
                table[3 * size + place(at[r + 3])] += {term3};
            }}
            for (; r < rows; ++r) table[place(at[r])] += {term0};
            {type}* to = out + o * places;
            #pragma omp simd
            for (int64_t p = 0; p < places; ++p)
                to[p] += table[p] + table[size + p] + table[2 * size + p] + table[3 * size + p];
        }}
    }}
}}
"""


@_routine("add_elements")
def _add_elements(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    """Inputs: the initial sums (unless a number), the index of each element, the elements (unless a number)."""
    number, begun = value.attrs["number"], value.attrs["fill"] is None
    place = 1 if begun else 0
    given = [f"const {parts[f't{n}']}* __restrict in{n}" for n in range(len(value.inputs))]
    parts |= {
        "parameters": ", ".join(given),
        "start": _start(value),
        "index": f"in{place}",
        "index_type": parts[f"t{place}"],
    }
    index: Value = value.inputs[place]
    outer, places, inner = _around(value, value.attrs["dim"], variants)
    rows = index.shape[value.attrs["dim"]]
    sizes = [("outer", outer), ("places", places), ("rows", rows)]
    literal = f"{STORED_TYPES[value.dtype]}({number})"
    if inner.equals(1):
        source = f"in{place + 1}[o * rows + r{{}}]" if number is None else literal
        parts |= {f"term{n}": source.format(f" + {n}" if n else "") for n in range(4)}
        return _COUNT_ELEMENTS.format(**parts), sizes
    parts["term"] = f"in{place + 1}[first + v]" if number is None else literal
    return _ADD_ELEMENTS.format(**parts), [*sizes, ("width", inner)]


# ------------------------------------------------------------------------------------------------ resampling


def _planes(value: Value, variants: int) -> list[tuple[str, Size]]:
    x: Value = value.args[0]
    sizes = [("planes", product(x.shape[:-2], variants)), ("height", x.shape[-2]), ("width", x.shape[-1])]
    return [*sizes, ("out_height", value.shape[-2]), ("out_width", value.shape[-1])]


@_routine("bins")
def _bins(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    return BINS.format(**parts), _planes(value, variants)


@_routine("resample")
def _resample(value: Value, parts: dict[str, str], second: bool, variants: int) -> tuple[str, Sizes]:
    if value.attrs["kind"] == "nearest":
        return NEAREST.format(**parts), _planes(value, variants)
    corners = value.attrs["align_corners"]
    parts["exact"] = "scale * (float)at" if corners else "std::max(scale * ((float)at + 0.5f) - 0.5f, 0.0f)"
    parts["twice"] = "false" if corners else "scale_w == 0.5f && out_width == 2 * width"
    return BILINEAR.format(**parts), _planes(value, variants)
