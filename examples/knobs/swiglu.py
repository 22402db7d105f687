"""SiLU of the first half of a row times its second half, for level2/swiglu.

EXP chooses between the compiler's vector expf and a polynomial of its own, LANES is the width of a vector, and UNROLL
how many of them are in flight.
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

// e^x within the range of float32: e^r by a polynomial times a power of two that is put together by bits.
static inline vec power(vec x) {
#if POLYNOMIAL
  x = x < 88.0f ? x : vec{} + 88.0f;
  x = x > -87.0f ? x : vec{} - 87.0f;
  const vec scaled = x * 1.44269504f;
  const ints n = __builtin_convertvector(scaled + (scaled < 0.0f ? vec{} - 0.5f : vec{} + 0.5f), ints);
  const vec whole = __builtin_convertvector(n, vec);
  const vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (vec)((n + 127) << 23);
#else
  vec y;
  for (int i = 0; i < LANES; i++) y[i] = std::exp(x[i]);
  return y;
#endif
}

extern "C" void swiglu(const float* __restrict x, float* __restrict y, int64_t tokens, int64_t hidden) {
  constexpr int64_t STEP = LANES * UNROLL;
  for (int64_t token = 0; token < tokens; token++) {
    const float* a = x + token * 2 * hidden;
    const float* b = a + hidden;
    float* out = y + token * hidden;
    int64_t i = 0;
    for (; i + STEP <= hidden; i += STEP)
      for (int u = 0; u < UNROLL; u++) {
        const vec v = load(a + i + u * LANES);
        const vec result = v / (1.0f + power(-v)) * load(b + i + u * LANES);
        std::memcpy(out + i + u * LANES, &result, sizeof result);
      }
    for (; i < hidden; i++) out[i] = a[i] / (1 + std::exp(-a[i])) * b[i];
  }
}
"""
lib = cpp(
    SOURCE,
    defines={"POLYNOMIAL": EXP == "polynomial", "LANES": LANES, "UNROLL": UNROLL},
    flags=["-fno-math-errno", "-fno-trapping-math"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.shape[-1] // 2
        y = torch.empty(*x.shape[:-1], hidden)
        lib.swiglu(x, y, y.numel() // hidden, hidden)
        return y
