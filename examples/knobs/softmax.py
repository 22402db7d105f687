"""Softmax over rows, for level1/softmax: each row is read from memory once and stays in the L1 cache for three loops.

EXP chooses between the compiler's vector expf and a polynomial of its own, LANES the width of a vector, and UNROLL how
many independent chains of vectors a loop has.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"EXP": ["library", "polynomial"], "LANES": [4, 8, 16], "UNROLL": [1, 2, 4]}
EXP = "library"
LANES = 4
UNROLL = 1

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

static inline vec load(const float* from) {
  vec v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
static inline void store(float* to, vec v) { std::memcpy(to, &v, sizeof v); }

// e^x for x <= 0: e^r by a polynomial, r within log 2 / 2 of zero, times a power of two that is put together by bits.
static inline vec power(vec x) {
#if POLYNOMIAL
  const ints in_range = x > -87.0f;
  x = in_range ? x : vec{} - 87.0f;
  const ints n = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
  const vec whole = __builtin_convertvector(n, vec);
  const vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return (vec)((ints)(p * (vec)((n + 127) << 23)) & in_range);
#else
  vec y;
  for (int i = 0; i < LANES; i++) y[i] = std::exp(x[i]);
  return y;
#endif
}

extern "C" void softmax(const float* __restrict x, float* __restrict y, int64_t rows, int64_t columns) {
  constexpr int64_t STEP = LANES * UNROLL;
  const int64_t whole = columns / STEP * STEP;
  for (int64_t row = 0; row < rows; row++) {
    const float* in = x + row * columns;
    float* out = y + row * columns;
    vec tops[UNROLL], sums[UNROLL] = {};
    for (int u = 0; u < UNROLL; u++) tops[u] = vec{} - 3.0e38f;
    for (int64_t i = 0; i < whole; i += STEP)
      for (int u = 0; u < UNROLL; u++) {
        const vec v = load(in + i + u * LANES);
        tops[u] = v > tops[u] ? v : tops[u];
      }
    float top = -3.0e38f, sum = 0;
    for (int u = 0; u < UNROLL; u++)
      for (int lane = 0; lane < LANES; lane++) top = tops[u][lane] > top ? tops[u][lane] : top;
    for (int64_t i = whole; i < columns; i++) top = in[i] > top ? in[i] : top;
    for (int64_t i = 0; i < whole; i += STEP)
      for (int u = 0; u < UNROLL; u++) {
        const vec v = power(load(in + i + u * LANES) - top);
        store(out + i + u * LANES, v);
        sums[u] += v;
      }
    for (int64_t i = whole; i < columns; i++) sum += out[i] = std::exp(in[i] - top);
    for (int u = 0; u < UNROLL; u++)
      for (int lane = 0; lane < LANES; lane++) sum += sums[u][lane];
    const float factor = 1 / sum;
    for (int64_t i = 0; i < columns; i++) out[i] *= factor;
  }
}
"""
lib = cpp(
    SOURCE,
    defines={"POLYNOMIAL": EXP == "polynomial", "LANES": LANES, "UNROLL": UNROLL},
    flags=["-fno-math-errno", "-fno-trapping-math", "-ffinite-math-only"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.softmax(x, y, x.numel() // x.shape[-1], x.shape[-1])
        return y
