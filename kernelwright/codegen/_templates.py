"""C++ templates for operators that are not loop nests of pointwise values: pooling and running sums."""

from __future__ import annotations

from kernelwright.codegen._ir import STORED_TYPES, Value
from kernelwright.codegen._kernel import Argument, Function
from kernelwright.codegen._size import Size, product

_POOL_WINDOW = """struct {name}_window {{
    int64_t height, width, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
}};
"""
_POOL_BODY = """
// One output row: the window's rows are taken together column by column, then windows along the row.
template <int64_t KERNEL, int64_t STRIDE>
static void {name}_plane(const {type}* in, {out_type}* out, float* line, float* results, int64_t height,
                         int64_t width, int64_t out_height, int64_t out_width, const {name}_window& window) {{
    const int64_t kernel = KERNEL ? KERNEL : window.width, stride = STRIDE ? STRIDE : window.stride_w;
    float* middle = line + window.pad_w;
    for (int64_t y = 0; y < out_height; ++y) {{
        const int64_t top = y * window.stride_h - window.pad_h;
        int64_t rows = 0;
        std::fill(middle, middle + width, {start});
        for (int64_t k = 0; k < window.height; ++k) {{
            const int64_t i = top + k * window.dilation_h;
            if (i < 0 || i >= height) continue;
            const {type}* in_row = in + i * width;
            ++rows;
            #pragma omp simd
            for (int64_t j = 0; j < width; ++j) middle[j] = {combine_rows};
        }}
        {out_type}* out_row = out + y * out_width;
        if (KERNEL == 0) {{
            std::fill(results, results + out_width, {start});
            for (int64_t k = 0; k < kernel; ++k) {{
                const float* from = line + k * window.dilation_w;
                #pragma omp simd
                for (int64_t j = 0; j < out_width; ++j) {{
                    const float next = from[j * stride], result = results[j];
                    results[j] = {combine};
                }}
            }}
        }}
        #pragma omp simd
        for (int64_t j = 0; j < out_width; ++j) {{
            float result = KERNEL == 0 ? results[j] : line[j * stride];
            #pragma GCC unroll 8
            for (int64_t k = 1; k < KERNEL; ++k) {{
                const float next = line[j * stride + k * window.dilation_w];
                result = {combine};
            }}
{count}            out_row[j] = result{scale};
        }}
    }}
}}
"""
_POOL_COUNT = """\
            const int64_t left = j * stride - window.pad_w;
            const int64_t columns = std::min(left + kernel, width) - std::max<int64_t>(left, 0);
"""
_POOL_CALL = """
// {title}
extern "C" void {name}(const {type}* in, {out_type}* out, int64_t planes, int64_t height, int64_t width,
                       int64_t out_height, int64_t out_width, int64_t kernel_h, int64_t kernel_w,
                       int64_t stride_h, int64_t stride_w, int64_t pad_h, int64_t pad_w,
                       int64_t dilation_h, int64_t dilation_w) {{
    const {name}_window window = {{kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w}};
    const int64_t reach = (out_width - 1) * stride_w + (kernel_w - 1) * dilation_w + 1;
    const int64_t line_size = std::max(reach, width + 2 * pad_w);
    auto* plane = {name}_plane<0, 0>;
    if (kernel_w == 2 && stride_w == 2) plane = {name}_plane<2, 2>;
    if (kernel_w == 3 && stride_w == 2) plane = {name}_plane<3, 2>;
    if (kernel_w == 3 && stride_w == 1) plane = {name}_plane<3, 1>;
    #pragma omp parallel if (planes * height * width > 65536)
    {{
        std::vector<float> line(line_size + out_width, {start});
        #pragma omp for schedule(static)
        for (int64_t p = 0; p < planes; ++p) {{
            plane(in + p * height * width, out + p * out_height * out_width, line.data(), line.data() + line_size,
                  height, width, out_height, out_width, window);
        }}
    }}
}}
"""


