"""The C++ building blocks of matrix products: packing, transposition, and the register tile.

The tile is 8 x 48 floats with AVX-512 (24 of 32 registers accumulate) and 6 x 16 otherwise. B is packed into panels
that are one tile wide; A is read in place, one broadcast per element. Sums longer than 512 are split, which keeps
chains of additions short and the panel in L2.
"""

from __future__ import annotations

BLOCKS = """
#ifdef __AVX512F__
constexpr int64_t LANES = 16, TILE_ROWS = {rows}, TILE_VECTORS = {vectors};
#else
constexpr int64_t LANES = 8, TILE_ROWS = 6, TILE_VECTORS = 2;
#endif
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef int32_t Lanes __attribute__((vector_size(LANES * sizeof(float))));

// Swap blocks of W x W between pairs of rows; after W = LANES/2, ..., 2, 1 the square is transposed.
template <int64_t W>
static inline void swap_blocks(Vector* v) {{
    Lanes low, high;
    for (int64_t lane = 0; lane < LANES; ++lane) {{
        low[lane] = (lane & W) ? lane - W + LANES : lane;
        high[lane] = (lane & W) ? lane + LANES : lane + W;
    }}
    #pragma GCC unroll 16
    for (int64_t i = 0; i < LANES; ++i) {{
        if (i & W) continue;
        const Vector first = v[i], second = v[i + W];
        v[i] = __builtin_shuffle(first, second, low);
        v[i + W] = __builtin_shuffle(first, second, high);
    }}
    if constexpr (W > 1) swap_blocks<W / 2>(v);
}}

// panel[k][column] = b[k * step_k + column * step_n]; missing columns are zero.
template <int64_t VECTORS>
static inline void pack(const float* b, int64_t step_k, int64_t step_n, int64_t depth, int64_t columns, float* panel) {{
    constexpr int64_t WIDTH = VECTORS * LANES;
    if (columns < WIDTH) std::fill(panel, panel + depth * WIDTH, 0.0f);
    if (step_n == 1) {{
        for (int64_t k = 0; k < depth; ++k) std::copy(b + k * step_k, b + k * step_k + columns, panel + k * WIDTH);
        return;
    }}
    const int64_t whole_n = step_k == 1 ? columns / LANES * LANES : 0, whole_k = depth / LANES * LANES;
    for (int64_t n = 0; n < whole_n; n += LANES) {{
        for (int64_t k = 0; k < whole_k; k += LANES) {{
            Vector square[LANES];
            #pragma GCC unroll 16
            for (int64_t i = 0; i < LANES; ++i) square[i] = *(const Vector*)(b + (n + i) * step_n + k);
            swap_blocks<LANES / 2>(square);
            #pragma GCC unroll 16
            for (int64_t i = 0; i < LANES; ++i) *(Vector*)(panel + (k + i) * WIDTH + n) = square[i];
        }}
        for (int64_t k = whole_k; k < depth; ++k)
            for (int64_t i = n; i < n + LANES; ++i) panel[k * WIDTH + i] = b[k + i * step_n];
    }}
    for (int64_t n = whole_n; n < columns; ++n)
        for (int64_t k = 0; k < depth; ++k) panel[k * WIDTH + n] = b[k * step_k + n * step_n];
}}

// Where the vectors of step k begin: in a packed panel, or at the taps of a filter over an image.
template <int64_t WIDTH>
struct Packed {{
    int64_t operator()(int64_t k) const {{ return k * WIDTH; }}
}};
struct Taps {{
    const int64_t* taps;
    int64_t operator()(int64_t k) const {{ return taps[k]; }}
}};

// ROWS x VECTORS accumulators in registers; the vectors of step k begin at panel + offset(k).
template <int64_t ROWS, int64_t VECTORS, typename Offset>
__attribute__((noinline)) static void accumulate(const float* a, int64_t step_m, int64_t step_k, const float* panel,
                                                 Offset offset, int64_t begin, int64_t end, float* out,
                                                 int64_t step_out) {{
    Vector sums[ROWS][VECTORS] = {{}};
    for (int64_t k = begin; k < end; ++k) {{
        const float* row = panel + offset(k);
        Vector loaded[VECTORS];
        #pragma GCC unroll 4
        for (int64_t v = 0; v < VECTORS; ++v) loaded[v] = *(const Vector*)(row + v * LANES);
        #pragma GCC unroll 16
        for (int64_t r = 0; r < ROWS; ++r) {{
            #pragma GCC unroll 4
            for (int64_t v = 0; v < VECTORS; ++v) sums[r][v] += a[r * step_m + k * step_k] * loaded[v];
        }}
    }}
    #pragma GCC unroll 16
    for (int64_t r = 0; r < ROWS; ++r) {{
        #pragma GCC unroll 4
        for (int64_t v = 0; v < VECTORS; ++v) {{
            Vector* target = (Vector*)(out + r * step_out + v * LANES);
            *target = begin ? *target + sums[r][v] : sums[r][v];
        }}
    }}
}}

// One tile of up to TILE_ROWS rows.
template <int64_t VECTORS, typename Offset>
static inline void tile(const float* a, int64_t step_m, int64_t step_k, const float* panel, Offset offset,
                        int64_t depth, int64_t rows, float* out, int64_t step_out) {{
    constexpr int64_t LONGEST = 512;
    for (int64_t begin = 0; begin < depth; begin += LONGEST) {{
        const int64_t end = std::min(depth, begin + LONGEST);
        auto rows_from = [&](int64_t r, auto count) {{
            accumulate<decltype(count)::value, VECTORS>(a + r * step_m, step_m, step_k, panel, offset, begin, end,
                                                        out + r * step_out, step_out);
        }};
        int64_t r = 0;
        if (rows == TILE_ROWS) {{
            rows_from(0, std::integral_constant<int64_t, TILE_ROWS>{{}});
            continue;
        }}
        for (; r + 4 <= rows; r += 4) rows_from(r, std::integral_constant<int64_t, 4>{{}});
        for (; r + 2 <= rows; r += 2) rows_from(r, std::integral_constant<int64_t, 2>{{}});
        for (; r < rows; ++r) rows_from(r, std::integral_constant<int64_t, 1>{{}});
    }}
}}

__attribute__((noinline)) static void pack_any(const float* b, int64_t step_k, int64_t step_n, int64_t depth,
                                               int64_t columns, float* panel) {{
    if (columns > 2 * LANES) pack<3>(b, step_k, step_n, depth, columns, panel);
    else if (columns > LANES) pack<2>(b, step_k, step_n, depth, columns, panel);
    else pack<1>(b, step_k, step_n, depth, columns, panel);
}}

// Returns the distance between the rows of the finished tile.
__attribute__((noinline)) static int64_t tile_any(const float* a, int64_t step_m, int64_t step_k, const float* panel,
                                                  int64_t depth, int64_t rows, int64_t columns, float* out) {{
    if (columns > 2 * LANES) {{
        tile<3>(a, step_m, step_k, panel, Packed<3 * LANES>{{}}, depth, rows, out, 3 * LANES);
        return 3 * LANES;
    }}
    if (columns > LANES) {{
        tile<2>(a, step_m, step_k, panel, Packed<2 * LANES>{{}}, depth, rows, out, 2 * LANES);
        return 2 * LANES;
    }}
    tile<1>(a, step_m, step_k, panel, Packed<LANES>{{}}, depth, rows, out, LANES);
    return LANES;
}}
"""


def gemm_blocks(tile: str = "8x3") -> str:
    """The building blocks for a register tile written as rows x vectors."""
    rows, vectors = tile.split("x")
    return BLOCKS.format(rows=rows, vectors=vectors)
