"""RMS normalisation over the last dimension, for level1/rms_norm.

LANES is the width of a vector and CHAINS how many sums of squares run side by side. TOGETHER rows are summed up before
any of them is written, so that one row's sum hides the latency of another one's.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"LANES": [4, 8, 16], "CHAINS": [1, 2, 4], "TOGETHER": [1, 2, 4]}
LANES = 4
CHAINS = 1
TOGETHER = 1

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

typedef float vec __attribute__((vector_size(4 * LANES)));

static inline vec load(const float* from) {
  vec v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

static inline float factor_of(const float* in, int64_t features, float eps) {
  constexpr int64_t STEP = LANES * CHAINS;
  const int64_t whole = features / STEP * STEP;
  vec sums[CHAINS] = {};
  for (int64_t i = 0; i < whole; i += STEP)
    for (int c = 0; c < CHAINS; c++) {
      const vec v = load(in + i + c * LANES);
      sums[c] += v * v;
    }
  for (int c = 1; c < CHAINS; c++) sums[0] += sums[c];
  float sum = 0;
  for (int lane = 0; lane < LANES; lane++) sum += sums[0][lane];
  for (int64_t i = whole; i < features; i++) sum += in[i] * in[i];
  return 1 / std::sqrt(sum / features + eps);
}

extern "C" void rms_norm(const float* __restrict x, const float* __restrict weight, float* __restrict y, int64_t rows,
                         int64_t features, float eps) {
  const int64_t whole = features / LANES * LANES;
  for (int64_t first = 0; first < rows; first += TOGETHER) {
    const int64_t count = rows - first < TOGETHER ? rows - first : TOGETHER;
    float factors[TOGETHER];
    for (int64_t r = 0; r < count; r++) factors[r] = factor_of(x + (first + r) * features, features, eps);
    for (int64_t i = 0; i < whole; i += LANES) {
      const vec w = load(weight + i);
      for (int64_t r = 0; r < count; r++) {
        const vec v = load(x + (first + r) * features + i) * factors[r] * w;
        std::memcpy(y + (first + r) * features + i, &v, sizeof v);
      }
    }
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = whole; i < features; i++)
        y[(first + r) * features + i] = x[(first + r) * features + i] * factors[r] * weight[i];
  }
}
"""
lib = cpp(SOURCE, defines={"LANES": LANES, "CHAINS": CHAINS, "TOGETHER": TOGETHER})


class ModelNew(nn.Module):
    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.rms_norm(x, self.weight, y, x.numel() // x.shape[-1], x.shape[-1], self.eps)
        return y
