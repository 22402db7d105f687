"""Euclidean norm over the middle dimension, for level1/norm_middle_dim: a strip of neighbouring features at once.

STRIP is how many features have their sums side by side, and TOKENS how many rows are read for each pass over them.
"""

import torch
from torch import nn

from kernelwright.inline import cpp

KNOBS = {"STRIP": [16, 32, 64, 128], "TOKENS": [1, 2, 4]}
STRIP = 16
TOKENS = 1

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <type_traits>

extern "C" void norm(const float* __restrict x, float* __restrict y, int64_t batch, int64_t tokens, int64_t features) {
  for (int64_t b = 0; b < batch; b++)
    for (int64_t start = 0; start < features; start += STRIP) {
      const float* in = x + b * tokens * features + start;
      float sums[STRIP] = {};
      const auto add = [&](int64_t first, auto count, auto width) {
        for (int64_t i = 0; i < width; i++) {
          float sum = sums[i];
#pragma GCC unroll 8
          for (int64_t t = 0; t < count; t++) {
            const float v = in[(first + t) * features + i];
            sum += v * v;
          }
          sums[i] = sum;
        }
      };
      const auto all = [&](auto width) {
        int64_t t = 0;
        for (; t + TOKENS <= tokens; t += TOKENS) add(t, std::integral_constant<int64_t, TOKENS>(), width);
        for (; t < tokens; t++) add(t, std::integral_constant<int64_t, 1>(), width);
      };
      const int64_t width = features - start < STRIP ? features - start : STRIP;
      if (width == STRIP)
        all(std::integral_constant<int64_t, STRIP>());
      else
        all(width);
      for (int64_t i = 0; i < width; i++) y[b * features + start + i] = std::sqrt(sums[i]);
    }
}
"""
lib = cpp(SOURCE, defines={"STRIP": STRIP, "TOKENS": TOKENS})


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, features = x.shape
        y = torch.empty(batch, features)
        lib.norm(x, y, batch, tokens, features)
        return y
