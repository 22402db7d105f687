"""Scores and result in one pass over the keys and one over the values; the scores of a head stay in the L1 cache."""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" void attend(const float* __restrict q, const float* __restrict k, const float* __restrict v,
                       float* __restrict y, int64_t heads, int64_t tokens, int64_t features, float scale) {
#pragma omp parallel for
  for (int64_t h = 0; h < heads; h++) {
    const float *query = q + h * features, *keys = k + h * tokens * features, *values = v + h * tokens * features;
    float* out = y + h * features;
    std::vector<float> weight(tokens);
    float top = -HUGE_VALF, sum = 0;
    for (int64_t t = 0; t < tokens; t++) {
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t f = 0; f < features; f++) dot += query[f] * keys[t * features + f];
      weight[t] = dot * scale;
      top = weight[t] > top ? weight[t] : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t t = 0; t < tokens; t++) sum += weight[t] = std::exp(weight[t] - top);
    for (int64_t f = 0; f < features; f++) out[f] = 0;
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t f = 0; f < features; f++) out[f] += weight[t] * values[t * features + f];
    for (int64_t f = 0; f < features; f++) out[f] /= sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, tokens, features = k.shape
        y = torch.empty_like(q)
        lib.attend(q, k, v, y, heads, tokens, features, features**-0.5)
        return y
