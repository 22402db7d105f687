"""Cross-entropy of logits and class indices, for level1/cross_entropy: log of a row's sum of powers, less its target's.

EXP chooses between the compiler's vector expf and a polynomial of its own. ONCE: a block of BLOCK logits has its own
maximum and sum, which are joined, so that the row is read once; otherwise all maxima are found first.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"EXP": ["library", "polynomial"], "LANES": [4, 8, 16], "ONCE": [False, True], "BLOCK": [64, 128, 256]}
EXP = "library"
LANES = 4
ONCE = False
BLOCK = 64

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

static float top_of(const float* in, int64_t count) {
  vec tops = vec{} - 3.0e38f;
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) {
    const vec v = load(in + i);
    tops = v > tops ? v : tops;
  }
  float top = -3.0e38f;
  for (int lane = 0; lane < LANES; lane++) top = tops[lane] > top ? tops[lane] : top;
  for (; i < count; i++) top = in[i] > top ? in[i] : top;
  return top;
}

static float sum_of(const float* in, int64_t count, float top) {
  vec sums = {};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) sums += power(load(in + i) - top);
  float sum = 0;
  for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
  for (; i < count; i++) sum += std::exp(in[i] - top);
  return sum;
}

extern "C" void cross_entropy(const float* __restrict logits, const int64_t* __restrict target, float* __restrict out,
                              int64_t rows, int64_t classes) {
  double loss = 0;
  for (int64_t row = 0; row < rows; row++) {
    const float* in = logits + row * classes;
    float top = ONCE ? -3.0e38f : top_of(in, classes), sum = 0;
    for (int64_t start = 0; start < classes; start += BLOCK) {
      const int64_t count = classes - start < BLOCK ? classes - start : BLOCK;
      if (ONCE) {
        const float here = top_of(in + start, count);
        if (here > top) {
          sum *= std::exp(top - here);
          top = here;
        }
      }
      sum += sum_of(in + start, count, top);
    }
    loss += double(top) - in[target[row]] + std::log(double(sum));
  }
  *out = float(loss / rows);
}
"""
lib = cpp(
    SOURCE,
    defines={"POLYNOMIAL": EXP == "polynomial", "LANES": LANES, "ONCE": ONCE, "BLOCK": BLOCK},
    flags=["-fno-math-errno", "-fno-trapping-math", "-ffinite-math-only"],
)


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        out = torch.empty(())
        lib.cross_entropy(logits, target, out, *logits.shape)
        return out
