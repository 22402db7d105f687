"""Layer normalisation over the last dimension, for level1/layer_norm: mean, squared deviations, result.

LANES is the width of a vector, CHAINS how many sums run side by side, and PREFETCH how many rows ahead are asked for.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"LANES": [4, 8, 16], "CHAINS": [1, 2, 3], "PREFETCH": [0, 1, 4]}
LANES = 4
CHAINS = 1
PREFETCH = 0

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
static inline void store(float* to, vec v) { std::memcpy(to, &v, sizeof v); }
static inline float total(const vec* sums) {
  vec all = sums[0];
  for (int c = 1; c < CHAINS; c++) all += sums[c];
  float sum = 0;
  for (int lane = 0; lane < LANES; lane++) sum += all[lane];
  return sum;
}

extern "C" void layer_norm(const float* __restrict x, const float* __restrict weight, const float* __restrict bias,
                           float* __restrict y, int64_t rows, int64_t features, float eps) {
  constexpr int64_t STEP = LANES * CHAINS;
  const int64_t whole = features / STEP * STEP;
  for (int64_t row = 0; row < rows; row++) {
    const float* in = x + row * features;
    float* out = y + row * features;
    if (PREFETCH && row + PREFETCH < rows)
      for (int64_t i = 0; i < features; i += 16) __builtin_prefetch(in + PREFETCH * features + i);
    vec sums[CHAINS] = {}, squares[CHAINS] = {};
    for (int64_t i = 0; i < whole; i += STEP)
      for (int c = 0; c < CHAINS; c++) sums[c] += load(in + i + c * LANES);
    float sum = total(sums), square = 0;
    for (int64_t i = whole; i < features; i++) sum += in[i];
    const float mean = sum / features;
    for (int64_t i = 0; i < whole; i += STEP)
      for (int c = 0; c < CHAINS; c++) {
        const vec off = load(in + i + c * LANES) - mean;
        squares[c] += off * off;
      }
    for (int64_t i = whole; i < features; i++) square += (in[i] - mean) * (in[i] - mean);
    const float factor = 1 / std::sqrt((square + total(squares)) / features + eps);
    for (int64_t i = 0; i < whole; i += LANES)
      store(out + i, (load(in + i) - mean) * factor * load(weight + i) + load(bias + i));
    for (int64_t i = whole; i < features; i++) out[i] = (in[i] - mean) * factor * weight[i] + bias[i];
  }
}
"""
lib = cpp(SOURCE, defines={"LANES": LANES, "CHAINS": CHAINS, "PREFETCH": PREFETCH})


class ModelNew(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        features = x.shape[-1]
        lib.layer_norm(x, self.norm.weight, self.norm.bias, y, x.numel() // features, features, self.norm.eps)
        return y