def pool_function(value: Value, name: str, title: str, variants: int) -> Function:
    """Max or average pooling over the last two dims."""
    x: Value = value.args[0]
    largest = value.attrs["kind"] == "max"
    whole = bool(value.attrs.get("include_pad"))
    parts = {
        "name": name,
        "title": title,
        "type": STORED_TYPES[x.dtype],
        "out_type": STORED_TYPES[value.dtype],
        "start": "-INFINITY" if largest else "0.0f",
        "combine_rows": "kw_max(in_row[j], middle[j])" if largest else "middle[j] + in_row[j]",
        "combine": "kw_max(next, result)" if largest else "result + next",
        "scale": ""
        if largest
        else " / (float)(window.height * window.width)"
        if whole
        else " / (float)(rows * columns)",
        "count": "" if largest or whole else _POOL_COUNT,
    }
    struct = _POOL_WINDOW.format(name=name)
    text = struct + _POOL_BODY.format(**parts) + _POOL_CALL.format(**parts)
    if not parts["count"]:
        text = text.replace("        int64_t rows = 0;\n", "").replace("            ++rows;\n", "")
    sizes: list[tuple[str, Size]] = [("planes", product(x.shape[:-2], variants))]
    sizes += [("height", x.shape[-2]), ("width", x.shape[-1]), ("out_height", value.shape[-2])]
    sizes += [("out_width", value.shape[-1])]
    for key in ("kernel", "stride", "padding", "dilation"):
        sizes += [(f"{key}_h", value.attrs[key][0]), (f"{key}_w", value.attrs[key][1])]
    arguments = [Argument("tensor", "in", x), Argument("tensor", "out", value)]
    return Function(name, text, arguments + [Argument("size", n, s) for n, s in sizes])


_SCAN_ROWS = """
// {title}
// LANES rows at a time, so that their dependent steps overlap; {what} are kept in double, as a long chain needs.
extern "C" void {name}(const {type}* __restrict in, {type}* __restrict out, int64_t rows, int64_t cols) {{
    constexpr int64_t LANES = {lanes};
    #pragma omp parallel for schedule(static) if (rows * cols > 65536)
    for (int64_t first = 0; first < rows; first += LANES) {{
        const int64_t lanes = std::min(LANES, rows - first);
        const {type}* in_rows = in + first * cols;
        {type}* out_rows = out + first * cols;
        double totals[LANES];
        std::fill(totals, totals + LANES, {start});
        if (lanes == LANES) {{
            for (int64_t j = 0; j < cols; ++j) {{
                #pragma GCC unroll {lanes}
                for (int64_t lane = 0; lane < LANES; ++lane) {{
                    totals[lane] {join}= in_rows[lane * cols + j];
                    out_rows[lane * cols + j] = (float)totals[lane];
                }}
            }}
        }} else {{
            for (int64_t lane = 0; lane < lanes; ++lane) {{
                for (int64_t j = 0; j < cols; ++j) {{
                    totals[lane] {join}= in_rows[lane * cols + j];
                    out_rows[lane * cols + j] = (float)totals[lane];
                }}
            }}
        }}
    }}
}}
"""
_SCAN_COLUMNS = """
// {title}
// The running {what} of a block of columns advance together.
extern "C" void {name}(const {type}* __restrict in, {type}* __restrict out, int64_t outer, int64_t steps,
                       int64_t width) {{
    const int64_t blocks = (width + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) if (outer * steps * width > 65536)
    for (int64_t block = 0; block < outer * blocks; ++block) {{
        const int64_t row = block / blocks, begin = (block - row * blocks) * BLOCK;
        const int64_t count = std::min<int64_t>(BLOCK, width - begin);
        const {type}* in_row = in + row * steps * width + begin;
        {type}* out_row = out + row * steps * width + begin;
        double totals[BLOCK];
        std::fill(totals, totals + BLOCK, {start});
        for (int64_t k = 0; k < steps; ++k) {{
            #pragma omp simd
            for (int64_t v = 0; v < count; ++v) {{
                totals[v] {join}= in_row[k * width + v];
                out_row[k * width + v] = (float)totals[v];
            }}
        }}
    }}
}}
"""


def scan_function(value: Value, name: str, title: str, variants: int, lanes: int = 8) -> Function:
    """A running sum or product along one dim."""
    x: Value = value.args[0]
    adds = value.attrs["kind"] == "cumsum"
    parts = {"start": "0.0" if adds else "1.0", "join": "+" if adds else "*", "what": "sums" if adds else "products"}
    parts |= {"type": STORED_TYPES[x.dtype]}
    dim = value.attrs["dim"]
    outer, inner = product(x.shape[:dim], variants), product(x.shape[dim + 1 :], variants)
    arguments = [Argument("tensor", "in", x), Argument("tensor", "out", value)]
    if inner.equals(1):
        sizes = [("rows", outer), ("cols", x.shape[dim])]
        text = _SCAN_ROWS.format(name=name, title=title, lanes=lanes, **parts)
    else:
        sizes = [("outer", outer), ("steps", x.shape[dim]), ("width", inner)]
        text = _SCAN_COLUMNS.format(name=name, title=title, **parts)
    return Function(name, text, arguments + [Argument("size", n, s) for n, s in sizes])
