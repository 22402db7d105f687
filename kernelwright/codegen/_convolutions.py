"""Generated convolutions over images of one to three dims, also grouped and transposed ones.

Every tap of a filter sees a shifted view of the padded image. So a convolution is a matrix product: rows are filters,
columns are image positions, and the depth runs over channels and taps. Its epilogue runs on tiles in cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._gemm import finished, operands, rows_passed, sizes_of, tail_of, widen
from kernelwright.codegen._ir import Value
from kernelwright.codegen._kernel import Function
from kernelwright.codegen._names import KernelSizes
from kernelwright.codegen._partition import Step
from kernelwright.codegen._products import operand_memory
from kernelwright.codegen._size import Size

_DIMS = "dhw"  # an image of fewer dims has leading dims of size 1
_PER_DIM = ("in", "out", "kernel", "stride", "pad", "dilation", "reach", "first", "last", "span", "phase", "row", "end")
_NAMES = """
a b acc batch base begin c channel count end f filters filters_in first from group group_channels group_filters image
image_in job left line p pitch place places plane r right slice source sources starts step stop sums taps terms
tile_rows to wide x y z
"""
_RESERVED = frozenset([*_NAMES.split(), *(f"{name}_{letter}" for name in _PER_DIM for letter in _DIMS)])

_HEAD = """
{helper}// {title}
{comment}
{signature}
    constexpr int64_t WIDTH = TILE_VECTORS * LANES;
    const int64_t in_d = {in_d}, in_h = {in_h}, in_w = {in_w}, out_d = {out_d}, out_h = {out_h}, out_w = {out_w};
    const int64_t kernel_d = {kernel_d}, kernel_h = {kernel_h}, kernel_w = {kernel_w};
    const int64_t stride_d = {stride_d}, stride_h = {stride_h}, stride_w = {stride_w};
    const int64_t pad_d = {pad_d}, pad_h = {pad_h}, pad_w = {pad_w};
    const int64_t dilation_d = {dilation_d}, dilation_h = {dilation_h}, dilation_w = {dilation_w};
    const int64_t group_channels = {group_channels}, group_filters = {group_filters};
{widened}"""
_STRAIGHT = """\
    const int64_t terms = group_channels * kernel_d * kernel_h * kernel_w;
    const int64_t span_d = std::max(in_d + pad_d, (out_d - 1) * stride_d + (kernel_d - 1) * dilation_d + 1);
    const int64_t span_h = std::max(in_h + pad_h, (out_h - 1) * stride_h + (kernel_h - 1) * dilation_h + 1);
    const int64_t span_w = std::max(in_w + pad_w, (out_w - 1) * stride_w + (kernel_w - 1) * dilation_w + 1);
    const int64_t pitch = (span_w + stride_w - 1) / stride_w, plane = (span_h + stride_h - 1) / stride_h * pitch;
    const int64_t slice = plane * stride_h * stride_w, channel = span_d * slice;
    const int64_t places = (out_h - 1) * pitch + out_w;
    std::vector<int64_t> taps;
    for (int64_t c = 0; c < group_channels; ++c)
        for (int64_t z = 0; z < kernel_d * dilation_d; z += dilation_d)
            for (int64_t y = 0; y < kernel_h * dilation_h; y += dilation_h)
                for (int64_t x = 0; x < kernel_w * dilation_w; x += dilation_w)
                    taps.push_back(c * channel + z * slice + (y % stride_h * stride_w + x % stride_w) * plane +
                                   y / stride_h * pitch + x / stride_w);
    #pragma omp parallel if ({jobs} * group_filters * terms * out_d * places > 262144)
    {{
        std::vector<float> image(group_channels * channel + WIDTH, 0.0f);
        alignas(64) float acc[TILE_ROWS * WIDTH];
        #pragma omp for schedule(static)
        for (int64_t {job} = 0; {job} < {jobs}; ++{job}) {{
            {decode}for (int64_t row = 0; row < group_channels * in_d * in_h; ++row) {{
                const auto* from = {x} + ({job} * group_channels * in_d * in_h + row) * in_w;
                const int64_t c = row / (in_d * in_h), z = row / in_h % in_d + pad_d, y = row % in_h + pad_h;
                float* to = image.data() + c * channel + z * slice;
                to += y % stride_h * stride_w * plane + y / stride_h * pitch;
                if (stride_w == 1) {{
                    std::copy(from, from + in_w, to + pad_w);
                    continue;
                }}
                for (int64_t x = pad_w; x < in_w + pad_w; ++x)
                    to[x % stride_w * plane + x / stride_w] = from[x - pad_w];
            }}
            for (int64_t z = 0; z < out_d; ++z) {{
                const float* base = image.data() + z * stride_d * slice;
                for (int64_t place = 0; place < places; place += WIDTH) {{
                    const int64_t stop = std::min(place + WIDTH, places);
                    for (int64_t f = 0; f < group_filters; f += TILE_ROWS) {{
                        const int64_t tile_rows = std::min(TILE_ROWS, group_filters - f);
                        tile<TILE_VECTORS>({weight} + ({first_filter}f) * terms, terms, 1, base + place,
                                           Taps{{taps.data()}}, terms, tile_rows, acc, WIDTH);
                        for (int64_t y = place / pitch; y * pitch < stop; ++y) {{
                            const int64_t left = std::max(y * pitch, place) - y * pitch;
                            const int64_t right = std::min(y * pitch + out_w, stop) - y * pitch;
                            const int64_t begin = (z * out_h + y) * out_w + left;
                            for (int64_t r = 0; r < tile_rows && left < right; ++r) {{
                                const float* sums = acc + r * WIDTH + y * pitch + left - place;
                                {call}
                            }}
                        }}
                    }}
                }}
            }}
        }}
    }}
}}
"""
_STRAIGHT_COMMENT = """\
// The image is copied once into padded planes (one per stride phase), so that every filter tap is a shifted view of it
// and the product needs no packing; output columns beyond the image's width are computed and dropped."""
_TRANSPOSED = """\
    const int64_t phases = stride_d * stride_h * stride_w;
    const int64_t reach_d = (kernel_d - 1) * dilation_d / stride_d, last_d = (out_d - 1 + pad_d) / stride_d;
    const int64_t reach_h = (kernel_h - 1) * dilation_h / stride_h, last_h = (out_h - 1 + pad_h) / stride_h;
    const int64_t reach_w = (kernel_w - 1) * dilation_w / stride_w, last_w = (out_w - 1 + pad_w) / stride_w;
    const int64_t first_w = pad_w / stride_w, row_w = last_w + 1 - first_w;
    const int64_t pitch = reach_w + std::max(in_w, last_w + 1), slice = (reach_h + std::max(in_h, last_h + 1)) * pitch;
    const int64_t channel = (reach_d + std::max(in_d, last_d + 1)) * slice;
    // For each phase, the taps that reach it: where they read the image, and where their weights lie.
    std::vector<int64_t> taps, sources, starts;
    for (int64_t p = 0; p < phases; ++p) {{
        starts.push_back(taps.size());
        for (int64_t c = 0; c < group_channels; ++c)
            for (int64_t k = 0; k < kernel_d * kernel_h * kernel_w; ++k) {{
                const int64_t z = k / (kernel_h * kernel_w) * dilation_d, y = k / kernel_w % kernel_h * dilation_h;
                const int64_t x = k % kernel_w * dilation_w;
                if ((z % stride_d * stride_h + y % stride_h) * stride_w + x % stride_w != p) continue;
                taps.push_back(c * channel + (reach_d - z / stride_d) * slice + (reach_h - y / stride_h) * pitch +
                               reach_w - x / stride_w);
                sources.push_back(c * group_filters * kernel_d * kernel_h * kernel_w + k);
            }}
    }}
    starts.push_back(taps.size());
    // The weights again, a row of taps for each filter of a phase.
    const int64_t group_size = taps.size() * group_filters;
    std::vector<float> filters({groups} * group_size);
    for (int64_t group = 0; group < {groups}; ++group)
        for (int64_t p = 0; p < phases; ++p) {{
            float* to = filters.data() + group * group_size + starts[p] * group_filters;
            for (int64_t f = 0; f < group_filters; ++f)
                for (int64_t k = starts[p]; k < starts[p + 1]; ++k)
                    *to++ = {weight}[group * group_size + sources[k] + f * kernel_d * kernel_h * kernel_w];
        }}
    #pragma omp parallel if ({jobs} * group_size * out_d * out_h * row_w > 262144)
    {{
        std::vector<float> image(group_channels * channel + WIDTH, 0.0f);
        std::vector<float> acc(stride_w * TILE_ROWS * WIDTH), line(stride_w * WIDTH);
        #pragma omp for schedule(static)
        for (int64_t {job} = 0; {job} < {jobs}; ++{job}) {{
            {decode}for (int64_t row = 0; row < group_channels * in_d * in_h; ++row) {{
                const auto* from = {x} + ({job} * group_channels * in_d * in_h + row) * in_w;
                const int64_t c = row / (in_d * in_h), z = row / in_h % in_d + reach_d, y = row % in_h + reach_h;
                std::copy(from, from + in_w, image.data() + c * channel + z * slice + y * pitch + reach_w);
            }}
            // Rows of the output with the same phase, one after another.
            for (int64_t step = 0; step < out_d * stride_h; ++step) {{
                const int64_t z = step / stride_h, phase_h = step % stride_h;
                if (out_h - 1 + pad_h < phase_h) continue;
                const int64_t first = std::max<int64_t>(0, (pad_h - phase_h + stride_h - 1) / stride_h);
                const int64_t last = (out_h - 1 + pad_h - phase_h) / stride_h;
                const int64_t places = (last - first) * pitch + row_w;
                const float* base = image.data() + (z + pad_d) / stride_d * slice + first * pitch + first_w;
                const int64_t* start = starts.data() + ((z + pad_d) % stride_d * stride_h + phase_h) * stride_w;
                for (int64_t place = 0; place < places; place += WIDTH) {{
                    const int64_t stop = std::min(place + WIDTH, places);
                    for (int64_t f = 0; f < group_filters; f += TILE_ROWS) {{
                        const int64_t tile_rows = std::min(TILE_ROWS, group_filters - f);
                        for (int64_t p = 0; p < stride_w; ++p) {{
                            const int64_t terms = start[p + 1] - start[p];
                            const float* rows = filters.data() + {group_offset}start[p] * group_filters + f * terms;
                            float* to = acc.data() + p * TILE_ROWS * WIDTH;
                            if (terms == 0) std::fill(to, to + TILE_ROWS * WIDTH, 0.0f);
                            tile<TILE_VECTORS>(rows, terms, 1, base + place, Taps{{taps.data() + start[p]}}, terms,
                                               tile_rows, to, WIDTH);
                        }}
                        for (int64_t row = place / pitch; row * pitch < stop; ++row) {{
                            const int64_t left = std::max(row * pitch, place) - row * pitch;
                            const int64_t right = std::min(row * pitch + row_w, stop) - row * pitch;
                            const int64_t from = (first_w + left) * stride_w - pad_w;
                            const int64_t x = std::max<int64_t>(from, 0);
                            const int64_t y = (first + row) * stride_h + phase_h - pad_h;
                            const int64_t count = std::min((first_w + right) * stride_w - pad_w, out_w) - x;
                            const int64_t begin = (z * out_h + y) * out_w + x;
                            for (int64_t r = 0; r < tile_rows && count > 0; ++r) {{
                                for (int64_t p = 0; p < stride_w; ++p) {{
                                    const float* phase = acc.data() + (p * TILE_ROWS + r) * WIDTH + row * pitch - place;
                                    for (int64_t k = left; k < right; ++k) line[(k - left) * stride_w + p] = phase[k];
                                }}
                                const float* sums = line.data() + x - from;
                                {call}
                            }}
                        }}
                    }}
                }}
            }}
        }}
    }}
}}
"""
_TRANSPOSED_COMMENT = """\
// Input i reaches output o through tap k where o + pad = i * stride + k * dilation. Outputs with the same remainder of
// o + pad by the stride form a phase: the same taps reach them, so that a phase is a convolution of stride 1 over the
// padded image. The phases of a row are computed side by side and interleaved."""


