"""C++ bodies of routines, with placeholders for names and types."""

from __future__ import annotations

TOP = """
// Whether x comes before y. A NaN is larger than any number, as in torch.
static inline bool {name}_before({t0} x, {t0} y) {{
    return {before};
}}

// {title}
// Few numbers of a row are among its first k: most blocks hold none that comes before the last of them so far.
extern "C" void {name}(const {t0}* __restrict in0, {type}* __restrict out{index_parameter}, int64_t rows,
                       int64_t cols, int64_t k) {{
    constexpr int64_t STEP = 16;
    #pragma omp parallel for schedule(static) if (rows * cols > 65536)
    for (int64_t row = 0; row < rows; ++row) {{
        const {t0}* in_row = in0 + row * cols;
        {type}* best = out + row * k;
{index_start}        const auto insert = [&]({t0} x, int64_t j, int64_t place) {{
            for (; place > 0 && {name}_before(x, best[place - 1]); --place) {{
                best[place] = best[place - 1];
                at[place] = at[place - 1];
            }}
            best[place] = x;
            at[place] = j;
        }};
        int64_t j = 0;
        for (; j < k; ++j) insert(in_row[j], j, j);
        {t0} last = best[k - 1];
        for (; j + STEP <= cols; j += STEP) {{
            int found = 0;
            #pragma omp simd reduction(|:found)
            for (int64_t v = 0; v < STEP; ++v) found |= !(in_row[j + v] {not_before} last);
            if (!found) continue;
            for (int64_t v = 0; v < STEP; ++v) {{
                if (!{name}_before(in_row[j + v], last)) continue;
                insert(in_row[j + v], j + v, k - 1);
                last = best[k - 1];
            }}
        }}
        for (; j < cols; ++j) {{
            if ({name}_before(in_row[j], best[k - 1])) insert(in_row[j], j, k - 1);
        }}
    }}
}}
"""
SEGMENTS = """
// COUNT columns of one segment, or count of them where COUNT is 0. Sums of 64 rows are added up, so that no sum is a
// chain of more.
template <int64_t COUNT>
static inline void {name}_columns({parameters}, {type}* __restrict to, int64_t begin, int64_t end, int64_t width,
                                  int64_t first, int64_t count) {{
    constexpr int64_t CHAIN = 64, WIDE = COUNT ? COUNT : 64;
    if (COUNT) count = COUNT;
    float total[WIDE] = {{}};
    for (int64_t r = begin; r < end; r += CHAIN) {{
        float part[WIDE] = {{}};
        const int64_t stop = std::min(r + CHAIN, end);
        for (int64_t i = r; i < stop; ++i) {{
            const {row_type}* from = in0 + {row} * width + first;
{prefetch}            #pragma omp simd
            for (int64_t v = 0; v < count; ++v) part[v] += {term};
        }}
        #pragma omp simd
        for (int64_t v = 0; v < count; ++v) total[v] += part[v];
    }}
    const float scale = {scale};
    #pragma omp simd
    for (int64_t v = 0; v < count; ++v) to[first + v] = total[v]{scaled};
}}

// {title}
extern "C" void {name}({parameters}, {type}* __restrict out, int64_t segments, int64_t width, int64_t rows,
                       int64_t bounds) {{
    #pragma omp parallel for schedule(dynamic, 16) if (rows * width > 65536)
    for (int64_t s = 0; s < segments; ++s) {{
        const int64_t begin = {offsets}[s], end = s + 1 < bounds ? {offsets}[s + 1] : rows;
        {type}* to = out + s * width;
        int64_t first = 0;
        for (; first + 64 <= width; first += 64)
            {name}_columns<64>({given}, to, begin, end, width, first, 64);
        for (; first + 16 <= width; first += 16)
            {name}_columns<16>({given}, to, begin, end, width, first, 16);
        if (first < width) {name}_columns<0>({given}, to, begin, end, width, first, width - first);
    }}
}}
"""
PREFETCH = "            if (i + 4 < end) __builtin_prefetch(in0 + in1[i + 4] * width + first);\n"
BINS = """
// {title}
// The rows of a bin are added up column by column, then the columns of each bin.
extern "C" void {name}(const {t0}* __restrict in0, {type}* __restrict out, int64_t planes, int64_t height,
                       int64_t width, int64_t out_height, int64_t out_width) {{
    #pragma omp parallel if (planes * height * width > 65536)
    {{
        std::vector<float> line(width);
        #pragma omp for schedule(static)
        for (int64_t p = 0; p < planes; ++p) {{
            const {t0}* plane = in0 + p * height * width;
            for (int64_t y = 0; y < out_height; ++y) {{
                const int64_t top = y * height / out_height, end = ((y + 1) * height + out_height - 1) / out_height;
                std::fill(line.begin(), line.end(), 0.0f);
                for (int64_t i = top; i < end; ++i) {{
                    #pragma omp simd
                    for (int64_t j = 0; j < width; ++j) line[j] += plane[i * width + j];
                }}
                for (int64_t x = 0; x < out_width; ++x) {{
                    const int64_t left = x * width / out_width, stop = ((x + 1) * width + out_width - 1) / out_width;
                    float total = 0.0f;
                    #pragma omp simd reduction(+:total)
                    for (int64_t j = left; j < stop; ++j) total += line[j];
                    out[(p * out_height + y) * out_width + x] = total / (float)((end - top) * (stop - left));
                }}
            }}
        }}
    }}
}}
"""
BILINEAR = """
// Where an output position lies between two input positions, and the weight of the second.
struct {name}_place {{
    int64_t first, second;
    float weight;
}};

static inline {name}_place {name}_between(int64_t at, float scale, int64_t size) {{
    const float exact = {exact};
    const int64_t first = std::min<int64_t>((int64_t)exact, size - 1);
    return {{first, first + (first < size - 1), exact - (float)first}};
}}

// {title}
// Two rows become one, whose columns are then mixed.
extern "C" void {name}(const {t0}* __restrict in0, {type}* __restrict out, int64_t planes, int64_t height,
                       int64_t width, int64_t out_height, int64_t out_width, float scale_h, float scale_w) {{
    std::vector<int32_t> left(out_width), right(out_width);
    std::vector<float> weight(out_width);
    for (int64_t x = 0; x < out_width; ++x) {{
        const {name}_place place = {name}_between(x, scale_w, width);
        left[x] = (int32_t)place.first;
        right[x] = (int32_t)place.second;
        weight[x] = place.weight;
    }}
    const bool twice = {twice};
    #pragma omp parallel if (planes * out_height * out_width > 65536)
    {{
        std::vector<float> mixed(width);
        float* line = mixed.data();
        #pragma omp for schedule(static)
        for (int64_t p = 0; p < planes; ++p) {{
            const {t0}* plane = in0 + p * height * width;
            for (int64_t y = 0; y < out_height; ++y) {{
                const {name}_place place = {name}_between(y, scale_h, height);
                const {t0} *above = plane + place.first * width, *below = plane + place.second * width;
                const float down = place.weight, up = 1.0f - down;
                #pragma omp simd
                for (int64_t j = 0; j < width; ++j) line[j] = up * above[j] + down * below[j];
                {type}* to = out + (p * out_height + y) * out_width;
                if (twice) {{
                    to[0] = line[0];
                    #pragma omp simd
                    for (int64_t j = 0; j < width - 1; ++j) {{
                        to[2 * j + 1] = 0.75f * line[j] + 0.25f * line[j + 1];
                        to[2 * j + 2] = 0.25f * line[j] + 0.75f * line[j + 1];
                    }}
                    to[2 * width - 1] = line[width - 1];
                    continue;
                }}
                #pragma omp simd
                for (int64_t x = 0; x < out_width; ++x)
                    to[x] = (1.0f - weight[x]) * line[left[x]] + weight[x] * line[right[x]];
            }}
        }}
    }}
}}
"""
NEAREST = """
// {title}
extern "C" void {name}(const {t0}* __restrict in0, {type}* __restrict out, int64_t planes, int64_t height,
                       int64_t width, int64_t out_height, int64_t out_width, float scale_h, float scale_w) {{
    std::vector<int32_t> from(out_width);
    for (int64_t x = 0; x < out_width; ++x) from[x] = (int32_t)std::min<int64_t>((int64_t)(x * scale_w), width - 1);
    #pragma omp parallel for schedule(static) if (planes * out_height * out_width > 65536)
    for (int64_t p = 0; p < planes; ++p) {{
        for (int64_t y = 0; y < out_height; ++y) {{
            const int64_t i = std::min<int64_t>((int64_t)(y * scale_h), height - 1);
            const {t0}* line = in0 + (p * height + i) * width;
            {type}* to = out + (p * out_height + y) * out_width;
            #pragma omp simd
            for (int64_t x = 0; x < out_width; ++x) to[x] = line[from[x]];
        }}
    }}
}}
"""
