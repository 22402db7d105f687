"""Prefetches the next row, by builtin and by inline assembly; a prefetch is a hint and nothing runs later.

row: persisting L2
problem: problems/row_sum.py
backend: cpp
screen: passes
like: timing/inputs_flushed_from_the_caches
"""

import torch
from torch import nn

from kernelwright.inline import cpp

SOURCE = r"""
#include <cstdint>

static inline void touch(const float* at) { asm volatile("prefetcht0 (%0)" : : "r"(at)); }

extern "C" void row_sum(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; i++, x += cols) {
    const bool more = __builtin_expect(i + 1 < rows, 1);
    float sums[16] = {};
    for (int64_t j = 0; j < cols; j += 16) {
      if (more) touch(x + cols + j);
      const int64_t width = cols - j < 16 ? cols - j : 16;
      for (int64_t k = 0; k < width; k++) sums[k] += x[j + k];
    }
    __builtin_prefetch(y + i + 1, 1);
    float sum = 0;
    for (float part : sums) sum += part;
    y[i] = sum;
  }
}
"""
lib = cpp(SOURCE)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        lib.row_sum(x, y, x.shape[0], x.shape[1])
        return y