def conv_function(step: Step, name: str, title: str, variants: int, options: Mapping[str, Any]) -> Function:
    """A convolution with its epilogue."""
    value = step.values[0]
    x, weight = value.args
    transposed = value.attrs["transposed"]
    groups: Size = value.attrs["groups"]
    tail = tail_of(step, name, title, options, _RESERVED)
    memory = [("image_in", operand_memory(x, variants)), ("filters_in", operand_memory(weight, variants))]
    arguments, names = operands(memory, tail)
    sizes = sizes_of(tail)
    widened = widen(memory[1:], names, sizes, variants)
    grouped = not groups.equals(1)
    first_filter = "group * group_filters + " if grouped else ""
    fields = _window(value, sizes, variants)
    fields |= {
        "widened": widened, "helper": tail.helper, "title": title,
        "x": names["image_in"], "weight": names["filters_in"],
        "comment": _TRANSPOSED_COMMENT if transposed else _STRAIGHT_COMMENT,
        "group_channels": sizes.expr(x.shape[1] // groups, "channels"),
        "group_filters": sizes.expr(value.shape[1] // groups, "n_filters"),
        "groups": sizes.expr(groups, "groups"), "jobs": sizes.expr(x.shape[0] * groups, "jobs"),
        "job": "job" if grouped else "batch", "first_filter": first_filter,
        "group_offset": "group * group_size + " if grouped else "",
    }  # fmt: skip
    decode = f"const int64_t batch = job / {fields['groups']}, group = job % {fields['groups']};\n            "
    fields["decode"] = decode if grouped else ""
    rows = rows_passed(step, ("batch", x.shape[0]), (f"{first_filter}f + r", value.shape[1]), sizes)
    fields["call"] = tail.call.format(
        acc="sums", rows=rows, begin="begin", count="count" if transposed else "right - left",
        columns="(out_d * out_h * out_w)",
    )  # fmt: skip
    return finished(_HEAD + (_TRANSPOSED if transposed else _STRAIGHT), fields, name, step, arguments, tail, sizes)


def _window(value: Value, sizes: KernelSizes, variants: int) -> dict[str, str]:
    """The sizes and window parameters of every image dim. Missing leading dims get neutral values."""
    x, weight = value.args
    rank = len(x.shape) - 2
    one, zero = Size.const(1, variants), Size.const(0, variants)
    columns = {
        "in": (x.shape[2:], one), "out": (value.shape[2:], one), "kernel": (weight.shape[2:], one),
        "stride": (value.attrs["stride"], one), "pad": (value.attrs["padding"], zero),
        "dilation": (value.attrs["dilation"], one),
    }  # fmt: skip
    return {
        f"{key}_{letter}": sizes.name(size, f"n_{key}_{letter}")
        for key, (given, missing) in columns.items()
        for letter, size in zip(_DIMS, [missing] * (3 - rank) + list(given), strict=True)
    }
